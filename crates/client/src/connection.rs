//! Connections to a server, and the errors of their calls, which name the address and the likely cause.

use crate::{
    address,
    failed_connection::{FailedConnection, with_key_flags},
    status,
    tls::ClientTls,
};
use std::{fmt, time::Duration};
use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt;
use weir_kernels::error::{Error, Result};

/// Maximum time for connecting, and for the response to a health check, a report or the description of a model.
pub const TIMEOUT: Duration = Duration::from_secs(5);

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

impl KeepAlive {
    fn set(self, endpoint: Endpoint) -> Endpoint {
        endpoint.http2_keep_alive_interval(self.interval).keep_alive_timeout(self.timeout).keep_alive_while_idle(true)
    }
}

/// A server's address, the client's TLS, and the key that the calls carry.
#[derive(Clone, Default)]
pub struct ServerEndpoint {
    /// `host:port`, or a URL; `https://` for TLS.
    pub address: String,
    /// The authorities that may have signed the server's certificate, and the client's own certificate.
    pub tls: ClientTls,
    /// API key, or the admin token for calls of the admin service.
    pub key: Option<String>,
}

/// Prints no key.
impl fmt::Debug for ServerEndpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ServerEndpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Why no connection was opened.
#[derive(Debug)]
pub enum ConnectError {
    /// The address, the key or TLS is invalid.
    Setting(Error),
    /// The server cannot be reached. Another attempt may succeed.
    Failed(FailedConnection),
}

impl ServerEndpoint {
    /// Connects, and keeps the connection alive. Fails if the address or the key is invalid, or the server is unreachable.
    pub async fn connect(&self) -> Result<Client> {
        match self.connect_with(|endpoint| KEEP_ALIVE.set(endpoint.tcp_nodelay(true))).await {
            Ok(client) => Ok(client),
            Err(error) => Err(self.explain(error).await),
        }
    }

    /// Returns the error of a connection that was not opened, with what answers at the address.
    pub async fn explain(&self, error: ConnectError) -> Error {
        match error {
            ConnectError::Setting(error) => error,
            ConnectError::Failed(failed) => self.unreachable(failed).await,
        }
    }

    /// Opens one connection, with the settings that `configure` adds, and does not examine what answers at the address if that fails.
    pub async fn connect_with(&self, configure: impl FnOnce(Endpoint) -> Endpoint) -> Result<Client, ConnectError> {
        let endpoint = self.prepare().map_err(|why| ConnectError::Setting(Error::Setting(why)))?;
        let endpoint = configure(endpoint.connect_timeout(TIMEOUT));
        let authorization = self.key.as_deref().map(authorization).transpose().map_err(ConnectError::Setting)?;
        match endpoint.connect().await {
            Ok(channel) => Ok(Client { server: self.clone(), channel, authorization }),
            Err(error) => Err(ConnectError::Failed(FailedConnection::new(&error))),
        }
    }

    /// Prepares a connection. Fails if TLS protects the address and no authority is known, or if the TLS library refuses a file.
    fn prepare(&self) -> Result<Endpoint, String> {
        let failed = |error| format!("{}: {}", self.address, FailedConnection::new(&error));
        let endpoint = Endpoint::from_shared(address::url(&self.address)).map_err(failed)?;
        if !address::is_encrypted(&self.address) {
            return Ok(endpoint);
        }
        let Some(tls) = self.tls.config() else {
            let expected = "a file with the server's CA certificate, because the address begins with https://";
            return Err(format!("--tls-ca: expected {expected}, found none"));
        };
        endpoint.tls_config(tls).map_err(failed)
    }

    /// Returns the error of a failed connection, with what answers at the address.
    async fn unreachable(&self, failed: FailedConnection) -> Error {
        self.remote(failed.explain(&self.address, &self.tls).await)
    }

    fn remote(&self, answer: String) -> Error {
        Error::Remote { server: self.address.clone(), answer }
    }
}

/// Returns the header of a key. Fails if no header can hold it.
fn authorization(key: &str) -> Result<MetadataValue<Ascii>> {
    let header = MetadataValue::try_from(format!("Bearer {key}"));
    let mut header =
        header.map_err(|_| Error::bad_option("the API key", "others", "characters that an HTTP header allows"))?;
    header.set_sensitive(true);
    Ok(header)
}

/// A connection to a server, with the key that its calls carry. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    server: ServerEndpoint,
    channel: Channel,
    authorization: Option<MetadataValue<Ascii>>,
}

impl Client {
    /// Wraps an open channel whose calls carry no key. Messages call the server `address`.
    pub fn of_channel(channel: Channel, address: &str) -> Self {
        let server = ServerEndpoint { address: address.to_owned(), ..ServerEndpoint::default() };
        Self { server, channel, authorization: None }
    }

    /// Returns the server's address.
    pub fn address(&self) -> &str {
        &self.server.address
    }

