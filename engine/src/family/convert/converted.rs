//! Result of reading a source, and helpers that several readers share.

use crate::{
    error::{Error, Result},
    family::checkpoint::{Config, Weights, folder::check_source, json::read_limited},
};
use std::path::{Path, PathBuf};

/// A checkpoint that was read from another format.
#[derive(Debug)]
pub(super) struct Converted {
    /// Its configuration in weir's terms.
    pub config: Config,
    /// The tensors that the configuration asks for, under weir's names.
    pub weights: Weights,
}

/// Returns the source's name for one of weir's names, from a table of both.
pub(super) fn source_name<'a>(names: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    names.iter().find(|(weir, _)| *weir == name).map(|(_, source)| *source)
}

/// Replaces the key of a checkpoint error by its name in the table of (weir's, source's) names; `otherwise` renames the rest.
pub(super) fn rename_key(error: Error, names: &[(&str, &str)], otherwise: impl Fn(&str) -> String) -> Error {
    match error {
        Error::Checkpoint { file, key, expected, found } => {
            let key = source_name(names, &key).map_or_else(|| otherwise(&key), str::to_owned);
            Error::Checkpoint { file, key, expected, found }
        }
        other => other,
    }
}

/// Reads the `config.json` of a source. The error of a missing file says what its folder has.
pub(super) fn read_config(file: &Path) -> Result<Vec<u8>> {
    if let Some(dir) = file.parent() {
        check_source(dir, "a checkpoint (a folder with a config.json)")?;
    }
    read_limited(file, 16 << 20)
}

/// Returns the file with this extension in a folder, if there is one. Fails if there are several; `expected` is for the message.
pub(super) fn only_file(dir: &Path, extension: &str, expected: &str) -> Result<Option<PathBuf>> {
    let mut found = Vec::new();
    for entry in dir.read_dir().map_err(Error::io(dir))? {
        let path = entry.map_err(Error::io(dir))?.path();
        if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        count => Err(Error::checkpoint(dir, "the folder", expected, count.to_string())),
    }
}
