//! TLS of a client: the authorities that it trusts, its own certificate, and the checks of such files, which the server's settings share.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, RootCertStore};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// TLS of a client. The default trusts no authority, so it suits only addresses without `https://`.
#[derive(Clone, Default)]
pub struct ClientTls {
    /// PEM.
    authorities: Option<Vec<u8>>,
    identity: Option<ClientIdentity>,
}

/// The client's certificate with its chain and its private key.
#[derive(Clone)]
struct ClientIdentity {
    /// PEM.
    chain: Vec<u8>,
    /// PEM.
    key: Vec<u8>,
    parsed: Arc<CertifiedKey>,
}

/// Prints no contents: the key is secret.
impl fmt::Debug for ClientTls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ClientTls")
    }
}

impl ClientTls {
    /// Reads and checks the PEM files of the authorities that may have signed the server's certificate, `--tls-ca`, of the client's
    /// certificate with its chain, `--tls-client-cert`, and of its private key, `--tls-client-key`. A certificate counts only together
    /// with its key.
    ///
    /// # Errors
    /// A file cannot be read or has something else, or the key belongs to another certificate. The message begins with the flag.
    pub fn read(authorities: Option<&Path>, certificate: Option<&Path>, key: Option<&Path>) -> Result<Self, String> {
        let authorities = authorities.map(|file| read_certificates("--tls-ca", file)).transpose()?;
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(ClientIdentity::read(certificate, key)?),
            _ => None,
        };
        Ok(Self { authorities, identity })
    }

    /// Returns the settings of the TLS library; `None` without authorities.
    pub(crate) fn config(&self) -> Option<ClientTlsConfig> {
        let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(self.authorities.as_ref()?));
        match &self.identity {
            Some(ClientIdentity { chain, key, .. }) => Some(config.identity(Identity::from_pem(chain, key))),
            None => Some(config),
        }
    }

    /// Returns the trusted authorities; none if a certificate cannot be read.
    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        let pem = self.authorities.as_deref().unwrap_or_default();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten());
        roots
    }

    /// Returns the client's certificate and key.
    pub(crate) fn identity(&self) -> Option<Arc<CertifiedKey>> {
        self.identity.as_ref().map(|identity| Arc::clone(&identity.parsed))
    }
}

impl ClientIdentity {
    fn read(certificate_file: &Path, key_file: &Path) -> Result<Self, String> {
        let certificate_flag = "--tls-client-cert";
        let key_flag = "--tls-client-key";
        let chain = read_certificates(certificate_flag, certificate_file)?;
        let key = read_flag(key_flag, key_file)?;
        let shown_key = key_file.display();
        if let Some(found) = no_private_key(&key) {
            let expected = "PEM with a private key (PKCS #8, PKCS #1 or SEC 1, not encrypted)";
            return Err(format!("{key_flag}: {shown_key}: expected {expected}, found {found}"));
        }
        let damaged = |flag, file: &Path, what, error: &dyn fmt::Display| {
            format!("{flag}: {}: expected {what}, found one that cannot be read ({error})", file.display())
        };
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
        let certificates =
            certificates.map_err(|error| damaged(certificate_flag, certificate_file, "a certificate", &error))?;
        let wrong_key = |error: &dyn fmt::Display| damaged(key_flag, key_file, "a private key", error);
        let parsed_key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| wrong_key(&error))?;
        let provider = ring::default_provider();
        let signer = provider.key_provider.load_private_key(parsed_key).map_err(|error| wrong_key(&error))?;
        let parsed = CertifiedKey::new(certificates, signer);
        match parsed.keys_match() {
            Ok(()) => {}
            Err(rustls::Error::InconsistentKeys(_)) => {
                return Err(format!("{key_flag}: {shown_key}: {}", other_key(certificate_flag, certificate_file)));
            }
            Err(error) => return Err(damaged(certificate_flag, certificate_file, "a certificate", &error)),
        }
        Ok(Self { chain, key, parsed: Arc::new(parsed) })
    }
}

/// Returns the message about a private key that belongs to another certificate than that in `file`, which `flag` names.
pub fn other_key(flag: &str, file: &Path) -> String {
    let file = file.display();
    format!("expected the private key of the certificate in {file} ({flag}), found that of another certificate")
}

fn read_flag(flag: &str, file: &Path) -> Result<Vec<u8>, String> {
    read_limited(file, FILE_BYTES).map_err(|why| format!("{flag}: {why}"))
}

/// Reads a file of certificates. Fails if it has none, so that the TLS library does not take an empty list.
fn read_certificates(flag: &str, file: &Path) -> Result<Vec<u8>, String> {
    let pem = read_flag(flag, file)?;
    match no_certificate(&pem) {
        None => Ok(pem),
        Some(found) => Err(format!("{flag}: {}: expected PEM with a certificate, found {found}", file.display())),
    }
}

/// Describes what a file has in place of certificates in PEM; `None` if it has one.
pub fn no_certificate(pem: &[u8]) -> Option<&'static str> {
    match () {
        () if has(pem, CERTIFICATE) => None,
        () if has(pem, PRIVATE_KEY) => Some("a private key"),
        () => Some("none"),
    }
}

/// Describes what a file has in place of a private key in PEM that is not encrypted; `None` if it has one.
pub fn no_private_key(pem: &[u8]) -> Option<&'static str> {
    let is_encrypted = ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "4,ENCRYPTED"].into_iter().any(|mark| has(pem, mark));
    match () {
        () if is_encrypted => Some("an encrypted one"),
        () if has(pem, PRIVATE_KEY) => None,
        () if has(pem, CERTIFICATE) => Some("a certificate"),
        () => Some("none"),
    }
}

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
const PRIVATE_KEY: &str = "PRIVATE KEY-----";

fn has(pem: &[u8], part: &str) -> bool {
    pem.windows(part.len()).any(|window| window == part.as_bytes())
}

/// Maximum bytes of a file of settings, keys or certificates.
pub const FILE_BYTES: u64 = 1 << 20;

/// Reads the file at `path`, which may be a pipe, of at most `limit` bytes.
///
/// # Errors
/// The file cannot be read or is larger. The message names it.
pub fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    read_open(file, path, limit)
}

/// Reads an open file of at most `limit` bytes. `path` is its name in messages.
///
/// # Errors
/// The file cannot be read or is larger. The message names it.
pub fn read_open(file: File, path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let too_large = || Err(format!("{}: expected at most {limit} bytes, found more", path.display()));
    let size = file.metadata().map_err(|error| unreadable(path, &error))?.len();
    if size > limit {
        return too_large();
    }
    // A pipe has no size, and a file may have grown.
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    if bytes.len() as u64 > limit { too_large() } else { Ok(bytes) }
}

/// Returns the message about a file that cannot be read.
pub fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use std::fs;
    use tempfile::TempDir;

    #[test]
    fn debug_output_has_no_key() {
        let folder = TempDir::new().unwrap();
        let [certificate_file, key_file] = ["one.pem", "one.key"].map(|name| folder.path().join(name));
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap();
        fs::write(&certificate_file, certificate.pem()).unwrap();
        fs::write(&key_file, key.serialize_pem()).unwrap();
        let tls = ClientTls::read(None, Some(&certificate_file), Some(&key_file)).unwrap();
        assert!(tls.identity().is_some() && !format!("{tls:?}").contains("PRIVATE"));
    }
}
