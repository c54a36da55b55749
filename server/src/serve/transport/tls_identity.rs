//! The name by which a client certificate identifies its owner.

use sha2::{Digest, Sha256};
use std::sync::Arc;
use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// Maximum length in bytes of a name taken from a certificate.
const NAME_BYTES: usize = 128;

/// Returns the first URI among the certificate's names (as SPIFFE uses it), else the first host name, else the certificate's
/// SHA-256.
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
    fn certificates_are_identified_by_their_names() {
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
}
