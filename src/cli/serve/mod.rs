//! `weir serve`: reserves its ports, loads checkpoints, starts their engines, listens, and shuts down on signals. The flags are
//! grouped by topic in the submodules.

mod log;
mod models;
pub(crate) mod ports;

use crate::cli::model::runtime;
use crate::cli::output::{self, ColorChoice};
use crate::cli::serve::log::{LogArgs, LogWriter};
use crate::cli::serve::models::{CheckpointLoader, admin, load_all};
use crate::cli::serve::ports::{ADMIN, HTTP, Listeners, OperationsArgs, OptionalPort, PortState, ReservedPort};
use crate::cli::signals::{EndSignals, exit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{io, thread};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;
use weir_client::flags::FlagOrigins;
use weir_kernels::error::{Error, Result, printable};
use weir_kernels::memory;
use weir_kernels::sync::lock;
use weir_server::config::{Announce, Checks, CredentialFiles, LiveCredentials, Origins, ServeConfig};
use weir_server::metrics::Metrics;
use weir_server::run::{ServerParts, run as serve};
use weir_server::{Engines, Listener, Monitor, Traces, serve_admin_port};

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
    engine: models::EngineArgs,
    #[command(flatten)]
    transport: ports::TransportArgs,
    #[command(flatten)]
    operations: OperationsArgs,
    #[command(flatten)]
    access: ports::AccessArgs,
    #[command(flatten)]
    log: LogArgs,
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
        let unpooled_baselines = self.models.unpooled_baselines(&mut checks);
        let engine = self.engine.limits(model.memory_bytes, &mut checks);
        let access = self.access.access(&mut checks);
        let transport = self.transport.limits(access, &mut checks);
        let credential_files = self.access.files();
        let is_protected = !credential_files.is_empty();
        let listeners = Listeners::parse(&self.transport, &self.operations, is_protected, &mut checks);
        let folder = self.models.folder();
        let operations = self.operations.settings(listeners.admin, folder, engine.cache_bytes, &mut checks);
        checks.finish()?;
        Ok(ServeConfig {
            listen: listeners.grpc,
            http_listen: listeners.http,
            default_listeners: listeners.are_default,
            checkpoints,
            credential_files,
            model,
            unpooled_baselines,
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
    memory::return_large_blocks();
    if !args.check_config {
        check_threads()?;
    }
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

/// Fails if the process may not start the threads that every server has beside those of its models: one for each core, and a few for
/// the log, signals and loading.
fn check_threads() -> Result<()> {
    let count = thread::available_parallelism().map_or(1, usize::from) + 6;
    let gate = Mutex::new(());
    let held = lock(&gate);
    thread::scope(|scope| {
        for started in 0..count {
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, || drop(lock(&gate))) {
                drop(held);
                return Err(Error::Setting(format!(
                    "the process may start only {started} of the {count} threads that a server needs beside `--threads` ({error}; see \
                     `ulimit -u` and the container's limit of processes)"
                )));
            }
        }
        drop(held);
        Ok(())
    })
}

async fn listen(settings: ServeConfig, writer: &LogWriter) -> Result<()> {
    // First, because PID 1 of a container ignores signals without a handler.
    let no_handler = |error| Error::Internal(format!("signal handlers cannot be installed: {error}"));
    let signals = count_signals().map_err(no_handler)?;
    let addresses = [Some(settings.listen), settings.http_listen, settings.operations.admin_listen];
    ports::raise_for(settings.transport.connections * addresses.into_iter().flatten().count());
    let engines = Engines::with_metrics(Metrics::new(&settings.operations.metrics));
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
        () = received(signals.clone(), 1) => exit_now("signal while loading models", 0, writer),
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
            received(signals, 1).await;
            stopping();
        }
    };
    tokio::spawn(limit_shutdown(signals.clone(), settings.transport.drain + END_TIME, engines.clone()));
    // Both ports are bound: the system accepts connections from now on.
    ready(&engines.names());
    let mut serving = pin!(serve(listener, offer, shutdown, settings.transport));
    let served = tokio::select! {
        served = &mut serving => served,
        () = received(signals, 2) => {
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
    received(signals, 1).await;
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

/// Addresses of a server, and whether the first two use TLS.
pub(super) struct Addresses {
    grpc: SocketAddr,
    http: PortState,
    admin: PortState,
    tls: bool,
}

impl Addresses {
    /// Prints one line for each port. A terminal makes the addresses clickable. A port that is off has the flag that opens it.
    fn print(&self, log: Announce) {
        self.lines().iter().for_each(|line| log.print(format_args!("{line}")));
    }

    fn lines(&self) -> [String; 3] {
        let scheme = if self.tls { "https" } else { "http" };
        [
            format!("gRPC        {}", url(scheme, self.grpc, "")),
            format!("playground  {}", optional(&self.http, scheme, "/", "--http-listen", HTTP)),
            format!("metrics     {}", optional(&self.admin, "http", "/metrics", "--admin-listen", ADMIN)),
        ]
    }
}

fn optional(port: &PortState, scheme: &str, path: &str, flag: &str, default: SocketAddr) -> String {
    let usual = default.port();
    match port {
        PortState::Open(address) => url(scheme, *address, path),
        PortState::Unset => format!("off; `{flag} localhost:{usual}` turns it on"),
        PortState::Unprotected => {
            format!("off, because this port supports neither keys nor TLS; `{flag} localhost:{usual}` turns it on")
        }
        PortState::Failed(why) => format!("off: {why}; `{flag} localhost:0` selects a free port"),
    }
}

/// Returns a URL that works on this machine. An unspecified address becomes loopback, and the original follows the URL.
fn url(scheme: &str, address: SocketAddr, path: &str) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let reachable = SocketAddr::new(ip, address.port());
    let all = if reachable == address { String::new() } else { format!(" (listens on {address})") };
    format!("{scheme}://{reachable}{path}{all}")
}

/// Maximum time for reading the files, for example from a network that hangs.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Replaces the credentials of a running server.
struct Reloader {
    files: CredentialFiles,
    live: LiveCredentials,
    /// Its metrics count the reloads.
    engines: Engines,
}

impl Reloader {
    /// Reloads at each SIGHUP from now on. Signals that arrive during a reload cause one more.
    #[cfg(unix)]
    fn start(self) -> io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut hangups = signal(SignalKind::hangup())?;
        tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                self.reload().await;
            }
        });
        Ok(())
    }

    /// Does nothing: other systems have no such signal.
    #[cfg(not(unix))]
    fn start(self) -> io::Result<()> {
        Ok(())
    }

    /// Reads all files and replaces all credentials together. After any error the old ones stay in use.
    #[cfg_attr(not(unix), expect(dead_code, reason = "only a signal causes a reload"))]
    async fn reload(&self) {
        if self.files.is_empty() {
            tracing::info!("SIGHUP: the settings name no certificates and keys to read again");
            return;
        }
        let files = self.files.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut checks = Checks::default();
            let credentials = files.read(&mut checks);
            checks.finish().map(|()| credentials)
        });
        let read: Result<_> = match timeout(READ_TIMEOUT, read).await {
            Ok(Ok(read)) => read,
            Ok(Err(_)) => Err(Error::Internal("reading the files panicked".into())),
            Err(_) => Err(Error::Setting(format!("the files were not read within {READ_TIMEOUT:?}"))),
        };
        let succeeded = read.is_ok();
        match read {
            Ok(credentials) => {
                tracing::info!(keys = ?credentials.keys, tls = credentials.tls.is_some(), "reloaded certificates and keys");
                self.live.replace(credentials);
            }
            Err(error) => {
                let error = error.to_string().replace('\n', ";");
                tracing::error!(error, "certificates and keys were not reloaded: the old ones stay in use");
            }
        }
        // Last, so that an observer of the metric finds the new credentials in use.
        self.engines.metrics().count_credential_reload(succeeded);
    }
}

