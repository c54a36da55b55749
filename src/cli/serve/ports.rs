//! The server's ports: reserved before models load, opened when they are ready.

use crate::cli::serve::models::MAX_COUNT;
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::net::{TcpListener, TcpSocket};
use weir_kernels::error::{Error, Result};
use weir_server::config::{Access, Checks, CredentialFiles, EditingConfig, Operations, TlsFiles, TransportConfig};

/// Maximum connections that wait for the server to accept them. The operating system may have a lower limit.
const BACKLOG: u32 = 4096;

/// A port that belongs to this process, on which it does not listen yet. The system refuses connections to it, so a client learns
/// at once that the server is not ready. In a backlog it would wait for minutes, and a TCP probe would count the server as ready.
pub(super) struct ReservedPort {
    flag: &'static str,
    address: SocketAddr,
    socket: TcpSocket,
}

impl ReservedPort {
    /// Reserves the address that `flag` gives. Fails if another program uses it. Must run within the runtime.
    pub(super) fn reserve(flag: &'static str, address: SocketAddr) -> Result<Self, PortError> {
        Self::bind(flag, address).map_err(|error| PortError { flag, address, error })
    }

    fn bind(flag: &'static str, address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A restarted server may listen while connections of the earlier process end.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        // Until it listens, no other program may take the port.
        #[cfg(unix)]
        socket.set_reuseaddr(false)?;
        // The system has chosen the port if the address asks for port 0.
        let address = socket.local_addr()?;
        Ok(Self { flag, address, socket })
    }

    /// The address, with the real port.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens. Must run within the runtime.
    pub(super) fn listen(self) -> Result<TcpListener, PortError> {
        let Self { flag, address, socket } = self;
        // The connections of an earlier process would prevent it.
        #[cfg(unix)]
        let socket = socket.set_reuseaddr(true).map(|()| socket);
        #[cfg(not(unix))]
        let socket = Ok(socket);
        let listener = socket.and_then(|socket| socket.listen(BACKLOG));
        listener.map_err(|error| PortError { flag, address, error })
    }
}

/// A port that cannot be opened.
#[derive(Debug)]
pub(super) struct PortError {
    flag: &'static str,
    address: SocketAddr,
    error: io::Error,
}

impl From<PortError> for Error {
    fn from(PortError { flag, address, error }: PortError) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "; another program, perhaps another weir server, uses this port, and port 0 selects a free one"
            }
            _ => "",
        };
        Self::Setting(format!("{flag}: cannot listen on {address}: {error}{hint}"))
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum PortState {
    /// Open at this address.
    Open(SocketAddr),
    /// The settings have addresses, but none for this port.
    Unset,
    /// The settings have no address. The server has API keys or TLS, which this port lacks, so the port has no default address.
    Unprotected,
    /// The server cannot open the port's default address, for this reason.
    Failed(String),
}

/// A port that the server can run without.
pub(super) struct OptionalPort {
    /// True if the settings have no address.
    is_default: bool,
    port: Result<ReservedPort, PortState>,
}

impl OptionalPort {
    /// Reserves an address. Fails as [`ReservedPort::reserve`] does, but if the address is the default one, the port stays closed
    /// instead. Must run within the runtime.
    pub(super) fn reserve(flag: &'static str, address: Option<SocketAddr>, is_default: bool) -> Result<Self> {
        let port = match address {
            None if is_default => Err(PortState::Unprotected),
            None => Err(PortState::Unset),
            Some(address) => match ReservedPort::reserve(flag, address) {
                Ok(port) => Ok(port),
                Err(error) if is_default => Err(error.into()),
                Err(error) => return Err(error.into()),
            },
        };
        Ok(Self { is_default, port })
    }

    /// Listens, if the port is reserved. Fails as [`ReservedPort::listen`] does, unless the address is the default one. Must run
    /// within the runtime.
    pub(super) fn listen(self) -> Result<(PortState, Option<TcpListener>)> {
        let port = match self.port {
            Ok(port) => port,
            Err(state) => return Ok((state, None)),
        };
        let address = port.address;
        match port.listen() {
            Ok(listener) => Ok((PortState::Open(address), Some(listener))),
            Err(error) if self.is_default => Ok((error.into(), None)),
            Err(error) => Err(error.into()),
        }
    }
}

