//! TLS of a client: the authorities that it trusts, and its own certificate.

use crate::{
    authorities::no_authority,
    failed_connection::FailedConnection,
    limited_file::{self, FILE_BYTES},
    pem::{no_certificate, no_private_key},
    server_address,
};
use std::{fmt, path::Path, sync::Arc};
use tokio_rustls::rustls::{
    Error, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// PEM files of a client, and the flags that name them.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClientTlsFiles<'a> {
    /// Authorities that may have signed the server's certificate: `--tls-ca`.
    pub authorities: Option<&'a Path>,
    /// The client's certificate with its chain, for a server that requires one: `--tls-client-cert`.
    pub certificate: Option<&'a Path>,
    /// The private key of that certificate: `--tls-client-key`.
    pub key: Option<&'a Path>,
}

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
    /// Reads and checks the files. A certificate counts only together with its key.
    ///
    /// # Errors
    /// A file cannot be read or has something else, or the key belongs to another certificate. The message begins with the flag.
    pub fn read(files: ClientTlsFiles<'_>) -> Result<Self, String> {
        let authorities = files.authorities.map(read_authorities).transpose()?;
        let identity = match (files.certificate, files.key) {
            (Some(certificate), Some(key)) => Some(ClientIdentity::read(certificate, key)?),
            _ => None,
        };
        Ok(Self { authorities, identity })
    }

    /// Prepares a connection to an address that [`server_address::parse`] returned.
    ///
    /// # Errors
    /// The address is a URL with `https://` and no authority is known, or the TLS library refuses a file.
    pub fn endpoint(&self, address: &str) -> Result<Endpoint, String> {
        let failed = |error| format!("{address}: {}", FailedConnection::new(&error));
        let endpoint = Endpoint::from_shared(server_address::url(address)).map_err(failed)?;
        if !server_address::is_encrypted(address) {
            return Ok(endpoint);
        }
        let Some(authorities) = &self.authorities else {
            let expected = "a file with the server's CA certificate, because the address begins with https://";
            return Err(format!("--tls-ca: expected {expected}, found none"));
        };
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authorities));
        if let Some(ClientIdentity { chain, key, .. }) = &self.identity {
            tls = tls.identity(Identity::from_pem(chain, key));
        }
        endpoint.tls_config(tls).map_err(failed)
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
        let key = read(key_flag, key_file)?;
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
            Err(Error::InconsistentKeys(_)) => {
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

fn read(flag: &str, file: &Path) -> Result<Vec<u8>, String> {
    limited_file::read(file, FILE_BYTES).map_err(|why| format!("{flag}: {why}"))
}

/// Reads a file of certificates. Fails if it has none, so that the TLS library does not take an empty list.
fn read_certificates(flag: &str, file: &Path) -> Result<Vec<u8>, String> {
    let pem = read(flag, file)?;
    match no_certificate(&pem) {
        None => Ok(pem),
        Some(found) => Err(format!("{flag}: {}: expected PEM with a certificate, found {found}", file.display())),
    }
}

/// Reads a file of authorities. Fails if none of its certificates can sign others.
fn read_authorities(file: &Path) -> Result<Vec<u8>, String> {
    let flag = "--tls-ca";
    let pem = read_certificates(flag, file)?;
    // The TLS library reports malformed certificates.
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem).flatten().collect();
    match no_authority(&certificates) {
        None => Ok(pem),
        Some(why) => Err(format!("{flag}: {}: {why}", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use std::fs;
    use tempfile::TempDir;

    /// Writes `NAME.pem` and `NAME.key`.
    fn write_identity(folder: &Path, name: &str) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap();
        fs::write(folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    #[test]
    fn files_are_checked() {
        let folder = TempDir::new().unwrap();
        let folder = folder.path();
        write_identity(folder, "one");
        write_identity(folder, "two");
        fs::write(folder.join("damaged"), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").unwrap();
        let path = |name: &str| folder.join(name);
        let read = |certificate: &str, key: &str| {
            let (certificate, key) = (path(certificate), path(key));
            let files = ClientTlsFiles { authorities: None, certificate: Some(&certificate), key: Some(&key) };
            ClientTls::read(files)
        };
        let tls = read("one.pem", "one.key").unwrap();
        assert!(tls.identity().is_some() && !format!("{tls:?}").contains("PRIVATE"));
        for (certificate, key, expected) in [
            (
                "one.pem",
                "two.key",
                "--tls-client-key: {}two.key: expected the private key of the certificate in {}one.pem \
                 (--tls-client-cert), found that of another certificate",
            ),
            (
                "one.key",
                "one.pem",
                "--tls-client-cert: {}one.key: expected PEM with a certificate, found a private key",
            ),
            (
                "one.pem",
                "two.pem",
                "--tls-client-key: {}two.pem: expected PEM with a private key (PKCS #8, PKCS #1 or SEC 1, not \
                 encrypted), found a certificate",
            ),
            ("one.pem", "none", "--tls-client-key: cannot read {}none: "),
            (
                "one.pem",
                "damaged",
                "--tls-client-key: {}damaged: expected a private key, found one that cannot be read (",
            ),
        ] {
            let error = read(certificate, key).unwrap_err();
            let expected = expected.replace("{}", &format!("{}/", folder.display()));
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn encrypted_addresses_need_an_authority() {
        let tls = ClientTls::default();
        let error = tls.endpoint("https://h:1").unwrap_err();
        assert!(error.starts_with("--tls-ca: expected a file"), "{error}");
        tls.endpoint("h:1").unwrap();
    }
}
