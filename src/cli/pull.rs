//! `weir pull`: copies a checkpoint into the user's models folder, from a folder, a URL or the Hugging Face Hub.
//!
//! In reading order: the command; which files are fetched, and the limits; how one file is opened: in a folder, over HTTP, on the Hub
//! with the user's token; the installation, after which the folder is complete or missing; what the argument names.

use crate::cli::{
    model::{self, plain_name, repository_like},
    output::{self, Progress},
};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::{
    cell::OnceCell,
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fmt,
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, ErrorKind, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio_rustls::rustls::crypto::ring;
use ureq::{
    Agent, Body,
    http::{HeaderMap, Response, StatusCode},
    tls::{Certificate, RootCerts, TlsConfig, TlsProvider},
};
use weir_kernels::error::{Error, Result, clip, quoted};
use weir_models::{
    checkpoint::{
        CONFIG_FILE, CheckpointSource, Config, INDEX_FILE, PICKLE_FILE, PICKLE_INDEX_FILE, WEIGHTS_FILE,
        files::{self, check_folder, sync_folder},
        weights::{CARD_FILE, hexadecimal, indexed_files},
        writer::NGRAMS_FILE,
    },
    convert::{Source, convert},
    family::Blueprint,
    load::{self, blueprint, entropy_models},
};
use weir_server::config::parse_bytes;

/// Copies a checkpoint into the user's models folder, where `--model NAME` finds it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Checkpoint folder, URL of a folder whose files can be fetched, or hf:ORG/NAME[@REVISION] on the Hugging Face Hub. T5's
    /// family and GPT-2 are converted.
    source: String,
    /// Name of the model. Default: the last part of SOURCE.
    #[arg(long, value_name = "NAME", env = "WEIR_NAME")]
    name: Option<String>,
    /// Expected SHA-256 of the weights at SOURCE, 64 hexadecimal digits. Several files count as one, in the order of their names.
    /// It covers neither other files nor the weights of an entropy model.
    #[arg(long, value_name = "HEX", env = "WEIR_SHA256", value_parser = sha256)]
    sha256: Option<String>,
    /// Maximum size of all files together.
    #[arg(long, value_name = "SIZE", env = "WEIR_MAX_PULL_BYTES", default_value = "16GiB", value_parser = size)]
    max_pull_bytes: u64,
    /// Minimum bytes per second of each minute of a download; 0: no minimum.
    #[arg(long, value_name = "SIZE", env = "WEIR_MIN_PULL_RATE", default_value = "1KiB", value_parser = size)]
    min_pull_rate: u64,
    /// Replace a model of the same name.
    #[arg(long, env = "WEIR_FORCE", value_parser = clap::builder::BoolishValueParser::new())]
    force: bool,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

fn sha256(text: &str) -> std::result::Result<String, String> {
    match text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("expected 64 hexadecimal digits".into()),
    }
}

fn size(text: &str) -> std::result::Result<u64, String> {
    let bytes = parse_bytes(text).ok_or("expected a size such as 512MiB, 2GiB or 1000000")?;
    u64::try_from(bytes).map_err(|_| format!("expected at most {} bytes", u64::MAX))
}

/// Fetches the checkpoint, checks it, and moves it into the models folder. Fails if a file is missing, too large or damaged, if the
/// digest differs, or if the name is taken.
pub fn run(args: Args) -> Result<()> {
    let origin = Origin::parse(&args.source)?;
    let name = args.name.clone().or_else(|| origin.name());
    let name = name.ok_or_else(|| {
        Error::bad_option("--name", "none", "a name, because SOURCE has no last path segment to use as one")
    })?;
    check_name(&name)?;
    let models = model::models_folder().ok_or_else(|| {
        let variable = model::DATA_VARIABLE;
        Error::Setting(format!("there is no data folder: set {variable}, XDG_DATA_HOME or HOME"))
    })?;
    let installation = Installation::begin(&models, &name, args.force)?;
    let folder = installation.work.join("fetched");
    fs::create_dir(&folder).map_err(Error::io(&folder))?;
    let mut progress = Progress::bytes();
    let files = origin.open()?;
    let report = &mut |done, total| progress.update(done, total);
    let limit = args.max_pull_bytes;
    let mut download = Download { from: &*files, limit, min_rate: args.min_pull_rate, done: 0, progress: report };
    // Messages name the source, not the temporary copy.
    let at_source = |error| at_source(error, &folder, &*files);
    let fetched = download.checkpoint(&folder).map_err(at_source)?;
    drop(progress);
    if let Some(expected) = args.sha256.as_ref().filter(|expected| **expected != fetched.sha256) {
        let found = fetched.sha256;
        return Err(Error::checkpoint(args.source, "sha256 of the weights", format!("{expected} (--sha256)"), found));
    }
    let (complete, converted_sha256) = match Source::of_folder(&folder)? {
        None => {
            check(&folder, &fetched).map_err(at_source)?;
            (folder.clone(), None)
        }
        Some(kind) => {
            let converted = installation.work.join("converted");
            let written = convert(kind, &folder, &converted, false).map_err(at_source)?;
            output::tokenizer_not_converted(kind, &folder);
            (converted, Some(written.sha256))
        }
    };
    let path = installation.finish(&complete)?;
    let source = CheckpointSource::from(&*path);
    let shape = blueprint(&source.config()?, &source.config_file())?.shape();
    let Fetched { sha256: source_sha256, entropy_models } = fetched;
    let sha256 = converted_sha256.as_ref().unwrap_or(&source_sha256);
    if args.json {
        return output::json(&json!({
            "name": name,
            "path": path,
            "shape": shape,
            "sha256": sha256,
            "source_sha256": source_sha256,
            "companions": entropy_models,
        }));
    }
    let mut digests = format!("sha256 {sha256}");
    if converted_sha256.is_some() {
        digests += &format!(", source sha256 {source_sha256}");
    }
    for (name, sha256) in &entropy_models {
        digests += &format!(", {name} sha256 {sha256}");
    }
    output::write(&format!("{name}: {shape}, {digests}, in {}\n", path.display()))
}

