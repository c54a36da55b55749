//! `weir serve`: loads checkpoints, starts their engines, listens, and shuts down on signals. The flags are grouped by topic in
//! the submodules.

mod access;
mod engine;
mod file_limit;
mod log;
mod log_writer;
mod models;
mod operations;
mod reload;
mod signals;
mod systemd;
mod transport;

use super::{network::runtime, output};
use crate::{
    config::{AdminToken, Checks, Origins, ServeConfig, ServedCheckpoint},
    decode::contract::Model,
    error::{Error, Result, printable},
    family::load,
    kernels::heap,
    serve::{
        AdminConfig, Engines, Listener, ModelLoader, Monitor, ServerParts, Traces, run as serve, serve_admin_port,
    },
};
use log_writer::LogWriter;
use reload::Reloader;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpSocket},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// How long workers may take to finish their step once the server has drained.
const WORKER_TIME: Duration = Duration::from_secs(1);
/// How long clients may take to read the error that ends their streams, after a second signal.
const FLUSH_TIME: Duration = Duration::from_secs(1);
/// How long the runtime may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum connections that wait for the server to accept them. The operating system may have a lower limit.
const BACKLOG: u32 = 4096;

/// Serves models over gRPC. A signal (SIGTERM or Ctrl-C) drains the server; a second one ends its requests and, within a second,
/// the process, with exit code 1. The exit code is also 1 if a model hangs in a step.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    #[command(flatten)]
    models: models::ModelsArgs,
    #[command(flatten)]
    engine: engine::EngineArgs,
    #[command(flatten)]
    transport: transport::TransportArgs,
    #[command(flatten)]
    operations: operations::OperationsArgs,
    #[command(flatten)]
    access: access::AccessArgs,
    #[command(flatten)]
    log: log::LogArgs,
    /// TOML file with settings, named like these flags. Flags and environment variables override it.
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
    /// Print all settings and their origins as a file for --config, and exit.
    #[arg(long, env = "WEIR_PRINT_CONFIG")]
    print_config: bool,
    /// Check all settings and the files that they name, except the contents of checkpoints, and exit.
    #[arg(long, env = "WEIR_CHECK_CONFIG")]
    check_config: bool,
}

/// A flag whose value is a secret.
#[derive(Debug, PartialEq, Eq)]
pub struct SecretFlag {
    /// The flag, such as `--api-key`.
    pub flag: String,
    /// The environment variable with the same meaning.
    pub variable: String,
}

/// Where the settings come from.
#[derive(Debug, Default)]
pub struct SettingSources {
    /// Errors found in the settings file.
    pub problems: Vec<String>,
    /// Flags on the command line whose values are secrets.
    pub secret_flags: Vec<SecretFlag>,
    /// Origin of each setting that was not given as a flag.
    pub origins: Origins,
    /// All settings, in the format of a settings file.
    pub shown: String,
}

impl Args {
    fn validate(&self, writer: &LogWriter, mut checks: Checks) -> Result<ServeConfig> {
        let log = self.log.start(writer, &mut checks);
        let listen = self.transport.listen(&mut checks);
        let checkpoints = self.models.checkpoints(&mut checks);
        let model = self.models.settings(&mut checks);
        let engine = self.engine.limits(model.memory_bytes, &mut checks);
        let access = self.access.access(&mut checks);
        let transport = self.transport.limits(access, &mut checks);
        let operations = self.operations.settings(self.models.folder(), &mut checks);
        let http_listen = self.transport.http_listen(&mut checks);
        check_distinct(
            &[("--listen", listen), ("--http-listen", http_listen), ("--admin-listen", operations.admin_listen)],
            &mut checks,
        );
        checks.finish()?;
        let listen = listen.ok_or_else(|| Error::Internal("--listen passed its check without an address".into()))?;
        let credential_files = self.access.files();
        Ok(ServeConfig {
            listen,
            http_listen,
            checkpoints,
            credential_files,
            model,
            engine,
            transport,
            operations,
            log,
        })
    }
}

