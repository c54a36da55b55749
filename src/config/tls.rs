//! Certificates and keys for TLS, read from PEM files.

use super::{Checks, contents, warn_if_open};
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

/// How connections are encrypted, and which certificates clients must have.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

/// Where the settings of TLS are, by flag.
#[derive(Debug, Clone, Copy)]
pub struct TlsFiles<'a> {
    /// The server's certificate and those between it and the authority that clients know, in this order.
    pub cert: Option<&'a Path>,
    /// The certificate's private key.
    pub key: Option<&'a Path>,
    /// The authorities of the certificates that clients must have; without it clients need none.
    pub client_ca: Option<&'a Path>,
}

impl Tls {
    /// As the TLS library wants it, for connections that speak this protocol (its name in ALPN) and nothing else.
    pub fn config(&self, protocol: &[u8]) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.0);
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    }
}

/// Nothing of it is for the log.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TLS")
    }
}

/// What is wrong: the flag, its file, and why.
type Problem<'a> = (&'static str, &'a Path, String);

impl Checks {
    /// The certificates of these files.
    pub fn tls(&mut self, files: TlsFiles<'_>) -> Option<Tls> {
        // whatever is named is looked at
        let chain = files.cert.map(|file| self.noted(chain("--tls-cert", file)));
        let key = files.key.map(|file| {
            warn_if_open(file);
            self.noted(private_key(file))
        });
        let roots = files.client_ca.map(|file| self.noted(roots(file)));
        let (chain, key, cert) = (chain.flatten()?, key.flatten()?, files.cert?);
        let roots = match roots {
            Some(roots) => Some(roots?),
            None => None,
        };
        self.noted(assembled(chain, key, roots).map_err(|(flag, why)| {
            let file = if flag == "--tls-cert" { cert } else { files.client_ca.unwrap_or(cert) };
            (flag, file, why)
        }))
    }

    fn noted<T>(&mut self, result: Result<T, Problem<'_>>) -> Option<T> {
        result.map_err(|(flag, file, why)| self.wrong(flag, &file.display().to_string(), why)).ok()
    }
}

fn chain<'a>(flag: &'static str, file: &'a Path) -> Result<Vec<CertificateDer<'static>>, Problem<'a>> {
    let wrong = |why| (flag, file, why);
    let bytes = contents(file).map_err(wrong)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates = certificates.map_err(|error| wrong(described(&error)))?;
    match certificates.is_empty() {
        true => Err(wrong("expected PEM with a certificate, found none".into())),
        false => Ok(certificates),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, Problem<'_>> {
    let wrong = |why| ("--tls-key", file, why);
    let bytes = contents(file).map_err(wrong)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            wrong("expected PEM with a private key (PKCS #8, PKCS #1 or SEC 1, not encrypted), found none".into())
        }
        error => wrong(described(&error)),
    })
}

/// What is wrong with the PEM, without a word of what stands in it.
fn described(error: &pem::Error) -> String {
    let what = match error {
        pem::Error::MissingSectionEnd { .. } => "a section without an end",
        pem::Error::IllegalSectionStart { .. } => "a section's first line that is malformed",
        pem::Error::Base64Decode(_) => "a section that is not base64",
        _ => "something that cannot be read",
    };
    format!("expected PEM, found {what}")
}

fn roots(file: &Path) -> Result<RootCertStore, Problem<'_>> {
    let mut roots = RootCertStore::empty();
    for (number, certificate) in (1..).zip(chain("--tls-client-ca", file)?) {
        roots.add(certificate).map_err(|error| {
            let why = format!("certificate {number} cannot be an authority's: {error}");
            ("--tls-client-ca", file, why)
        })?;
    }
    Ok(roots)
}

fn assembled(
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
        .map_err(|error| ("--tls-cert", format!("the certificate does not go with the key of --tls-key: {error}")))?;
    Ok(Tls(Arc::new(config)))
}
