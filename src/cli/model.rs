//! The model of a command: its flags, the files that flags name, how a model is found by name, and the server that runs it. That
//! server runs in this process unless a flag names another.

use crate::cli::output;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::{
    ffi::OsString,
    fmt::Display,
    fs,
    future::pending,
    io::{self, IsTerminal, Read},
    ops::RangeInclusive,
    path::{Component, Path, PathBuf},
    str::FromStr,
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::runtime::{Builder, Runtime};
use weir_client::{
    calls::MessageStream,
    connection::{Client, ServerEndpoint},
    flags::{ApiKeyArgs, SERVER, TlsArgs},
};
use weir_engine::{Handle, Limits, speculation::Speculation};
use weir_kernels::{
    Dtype, Isa,
    error::{Error, Result, printable, quoted},
};
use weir_models::{
    checkpoint::{CONFIG_FILE, CheckpointSource, DEFAULT_CHECKPOINT, files::check_folder},
    contract::{BoundaryMode, BoundaryOptions, Model, Noise},
    load::{DeviceChoice, Settings, load_as},
};
use weir_proto::v1;
use weir_server::{Engines, Listener, config::TransportConfig, run};

/// The checkpoint of a command.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct CheckpointArgs {
    /// Checkpoint folder, or name of a model in the user's models folder. Default: the model that is embedded in the program.
    #[arg(long, value_name = "DIR|NAME", env = "WEIR_MODEL")]
    model: Option<PathBuf>,
}

impl CheckpointArgs {
    /// Finds the checkpoint. Fails as [`checkpoint`] does.
    pub(super) fn source(&self) -> Result<CheckpointSource> {
        checkpoint("--model", self.model.as_deref())
    }
}

/// Finds the checkpoint that an argument names; without a value, the embedded one. Fails if there is no model of that name.
pub(super) fn checkpoint(argument: &str, value: Option<&Path>) -> Result<CheckpointSource> {
    let Some(value) = value else { return Ok(CheckpointSource::default()) };
    find(value).map_err(|why| Error::Setting(format!("{argument}: {why}")))
}

/// How a checkpoint is loaded.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Loading the model")]
pub struct LoadArgs {
    /// Refuse a checkpoint whose card does not state the SHA-256 of its weights.
    #[arg(long, env = "WEIR_REQUIRE_SHA256", value_parser = clap::builder::BoolishValueParser::new())]
    require_sha256: bool,
    /// Copy tables that stay in their files, such as a Byte Latent Transformer's vectors of n-grams, into memory.
    #[arg(long, env = "WEIR_COPY_TABLES", value_parser = clap::builder::BoolishValueParser::new())]
    copy_tables: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Compute settings.
#[derive(Debug, Clone, clap::Args)]
#[command(allow_negative_numbers = true)]
pub struct ComputeArgs {
    /// Number format of weights, keys and values: f32, bf16, int8, or int4 (weights in int4, keys and values in int8).
    #[arg(long, value_name = "TYPE", value_parser = dtype(), default_value = "f32", env = "WEIR_DTYPE")]
    pub dtype: Dtype,
    /// Number of threads. Default: all cores.
    #[arg(long, value_name = "N", env = "WEIR_THREADS", value_parser = whole::<u16>(1..=1024))]
    pub threads: Option<u16>,
    /// Maximum symbols in one sequence. Default: four training windows, at least 8192; 2^24 if attention windows bound the
    /// memory of a sequence.
    #[arg(long, value_name = "N", env = "WEIR_MAX_SYMBOLS", value_parser = whole::<u32>(1..=1 << 24))]
    pub max_symbols: Option<u32>,
    /// Device of Hugging Face models: cpu, cuda, cuda:N or metal. Other models run on the CPU.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu, env = "WEIR_DEVICE")]
    pub device: DeviceChoice,
}

impl LoadArgs {
    /// Loads a checkpoint with kernels of an instruction set, by default the widest that the processor has. Fails if the
    /// checkpoint cannot be read or is invalid.
    pub(super) fn load(&self, source: &CheckpointSource, isa: Option<Isa>) -> Result<Arc<dyn Model>> {
        let settings = self.compute.settings();
        let Self { require_sha256, copy_tables, .. } = *self;
        let isa = isa.unwrap_or(settings.isa);
        load_as(source, &source.name(), &Settings { isa, require_sha256, copy_tables, ..settings })
    }
}

impl ComputeArgs {
    /// Converts the flags to load settings.
    pub fn settings(&self) -> Settings {
        let defaults = Settings::default();
        Settings {
            memory_bytes: usize::MAX,
            dtype: self.dtype,
            threads: self.threads.map_or(defaults.threads, usize::from),
            max_symbols: self.max_symbols.map(|count| count as usize),
            device: self.device,
            ..defaults
        }
    }
}

/// Boundary mode, and the seed of all random draws.
#[derive(Debug, Clone, clap::Args)]
pub struct BoundaryArgs {
    /// How boundaries are decided: threshold or sampled for a learned predictor; nxt or predictor for latent segment models.
    /// Default: the first mode that the model lists.
    #[arg(long, value_name = "MODE", value_parser = named(BoundaryMode::ALL.map(BoundaryMode::name), BoundaryMode::parse),
        env = "WEIR_BOUNDARY_MODE")]
    pub boundary_mode: Option<BoundaryMode>,
    /// Entropy in nats above which a segment ends, in a model that places boundaries by entropies. Default: the model's.
    #[arg(
        long,
        visible_alias = "patching-threshold",
        value_name = "NATS",
        env = "WEIR_BOUNDARY_THRESHOLD",
        allow_negative_numbers = true
    )]
    pub boundary_threshold: Option<f32>,
    /// Seed of all random draws: symbols and, if sampled, boundaries.
    #[arg(long, value_name = "N", default_value_t = 0, env = "WEIR_SEED")]
    pub seed: u64,
}

