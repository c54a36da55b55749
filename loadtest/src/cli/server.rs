//! How the server is reached.

use crate::{
    client::connection::{ConnectOptions, MAX_CONNECTIONS, ServerConnection},
    error::{Error, Result},
    units,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// How soon a server is tried again that is not there.
const AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, clap::Args)]
pub(super) struct ServerArgs {
    /// The server, as host:port or a URL; https:// for TLS.
    #[arg(value_name = "ADDRESS", default_value = "127.0.0.1:50051")]
    address: String,
    /// The key, if the server asks for one; best in the environment, for other users may see a command's arguments.
    #[arg(long, value_name = "KEY", env = "WEIR_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// A file with the key.
    #[arg(long, value_name = "FILE", env = "WEIR_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
    /// Who may have signed the server's certificate: a PEM file. Needed for https://.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// The certificate, with its chain, to show to a server that asks for one: a PEM file.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_CERT", requires = "tls_client_key")]
    tls_client_cert: Option<PathBuf>,
    /// Its key: a PEM file.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_KEY", requires = "tls_client_cert")]
    tls_client_key: Option<PathBuf>,
    /// How long the server may take to be there, as after it was started.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::span)]
    wait: Duration,
    /// Connections among which requests go round; if not given, one, and more where the server allows fewer calls on one
    /// than are to be in flight.
    #[arg(long, value_name = "N")]
    connections: Option<usize>,
    /// Threads that read the answers.
    #[arg(long, value_name = "N", env = "WEIR_THREADS", default_value_t = 1)]
    pub(super) threads: usize,
}

impl ServerArgs {
    /// Checks numbers, and reads keys and certificates.
    pub(super) fn reach(&self) -> Result<ConnectOptions> {
        if let Some(count) = self.connections.filter(|count| !(1..=MAX_CONNECTIONS).contains(count)) {
            return Err(Error::option("--connections", count, format!("from 1 to {MAX_CONNECTIONS}")));
        }
        let reach = ConnectOptions { address: self.address.clone(), ..ConnectOptions::default() };
        reach.check()?;
        let read = |file: &Path| fs::read(file).map_err(Error::io(file));
        let key = match (&self.api_key, &self.api_key_file) {
            (Some(key), _) => Some(key.clone()),
            (None, Some(file)) => Some(fs::read_to_string(file).map_err(Error::io(file))?.trim().to_owned()),
            (None, None) => None,
        };
        let identity = match (&self.tls_client_cert, &self.tls_client_key) {
            (Some(chain), Some(key)) => Some((read(chain)?, read(key)?)),
            _ => None,
        };
        let authorities = self.tls_ca.as_deref().map(read).transpose()?;
        Ok(ConnectOptions { key, authorities, identity, ..reach })
    }

    /// The first connection, once the server is there.
    pub(super) async fn first(&self, reach: &ConnectOptions) -> Result<ServerConnection> {
        let begun = Instant::now();
        loop {
            match reach.connect().await {
                Err(Error::Remote { .. }) if begun.elapsed() < self.wait => sleep(AGAIN).await,
                connected => return connected,
            }
        }
    }

    /// Connections for so many calls at a time, of which one carries `streams`.
    pub(super) fn connections(&self, calls: usize, streams: usize) -> usize {
        self.connections.unwrap_or_else(|| calls.div_ceil(streams.max(1)).clamp(1, MAX_CONNECTIONS))
    }
}
