//! Explains why a connection to a gRPC server failed, and what the user can do about it.

use crate::{address, tls::ClientTls};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{fmt, io};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, AlertDescription, ClientConfig, SignatureScheme};

/// Advice for a server that serves HTTP/1.
const SERVES_HTTP1: &str = "the port serves HTTP/1, like those of --http-listen and --admin-listen: \
                            give the gRPC address (weir serve --listen)";

/// The error of a failed connection, with its likely cause if the TLS handshake shows it.
#[derive(Debug)]
pub struct FailedConnection {
    reason: String,
    tls_hint: Option<&'static str>,
}

impl FailedConnection {
    /// Describes an error by its root cause.
    pub fn new(error: &(dyn Error + 'static)) -> Self {
        let mut cause = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        Self { reason: cause.to_string(), tls_hint: tls_hint(error) }
    }

    /// Describes an error whose cause is known only as a text.
    pub fn of_text(reason: String) -> Self {
        Self { reason, tls_hint: None }
    }

    /// Returns true if the TLS handshake shows the likely cause.
    pub fn has_hint(&self) -> bool {
        self.tls_hint.is_some()
    }

    /// Connects to `address`, which is `host:port` or a URL, and returns the error with what answers there. `tls` belongs to the failed
    /// connection.
    pub async fn explain(self, address: &str, tls: &ClientTls) -> String {
        use DetectedProtocol::{Closed, Http1, Other, Silent, Tls, UnknownHost, Unreachable};
        if self.tls_hint.is_some() {
            return self.to_string();
        }
        let host = address::host_and_port(address);
        let is_encrypted = address::is_encrypted(address);
        let hint = match (detect_protocol(&host).await, is_encrypted) {
            (UnknownHost, _) => "the host name cannot be resolved: is it correct?",
            (Unreachable, _) => "no server listens there: is `weir serve` running, and is the address correct?",
            (Silent, _) => "a listener there accepts connections but does not answer: is it the server's address?",
            (Http1, false) => SERVES_HTTP1,
            (Http1, true) => {
                "the port answers in HTTP/1: is it a gRPC port, and does it use TLS? If not, leave out https://"
            }
            (Other, true) => "the port does not use TLS: leave out https://",
            (Closed, true) => "the port closes the connection: if it does not use TLS, leave out https://",
            (Closed, false) => {
                "the port closes the connection: is it a gRPC port? If it expects TLS, use https:// and --tls-ca"
            }
            (Tls, false) => "the port expects TLS: use https:// and --tls-ca",
            (Tls, true) => return detect_refusal(&host, tls, &self.reason).await.unwrap_or(self.reason),
            (Other, false) => return self.reason,
        };
        format!("{hint} ({})", self.reason)
    }
}

impl fmt::Display for FailedConnection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tls_hint {
            Some(hint) => write!(out, "{hint} ({})", self.reason),
            None => out.write_str(&self.reason),
        }
    }
}

/// Returns a server's message about a missing or wrong API key with the flags that give one.
pub fn with_key_flags(message: &str, has_key: bool) -> String {
    match has_key {
        true => format!("{message}: check --api-key-file or WEIR_API_KEY"),
        false => format!("{message}: use --api-key-file or WEIR_API_KEY (an empty variable counts as unset)"),
    }
}

/// Maximum time to connect, and to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

const PROBE: &[u8] = b"GET / HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n";

/// A TLS record with a message that is too short, which a TLS server answers with an alert.
const TLS_PROBE: &[u8] = &[22, 3, 1, 0, 4, 1, 0, 0, 0];

/// Bytes of the answer that identify the protocol.
const ANSWER_BYTES: u64 = 12;

/// The beginning of the answer of a server that supports no HTTP/1.
const HTTP2_ONLY: &[u8] = b"HTTP/1.1 505";

/// The protocol of the listener at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DetectedProtocol {
    /// The name service knows no address of the host.
    UnknownHost,
    /// The connection fails: no listener.
    Unreachable,
    /// A listener accepts connections and does not answer.
    Silent,
    /// A listener closes the connection without an answer.
    Closed,
    /// HTTP/1, without TLS.
    Http1,
    /// TLS of any version.
    Tls,
    /// HTTP/2, or an unknown protocol.
    Other,
}

/// Detects what answers at `host`, which is a host name or an address with a port.
async fn detect_protocol(host: &str) -> DetectedProtocol {
    match answer_to(host, PROBE).await {
        Err(protocol) => protocol,
        Ok(answer) if is_tls(&answer) => DetectedProtocol::Tls,
        Ok(answer) if answer.starts_with(HTTP2_ONLY) || !answer.starts_with(b"HTTP/") => DetectedProtocol::Other,
        Ok(_) => match answer_to(host, TLS_PROBE).await {
            Ok(answer) if is_tls(&answer) => DetectedProtocol::Tls,
            _ => DetectedProtocol::Http1,
        },
    }
}

/// Returns true for a record of a handshake or an alert, in TLS of any version.
fn is_tls(answer: &[u8]) -> bool {
    matches!(answer, [21 | 22, 3, ..])
}