/// Replaces the temporary path of a file in an error by the file's place at the source.
fn at_source(error: Error, folder: &Path, files: &dyn FileSource) -> Error {
    match error {
        Error::Checkpoint { file, key, expected, found } => {
            let name = file.strip_prefix(folder).ok().and_then(Path::to_str);
            Error::Checkpoint { file: name.map_or(file.clone(), |name| files.place(name)), key, expected, found }
        }
        other => other,
    }
}

/// Names are plain, because they are folder names and are written in lists and URLs.
fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if (1..=128).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.') {
        return Ok(());
    }
    let bound = "1 to 128 letters, digits, hyphens, underscores and dots, of which the first is no dot";
    Err(Error::bad_option("--name", format!("{name:?}"), bound))
}

/// Checks all of a checkpoint and its entropy models but their elements, of which the digests were computed while they were fetched.
fn check(folder: &Path, fetched: &Fetched) -> Result<()> {
    let source = CheckpointSource::from(folder);
    let config = source.config()?;
    let blueprint = blueprint(&config, &source.config_file())?;
    check_weights(&source, &*blueprint, &fetched.sha256)?;
    entropy_models(&source, &config, &*blueprint)?;
    for (name, sha256) in &fetched.entropy_models {
        let entropy_model = source.entropy_model(name)?;
        let inner = load::blueprint(&entropy_model.config()?, &entropy_model.config_file())?;
        check_weights(&entropy_model, &*inner, sha256)?;
    }
    Ok(())
}

fn check_weights(source: &CheckpointSource, blueprint: &dyn Blueprint, sha256: &str) -> Result<()> {
    source.check_headers(&blueprint.tensors())?;
    source.check_digest(sha256)
}

// Names come from a fixed list, from the index of the weights and from the configuration. Both are data of others, so their names
// must be plain: none reaches out of the folder.

/// Optional files next to the configuration and the weights.
const OPTIONAL: [&str; 10] = [
    CARD_FILE,
    NGRAMS_FILE,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
];

/// Maximum bytes of any file but the weights.
const SMALL_BYTES: u64 = 64 << 20;

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// A checkpoint being fetched.
struct Download<'a> {
    from: &'a dyn FileSource,
    limit: u64,
    /// Minimum bytes per second.
    min_rate: u64,
    done: u64,
    /// Receives bytes of the current file, and its size.
    progress: &'a mut dyn FnMut(u64, u64),
}

/// A checkpoint, or its entropy model.
struct Part {
    folder: PathBuf,
    /// Prefix of its file names at the source: empty, or the entropy model's folder and `/`.
    prefix: String,
}

impl Part {
    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// The digests of a checkpoint that was fetched: SHA-256, in hexadecimal.
struct Fetched {
    /// Digest of the weights.
    sha256: String,
    /// Digests of the entropy models' weights, by the names of their folders.
    entropy_models: BTreeMap<String, String>,
}

impl Download<'_> {
    /// Fetches a checkpoint and its entropy models into an existing empty folder. Returns their digests. Fails if a file is missing or
    /// beyond a limit, or if weir cannot read the configuration.
    fn checkpoint(&mut self, folder: &Path) -> Result<Fetched> {
        self.part(&Part { folder: folder.to_owned(), prefix: String::new() })
    }

    fn part(&mut self, part: &Part) -> Result<Fetched> {
        if !self.fetch(part, CONFIG_FILE, Need::Required, None)? {
            return Err(self.missing(part, CONFIG_FILE, "a file"));
        }
        for name in OPTIONAL {
            self.fetch(part, name, Need::Optional, None)?;
        }
        let needs_conversion = Source::of_folder(&part.folder)?.is_some();
        // Before the weights: a model that weir does not know costs no gigabytes.
        let entropy_models = if needs_conversion { BTreeMap::new() } else { self.entropy_models(part)? };
        let mut hash = Sha256::new();
        self.weights(part, needs_conversion, &mut hash)?;
        sync_folder(&part.folder)?;
        Ok(Fetched { sha256: hexadecimal(&hash.finalize()), entropy_models })
    }

    /// Fetches the files of weights in their order, and adds them to the hash.
    fn weights(&mut self, part: &Part, needs_conversion: bool, hash: &mut Sha256) -> Result<()> {
        // The converter also reads pickles. As the converter does, this prefers safetensors.
        let kinds = if needs_conversion {
            &[(INDEX_FILE, WEIGHTS_FILE), (PICKLE_INDEX_FILE, PICKLE_FILE)][..]
        } else {
            &[(INDEX_FILE, WEIGHTS_FILE)]
        };
        for (index, single) in kinds {
            if self.fetch(part, single, Need::Optional, Some(&mut *hash))? {
                return Ok(());
            }
            if self.fetch(part, index, Need::Required, None)? {
                return self.indexed_weights(part, index, hash);
            }
        }
        let names: Vec<&str> = kinds.iter().flat_map(|(index, single)| [*single, *index]).collect();
        Err(self.missing(part, WEIGHTS_FILE, &names.join(" or ")))
    }

