//! TLS and API keys of the server.

use crate::config::{Access, Checks, TlsFiles};
use std::{path::PathBuf, sync::Arc};

/// Flags of TLS and API keys.
#[derive(Debug, clap::Args)]
pub(super) struct AccessArgs {
    /// PEM file with the server's certificate and its intermediate certificates; enables TLS. Requires --tls-key.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key, not encrypted.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// PEM file with the authorities that may sign client certificates. Default: clients need no certificate.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_CA")]
    tls_client_ca: Option<PathBuf>,
    /// File with API keys, one `name:key` or `name:sha256:DIGEST` per line. Every call except health and reflection must then
    /// send one of them as `authorization: Bearer KEY`.
    #[arg(long, value_name = "FILE", env = "WEIR_API_KEYS")]
    api_keys: Option<PathBuf>,
}

impl AccessArgs {
    /// Reads and checks the files.
    pub(super) fn access(&self, checks: &mut Checks) -> Access {
        let Self { tls_cert: cert, tls_key: key, tls_client_ca: client_ca, .. } = self;
        if cert.is_some() != key.is_some() {
            checks.add_problem("--tls-cert and --tls-key need each other");
        }
        if let (Some(_), None, None) = (client_ca, cert, key) {
            checks.add_problem("--tls-client-ca needs --tls-cert and --tls-key");
        }
        // Every file is checked even after an error, so that all errors are reported at once.
        let tls = checks.tls(TlsFiles { cert: cert.as_deref(), key: key.as_deref(), client_ca: client_ca.as_deref() });
        let keys = self.api_keys.as_ref().and_then(|file| checks.keys("--api-keys", file)).map(Arc::new);
        Access { tls, keys }
    }
}
