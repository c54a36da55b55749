//! On whose behalf a call runs: its principal, and the tenant that this makes it for the engine.

use super::layers::Call;
use sha2::{Digest, Sha256};
use std::{fmt, net::IpAddr, sync::Arc};
use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// Characters of a certificate's name.
const NAME_BYTES: usize = 128;

/// Who calls, as far as the server can tell. The kinds never meet: a key may be named like an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Principal {
    /// The name of an API key.
    Key(Arc<str>),
    /// What a client's certificate calls it.
    Certificate(Arc<str>),
    /// The address that a connection comes from.
    Address(IpAddr),
    /// Nobody knows.
    Unknown,
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(name) => write!(f, "key:{name}"),
            Self::Certificate(name) => write!(f, "certificate:{name}"),
            Self::Address(IpAddr::V4(address)) => write!(f, "address:{address}"),
            // A site has a whole network of /64, in which its hosts choose their addresses freely.
            Self::Address(IpAddr::V6(address)) => {
                let [a, b, c, d, ..] = address.segments();
                write!(f, "address:{a:x}:{b:x}:{c:x}:{d:x}::/64")
            }
            Self::Unknown => Ok(()),
        }
    }
}

/// Who shares a call's part of the engine.
pub(super) fn tenant_of(call: &Call) -> Arc<str> {
    call.principal.to_string().into()
}

/// What a certificate calls its owner: the first URI among its names (as SPIFFE has it), else the first host name, else the
/// certificate's own SHA-256.
pub(super) fn certificate_name(certificate: &CertificateDer<'_>) -> Arc<str> {
    let parsed = EndEntityCert::try_from(certificate).ok();
    let named = parsed.as_ref().and_then(|parsed| parsed.valid_uri_names().chain(parsed.valid_dns_names()).next());
    match named.filter(|name| name.len() <= NAME_BYTES) {
        Some(name) => name.into(),
        None => {
            let digest = Sha256::digest(certificate);
            let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("sha256:{digits}").into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, SanType};

    fn certificate(names: &[SanType]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.to_vec();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn certificates_are_called_by_their_names() {
        let uri = SanType::URI("spiffe://example.org/app".try_into().unwrap());
        let dns = SanType::DnsName("app.example.org".try_into().unwrap());
        assert_eq!(&*certificate_name(&certificate(&[dns.clone(), uri])), "spiffe://example.org/app");
        assert_eq!(&*certificate_name(&certificate(&[dns])), "app.example.org");
        let nameless = certificate(&[]);
        let name = certificate_name(&nameless);
        assert!(name.starts_with("sha256:") && name.len() == 7 + 64, "{name}");
        assert_eq!(name, certificate_name(&nameless));
        assert_ne!(name, certificate_name(&certificate(&[])));
    }

    #[test]
    fn principals_of_different_kinds_are_different_tenants() {
        let name = || Arc::<str>::from("127.0.0.1");
        let all = [
            Principal::Key(name()),
            Principal::Certificate(name()),
            Principal::Address("127.0.0.1".parse().unwrap()),
            Principal::Unknown,
        ];
        assert_eq!(all.map(|who| who.to_string()), ["key:127.0.0.1", "certificate:127.0.0.1", "address:127.0.0.1", ""]);
        let of = |address: &str| Principal::Address(address.parse().unwrap()).to_string();
        assert_eq!(of("2001:db8:1:2:3::4"), "address:2001:db8:1:2::/64");
        assert_eq!(of("2001:db8:1:2:ffff::1"), of("2001:db8:1:2:3::4"));
    }
}
