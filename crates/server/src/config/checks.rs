//! Checks of settings: hosts and origins that a request may name, numbers, addresses, and files of settings, keys and certificates.

use crate::metrics::{LABELS, MetricsConfig};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use weir_client::tls::{FILE_BYTES, no_certificate, no_private_key, read_open, unreadable};
use weir_kernels::error::{Error, QUOTED_BYTES, Result, clip, quoted};
use weir_models::checkpoint::files::{self, check_folder, is_web_page};

// A browser lets any page send requests to any address, and lets a page read responses from its own host name. A page can also
// point its host name at the server's address (DNS rebinding). The server therefore checks both headers.

/// Last labels of names that nobody can register publicly: reserved by RFC 6761, 6762, 8375 and ICANN, or used by Kubernetes.
const PRIVATE_SUFFIXES: [&str; 6] = ["localhost", "local", "internal", "test", "home.arpa", "svc"];

/// Host names and origins that HTTP requests may carry, as the operator lists them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedNames {
    /// Host names without a port, in lower case.
    hosts: Vec<String>,
    /// Origins such as `https://weir.example.com`, in lower case.
    origins: Vec<String>,
}

impl AllowedNames {
    /// Returns true if a request may address the server by this host name or address, given without a port.
    pub fn allows_host(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&host);
        IpAddr::from_str(address).is_ok() || is_private(&host) || self.hosts.contains(&host)
    }

    /// Returns true if the operator lists this origin.
    pub fn lists_origin(&self, origin: &str) -> bool {
        self.origins.iter().any(|listed| listed.eq_ignore_ascii_case(origin))
    }
}