    /// Fetches the files that an index names, in the order of their names, and adds them to the hash.
    fn indexed_weights(&mut self, part: &Part, index: &str, hash: &mut Sha256) -> Result<()> {
        for name in indexed_files(&part.folder, index)? {
            if !self.fetch(part, &name, Need::Required, Some(hash))? {
                return Err(self.missing(part, &name, "a file, which the index names"));
            }
        }
        Ok(())
    }

    /// Fetches the entropy models that a configuration names. Returns the digests of their weights.
    fn entropy_models(&mut self, part: &Part) -> Result<BTreeMap<String, String>> {
        let config = Config::read(&part.folder)?;
        let file = part.folder.join(CONFIG_FILE);
        let blueprint = blueprint(&config, &file)?;
        let mut digests = BTreeMap::new();
        for name in blueprint.entropy_models() {
            if plain_name(Path::new(name)).is_none() || !part.prefix.is_empty() {
                let key = "architecture.boundaries.companion";
                let expected = "the plain name of a subfolder, in a checkpoint that is no entropy model itself";
                return Err(Error::checkpoint(file, key, expected, format!("{name:?}")));
            }
            let inner = Part { folder: part.folder.join(name), prefix: format!("{name}/") };
            fs::create_dir(&inner.folder).map_err(Error::io(&inner.folder))?;
            let fetched = self.part(&inner)?;
            digests.insert(name.to_owned(), fetched.sha256);
        }
        Ok(digests)
    }

    fn missing(&self, part: &Part, name: &str, expected: &str) -> Error {
        Error::checkpoint(self.from.place(&part.full_name(name)), "the file", expected, "none")
    }

    /// Fetches a file, and adds it to the hash if it has weights. Returns false if there is none.
    fn fetch(&mut self, part: &Part, name: &str, need: Need, mut hash: Option<&mut Sha256>) -> Result<bool> {
        let left = self.limit.saturating_sub(self.done);
        let (limit, reason) = if hash.is_none() && left >= SMALL_BYTES {
            (SMALL_BYTES, "the limit of files other than weights")
        } else {
            (left, "what --max-pull-bytes leaves")
        };
        let Some(OpenFile { mut bytes, size }) = self.from.open(&part.full_name(name), need)? else { return Ok(false) };
        let place = self.from.place(&part.full_name(name));
        let too_long = |found: String| {
            let expected = format!("at most {limit} bytes, {reason}");
            Err(Error::checkpoint(&place, "the file", expected, found))
        };
        if let Some(size) = size.filter(|size| *size > limit) {
            return too_long(format!("{size} bytes"));
        }
        let path = part.folder.join(name);
        let mut out = File::create_new(&path).map_err(Error::io(&path))?;
        let mut chunk = vec![0; CHUNK];
        let mut written = 0;
        let mut minute = Minute { began: Instant::now(), bytes: 0 };
        loop {
            let count = match bytes.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // The comparison of sizes below reports it.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof && size.is_some() => break,
                Err(error) => return Err(Error::io(&place)(error)),
            };
            written += count as u64;
            if let Some(bytes) = minute.add(Instant::now(), count as u64).filter(|bytes| bytes / 60 < self.min_rate) {
                let expected = format!("at least {} bytes per second (--min-pull-rate)", self.min_rate);
                return Err(Error::checkpoint(&place, "the download", expected, format!("{bytes} bytes in a minute")));
            }
            if written > limit {
                return too_long("more".into());
            }
            let read = chunk.get(..count).unwrap_or_default();
            out.write_all(read).map_err(Error::io(&path))?;
            if let Some(hash) = hash.as_deref_mut() {
                hash.update(read);
            }
            (self.progress)(written, size.unwrap_or(written));
        }
        if let Some(size) = size.filter(|size| *size != written) {
            let expected = format!("{size} bytes, as the server stated");
            return Err(Error::checkpoint(place, "the file", expected, format!("{written} bytes")));
        }
        out.sync_all().map_err(Error::io(&path))?;
        self.done += written;
        Ok(true)
    }
}

/// Counts the bytes of a minute.
struct Minute {
    began: Instant,
    bytes: u64,
}

impl Minute {
    /// Adds bytes that have arrived by `now`. Returns the bytes of a minute at its end.
    fn add(&mut self, now: Instant, bytes: u64) -> Option<u64> {
        self.bytes += bytes;
        if now.duration_since(self.began) < Duration::from_secs(60) {
            return None;
        }
        let Self { bytes, .. } = std::mem::replace(self, Self { began: now, bytes: 0 });
        Some(bytes)
    }
}

/// An open file, and its size if the place states it.
struct OpenFile {
    bytes: Box<dyn Read>,
    size: Option<u64>,
}

/// Whether a checkpoint can lack a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Every checkpoint has it, or another one in its place.
    Required,
    /// A checkpoint may be complete without it.
    Optional,
}

/// A place with the files of a checkpoint.
trait FileSource {
    /// Opens a file, whose name is a relative path with `/`. Returns `None` if there is none. Fails if it cannot be opened.
    fn open(&self, name: &str, need: Need) -> Result<Option<OpenFile>>;

    /// Returns the path or the URL of a file, for messages.
    fn place(&self, name: &str) -> PathBuf;
}

