//! Certificates and keys for TLS, read from PEM files.

use crate::config::checks::Checks;
use crate::config::checks::{self, warn_if_open};
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use weir_client::tls::{no_certificate, no_private_key, other_key};

/// Maximum bytes of the revocation lists: a large authority's have a hundred thousand entries.
const REVOCATION_LIST_BYTES: u64 = 16 << 20;

/// Encryption of connections, and the client certificates that they require.
#[derive(Clone)]
pub struct Tls {
    http2: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
}

/// Files of the TLS settings.
#[derive(Debug, Clone, Default)]
pub struct TlsFiles {
    /// The server's certificate, then the intermediate certificates up to the authority that clients trust.
    pub cert: Option<PathBuf>,
    /// The certificate's private key.
    pub key: Option<PathBuf>,
    /// Authorities that sign client certificates; `None` if clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// Certificate revocation lists of these authorities; `None` if no client certificate is revoked.
    pub client_crl: Option<PathBuf>,
}

/// The client certificates that connections require.
struct ClientCertificates {
    authorities: RootCertStore,
    /// Empty if no certificate is revoked.
    revoked: Vec<CertificateRevocationListDer<'static>>,
}

impl Tls {
    fn new(config: &ServerConfig) -> Self {
        let speaking = |protocol: &[u8]| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(config)
        };
        Self { http2: speaking(b"h2"), http1: speaking(b"http/1.1") }
    }

    /// Returns the configuration of the TLS library for connections of HTTP/2.
    pub fn http2(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.http2)
    }

    /// Returns the configuration of the TLS library for connections of HTTP/1.1.
    pub fn http1(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.http1)
    }
}

/// Prints no contents: they are secret.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TLS")
    }
}

/// An invalid TLS file.
struct TlsProblem {
    flag: &'static str,
    /// The problem, with the file's name.
    why: String,
}

impl TlsProblem {
    fn in_file(flag: &'static str, file: &Path, why: impl Display) -> Self {
        Self { flag, why: format!("{}: {why}", file.display()) }
    }
}

impl Checks {
    /// Reads certificates and key from `files`. Returns `None` without a certificate or key, or if a file is invalid.
    pub fn tls(&mut self, files: &TlsFiles) -> Option<Tls> {
        // checks all files, so that all problems are reported
        let chain = files.cert.as_deref().map(|file| self.record(certificates("--tls-cert", file)));
        let key = files.key.as_deref().map(|file| {
            warn_if_open(file);
            self.record(private_key(file))
        });
        let authorities = files.client_ca.as_deref().map(|file| self.record(roots(file)));
        let revoked = files.client_crl.as_deref().map(|file| self.record(revocation_lists(file)));
        let chain = chain.flatten()?;
        let key = key.flatten()?;
        let revoked = revoked.map_or(Some(Vec::new()), |lists| lists)?;
        let clients = match authorities {
            None => None,
            Some(authorities) => Some(ClientCertificates { authorities: authorities?, revoked }),
        };
        let certificate_file = files.cert.as_deref()?;
        let config = server_config(certificate_file, chain, key, clients).map_err(|(flag, why)| {
            let file = match flag {
                "--tls-key" => &files.key,
                "--tls-client-ca" => &files.client_ca,
                "--tls-client-crl" => &files.client_crl,
                _ => &files.cert,
            };
            TlsProblem::in_file(flag, file.as_deref().unwrap_or(Path::new("")), why)
        });
        self.record(config)
    }

    fn record<T>(&mut self, result: Result<T, TlsProblem>) -> Option<T> {
        result.map_err(|problem| self.reject_with(problem.flag, problem.why)).ok()
    }
}

fn certificates(flag: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsProblem> {
    let problem = |why: &str| TlsProblem::in_file(flag, file, why);
    let bytes = checks::read_file(file).map_err(|why| TlsProblem { flag, why })?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates = certificates.map_err(|error| problem(&describe(&error)))?;
    if certificates.is_empty() {
        let found = no_certificate(&bytes).unwrap_or("none");
        return Err(problem(&format!("expected PEM with a certificate, found {found}")));
    }
    Ok(certificates)
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsProblem> {
    let flag = "--tls-key";
    let problem = |why: &str| TlsProblem::in_file(flag, file, why);
    let bytes = checks::read_file(file).map_err(|why| TlsProblem { flag, why })?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            let found = no_private_key(&bytes).unwrap_or("none");
            problem(&format!(
                "expected PEM with a private key (PKCS #8, PKCS #1 or SEC 1, not encrypted), found {found}"
            ))
        }
        error => problem(&describe(&error)),
    })
}

/// Describes a PEM error without quoting the file.
fn describe(error: &pem::Error) -> String {
    let what = match error {
        pem::Error::MissingSectionEnd { .. } => "a section without an end",
        pem::Error::IllegalSectionStart { .. } => "a section with a malformed first line",
        pem::Error::Base64Decode(_) => "a section that is not base64",
        _ => "something that cannot be read",
    };
    format!("expected PEM, found {what}")
}

fn roots(file: &Path) -> Result<RootCertStore, TlsProblem> {
    let mut roots = RootCertStore::empty();
    let certificates = certificates("--tls-client-ca", file)?;
    for (number, certificate) in (1..).zip(certificates) {
        roots.add(certificate).map_err(|error| {
            let why =
                format!("certificate {number}: expected a valid certificate authority, found an invalid one ({error})");
            TlsProblem::in_file("--tls-client-ca", file, why)
        })?;
    }
    Ok(roots)
}

fn revocation_lists(file: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsProblem> {
    let flag = "--tls-client-crl";
    let problem = |why: &str| TlsProblem::in_file(flag, file, why);
    let bytes = checks::read_up_to(REVOCATION_LIST_BYTES, file).map_err(|why| TlsProblem { flag, why })?;
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    let lists = lists.map_err(|error| problem(&describe(&error)))?;
    match lists.is_empty() {
        true => Err(problem("expected PEM with a certificate revocation list, found none")),
        false => Ok(lists),
    }
}

/// `certificate_file` has the chain.
fn server_config(
    certificate_file: &Path,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: Option<ClientCertificates>,
) -> Result<Tls, (&'static str, String)> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| ("--tls-cert", error.to_string()))?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => builder.with_client_cert_verifier(verifier(clients, provider)?),
    };
    let with_key = builder.with_single_cert(chain, key);
    let config = with_key.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => ("--tls-key", other_key("--tls-cert", certificate_file)),
        error => ("--tls-cert", format!("expected a valid certificate and its key, found an invalid pair ({error})")),
    })?;
    Ok(Tls::new(&config))
}

/// Returns the check of client certificates. With revocation lists it refuses a certificate unless a valid list of its authority
/// omits it, so that a list that is missing or too old does not admit revoked certificates.
fn verifier(
    clients: ClientCertificates,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, (&'static str, String)> {
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(clients.authorities), provider);
    let builder = builder.with_crls(clients.revoked).enforce_revocation_expiration();
    builder.build().map_err(|error| {
        let flag = match error {
            VerifierBuilderError::InvalidCrl(_) => "--tls-client-crl",
            _ => "--tls-client-ca",
        };
        (flag, error.to_string())
    })
}
