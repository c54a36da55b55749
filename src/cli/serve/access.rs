//! Who may connect and call.

use crate::config::{Access, Checks, TlsFiles};
use std::{path::PathBuf, sync::Arc};

/// The flags of TLS and API keys.
#[derive(Debug, clap::Args)]
pub(super) struct AccessArgs {
    /// The server's certificate, in PEM, with those between it and the authority that clients know: connections are
    /// encrypted. Needs --tls-key.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM and not encrypted.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// The authorities, in PEM, one of which must have signed each client's certificate; clients need none if this is not
    /// given.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_CA")]
    tls_client_ca: Option<PathBuf>,
    /// Lines of `name:key` or `name:sha256:DIGEST`: every call but health and reflection must bring one of these keys, as
    /// `authorization: Bearer KEY`.
    #[arg(long, value_name = "FILE", env = "WEIR_API_KEYS")]
    api_keys: Option<PathBuf>,
}

impl AccessArgs {
    /// As the server wants it.
    pub(super) fn access(&self, checks: &mut Checks) -> Access {
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => checks.tls(TlsFiles { cert, key, client_ca: self.tls_client_ca.as_deref() }),
            (None, None) => {
                if self.tls_client_ca.is_some() {
                    checks.missing("--tls-client-ca needs --tls-cert and --tls-key");
                }
                None
            }
            (Some(_), None) => {
                checks.missing("--tls-cert needs --tls-key");
                None
            }
            (None, Some(_)) => {
                checks.missing("--tls-key needs --tls-cert");
                None
            }
        };
        let keys = self.api_keys.as_ref().and_then(|file| checks.keys("--api-keys", file)).map(Arc::new);
        Access { tls, keys }
    }
}