/// A checkpoint folder of this machine.
struct Folder(PathBuf);

impl FileSource for Folder {
    fn open(&self, name: &str, _: Need) -> Result<Option<OpenFile>> {
        let Some(file) = files::present(&self.0, name)? else { return Ok(None) };
        let (bytes, size) = files::open_inside(&self.0, &file)?;
        Ok(Some(OpenFile { bytes: Box::new(bytes), size: Some(size) }))
    }

    fn place(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// Maximum time to connect, and to begin a response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum silence within a response.
const SILENCE: Duration = Duration::from_secs(60);

/// Maximum redirects of one request. The Hub has one or two.
const REDIRECTS: u32 = 5;

/// Maximum bytes of a response's headers.
const HEADER_BYTES: usize = 64 << 10;

/// Header with the commit that the Hub resolved a revision to.
const COMMIT: &str = "x-repo-commit";

/// Header with the Hub's reason for an error.
const ERROR_CODE: &str = "x-error-code";

/// A folder of a web server.
struct HttpFolder {
    agent: Agent,
    url: String,
    /// How the Hub serves the folder, if it does.
    hub: Option<HubAccess>,
    /// The commit of the first file, if the Hub serves it. The others are of the same one, even if the branch moves meanwhile.
    commit: OnceCell<String>,
}

/// How the Hub serves a folder.
struct HubAccess {
    /// The repository, as the argument names it.
    repository: String,
    /// The URL to which `/COMMIT` is appended.
    revisions: String,
    token: HubToken,
}

impl HttpFolder {
    /// Prepares requests to a folder. Fails if the machine has no certificate authorities for TLS.
    fn new(url: String, hub: Option<HubAccess>) -> Result<Self> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
            .max_response_header_size(HEADER_BYTES)
            .timeout_connect(Some(ANSWER_TIMEOUT))
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .timeout_per_read(Some(SILENCE));
        if url.starts_with("https://") {
            // A redirect must not leave TLS.
            config = config.https_only(true).tls_config(tls()?);
        }
        Ok(Self { agent: config.build().new_agent(), url, hub, commit: OnceCell::new() })
    }

    /// Requests a URL and follows redirects. Only requests to the Hub's own scheme, host and port carry the token.
    fn request(&self, url: &str) -> Result<Response<Body>> {
        let mut place = url.to_owned();
        for _ in 0..=REDIRECTS {
            let mut request = self.agent.get(&place);
            if let Some(HubAccess { token: HubToken::Sent(token), .. }) = &self.hub
                && origin(&place) == origin(&self.url)
            {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(|error| unanswered(url, &error.to_string()))?;
            let target = response.headers().get("location").and_then(|target| target.to_str().ok());
            let Some(target) = target.filter(|_| response.status().is_redirection()) else { return Ok(response) };
            place = redirected(&place, target);
        }
        Err(unanswered(url, &format!("more than {REDIRECTS} redirects")))
    }

    fn file_url(&self, name: &str) -> String {
        match (self.commit.get(), &self.hub) {
            (Some(commit), Some(hub)) => format!("{}/{commit}/{name}", hub.revisions),
            _ => format!("{}/{name}", self.url),
        }
    }

    /// Keeps the commit that the Hub states, if it is one.
    fn note_commit(&self, headers: &HeaderMap) {
        let commit = headers.get(COMMIT).and_then(|commit| commit.to_str().ok());
        let is_hash = |commit: &&str| commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some(commit) = commit.filter(is_hash) {
            // Only the first one counts.
            let _ = self.commit.set(commit.to_owned());
        }
    }

    /// Returns the error for a response that is neither a file nor "not found". `None` for a missing file, which is not always an
    /// error.
    fn refused(&self, url: &str, response: &Response<Body>) -> Option<Error> {
        let status = response.status();
        let code = response.headers().get(ERROR_CODE).map_or(&b""[..], |code| code.as_bytes());
        match (&self.hub, status, code) {
            (Some(hub), _, b"RevisionNotFound") => {
                let HubAccess { repository, .. } = hub;
                let expected = "expected a revision of a repository of the Hugging Face Hub";
                Some(Error::Setting(format!("SOURCE: {expected}, found {repository}, which does not exist")))
            }
            (Some(hub), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) | (Some(hub), _, b"RepoNotFound") => {
                Some(hub.no_access(status))
            }
            (_, StatusCode::NOT_FOUND, _) => None,
            _ => {
                let url = clip(url, 500);
                Some(Error::Setting(format!("SOURCE: cannot fetch {url}: the server answered {status}")))
            }
        }
    }
}

impl HubAccess {
    /// Returns the error for a repository that the Hub does not show to this user.
    fn no_access(&self, status: StatusCode) -> Error {
        let advice = match self.token {
            HubToken::Sent(_) => "the token may lack access to it",
            HubToken::Unset => "if it is private, set HF_TOKEN to a token, or use `hf auth login`",
            HubToken::Unencrypted => "if it is private, it needs a token, which is not sent without TLS",
            HubToken::Forbidden => {
                "if it is private, it needs a token, which HF_HUB_DISABLE_IMPLICIT_TOKEN stops weir from sending"
            }
        };
        let expected = "expected a repository of the Hugging Face Hub";
        let found = format!("{}, which does not exist or is private", self.repository);
        Error::Setting(format!("SOURCE: {expected}, found {found} (the Hub answered {status}); {advice}"))
    }
}

impl FileSource for HttpFolder {
    fn open(&self, name: &str, need: Need) -> Result<Option<OpenFile>> {
        // Names come from files of others, and a URL gives some characters a meaning.
        if !name.split('/').all(is_plain) {
            let expected = "letters, digits, dots, hyphens and underscores";
            return Err(Error::checkpoint(&self.url, "the name of a file", expected, format!("{name:?}")));
        }
        let url = self.file_url(name);
        let response = self.request(&url)?;
        let status = response.status();
        // Storage of objects answers so for a missing file, if the client may not list the others.
        let is_hidden = status == StatusCode::FORBIDDEN && need == Need::Optional;
        if is_hidden {
            return Ok(None);
        }
        if !status.is_success() {
            return self.refused(&url, &response).map_or(Ok(None), Err);
        }
        self.note_commit(response.headers());
        let body = response.into_body();
        Ok(Some(OpenFile { size: body.content_length(), bytes: Box::new(body.into_reader()) }))
    }

    fn place(&self, name: &str) -> PathBuf {
        self.file_url(name).into()
    }
}

/// Returns the error for a request without an answer, with the likely cause if the TLS library reports one.
fn unanswered(url: &str, error: &str) -> Error {
    let hint = match error {
        _ if error.contains("received corrupt message") => {
            "; the port does not use TLS; use http:// if you trust the network, or use a port with TLS"
        }
        _ if error.contains("invalid peer certificate") => {
            "; to trust the server's certificate authority, set SSL_CERT_FILE to a file with its certificate"
        }
        _ => "; is the address correct, and can this machine reach it?",
    };
    Error::Setting(format!("SOURCE: cannot fetch {}: {error}{hint}", clip(url, 500)))
}

/// Returns scheme, host and port of a URL, with the user.
fn origin(url: &str) -> &str {
    let after_scheme = url.find("://").map_or(0, |scheme| scheme + 3);
    let end = url[after_scheme..].find(['/', '?', '#']).map_or(url.len(), |length| after_scheme + length);
    &url[..end]
}

/// Returns the URL to which a response of `url` redirects. Requests to URLs without a scheme fail.
fn redirected(url: &str, target: &str) -> String {
    let origin = origin(url);
    let scheme = url.split("//").next().unwrap_or_default();
    let path = &url[..url.find(['?', '#']).unwrap_or(url.len())];
    let folder = path.rfind('/').filter(|slash| *slash >= origin.len()).map_or(path, |slash| &path[..slash]);
    match target.split(['/', '?', '#']).next() {
        Some(start) if start.contains(':') => target.to_owned(),
        _ if target.starts_with("//") => format!("{scheme}{target}"),
        _ if target.starts_with('/') => format!("{origin}{target}"),
        _ => format!("{folder}/{target}"),
    }
}

/// Returns true if a URL can hold the name of a file or folder as it is.
fn is_plain(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !matches!(name, "" | "." | "..") && name.chars().all(allowed)
}

/// Shortens a URL to scheme and host, for messages: a password or a token may be in the rest.
fn without_secrets(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let user = if host.len() < authority.len() { "…@" } else { "" };
    let more = if authority.len() < rest.len() { "/…" } else { "" };
    format!("{scheme}{user}{host}{more}")
}

/// TLS with ring, and the certificate authorities of the system or of the file in `SSL_CERT_FILE`.
fn tls() -> Result<TlsConfig> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        let fix = "install ca-certificates, or set SSL_CERT_FILE";
        return Err(Error::Setting(format!("https: this machine has no certificate authorities{why}; {fix}")));
    }
    let roots: Vec<_> = found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&roots))
        .build())
}

