//! Where the server listens, and the limits of its connections.

use super::MANY;
use crate::config::{Access, Checks, Wire};
use std::{net::SocketAddr, time::Duration};

/// The longest that any wait may be: a day.
const DAY: usize = 86_400;

/// The flags of the wire.
#[derive(Debug, clap::Args)]
pub(super) struct WireArgs {
    /// The address to listen on; port 0 takes any free one.
    #[arg(long, value_name = "ADDRESS", env = "WEIR_LISTEN", default_value = "127.0.0.1:50051")]
    listen: String,
    /// Where completions, as OpenAI's clients ask for them, summaries and a playground are offered over HTTP and JSON, with
    /// the same keys, certificates and limits. Nowhere if not given.
    #[arg(long, value_name = "ADDRESS", env = "WEIR_HTTP_LISTEN")]
    http_listen: Option<String>,
    /// How long running requests may go on once the server is shutting down.
    #[arg(long, value_name = "N", env = "WEIR_DRAIN_SECONDS", default_value = "30")]
    drain_seconds: String,
    /// The longest request message.
    #[arg(long, value_name = "SIZE", env = "WEIR_MAX_MESSAGE_BYTES", default_value = "4MiB")]
    max_message_bytes: String,
    /// All request messages together that have not come in whole, of which those of one caller may be seven eighths; at least
    /// --max-message-bytes.
    #[arg(long, value_name = "SIZE", env = "WEIR_MAX_REQUEST_MEMORY", default_value = "256MiB")]
    max_request_memory: String,
    /// How long a request message may take to come in whole.
    #[arg(long, value_name = "N", env = "WEIR_UPLOAD_SECONDS", default_value = "60")]
    upload_seconds: String,
    /// The headers of one request: names and values, and 32 bytes more for each.
    #[arg(long, value_name = "SIZE", env = "WEIR_MAX_HEADER_BYTES", default_value = "16KiB")]
    max_header_bytes: String,
    /// Calls in progress on one connection.
    #[arg(long, value_name = "N", env = "WEIR_MAX_CONCURRENT_STREAMS", default_value = "256")]
    max_concurrent_streams: String,
    /// Calls of one connection that were cancelled before the server came to look at them: one more ends the connection.
    #[arg(long, value_name = "N", env = "WEIR_MAX_PENDING_RESETS", default_value = "20")]
    max_pending_resets: String,
    /// Calls of one connection that the server had to reset because they broke the protocol: one more ends the connection.
    #[arg(long, value_name = "N", env = "WEIR_MAX_ERROR_RESETS", default_value = "1024")]
    max_error_resets: String,
    /// Connections in all; further ones are closed at once.
    #[arg(long, value_name = "N", env = "WEIR_MAX_CONNECTIONS", default_value = "1024")]
    max_connections: String,
    /// How long a new connection has for TLS and the first words of HTTP/2.
    #[arg(long, value_name = "N", env = "WEIR_HANDSHAKE_SECONDS", default_value = "10")]
    handshake_seconds: String,
    /// How long a connection may be silent before it is sent a ping of HTTP/2; 0 for never.
    #[arg(long, value_name = "N", env = "WEIR_KEEPALIVE_SECONDS", default_value = "60")]
    keepalive_seconds: String,
    /// How long it has to answer the ping before it is closed.
    #[arg(long, value_name = "N", env = "WEIR_KEEPALIVE_TIMEOUT_SECONDS", default_value = "20")]
    keepalive_timeout_seconds: String,
    /// How long a connection may be silent before the operating system probes it; 0 for never.
    #[arg(long, value_name = "N", env = "WEIR_TCP_KEEPALIVE_SECONDS", default_value = "60")]
    tcp_keepalive_seconds: String,
    /// Send an answer's headers only with its first characters, so that a proxy may give a request that has none yet to
    /// another server; and tell by HTTP's status, too, that this one is unavailable.
    #[arg(long, value_name = "BOOL", env = "WEIR_LATE_HEADERS", default_value = "false", num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    late_headers: String,
}

impl WireArgs {
    /// Where to listen.
    pub(super) fn listen(&self, checks: &mut Checks) -> Option<SocketAddr> {
        checks.parsed("--listen", &self.listen)
    }

    /// Where to listen for HTTP and JSON.
    pub(super) fn http_listen(&self, checks: &mut Checks) -> Option<SocketAddr> {
        self.http_listen.as_ref().and_then(|given| checks.parsed("--http-listen", given))
    }

    /// As the server wants them.
    pub(super) fn limits(&self, access: Access, checks: &mut Checks) -> Wire {
        let streams = checks.number("--max-concurrent-streams", &self.max_concurrent_streams, 1..=MANY);
        let headers = checks.bytes("--max-header-bytes", &self.max_header_bytes, 1024..=1 << 20);
        let keepalive = seconds(checks, "--keepalive-seconds", &self.keepalive_seconds, 0);
        let tcp_keepalive = seconds(checks, "--tcp-keepalive-seconds", &self.tcp_keepalive_seconds, 0);
        let message_bytes = checks.bytes("--max-message-bytes", &self.max_message_bytes, 1024..=1 << 30);
        let timeout = ("--keepalive-timeout-seconds", &self.keepalive_timeout_seconds);
        Wire {
            drain: seconds(checks, "--drain-seconds", &self.drain_seconds, 0),
            message_bytes,
            request_memory: checks.bytes("--max-request-memory", &self.max_request_memory, message_bytes..=1 << 40),
            upload: seconds(checks, "--upload-seconds", &self.upload_seconds, 1),
            header_bytes: u32::try_from(headers).unwrap_or(u32::MAX),
            concurrent_streams: u32::try_from(streams).unwrap_or(u32::MAX),
            pending_resets: checks.number("--max-pending-resets", &self.max_pending_resets, 1..=MANY),
            error_resets: checks.number("--max-error-resets", &self.max_error_resets, 1..=MANY),
            connections: checks.number("--max-connections", &self.max_connections, 1..=MANY),
            handshake: seconds(checks, "--handshake-seconds", &self.handshake_seconds, 1),
            keepalive_interval: Some(keepalive).filter(|interval| !interval.is_zero()),
            keepalive_timeout: seconds(checks, timeout.0, timeout.1, 1),
            tcp_keepalive: Some(tcp_keepalive).filter(|interval| !interval.is_zero()),
            late_headers: checks.switch("--late-headers", &self.late_headers),
            access,
        }
    }
}

fn seconds(checks: &mut Checks, flag: &str, given: &str, least: usize) -> Duration {
    Duration::from_secs(checks.number(flag, given, least..=DAY) as u64)
}
