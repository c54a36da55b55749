//! `weir serve`: reserves its ports, loads checkpoints, starts their engines, listens, and shuts down on signals. The flags are
//! grouped by topic in the submodules.

mod access;
mod announcement;
mod engine;
mod file_limit;
mod listeners;
mod loading;
mod log;
mod log_writer;
mod models;
mod operations;
mod ports;
mod reload;
mod signals;
mod systemd;
mod transport;

use super::{color::ColorChoice, network::runtime, output};
use crate::{
    config::{Checks, Origins, ServeConfig},
    error::{Error, Result, printable},
    kernels::heap,
    serve::{Engines, Listener, Monitor, ServerParts, Traces, run as serve, serve_admin_port},
};
use announcement::Addresses;
use listeners::Listeners;
use loading::{CheckpointLoader, admin, load_all};
use log_writer::LogWriter;
use ports::{OptionalPort, PortState, ReservedPort};
use reload::Reloader;
use std::{path::PathBuf, pin::pin, sync::Arc, thread, time::Duration};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;
use weir_client::command_line::FlagOrigins;

/// How long workers may take to finish their step once the server has drained.
const WORKER_TIME: Duration = Duration::from_secs(1);
/// How long clients may take to read the error that ends their streams, after a second signal.
const FLUSH_TIME: Duration = Duration::from_secs(1);
/// Time from the drain limit to the forced end of the process: longer than each wait of the shutdown, shorter than all together.
const END_TIME: Duration = Duration::from_secs(3);
/// How long a worker without a step may take to end.
const WORKER_NOTICE: Duration = Duration::from_millis(100);
/// How long the runtime may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(100);

/// Serves models over gRPC and HTTP. A signal (SIGTERM or Ctrl-C) drains the server; a second one ends its requests and, within a second,
/// the process, with exit code 1. The exit code is also 1 if a step still runs two seconds after the drain.
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
    /// The flags of the command whose values come from variables.
    pub flag_origins: FlagOrigins,
    /// All settings, in the format of a settings file.
    pub shown: String,
}

impl Args {
    fn validate(&self, writer: &LogWriter, color: ColorChoice, mut checks: Checks) -> Result<ServeConfig> {
        let log = self.log.start(writer, color, &mut checks);
        let checkpoints = self.models.checkpoints(&mut checks);
        let model = self.models.settings(&mut checks);
        let unpooled_twins = self.models.unpooled_twins(&mut checks);
        let engine = self.engine.limits(model.memory_bytes, &mut checks);
        let access = self.access.access(&mut checks);
        let transport = self.transport.limits(access, &mut checks);
        let credential_files = self.access.files();
        let is_protected = !credential_files.is_empty();
        let listeners = Listeners::parse(&self.transport, &self.operations, is_protected, &mut checks);
        let operations = self.operations.settings(listeners.admin, self.models.folder(), &mut checks);
        checks.finish()?;
        Ok(ServeConfig {
            listen: listeners.grpc,
            http_listen: listeners.http,
            default_listeners: listeners.are_default,
            checkpoints,
            credential_files,
            model,
            unpooled_twins,
            engine,
            transport,
            operations,
            log,
        })
    }
}

/// Runs the command until a signal ends it. Fails if a setting or a checkpoint is invalid, or if an address is in use.
pub fn run(args: Args, sources: SettingSources, color: ColorChoice) -> Result<()> {
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
    let result = args.validate(&writer, color, checks).and_then(|settings| {
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
    // Before models are loaded, which may take minutes, so that a port in use is reported at once.
    let is_default = settings.default_listeners;
    let grpc = ReservedPort::reserve("--listen", settings.listen)?;
    let http = OptionalPort::reserve("--http-listen", settings.http_listen, is_default)?;
    let admin_port = OptionalPort::reserve("--admin-listen", settings.operations.admin_listen, is_default)?;
    // Before models are loaded too, so that probes can see the server starting.
    let (admin_state, admin_listener) = admin_port.listen()?;
    if let Some(listener) = admin_listener {
        if let PortState::Open(address) = admin_state {
            tracing::info!(%address, "the admin port answers while models load");
        }
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

    let grpc_address = grpc.address();
    let listener = grpc.listen()?;
    let (http_state, http_listener) = http.listen()?;
    // The announcement bypasses the log queue, and must follow the lines about the models.
    let log = writer.clone();
    // A panic there is printed and does not stop the server.
    let _ = tokio::task::spawn_blocking(move || log.finish()).await;
    settings.log.print(format_args!("serving {}", printable(&engines.names().join(", "))));
    let tls = settings.transport.access.credentials.current().tls.is_some();
    Addresses { grpc: grpc_address, http: http_state, admin: admin_state, tls }.print(settings.log);
    let part = settings.operations.otlp_part;
    let traces = settings.operations.otlp.as_ref().map(|endpoint| Traces::to(endpoint, part)).transpose()?;
    let force_shutdown = CancellationToken::new();
    let http = http_listener.map(Listener::from);
    let offer = ServerParts { monitor, admin, traces, http, force_shutdown: force_shutdown.clone() };
    let shutdown = {
        let signals = signals.clone();
        async {
            signals::received(signals, 1).await;
            systemd::stopping();
        }
    };
    tokio::spawn(limit_shutdown(signals.clone(), settings.transport.drain + END_TIME, engines.clone()));
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

/// Ends the process `limit` after the first signal, if it has not ended by then. A thread does it, because the runtime ends before
/// the log is written. The exit code is 1 if a worker still runs.
#[expect(clippy::disallowed_methods, reason = "the thread has nothing else to wait for")]
async fn limit_shutdown(signals: watch::Receiver<usize>, limit: Duration, engines: Engines) {
    signals::received(signals, 1).await;
    let ended = thread::Builder::new().name("weir-shutdown".into()).spawn(move || {
        thread::sleep(limit.saturating_sub(WORKER_NOTICE));
        tracing::warn!("the shutdown takes too long: ending at once");
        engines.close();
        thread::sleep(WORKER_NOTICE);
        exit(i32::from(!engines.have_ended()))
    });
    if let Err(error) = ended {
        tracing::warn!(%error, "cannot start the thread that limits the shutdown");
    }
}

/// Ends the process with this exit code, after the log is written, without waiting for any other thread.
fn exit_now(why: &str, code: i32, writer: &LogWriter) -> ! {
    tracing::warn!("{why}: ending at once");
    writer.finish();
    exit(code)
}

#[expect(clippy::disallowed_methods, reason = "destructors would wait for threads, which may hang")]
fn exit(code: i32) -> ! {
    std::process::exit(code)
}
