//! How the commands that ask a running server reach it.

use crate::{
    error::{Error, Result},
    serve::client::Reach,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The flags of TLS, for an address that begins with `https://`.
#[derive(Debug, clap::Args)]
pub(super) struct TlsArgs {
    /// Who may have signed the server's certificate: a PEM file. Needed for https://.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// The certificate, with its chain, to show to a server that asks for one: a PEM file.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_CERT", requires = "tls_client_key")]
    tls_client_cert: Option<PathBuf>,
    /// Its key: a PEM file.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_KEY", requires = "tls_client_cert")]
    tls_client_key: Option<PathBuf>,
}

impl TlsArgs {
    /// A server's address with these.
    ///
    /// # Errors
    /// [`Error::Io`] for a file that cannot be read.
    pub(super) fn reach(&self, address: &str) -> Result<Reach> {
        let read = |file: &Path| fs::read(file).map_err(Error::io(file));
        let authorities = self.tls_ca.as_deref().map(read).transpose()?;
        let identity = match (&self.tls_client_cert, &self.tls_client_key) {
            (Some(chain), Some(key)) => Some((read(chain)?, read(key)?)),
            _ => None,
        };
        Ok(Reach { address: address.to_owned(), authorities, identity })
    }
}
