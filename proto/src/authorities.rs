//! Detects certificates that cannot sign others.

use tokio_rustls::rustls::{
    crypto::ring,
    pki_types::{CertificateDer, UnixTime},
};
use webpki::{EndEntityCert, Error, KeyUsage, anchor_from_trusted_cert};

/// Returns the message about a file of trusted authorities without one; `None` if a certificate in it is an authority's, or is
/// malformed. A certificate that signed itself counts as its own authority.
pub fn no_authority(certificates: &[CertificateDer<'_>]) -> Option<&'static str> {
    let are_others = !certificates.is_empty() && certificates.iter().all(is_signed_by_another);
    are_others.then_some(
        "expected the certificate of an authority, found one that cannot sign others: give the certificate of the authority that \
         signed it",
    )
}

/// Returns true for a certificate that is no authority's and that another one signed.
fn is_signed_by_another(certificate: &CertificateDer<'_>) -> bool {
    // Verification with the certificate itself as the authority fails with another error for the certificate of an authority.
    [KeyUsage::server_auth(), KeyUsage::client_auth()].into_iter().any(|usage| {
        let mut verified = verify_alone(certificate, UnixTime::now(), usage);
        if let Err(Error::CertExpired { not_after: time, .. } | Error::CertNotValidYet { not_before: time, .. }) =
            verified
        {
            verified = verify_alone(certificate, time, usage);
        }
        matches!(verified, Err(Error::UnknownIssuer | Error::InvalidSignatureForPublicKey))
    })
}

/// Verifies a certificate with itself as the only authority.
fn verify_alone(certificate: &CertificateDer<'_>, time: UnixTime, usage: KeyUsage) -> Result<(), Error> {
    let anchor = anchor_from_trusted_cert(certificate)?;
    let algorithms = ring::default_provider().signature_verification_algorithms.all;
    EndEntityCert::try_from(certificate)?
        .verify_for_usage(algorithms, &[anchor], &[], time, usage, None, None)
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, Certificate, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
    };

    fn has_none(certificates: &[&Certificate]) -> bool {
        no_authority(&certificates.iter().map(|certificate| certificate.der().clone()).collect::<Vec<_>>()).is_some()
    }

    #[test]
    fn signed_certificates_are_no_authorities() {
        let key = KeyPair::generate().unwrap();
        let mut authority_params = CertificateParams::default();
        authority_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = authority_params.self_signed(&key).unwrap();
        let issuer = Issuer::new(authority_params.clone(), key);
        let signed = |params: CertificateParams| params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
        let mut client = CertificateParams::default();
        client.is_ca = IsCa::ExplicitNoCa;
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let mut expired = CertificateParams::default();
        expired.not_before = date_time_ymd(2001, 1, 1);
        expired.not_after = date_time_ymd(2002, 1, 1);
        let plain = signed(CertificateParams::default());
        for certificate in [&plain, &signed(client), &signed(expired)] {
            assert!(has_none(&[certificate]));
        }
        let intermediate = signed(authority_params);
        let alone = CertificateParams::default().self_signed(&KeyPair::generate().unwrap()).unwrap();
        for certificate in [&authority, &intermediate, &alone] {
            assert!(!has_none(&[certificate]));
        }
        assert!(!has_none(&[&plain, &authority]));
        assert!(!has_none(&[]));
    }
}
