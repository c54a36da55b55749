//! `weir serve`: checkpoints, engines, a listener, and signals that end it.

use crate::{
    config::{Checks, Serve, Wire},
    decode::gather::MAX_BOUNDARY_WAIT,
    engine::handle::{Handle, Limits},
    error::{Error, Result, printable},
    family::load,
    kernels::Dtype,
    serve::{Engines, run as serve},
};
use std::{io::IsTerminal, path::PathBuf, time::Duration};
use tokio::{net::TcpListener, sync::watch};
use tracing_subscriber::EnvFilter;

/// The most that a count may be: nothing that fits a machine is refused.
const MANY: usize = 1 << 24;
/// The most symbols of a step: nothing ends one that has begun, so that it must be short beside any limit in seconds.
const MOST_CHUNK: usize = 4096;
/// How long the runtime may take to stop after a second signal.
const STOP: Duration = Duration::from_millis(100);

/// Serves models over gRPC. A signal (SIGTERM, Ctrl-C) drains; a second one ends as soon as the step in progress is
/// over.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder whose subfolders are checkpoints; subfolders without a config.json are skipped. `models` if neither
    /// this nor --model is given.
    #[arg(long, value_name = "DIR", env = "WEIR_MODELS")]
    models: Option<PathBuf>,
    /// A checkpoint's folder; may be given several times, or with commas in between.
    #[arg(long, value_name = "DIR", env = "WEIR_MODEL", value_delimiter = ',')]
    model: Vec<PathBuf>,
    /// The address to listen on; port 0 takes any free one.
    #[arg(long, value_name = "ADDRESS", env = "WEIR_LISTEN", default_value = "127.0.0.1:50051")]
    listen: String,
    /// Threads; all cores if not given.
    #[arg(long, value_name = "N", env = "WEIR_THREADS", allow_negative_numbers = true)]
    threads: Option<String>,
    /// Numbers that weights, keys and values are stored in: f32, bf16 or int8.
    #[arg(long, value_name = "TYPE", env = "WEIR_DTYPE", default_value = "f32")]
    dtype: String,
    /// The most symbols of one sequence; four training windows, but at least 8192, if not given.
    #[arg(long, value_name = "N", env = "WEIR_MAX_SYMBOLS", allow_negative_numbers = true)]
    max_symbols: Option<String>,
    /// Key-value memory of each model.
    #[arg(long, value_name = "SIZE", env = "WEIR_KV_MEMORY", default_value = "2GiB")]
    kv_memory: String,
    /// Requests of a model that run at once.
    #[arg(long, value_name = "N", env = "WEIR_ROWS", default_value_t = Limits::default().rows.to_string(),
        allow_negative_numbers = true)]
    rows: String,
    /// Requests of a model that may wait.
    #[arg(long, value_name = "N", env = "WEIR_QUEUE", default_value_t = Limits::default().queue.to_string(),
        allow_negative_numbers = true)]
    queue: String,
    /// Symbols of prompts that are processed in one step, 1 to 4096: a running stream, the end of draining and a second
    /// signal may all have to wait for one.
    #[arg(long, value_name = "N", env = "WEIR_CHUNK", default_value_t = Limits::default().chunk.to_string(),
        allow_negative_numbers = true)]
    chunk: String,
    /// Steps that a request whose segment ended may wait for others, to share a step of the middle layers.
    #[arg(long, value_name = "N", env = "WEIR_BOUNDARY_WAIT",
        default_value_t = Limits::default().boundary_wait.to_string(), allow_negative_numbers = true)]
    boundary_wait: String,
    /// How long running requests may go on once the server is shutting down.
    #[arg(long, value_name = "N", env = "WEIR_DRAIN_SECONDS", default_value = "30", allow_negative_numbers = true)]
    drain_seconds: String,
    /// The longest request message.
    #[arg(long, value_name = "SIZE", env = "WEIR_MAX_MESSAGE_BYTES", default_value = "4MiB")]
    max_message_bytes: String,
    /// Calls in progress on one connection.
    #[arg(
        long,
        value_name = "N",
        env = "WEIR_MAX_CONCURRENT_STREAMS",
        default_value = "256",
        allow_negative_numbers = true
    )]
    max_concurrent_streams: String,
    /// What is logged to stderr: a level, or `target=level` directives with commas in between.
    #[arg(long, value_name = "FILTER", env = "WEIR_LOG", default_value = "info")]
    log: String,
    /// How it is logged: text or json.
    #[arg(long, value_name = "FORMAT", env = "WEIR_LOG_FORMAT", default_value = "text")]
    log_format: String,
}

