//! Connecting to the server: options, network threads, and the models to measure.

use crate::{
    client::{
        connection::{ConnectOptions, MAX_CONNECTIONS, ServerConnection},
        models::{self, ModelInfo, ServerSoftware},
    },
    error::{Error, Result},
    units,
};
use std::time::Duration;
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep},
};
use weir_proto::{
    connection_args::{ApiKeyArgs, TlsArgs},
    server_address,
};

/// Pause before connecting again to an unreachable server.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
const MAX_THREADS: usize = 256;
/// The address of a server that `weir serve` starts without settings.
const DEFAULT_ADDRESS: &str = "127.0.0.1:50051";

#[derive(Debug, Clone, clap::Args)]
pub(super) struct ServerArgs {
    /// Server address: host:port, :port of this machine, or a URL; https:// for TLS.
    #[arg(value_name = "ADDRESS", default_value = DEFAULT_ADDRESS, env = "WEIR_SERVER")]
    address: String,
    #[command(flatten)]
    api_key: ApiKeyArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Longest time to wait for the server to become reachable, for example after its start.
    #[arg(long, value_name = "TIME", default_value = "0s", allow_hyphen_values = true, value_parser = units::duration_or_zero)]
    wait: Duration,
    /// Connections that requests use in turn [default: as many as the calls in flight need, by the server's limit of calls per
    /// connection].
    #[arg(long, value_name = "N")]
    connections: Option<usize>,
    /// Threads that read the answers.
    #[arg(long, value_name = "N", env = "WEIR_THREADS", default_value_t = 1)]
    pub(super) threads: usize,
}

impl ServerArgs {
    /// Checks the options, and reads keys and certificates.
    pub(super) fn connect_options(&self) -> Result<ConnectOptions> {
        self.connections.map_or(Ok(()), |count| Error::check_range("--connections", count, 1..=MAX_CONNECTIONS))?;
        let address = server_address::parse(&self.address).map_err(|why| Error::Setting(format!("ADDRESS: {why}")))?;
        let tls = self.tls.read(&address).map_err(Error::Setting)?;
        Ok(ConnectOptions { address, key: self.api_key.key().map_err(Error::Setting)?, tls })
    }

    /// Opens the first connection; retries for `--wait` while the server is unreachable.
    pub(super) async fn first_connection(&self, options: &ConnectOptions) -> Result<ServerConnection> {
        let begun = Instant::now();
        loop {
            match options.connect().await {
                Err(Error::Connection { failed, .. }) if !failed.has_hint() && begun.elapsed() < self.wait => {
                    sleep(RETRY_PAUSE).await;
                }
                connected => return connected,
            }
        }
    }

    /// Returns how many connections `calls` calls at a time need if one carries `streams`.
    pub(super) fn connections(&self, calls: usize, streams: usize) -> usize {
        self.connections.unwrap_or_else(|| calls.div_ceil(streams.max(1)).clamp(1, MAX_CONNECTIONS))
    }
}

pub(super) fn runtime(threads: usize) -> Result<Runtime> {
    Error::check_range("--threads", threads, 1..=MAX_THREADS)?;
    let built = if threads == 1 {
        Builder::new_current_thread().enable_all().build()
    } else {
        Builder::new_multi_thread().worker_threads(threads).enable_all().build()
    };
    built.map_err(|error| Error::Internal(format!("cannot start the network threads: {error}")))
}

#[derive(Clone)]
pub(super) struct Discovery {
    pub(super) connect: ConnectOptions,
    pub(super) software: Option<ServerSoftware>,
    /// All models of the server.
    pub(super) known: Vec<ModelInfo>,
    pub(super) models: Vec<ModelInfo>,
}

impl Discovery {
    /// Connects and selects the models called `names`. Without names, selects the server's only model, or every model if `all`.
    pub(super) async fn run(server: &ServerArgs, names: &[String], all: bool) -> Result<Self> {
        let connect = server.connect_options()?;
        let list = async {
            let connection = server.first_connection(&connect).await?;
            Ok((models::list(&connect.address, &connection).await?, connection))
        };
        let (known, connection) = match list.await {
            Ok(listed) => listed,
            Err(error) => return Err(connect.diagnose(error).await),
        };
        let models = match (all, names) {
            (true, []) => known.clone(),
            (true, _) => models::select("--models", names, &known)?,
            (false, _) => models::select("--model", names, &known)?,
        };
        if models.is_empty() {
            return Err(Error::Setting("the server has no model".into()));
        }
        Ok(Self { connect, software: models::fetch_software(&connection).await, known, models })
    }
}