impl BoundaryArgs {
    /// Converts the flags to the model's options.
    pub fn options(&self) -> BoundaryOptions {
        BoundaryOptions {
            mode: self.boundary_mode,
            noise: Noise::Seeded(self.seed),
            offset: 0,
            threshold: self.boundary_threshold,
        }
    }
}

/// Returns a parser of whole numbers within `bounds`.
pub(super) fn count(bounds: RangeInclusive<usize>) -> impl Fn(&str) -> std::result::Result<usize, String> + Clone {
    whole(bounds)
}

/// Returns a parser of whole numbers of any type within `bounds`.
pub(super) fn whole<T>(bounds: RangeInclusive<T>) -> impl Fn(&str) -> std::result::Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Clone,
{
    move |text| {
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        number.ok_or_else(|| format!("expected a whole number from {} to {}", bounds.start(), bounds.end()))
    }
}

/// Returns a parser of values that have names.
pub(super) fn named<T: Clone + Send + Sync + 'static>(
    names: impl IntoIterator<Item = &'static str>,
    parse: fn(&str) -> Option<T>,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).try_map(move |name| parse(&name).ok_or("unknown name"))
}

pub(super) fn dtype() -> impl TypedValueParser<Value = Dtype> {
    named(Dtype::ALL.map(Dtype::name), Dtype::parse)
}

pub(super) fn speculation(text: &str) -> std::result::Result<Speculation, String> {
    Speculation::parse(text).ok_or_else(|| format!("expected {}", Speculation::EXPECTED))
}

pub(super) fn isa(name: &str) -> std::result::Result<Isa, String> {
    let names = || Isa::all().iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ");
    Isa::parse(name).ok_or_else(|| format!("expected one that this processor supports: {}", names()))
}

/// The name of standard input in messages.
pub(super) const STANDARD_INPUT: &str = "standard input";

pub(super) fn read(flag: &str, file: &Path) -> Result<Vec<u8>> {
    fs::read(file).map_err(unreadable(flag, file))
}

/// Reads the text of the file that `flag` names. Fails if it is not UTF-8.
pub(super) fn read_text(flag: &str, file: &Path) -> Result<String> {
    decode(flag, file, read(flag, file)?)
}

/// Reads a text as [`read_text`] does; `-` is standard input.
pub(super) fn read_text_or_stdin(flag: &str, file: &Path) -> Result<String> {
    if file.as_os_str() != "-" {
        return read_text(flag, file);
    }
    let file = Path::new(STANDARD_INPUT);
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).map_err(unreadable(flag, file))?;
    decode(flag, file, bytes)
}

