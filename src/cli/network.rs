//! Flags and runtime of the commands that call a running server.

use super::input_files;
use crate::{
    error::{Error, Result},
    serve::client::ServerEndpoint,
};
use std::{
    fmt,
    path::{Path, PathBuf},
};
use tokio::runtime::Runtime;
use weir_proto::failed_connection::no_certificate;

/// The name of an argument that is a server's address.
pub(super) const ADDRESS: &str = "ADDRESS";
/// The address of a server that `weir serve` starts without settings.
pub(super) const DEFAULT_ADDRESS: &str = "127.0.0.1:50051";

/// Starts the runtime that network calls run on.
pub(super) fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Error::Internal(format!("the network runtime cannot be started: {error}")))
}

/// A key or token. Debug output does not contain it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(String);

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(..)")
    }
}

impl Secret {
    /// Returns the key or token; `None` if it is empty, which is the same as unset.
    pub(super) fn value(&self) -> Option<&str> {
        Some(&*self.0).filter(|text| !text.is_empty())
    }
}

/// Flags of the API key.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ApiKeyArgs {
    /// API key, if the server requires one. Prefer the environment variable: other users can see command-line arguments.
    #[arg(long, value_name = "KEY", env = "WEIR_API_KEY", hide_env_values = true)]
    api_key: Option<Secret>,
    /// File that contains the API key.
    #[arg(long, value_name = "FILE", env = "WEIR_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
}

impl ApiKeyArgs {
    /// Returns the key, if one is given. An empty key counts as none. Fails if the file cannot be read.
    pub(super) fn key(&self) -> Result<Option<String>> {
        match (self.api_key.as_ref().and_then(Secret::value), &self.api_key_file) {
            (Some(key), _) => Ok(Some(key.to_owned())),
            (None, Some(file)) => Ok(Some(input_files::read_text("--api-key-file", file)?.trim().to_owned())),
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

/// Reads a file of certificates. Fails if it has none, so that the TLS library does not take an empty list.
fn read_certificates(flag: &str, file: &Path) -> Result<Vec<u8>> {
    let pem = input_files::read(flag, file)?;
    match no_certificate(&pem) {
        None => Ok(pem),
        Some(found) => {
            let file = file.display();
            Err(Error::Setting(format!("{flag}: {file}: expected PEM with a certificate, found {found}")))
        }
    }
}

impl TlsArgs {
    /// Combines a server's address, which the argument `name` gives, with these flags. Fails if the address is invalid, or if a file
    /// cannot be read.
    pub(super) fn endpoint(&self, name: &'static str, address: &str) -> Result<ServerEndpoint> {
        let endpoint = ServerEndpoint::parse(name, address)?;
        let authorities = self.tls_ca.as_deref().map(|file| read_certificates("--tls-ca", file)).transpose()?;
        let identity = match (&self.tls_client_cert, &self.tls_client_key) {
            (Some(chain), Some(key)) => {
                Some((read_certificates("--tls-client-cert", chain)?, input_files::read("--tls-client-key", key)?))
            }
            _ => None,
        };
        Ok(ServerEndpoint { authorities, identity, ..endpoint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn an_empty_key_is_unset_and_debug_output_has_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "from-the-file\n").unwrap();
        let args = |key: &str, file: Option<&Path>| ApiKeyArgs {
            api_key: Some(key.into()),
            api_key_file: file.map(Path::to_owned),
        };
        assert_eq!(args("", None).key().unwrap(), None);
        assert_eq!(args("", Some(file.path())).key().unwrap().as_deref(), Some("from-the-file"));
        assert_eq!(args("given", Some(file.path())).key().unwrap().as_deref(), Some("given"));
        assert!(!format!("{:?}", args("hidden-key", None)).contains("hidden-key"));
    }
}