impl From<PortError> for PortState {
    fn from(PortError { address, error, .. }: PortError) -> Self {
        Self::Failed(match error.kind() {
            io::ErrorKind::AddrInUse => format!("another program uses {address}"),
            _ => format!("{address}: {error}"),
        })
    }
}

/// Flags of TLS, API keys, and names of the server.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Access")]
pub(super) struct AccessArgs {
    /// PEM file with the server's certificate and its intermediate certificates; enables TLS. Requires --tls-key.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key, not encrypted.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// PEM file with the authorities that may sign client certificates. Default: clients need no certificate.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_CA")]
    tls_client_ca: Option<PathBuf>,
    /// PEM file with certificate revocation lists, one of each authority that signs client certificates. Requires --tls-client-ca.
    /// Default: no certificate is revoked.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_CRL")]
    tls_client_crl: Option<PathBuf>,
    /// File with API keys, one `name:key` or `name:sha256:DIGEST` per line. Every call except health and reflection must then
    /// send one of them as `authorization: Bearer KEY`.
    #[arg(long, value_name = "FILE", env = "WEIR_API_KEYS")]
    api_keys: Option<PathBuf>,
    /// Host names under which web browsers reach the HTTP port and the admin port, for a server without API keys. Always allowed
    /// are IP addresses, names of one label, and names under .localhost, .local, .internal, .test, .home.arpa and .svc. The flag
    /// can be repeated, or hold several names separated by commas.
    #[arg(long, value_name = "HOST", env = "WEIR_ALLOWED_HOSTS", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
    /// Origins of web pages, such as https://weir.example.com, that may send requests to the HTTP port and the admin port. Always
    /// allowed is the origin of the request's own host. The flag can be repeated, or hold several origins separated by commas.
    #[arg(long, value_name = "ORIGIN", env = "WEIR_ALLOWED_ORIGINS", value_delimiter = ',')]
    allowed_origins: Vec<String>,
    /// Origins of web pages, such as https://app.example.com, that may send requests to the HTTP port and read its responses
    /// (CORS). With * every page that a visitor opens may use the server, so use it with --api-keys only. The flag can be repeated,
    /// or hold several origins separated by commas. Default: none.
    #[arg(long, value_name = "ORIGIN", env = "WEIR_CORS_ORIGIN", value_delimiter = ',')]
    cors_origin: Vec<String>,
}

impl AccessArgs {
    /// Returns the files of certificates and keys.
    pub(super) fn files(&self) -> CredentialFiles {
        let tls = TlsFiles {
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            client_ca: self.tls_client_ca.clone(),
            client_crl: self.tls_client_crl.clone(),
        };
        CredentialFiles { tls, api_keys: self.api_keys.clone() }
    }

    /// Reads and checks the files.
    pub(super) fn access(&self, checks: &mut Checks) -> Access {
        let files = self.files();
        let TlsFiles { cert, key, client_ca, client_crl } = &files.tls;
        let mut needs =
            |flag, missing| checks.reject_with(missing, format!("expected a file because {flag} is set, found none"));
        match (cert, key, client_ca) {
            (Some(_), None, _) => needs("--tls-cert", "--tls-key"),
            (None, Some(_), _) => needs("--tls-key", "--tls-cert"),
            (None, None, Some(_)) => needs("--tls-client-ca", "--tls-cert"),
            _ => {}
        }
        if let (Some(_), None) = (client_crl, client_ca) {
            needs("--tls-client-crl", "--tls-client-ca");
        }
        let credentials = files.read(checks).into();
        let allowed = Arc::new(checks.allowed_names(&self.allowed_hosts, &self.allowed_origins));
        let cors = Arc::new(checks.cors_origins(&self.cors_origin));
        Access { credentials, allowed, cors }
    }
}

/// Files besides open connections: handshakes, listeners, checkpoints, the log.
const OTHER_FILES: usize = 1024;

