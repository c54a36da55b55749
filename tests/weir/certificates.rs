//! Certificates and key files for one test.

use crate::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyIdMethod, KeyPair,
    RevokedCertParams, SanType, date_time_ymd,
};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};
use weir::server::config::{Checks, CredentialFiles, TlsFiles};

/// Host name of the server.
const HOST: &str = "weir.example";
/// URI in the client's certificate.
pub(crate) const CLIENT: &str = "spiffe://example.org/client";

/// Serial number of the client's certificate.
pub(crate) const CLIENT_SERIAL: u64 = 7;

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
        certificates.issue("server", 1, vec![SanType::DnsName(HOST.try_into().unwrap()), address]);
        certificates.issue("client", CLIENT_SERIAL, vec![SanType::URI(CLIENT.try_into().unwrap())]);
        certificates
    }

    fn issue(&self, name: &str, serial: u64, subjects: Vec<SanType>) {
        let mut params = CertificateParams::default();
        params.serial_number = Some(serial.into());
        params.subject_alt_names = subjects;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// Returns a list of the authority, as PEM, that revokes certificates by serial number and is valid until `year`.
    pub(crate) fn revocation_list(&self, serials: &[u64], year: i32) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(year, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
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

    /// Returns such a path as text.
    pub(crate) fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// Returns the server's files. With `verify_clients`, clients must present a certificate of this authority.
    pub(crate) fn files(&self, verify_clients: bool) -> CredentialFiles {
        let path = |name: &str| Some(self.path(name));
        let client_ca = path("ca.pem").filter(|_| verify_clients);
        let tls = TlsFiles { cert: path("server.pem"), key: path("server.key"), client_ca, client_crl: None };
        CredentialFiles { tls, api_keys: None }
    }

    /// Returns the server's settings with these files.
    pub(crate) fn access(&self, verify_clients: bool) -> Access {
        credentials(&self.files(verify_clients)).into()
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

/// Reads valid files.
pub(crate) fn credentials(files: &CredentialFiles) -> Credentials {
    let mut checks = Checks::default();
    let credentials = files.read(&mut checks);
    checks.finish().unwrap();
    credentials
}
