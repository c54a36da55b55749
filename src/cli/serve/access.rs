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
        let Self { tls_cert: cert, tls_key: key, tls_client_ca: client_ca, .. } = self;
        if cert.is_some() != key.is_some() {
            checks.missing("--tls-cert and --tls-key need each other");
        }
        if let (Some(_), None, None) = (client_ca, cert, key) {
            checks.missing("--tls-client-ca needs --tls-cert and --tls-key");
        }
        // each file that is named is looked at, whatever else is wrong
        let tls = checks.tls(TlsFiles { cert: cert.as_deref(), key: key.as_deref(), client_ca: client_ca.as_deref() });
        let keys = self.api_keys.as_ref().and_then(|file| checks.keys("--api-keys", file)).map(Arc::new);
        Access { tls, keys }
    }
}