    /// Returns true if the calls carry a key.
    pub fn has_key(&self) -> bool {
        self.authorization.is_some()
    }

    /// Returns the channel for gRPC clients.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Builds a request with the key.
    pub fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        request
    }

    /// Builds a request with the key and a deadline of `timeout`.
    pub fn request_within<M>(&self, message: M, timeout: Duration) -> Request<M> {
        let mut request = self.request(message);
        request.set_timeout(timeout);
        request
    }

    /// Explains the status of a call of an inference service. weir's own messages stand alone; others follow the name of their code.
    /// If the connection broke, the error names the likely cause.
    pub async fn answered<T>(&self, answer: Result<T, Status>) -> Result<T> {
        let status = match answer {
            Ok(answer) => return Ok(answer),
            Err(status) => status,
        };
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
        if std::error::Error::source(&status).is_some() {
            return Err(self.failed(&status).await);
        }
        match status.code() {
            Code::Unauthenticated => Err(self.rejected(with_key_flags(message, self.has_key()))),
            _ if is_sentence && !message.is_empty() => Err(self.refused(&status)),
            _ => Err(self.failed(&status).await),
        }
    }

    /// Returns the error of a refused call. Its names stand apart, so that a command can print its own.
    fn refused(&self, status: &Status) -> Error {
        self.refused_with(status::refusal(&status.get_error_details(), status.message()), status.message())
    }

    /// Returns the error of an answer about `field`, with which it begins.
    pub fn rejected_field(&self, field: Option<&str>, answer: &str) -> Error {
        self.refused_with(field.and_then(|field| status::answer(field, answer)), answer)
    }

    fn refused_with(&self, error: Option<Error>, answer: &str) -> Error {
        match error {
            Some(error) => Error::Refused { server: self.server.address.clone(), error: error.into() },
            None => self.rejected(answer.to_owned()),
        }
    }

    /// Returns the error of a call that failed: the server's code and message, or the likely cause if the connection broke.
    pub(crate) async fn failed(&self, status: &Status) -> Error {
        match std::error::Error::source(status) {
            Some(cause) => self.server.unreachable(FailedConnection::new(cause)).await,
            None => self.rejected(format!("{:?}: {}", status.code(), status.message())),
        }
    }

    /// Returns the error of a call that the server refused with `answer`.
    pub fn rejected(&self, answer: String) -> Error {
        self.server.remote(answer)
    }

    /// Returns the error of a response that ended without a part that every complete response has, for example "an end".
    pub fn incomplete(&self, missing: &str) -> Error {
        self.rejected(format!("the response ended without {missing}"))
    }
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
        let channel = Endpoint::from_static("http://h:1").connect_lazy();
        let mut client = Client::of_channel(channel, "h:1");
        let shown = async |client: &Client, status: Status| {
            client.answered(Err::<(), _>(status)).await.unwrap_err().to_string()
        };
        assert_eq!(shown(&client, Status::invalid_argument("prompt: too long")).await, "h:1: prompt: too long");
        assert_eq!(shown(&client, Status::unavailable("draining")).await, "h:1: Unavailable: draining");
        assert_eq!(shown(&client, Status::not_found("")).await, "h:1: NotFound: ");
        let message = shown(&client, Status::unauthenticated("unauthenticated: no key")).await;
        let remedy = "use --api-key-file or WEIR_API_KEY (an empty variable counts as unset)";
        assert_eq!(message, format!("h:1: unauthenticated: no key: {remedy}"));
        client.authorization = Some(authorization("key").unwrap());
        let message = shown(&client, Status::unauthenticated("unauthenticated: unknown key")).await;
        assert_eq!(message, "h:1: unauthenticated: unknown key: check --api-key-file or WEIR_API_KEY");
        assert_eq!(client.incomplete("an end").to_string(), "h:1: the response ended without an end");
    }

    /// The system accepts connections to a listener before its process does.
    #[tokio::test]
    async fn a_silent_server_ends_a_call() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = endpoint(&silent.local_addr().unwrap().to_string());
        let short = Duration::from_millis(50);
        let keep_alive = KeepAlive { interval: short, timeout: short };
        let client = server.connect_with(|endpoint| keep_alive.set(endpoint)).await.unwrap();
        let call = HealthClient::new(client.channel()).check(HealthCheckRequest::default()).await;
        let error = client.answered(call).await.unwrap_err().to_string();
        assert!(error.contains("a listener there accepts connections but does not answer"), "{error}");
    }

    #[test]
    fn encrypted_addresses_need_an_authority() {
        let error = endpoint("https://h:1").prepare().unwrap_err();
        assert!(error.starts_with("--tls-ca: expected a file"), "{error}");
        endpoint("h:1").prepare().unwrap();
    }

    #[test]
    fn debug_output_has_no_key() {
        let server = ServerEndpoint { key: Some("hidden-key".into()), ..endpoint("h:1") };
        assert!(!format!("{server:?}").contains("hidden-key"));
    }
}