/// Returns true for names that public DNS cannot have: names of one label, and those under a private suffix.
fn is_private(host: &str) -> bool {
    let under = |suffix: &&str| host.strip_suffix(*suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    !host.contains('.') || PRIVATE_SUFFIXES.iter().any(under)
}

impl Checks {
    /// Checks the values of `--allowed-hosts` and `--allowed-origins`.
    pub fn allowed_names(&mut self, hosts: &[String], origins: &[String]) -> AllowedNames {
        for host in hosts.iter().filter(|host| !is_host(host)) {
            self.reject("--allowed-hosts", host, "a host name without scheme and port, such as weir.example.com");
        }
        for origin in origins.iter().filter(|origin| !is_origin(origin)) {
            self.reject("--allowed-origins", origin, "an origin without a path, such as https://weir.example.com");
        }
        let lower_case = |names: &[String]| names.iter().map(|name| name.to_ascii_lowercase()).collect();
        AllowedNames { hosts: lower_case(hosts), origins: lower_case(origins) }
    }
}

fn is_host(host: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !host.is_empty() && !host.ends_with('.') && host.bytes().all(allowed)
}

/// Returns true if a text has the form of an origin: a scheme and an authority, without the default port of the scheme.
fn is_origin(origin: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let visible = authority.bytes().all(|byte| byte.is_ascii_graphic() && !b"/*?#@\\".contains(&byte));
    // Browsers leave it out, so an origin with it never matches.
    let has_default_port = match scheme {
        "http" => authority.ends_with(":80"),
        "https" => authority.ends_with(":443"),
        _ => false,
    };
    !scheme.is_empty() && !authority.is_empty() && visible && !has_default_port
}

/// Parses settings from text and collects all problems.
#[derive(Debug, Default)]
pub struct Checks {
    problems: Vec<String>,
    origins: Origins,
}

/// Where settings without a flag on the command line come from, such as `WEIR_ROWS` or `weir.toml, line 3`. The key is the flag.
pub type Origins = BTreeMap<String, String>;

impl Checks {
    /// Creates checks that already have these problems, which were found earlier.
    pub fn with_problems(problems: Vec<String>, origins: Origins) -> Self {
        Self { problems, origins }
    }

    /// Parses an address to listen on: IP address and port, `localhost:PORT`, or `:PORT` for all IPv4 addresses of the machine.
    /// Returns `None` if it is invalid.
    pub fn address(&mut self, flag: &str, value: &str) -> Option<SocketAddr> {
        let address = parse_address(value);
        if address.is_none() {
            self.reject(flag, value, "an address such as 127.0.0.1:50051, localhost:50051 or :50051");
        }
        address
    }

    /// Parses a switch with [`parse_switch`]; returns false if it is invalid.
    pub fn switch(&mut self, flag: &str, value: &str) -> bool {
        parse_switch(value).unwrap_or_else(|| {
            self.reject(flag, value, "true or false");
            false
        })
    }

    /// Parses a whole number within `range`; returns the lower limit if it is invalid.
    pub fn number(&mut self, flag: &str, value: &str, range: RangeInclusive<usize>) -> usize {
        let (low, high) = range.clone().into_inner();
        match value.parse() {
            Ok(number) if range.contains(&number) => number,
            _ => {
                self.reject(flag, value, format!("a whole number from {low} to {high}"));
                low
            }
        }
    }

    /// Parses a size within `range` with [`parse_bytes`]; returns the lower limit if it is invalid.
    pub fn bytes(&mut self, flag: &str, value: &str, range: RangeInclusive<usize>) -> usize {
        let (low, high) = range.clone().into_inner();
        let expected = match parse_bytes(value) {
            Some(bytes) if range.contains(&bytes) => return bytes,
            Some(_) => format!("{low} to {high} bytes"),
            None => "a size such as 512MiB, 2GiB or 1000000".into(),
        };
        self.reject(flag, value, expected);
        low
    }

    /// Returns the checkpoints in a folder: each subfolder with a `config.json`, sorted by name.
    pub fn checkpoints(&mut self, flag: &str, folder: &Path) -> Vec<PathBuf> {
        let folders = subfolders(folder).inspect_err(|error| {
            if folder.exists() {
                self.reject_with(flag, error);
            } else {
                let expected = "expected a folder of checkpoints, found nothing of this name";
                self.reject_with(flag, format!("{}: {expected}", folder.display()));
            }
        });
        let (checkpoints, others): (Vec<_>, Vec<_>) =
            folders.unwrap_or_default().into_iter().partition(|folder| is_checkpoint(folder));
        for other in others {
            tracing::debug!(folder = %other.display(), "not a checkpoint: skipped");
        }
        checkpoints
    }

    /// Returns true if a subfolder of a folder is a checkpoint.
    pub fn has_checkpoints(folder: &Path) -> bool {
        subfolders(folder).is_ok_and(|folders| folders.iter().any(|folder| is_checkpoint(folder)))
    }

    /// Checks that a folder is a checkpoint.
    pub fn checkpoint(&mut self, flag: &str, folder: &Path) {
        if let Err(error) = check_folder(folder) {
            let why = match error {
                Error::Checkpoint { file, expected, found, .. } => {
                    format!("{}: expected {expected}, found {found}", file.display())
                }
                other => other.to_string(),
            };
            self.reject_with(flag, why);
        }
    }

    /// Adds the problem that `flag` has a value that is not `expected`.
    pub fn reject(&mut self, flag: &str, value: &str, expected: impl Display) {
        let found = if value.parse::<f64>().is_ok() { clip(value, QUOTED_BYTES) } else { quoted(value) };
        self.reject_with(flag, format!("expected {expected}, found {found}"));
    }

    /// Adds the problem `why` with the value of `flag`, for example with the contents of the file that it names.
    pub fn reject_with(&mut self, flag: &str, why: impl Display) {
        let origin = self.origins.get(flag).map(|origin| format!(" (from {origin})")).unwrap_or_default();
        self.problems.push(format!("{flag}{origin}: {why}"));
    }

    /// Finishes the checks. Fails with [`Error::Setting`] if there are problems, and lists all of them, one per line.
    pub fn finish(self) -> Result<()> {
        match self.problems.as_slice() {
            [] => Ok(()),
            [only] => Err(Error::Setting(only.clone())),
            many => Err(Error::Setting(format!("{} settings are wrong:\n  {}", many.len(), many.join("\n  ")))),
        }
    }
}

/// The access to the metrics on the HTTP port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HttpMetrics {
    /// It does not.
    #[default]
    Off,
    /// It does for clients that may call the server: with API keys, those that send one.
    Keyed,
    /// It does for every client.
    Open,
}