// Repositories of the Hugging Face Hub, which serves each file at `ENDPOINT/ORG/NAME/resolve/REVISION/FILE`.
//
// The crate `hf-hub` is not used. Version 0.5 sends the user's token to the host that the Hub redirects to, writes to the path that a
// response's `etag` gives, and stores bytes without a limit. Version 1.0 requires `hf-xet`, and its TLS aws-lc.

/// The public Hub, unless `HF_ENDPOINT` names another.
const ENDPOINT: &str = "https://huggingface.co";

/// Revision if the argument has none.
const REVISION: &str = "main";

/// A repository at a revision.
#[derive(Debug, PartialEq, Eq)]
struct Repository {
    org: String,
    name: String,
    revision: String,
}

/// Shows the repository as the argument of `weir pull` does.
impl fmt::Display for Repository {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { org, name, revision } = self;
        write!(out, "hf:{org}/{name}")?;
        if revision == REVISION { Ok(()) } else { write!(out, "@{revision}") }
    }
}

impl Repository {
    /// Parses `ORG/NAME[@REVISION]`. Fails if a part is missing or has other characters than the Hub allows.
    fn parse(text: &str) -> Result<Self> {
        let (repository, revision) = text.split_once('@').unwrap_or((text, REVISION));
        let plain = |part: &str, more: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c) || more.contains(c);
            !part.is_empty() && part.chars().all(allowed) && !part.contains("..") && !part.starts_with(['.', '/'])
        };
        match repository.split_once('/') {
            Some((org, name)) if plain(org, "") && plain(name, "") && plain(revision, "/") => {
                Ok(Self { org: org.into(), name: name.into(), revision: revision.into() })
            }
            _ => Err(Error::bad_option("SOURCE", quoted(&format!("hf:{text}")), "hf:ORG/NAME or hf:ORG/NAME@REVISION")),
        }
    }

    /// Opens the repository at the endpoint that the environment names. Fails if the endpoint is no URL or has a password, if the
    /// user's token cannot be read, or if TLS cannot be set up.
    fn open(&self) -> Result<HttpFolder> {
        let endpoint = env::var_os("HF_ENDPOINT").and_then(|value| value.into_string().ok());
        let endpoint = endpoint.filter(|value| !value.is_empty()).unwrap_or_else(|| ENDPOINT.into());
        let revisions = self.revisions(&endpoint)?;
        let token = HubToken::of_user(&endpoint)?;
        let url = self.url(&revisions);
        HttpFolder::new(url, Some(HubAccess { repository: self.to_string(), revisions, token }))
    }

    /// The URL that is followed by a revision.
    fn revisions(&self, endpoint: &str) -> Result<String> {
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            let why = "expected a URL that begins with https:// or http://";
            return Err(Error::Setting(format!("HF_ENDPOINT: {why}, found {:?}", without_secrets(endpoint))));
        }
        if endpoint.contains(['@', '?', '#']) {
            let why = "expected a URL without a user, a password, a query and a fragment";
            return Err(Error::Setting(format!("HF_ENDPOINT: {why}, found {}", without_secrets(endpoint))));
        }
        let Self { org, name, .. } = self;
        Ok(format!("{}/{org}/{name}/resolve", endpoint.trim_end_matches('/')))
    }

    fn url(&self, revisions: &str) -> String {
        format!("{revisions}/{}", self.revision.replace('/', "%2F"))
    }
}

