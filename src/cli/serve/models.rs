//! Models to serve, and their resources.

use crate::cli::model;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use weir_engine::{Limits, speculation::Speculation};
use weir_kernels::{
    Dtype,
    error::{Error, Result, quoted},
};
use weir_models::{
    checkpoint::CheckpointSource,
    contract::{MAX_BOUNDARY_WAIT, Model, unpooled_name},
    load,
};
use weir_server::{
    AdminConfig, Engines, Lease, MODEL_NAME, ModelLoader,
    config::{AdminToken, Checks, ServeConfig, ServedCheckpoint},
    is_model_name,
};

/// The folder of checkpoints that is served if no flag names a model.
const DEFAULT_FOLDER: &str = "models";

/// Flags of the models.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Models")]
pub(super) struct ModelsArgs {
    /// Folder whose subfolders are checkpoints; subfolders without a config.json are skipped. A checkpoint that cannot be loaded
    /// is logged, and the others are served. Default, unless a model is named: `models`, if it has checkpoints. If it has none, the
    /// server serves the model that is embedded in the program.
    #[arg(long, value_name = "DIR", env = "WEIR_MODELS")]
    models: Option<PathBuf>,
    /// Checkpoint folder, or name of a model in the user's models folder; NAME=DIR or ORG/NAME=DIR serves it under another name. If a
    /// checkpoint cannot be loaded, the server does not start. Repeat the flag or separate values with commas.
    #[arg(long, value_name = "[NAME=]DIR", env = "WEIR_MODEL", value_delimiter = ',')]
    model: Vec<PathBuf>,
    /// More checkpoints, each given as --model gives it.
    #[arg(value_name = "[NAME=]DIR")]
    checkpoints: Vec<PathBuf>,
    /// Refuse checkpoints whose cards do not state the SHA-256 of their weights. A stated digest is compared in any case, that of a
    /// table of n-grams only with this flag.
    #[arg(long, value_name = "BOOL", env = "WEIR_REQUIRE_SHA256", default_value = "false", num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    require_sha256: String,
    /// Serve each MrT5 a second time with its gate off, as NAME-unpooled, to measure the gain of the gate. The second copy needs
    /// its own memory.
    #[arg(long, alias = "unpooled-twins", value_name = "BOOL", env = "WEIR_UNPOOLED_BASELINES", default_value = "false",
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    unpooled_baselines: String,
    /// Copy tables that stay in their files, such as a Byte Latent Transformer's vectors of n-grams, into memory.
    #[arg(long, value_name = "BOOL", env = "WEIR_COPY_TABLES", default_value = "false", num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    copy_tables: String,
    /// Number of threads. Default: all cores.
    #[arg(long, value_name = "N", env = "WEIR_THREADS")]
    threads: Option<String>,
    /// Number format of weights, keys and values: f32, bf16, int8, or int4 (weights in int4, keys and values in int8).
    #[arg(long, value_name = "TYPE", env = "WEIR_DTYPE", default_value = "f32")]
    dtype: String,
    /// Maximum symbols in one sequence. Default: four training windows, at least 8192; 2^24 if attention windows bound the
    /// memory of a sequence.
    #[arg(long, value_name = "N", env = "WEIR_MAX_SYMBOLS")]
    max_symbols: Option<String>,
    /// Device of Hugging Face models: cpu, cuda, cuda:N or metal. Other models run on the CPU.
    #[arg(long, value_name = "DEVICE", env = "WEIR_DEVICE", default_value = "cpu")]
    device: String,
    /// Key-value memory per model.
    #[arg(long, value_name = "SIZE", env = "WEIR_KV_MEMORY", default_value = "2GiB")]
    kv_memory: String,
}

impl ModelsArgs {
    pub(super) fn folder(&self) -> Option<PathBuf> {
        let default = || {
            let folder = PathBuf::from(DEFAULT_FOLDER);
            (self.named().next().is_none() && Checks::has_checkpoints(&folder)).then_some(folder)
        };
        self.models.clone().or_else(default)
    }

    /// The arguments that name a checkpoint.
    fn named(&self) -> impl Iterator<Item = &PathBuf> {
        self.model.iter().chain(&self.checkpoints)
    }

