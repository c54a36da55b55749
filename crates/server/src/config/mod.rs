//! The server's validated configuration. Flags, `WEIR_*` variables and the settings file arrive here as text; all problems are
//! reported together.

pub(crate) mod checks;
#[cfg(feature = "settings-file")]
pub mod file;
mod keys;
mod tls;

use crate::config::checks::{AllowedNames, CorsOrigins};
pub use crate::config::checks::{Checks, HttpMetrics, Origins, parse_bytes, parse_switch};
pub use crate::config::keys::{AdminToken, CredentialFiles, Credentials, Keys, LiveCredentials, UsedKeys};
pub use crate::config::tls::{Tls, TlsFiles};
pub use crate::metrics::MetricsConfig;
use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;
use weir_engine::Limits;
use weir_models::{checkpoint::CheckpointSource, load};

/// The configuration of `weir serve`.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Address of the gRPC server.
    pub listen: SocketAddr,
    /// Address of the HTTP completions server, if enabled.
    pub http_listen: Option<SocketAddr>,
    /// True if the settings have no address at all. If another program uses the HTTP or admin address, the server then starts
    /// without that port.
    pub default_listeners: bool,
    /// The checkpoints to serve.
    pub checkpoints: Vec<ServedCheckpoint>,
    /// The files from which [`Access::credentials`] were read.
    pub credential_files: CredentialFiles,
    /// Settings for loading each model.
    pub model: load::Settings,
    /// True if each model that can run without its pooling is also served so.
    pub unpooled_baselines: bool,
    /// Each engine's limits.
    pub engine: Limits,
    /// Limits of connections and messages.
    pub transport: TransportConfig,
    /// Settings for operators.
    pub operations: Operations,
    /// How addresses and model names are announced.
    pub log: Announce,
}

/// A checkpoint to serve.
#[derive(Debug, Clone)]
pub struct ServedCheckpoint {
    /// The model's name.
    pub name: String,
    /// Its files.
    pub source: CheckpointSource,
    /// True if the operator named this checkpoint, and false if it was found in the models folder. The server does not start
    /// without a named checkpoint.
    pub named: bool,
}

/// Announces the server's addresses and models on stderr, in the log's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announce {
    /// A plain line, at every log level.
    Line,
    /// A log event.
    Event,
}

impl Announce {
    /// Prints `message`. Does nothing if stderr is closed or full.
    pub fn print(self, message: fmt::Arguments<'_>) {
        match self {
            Self::Line => {
                let _ = writeln!(io::stderr(), "{message}");
            }
            Self::Event => tracing::info!("{message}"),
        }
    }
}

/// Settings for operators: metrics, health, administration, traces.
#[derive(Debug, Clone)]
pub struct Operations {
    /// Address of the HTTP server for metrics and health, if enabled.
    pub admin_listen: Option<SocketAddr>,
    /// Maximum time of one iteration of a worker's loop before the worker counts as hanging.
    pub hang: Duration,
    /// Token that calls to the admin service must carry; none disables the service.
    pub admin_token: Option<AdminToken>,
    /// Folder from which models are loaded at run time.
    pub models: Option<PathBuf>,
    /// Maximum model generations in memory.
    pub max_models: usize,
    /// URL of the OpenTelemetry collector, if enabled.
    pub otlp: Option<String>,
    /// Share of the traces that is sent, 0 to 1.
    pub otlp_part: f64,
    /// Names and labels of the metrics.
    pub metrics: MetricsConfig,
}

/// Limits of connections and messages, and access control.
#[derive(Debug, Clone)]
pub struct TransportConfig {
    /// Maximum time that running requests may take after shutdown begins.
    pub drain: Duration,
    /// Maximum bytes of one request message.
    pub message_bytes: usize,
    /// Maximum bytes of all request messages that are incomplete or not yet converted, of the symbols of running and queued
    /// requests, and of all collected responses, together.
    pub request_memory: usize,
    /// Maximum bytes of memory of a response that is collected, not streamed.
    pub response_bytes: usize,
    /// Threads that parse and tokenize large requests.
    pub tokenization_workers: usize,
    /// Maximum time for the upload of a request.
    pub upload: Duration,
    /// Maximum bytes of one request's headers.
    pub header_bytes: u32,
    /// Maximum calls in progress on one connection.
    pub concurrent_streams: u32,
    /// Maximum calls in progress over all connections.
    pub calls: usize,
    /// Maximum calls of one connection that the client cancelled before the server accepted them; one more closes it.
    pub pending_resets: usize,
    /// Maximum calls of one connection that the server reset for protocol errors; one more closes it.
    pub error_resets: usize,
    /// Maximum connections.
    pub connections: usize,
    /// Maximum connections of one IPv4 address or IPv6 /64.
    pub connections_per_address: usize,
    /// Maximum time that a connection stays open without a call; none disables the limit.
    pub connection_idle: Option<Duration>,
    /// Maximum age of a connection, which varies by a tenth; none disables the limit.
    pub connection_age: Option<Duration>,
    /// Maximum time that the calls of a connection may take after its maximum age.
    pub connection_age_grace: Duration,
    /// Maximum time for the TLS handshake and the HTTP/2 preface of a new connection.
    pub handshake: Duration,
    /// Idle time before an HTTP/2 ping; none disables pings.
    pub keepalive_interval: Option<Duration>,
    /// Maximum time for the answer to a ping.
    pub keepalive_timeout: Duration,
    /// Idle time before TCP keepalive probes; none disables them.
    pub tcp_keepalive: Option<Duration>,
    /// True if response headers wait for the first characters, so that a proxy can retry the request on another server. The
    /// HTTP status then also reports an unavailable server.
    pub late_headers: bool,
    /// Limits of sessions that edit a document.
    pub editing: EditingConfig,
    /// The access to the metrics on the HTTP port.
    pub http_metrics: HttpMetrics,
    /// Access control.
    pub access: Access,
}

