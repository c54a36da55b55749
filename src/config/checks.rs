//! Reading settings from text, and gathering what is wrong with them.

use crate::error::{Error, Result};
use std::{
    collections::BTreeMap,
    fmt::Display,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Reads settings from text and gathers what is wrong with them.
#[derive(Debug, Default)]
pub struct Checks {
    problems: Vec<String>,
    origins: Origins,
}

/// Where the settings come from that were not given as flags, by flag: `WEIR_ROWS`, or `weir.toml, line 3`.
pub type Origins = BTreeMap<String, String>;

impl Checks {
    /// Goes on from what is known of the settings already.
    pub fn after(problems: Vec<String>, origins: Origins) -> Self {
        Self { problems, origins }
    }

    /// A setting of that type.
    pub fn parsed<T: FromStr<Err: Display>>(&mut self, flag: &str, given: &str) -> Option<T> {
        given.parse().map_err(|error| self.wrong(flag, given, error)).ok()
    }

    /// Yes or no; no if it is neither.
    pub fn switch(&mut self, flag: &str, given: &str) -> bool {
        parse_switch(given).unwrap_or_else(|| {
            self.wrong(flag, given, "expected true or false");
            false
        })
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
        let found =
            subfolders(folder).inspect_err(|error| self.missing(format!("{flag}: {error}"))).unwrap_or_default();
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
        let origin = self.origins.get(flag).map(|origin| format!(" (from {origin})")).unwrap_or_default();
        self.problems.push(format!("{flag} {given:?}{origin}: {why}"));
    }

    /// Notes a problem that is about no single flag.
    pub fn missing(&mut self, what: impl Into<String>) {
        self.problems.push(what.into());
    }

    /// Ends the checks.
    ///
    /// # Errors
    /// All problems, one a line.
    pub fn finish(self) -> Result<()> {
        match self.problems.as_slice() {
            [] => Ok(()),
            [only] => Err(Error::Setting(only.clone())),
            many => Err(Error::Setting(format!("{} settings are wrong:\n  {}", many.len(), many.join("\n  ")))),
        }
    }
}

/// Yes or no, in the words that settings have for it.
pub fn parse_switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" | "t" | "1" => Some(true),
        "false" | "no" | "off" | "n" | "f" | "0" => Some(false),
        _ => None,
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
    use std::net::SocketAddr;

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