    pub(super) fn checkpoints(&self, checks: &mut Checks) -> Vec<ServedCheckpoint> {
        let mut folders = Vec::new();
        if let Some(folder) = &self.folder() {
            folders = checks.checkpoints("--models", folder);
            if folders.is_empty() && folder.is_dir() {
                let expected = "expected subfolders that are checkpoints, found none";
                checks.reject_with("--models", format!("{}: {expected}", folder.display()));
            }
        }
        let found = |folder: PathBuf| {
            let source = CheckpointSource::Folder(folder);
            ServedCheckpoint { name: source.name(), source, named: false }
        };
        let mut checkpoints: Vec<_> = folders.into_iter().map(found).collect();
        for argument in self.named() {
            let (name, folder) = name_and_folder(argument);
            if folder.as_os_str().is_empty() {
                checks.reject_with(
                    "--model",
                    format!("expected [NAME=]DIR, found {}", quoted(&argument.to_string_lossy())),
                );
                continue;
            }
            if let Some(given) = misnamed(argument).filter(|_| name.is_none()) {
                let found = quoted(given);
                checks.reject_with("--model", format!("expected {MODEL_NAME}, before `=`, found {found}"));
                continue;
            }
            match model::find(&folder) {
                Ok(source) => {
                    source.folder().into_iter().for_each(|folder| checks.checkpoint("--model", folder));
                    let name = name.unwrap_or_else(|| source.name());
                    checkpoints.push(ServedCheckpoint { name, source, named: true });
                }
                Err(why) => checks.reject_with("--model", why),
            }
        }
        for (index, checkpoint) in checkpoints.iter().enumerate().filter(|(_, checkpoint)| checkpoint.named) {
            let name = &checkpoint.name;
            if checkpoints.iter().take(index).any(|other| other.name == *name) {
                let expected = "expected a different name for each model (NAME=DIR gives one)";
                checks.reject_with("--model", format!("{expected}, found {} twice", quoted(name)));
            }
        }
        if self.folder().is_none() && self.named().next().is_none() {
            let source = CheckpointSource::default();
            checkpoints.push(ServedCheckpoint { name: source.name(), source, named: true });
        }
        checkpoints
    }

    /// True if models are also served without their pooling.
    pub(super) fn unpooled_baselines(&self, checks: &mut Checks) -> bool {
        checks.switch("--unpooled-baselines", &self.unpooled_baselines)
    }

    pub(super) fn settings(&self, checks: &mut Checks) -> load::Settings {
        let mut settings = load::Settings::default();
        match Dtype::parse(&self.dtype) {
            Some(dtype) => settings.dtype = dtype,
            None => checks.reject("--dtype", &self.dtype, format!("one of {}", Dtype::names())),
        }
        match self.device.parse() {
            Ok(device) => settings.device = device,
            Err(why) => checks.reject_with("--device", format!("{why}, found {}", quoted(&self.device))),
        }
        if let Some(threads) = &self.threads {
            settings.threads = checks.number("--threads", threads, 1..=1024);
        }
        settings.max_symbols =
            self.max_symbols.as_ref().map(|count| checks.number("--max-symbols", count, 1..=load::MAX_SYMBOLS));
        settings.require_sha256 = checks.switch("--require-sha256", &self.require_sha256);
        settings.copy_tables = checks.switch("--copy-tables", &self.copy_tables);
        settings.memory_bytes = checks.bytes("--kv-memory", &self.kv_memory, 1 << 20..=usize::MAX);
        settings
    }
}

/// Returns what precedes the `=` of an argument that is no folder, unless it may be the beginning of a path.
fn misnamed(argument: &Path) -> Option<&str> {
    let (given, folder) = argument.to_str()?.split_once('=')?;
    let is_path = given.contains('/') && given.starts_with(['/', '.']) && !Path::new(folder).exists();
    (!is_path && !argument.exists()).then_some(given)
}

/// Splits `NAME=DIR`, where NAME may be one of the Hugging Face Hub, `ORG/NAME`. A folder alone, whose path may contain `=`, has no
/// name of its own.
fn name_and_folder(argument: &Path) -> (Option<String>, PathBuf) {
    let pair = argument.to_str().and_then(|text| text.split_once('='));
    match pair.filter(|(name, _)| !argument.is_dir() && is_model_name(name)) {
        Some((name, folder)) => (Some(name.to_owned()), PathBuf::from(folder)),
        None => (None, argument.to_owned()),
    }
}