/// Limits of sessions that edit a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EditingConfig {
    /// Maximum sessions in progress.
    pub sessions: usize,
    /// Maximum bytes of a document.
    pub text_bytes: usize,
    /// Splices a second that the server reads from one session. It reads further ones later.
    pub splice_rate: usize,
    /// Maximum time without a message of the client or a request in progress.
    pub idle: Duration,
}

impl Default for EditingConfig {
    fn default() -> Self {
        Self { sessions: 256, text_bytes: 1 << 20, splice_rate: 100, idle: Duration::from_secs(600) }
    }
}

/// Access control. The default lets every client connect and call.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Certificates and API keys. Whether a server has them is fixed when it starts; their contents may change.
    pub credentials: LiveCredentials,
    /// Host names and origins that HTTP requests may carry.
    pub allowed: Arc<AllowedNames>,
    /// Origins whose pages may read responses of the HTTP port.
    pub cors: Arc<CorsOrigins>,
}

impl From<Credentials> for Access {
    fn from(credentials: Credentials) -> Self {
        Self { credentials: credentials.into(), ..Self::default() }
    }
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            drain: Duration::from_secs(30),
            message_bytes: 4 << 20,
            request_memory: 384 << 20,
            response_bytes: 64 << 20,
            tokenization_workers: available_parallelism().map_or(1, NonZero::get),
            upload: Duration::from_secs(60),
            header_bytes: 16 << 10,
            concurrent_streams: 256,
            calls: 4096,
            pending_resets: 20,
            error_resets: 1024,
            connections: 1024,
            connections_per_address: 256,
            connection_idle: Some(Duration::from_secs(300)),
            connection_age: None,
            connection_age_grace: Duration::from_secs(600),
            handshake: Duration::from_secs(10),
            keepalive_interval: Some(Duration::from_secs(60)),
            keepalive_timeout: Duration::from_secs(20),
            tcp_keepalive: Some(Duration::from_secs(60)),
            late_headers: false,
            editing: EditingConfig::default(),
            http_metrics: HttpMetrics::default(),
            access: Access::default(),
        }
    }
}

#[cfg(test)]
mod tests {

    use crate::config::checks::{AllowedNames, Checks, CorsOrigins, parse_bytes};

    fn allowed(hosts: &[&str], origins: &[&str]) -> Result<AllowedNames, String> {
        let texts = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>();
        let mut checks = Checks::default();
        let names = checks.allowed_names(&texts(hosts), &texts(origins));
        checks.finish().map(|()| names).map_err(|error| error.to_string())
    }

    #[test]
    fn only_names_that_no_public_page_has_are_allowed_without_a_list() {
        let names = AllowedNames::default();
        for host in ["127.0.0.1", "[::1]", "localhost", "LOCALHOST.", "weir", "a.localhost", "weir.team.svc", "x.local"]
        {
            assert!(names.allows_host(host), "{host}");
        }
        for host in
            ["evil.example.com", "127.0.0.1.nip.io", "localhost.evil.com", "evillocal.com", "a.notlocal", "xlocal.x"]
        {
            assert!(!names.allows_host(host), "{host}");
        }
        let names = allowed(&["Weir.example.com"], &["https://App.example.com"]).unwrap();
        assert!(names.allows_host("weir.EXAMPLE.com") && !names.allows_host("a.weir.example.com"));
        assert!(names.lists_origin("https://app.example.com") && !names.lists_origin("http://app.example.com"));
    }

    #[test]
    fn sizes_have_units() {
        let valid = [("0", 0), ("17", 17), ("2GiB", 2 << 30), ("4 mib", 4 << 20), ("1kB", 1000), ("3g", 3 << 30)];
        for (text, bytes) in valid {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for invalid in ["", "GiB", "-1", "+1", "1.5GiB", "1 XB", "99999999999999999999", "17179869184GiB", "１"] {
            assert_eq!(parse_bytes(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn folders_without_a_config_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b", "a", "training"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        for name in ["b", "a"] {
            std::fs::write(folder.path().join(name).join("config.json"), "{}").unwrap();
        }
        let mut checks = Checks::default();
        let checkpoints = checks.checkpoints("--models", folder.path());
        assert_eq!(checkpoints, [folder.path().join("a"), folder.path().join("b")]);
        checks.checkpoint("--model", &folder.path().join("training"));
        checks.checkpoints("--models", &folder.path().join("nowhere"));
        let message = checks.finish().unwrap_err().to_string();
        assert!(message.contains("training") && message.contains("nowhere"), "{message}");
    }

    fn cors(origins: &[&str]) -> Result<CorsOrigins, String> {
        let origins: Vec<_> = origins.iter().map(|&origin| origin.to_owned()).collect();
        let mut checks = Checks::default();
        let parsed = checks.cors_origins(&origins);
        checks.finish().map(|()| parsed).map_err(|error| error.to_string())
    }

    #[test]
    fn only_listed_origins_are_allowed() {
        assert!(!cors(&[]).unwrap().allows("https://app.example.com"));
        let listed = cors(&["https://App.example.com", "http://localhost:3000"]).unwrap();
        assert!(listed.allows("https://app.example.com") && listed.allows("HTTP://LOCALHOST:3000"));
        for other in ["http://app.example.com", "https://app.example.com:444", "https://x.app.example.com", "null", ""]
        {
            assert!(!listed.allows(other), "{other}");
        }
        let any = cors(&["https://app.example.com", "*"]).unwrap();
        assert!(any.allows("https://other.example.com") && any.allows("null"));
    }
}
