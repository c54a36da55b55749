//! Certificates and key files for one test.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use std::{fs, net::SocketAddr, path::PathBuf};
use tempfile::TempDir;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use weir::config::{Access, Checks, Tls, TlsFiles};

/// Host name of the server.
const HOST: &str = "weir.example";
/// URI in the client's certificate.
pub(crate) const CLIENT: &str = "spiffe://example.org/client";

/// A certificate authority with a signed server certificate and a signed client certificate.
pub(crate) struct Certificates {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap();
        let certificates = Self { folder: TempDir::new().unwrap(), issuer: Issuer::new(params, key) };
        certificates.write("ca.pem", &authority.pem());
        let address = SanType::IpAddress([127, 0, 0, 1].into());
        certificates.issue("server", vec![SanType::DnsName(HOST.try_into().unwrap()), address]);
        certificates.issue("client", vec![SanType::URI(CLIENT.try_into().unwrap())]);
        certificates
    }

    fn issue(&self, name: &str, subjects: Vec<SanType>) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = subjects;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// Writes a text file next to the certificates and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// Returns the path of `ca.pem`, `server.pem`, `server.key`, `client.pem`, `client.key` or a written file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// Returns the server's settings. With `verify_clients`, clients must present a certificate of this authority.
    pub(crate) fn access(&self, verify_clients: bool) -> Access {
        let cert = self.path("server.pem");
        let key = self.path("server.key");
        let ca = self.path("ca.pem");
        let files = TlsFiles { cert: Some(&cert), key: Some(&key), client_ca: verify_clients.then_some(&ca) };
        Access { tls: Some(tls(files).unwrap()), ..Access::default() }
    }

    /// Returns a client that trusts this authority and presents the client certificate of `identity`, if any.
    pub(crate) fn reach(&self, address: SocketAddr, identity: Option<&Self>) -> Endpoint {
        let mut tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(self.read("ca.pem"))).domain_name(HOST);
        if let Some(certificates) = identity {
            tls = tls.identity(Identity::from_pem(certificates.read("client.pem"), certificates.read("client.key")));
        }
        Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap()
    }
}

/// Loads TLS settings from files, or returns all their errors.
pub(crate) fn tls(files: TlsFiles<'_>) -> Result<Tls, String> {
    let mut checks = Checks::default();
    let tls = checks.tls(files);
    checks.finish().map(|()| tls.unwrap()).map_err(|error| error.to_string())
}
