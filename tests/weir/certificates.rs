//! Certificates for one test, and the files that they are in.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use std::{fs, net::SocketAddr, path::PathBuf};
use tempfile::TempDir;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use weir::config::{Access, Checks, Tls, TlsFiles};

/// What clients call the server.
const HOST: &str = "weir.example";
/// What the client's certificate calls it.
pub(crate) const CLIENT: &str = "spiffe://example.org/client";

/// An authority, and what it has signed: a server's certificate and a client's.
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
        let papers = Self { folder: TempDir::new().unwrap(), issuer: Issuer::new(params, key) };
        papers.write("ca.pem", &authority.pem());
        let own = SanType::IpAddress([127, 0, 0, 1].into());
        papers.issue("server", vec![SanType::DnsName(HOST.try_into().unwrap()), own]);
        papers.issue("client", vec![SanType::URI(CLIENT.try_into().unwrap())]);
        papers
    }

    fn issue(&self, name: &str, called: Vec<SanType>) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = called;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// A file with this text, beside those of the certificates.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// Where `ca.pem`, `server.pem`, `server.key`, `client.pem` and `client.key` are.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// The server's side; `clients` whether clients must show a certificate of this authority.
    pub(crate) fn access(&self, clients: bool) -> Access {
        let (cert, key, ca) = (self.path("server.pem"), self.path("server.key"), self.path("ca.pem"));
        Access {
            tls: Some(tls(TlsFiles { cert: Some(&cert), key: Some(&key), client_ca: clients.then_some(&ca) }).unwrap()),
            keys: None,
        }
    }

    /// A client that trusts this authority and shows the certificate of `shown`, if any.
    pub(crate) fn reach(&self, address: SocketAddr, shown: Option<&Self>) -> Endpoint {
        let mut tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(self.read("ca.pem"))).domain_name(HOST);
        if let Some(papers) = shown {
            tls = tls.identity(Identity::from_pem(papers.read("client.pem"), papers.read("client.key")));
        }
        Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap()
    }
}

/// TLS of these files, or all that is wrong with them.
pub(crate) fn tls(files: TlsFiles<'_>) -> Result<Tls, String> {
    let mut checks = Checks::default();
    let tls = checks.tls(files);
    checks.finish().map(|()| tls.unwrap()).map_err(|error| error.to_string())
}
