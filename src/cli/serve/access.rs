//! TLS, API keys, and names of the server.

use crate::config::{Access, Checks, CredentialFiles, TlsFiles};
use std::{path::PathBuf, sync::Arc};

/// Flags of TLS, API keys, and names of the server.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Access")]
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
    /// PEM file with certificate revocation lists, one of each authority that signs client certificates. Requires --tls-client-ca.
    /// Default: no certificate is revoked.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_CRL")]
    tls_client_crl: Option<PathBuf>,
    /// File with API keys, one `name:key` or `name:sha256:DIGEST` per line. Every call except health and reflection must then
    /// send one of them as `authorization: Bearer KEY`.
    #[arg(long, value_name = "FILE", env = "WEIR_API_KEYS")]
    api_keys: Option<PathBuf>,
    /// Host names under which web browsers reach the HTTP port and the admin port, for a server without API keys. Always allowed
    /// are IP addresses, names of one label, and names under .localhost, .local, .internal, .test, .home.arpa and .svc. The flag
    /// can be repeated, or hold several names separated by commas.
    #[arg(long, value_name = "HOST", env = "WEIR_ALLOWED_HOSTS", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
    /// Origins of web pages, such as https://weir.example.com, that may send requests to the HTTP port and the admin port. Always
    /// allowed is the origin of the request's own host. The flag can be repeated, or hold several origins separated by commas.
    #[arg(long, value_name = "ORIGIN", env = "WEIR_ALLOWED_ORIGINS", value_delimiter = ',')]
    allowed_origins: Vec<String>,
    /// Origins of web pages, such as https://app.example.com, that may send requests to the HTTP port and read its responses
    /// (CORS). With * every page that a visitor opens may use the server, so use it with --api-keys only. The flag can be repeated,
    /// or hold several origins separated by commas. Default: none.
    #[arg(long, value_name = "ORIGIN", env = "WEIR_CORS_ORIGIN", value_delimiter = ',')]
    cors_origin: Vec<String>,
}

impl AccessArgs {
    /// Returns the files of certificates and keys.
    pub(super) fn files(&self) -> CredentialFiles {
        let tls = TlsFiles {
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            client_ca: self.tls_client_ca.clone(),
            client_crl: self.tls_client_crl.clone(),
        };
        CredentialFiles { tls, api_keys: self.api_keys.clone() }
    }

    /// Reads and checks the files.
    pub(super) fn access(&self, checks: &mut Checks) -> Access {
        let files = self.files();
        let TlsFiles { cert, key, client_ca, client_crl } = &files.tls;
        let mut needs =
            |flag, missing| checks.reject_with(missing, format!("expected a file because {flag} is set, found none"));
        match (cert, key, client_ca) {
            (Some(_), None, _) => needs("--tls-cert", "--tls-key"),
            (None, Some(_), _) => needs("--tls-key", "--tls-cert"),
            (None, None, Some(_)) => needs("--tls-client-ca", "--tls-cert"),
            _ => {}
        }
        if let (Some(_), None) = (client_crl, client_ca) {
            needs("--tls-client-crl", "--tls-client-ca");
        }
        let credentials = files.read(checks).into();
        let allowed = Arc::new(checks.allowed_names(&self.allowed_hosts, &self.allowed_origins));
        let cors = Arc::new(checks.cors_origins(&self.cors_origin));
        Access { credentials, allowed, cors }
    }
}
