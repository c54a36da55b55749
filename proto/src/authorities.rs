//! Detects certificates that cannot sign others.

use tokio_rustls::rustls::{
    crypto::ring,
    pki_types::{CertificateDer, UnixTime},
};
use webpki::{EndEntityCert, Error, KeyUsage, anchor_from_trusted_cert};

/// Returns an error message if no certificate of a file of trusted authorities can sign others. `None` if one can, is self-signed
/// or is malformed, or if there are no certificates.
pub fn no_authority(certificates: &[CertificateDer<'_>]) -> Option<&'static str> {
    let are_others = !certificates.is_empty() && certificates.iter().all(is_signed_by_another);
    are_others.then_some(
        "expected a CA certificate, found one that cannot sign others: give the certificate of the authority that signed it",
    )
}

/// Returns true if another certificate signed this one and this one cannot sign others.
fn is_signed_by_another(certificate: &CertificateDer<'_>) -> bool {
    // With itself as the trust anchor, the certificate of an authority fails with a different error.
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