/// Maximum symbols of a block of the segment cache.
const MAX_CACHE_BLOCK: usize = 1 << 20;

impl Checks {
    /// Parses the value of `--http-metrics`.
    pub fn http_metrics(&mut self, value: &str) -> HttpMetrics {
        match value {
            "off" => HttpMetrics::Off,
            "keyed" => HttpMetrics::Keyed,
            "open" => HttpMetrics::Open,
            _ => {
                self.reject("--http-metrics", value, "keyed, open or off");
                HttpMetrics::Off
            }
        }
    }

    /// Checks the values of `--metrics-compat`, `--metrics-label` and `--metrics-block-size`, with a segment cache of
    /// `cache_bytes`.
    pub fn metrics(
        &mut self,
        compat: &[String],
        labels: &[String],
        block: Option<&str>,
        cache_bytes: usize,
    ) -> MetricsConfig {
        for other in compat.iter().filter(|name| *name != "vllm") {
            self.reject("--metrics-compat", other, "vllm");
        }
        let mut config = MetricsConfig { vllm_names: !compat.is_empty(), ..MetricsConfig::default() };
        for label in labels {
            let Some((name, value)) = label.split_once('=') else {
                self.reject("--metrics-label", label, "NAME=VALUE");
                continue;
            };
            if !is_label_name(name) {
                self.reject("--metrics-label", name, "a name of letters, digits and _ that begins with a letter");
            } else if LABELS.contains(&name) {
                self.reject("--metrics-label", name, "a name that no metric has already");
            } else if config.labels.iter().any(|(other, _)| other == name) {
                self.reject_with("--metrics-label", format!("the label {name} is given twice"));
            } else {
                config.labels.push((name.to_owned(), value.to_owned()));
            }
        }
        let Some(block) = block else { return config };
        let unit = MetricsConfig::CACHE_BLOCK;
        match block.parse::<usize>() {
            Ok(_) if cache_bytes == 0 => {
                self.reject_with("--metrics-block-size", "expected a segment cache, found --cache-memory 0");
            }
            Ok(symbols) if (unit..=MAX_CACHE_BLOCK).contains(&symbols) && symbols.is_multiple_of(unit) => {
                config.cache_block = Some(symbols);
            }
            _ => {
                let expected = format!("a multiple of {unit} (a page of the cache), at most {MAX_CACHE_BLOCK}");
                self.reject("--metrics-block-size", block, expected);
            }
        }
        config
    }
}

/// Returns true for names that a label may have. Prometheus keeps those with two underscores at the beginning for itself.
fn is_label_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Parses an address to listen on: IP address and port, `localhost` and a port, or `:PORT` for all IPv4 addresses of the machine.
/// Other host names are not resolved: a server must not change its address with the name service.
pub(super) fn parse_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    // The parser of numbers also takes a sign.
    let digits = Some(port).filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    let local = |address: Ipv4Addr| Some(SocketAddr::from((address, digits?.parse().ok()?)));
    match host {
        "" => local(Ipv4Addr::UNSPECIFIED),
        host if host.eq_ignore_ascii_case("localhost") => local(Ipv4Addr::LOCALHOST),
        _ => text.parse().ok(),
    }
}

/// Parses a switch: `true`, `yes`, `on`, `y`, `t` or `1`, or one of their opposites; case does not matter.
pub fn parse_switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" | "t" | "1" => Some(true),
        "false" | "no" | "off" | "n" | "f" | "0" => Some(false),
        _ => None,
    }
}