impl Args {
    fn validate(&self) -> Result<Serve> {
        let mut checks = Checks::default();
        self.start_log(&mut checks);
        let listen = checks.parsed("--listen", &self.listen);
        let checkpoints = self.checkpoints(&mut checks);
        let model = self.model_settings(&mut checks);
        let engine = Limits {
            rows: checks.number("--rows", &self.rows, 1..=4096),
            queue: checks.number("--queue", &self.queue, 1..=MANY),
            chunk: checks.number("--chunk", &self.chunk, 1..=MOST_CHUNK),
            boundary_wait: checks.number("--boundary-wait", &self.boundary_wait, 0..=MAX_BOUNDARY_WAIT),
            ..Limits::default()
        };
        let streams = checks.number("--max-concurrent-streams", &self.max_concurrent_streams, 1..=MANY);
        let wire = Wire {
            drain: Duration::from_secs(checks.number("--drain-seconds", &self.drain_seconds, 0..=86_400) as u64),
            message_bytes: checks.bytes("--max-message-bytes", &self.max_message_bytes, 1024..=1 << 30),
            concurrent_streams: u32::try_from(streams).unwrap_or(u32::MAX),
            ..Wire::default()
        };
        checks.finish()?;
        let listen = listen.ok_or_else(|| Error::Internal("an address that is neither right nor wrong".into()))?;
        Ok(Serve { listen, checkpoints, model, engine, wire })
    }

    fn checkpoints(&self, checks: &mut Checks) -> Vec<PathBuf> {
        let default = self.model.is_empty().then(|| PathBuf::from("models"));
        let mut found = Vec::new();
        if let Some(folder) = self.models.as_ref().or(default.as_ref()) {
            found = checks.checkpoints("--models", folder);
            if found.is_empty() && folder.is_dir() {
                checks.wrong("--models", &folder.display().to_string(), "no subfolder is a checkpoint");
            }
        }
        for folder in &self.model {
            checks.checkpoint("--model", folder);
            found.push(folder.clone());
        }
        found
    }

    fn model_settings(&self, checks: &mut Checks) -> load::Settings {
        let mut settings = load::Settings::default();
        match Dtype::parse(&self.dtype) {
            Some(dtype) => settings.dtype = dtype,
            None => checks.wrong("--dtype", &self.dtype, "expected f32, bf16 or int8"),
        }
        if let Some(threads) = &self.threads {
            settings.threads = checks.number("--threads", threads, 1..=1024);
        }
        settings.max_symbols =
            self.max_symbols.as_ref().map(|count| checks.number("--max-symbols", count, 1..=load::MAX_SYMBOLS));
        settings.memory_bytes = checks.bytes("--kv-memory", &self.kv_memory, 1 << 20..=usize::MAX);
        settings
    }

    /// Before anything else, so that the checks can log.
    fn start_log(&self, checks: &mut Checks) {
        let filter = EnvFilter::try_new(&self.log).unwrap_or_else(|error| {
            checks.wrong("--log", &self.log, error);
            EnvFilter::default()
        });
        let colours = std::io::stderr().is_terminal();
        let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(colours).with_env_filter(filter);
        // A log that was started already stays.
        let _ = match self.log_format.as_str() {
            "text" => log.try_init(),
            "json" => log.json().try_init(),
            other => {
                checks.wrong("--log-format", other, "expected text or json");
                return;
            }
        };
    }
}

/// Runs the command until a signal ends it.
///
/// # Errors
/// Settings that cannot be used, a broken checkpoint, an address that is taken.
pub fn run(args: Args) -> Result<()> {
    let settings = args.validate()?;
    let engines = engines(&settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Internal(format!("no threads for the server: {error}")))?;
    let result = runtime.block_on(listen(settings, engines));
    runtime.shutdown_timeout(STOP);
    result
}

/// Loads every model and starts its engine.
fn engines(settings: &Serve) -> Result<Engines> {
    // one set of threads for all: two models that step at once take turns on it, rather than on the cores
    let shared = settings.model.clone().with_threads();
    let start = |folder: &PathBuf| {
        tracing::debug!(folder = %folder.display(), "loading");
        Handle::start(load::load(folder, &shared)?, settings.engine)
    };
    Engines::new(settings.checkpoints.iter().map(start).collect::<Result<_>>()?)
}

async fn listen(settings: Serve, engines: Engines) -> Result<()> {
    let wrong = |error| Error::Setting(format!("--listen {}: {error}", settings.listen));
    let listener = TcpListener::bind(settings.listen).await.map_err(wrong)?;
    let address = listener.local_addr().map_err(wrong)?;
    // Before anyone is told where to connect: a signal from then on drains.
    let signals = signals().map_err(|error| Error::Internal(format!("no signals: {error}")))?;
    eprintln!("listening on {address} with {}", printable(&engines.names().join(", ")));
    tokio::select! {
        served = serve(listener, engines, reached(signals.clone(), 1), settings.wire) => served,
        () = reached(signals, 2) => {
            tracing::warn!("a second signal: ending after the step in progress");
            Ok(())
        }
    }
}

/// Counts the signals that ask for an end: SIGTERM where there is such a thing, and Ctrl-C.
#[cfg(unix)]
fn signals() -> std::io::Result<watch::Receiver<usize>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            count.send_modify(|count| *count += 1);
        }
    });
    Ok(counted)
}

/// Counts the signals that ask for an end: Ctrl-C.
#[cfg(not(unix))]
fn signals() -> std::io::Result<watch::Receiver<usize>> {
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            count.send_modify(|count| *count += 1);
        }
    });
    Ok(counted)
}

/// Waits for so many signals.
async fn reached(mut signals: watch::Receiver<usize>, count: usize) {
    if signals.wait_for(|seen| *seen >= count).await.is_err() {
        // Nobody counts any more, so no signal will come.
        std::future::pending().await
    }
}
