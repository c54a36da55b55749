//! Listening addresses, and limits of connections and requests.

use crate::config::{Access, Checks, EditingConfig, TransportConfig};
use std::time::Duration;

/// Upper bound of counts: no value that fits a machine is rejected.
pub(super) const MAX_COUNT: usize = 1 << 24;
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
    /// Address to listen on for HTTP and JSON: completions for OpenAI clients, summaries and a playground, with the same keys,
    /// certificates and limits. Default: 127.0.0.1:8000 if no address is given for any port; otherwise no HTTP.
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
    #[arg(long, value_name = "SIZE", env = "WEIR_MAX_REQUEST_MEMORY", default_value = "192MiB")]
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
}

impl TransportArgs {
    /// Parses the limits.
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
            access,
        }
    }
}

fn seconds(checks: &mut Checks, flag: &str, value: &str, min: usize) -> Duration {
    Duration::from_secs(checks.number(flag, value, min..=MAX_SECONDS) as u64)
}
