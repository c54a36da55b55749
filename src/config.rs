//! What the server was asked for, validated. Flags, their `WEIR_*` twins and the settings of a file arrive here as text;
//! every problem is reported at once.

mod checks;
pub mod file;
mod keys;
mod tls;
mod token;

pub use checks::{Checks, Origins, parse_bytes, parse_switch};
pub use keys::Keys;
pub use tls::{Tls, TlsFiles};
pub use token::Token;

use crate::{engine::Limits, error::Error, family::load};
use std::{
    fmt,
    io::Read,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Everything `weir serve` needs.
#[derive(Debug, Clone)]
pub struct Serve {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where completions are offered over HTTP, if anywhere.
    pub http_listen: Option<SocketAddr>,
    /// The checkpoints' folders, and the names that their models are served under.
    pub checkpoints: Vec<(String, PathBuf)>,
    /// What each model may use.
    pub model: load::Settings,
    /// Each engine's limits.
    pub engine: Limits,
    /// The connection's limits.
    pub wire: Wire,
    /// What is offered to those who run the server.
    pub operations: Operations,
    /// How what everybody has to know is told.
    pub log: Announce,
}

/// Tells where the server is, and what it has: to stderr, in the log's own format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announce {
    /// A line of its own, whatever the log shows.
    Line,
    /// An event of the log.
    Event,
}

impl Announce {
    /// Says it.
    pub fn say(self, what: fmt::Arguments<'_>) {
        match self {
            Self::Line => eprintln!("{what}"),
            Self::Event => tracing::info!("{what}"),
        }
    }
}

/// What is offered to those who run the server.
#[derive(Debug, Clone)]
pub struct Operations {
    /// Where metrics and health are told over HTTP, if anywhere.
    pub admin_listen: Option<SocketAddr>,
    /// How long a round of a worker's loop may last before it counts as hanging.
    pub hang: Duration,
    /// What calls to the admin service must have, if there is to be one.
    pub admin_token: Option<Token>,
    /// The folder that models are loaded from at run time.
    pub models: Option<PathBuf>,
    /// The most generations of models in memory.
    pub max_models: usize,
    /// The collector that spans are sent to, if there is one.
    pub otlp: Option<String>,
    /// The part of the traces that is sent, 0 to 1.
    pub otlp_part: f64,
}

/// Limits of the wire.
#[derive(Debug, Clone)]
pub struct Wire {
    /// How long requests that run may go on once the server is shutting down.
    pub drain: Duration,
    /// Bytes of one request message.
    pub message_bytes: usize,
    /// Bytes of all request messages together that have not come in whole.
    pub request_memory: usize,
    /// How long a request may take to come in whole.
    pub upload: Duration,
    /// Bytes of one request's headers.
    pub header_bytes: u32,
    /// Calls in progress on one connection.
    pub concurrent_streams: u32,
    /// Calls of one connection that were cancelled before the server came to look at them; one more ends the connection.
    pub pending_resets: usize,
    /// Calls of one connection that the server itself reset for breaking the protocol; one more ends the connection.
    pub error_resets: usize,
    /// Connections in all.
    pub connections: usize,
    /// How long a new connection has for TLS and its first words.
    pub handshake: Duration,
    /// How long a connection may be silent before it is asked whether it is alive, by a ping of HTTP/2; none: never.
    pub keepalive_interval: Option<Duration>,
    /// How long it then has to answer.
    pub keepalive_timeout: Duration,
    /// How long it may be silent before the operating system asks; none: never.
    pub tcp_keepalive: Option<Duration>,
    /// Whether an answer's headers wait for its first characters, so that a proxy may give a request that has none yet to
    /// another server; it is then also told by HTTP's own status that a server is unavailable.
    pub late_headers: bool,
    /// Who may connect and call.
    pub access: Access,
}

/// Who may connect and call: without any of these, everyone.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Encryption, and the certificates that clients must have.
    pub tls: Option<Tls>,
    /// The keys one of which each call must bring.
    pub keys: Option<Arc<Keys>>,
}

impl Default for Wire {
    fn default() -> Self {
        Self {
            drain: Duration::from_secs(30),
            message_bytes: 4 << 20,
            request_memory: 256 << 20,
            upload: Duration::from_secs(60),
            header_bytes: 16 << 10,
            concurrent_streams: 256,
            pending_resets: 20,
            error_resets: 1024,
            connections: 1024,
            handshake: Duration::from_secs(10),
            keepalive_interval: Some(Duration::from_secs(60)),
            keepalive_timeout: Duration::from_secs(20),
            tcp_keepalive: Some(Duration::from_secs(60)),
            late_headers: false,
            access: Access::default(),
        }
    }
}

/// Bytes of a file of settings, keys or certificates: more is a mistake.
const FILE_BYTES: u64 = 1 << 20;

/// A file's content.
///
/// # Errors
/// It cannot be read, or is too long to be what it should be.
fn contents(path: &Path) -> Result<Vec<u8>, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    match bytes.len() as u64 > FILE_BYTES {
        true => {
            Err(Error::LongerThan { field: "the file", limit: FILE_BYTES as usize, unit: "bytes", why: None }
                .to_string())
        }
        false => Ok(bytes),
    }
}

/// Warns if others than a secret file's owner and group can read it, or others than its owner write it.
#[cfg(unix)]
fn warn_if_open(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    const TOO_OPEN: u32 = 0o026;
    let mode = path.metadata().map(|data| data.permissions().mode() & 0o777);
    if let Ok(mode) = mode
        && mode & TOO_OPEN != 0
    {
        let mode = format!("{mode:03o}");
        tracing::warn!(file = %path.display(), mode, "others can read or change this secret: chmod 600 is enough");
    }
}

/// There is nothing to be told where files have no such modes.
#[cfg(not(unix))]
fn warn_if_open(_: &Path) {}
