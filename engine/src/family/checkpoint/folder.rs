//! The folder of a checkpoint. The error for another folder says what is there.

use crate::error::{Error, Result};
use std::path::Path;

/// The file that every checkpoint has.
pub const CONFIG_FILE: &str = "config.json";
/// Maximum names that a message lists.
const LISTED: usize = 8;
/// Maximum entries of a folder that are read for a message.
const READ: usize = 1000;
/// Endings of files that other programs read, and what to do with them.
const FOREIGN: [(&str, &str); 5] = [
    (".gguf", "weir does not read GGUF: use a folder in Hugging Face's format"),
    (".pt", "`weir convert` reads PyTorch checkpoints"),
    (".bin", "`weir convert` reads PyTorch checkpoints"),
    (".onnx", "weir does not read ONNX: use a folder in Hugging Face's format"),
    (".tar.gz", "unpack the archive first"),
];

/// Checks that a folder exists and has a `config.json`. The error says what is there.
pub fn check_folder(dir: &Path) -> Result<()> {
    let expected = format!("a checkpoint (a folder with a {CONFIG_FILE})");
    check(dir, expected, hint)
}

/// Checks that the source of a conversion is a folder with a `config.json`; `expected` describes it. The error says what is there.
pub fn check_source(dir: &Path, expected: &str) -> Result<()> {
    check(dir, expected.to_owned(), |_| String::new())
}

/// Lists what a folder has, for a message.
pub fn contents(dir: &Path) -> String {
    match &*names(dir) {
        [] => "the folder is empty".into(),
        names => format!("the folder has {}", listed(names)),
    }
}

fn check(dir: &Path, expected: String, hint: fn(&[String]) -> String) -> Result<()> {
    let wrong = |found: String| Err(Error::checkpoint(dir, "the folder", expected, found));
    if dir.is_file() {
        return wrong("a file".into());
    }
    if !dir.is_dir() {
        return wrong("no folder of this name".into());
    }
    if dir.join(CONFIG_FILE).exists() {
        return Ok(());
    }
    let names = names(dir);
    if names.is_empty() {
        return wrong("an empty folder".into());
    }
    let is_checkpoint = |name: &&String| dir.join(name).join(CONFIG_FILE).is_file();
    let checkpoints: Vec<_> = names.iter().filter(is_checkpoint).cloned().collect();
    if !checkpoints.is_empty() {
        return wrong(format!("no {CONFIG_FILE}, but subfolders that are checkpoints: {}", listed(&checkpoints)));
    }
    wrong(format!("no {CONFIG_FILE}; the folder has {}{}", listed(&names), hint(&names)))
}

/// Returns what to do with the files of other programs.
fn hint(names: &[String]) -> String {
    let hint = FOREIGN.iter().find(|(ending, _)| names.iter().any(|name| name.ends_with(ending)));
    hint.map(|(_, hint)| format!("; {hint}")).unwrap_or_default()
}

/// Returns the names in a folder, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = dir.read_dir().into_iter().flatten().flatten().take(READ);
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let shown = names.iter().take(LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_folders_are_shortened() {
        let dir = tempfile::tempdir().unwrap();
        for index in 0..12 {
            std::fs::write(dir.path().join(format!("part-{index:02}")), "").unwrap();
        }
        let error = check_folder(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("part-06, part-07 and 4 more"), "{error}");
    }
}
