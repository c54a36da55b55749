//! The likely cause of a failed TLS handshake, and what to do.

use super::{SERVES_HTTP1, client_certificate::alert_hint};
use std::{error::Error, io};
use tokio_rustls::rustls::{self, AlertDescription};

/// Returns the likely cause if `error`, or an error that caused it, is about the certificate of the server or of the client, or about
/// the protocol that the server serves over TLS.
pub(super) fn tls_hint(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut next = Some(error);
    while let Some(error) = next {
        match error.downcast_ref() {
            Some(rustls::Error::InvalidCertificate(why)) => return Some(certificate_hint(why)),
            // The client offers HTTP/2 only.
            Some(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)) => return Some(SERVES_HTTP1),
            Some(rustls::Error::AlertReceived(alert)) if alert_hint(*alert).is_some() => return alert_hint(*alert),
            _ => {}
        }
        // An I/O error's source is that of the error that it wraps.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = wrapped.map(|wrapped| wrapped as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}

fn certificate_hint(error: &rustls::CertificateError) -> &'static str {
    use rustls::CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet,
        NotValidYetContext, Other, UnknownIssuer,
    };
    match error {
        // A bad signature: another authority of the same name signed it.
        UnknownIssuer | BadSignature => {
            "no authority in the file of --tls-ca signed the server's certificate: give the certificate of the authority that did"
        }
        NotValidForName | NotValidForNameContext { .. } => {
            "the server's certificate does not list this host: use a name or an address that it lists"
        }
        Expired | ExpiredContext { .. } => "the server's certificate has expired: the server needs a new one",
        NotValidYet | NotValidYetContext { .. } => {
            "the server's certificate is not valid yet: are the clocks of both machines correct?"
        }
        Other(error) if error.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity) => {
            "the server's certificate is an authority's, which can only sign others: use it to sign one for the server"
        }
        _ => "the server's certificate is not accepted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::CertificateError;

    #[test]
    fn wrapped_errors_are_found() {
        let wrapped = |error: rustls::Error| io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error));
        let shown = |error: CertificateError| tls_hint(&wrapped(error.into()));
        assert!(shown(CertificateError::UnknownIssuer).unwrap().contains("--tls-ca"));
        assert!(shown(CertificateError::NotValidForName).unwrap().contains("does not list this host"));
        assert!(shown(CertificateError::BadEncoding).unwrap().ends_with("is not accepted"));
        let alert = |alert| tls_hint(&wrapped(rustls::Error::AlertReceived(alert)));
        assert_eq!(alert(AlertDescription::NoApplicationProtocol), Some(SERVES_HTTP1));
        assert_eq!(alert(AlertDescription::HandshakeFailure), None);
        assert!(alert(AlertDescription::CertificateRequired).unwrap().contains("requires a client certificate"));
        assert!(alert(AlertDescription::UnknownCA).unwrap().contains("--tls-client-cert"));
        assert_eq!(tls_hint(&wrapped(rustls::Error::HandshakeNotComplete)), None);
        assert_eq!(tls_hint(&io::Error::other("refused")), None);
    }
}
