//! Certificates and keys for TLS, read from PEM files.

use super::{
    checks::Checks,
    secret_file::{self, warn_if_open},
};
use std::{fmt, path::Path, sync::Arc};
use tokio_rustls::rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::WebPkiClientVerifier,
};

/// Encryption of connections, and the client certificates that they require.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

/// Files of the TLS settings.
#[derive(Debug, Clone, Copy)]
pub struct TlsFiles<'a> {
    /// The server's certificate, then the intermediate certificates up to the authority that clients trust.
    pub cert: Option<&'a Path>,
    /// The certificate's private key.
    pub key: Option<&'a Path>,
    /// Authorities that sign client certificates; `None` if clients need no certificate.
    pub client_ca: Option<&'a Path>,
}

impl Tls {
    /// Returns the configuration of the TLS library for connections of one ALPN protocol.
    pub fn config(&self, protocol: &[u8]) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.0);
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    }
}

/// Prints no contents: they are secret.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TLS")
    }
}

/// An invalid TLS file.
struct TlsProblem<'a> {
    flag: &'static str,
    file: &'a Path,
    why: String,
}

impl Checks {
    /// Reads certificates and key from `files`. Returns `None` without a certificate or key, or if a file is invalid.
    pub fn tls(&mut self, files: TlsFiles<'_>) -> Option<Tls> {
        // checks all files, so that all problems are reported
        let chain = files.cert.map(|file| self.record(certificates("--tls-cert", file)));
        let key = files.key.map(|file| {
            warn_if_open(file);
            self.record(private_key(file))
        });
        let roots = files.client_ca.map(|file| self.record(roots(file)));
        let chain = chain.flatten()?;
        let key = key.flatten()?;
        let cert = files.cert?;
        let roots = roots.map_or(Some(None), |roots| roots.map(Some))?;
        self.record(server_config(chain, key, roots).map_err(|(flag, why)| {
            let file = if flag == "--tls-cert" { cert } else { files.client_ca.unwrap_or(cert) };
            TlsProblem { flag, file, why }
        }))
    }

    fn record<T>(&mut self, result: Result<T, TlsProblem<'_>>) -> Option<T> {
        result.map_err(|problem| self.reject(problem.flag, &problem.file.display().to_string(), problem.why)).ok()
    }
}

fn certificates<'a>(flag: &'static str, file: &'a Path) -> Result<Vec<CertificateDer<'static>>, TlsProblem<'a>> {
    let problem = |why| TlsProblem { flag, file, why };
    let bytes = secret_file::read(file).map_err(problem)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates = certificates.map_err(|error| problem(describe(&error)))?;
    match certificates.is_empty() {
        true => Err(problem("expected PEM with a certificate, found none".into())),
        false => Ok(certificates),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsProblem<'_>> {
    let problem = |why| TlsProblem { flag: "--tls-key", file, why };
    let bytes = secret_file::read(file).map_err(problem)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            problem("expected PEM with a private key (PKCS #8, PKCS #1 or SEC 1, not encrypted), found none".into())
        }
        error => problem(describe(&error)),
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

fn roots(file: &Path) -> Result<RootCertStore, TlsProblem<'_>> {
    let mut roots = RootCertStore::empty();
    for (number, certificate) in (1..).zip(certificates("--tls-client-ca", file)?) {
        roots.add(certificate).map_err(|error| {
            let why = format!("certificate {number} is not a valid authority: {error}");
            TlsProblem { flag: "--tls-client-ca", file, why }
        })?;
    }
    Ok(roots)
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Option<RootCertStore>,
) -> Result<Tls, (&'static str, String)> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| ("--tls-cert", error.to_string()))?;
    let builder = match roots {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| ("--tls-client-ca", error.to_string()))?)
        }
    };
    let with_key = builder.with_single_cert(chain, key);
    let config = with_key
        .map_err(|error| ("--tls-cert", format!("the certificate does not match the key of --tls-key: {error}")))?;
    Ok(Tls(Arc::new(config)))
}