/// Maximum symbols per step. A running step cannot be interrupted, so it must be short compared with any limit in seconds.
const MAX_CHUNK: usize = 4096;

/// Default size of a model's segment cache, at most a quarter of its key-value memory. More would let a client with one address
/// take hundreds of megabytes.
const CACHE_BYTES: usize = 128 << 20;

/// Flags of the engine.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Scheduling and memory")]
pub(super) struct EngineArgs {
    /// Maximum running requests per model.
    #[arg(long, value_name = "N", env = "WEIR_ROWS", default_value_t = Limits::default().rows.to_string())]
    rows: String,
    /// Maximum queued requests per model.
    #[arg(long, value_name = "N", env = "WEIR_QUEUE", default_value_t = Limits::default().queue.to_string())]
    queue: String,
    /// Maximum symbols in the prompts of all queued requests of a model.
    #[arg(long, value_name = "N", env = "WEIR_QUEUED_SYMBOLS", default_value_t = Limits::default().queued_symbols.to_string())]
    queued_symbols: String,
    /// Maximum symbols that one request may feed to its model in total: its text, the context that its windows repeat, and what
    /// it generates.
    #[arg(long, value_name = "N", env = "WEIR_MAX_REQUEST_WORK", default_value_t = Limits::default().request_work.to_string())]
    max_request_work: String,
    /// Seconds that a request may run, from its first row to its end; 0: no limit.
    #[arg(long, value_name = "N", env = "WEIR_MAX_REQUEST_SECONDS", default_value_t = Limits::default().request_time.as_secs().to_string())]
    max_request_seconds: String,
    /// Maximum prompt symbols per step, 1 to 4096. Running streams and the end of draining wait for a step to finish.
    #[arg(long, value_name = "N", env = "WEIR_CHUNK", default_value_t = Limits::default().chunk.to_string())]
    chunk: String,
    /// Target duration of a step that processes prompts while other requests generate. The step takes as many prompt symbols as
    /// fit, between 16 and --chunk. 0: no target.
    #[arg(long, value_name = "N", env = "WEIR_STEP_MILLISECONDS", default_value_t = Limits::default().step.as_millis().to_string())]
    step_milliseconds: String,
    /// Maximum steps that a row waits after its segment closed, to share the segment step with other rows.
    #[arg(long, value_name = "N", env = "WEIR_BOUNDARY_WAIT", default_value_t = Limits::default().boundary_wait.to_string())]
    boundary_wait: String,
    /// Guess symbols that are checked in one step: `auto` as far as that is expected to save time, `off`, or the most symbols to
    /// guess at a time, 1 to 16. The generated text does not depend on it. A request may override it.
    #[arg(long, value_name = "auto|off|N", env = "WEIR_SPECULATE", default_value_t = Limits::default().speculation.to_string())]
    speculate: String,
    /// Maximum events that wait for a slow client before its row pauses.
    #[arg(long, value_name = "N", env = "WEIR_EVENTS", default_value_t = Limits::default().events.to_string())]
    events: String,
    /// Seconds that a client may read nothing, while events are ready, before its request ends; at least 1.
    #[arg(long, value_name = "N", env = "WEIR_STALL_SECONDS", default_value_t = Limits::default().stall.as_secs().to_string())]
    stall_seconds: String,
    /// Part of each model's key-value memory for the segment cache, which later requests with the same prefix reuse; 0 disables
    /// it. Default: 128 MiB, or a quarter if that is less.
    #[arg(long, value_name = "SIZE", env = "WEIR_CACHE_MEMORY")]
    cache_memory: Option<String>,
    /// Memory for the document cache of each summarization model; 0 disables it. Default: a quarter of its key-value memory.
    #[arg(long, value_name = "SIZE", env = "WEIR_DOCUMENT_MEMORY")]
    document_memory: Option<String>,
    /// Seconds that an unused document stays in the document cache; at least 1.
    #[arg(long, value_name = "N", env = "WEIR_DOCUMENT_SECONDS", default_value_t = Limits::default().document_keep.as_secs().to_string())]
    document_seconds: String,
    /// Maximum parts of a document that is longer than a summarization model reads, in each round of `chunk`.
    #[arg(long, value_name = "N", env = "WEIR_DOCUMENT_PARTS", default_value_t = Limits::default().document_parts.to_string())]
    document_parts: String,
    /// Time budget for timing each model's steps, which reports need to estimate the gain of pooling; 0 disables it. The server
    /// times them while it answers no request, from its start on, and stops as soon as a request comes.
    #[arg(long, value_name = "N", env = "WEIR_CALIBRATION_MILLISECONDS", default_value_t = Limits::default().calibration.as_millis().to_string())]
    calibration_milliseconds: String,
}

