//! Connections to a server. Errors name the address and the likely cause.

use crate::{
    error::{Error, Result},
    serve::status::rule_and_field,
};
use std::time::Duration;
use tonic::{
    Code, Status,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};
use tonic_types::StatusExt;
use weir_proto::{
    client_tls::ClientTls,
    failed_connection::{FailedConnection, with_key_flags},
    server_address,
};

/// Maximum time for connecting, and for the response to a health check, a report or the description of a model.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// Detects a server that is gone or silent, during calls that may take any time.
const KEEP_ALIVE: KeepAlive = KeepAlive { interval: Duration::from_secs(20), timeout: Duration::from_secs(10) };

/// HTTP/2 pings of an open connection.
#[derive(Clone, Copy)]
struct KeepAlive {
    /// Time between pings.
    interval: Duration,
    /// Maximum time for the answer to a ping. The connection then ends, and its calls fail.
    timeout: Duration,
}

/// A server's address, and the client's TLS.
#[derive(Debug, Clone, Default)]
pub struct ServerEndpoint {
    /// `host:port`, or a URL; `https://` for TLS.
    pub address: String,
    /// The authorities that may have signed the server's certificate, and the client's own certificate.
    pub tls: ClientTls,
}

impl ServerEndpoint {
    /// Reads an address that the option `field` gives: `host:port`, a URL, or `:port` of this machine. Fails if it is anything else.
    pub fn parse(field: &str, address: &str) -> Result<Self> {
        match server_address::parse(address) {
            Ok(address) => Ok(Self { address, ..Self::default() }),
            Err(why) => Err(Error::Setting(format!("{field}: {why}"))),
        }
    }
}

/// Connects to a server. Fails if the address is invalid or the server is unreachable.
pub(super) async fn connect(server: &ServerEndpoint) -> Result<Channel> {
    connect_with(server, KEEP_ALIVE).await
}

async fn connect_with(server: &ServerEndpoint, keep_alive: KeepAlive) -> Result<Channel> {
    let endpoint = server.tls.endpoint(&server.address).map_err(Error::Setting)?;
    let endpoint = endpoint
        .connect_timeout(TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(keep_alive.interval)
        .keep_alive_timeout(keep_alive.timeout)
        .keep_alive_while_idle(true);
    match endpoint.connect().await {
        Ok(channel) => Ok(channel),
        Err(error) => Err(unreachable(server, FailedConnection::new(&error)).await),
    }
}

/// Returns the header of an API key. Fails if no header can hold it.
pub(super) fn authorization(key: &str) -> Result<MetadataValue<Ascii>> {
    let header = MetadataValue::try_from(format!("Bearer {key}"));
    let mut header =
        header.map_err(|_| Error::bad_option("the API key", "others", "characters that an HTTP header allows"))?;
    header.set_sensitive(true);
    Ok(header)
}

/// Returns the error of a call that failed: the server's answer, or the likely cause if the connection broke.
pub(super) async fn call_failed(server: &ServerEndpoint, status: &Status) -> Error {
    match std::error::Error::source(status) {
        Some(cause) => unreachable(server, FailedConnection::new(cause)).await,
        None => {
            let answer = format!("{:?}: {}", status.code(), status.message());
            Error::Remote { server: server.address.clone(), answer }
        }
    }
}

/// A server, as the calls of an inference service reach it.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) server: ServerEndpoint,
    /// True if the calls carry an API key.
    pub(super) has_key: bool,
}

impl Peer {
    /// Returns the error of a call of an inference service. weir's own messages stand alone; others follow the name of their code.
    /// If the connection broke, the error names the likely cause.
    pub(super) async fn call_error(&self, status: &Status) -> Error {
        if let Some(cause) = std::error::Error::source(status) {
            return unreachable(&self.server, FailedConnection::new(cause)).await;
        }
        let message = status.message();
        let is_sentence = matches!(
            status.code(),
            Code::InvalidArgument
                | Code::NotFound
                | Code::FailedPrecondition
                | Code::ResourceExhausted
                | Code::OutOfRange
                | Code::PermissionDenied
                | Code::DeadlineExceeded
        );
        let answer = match status.code() {
            Code::Unauthenticated => with_key_flags(message, self.has_key),
            _ if is_sentence && !message.is_empty() => return self.refused(status),
            code => format!("{code:?}: {message}"),
        };
        Error::Remote { server: self.server.address.clone(), answer }
    }

    /// Returns the error of a refused call. The field apart, so that a command can name its own.
    fn refused(&self, status: &Status) -> Error {
        let server = self.server.address.clone();
        let details = status.get_error_details();
        let field = rule_and_field(&details).1.map(str::to_owned);
        match field.and_then(|field| Some((status.message().strip_prefix(&field)?.to_owned(), field))) {
            Some((why, field)) => Error::Refused { server, field, why },
            None => Error::Remote { server, answer: status.message().to_owned() },
        }
    }

    /// Returns the error of a response that ended without a part that every complete response has.
    pub(super) fn incomplete(&self, missing: &str) -> Error {
        Error::Remote { server: self.server.address.clone(), answer: format!("the response ended without {missing}") }
    }
}

/// Returns the error of a failed connection, with what answers at the address.
async fn unreachable(server: &ServerEndpoint, failed: FailedConnection) -> Error {
    Error::Remote { server: server.address.clone(), answer: failed.explain(&server.address, &server.tls).await }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

    fn endpoint(address: &str) -> ServerEndpoint {
        ServerEndpoint { address: address.into(), ..Default::default() }
    }

    #[tokio::test]
    async fn messages_of_the_server_stand_alone() {
        let peer = |has_key| Peer { server: endpoint("h:1"), has_key };
        let shown = async |status: Status| peer(false).call_error(&status).await.to_string();
        assert_eq!(shown(Status::invalid_argument("prompt: too long")).await, "h:1: prompt: too long");
        assert_eq!(shown(Status::unavailable("draining")).await, "h:1: Unavailable: draining");
        assert_eq!(shown(Status::not_found("")).await, "h:1: NotFound: ");
        let message = shown(Status::unauthenticated("unauthenticated: no key")).await;
        let remedy = "use --api-key-file or WEIR_API_KEY (an empty variable counts as unset)";
        assert_eq!(message, format!("h:1: unauthenticated: no key: {remedy}"));
        let message = peer(true).call_error(&Status::unauthenticated("unauthenticated: unknown key")).await.to_string();
        assert_eq!(message, "h:1: unauthenticated: unknown key: check --api-key-file or WEIR_API_KEY");
        assert_eq!(peer(true).incomplete("an end").to_string(), "h:1: the response ended without an end");
    }

    /// The system accepts connections to a listener before its process does.
    #[tokio::test]
    async fn a_silent_server_ends_a_call() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = endpoint(&silent.local_addr().unwrap().to_string());
        let short = Duration::from_millis(50);
        let channel = connect_with(&server, KeepAlive { interval: short, timeout: short }).await.unwrap();
        let call = HealthClient::new(channel).check(HealthCheckRequest::default()).await;
        let error = Peer { server, has_key: false }.call_error(&call.unwrap_err()).await.to_string();
        assert!(error.contains("a listener there accepts connections but does not answer"), "{error}");
    }
}