/// Connects to `host` and sends a probe. Returns the first bytes of the answer. Fails with what a missing answer shows.
async fn answer_to(host: &str, probe: &[u8]) -> Result<Vec<u8>, DetectedProtocol> {
    // A slow name service shows nothing.
    if let Ok(Err(_)) = timeout(PROBE_TIMEOUT, lookup_host(host)).await {
        return Err(DetectedProtocol::UnknownHost);
    }
    let Ok(Ok(mut stream)) = timeout(PROBE_TIMEOUT, TcpStream::connect(host)).await else {
        return Err(DetectedProtocol::Unreachable);
    };
    let mut answer = Vec::new();
    let read = async {
        stream.write_all(probe).await?;
        (&mut stream).take(ANSWER_BYTES).read_to_end(&mut answer).await
    };
    match timeout(PROBE_TIMEOUT, read).await {
        // A server may answer and then close the connection without reading the request.
        Ok(_) if answer.is_empty() => Err(DetectedProtocol::Closed),
        Err(_) if answer.is_empty() => Err(DetectedProtocol::Silent),
        _ => Ok(answer),
    }
}

/// Advice for a client without a certificate.
const REQUIRED: &str = "the server requires a client certificate: use --tls-client-cert and --tls-client-key";

/// Advice for a client whose certificate is refused.
const REFUSED: &str = "the server does not accept the client certificate of --tls-client-cert: \
                       give one that an authority of the server (weir serve --tls-client-ca) signed";

/// The beginning of an HTTP/2 connection: the client's preface and its empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

/// Returns the advice for an alert of the server about the client's certificate.
fn alert_hint(alert: AlertDescription) -> Option<&'static str> {
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

/// Connects to `host`, which is a host name or an address with a port. Returns the advice if the server asks for a client certificate
/// and then ends the connection with an alert about certificates, or without one; `reason` stands for a missing alert.
async fn detect_refusal(host: &str, tls: &ClientTls, reason: &str) -> Option<String> {
    let identity = Arc::new(Identity { key: tls.identity(), asked: AtomicBool::new(false) });
    let refused = timeout(PROBE_TIMEOUT, shake_hands(host, tls, Arc::clone(&identity))).await.ok()?;
    let error = refused.err().filter(|_| identity.asked.load(Relaxed))?;
    let hint = refusal_hint(&error, identity.key.is_some())?;
    let alert = alert_of(&error).map(|_| error.to_string());
    Some(format!("{hint} ({})", alert.as_deref().unwrap_or(reason)))
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

/// Returns the likely cause if `error`, or an error that caused it, is about the certificate of the server or of the client, or about
/// the protocol that the server serves over TLS.
fn tls_hint(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut next = Some(error);
    while let Some(error) = next {
        match error.downcast_ref() {
            Some(rustls::Error::InvalidCertificate(why)) => return Some(certificate_hint(why)),
            // The client offers HTTP/2 only.
            Some(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)) => return Some(SERVES_HTTP1),
            Some(rustls::Error::AlertReceived(alert)) if alert_hint(*alert).is_some() => return alert_hint(*alert),
            _ => {}
        }
        // An I/O error has the source of the error that it wraps.
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
    use tokio::net::TcpListener;

    /// Answers plain requests with `plain`, and TLS records with `tls`.
    async fn server(plain: &'static [u8], tls: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut received = [0; 64];
                let _ = stream.read(&mut received).await;
                let _ = stream.write_all(if received[0] == 22 { tls } else { plain }).await;
            }
        });
        address
    }

    #[tokio::test]
    async fn unknown_hosts_are_named() {
        let shown = FailedConnection::of_text("broken".into()).explain("no host:1", &ClientTls::default()).await;
        assert_eq!(shown, "the host name cannot be resolved: is it correct? (broken)");
    }

    #[tokio::test]
    async fn ports_are_told_apart() {
        const ALERT: &[u8] = &[21, 3, 3, 0, 2, 2, 50];
        const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        for (plain, tls, without, with) in [
            (ALERT, ALERT, "the port expects TLS", None),
            (BAD_REQUEST, ALERT, "the port expects TLS", None),
            (BAD_REQUEST, BAD_REQUEST, SERVES_HTTP1, Some("the port answers in HTTP/1")),
            (b"HTTP/1.1 505 HTTP Version Not Supported\r\n\r\n", b"", "", Some("the port does not use TLS")),
            (&[0, 0, 18, 4, 0], b"", "", Some("the port does not use TLS")),
        ] {
            let address = server(plain, tls).await;
            let explained = async |address: &str| {
                FailedConnection::of_text("broken".into()).explain(address, &ClientTls::default()).await
            };
            let shown = explained(&address).await;
            assert!(shown.starts_with(without) && shown.contains("broken"), "{shown}");
            let shown = explained(&format!("https://{address}")).await;
            assert!(with.map_or(shown == "broken", |with| shown.starts_with(with)), "{shown}");
        }
    }

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
