//! What the server was asked for, validated. Flags and their `WEIR_*` twins arrive here as text; every problem is
//! reported at once.

use crate::{
    engine::handle::Limits,
    error::{Error, Result},
    family::load,
};
use std::{
    fmt::Display,
    net::SocketAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

/// Everything `weir serve` needs.
#[derive(Debug, Clone)]
pub struct Serve {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The checkpoints' folders.
    pub checkpoints: Vec<PathBuf>,
    /// What each model may use.
    pub model: load::Settings,
    /// Each engine's limits.
    pub engine: Limits,
    /// The connection's limits.
    pub wire: Wire,
    /// What is offered to those who run the server.
    pub operations: Operations,
}

/// What is offered to those who run the server.
#[derive(Debug, Clone)]
pub struct Operations {
    /// Where metrics and health are told over HTTP, if anywhere.
    pub admin_listen: Option<SocketAddr>,
    /// How long a round of a worker's loop may last before it counts as hanging.
    pub stall: Duration,
    /// The folder that models are loaded from at run time.
    pub models: Option<PathBuf>,
    /// The most generations of models in memory.
    pub max_models: usize,
}

/// Limits of the wire.
#[derive(Debug, Clone, Copy)]
pub struct Wire {
    /// How long requests that run may go on once the server is shutting down.
    pub drain: Duration,
    /// Bytes of one request message.
    pub message_bytes: usize,
    /// Bytes of one request's headers.
    pub header_bytes: u32,
    /// Calls in progress on one connection.
    pub concurrent_streams: u32,
    /// How long a connection may be silent before it is asked whether it is alive.
    pub keepalive_interval: Duration,
    /// How long it then has to answer.
    pub keepalive_timeout: Duration,
}

impl Default for Wire {
    fn default() -> Self {
        Self {
            drain: Duration::from_secs(30),
            message_bytes: 4 << 20,
            header_bytes: 16 << 10,
            concurrent_streams: 256,
            keepalive_interval: Duration::from_secs(60),
            keepalive_timeout: Duration::from_secs(20),
        }
    }
}

/// Reads settings from text and gathers what is wrong with them.
#[derive(Debug, Default)]
pub struct Checks(Vec<String>);

impl Checks {
    /// A setting of that type.
    pub fn parsed<T: FromStr<Err: Display>>(&mut self, flag: &str, given: &str) -> Option<T> {
        given.parse().map_err(|error| self.wrong(flag, given, error)).ok()
    }

    /// A whole number within bounds; the lower bound if it is none.
    pub fn number(&mut self, flag: &str, given: &str, bounds: RangeInclusive<usize>) -> usize {
        let (low, high) = (*bounds.start(), *bounds.end());
        match given.parse() {
            Ok(number) if bounds.contains(&number) => number,
            _ => {
                self.wrong(flag, given, format!("expected a whole number from {low} to {high}"));
                low
            }
        }
    }

    /// A number of bytes within bounds, as [`parse_bytes`] reads it; the lower bound if it is none.
    pub fn bytes(&mut self, flag: &str, given: &str, bounds: RangeInclusive<usize>) -> usize {
        let (low, high) = (*bounds.start(), *bounds.end());
        match parse_bytes(given) {
            Some(bytes) if bounds.contains(&bytes) => bytes,
            Some(_) => {
                self.wrong(flag, given, format!("expected {low} to {high} bytes"));
                low
            }
            None => {
                self.wrong(flag, given, "expected a size such as 512MiB, 2GiB or 1000000");
                low
            }
        }
    }

    /// The checkpoints of a folder: each subfolder that has a `config.json`, sorted by name.
    pub fn checkpoints(&mut self, flag: &str, folder: &Path) -> Vec<PathBuf> {
        let found = subfolders(folder).inspect_err(|error| self.0.push(format!("{flag}: {error}"))).unwrap_or_default();
        let (found, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|dir| is_checkpoint(dir));
        for other in others {
            tracing::debug!(folder = %other.display(), "not a checkpoint: skipped");
        }
        found
    }

    /// A checkpoint's folder.
    pub fn checkpoint(&mut self, flag: &str, folder: &Path) {
        if !is_checkpoint(folder) {
            self.wrong(flag, &folder.display().to_string(), "expected a checkpoint: a folder with a config.json");
        }
    }

    /// Notes a problem.
    pub fn wrong(&mut self, flag: &str, given: &str, why: impl Display) {
        self.0.push(format!("{flag} {given:?}: {why}"));
    }

    /// Notes a problem that is about no single flag.
    pub fn missing(&mut self, what: impl Into<String>) {
        self.0.push(what.into());
    }

    /// Ends the checks.
    ///
    /// # Errors
    /// All problems, one a line.
    pub fn finish(self) -> Result<()> {
        match self.0.as_slice() {
            [] => Ok(()),
            [only] => Err(Error::Setting(only.clone())),
            many => Err(Error::Setting(format!("{} settings are wrong:\n  {}", many.len(), many.join("\n  ")))),
        }
    }
}

/// Bytes: a whole number, alone or with a unit (`kB`, `MB`, `GB`, `KiB`, `MiB`, `GiB`; case does not matter).
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

fn is_checkpoint(folder: &Path) -> bool {
    folder.join("config.json").is_file()
}

/// The folders within a folder, sorted; links are followed.
fn subfolders(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = folder.read_dir().map_err(Error::io(folder))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut folders = paths.collect::<std::io::Result<Vec<_>>>().map_err(Error::io(folder))?;
    folders.retain(|path| path.is_dir());
    folders.sort();
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let known = [("0", 0), ("17", 17), ("2GiB", 2 << 30), ("4 mib", 4 << 20), ("1kB", 1000), ("3g", 3 << 30)];
        for (text, bytes) in known {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for wrong in ["", "GiB", "-1", "+1", "1.5GiB", "1 XB", "99999999999999999999", "17179869184GiB", "１"] {
            assert_eq!(parse_bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let mut checks = Checks::default();
        assert_eq!(checks.number("--rows", "8", 1..=64), 8);
        checks.number("--rows", "0", 1..=64);
        checks.number("--queue", "many", 1..=64);
        checks.bytes("--kv-memory", "2XB", 1..=usize::MAX);
        assert_eq!(checks.parsed::<SocketAddr>("--listen", "localhost"), None);
        let message = checks.finish().unwrap_err().to_string();
        for part in ["4 settings", "--rows \"0\": expected a whole number from 1 to 64", "many", "2XB", "--listen"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(Checks::default().finish().is_ok());
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
        let found = checks.checkpoints("--models", folder.path());
        assert_eq!(found, [folder.path().join("a"), folder.path().join("b")]);
        checks.checkpoint("--model", &folder.path().join("training"));
        checks.checkpoints("--models", &folder.path().join("nowhere"));
        let message = checks.finish().unwrap_err().to_string();
        assert!(message.contains("training") && message.contains("nowhere"), "{message}");
    }
}