/// Rejects listeners that share an address, unless the system chooses the port.
fn check_distinct(listeners: &[(&str, Option<SocketAddr>)], checks: &mut Checks) {
    for (index, (flag, address)) in listeners.iter().enumerate() {
        let Some(address) = address.filter(|address| address.port() != 0) else { continue };
        if let Some((other, _)) = listeners[..index].iter().find(|(_, other)| *other == Some(address)) {
            checks.reject(flag, &address.to_string(), format!("{other} has the same address"));
        }
    }
}

/// Runs the command until a signal ends it. Fails if a setting or a checkpoint is invalid, or if an address is in use.
pub fn run(args: Args, sources: SettingSources) -> Result<()> {
    let SettingSources { problems, origins, shown, .. } = sources;
    let checks = Checks::with_problems(problems, origins);
    if args.print_config {
        output::write(&shown)?;
        if !args.check_config {
            return checks.finish();
        }
    }
    // Before other threads start, because a thread keeps its heap.
    heap::return_large_blocks();
    let writer = LogWriter::start();
    let result = args.validate(&writer, checks).and_then(|settings| {
        if args.check_config {
            return Ok(());
        }
        let runtime = runtime()?;
        let result = runtime.block_on(listen(settings, &writer));
        runtime.shutdown_timeout(STOP_TIMEOUT);
        result
    });
    writer.finish();
    result
}

async fn listen(settings: ServeConfig, writer: &LogWriter) -> Result<()> {
    // First, because PID 1 of a container ignores signals without a handler.
    let no_handler = |error| Error::Internal(format!("signal handlers cannot be installed: {error}"));
    let signals = signals::signals().map_err(no_handler)?;
    let addresses = [Some(settings.listen), settings.http_listen, settings.operations.admin_listen];
    file_limit::raise_for(settings.transport.connections * addresses.into_iter().flatten().count());
    let engines = Engines::default();
    let files = settings.credential_files.clone();
    let live = settings.transport.access.credentials.clone();
    Reloader { files, live, engines: engines.clone() }.start().map_err(no_handler)?;
    let log = writer.clone();
    engines.metrics().count_dropped_log_lines(move || log.dropped_lines());
    let monitor = Monitor::new(engines.clone(), settings.operations.hang);
    // Before models are loaded, so that probes can see the server starting.
    if let Some(address) = settings.operations.admin_listen {
        let listener = bind("--admin-listen", address)?;
        settings.log.print(format_args!("admin port on {}", listener.local_addr().unwrap_or(address)));
        tokio::spawn(serve_admin_port(listener, monitor.clone(), Arc::clone(&settings.transport.access.allowed)));
    }
    // One thread pool for all models: two models that step at the same time share it instead of competing for cores.
    let loader = Arc::new(CheckpointLoader(settings.model.clone().with_threads()));
    let admin = settings.operations.admin_token.clone().map(|token| admin(&settings, &loader, token));
    let loading = {
        let settings = settings.clone();
        let engines = engines.clone();
        tokio::task::spawn_blocking(move || load_all(&settings, &loader, &engines))
    };
    let loaded = tokio::select! {
        loaded = loading => loaded,
        () = signals::received(signals.clone(), 1) => exit_now("signal while loading models", 0, writer),
    };
    loaded.unwrap_or_else(|_| Err(Error::Internal("loading a model panicked".into())))?;

    let listener = bind("--listen", settings.listen)?;
    let address = listener.local_addr().unwrap_or(settings.listen);
    settings.log.print(format_args!("listening on {address} with {}", printable(&engines.names().join(", "))));
    let http = match settings.http_listen {
        Some(address) => Some(bind("--http-listen", address)?),
        None => None,
    };
    if let Some(listener) = &http {
        let address = listener.local_addr().unwrap_or(settings.listen);
        settings.log.print(format_args!("completions over HTTP on {address}"));
    }
    let part = settings.operations.otlp_part;
    let traces = settings.operations.otlp.as_ref().map(|endpoint| Traces::to(endpoint, part)).transpose()?;
    let force_shutdown = CancellationToken::new();
    let offer =
        ServerParts { monitor, admin, traces, http: http.map(Listener::from), force_shutdown: force_shutdown.clone() };
    let shutdown = {
        let signals = signals.clone();
        async {
            signals::received(signals, 1).await;
            systemd::stopping();
        }
    };
    // Both ports are bound: the system accepts connections from now on.
    systemd::ready(&engines.names());
    let mut serving = pin!(serve(listener, offer, shutdown, settings.transport));
    let served = tokio::select! {
        served = &mut serving => served,
        () = signals::received(signals, 2) => {
            force_shutdown.cancel();
            // Streams end with an error that clients can read. Whether they do makes no difference.
            let _ = timeout(FLUSH_TIME, serving).await;
            exit_now("second signal", 1, writer)
        }
    };
    // Dropping an engine waits for its worker, which may hang.
    if let Err(error) = engines.stop(WORKER_TIME).await {
        exit_now(&error.to_string(), 1, writer);
    }
    served
}

