//! Flags and runtime of the commands that call a running server.

use crate::{
    error::{Error, Result},
    serve::client::ServerEndpoint,
};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tokio::runtime::Runtime;

/// Starts the runtime that network calls run on.
pub(super) fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Error::Internal(format!("the network runtime cannot be started: {error}")))
}

/// Flags of the API key.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ApiKeyArgs {
    /// API key, if the server requires one. Prefer the environment variable: other users can see command-line arguments.
    #[arg(long, value_name = "KEY", env = "WEIR_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// File that contains the API key.
    #[arg(long, value_name = "FILE", env = "WEIR_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
}

impl ApiKeyArgs {
    /// Returns the key, if one is given. Fails if its file cannot be read.
    pub(super) fn key(&self) -> Result<Option<String>> {
        match (&self.api_key, &self.api_key_file) {
            (Some(key), _) => Ok(Some(key.clone())),
            (None, Some(file)) => Ok(Some(fs::read_to_string(file).map_err(Error::io(file))?.trim().to_owned())),
            (None, None) => Ok(None),
        }
    }
}

/// TLS flags, for an address that begins with `https://`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct TlsArgs {
    /// PEM file with the certificate authorities that may have signed the server's certificate; required for https://.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// PEM file with the client certificate and its chain, for a server that requires one.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_CERT", requires = "tls_client_key")]
    tls_client_cert: Option<PathBuf>,
    /// PEM file with the client certificate's private key.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_KEY", requires = "tls_client_cert")]
    tls_client_key: Option<PathBuf>,
}

impl TlsArgs {
    /// Combines a server's address with these flags. Fails if a file cannot be read.
    pub(super) fn endpoint(&self, address: &str) -> Result<ServerEndpoint> {
        let read = |file: &Path| fs::read(file).map_err(Error::io(file));
        let authorities = self.tls_ca.as_deref().map(read).transpose()?;
        let identity = match (&self.tls_client_cert, &self.tls_client_key) {
            (Some(chain), Some(key)) => Some((read(chain)?, read(key)?)),
            _ => None,
        };
        Ok(ServerEndpoint { address: address.to_owned(), authorities, identity })
    }
}
