//! Where the server listens, and the limits of its connections.

use super::MANY;
use crate::config::{Checks, Wire};
use std::{net::SocketAddr, time::Duration};

/// The flags of the wire.
#[derive(Debug, clap::Args)]
pub(super) struct WireArgs {
    /// The address to listen on; port 0 takes any free one.
    #[arg(long, value_name = "ADDRESS", env = "WEIR_LISTEN", default_value = "127.0.0.1:50051")]
    listen: String,
    /// How long running requests may go on once the server is shutting down.
    #[arg(long, value_name = "N", env = "WEIR_DRAIN_SECONDS", default_value = "30")]
    drain_seconds: String,
    /// The longest request message.
    #[arg(long, value_name = "SIZE", env = "WEIR_MAX_MESSAGE_BYTES", default_value = "4MiB")]
    max_message_bytes: String,
    /// Calls in progress on one connection.
    #[arg(long, value_name = "N", env = "WEIR_MAX_CONCURRENT_STREAMS", default_value = "256")]
    max_concurrent_streams: String,
}

impl WireArgs {
    /// Where to listen.
    pub(super) fn listen(&self, checks: &mut Checks) -> Option<SocketAddr> {
        checks.parsed("--listen", &self.listen)
    }

    /// As the server wants them.
    pub(super) fn limits(&self, checks: &mut Checks) -> Wire {
        let streams = checks.number("--max-concurrent-streams", &self.max_concurrent_streams, 1..=MANY);
        Wire {
            drain: Duration::from_secs(checks.number("--drain-seconds", &self.drain_seconds, 0..=86_400) as u64),
            message_bytes: checks.bytes("--max-message-bytes", &self.max_message_bytes, 1024..=1 << 30),
            concurrent_streams: u32::try_from(streams).unwrap_or(u32::MAX),
            ..Wire::default()
        }
    }
}
