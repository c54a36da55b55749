//! Result of reading a source, and helpers of its errors.

use crate::{
    error::Error,
    family::checkpoint::{Config, Weights},
};

/// A checkpoint that was read from another format.
#[derive(Debug)]
pub struct Converted {
    /// Its configuration in weir's terms.
    pub config: Config,
    /// The tensors that the configuration asks for, under weir's names.
    pub weights: Weights,
}

/// Replaces the key of a checkpoint error by its name in the table of (weir's, source's) names; `otherwise` renames the rest.
pub(super) fn rename_key(error: Error, names: &[(&str, &str)], otherwise: impl Fn(&str) -> String) -> Error {
    match error {
        Error::Checkpoint { file, key, expected, found } => {
            let renamed = names.iter().find(|(weir, _)| *weir == key).map(|(_, source)| (*source).to_owned());
            Error::Checkpoint { file, key: renamed.unwrap_or_else(|| otherwise(&key)), expected, found }
        }
        other => other,
    }
}