/// Checks that the file that `flag` names exists, and that it can be opened if it is a regular one; `-` is standard input. Called
/// before a model is loaded, so that a wrong name is reported first.
pub(super) fn check_readable(flag: &str, file: &Path) -> Result<()> {
    if file.as_os_str() == "-" {
        return Ok(());
    }
    let metadata = fs::metadata(file).map_err(unreadable(flag, file))?;
    // Opening and closing a pipe would end the program that writes to it.
    if metadata.is_file() {
        fs::File::open(file).map_err(unreadable(flag, file))?;
    }
    Ok(())
}

/// Returns a function that turns an I/O error about the file that `flag` names into an error with both names.
pub(super) fn unreadable<'a>(flag: &'a str, file: &'a Path) -> impl Fn(io::Error) -> Error + 'a {
    move |error| Error::Setting(format!("{}cannot read {}: {error}", prefix(flag, file), file.display()))
}

/// Returns the error for a file that has invalid UTF-8 at byte `position`. `flag` names the file.
pub(super) fn not_utf8(flag: &str, file: &Path, position: u64) -> Error {
    let prefix = prefix(flag, file);
    Error::Setting(format!("{prefix}{}: expected UTF-8, found other bytes at position {position}", file.display()))
}

/// Returns the beginning of an error about a file that `flag` names. Standard input that no flag names is named once.
fn prefix(flag: &str, file: &Path) -> String {
    if Path::new(flag) == file { String::new() } else { format!("{flag}: ") }
}

fn decode(flag: &str, file: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| not_utf8(flag, file, error.utf8_error().valid_up_to() as u64))
}

/// Environment variable with the data folder.
pub(super) const DATA_VARIABLE: &str = "WEIR_DATA";

/// Maximum names that a message lists.
const LISTED: usize = 20;

/// Returns the folder of the user's models: `models` in the data folder. `None` if no environment variable determines it.
pub(super) fn models_folder() -> Option<PathBuf> {
    data_folder(|name| std::env::var_os(name)).map(|data| data.join("models"))
}

/// Returns the user's data folder, as the XDG Base Directory Specification places it. Empty variables do not count, nor does a
/// relative path in `XDG_DATA_HOME`.
fn data_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let shared = || path("XDG_DATA_HOME").filter(|path| path.is_absolute());
    let windows = || path("LOCALAPPDATA").filter(|_| cfg!(windows));
    let home = || path("HOME").map(|home| home.join(".local/share"));
    path(DATA_VARIABLE).or_else(|| shared().or_else(windows).or_else(home).map(|share| share.join("weir")))
}

/// Finds the model that an argument names. An argument with a separator, or that exists in the current folder, is a path. Another
/// name is looked up in the user's models folder and among the embedded models. The error lists what was tried, and which models are
/// available.
pub(super) fn find(argument: &Path) -> std::result::Result<CheckpointSource, String> {
    find_in(argument, models_folder().as_deref())
}

fn find_in(argument: &Path, models: Option<&Path>) -> std::result::Result<CheckpointSource, String> {
    let text = argument.to_string_lossy();
    let is_url = text.contains("://");
    if (is_url || text.starts_with("hf:")) && !argument.exists() {
        let expected = "expected a folder or the name of a model (`weir pull` downloads a model and gives it a name)";
        // A URL may have a password.
        return Err(format!("{expected}, found {}", if is_url { "a URL".to_owned() } else { quoted(&text) }));
    }
    if let Some(repository) = repository_like(argument) {
        let advice = format!("did you mean hf:{repository}? `weir pull hf:{repository}` downloads it");
        return Err(format!("expected a folder or the name of a model, found {} ({advice})", quoted(&text)));
    }
    let Some(name) = plain_name(argument).filter(|_| !argument.exists()) else { return Ok(argument.into()) };
    let own = models.map(|models| models.join(name));
    match &own {
        Some(folder) if folder.is_dir() => Ok(folder.as_path().into()),
        _ if name == DEFAULT_CHECKPOINT.name => Ok(CheckpointSource::Embedded(&DEFAULT_CHECKPOINT)),
        _ => Err(unknown(name, own.as_deref(), models)),
    }
}

