//! Connecting to the server: options, network threads, and the models to measure.

use crate::{
    client::{
        connection::{ClientIdentity, ConnectOptions, MAX_CONNECTIONS, ServerConnection},
        models::{self, ModelInfo, ServerSoftware},
    },
    error::{Error, Result},
    units,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep},
};
use weir_proto::failed_connection::no_certificate;

/// Pause before connecting again to an unreachable server.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
const MAX_THREADS: usize = 256;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct ServerArgs {
    /// Server, as host:port or a URL; https:// for TLS.
    #[arg(value_name = "ADDRESS", default_value = "127.0.0.1:50051")]
    address: String,
    /// API key, if the server requires one. Prefer the environment: other users may see a command's arguments.
    #[arg(long, value_name = "KEY", env = "WEIR_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// File with the API key.
    #[arg(long, value_name = "FILE", env = "WEIR_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
    /// PEM file of the authorities that may have signed the server's certificate. Required for https://.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// PEM file of the client's certificate with its chain, for servers that require one.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_CERT", requires = "tls_client_key")]
    tls_client_cert: Option<PathBuf>,
    /// PEM file of the client certificate's private key.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_KEY", requires = "tls_client_cert")]
    tls_client_key: Option<PathBuf>,
    /// Longest time to wait for the server to become reachable, for example after its start.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration_or_zero)]
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
        let options = ConnectOptions { address: self.address.clone(), ..ConnectOptions::default() };
        options.check()?;
        let read = |flag: &'static str, file: &Path| fs::read(file).map_err(Error::unreadable(flag, file));
        let key = match (&self.api_key, &self.api_key_file) {
            (Some(key), _) => Some(key.clone()),
            (None, Some(file)) => {
                let text = fs::read_to_string(file).map_err(Error::unreadable("--api-key-file", file))?;
                Some(text.trim().to_owned())
            }
            (None, None) => None,
        };
        let identity = match (&self.tls_client_cert, &self.tls_client_key) {
            (Some(chain), Some(key)) => {
                let (chain, key) = (read("--tls-client-cert", chain)?, read("--tls-client-key", key)?);
                Some(ClientIdentity { chain, key })
            }
            _ => None,
        };
        let authorities = self.tls_ca.as_deref().map(|file| read("--tls-ca", file)).transpose()?;
        if let Some((file, found)) = self.tls_ca.as_ref().zip(authorities.as_deref().and_then(no_certificate)) {
            let found = format!("{found} in {}", file.display());
            return Err(Error::option("--tls-ca", found, "PEM with a certificate"));
        }
        Ok(ConnectOptions { key, authorities, identity, ..options })
    }

    /// Opens the first connection; retries for `--wait` while the server is unreachable.
    pub(super) async fn first_connection(&self, options: &ConnectOptions) -> Result<ServerConnection> {
        let begun = Instant::now();
        loop {
            match options.connect().await {
                Err(Error::Remote { .. }) if begun.elapsed() < self.wait => sleep(RETRY_PAUSE).await,
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
