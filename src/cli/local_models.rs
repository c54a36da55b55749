//! Finds the model that an argument names: a folder, a model in the user's data folder, or the embedded model.

use crate::{
    error::quoted,
    family::checkpoint::{CONFIG_FILE, CheckpointSource, source::DEFAULT_CHECKPOINT},
};
use std::{
    ffi::OsString,
    path::{Component, Path, PathBuf},
};

/// Environment variable with the data folder.
pub(super) const DATA_VARIABLE: &str = "WEIR_DATA";
/// Maximum names that a message lists.
const LISTED: usize = 20;

/// Returns the folder of the user's models: `models` in the data folder. `None` if no environment variable determines it.
pub(super) fn models_folder() -> Option<PathBuf> {
    data_folder(|name| std::env::var_os(name)).map(|data| data.join("models"))
}

/// Returns the user's data folder, as the XDG Base Directory Specification places it. Empty variables do not count, nor does a
/// relative path in `XDG_DATA_HOME`.
fn data_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let shared = || path("XDG_DATA_HOME").filter(|path| path.is_absolute());
    let windows = || path("LOCALAPPDATA").filter(|_| cfg!(windows));
    let home = || path("HOME").map(|home| home.join(".local/share"));
    path(DATA_VARIABLE).or_else(|| shared().or_else(windows).or_else(home).map(|share| share.join("weir")))
}

/// Finds the model that an argument names. An argument with a separator, or that exists in the current folder, is a path. Another
/// name is looked up in the user's models folder and among the embedded models. The error lists what was tried, and which models are
/// available.
pub(super) fn find(argument: &Path) -> Result<CheckpointSource, String> {
    find_in(argument, models_folder().as_deref())
}

fn find_in(argument: &Path, models: Option<&Path>) -> Result<CheckpointSource, String> {
    let text = argument.to_string_lossy();
    let is_url = text.contains("://");
    if (is_url || text.starts_with("hf:")) && !argument.exists() {
        let expected = "expected a folder or the name of a model (`weir pull` downloads a model and gives it a name)";
        // A URL may have a password.
        return Err(format!("{expected}, found {}", if is_url { "a URL".to_owned() } else { quoted(&text) }));
    }
    let Some(name) = plain_name(argument).filter(|_| !argument.exists()) else { return Ok(argument.into()) };
    let own = models.map(|models| models.join(name));
    match &own {
        Some(folder) if folder.is_dir() => Ok(folder.as_path().into()),
        _ if name == DEFAULT_CHECKPOINT.name => Ok(CheckpointSource::Embedded(&DEFAULT_CHECKPOINT)),
        _ => Err(unknown(name, own.as_deref(), models)),
    }
}

/// Returns the argument if it is one plain name: it has no separator, and is neither empty nor `.` or `..`.
pub(super) fn plain_name(argument: &Path) -> Option<&str> {
    let mut components = argument.components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(only)), None) if only == argument.as_os_str() => {
            only.to_str().filter(|name| !name.contains(['/', '\\']))
        }
        _ => None,
    }
}

fn unknown(name: &str, own: Option<&Path>, models: Option<&Path>) -> String {
    let own = own.map_or_else(
        || format!("no data folder, as {DATA_VARIABLE}, XDG_DATA_HOME and HOME are not set"),
        |own| own.display().to_string(),
    );
    let found = models.map(names_in).unwrap_or_default();
    let more = found.len().saturating_sub(LISTED);
    let mut known: Vec<_> = found.into_iter().take(LISTED).collect();
    if more > 0 {
        known.push(format!("{more} more"));
    }
    known.push(format!("{} (embedded)", DEFAULT_CHECKPOINT.name));
    let known = known.join(", ");
    format!(
        "expected one of {known}, or a folder, found {} (tried ./{name}, {own} and the embedded model)",
        quoted(name)
    )
}

/// Names of the checkpoints in a folder, sorted. A name that begins with a dot belongs to an unfinished download.
fn names_in(models: &Path) -> Vec<String> {
    let entries = models.read_dir().into_iter().flatten().flatten();
    let checkpoints = entries.filter(|entry| entry.path().join(CONFIG_FILE).is_file());
    let names = checkpoints.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_data_folder_follows_the_environment() {
        let found = |set: &[(&str, &str)]| {
            data_folder(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        let folder = |path: &str| Some(PathBuf::from(path));
        assert_eq!(found(&[("WEIR_DATA", "/w"), ("XDG_DATA_HOME", "/x"), ("HOME", "/h")]), folder("/w"));
        assert_eq!(found(&[("WEIR_DATA", ""), ("XDG_DATA_HOME", "/x"), ("HOME", "/h")]), folder("/x/weir"));
        assert_eq!(found(&[("XDG_DATA_HOME", "relative"), ("HOME", "/h")]), folder("/h/.local/share/weir"));
        assert_eq!(found(&[("HOME", "/h")]), folder("/h/.local/share/weir"));
        assert_eq!(found(&[("HOME", "")]), None);
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn names_are_looked_up_and_paths_are_not() {
        let models = tempfile::tempdir().unwrap();
        let own = models.path().join("own");
        for name in ["own", "other", ".partial"] {
            fs::create_dir(models.path().join(name)).unwrap();
            fs::write(models.path().join(name).join(CONFIG_FILE), "{}").unwrap();
        }
        let find = |argument: &str| find_in(Path::new(argument), Some(models.path())).map(|source| source.path());
        assert_eq!(find("own"), Ok(own.clone()));
        assert_eq!(find(DEFAULT_CHECKPOINT.name), Ok(CheckpointSource::default().path()));
        // A model of the user replaces the embedded one of the same name.
        fs::create_dir(models.path().join(DEFAULT_CHECKPOINT.name)).unwrap();
        assert_eq!(find(DEFAULT_CHECKPOINT.name), Ok(models.path().join(DEFAULT_CHECKPOINT.name)));
        for path in ["./own", "src", "own/", "..", own.to_str().unwrap(), "nowhere/own"] {
            assert_eq!(find(path), Ok(PathBuf::from(path)), "{path}");
        }
        for (remote, found) in [("hf:org/none", "\"hf:org/none\""), ("https://user:secret@example.com/none", "a URL")] {
            assert!(find(remote).unwrap_err().ends_with(&format!("gives it a name), found {found}")));
        }
        let message = find("none").unwrap_err();
        let listed = "expected one of other, own, hourglass-english (embedded), or a folder, found \"none\" (";
        assert!(message.contains(models.path().join("none").to_str().unwrap()), "{message}");
        assert!(message.starts_with(listed), "{message}");
        let message = find_in(Path::new("none"), None).unwrap_err();
        assert!(message.contains("WEIR_DATA") && message.contains("(embedded)"), "{message}");
    }
}