impl EngineArgs {
    /// Parses the limits, for models with `memory` bytes of key-value memory.
    pub(super) fn limits(&self, memory: usize, checks: &mut Checks) -> Limits {
        let cache = self.cache_memory.as_ref();
        let documents = self.document_memory.as_ref();
        let keep = checks.number("--document-seconds", &self.document_seconds, 1..=86_400 * 30);
        let step = checks.number("--step-milliseconds", &self.step_milliseconds, 0..=60_000);
        let calibration = checks.number("--calibration-milliseconds", &self.calibration_milliseconds, 0..=600_000);
        let request_time = checks.number("--max-request-seconds", &self.max_request_seconds, 0..=86_400 * 365);
        Limits {
            rows: checks.number("--rows", &self.rows, 1..=4096),
            queue: checks.number("--queue", &self.queue, 1..=MAX_COUNT),
            queued_symbols: checks.number("--queued-symbols", &self.queued_symbols, 1..=1 << 40),
            request_work: checks.number("--max-request-work", &self.max_request_work, 1..=1 << 40),
            request_time: Duration::from_secs(request_time as u64),
            chunk: checks.number("--chunk", &self.chunk, 1..=MAX_CHUNK),
            boundary_wait: checks.number("--boundary-wait", &self.boundary_wait, 0..=MAX_BOUNDARY_WAIT),
            speculation: Speculation::parse(&self.speculate).unwrap_or_else(|| {
                checks.reject("--speculate", &self.speculate, Speculation::EXPECTED);
                Speculation::Off
            }),
            stall: Duration::from_secs(checks.number("--stall-seconds", &self.stall_seconds, 1..=86_400) as u64),
            step: Duration::from_millis(step as u64),
            events: checks.number("--events", &self.events, 16..=1 << 16),
            cache_bytes: cache
                .map_or(CACHE_BYTES.min(memory / 4), |size| checks.bytes("--cache-memory", size, 0..=memory)),
            document_bytes: documents.map_or(memory / 4, |size| checks.bytes("--document-memory", size, 0..=memory)),
            document_keep: Duration::from_secs(keep as u64),
            document_parts: checks.number("--document-parts", &self.document_parts, 1..=1 << 16),
            calibration: Duration::from_millis(calibration as u64),
        }
    }
}

/// Loads checkpoints with the same settings. Models share the thread pool of the settings, if it is started.
pub(super) struct CheckpointLoader(pub(super) load::Settings);

impl ModelLoader for CheckpointLoader {
    fn memory_needed(&self, folder: &Path) -> Result<usize> {
        load::needs(&folder.into(), &self.0)
    }

    fn load(&self, folder: &Path, name: &str) -> Result<Arc<dyn Model>> {
        load::load_as(&folder.into(), name, &self.0)
    }
}

/// Loads every model and starts its engine, and then the unpooled baselines. A checkpoint of the models folder that cannot be served
/// is logged and left out. Fails if a named checkpoint or a baseline cannot be served, or if no checkpoint can.
pub(super) fn load_all(settings: &ServeConfig, loader: &CheckpointLoader, engines: &Engines) -> Result<()> {
    let mut first_failure = None;
    for ServedCheckpoint { name, source, named } in &settings.checkpoints {
        let folder = source.folder().map(PathBuf::from);
        match caught(|| launch(source, name, &loader.0, folder, settings.engine, engines)) {
            Ok(()) => {}
            Err(error) if *named => return Err(error),
            Err(error) => {
                tracing::error!(model = name, folder = %source, %error, "not served: the checkpoint cannot be loaded");
                engines.metrics().count_skipped_checkpoint();
                first_failure.get_or_insert(error);
            }
        }
    }
    let served = engines.names();
    if let Some(error) = first_failure.filter(|_| served.is_empty()) {
        return Err(error);
    }
    if settings.unpooled_baselines {
        let unpooled = load::Settings { unpooled: true, ..loader.0.clone() };
        // Last, so that a baseline never takes the name of a checkpoint.
        for ServedCheckpoint { name, source, .. } in settings.checkpoints.iter().filter(|it| served.contains(&it.name))
        {
            if load::has_unpooled_baseline(source)? {
                // Without its folder: a reload of this name would load the model with its pooling.
                launch(source, &unpooled_name(name), &unpooled, None, settings.engine, engines)?;
            }
        }
    }
    settings.operations.metrics.cache_block.map_or(Ok(()), |symbols| check_cache_block(engines, symbols))
}