/// Raises the process's limit of open files to what this number of connections needs, up to the hard limit. Logs a warning if that
/// is not enough: further connections would wait until others close.
#[cfg(unix)]
pub(super) fn raise_for(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = connections.saturating_add(OTHER_FILES) as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` means no limit.
    let Some(current) = current.filter(|current| *current < needed) else { return };
    let raised = maximum.map_or(needed, |maximum| maximum.min(needed));
    let limit = match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }) {
        Ok(()) => raised,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files cannot be raised");
            current
        }
    };
    if limit < needed {
        tracing::warn!(limit, needed, "--max-connections needs a higher limit of open files (ulimit -n)");
    }
}

/// Does nothing: other systems have no such limit.
#[cfg(not(unix))]
pub(super) fn raise_for(_: usize) {}

/// Default address for gRPC.
pub(super) const GRPC: SocketAddr = loopback(50051);

/// Default address for HTTP, if the settings have no address at all.
pub(super) const HTTP: SocketAddr = loopback(8000);

/// Default address of the admin port, if the settings have no address at all.
pub(super) const ADMIN: SocketAddr = loopback(9090);

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

/// Addresses to listen on.
pub(super) struct Listeners {
    pub(super) grpc: SocketAddr,
    pub(super) http: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
    /// True if the settings have no address.
    pub(super) are_default: bool,
}

impl Listeners {
    /// Parses the addresses. Without any, returns the defaults of all ports. The admin port has neither keys nor TLS, so it has no
    /// default address if the server `is_protected` by one of them.
    pub(super) fn parse(
        transport: &TransportArgs,
        operations: &OperationsArgs,
        is_protected: bool,
        checks: &mut Checks,
    ) -> Self {
        if [&transport.listen, &transport.http_listen, &operations.admin_listen].into_iter().all(Option::is_none) {
            let admin = if is_protected { None } else { Some(ADMIN) };
            return Self { grpc: GRPC, http: Some(HTTP), admin, are_default: true };
        }
        let mut parse = |flag, address: &Option<String>| address.as_ref().and_then(|text| checks.address(flag, text));
        let grpc = match &transport.listen {
            Some(_) => parse("--listen", &transport.listen),
            None => Some(GRPC),
        };
        let http = parse("--http-listen", &transport.http_listen);
        let admin = parse("--admin-listen", &operations.admin_listen);
        check_distinct(&[("--listen", grpc), ("--http-listen", http), ("--admin-listen", admin)], checks);
        if ["keyed", "open"].contains(&&*transport.http_metrics) && transport.http_listen.is_none() {
            checks.reject_with("--http-metrics", "expected an HTTP port, found no --http-listen");
        }
        // The default replaces only an invalid address, which the checks have recorded.
        Self { grpc: grpc.unwrap_or(GRPC), http, admin, are_default: false }
    }
}

/// Rejects listeners that share an address, unless the system chooses the port.
fn check_distinct(listeners: &[(&str, Option<SocketAddr>)], checks: &mut Checks) {
    for (index, (flag, address)) in listeners.iter().enumerate() {
        let Some(address) = address.filter(|address| address.port() != 0) else { continue };
        if let Some((other, _)) = listeners[..index].iter().find(|(_, other)| *other == Some(address)) {
            checks.reject(flag, &address.to_string(), format!("an address different from that of {other}"));
        }
    }
}

/// Upper bound of durations in seconds: a day.
const MAX_SECONDS: usize = 86_400;

/// Flags of connections and requests.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Addresses and limits")]
pub(super) struct TransportArgs {
    /// Address to listen on for gRPC. Port 0 selects a free port; an address without a host, such as :50051, means all IPv4
    /// addresses of the machine. Default: 127.0.0.1:50051.
    #[arg(long, value_name = "ADDRESS", env = "WEIR_LISTEN")]
    pub(super) listen: Option<String>,
    /// Address to listen on for HTTP and JSON: completions for OpenAI clients, summaries, compression and a playground, with the
    /// same keys, certificates and limits. Default: 127.0.0.1:8000 if no address is given for any port; otherwise no HTTP.
    #[arg(long, value_name = "ADDRESS", env = "WEIR_HTTP_LISTEN")]
    pub(super) http_listen: Option<String>,
    /// Seconds that running requests may take to finish after shutdown begins.
    #[arg(long, value_name = "N", env = "WEIR_DRAIN_SECONDS", default_value = "30")]
    drain_seconds: String,
    /// Maximum size of a request message.
    #[arg(long, value_name = "SIZE", env = "WEIR_MAX_MESSAGE_BYTES", default_value = "4MiB")]
    max_message_bytes: String,
    /// Memory for request messages that are partly received or not yet tokenized, for the symbols of accepted texts, for documents
    /// that are summarized in parts, and for responses that are not streamed. At least four times --max-message-bytes. A caller may
    /// hold half of what the others leave.
    #[arg(long, value_name = "SIZE", env = "WEIR_MAX_REQUEST_MEMORY", default_value = "384MiB")]
    max_request_memory: String,
    /// Maximum memory of one response over HTTP or ModelInfer that is not streamed.
    #[arg(long, value_name = "SIZE", env = "WEIR_MAX_RESPONSE_BYTES", default_value = "64MiB")]
    max_response_bytes: String,
    /// Threads that parse and tokenize requests of 16 KiB or more. One caller can use at most half of them, rounded up. Default:
    /// the number of cores.
    #[arg(long, value_name = "N", env = "WEIR_TOKENIZATION_WORKERS")]
    tokenization_workers: Option<String>,
    /// Seconds that receiving a request message may take.
    #[arg(long, value_name = "N", env = "WEIR_UPLOAD_SECONDS", default_value = "60")]
    upload_seconds: String,
    /// Maximum size of a request's headers: names, values, and 32 bytes per header.
    #[arg(long, value_name = "SIZE", env = "WEIR_MAX_HEADER_BYTES", default_value = "16KiB")]
    max_header_bytes: String,
    /// Maximum concurrent calls per connection.
    #[arg(long, value_name = "N", env = "WEIR_MAX_CONCURRENT_STREAMS", default_value = "256")]
    max_concurrent_streams: String,
    /// Maximum calls in progress over all connections. A caller may hold half of what the others leave.
    #[arg(long, value_name = "N", env = "WEIR_MAX_CALLS", default_value = "4096")]
    max_calls: String,
    /// Maximum calls per connection that the client cancelled before the server accepted them. One more closes the connection.
    #[arg(long, value_name = "N", env = "WEIR_MAX_PENDING_RESETS", default_value = "20")]
    max_pending_resets: String,
    /// Maximum calls per connection that the server reset for protocol errors. One more closes the connection.
    #[arg(long, value_name = "N", env = "WEIR_MAX_ERROR_RESETS", default_value = "1024")]
    max_error_resets: String,
    /// Maximum connections. One more closes the connection that has been idle longest. If all have calls in progress, the new one
    /// serves health checks only.
    #[arg(long, value_name = "N", env = "WEIR_MAX_CONNECTIONS", default_value = "1024")]
    max_connections: String,
    /// Maximum connections of one IPv4 address or IPv6 /64; at most --max-connections applies.
    #[arg(long, value_name = "N", env = "WEIR_MAX_CONNECTIONS_PER_ADDRESS", default_value = "256")]
    max_connections_per_address: String,
    /// Seconds that a connection may stay open without a call; 0 disables the limit.
    #[arg(long, value_name = "N", env = "WEIR_MAX_CONNECTION_IDLE", default_value = "300")]
    max_connection_idle: String,
    /// Seconds after which a connection is closed, more or less a tenth, so that clients resolve names again; 0 disables the limit.
    #[arg(long, value_name = "N", env = "WEIR_MAX_CONNECTION_AGE", default_value = "0")]
    max_connection_age: String,
    /// Seconds that calls in progress may take after --max-connection-age.
    #[arg(long, value_name = "N", env = "WEIR_MAX_CONNECTION_AGE_GRACE", default_value = "600")]
    max_connection_age_grace: String,
    /// Seconds that a new connection has for the TLS handshake and the HTTP/2 preface.
    #[arg(long, value_name = "N", env = "WEIR_HANDSHAKE_SECONDS", default_value = "10")]
    handshake_seconds: String,
    /// Seconds of silence before the server sends an HTTP/2 ping; 0 disables pings.
    #[arg(long, value_name = "N", env = "WEIR_KEEPALIVE_SECONDS", default_value = "60")]
    keepalive_seconds: String,
    /// Seconds that the client has to answer a ping before the connection is closed.
    #[arg(long, value_name = "N", env = "WEIR_KEEPALIVE_TIMEOUT_SECONDS", default_value = "20")]
    keepalive_timeout_seconds: String,
    /// Seconds of silence before the operating system sends TCP keep-alive probes; 0 disables them.
    #[arg(long, value_name = "N", env = "WEIR_TCP_KEEPALIVE_SECONDS", default_value = "60")]
    tcp_keepalive_seconds: String,
    /// Maximum sessions that edit a document, over all connections. A caller may hold half of what the others leave.
    #[arg(long, value_name = "N", env = "WEIR_MAX_EDIT_SESSIONS", default_value = "256")]
    max_edit_sessions: String,
    /// Maximum size of an edited document. --max-message-bytes limits each message as well.
    #[arg(long, value_name = "SIZE", env = "WEIR_MAX_EDIT_BYTES", default_value = "1MiB")]
    max_edit_bytes: String,
    /// Splices per second that the server reads from one editing session. It reads further ones later.
    #[arg(long, value_name = "N", env = "WEIR_MAX_EDIT_RATE", default_value = "100")]
    max_edit_rate: String,
    /// Seconds without a message or a request in progress after which an editing session is closed.
    #[arg(long, value_name = "N", env = "WEIR_EDIT_IDLE_SECONDS", default_value = "600")]
    edit_idle_seconds: String,
    /// Send a response's headers only with its first characters. A proxy can then retry a request without characters on another
    /// server. An unavailable server also sets the HTTP status.
    #[arg(long, value_name = "BOOL", env = "WEIR_LATE_HEADERS", default_value = "false", num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    late_headers: String,
    /// Serve /metrics, without the histograms, on the HTTP port too, for routers that scrape the port that they send requests to:
    /// `keyed` to clients that may call the server, which send a key if there are keys, and `open` to all clients.
    #[arg(long, value_name = "MODE", env = "WEIR_HTTP_METRICS", default_value = "off", num_args = 0..=1,
        default_missing_value = "keyed")]
    http_metrics: String,
}

impl TransportArgs {
    pub(super) fn limits(&self, access: Access, checks: &mut Checks) -> TransportConfig {
        let streams = checks.number("--max-concurrent-streams", &self.max_concurrent_streams, 1..=MAX_COUNT);
        let headers = checks.bytes("--max-header-bytes", &self.max_header_bytes, 1024..=1 << 20);
        let keepalive = seconds(checks, "--keepalive-seconds", &self.keepalive_seconds, 0);
        let tcp_keepalive = seconds(checks, "--tcp-keepalive-seconds", &self.tcp_keepalive_seconds, 0);
        let idle = seconds(checks, "--max-connection-idle", &self.max_connection_idle, 0);
        let age = seconds(checks, "--max-connection-age", &self.max_connection_age, 0);
        let message_bytes = checks.bytes("--max-message-bytes", &self.max_message_bytes, 1024..=1 << 30);
        // A caller's half holds a compressed message, and what it decompresses to.
        let least = message_bytes.saturating_mul(4);
        let workers = self.tokenization_workers.as_ref();
        let workers = workers.map(|count| checks.number("--tokenization-workers", count, 1..=512));
        TransportConfig {
            drain: seconds(checks, "--drain-seconds", &self.drain_seconds, 0),
            message_bytes,
            request_memory: checks.bytes("--max-request-memory", &self.max_request_memory, least..=1 << 40),
            response_bytes: checks.bytes("--max-response-bytes", &self.max_response_bytes, 1024..=1 << 40),
            tokenization_workers: workers.unwrap_or(TransportConfig::default().tokenization_workers),
            upload: seconds(checks, "--upload-seconds", &self.upload_seconds, 1),
            header_bytes: u32::try_from(headers).unwrap_or(u32::MAX),
            concurrent_streams: u32::try_from(streams).unwrap_or(u32::MAX),
            calls: checks.number("--max-calls", &self.max_calls, 1..=MAX_COUNT),
            pending_resets: checks.number("--max-pending-resets", &self.max_pending_resets, 1..=MAX_COUNT),
            error_resets: checks.number("--max-error-resets", &self.max_error_resets, 1..=MAX_COUNT),
            connections: checks.number("--max-connections", &self.max_connections, 1..=MAX_COUNT),
            connections_per_address: checks.number(
                "--max-connections-per-address",
                &self.max_connections_per_address,
                1..=MAX_COUNT,
            ),
            connection_idle: Some(idle).filter(|idle| !idle.is_zero()),
            connection_age: Some(age).filter(|age| !age.is_zero()),
            connection_age_grace: seconds(checks, "--max-connection-age-grace", &self.max_connection_age_grace, 0),
            handshake: seconds(checks, "--handshake-seconds", &self.handshake_seconds, 1),
            keepalive_interval: Some(keepalive).filter(|interval| !interval.is_zero()),
            keepalive_timeout: seconds(checks, "--keepalive-timeout-seconds", &self.keepalive_timeout_seconds, 1),
            tcp_keepalive: Some(tcp_keepalive).filter(|interval| !interval.is_zero()),
            editing: EditingConfig {
                sessions: checks.number("--max-edit-sessions", &self.max_edit_sessions, 1..=MAX_COUNT),
                text_bytes: checks.bytes("--max-edit-bytes", &self.max_edit_bytes, 1024..=1 << 30),
                splice_rate: checks.number("--max-edit-rate", &self.max_edit_rate, 1..=1_000_000),
                idle: seconds(checks, "--edit-idle-seconds", &self.edit_idle_seconds, 1),
            },
            late_headers: checks.switch("--late-headers", &self.late_headers),
            http_metrics: checks.http_metrics(&self.http_metrics),
            access,
        }
    }
}

fn seconds(checks: &mut Checks, flag: &str, value: &str, min: usize) -> Duration {
    Duration::from_secs(checks.number(flag, value, min..=MAX_SECONDS) as u64)
}

/// Flags of operations.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Operations")]
pub(super) struct OperationsArgs {
    /// Address of the admin port, which serves metrics, health and version over plain HTTP without authentication: prefer a
    /// loopback address. Default: 127.0.0.1:9090 if no address is given for any port, and the server has neither keys nor TLS;
    /// otherwise no admin port.
    #[arg(long, value_name = "ADDRESS", env = "WEIR_ADMIN_LISTEN")]
    admin_listen: Option<String>,
    /// Seconds that one step of a model may take before the server counts as hung and liveness fails.
    #[arg(long, value_name = "N", env = "WEIR_HANG_SECONDS", default_value = "60")]
    hang_seconds: String,
    /// File with the token (16 to 1024 visible ASCII characters) for the service weir.v1.Admin, which loads models from --models
    /// and unloads them. Default: no such service.
    #[arg(long, value_name = "FILE", env = "WEIR_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,
    /// Maximum models in memory, draining ones included, when one is loaded at run time.
    #[arg(long, value_name = "N", env = "WEIR_MAX_MODELS", default_value = "16")]
    max_models: String,
    /// Give the gauges that routers read these servers' names too: vllm. The flag can be repeated, or hold several names separated by
    /// commas. Default: none.
    #[arg(long, value_name = "NAME", env = "WEIR_METRICS_COMPAT", value_delimiter = ',')]
    metrics_compat: Vec<String>,
    /// Label of all metrics, by which a router can select them. The flag can be repeated, or hold several labels separated by commas.
    /// Default: none.
    #[arg(long, value_name = "NAME=VALUE", env = "WEIR_METRICS_LABEL", value_delimiter = ',')]
    metrics_label: Vec<String>,
    /// Symbols in a block of the segment cache, as weir_cache_config_info reports them to routers that compare prompts block by block:
    /// a multiple of 32. Default: 32, a page of the cache.
    #[arg(long, value_name = "N", env = "WEIR_METRICS_BLOCK_SIZE")]
    metrics_block_size: Option<String>,
    /// gRPC endpoint of an OTLP collector, such as http://127.0.0.1:4317, that receives spans of calls. Spans contain no text.
    #[arg(long, value_name = "URL", env = "WEIR_OTLP")]
    otlp: Option<String>,
    /// Sampling ratio, 0 to 1, of traces that begin at this server. The caller decides about traces that it began.
    #[arg(long, value_name = "PART", env = "WEIR_OTLP_PART", default_value = "1")]
    otlp_part: String,
}

impl OperationsArgs {
    /// Parses the settings. `models` is the folder that models can be loaded from at run time, and `cache_bytes` the size of a model's
    /// segment cache.
    pub(super) fn settings(
        &self,
        admin_listen: Option<SocketAddr>,
        models: Option<PathBuf>,
        cache_bytes: usize,
        checks: &mut Checks,
    ) -> Operations {
        let block = self.metrics_block_size.as_deref();
        let hang = checks.number("--hang-seconds", &self.hang_seconds, 1..=86_400) as u64;
        let otlp_part = self.otlp_part.parse().ok().filter(|part| (0.0..=1.0).contains(part));
        if otlp_part.is_none() {
            checks.reject("--otlp-part", &self.otlp_part, "a number from 0 to 1");
        }
        match &self.otlp {
            // The value may have a password, which must not be printed.
            Some(url) if url.contains('@') => {
                checks.reject("--otlp", "…@…", "a URL without a user and a password (weir sends none)");
            }
            Some(url) if !url.starts_with("http://") => {
                checks.reject("--otlp", url, "a URL such as http://127.0.0.1:4317");
            }
            _ => {}
        }
        Operations {
            admin_listen,
            hang: Duration::from_secs(hang),
            admin_token: self.admin_token_file.as_ref().and_then(|file| checks.token("--admin-token-file", file)),
            models,
            max_models: checks.number("--max-models", &self.max_models, 1..=1024),
            otlp: self.otlp.clone(),
            otlp_part: otlp_part.unwrap_or(1.0),
            metrics: checks.metrics(&self.metrics_compat, &self.metrics_label, block, cache_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::serve::ports::{GRPC, OptionalPort, PortState, ReservedPort};
    use std::net::{Ipv4Addr, TcpStream};
    use weir_client::flags::DEFAULT_ADDRESS;

    #[test]
    fn commands_call_the_default_server() {
        assert_eq!(GRPC.to_string(), DEFAULT_ADDRESS);
    }

    #[tokio::test]
    async fn a_reserved_port_refuses_clients_until_it_listens() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let reserved = ReservedPort::reserve("--listen", any).unwrap();
        let address = reserved.address();
        assert_ne!(address.port(), 0);
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(ReservedPort::reserve("--listen", address).is_err(), "two programs reserve one port");
        let listener = reserved.listen().unwrap();
        assert_eq!(listener.local_addr().unwrap(), address);
        TcpStream::connect(address).unwrap();
        let error = ReservedPort::reserve("--http-listen", address).map(|port| port.address()).unwrap_err();
        let error = Error::from(error).to_string();
        assert!(
            error.starts_with(&format!("--http-listen: cannot listen on {address}: "))
                && error.contains("another program"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn only_a_default_address_may_be_taken() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let other = std::net::TcpListener::bind(any).unwrap();
        // two programs can reserve an address, and one of them listens first
        let reserved = ReservedPort::reserve("--http-listen", any).unwrap();
        for taken in [other.local_addr().unwrap(), reserved.address()] {
            assert!(OptionalPort::reserve("--http-listen", Some(taken), false).is_err());
            let (state, listener) =
                OptionalPort::reserve("--http-listen", Some(taken), true).unwrap().listen().unwrap();
            assert!(listener.is_none());
            assert_eq!(state, PortState::Failed(format!("another program uses {taken}")));
        }
        reserved.listen().unwrap();

        let (state, listener) = OptionalPort::reserve("--http-listen", Some(any), true).unwrap().listen().unwrap();
        assert_eq!(state, PortState::Open(listener.unwrap().local_addr().unwrap()));
        for (is_default, expected) in [(true, PortState::Unprotected), (false, PortState::Unset)] {
            let (state, listener) =
                OptionalPort::reserve("--admin-listen", None, is_default).unwrap().listen().unwrap();
            assert!(listener.is_none());
            assert_eq!(state, expected);
        }
    }
}
