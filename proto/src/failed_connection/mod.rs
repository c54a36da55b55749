//! Explains why a connection to a gRPC server failed, and what the user can do about it, for `weir` and `weir-loadtest`.

mod client_certificate;
mod probe;
mod tls_errors;

use crate::{client_tls::ClientTls, server_address};
use client_certificate::{RefusedClient, detect_refusal};
use probe::{DetectedProtocol, detect_protocol};
use std::{error::Error, fmt};
use tls_errors::tls_hint;

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

    /// Connects to `address`, which is `host:port` or a URL, and returns the error with what answers there. `tls` is that of the failed
    /// connection.
    pub async fn explain(self, address: &str, tls: &ClientTls) -> String {
        use DetectedProtocol::{Closed, Http1, Other, Silent, Tls, UnknownHost, Unreachable};
        if self.tls_hint.is_some() {
            return self.to_string();
        }
        let host = server_address::host_and_port(address);
        let is_encrypted = server_address::is_encrypted(address);
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
            (Tls, true) => match detect_refusal(&host, tls).await {
                Some(RefusedClient { hint, alert }) => return format!("{hint} ({})", alert.unwrap_or(self.reason)),
                None => return self.reason,
            },
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

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
}