/// Ends the process with this exit code, after the log is written, without waiting for any other thread.
#[expect(clippy::disallowed_methods, reason = "destructors would wait for threads, which may hang")]
fn exit_now(why: &str, code: i32, writer: &LogWriter) -> ! {
    tracing::warn!("{why}: ending at once");
    writer.finish();
    std::process::exit(code)
}

/// Listens on the address that `flag` gives. Must run within the runtime.
fn bind(flag: &str, address: SocketAddr) -> Result<TcpListener> {
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A restarted server may listen while connections of the earlier process end.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|error| Error::Setting(format!("{flag} {address}: {error}")))
}

/// Loads checkpoints with the same settings. Models share the thread pool of the settings, if it is started.
struct CheckpointLoader(load::Settings);

impl ModelLoader for CheckpointLoader {
    fn memory_needed(&self, folder: &Path) -> Result<usize> {
        load::needs(folder, &self.0)
    }

    fn load(&self, folder: &Path, name: &str) -> Result<Arc<dyn Model>> {
        load::load_as(folder, name, &self.0)
    }
}

/// Loads every model and starts its engine. A checkpoint of the models folder that cannot be served is logged and left out.
/// Fails if a named checkpoint cannot be served, or if none can.
fn load_all(settings: &ServeConfig, loader: &CheckpointLoader, engines: &Engines) -> Result<()> {
    let mut first_failure = None;
    for checkpoint in &settings.checkpoints {
        match launch(checkpoint, settings, loader, engines) {
            Ok(()) => {}
            Err(error) if checkpoint.named => return Err(error),
            Err(error) => {
                let ServedCheckpoint { name, folder, .. } = checkpoint;
                tracing::error!(model = name, folder = %folder.display(), %error, "not served: the checkpoint cannot be loaded");
                engines.metrics().count_skipped_checkpoint();
                first_failure.get_or_insert(error);
            }
        }
    }
    match first_failure {
        Some(error) if engines.names().is_empty() => Err(error),
        _ => Ok(()),
    }
}

fn launch(
    checkpoint: &ServedCheckpoint,
    settings: &ServeConfig,
    loader: &CheckpointLoader,
    engines: &Engines,
) -> Result<()> {
    let ServedCheckpoint { name, folder, .. } = checkpoint;
    tracing::debug!(folder = %folder.display(), "loading");
    let model = loader.load(folder, name)?;
    engines.add(engines.launch(model, settings.engine, Some(folder.clone()))?)?;
    Ok(())
}

fn admin(settings: &ServeConfig, loader: &Arc<CheckpointLoader>, token: AdminToken) -> AdminConfig {
    AdminConfig {
        token,
        loader: Arc::clone(loader) as _,
        models_folder: settings.operations.models.clone(),
        max_generations: settings.operations.max_models,
        limits: settings.engine,
    }
}