/// Counts shutdown signals.
fn count_signals() -> io::Result<watch::Receiver<usize>> {
    let mut signals = EndSignals::new()?;
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            signals.next().await;
            count.send_modify(|count| *count += 1);
        }
    });
    Ok(counted)
}

/// Waits until `count` signals have arrived.
async fn received(mut signals: watch::Receiver<usize>, count: usize) {
    if signals.wait_for(|seen| *seen >= count).await.is_err() {
        // The counting task is gone, so no signal will arrive.
        std::future::pending().await
    }
}

/// Reports that the server accepts calls to these models.
#[cfg(unix)]
fn ready(models: &[String]) {
    use sd_notify::NotifyState;
    let status = format!("serving {}", printable(&models.join(", ")));
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Reports that the server shuts down.
#[cfg(unix)]
fn stopping() {
    notify(&[sd_notify::NotifyState::Stopping]);
}

/// Sends the states to the socket that `NOTIFY_SOCKET` names. Does nothing without that variable, as outside of systemd.
#[cfg(unix)]
fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd is not notified: the socket in NOTIFY_SOCKET cannot be written");
    }
}

/// Does nothing: other systems have no systemd.
#[cfg(not(unix))]
fn ready(_: &[String]) {}

/// Does nothing: other systems have no systemd.
#[cfg(not(unix))]
fn stopping() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_urls_that_a_browser_opens() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let all = Addresses {
            grpc: address("0.0.0.0:50051"),
            http: PortState::Open(address("[::]:8000")),
            admin: PortState::Open(address("192.0.2.1:9090")),
            tls: true,
        };
        let expected = [
            "gRPC        https://127.0.0.1:50051 (listens on 0.0.0.0:50051)",
            "playground  https://[::1]:8000/ (listens on [::]:8000)",
            "metrics     http://192.0.2.1:9090/metrics",
        ];
        assert_eq!(all.lines(), expected);
    }
}
