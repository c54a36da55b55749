//! Detects a server that refuses a client for its certificate.
//!
//! In TLS 1.3 the server checks the client's certificate after the client has completed its handshake. The connection then ends at
//! the first request, and whether the request's error still has the server's alert depends on timing. A second connection waits for
//! the alert.

use super::probe::PROBE_TIMEOUT;
use crate::client_tls::ClientTls;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, AlertDescription, ClientConfig, SignatureScheme, client::ResolvesClientCert, crypto::ring,
        pki_types::ServerName, sign::CertifiedKey,
    },
};

/// Advice for a client without a certificate.
const REQUIRED: &str = "the server requires a client certificate: use --tls-client-cert and --tls-client-key";
/// Advice for a client whose certificate is refused.
const REFUSED: &str = "the server does not accept the client certificate of --tls-client-cert: \
                       give one that an authority of the server (weir serve --tls-client-ca) signed";
/// The beginning of an HTTP/2 connection: the client's preface and its empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

/// Returns the advice for an alert of the server about the client's certificate.
pub(super) fn alert_hint(alert: AlertDescription) -> Option<&'static str> {
    use AlertDescription::{
        BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked, CertificateUnknown, UnknownCA,
        UnsupportedCertificate,
    };
    match alert {
        CertificateRequired => Some(REQUIRED),
        BadCertificate
        | CertificateExpired
        | CertificateRevoked
        | CertificateUnknown
        | UnknownCA
        | UnsupportedCertificate => Some(REFUSED),
        _ => None,
    }
}

/// The advice for a client whose certificate is missing or refused, and the server's alert, if there was one.
pub(super) struct RefusedClient {
    pub(super) hint: &'static str,
    pub(super) alert: Option<String>,
}

/// Connects to `host`, which is a host name or an address with a port. Returns the advice if the server asks for a client certificate
/// and then ends the connection with an alert about certificates, or without one.
pub(super) async fn detect_refusal(host: &str, tls: &ClientTls) -> Option<RefusedClient> {
    let identity = Arc::new(Identity { key: tls.identity(), asked: AtomicBool::new(false) });
    let refused = timeout(PROBE_TIMEOUT, shake_hands(host, tls, Arc::clone(&identity))).await.ok()?;
    let error = refused.err().filter(|_| identity.asked.load(Relaxed))?;
    let hint = refusal_hint(&error, identity.key.is_some())?;
    Some(RefusedClient { hint, alert: alert_of(&error).map(|_| error.to_string()) })
}

fn alert_of(error: &io::Error) -> Option<AlertDescription> {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(rustls::Error::AlertReceived(alert)) => Some(*alert),
        _ => None,
    }
}

/// Returns the advice for the error of a connection on which the server asked for a certificate. `None` if the error has another
/// cause.
fn refusal_hint(error: &io::Error, has_certificate: bool) -> Option<&'static str> {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let by_asking = if has_certificate { REFUSED } else { REQUIRED };
    match alert_of(error) {
        // Servers also send these alerts: the last one for a certificate that was signed with a key other than the authority's.
        Some(AlertDescription::HandshakeFailure | AlertDescription::AccessDenied | AlertDescription::DecryptError) => {
            Some(by_asking)
        }
        Some(alert) => alert_hint(alert),
        None => matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
            .then_some(by_asking),
    }
}

/// Begins an HTTP/2 connection over TLS. Fails unless the server answers.
async fn shake_hands(host: &str, tls: &ClientTls, identity: Arc<Identity>) -> io::Result<()> {
    let provider = Arc::new(ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = versions.map_err(io::Error::other)?.with_root_certificates(tls.roots());
    let mut config = builder.with_client_cert_resolver(identity);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (name, _) = host.rsplit_once(':').unwrap_or((host, ""));
    let name = ServerName::try_from(name.trim_matches(['[', ']']).to_owned()).map_err(io::Error::other)?;
    let stream = TcpStream::connect(host).await?;
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    // The server's alert can be read even if it has closed the connection.
    let written = stream.write_all(PREFACE).await;
    stream.read_u8().await?;
    written
}

/// The client's certificate, and whether the server asked for it.
#[derive(Debug)]
struct Identity {
    key: Option<Arc<CertifiedKey>>,
    asked: AtomicBool,
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.asked.store(true, Relaxed);
        self.key.clone()
    }

    fn has_certs(&self) -> bool {
        self.key.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_closed_connections_and_certificate_alerts_are_refusals() {
        let alert = |alert| io::Error::new(io::ErrorKind::InvalidData, rustls::Error::AlertReceived(alert));
        for (error, without, with) in [
            (alert(AlertDescription::CertificateRequired), Some(REQUIRED), Some(REQUIRED)),
            (alert(AlertDescription::UnknownCA), Some(REFUSED), Some(REFUSED)),
            (alert(AlertDescription::HandshakeFailure), Some(REQUIRED), Some(REFUSED)),
            (alert(AlertDescription::DecryptError), Some(REQUIRED), Some(REFUSED)),
            (alert(AlertDescription::InternalError), None, None),
            (io::ErrorKind::UnexpectedEof.into(), Some(REQUIRED), Some(REFUSED)),
            (io::ErrorKind::ConnectionReset.into(), Some(REQUIRED), Some(REFUSED)),
            (io::ErrorKind::NetworkUnreachable.into(), None, None),
            (io::Error::other(rustls::Error::HandshakeNotComplete), None, None),
        ] {
            assert_eq!((refusal_hint(&error, false), refusal_hint(&error, true)), (without, with), "{error}");
        }
    }
}