/// Returns an argument that looks like a repository of the Hugging Face Hub, `ORG/NAME`: neither it nor a folder `ORG` exists.
pub(super) fn repository_like(argument: &Path) -> Option<&str> {
    let text = argument.to_str()?;
    let (organization, name) = text.split_once('/')?;
    let is_name = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphanumeric())
            && part.chars().all(|other| other.is_ascii_alphanumeric() || "-_.".contains(other))
    };
    (is_name(organization) && is_name(name) && !Path::new(organization).exists()).then_some(text)
}

/// Returns the argument if it is one plain name: it has no separator, and is neither empty nor `.` or `..`.
pub(super) fn plain_name(argument: &Path) -> Option<&str> {
    let mut components = argument.components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(only)), None) if only == argument.as_os_str() => {
            only.to_str().filter(|name| !name.contains(['/', '\\']))
        }
        _ => None,
    }
}

fn unknown(name: &str, own: Option<&Path>, models: Option<&Path>) -> String {
    let own = own.map_or_else(
        || format!("no data folder, as {DATA_VARIABLE}, XDG_DATA_HOME and HOME are not set"),
        |own| own.display().to_string(),
    );
    let found = models.map(names_in).unwrap_or_default();
    let more = found.len().saturating_sub(LISTED);
    let mut known: Vec<_> = found.into_iter().take(LISTED).collect();
    if more > 0 {
        known.push(format!("{more} more"));
    }
    known.push(format!("{} (embedded)", DEFAULT_CHECKPOINT.name));
    let known = known.join(", ");
    format!(
        "expected one of {known}, or a folder, found {} (tried ./{name}, {own} and the embedded model)",
        quoted(name)
    )
}

/// Names of the checkpoints in a folder, sorted. A name that begins with a dot belongs to an unfinished download.
fn names_in(models: &Path) -> Vec<String> {
    let entries = models.read_dir().into_iter().flatten().flatten();
    let checkpoints = entries.filter(|entry| entry.path().join(CONFIG_FILE).is_file());
    let names = checkpoints.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

/// Starts the runtime that network calls run on, on half of the cores: with two threads on two cores, each message wakes both.
pub(super) fn runtime() -> Result<Runtime> {
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
    // A thread for blocking work stays, and takes what the system starts no further thread for: tokio panics without one.
    let runtime = Builder::new_multi_thread().worker_threads(threads).thread_keep_alive(UNLIMITED).enable_all().build();
    runtime.map_err(|error| Error::Internal(format!("the network runtime cannot be started: {error}")))
}

/// The address of the server in this process. Errors of its calls leave it out.
pub(super) const IN_PROCESS: &str = "this process";

/// A time limit that never ends a call.
const UNLIMITED: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A limit in bytes or symbols that no call reaches.
const ANY_NUMBER: usize = usize::MAX >> 8;

/// Flags for a model in this process, by clap's ids. Next to `--server` they are an error, because the server has loaded the model, sets
/// its own batch and sends no logits.
pub(super) const IN_PROCESS_FLAGS: [&str; 11] = [
    "require_sha256",
    "copy_tables",
    "dtype",
    "threads",
    "max_symbols",
    "device",
    "mode",
    "chunk",
    "logits",
    "rows",
    "isa",
];

/// The model of a command, and the server that runs it.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ModelSourceArgs {
    /// Checkpoint folder, or name of a model in the user's models folder. Default: the model that is embedded in the program. With
    /// --server: name of the served model, which may be left out if exactly one model can answer the call.
    #[arg(long, value_name = "DIR|NAME", env = "WEIR_MODEL")]
    model: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    load: LoadArgs,
}

/// The server that runs the model.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Server")]
struct ServerArgs {
    /// Call the gRPC API of this server instead of running the model in this process: host:port, :port of this machine, or a URL;
    /// https:// for TLS.
    #[arg(long, value_name = "ADDRESS", env = "WEIR_SERVER")]
    server: Option<String>,
    #[command(flatten)]
    api_key: ApiKeyArgs,
    #[command(flatten)]
    tls: TlsArgs,
}

pub(super) enum ModelSource {
    /// A model in this process.
    Process(Arc<dyn Model>),
    /// A model on a server.
    Server(ServedModel),
}

