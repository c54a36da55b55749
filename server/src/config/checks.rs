//! Parses settings from text and collects all problems.

use crate::{
    error::{Error, QUOTED_BYTES, Result, clip, quoted},
    family::checkpoint::files::check_folder,
};
use std::{
    collections::BTreeMap,
    fmt::Display,
    net::{Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

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

    /// Adds a problem that concerns several flags.
    pub fn add_problem(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
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

/// Parses an address to listen on: IP address and port, `localhost` and a port, or `:PORT` for all IPv4 addresses of the machine.
/// Other host names are not resolved: a server must not change its address with the name service.
fn parse_address(text: &str) -> Option<SocketAddr> {
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
    let mut folders = paths.collect::<std::io::Result<Vec<_>>>().map_err(Error::io(folder))?;
    folders.retain(|path| path.is_dir());
    folders.sort();
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_leave_out_the_host() {
        let valid = [
            ("127.0.0.1:50051", "127.0.0.1:50051"),
            ("[::1]:0", "[::1]:0"),
            (":50051", "0.0.0.0:50051"),
            ("localhost:80", "127.0.0.1:80"),
            ("LocalHost:0", "127.0.0.1:0"),
        ];
        for (text, address) in valid {
            assert_eq!(parse_address(text).map(|address| address.to_string()).as_deref(), Some(address), "{text}");
        }
        for invalid in ["", "50051", ":", ":x", ":65536", ":+1", "localhost", "localhost:", "example.com:80", "::1"] {
            assert_eq!(parse_address(invalid), None, "{invalid}");
        }
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
    fn all_problems_are_reported_together() {
        let mut checks = Checks::default();
        assert_eq!(checks.number("--rows", "8", 1..=64), 8);
        checks.number("--rows", "0", 1..=64);
        checks.number("--queue", "many", 1..=64);
        checks.bytes("--kv-memory", "2XB", 1..=usize::MAX);
        assert_eq!(checks.address("--listen", "localhost"), None);
        let message = checks.finish().unwrap_err().to_string();
        for part in [
            "4 settings",
            "--rows: expected a whole number from 1 to 64, found 0\n",
            "found \"many\"",
            "2XB",
            "--listen",
        ] {
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
        let checkpoints = checks.checkpoints("--models", folder.path());
        assert_eq!(checkpoints, [folder.path().join("a"), folder.path().join("b")]);
        checks.checkpoint("--model", &folder.path().join("training"));
        checks.checkpoints("--models", &folder.path().join("nowhere"));
        let message = checks.finish().unwrap_err().to_string();
        assert!(message.contains("training") && message.contains("nowhere"), "{message}");
    }
}