/// Checks that the segment cache of each model that continues text holds a block of `symbols` symbols, whatever its text is: routers
/// read how many it holds.
fn check_cache_block(engines: &Engines, symbols: usize) -> Result<()> {
    let is_short = |engine: &Lease| engine.document_limits().is_none() && engine.cache_blocks(symbols) == 0;
    let Some(engine) = engines.all().into_iter().find(is_short) else { return Ok(()) };
    Err(Error::Setting(format!(
        "--metrics-block-size: expected a block of at most {} bytes (the segment cache of {:?}; see --cache-memory), found {symbols} \
         symbols, which can take {} bytes",
        engine.limits().cache_bytes,
        engine.card().name,
        engine.cache_block_bytes(symbols)
    )))
}

/// Runs `work` and turns a panic into an error, so that a checkpoint on which loading panics does not keep the others from being
/// served. A panic drops everything that `work` has built.
fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let panicked = |_| Err(Error::Internal("loading the model panicked; the log has the location".into()));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}

/// Loads a model and starts its engine.
fn launch(
    source: &CheckpointSource,
    name: &str,
    settings: &load::Settings,
    folder: Option<PathBuf>,
    limits: Limits,
    engines: &Engines,
) -> Result<()> {
    tracing::info!(model = name, from = %source, "loading");
    let began = Instant::now();
    let model = load::load_as(source, name, settings)?;
    tracing::info!(model = name, took = ?began.elapsed(), "loaded; running the first steps");
    engines.add(engines.launch(model, limits, folder)?)?;
    Ok(())
}

pub(super) fn admin(settings: &ServeConfig, loader: &Arc<CheckpointLoader>, token: AdminToken) -> AdminConfig {
    AdminConfig {
        token,
        loader: Arc::clone(loader) as _,
        models_folder: settings.operations.models.clone(),
        max_generations: settings.operations.max_models,
        limits: settings.engine,
    }
}

/// Upper bound of counts: no value that fits a machine is rejected.
pub(super) const MAX_COUNT: usize = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        engine: EngineArgs,
    }

    #[test]
    fn the_segment_cache_is_small_by_default() {
        let cache_bytes = |args: &[&str], memory| {
            let flags = Flags::try_parse_from([&["weir"], args].concat()).unwrap();
            let mut checks = Checks::default();
            let limits = flags.engine.limits(memory, &mut checks);
            checks.finish().unwrap();
            limits.cache_bytes
        };
        assert_eq!(cache_bytes(&[], 2 << 30), 128 << 20);
        assert_eq!(cache_bytes(&[], 64 << 20), 16 << 20);
        assert_eq!(cache_bytes(&["--cache-memory", "1GiB"], 2 << 30), 1 << 30);
    }

    #[test]
    fn a_panic_is_an_error_of_its_checkpoint() {
        let error = caught(|| -> Result<()> { panic!("a defect") }).unwrap_err();
        assert!(matches!(&error, Error::Internal(why) if why.contains("panicked")), "{error}");
        assert_eq!(caught(|| Ok(1)).unwrap(), 1);
    }

    #[test]
    fn a_model_can_have_a_name() {
        let parse = |argument: &str| name_and_folder(Path::new(argument));
        assert_eq!(parse("english=/mnt/models"), (Some("english".into()), "/mnt/models".into()));
        assert_eq!(parse("google/flan-t5=model"), (Some("google/flan-t5".into()), "model".into()));
        for alone in ["/mnt/english", "/mnt/a=b", "./a=b", "../a=b", "a/b/c=d", "=x", "a b=c"] {
            assert_eq!(parse(alone), (None, alone.into()));
        }
    }
}