/// Maximum bytes of the file with the token.
const FILE_BYTES: u64 = 64 << 10;

#[derive(PartialEq, Eq)]
enum HubToken {
    /// The user's token.
    Sent(String),
    /// The user has no token.
    Unset,
    /// The connection is not encrypted, so no token may be sent.
    Unencrypted,
    /// `HF_HUB_DISABLE_IMPLICIT_TOKEN` forbids weir to send a token.
    Forbidden,
}

impl HubToken {
    /// Returns the token in `HF_TOKEN`, or else the one in the file where the Hub's own tools keep it. Fails if that file cannot be
    /// read, unless this user has no access to it. Reads neither if the endpoint has no TLS, or if `HF_HUB_DISABLE_IMPLICIT_TOKEN`
    /// is true: the Hub's own tools treat both tokens as implicit.
    fn of_user(endpoint: &str) -> Result<Self> {
        // A token must not cross the network in plain text.
        if !endpoint.starts_with("https://") {
            return Ok(Self::Unencrypted);
        }
        if variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|value| is_true(&value)) {
            return Ok(Self::Forbidden);
        }
        if let Some(token) = variable("HF_TOKEN").and_then(|token| token.into_string().ok()) {
            return Ok(Self::Sent(token));
        }
        let token = file(variable).map(read).transpose()?.flatten();
        Ok(token.map_or(Self::Unset, Self::Sent))
    }
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns true for the values that the Hub's own tools read as true.
fn is_true(value: &OsStr) -> bool {
    ["1", "on", "yes", "true"].into_iter().any(|known| value.eq_ignore_ascii_case(known))
}

/// Returns the file in which `hf auth login` keeps the token. `variable` returns an environment variable's value.
fn file(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from);
    let cache = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    let home = || path("HF_HOME").or_else(|| Some(cache()?.join("huggingface")));
    path("HF_TOKEN_PATH").or_else(|| Some(home()?.join("token")))
}

/// Reads the token in a file. Returns `None` if there is no file, if this user has no access to it, or if it is empty.
fn read(path: PathBuf) -> Result<Option<String>> {
    use ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(FILE_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(Some(text.trim().to_owned()).filter(|token| !token.is_empty())),
        // a home folder of another user, or of nobody, keeps no public model from being pulled
        Err(error) if matches!(error.kind(), NotFound | NotADirectory | PermissionDenied) => Ok(None),
        Err(error) => Err(Error::io(&path)(error)),
    }
}

/// Name of a replaced model inside the hidden folder.
const OLD: &str = "old";

/// A model on its way into the models folder. Its files are in a hidden folder next to the final one, on the same file system. The
/// hidden folder is removed at the end, also after an error. If the process is killed before, the next installation of the same
/// model removes it.
struct Installation {
    models: PathBuf,
    /// The final folder.
    target: PathBuf,
    /// The hidden folder.
    work: PathBuf,
    /// The file next to the hidden folder that this process has locked. The system unlocks it when the process ends.
    _lock: File,
    overwrite: bool,
}

impl Installation {
    /// Creates the models folder, if it is missing, and the hidden folder. Fails if the name is taken and may not be replaced.
    fn begin(models: &Path, name: &str, overwrite: bool) -> Result<Self> {
        let target = models.join(name);
        fs::create_dir_all(models).map_err(Error::io(models))?;
        remove_stale(models, name)?;
        check_vacant(&target, overwrite)?;
        // The number of the process is not unique: it is often 1 in a container.
        let work = models.join(format!(".{name}.{:016x}", RandomState::new().build_hasher().finish()));
        let lock_file = lock_file(&work);
        let lock = File::create_new(&lock_file).map_err(Error::io(&lock_file))?;
        // Before the folder exists, so that another process never takes it for a stale one. Fails if the file system has no locks:
        // then no process removes the folders of others.
        let _ = lock.try_lock();
        let installation = Self { models: models.to_owned(), work, target, _lock: lock, overwrite };
        fs::create_dir(&installation.work).map_err(Error::io(&installation.work))?;
        Ok(installation)
    }

