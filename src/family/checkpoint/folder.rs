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
    let wrong = |found: String| {
        let expected = format!("a checkpoint (a folder with a {CONFIG_FILE})");
        Err(Error::checkpoint(dir, "the folder", expected, found))
    };
    if dir.is_file() {
        return wrong("a file".into());
    }
    if !dir.is_dir() {
        return wrong("no folder of this name".into());
    }
    if dir.join(CONFIG_FILE).exists() {
        return Ok(());
    }
    wrong(contents(dir))
}

/// Describes a folder without a `config.json`.
fn contents(dir: &Path) -> String {
    let entries: Vec<_> = dir.read_dir().into_iter().flatten().flatten().take(READ).collect();
    let named = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut checkpoints: Vec<_> =
        entries.iter().filter(|entry| entry.path().join(CONFIG_FILE).is_file()).map(named).collect();
    let mut names: Vec<_> = entries.iter().map(named).collect();
    if names.is_empty() {
        return "an empty folder".into();
    }
    names.sort();
    checkpoints.sort();
    if !checkpoints.is_empty() {
        return format!("no {CONFIG_FILE}, but subfolders that are checkpoints: {}", listed(&checkpoints));
    }
    let hint = FOREIGN.iter().find(|(ending, _)| names.iter().any(|name| name.ends_with(ending)));
    let hint = hint.map(|(_, hint)| format!("; {hint}")).unwrap_or_default();
    format!("no {CONFIG_FILE}; the folder has {}{hint}", listed(&names))
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