/// Parses a size in bytes: a whole number, alone or with a unit (`B`, `kB`, `MB`, `GB`, `KiB`, `MiB`, `GiB`; `K`, `M` and `G` are
/// short for the last three; case does not matter).
pub fn parse_bytes(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let unit = text.strip_prefix(digits)?.trim().to_ascii_lowercase();
    let factor: usize = match unit.as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => return None,
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<usize>().ok()?.checked_mul(factor)
}

/// Returns true for a folder with anything named `config.json`. Loading it reports what is not a file.
fn is_checkpoint(folder: &Path) -> bool {
    folder.join("config.json").symlink_metadata().is_ok()
}

/// Returns the subfolders of a folder, sorted; follows links.
fn subfolders(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = folder.read_dir().map_err(Error::io(folder))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut folders = paths.collect::<io::Result<Vec<_>>>().map_err(Error::io(folder))?;
    folders.retain(|path| path.is_dir());
    folders.sort();
    Ok(folders)
}

/// Origins whose pages may send requests and read responses of the HTTP port (cross-origin resource sharing, CORS).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CorsOrigins {
    /// No page of another origin.
    #[default]
    None,
    /// Pages of these origins, such as `https://app.example.com`, in lower case.
    Listed(Vec<String>),
    /// Pages of all origins.
    Any,
}

impl CorsOrigins {
    /// Returns true if pages of this origin may read responses.
    pub fn allows(&self, origin: &str) -> bool {
        match self {
            Self::None => false,
            Self::Listed(origins) => origins.iter().any(|listed| listed.eq_ignore_ascii_case(origin)),
            Self::Any => true,
        }
    }
}

impl Checks {
    /// Checks the values of `--cors-origin`.
    pub fn cors_origins(&mut self, origins: &[String]) -> CorsOrigins {
        for origin in origins.iter().filter(|origin| *origin != "*" && !is_origin(origin)) {
            self.reject("--cors-origin", origin, "* or an origin without a path, such as https://app.example.com");
        }
        if origins.iter().any(|origin| origin == "*") {
            return CorsOrigins::Any;
        }
        match origins.is_empty() {
            true => CorsOrigins::None,
            false => CorsOrigins::Listed(origins.iter().map(|origin| origin.to_ascii_lowercase()).collect()),
        }
    }
}

// Bounded reads of files that settings name, with the kind of a file that belongs elsewhere.

/// Reads a file of at most [`FILE_BYTES`] bytes. Errors name the file.
pub(super) fn read_file(path: &Path) -> std::result::Result<Vec<u8>, String> {
    read_up_to(FILE_BYTES, path)
}

/// Reads a regular file of at most `limit` bytes.
pub(super) fn read_up_to(limit: u64, path: &Path) -> std::result::Result<Vec<u8>, String> {
    let (file, _) = files::open(path).map_err(|error| unreadable(path, &error))?;
    read_open(file, path, limit)
}

/// Reads a file of at most [`FILE_BYTES`] bytes of UTF-8.
pub(super) fn read_text(path: &Path) -> std::result::Result<String, String> {
    String::from_utf8(read_file(path)?).map_err(|_| format!("{}: expected UTF-8, found other bytes", path.display()))
}

/// Names the kind of a text that belongs to another setting or program; `None` for other texts.
pub(super) fn foreign_kind(text: &str) -> Option<&'static str> {
    if no_private_key(text.as_bytes()).is_none() {
        Some("a private key")
    } else if no_certificate(text.as_bytes()).is_none() {
        Some("a certificate")
    } else if text.contains("-----BEGIN ") {
        Some("a PEM file")
    } else if text.trim_start().starts_with('{') {
        Some("JSON")
    } else if is_web_page(text.as_bytes()) {
        Some("a web page in HTML")
    } else {
        None
    }
}

/// Logs a warning if a secret file can be read by users other than its owner and group, or written by others than its owner.
#[cfg(unix)]
pub(super) fn warn_if_open(path: &Path) {
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

/// Does nothing: other systems have no such file modes.
#[cfg(not(unix))]
pub(super) fn warn_if_open(_: &Path) {}
