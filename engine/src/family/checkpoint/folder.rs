//! The folder of a checkpoint. The error for another folder says what is there.

use crate::error::{Error, Result};
use std::path::Path;

/// The file that every checkpoint has.
pub const CONFIG_FILE: &str = "config.json";
/// Maximum names that a message lists.
const LISTED: usize = 8;
/// Maximum entries of a folder that are read for a message.
const READ: usize = 1000;
/// Endings of files that are not checkpoints, with a description and advice for each. `PATH` stands for the argument.
const FOREIGN: [(&str, &str, &str); 7] = [
    (".gguf", "a GGUF file", GGUF),
    (
        STATE,
        "a training state",
        "the file belongs to a run of weir's training, from which `python -m training.export --run PATH --out MODEL` writes a checkpoint",
    ),
    (".pt", "a PyTorch file", PYTORCH),
    (".bin", "a PyTorch file", PYTORCH),
    (
        ".onnx",
        "an ONNX file",
        "weir does not read ONNX, but it reads folders in Hugging Face's format (docs/hugging-face.md lists the kinds of models)",
    ),
    (".tar.gz", "an archive", "unpack the archive first"),
    (WEIGHTS, "a file of weights", "give the folder of this file, which has a config.json as well"),
];
/// The end of the names of weights.
const WEIGHTS: &str = ".safetensors";
/// Advice about a folder that has weights only.
const WEIGHTS_ALONE: &str = "the weights need the config.json that belongs to them: weir's (docs/checkpoints.md), or that of the \
                             model on Hugging Face (docs/hugging-face.md)";
/// The state of a run, which `models/training` writes.
const STATE: &str = "state.pt";
const GGUF: &str = "weir does not read GGUF, but it reads folders in Hugging Face's format (docs/hugging-face.md lists the kinds of \
                    models)";
const PYTORCH: &str = "`weir convert --help` lists the projects whose PyTorch checkpoints weir can convert";

/// Checks that a folder exists and has a `config.json`. The error says what is there.
pub fn check_folder(dir: &Path) -> Result<()> {
    check(dir, format!("a checkpoint (a folder with a {CONFIG_FILE})"), true)
}

/// Checks that the source of a conversion is a folder with a `config.json`; `expected` describes it. The error says what is there.
pub fn check_source(dir: &Path, expected: &str) -> Result<()> {
    check(dir, expected.to_owned(), false)
}

/// Lists what a folder has, for a message.
pub fn contents(dir: &Path) -> String {
    match &*names(dir) {
        [] => "the folder is empty".into(),
        names => format!("the folder has {}", listed(names)),
    }
}

/// Checks a folder as [`check_folder`] does. If `hints` is true, the error also has advice about files of [`FOREIGN`].
fn check(dir: &Path, expected: String, hints: bool) -> Result<()> {
    let wrong = |found: String| Err(Error::checkpoint(dir, "the folder", expected, found));
    let foreign = |names: &[String]| foreign(names).filter(|_| hints);
    let with_path = |advice: &str, path: &Path| advice.replace("PATH", &path.display().to_string());
    if dir.is_file() {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return wrong(match foreign(&[name]) {
            Some((STATE, kind, advice)) => format!("{kind}; {}", with_path(advice, parent(dir))),
            Some((_, kind, advice)) => format!("{kind}; {}", with_path(advice, dir)),
            None => "a file".into(),
        });
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
    let hint = match foreign(&names) {
        Some((WEIGHTS, ..)) => format!("; {WEIGHTS_ALONE}"),
        Some((.., advice)) => format!("; {}", with_path(advice, dir)),
        None => String::new(),
    };
    wrong(format!("no {CONFIG_FILE}; the folder has {}{hint}", listed(&names)))
}

/// Returns the folder of a file.
pub(super) fn parent(file: &Path) -> &Path {
    file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the first entry of [`FOREIGN`] that matches one of the files.
fn foreign(names: &[String]) -> Option<(&'static str, &'static str, &'static str)> {
    FOREIGN.into_iter().find(|(ending, ..)| names.iter().any(|name| name.ends_with(ending)))
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
    fn files_of_other_programs_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let shown = dir.path().display().to_string();
        let found = |file: &str| {
            std::fs::write(dir.path().join(file), "x").unwrap();
            let message = check_folder(&dir.path().join(file)).unwrap_err().to_string();
            std::fs::remove_file(dir.path().join(file)).unwrap();
            message.split_once(", found ").unwrap().1.to_owned()
        };
        let gguf = found("model.gguf");
        assert!(gguf.starts_with("a GGUF file; weir does not read GGUF, but it reads folders"), "{gguf}");
        assert!(found("best.pt").starts_with("a PyTorch file; `weir convert --help` lists"));
        let state = found("state.pt");
        assert!(state.contains(&format!("`python -m training.export --run {shown} --out MODEL`")), "{state}");
        assert!(found("model.safetensors").starts_with("a file of weights; give the folder"));
        assert_eq!(found("notes.txt"), "a file");
        std::fs::write(dir.path().join("model.safetensors"), "").unwrap();
        let alone = check_folder(dir.path()).unwrap_err().to_string();
        let missing =
            "found no config.json; the folder has model.safetensors; the weights need the config.json that belongs";
        assert!(alone.contains(missing), "{alone}");
        std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
        std::fs::write(dir.path().join("state.pt"), "").unwrap();
        let run = check_folder(dir.path()).unwrap_err().to_string();
        let line = format!("`python -m training.export --run {shown} --out MODEL` writes a checkpoint");
        assert!(run.contains("a run of weir's training") && run.ends_with(&line), "{run}");
    }

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