    /// Moves a folder inside the hidden one to its final name, and returns that. Fails if the name was taken meanwhile.
    fn finish(self, folder: &Path) -> Result<PathBuf> {
        check_vacant(&self.target, self.overwrite)?;
        let old = self.work.join(OLD);
        let replaces = self.target.exists();
        if replaces {
            // Until the next rename there is no model of this name. The system has no portable exchange of two folders.
            fs::rename(&self.target, &old).map_err(Error::io(&self.target))?;
        }
        if let Err(error) = fs::rename(folder, &self.target) {
            if replaces {
                fs::rename(&old, &self.target).map_err(Error::io(&self.target))?;
            }
            return Err(Error::io(&self.target)(error));
        }
        sync_folder(&self.models)?;
        Ok(self.target.clone())
    }
}

fn check_vacant(target: &Path, overwrite: bool) -> Result<()> {
    if overwrite || !target.exists() {
        return Ok(());
    }
    let target = target.display();
    Err(Error::Setting(format!("{target}: a model of this name exists; give another --name, or --force to replace it")))
}

/// Returns the path of the file that the owner of a hidden folder locks.
fn lock_file(work: &Path) -> PathBuf {
    let mut file = work.as_os_str().to_owned();
    file.push(".lock");
    file.into()
}

/// Removes the hidden folders of this model whose processes have ended. A process that was killed while it replaced a model may have
/// left the earlier one there, which then gets its place back.
fn remove_stale(models: &Path, name: &str) -> Result<()> {
    let prefix = format!(".{name}.");
    for entry in models.read_dir().map_err(Error::io(models))? {
        let entry = entry.map_err(Error::io(models))?;
        let file_name = entry.file_name();
        let unique = file_name.to_str().and_then(|name| name.strip_prefix(&prefix)).unwrap_or_default();
        if unique.len() != 16 || !unique.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        let work = entry.path();
        // A folder without the file is one that its own process is removing.
        if let Ok(lock) = File::open(lock_file(&work))
            && lock.try_lock().is_ok()
        {
            let old = work.join(OLD);
            let target = models.join(name);
            if old.exists() && !target.exists() {
                fs::rename(&old, &target).map_err(Error::io(&target))?;
            }
            remove(&work)?;
        }
    }
    Ok(())
}

impl Drop for Installation {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.work) {
            tracing::warn!(%error, "a temporary folder remains");
        }
    }
}

/// Removes a hidden folder, and then the file of its lock.
fn remove(work: &Path) -> Result<()> {
    absent_or(fs::remove_dir_all(work)).map_err(Error::io(work))?;
    let lock = lock_file(work);
    absent_or(fs::remove_file(&lock)).map_err(Error::io(&lock))
}