impl ModelSource {
    /// Returns the model as a server's. A loaded model is served to this process alone, with these limits.
    pub(super) fn served(self, limits: Limits) -> Result<ServedModel> {
        match self {
            Self::Process(model) => ServedModel::in_process(model, limits),
            Self::Server(served) => Ok(served),
        }
    }
}

/// Limits of a server that only this process calls, one request at a time: none refuses what the model can do.
pub(super) fn own_limits() -> Limits {
    Limits {
        rows: 1,
        queued_symbols: ANY_NUMBER,
        document_parts: ANY_NUMBER,
        request_work: ANY_NUMBER,
        request_time: Duration::ZERO,
        stall: UNLIMITED,
        calibration: Duration::ZERO,
        ..Limits::default()
    }
}

pub(super) struct ServedModel {
    pub(super) runtime: Runtime,
    pub(super) client: Client,
    /// Its name. May be `None` if exactly one model can answer the call.
    pub(super) name: Option<String>,
}

impl ModelSourceArgs {
    /// Connects to the server, or loads the checkpoint and prints where it runs. Fails if the server is unreachable, or if the
    /// checkpoint cannot be read or is invalid.
    pub(super) fn open(&self) -> Result<ModelSource> {
        self.open_with(None)
    }

    /// Opens the model as [`open`](Self::open) does. A model in this process uses the kernels of `isa`, if one is given.
    pub(super) fn open_with(&self, isa: Option<Isa>) -> Result<ModelSource> {
        let ServerArgs { server, api_key, tls } = &self.server;
        if let Some(address) = server {
            let name = self.model.as_ref().map(|name| match name.to_str() {
                Some(name) => Ok(name.to_owned()),
                None => Err(Error::bad_option("--model", quoted(&name.to_string_lossy()), "a name in UTF-8")),
            });
            let name = name.transpose()?;
            let runtime = runtime()?;
            let endpoint = tls.endpoint(SERVER, address).map_err(Error::Setting)?;
            let endpoint = ServerEndpoint { key: api_key.key().map_err(Error::Setting)?, ..endpoint };
            let client = runtime.block_on(endpoint.connect())?;
            return Ok(ModelSource::Server(ServedModel { runtime, client, name }));
        }
        if let Some(flag) = api_key.flag().or(tls.flag()) {
            return Err(Error::Setting(format!("{flag}: expected --server next to it, found none")));
        }
        let source = checkpoint("--model", self.model.as_deref())?;
        source.folder().map_or(Ok(()), check_folder)?;
        // A script knows what it runs.
        if io::stderr().is_terminal() {
            let shown = printable(&source.path().display().to_string());
            output::to_stderr(format_args!("weir: running {shown} in this process; use --server to call a server"));
        }
        Ok(ModelSource::Process(self.load.load(&source, isa)?))
    }
}

impl ServedModel {
    /// Serves a model to this process alone, in memory, without a warm-up. Fails if the operating system refuses a thread.
    fn in_process(model: Arc<dyn Model>, limits: Limits) -> Result<Self> {
        let runtime = runtime()?;
        let engines = Engines::new(vec![Handle::start(model, limits)?])?;
        let config = TransportConfig {
            message_bytes: u32::MAX as usize,
            request_memory: ANY_NUMBER,
            response_bytes: ANY_NUMBER,
            upload: UNLIMITED,
            connection_idle: None,
            keepalive_interval: None,
            ..TransportConfig::default()
        };
        let (listener, channel) = {
            let _guard = runtime.enter();
            Listener::in_process()
        };
        runtime.spawn(run::run(listener, engines, pending(), config));
        let client = Client::of_channel(channel, IN_PROCESS);
        Ok(Self { runtime, client, name: None })
    }

    /// Waits for a call of the server.
    pub(super) fn call<T>(&self, call: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
        self.runtime.block_on(call(&self.client))
    }

    /// Passes the messages of a response to `visit`, up to the end or the first error.
    pub(super) fn each<M>(&self, mut messages: MessageStream<M>, mut visit: impl FnMut(M) -> Result<()>) -> Result<()> {
        while let Some(message) = self.runtime.block_on(messages.next())? {
            visit(message)?;
        }
        Ok(())
    }
}