fn absent_or(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The place that a checkpoint is fetched from.
#[derive(Debug, PartialEq, Eq)]
enum Origin {
    Folder(PathBuf),
    /// A folder of a web server.
    Url(String),
    /// A repository of the Hugging Face Hub.
    Hub(Repository),
}

impl Origin {
    /// Parses the argument. Fails if a repository's name or a URL is malformed.
    fn parse(argument: &str) -> Result<Self> {
        if let Some(repository) = argument.strip_prefix("hf:") {
            return Repository::parse(repository).map(Self::Hub);
        }
        let wrong = |expected: &str| Err(Error::bad_option("SOURCE", quoted(&without_secrets(argument)), expected));
        if !argument.starts_with("http://") && !argument.starts_with("https://") {
            if argument.contains("://") {
                return wrong("a folder, a URL that begins with https:// or http://, or hf:ORG/NAME");
            }
            if let Some(repository) = repository_like(Path::new(argument)) {
                return wrong(&format!("a folder that exists, a URL or hf:ORG/NAME (did you mean hf:{repository}?)"));
            }
            return Ok(Self::Folder(argument.into()));
        }
        if argument.contains(['?', '#']) {
            return wrong("the URL of a folder, without a query and a fragment");
        }
        if argument.split('/').nth(2).is_none_or(|host| host.is_empty() || host.contains('@')) {
            return wrong("a URL with a host, and without a user and a password");
        }
        if [".tar", ".tar.gz", ".tgz", ".zip", ".safetensors"].iter().any(|ending| argument.ends_with(ending)) {
            return wrong("the URL of a folder that holds the checkpoint's files, not of one file");
        }
        Ok(Self::Url(argument.trim_end_matches('/').to_owned()))
    }

    /// The last part of the path, as the model's name.
    fn name(&self) -> Option<String> {
        match self {
            Self::Folder(folder) => {
                let full = folder.canonicalize().unwrap_or_else(|_| folder.clone());
                full.file_name().map(|name| name.to_string_lossy().into_owned())
            }
            Self::Url(url) => url.split('/').skip(3).last().filter(|part| !part.is_empty()).map(str::to_owned),
            Self::Hub(repository) => Some(repository.name.clone()),
        }
    }

    /// Opens the place. Fails if it is not a checkpoint folder, or if TLS cannot be set up.
    fn open(&self) -> Result<Box<dyn FileSource>> {
        Ok(match self {
            Self::Folder(folder) => {
                check_folder(folder)?;
                Box::new(Folder(folder.clone()))
            }
            Self::Url(url) => Box::new(HttpFolder::new(url.clone(), None)?),
            Self::Hub(repository) => Box::new(repository.open()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    #[test]
    fn each_minute_is_counted() {
        let began = Instant::now();
        let mut minute = Minute { began, bytes: 0 };
        let mut after = |seconds, bytes| minute.add(began + Duration::from_secs(seconds), bytes);
        assert_eq!(
            [after(10, 5), after(59, 6), after(60, 7), after(100, 1), after(121, 2)],
            [None, None, Some(18), None, Some(3)]
        );
    }

    #[test]
    fn repositories_become_urls() {
        let url = |text: &str| {
            let repository = Repository::parse(text).unwrap();
            repository.url(&repository.revisions("https://hub.example/").unwrap())
        };
        assert_eq!(url("org/name"), "https://hub.example/org/name/resolve/main");
        assert_eq!(url("o-1/n.2@refs/pr/3"), "https://hub.example/o-1/n.2/resolve/refs%2Fpr%2F3");
    }

    #[test]
    fn the_file_is_that_of_the_hubs_tools() {
        let with = |variables: &[(&str, &str)]| {
            file(|name| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into()))
        };
        let home = ("HOME", "/home/a");
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[home]).as_deref(), Some(Path::new("/home/a/.cache/huggingface/token")));
        let cache = ("XDG_CACHE_HOME", "/cache");
        assert_eq!(with(&[home, cache]).as_deref(), Some(Path::new("/cache/huggingface/token")));
        let hub = ("HF_HOME", "/hub");
        assert_eq!(with(&[home, cache, hub]).as_deref(), Some(Path::new("/hub/token")));
        let path = ("HF_TOKEN_PATH", "/secret");
        assert_eq!(with(&[home, cache, hub, path]).as_deref(), Some(Path::new("/secret")));
    }

    #[test]
    fn true_values_are_those_of_the_hubs_tools() {
        let known = |values: &[&str]| values.iter().map(|value| is_true(OsStr::new(value))).collect::<Vec<_>>();
        assert_eq!(known(&["1", "ON", "yes", "True"]), [true; 4]);
        assert_eq!(known(&["0", "off", "no", "2"]), [false; 4]);
    }

    #[test]
    fn a_file_has_one_token_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        assert_eq!(read(file.clone()).unwrap(), None);
        for (text, token) in [("hf_a\n", Some("hf_a")), (" \n", None)] {
            fs::write(&file, text).unwrap();
            assert_eq!(read(file.clone()).unwrap().as_deref(), token);
        }
        assert_eq!(read(file.join("below-a-file")).unwrap(), None);
        fs::write(&file, [0xff]).unwrap();
        assert!(read(file).unwrap_err().to_string().contains("token"));
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    }

    fn install(models: &Path, contents: &str, overwrite: bool) -> Result<PathBuf> {
        let installation = Installation::begin(models, "english", overwrite)?;
        let folder = installation.work.join("fetched");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("file"), contents).unwrap();
        // Nothing that a reader looks for exists before the end.
        assert!(names(models).iter().all(|name| name.starts_with('.') || overwrite));
        installation.finish(&folder)
    }

    #[test]
    fn a_model_appears_at_the_end() {
        let data = tempfile::tempdir().unwrap();
        let models = data.path().join("weir/models");
        let installed = install(&models, "first", false).unwrap();
        assert_eq!(fs::read_to_string(installed.join("file")).unwrap(), "first");
        let error = install(&models, "second", false).unwrap_err().to_string();
        assert!(error.contains("a model of this name exists") && error.contains("--force"), "{error}");
        assert_eq!(fs::read_to_string(installed.join("file")).unwrap(), "first");
        install(&models, "second", true).unwrap();
        assert_eq!(fs::read_to_string(installed.join("file")).unwrap(), "second");
        assert_eq!(names(&models), ["english"]);
    }

    #[test]
    fn folders_of_killed_processes_are_removed() {
        let data = tempfile::tempdir().unwrap();
        let running = Installation::begin(data.path(), "english", false).unwrap();
        let other = Installation::begin(data.path(), "english.v2", false).unwrap();
        let stale = data.path().join(".english.0123456789abcdef");
        fs::create_dir(&stale).unwrap();
        fs::write(lock_file(&stale), "").unwrap();
        fs::write(stale.join("part"), "").unwrap();
        let next = Installation::begin(data.path(), "english", false).unwrap();
        assert!(!stale.exists() && !lock_file(&stale).exists());
        assert!(running.work.is_dir() && other.work.is_dir() && next.work.is_dir());
        assert_ne!(running.work, next.work);
        drop([running, other, next]);
        assert_eq!(names(data.path()), [""; 0]);
        // Killed between two renames.
        fs::create_dir_all(stale.join(OLD)).unwrap();
        fs::write(lock_file(&stale), "").unwrap();
        let error = Installation::begin(data.path(), "english", false).err().unwrap().to_string();
        assert!(error.contains("a model of this name exists"), "{error}");
        assert_eq!(names(data.path()), ["english"]);
    }

    #[test]
    fn arguments_are_folders_urls_and_repositories() {
        let name = |argument: &str| Origin::parse(argument).unwrap().name();
        assert_eq!(name("/mnt/english").as_deref(), Some("english"));
        assert_eq!(name("https://example.com/models/english/").as_deref(), Some("english"));
        assert_eq!(name("https://example.com"), None);
        assert_eq!(name("hf:org/english@v1").as_deref(), Some("english"));
    }
}