/// A served model, and its description before the call.
pub(super) struct DescribedModel<'a> {
    pub(super) model: &'a ServedModel,
    /// `None` if no name is given and not exactly one model can answer the call.
    pub(super) description: Option<v1::Model>,
}

impl<'a> DescribedModel<'a> {
    /// Asks the server for the description of a model that continues and scores texts. Without a description, the call fails with the
    /// server's reason.
    pub(super) fn new(model: &'a ServedModel) -> Result<Self> {
        let description = model.runtime.block_on(model.client.text_model(model.name.clone()))?;
        Ok(Self { model, description })
    }

    /// Returns the name for the call, so that the described model answers it.
    pub(super) fn name(&self) -> Option<String> {
        self.model.name.clone().or_else(|| self.description.as_ref().map(|description| description.name.clone()))
    }

    /// Returns the description after a successful call.
    pub(super) fn description(&self) -> Result<&v1::Model> {
        let changed = || self.model.client.rejected("its models changed during the call; name one with --model".into());
        self.description.as_ref().ok_or_else(changed)
    }

    /// Reports that the model's normaliser changed this many characters of the text of `flag`, if it did.
    pub(super) fn report_normalised(&self, flag: &str, text: &str, changed: usize) {
        let vocabulary = self.description.as_ref().and_then(|model| model.vocabulary.as_ref());
        output::characters_changed(flag, text, changed, vocabulary.map(|known| known.normaliser.as_str()));
    }
}

/// Narrows a count. Supported machines have at least 32 bits.
pub(super) fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_data_folder_follows_the_environment() {
        let found = |set: &[(&str, &str)]| {
            data_folder(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        let folder = |path: &str| Some(PathBuf::from(path));
        assert_eq!(found(&[("WEIR_DATA", "/w"), ("XDG_DATA_HOME", "/x"), ("HOME", "/h")]), folder("/w"));
        assert_eq!(found(&[("WEIR_DATA", ""), ("XDG_DATA_HOME", "/x"), ("HOME", "/h")]), folder("/x/weir"));
        assert_eq!(found(&[("XDG_DATA_HOME", "relative"), ("HOME", "/h")]), folder("/h/.local/share/weir"));
        assert_eq!(found(&[("HOME", "/h")]), folder("/h/.local/share/weir"));
        assert_eq!(found(&[("HOME", "")]), None);
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn names_are_looked_up_and_paths_are_not() {
        let models = tempfile::tempdir().unwrap();
        let own = models.path().join("own");
        for name in ["own", "other", ".partial"] {
            fs::create_dir(models.path().join(name)).unwrap();
            fs::write(models.path().join(name).join(CONFIG_FILE), "{}").unwrap();
        }
        let find = |argument: &str| find_in(Path::new(argument), Some(models.path())).map(|source| source.path());
        assert_eq!(find("own"), Ok(own.clone()));
        assert_eq!(find(DEFAULT_CHECKPOINT.name), Ok(CheckpointSource::default().path()));
        // A model of the user replaces the embedded one of the same name.
        fs::create_dir(models.path().join(DEFAULT_CHECKPOINT.name)).unwrap();
        assert_eq!(find(DEFAULT_CHECKPOINT.name), Ok(models.path().join(DEFAULT_CHECKPOINT.name)));
        for path in ["./own", "src", "own/", "..", own.to_str().unwrap(), "nowhere/own/"] {
            assert_eq!(find(path), Ok(PathBuf::from(path)), "{path}");
        }
        for (remote, found) in [("hf:org/none", "\"hf:org/none\""), ("https://user:secret@example.com/none", "a URL")] {
            assert!(find(remote).unwrap_err().ends_with(&format!("gives it a name), found {found}")));
        }
        let message = find("google/byt5-small").unwrap_err();
        assert!(
            message.ends_with("(did you mean hf:google/byt5-small? `weir pull hf:google/byt5-small` downloads it)")
        );
        let message = find("none").unwrap_err();
        let listed = "expected one of other, own, hourglass-english (embedded), or a folder, found \"none\" (";
        assert!(message.contains(models.path().join("none").to_str().unwrap()), "{message}");
        assert!(message.starts_with(listed), "{message}");
        let message = find_in(Path::new("none"), None).unwrap_err();
        assert!(message.contains("WEIR_DATA") && message.contains("(embedded)"), "{message}");
    }
}
