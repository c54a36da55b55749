//! Checkpoints on disk: format `weir/1` (docs/checkpoints.md), in a folder or in the program. Files may come from anywhere, so every
//! number in them is checked against the configuration before memory is allocated for it. An error names file, key, expected and actual
//! value.

pub mod config;
pub mod file_dtype;
pub mod files;
pub mod hugging_face;
pub mod row_table;
pub mod weights;
pub mod writer;

pub(crate) use crate::checkpoint::files::require;
use crate::checkpoint::weights::{UnusedTensors, check_headers, read_weights_with};
pub use crate::checkpoint::{
    config::{CONFIG_FILE, Config, VocabularyConfig, architecture},
    weights::{
        Column, FileDtype, INDEX_FILE, Init, PICKLE_FILE, PICKLE_INDEX_FILE, Tensor, TensorSpec, WEIGHTS_FILE, Weights,
        read_from, read_weights, read_weights_with_progress,
    },
    writer::{Writer, WrittenCheckpoint},
};
use std::{
    fmt,
    path::{Path, PathBuf},
};
use weir_kernels::error::{Error, Result, clip};

/// The default model. The program contains it, so that it runs without any other file.
pub static DEFAULT_CHECKPOINT: EmbeddedCheckpoint = EmbeddedCheckpoint {
    name: "hourglass-english",
    config: include_bytes!("../../default-model/config.json"),
    card: include_bytes!("../../default-model/card.json"),
    weights: include_bytes!("../../default-model/model.safetensors"),
};

/// The files of a checkpoint that is part of the program.
pub struct EmbeddedCheckpoint {
    /// The model's name.
    pub name: &'static str,
    config: &'static [u8],
    card: &'static [u8],
    /// The bytes of `model.safetensors`.
    pub weights: &'static [u8],
}

impl fmt::Debug for EmbeddedCheckpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "EmbeddedCheckpoint({:?}, {} bytes)", self.name, self.weights.len())
    }
}

/// The place of a checkpoint's files. The default is the model that the program contains.
///
/// ```
/// use std::path::Path;
/// use weir_models::checkpoint::CheckpointSource;
///
/// assert_eq!(CheckpointSource::default().path(), Path::new("embedded:hourglass-english"));
/// let source = CheckpointSource::from(Path::new("models/my-model"));
/// assert_eq!(source.name(), "my-model");
/// ```
#[derive(Debug, Clone)]
pub enum CheckpointSource {
    /// A folder.
    Folder(PathBuf),
    /// A checkpoint that the program contains.
    Embedded(&'static EmbeddedCheckpoint),
}

impl From<&Path> for CheckpointSource {
    fn from(folder: &Path) -> Self {
        Self::Folder(folder.to_owned())
    }
}

impl Default for CheckpointSource {
    fn default() -> Self {
        Self::Embedded(&DEFAULT_CHECKPOINT)
    }
}

impl fmt::Display for CheckpointSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path().display().fmt(out)
    }
}

impl CheckpointSource {
    /// Returns the folder, unless the checkpoint is embedded.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(folder) => Some(folder),
            Self::Embedded(_) => None,
        }
    }

    /// Returns the path for messages: the folder, or `embedded:NAME`, which no file system resolves.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Folder(folder) => folder.clone(),
            Self::Embedded(checkpoint) => PathBuf::from(format!("embedded:{}", checkpoint.name)),
        }
    }

    /// Returns the path of the configuration, for messages.
    pub fn config_file(&self) -> PathBuf {
        self.path().join(CONFIG_FILE)
    }

    /// Returns the default name of the model: the folder's name, or the embedded checkpoint's.
    pub fn name(&self) -> String {
        let folder = match self {
            Self::Folder(folder) => folder,
            Self::Embedded(checkpoint) => return checkpoint.name.to_owned(),
        };
        // a link keeps its own name; `.` and `..` have none
        let full =
            if folder.file_name().is_some() { folder.clone() } else { folder.canonicalize().unwrap_or_default() };
        full.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
    }

    /// Returns the checkpoint of the entropy model in a subfolder. Fails for an embedded checkpoint, which has no subfolders.
    pub fn entropy_model(&self, name: &str) -> Result<Self> {
        match self {
            Self::Folder(folder) => Ok(Self::Folder(folder.join(name))),
            Self::Embedded(_) => {
                let expected = "a checkpoint without entropy models, as this one is embedded";
                Err(Error::checkpoint(
                    self.config_file(),
                    "architecture",
                    expected,
                    format!("the entropy model {name:?}"),
                ))
            }
        }
    }

    /// Reads the configuration. Fails as [`Config::read`] does.
    pub fn config(&self) -> Result<Config> {
        match self {
            Self::Folder(folder) => Config::read(folder),
            Self::Embedded(checkpoint) => Config::parse(checkpoint.config, &self.config_file()),
        }
    }

    /// Checks that the card states a digest of the weights. Fails if it does not.
    pub fn require_digest(&self) -> Result<()> {
        weights::require_digest(self.card()?, &self.path())
    }

    /// Checks that the weights have the tensors of `specs`, without reading elements. Only a folder of Hugging Face may have other tensors.
    pub fn check_headers(&self, specs: &[TensorSpec]) -> Result<()> {
        match self {
            Self::Folder(folder) => check_headers(folder, specs, unused_tensors(folder)),
            Self::Embedded(_) => self.weights(specs, &mut |_, _| {}).map(|_| ()),
        }
    }

    /// Reads the files of a folder's weights and compares their digest with the one that the card states, if it states one: loading does
    /// not, if `specs` has tables. Fails if they differ.
    pub fn check_tables(&self, specs: &[TensorSpec]) -> Result<()> {
        match self {
            Self::Folder(folder) if specs.iter().any(|spec| spec.stays_in_file) => weights::check_files(folder),
            _ => Ok(()),
        }
    }

    /// Compares a digest of the weights with the one that the card states, if it states one. Fails if they differ.
    pub fn check_digest(&self, sha256: &str) -> Result<()> {
        weights::check_digest(self.card()?, &self.path(), sha256)
    }

    /// Returns what the model is for, as its card says; empty if the card does not say.
    pub fn scope(&self) -> Result<String> {
        Ok(self.card()?.map(|card| clip(&card.scope, weights::MAX_SCOPE)).unwrap_or_default())
    }

    fn card(&self) -> Result<Option<weights::Card>> {
        match self {
            Self::Folder(folder) => weights::read_card(folder),
            Self::Embedded(checkpoint) => {
                weights::parse_card(checkpoint.card, &self.path().join(weights::CARD_FILE)).map(Some)
            }
        }
    }

    /// Reads the tensors of `specs`, and the SHA-256 of the weights. Only a folder of Hugging Face may have other tensors. Reports bytes
    /// read and to read to `progress`.
    pub fn weights(&self, specs: &[TensorSpec], progress: &mut dyn FnMut(u64, u64)) -> Result<(Weights, String)> {
        let checkpoint = match self {
            Self::Folder(folder) => return read_weights_with(folder, specs, unused_tensors(folder), progress),
            Self::Embedded(checkpoint) => checkpoint,
        };
        let size = checkpoint.weights.len() as u64;
        let (weights, sha256) = read_from(checkpoint.weights, size, &self.path().join(WEIGHTS_FILE), specs)?;
        self.check_digest(&sha256)?;
        progress(size, size);
        Ok((weights, sha256))
    }
}

/// Returns whether tensors that a folder's model does not use are refused or ignored.
fn unused_tensors(folder: &Path) -> UnusedTensors {
    if config::has_format(folder) { UnusedTensors::Refused } else { UnusedTensors::Ignored }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::families::blueprint;

    /// Maximum size of the embedded files. They are a part of every copy of the program.
    const MAX_BYTES: usize = 16 << 20;

    #[test]
    fn the_embedded_checkpoint_is_the_shipped_one() {
        let embedded = CheckpointSource::default();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(DEFAULT_CHECKPOINT.name);
        let shipped = CheckpointSource::from(folder.as_path());
        assert_eq!(embedded.name(), shipped.name());
        let read = |source: &CheckpointSource| {
            source.require_digest().unwrap();
            let specs = blueprint(&source.config().unwrap(), &source.config_file()).unwrap().tensors();
            let mut reported = (0, 0);
            let (weights, sha256) = source.weights(&specs, &mut |done, total| reported = (done, total)).unwrap();
            assert!(reported.0 == reported.1 && reported.0 as usize <= MAX_BYTES, "{reported:?}");
            let tensors: Vec<_> = specs.iter().map(|spec| weights.get(&spec.name).cloned().unwrap()).collect();
            (sha256, tensors)
        };
        assert_eq!(read(&embedded), read(&shipped));
    }

    #[test]
    fn errors_name_the_embedded_files() {
        let embedded = CheckpointSource::default();
        assert_eq!(embedded.to_string(), "embedded:hourglass-english");
        let error = embedded.weights(&[], &mut |_, _| {}).unwrap_err().to_string();
        assert!(error.starts_with("embedded:hourglass-english/model.safetensors: "), "{error}");
        let error = embedded.entropy_model("small").unwrap_err().to_string();
        assert!(error.contains("without entropy models") && error.contains("small"), "{error}");
    }
}
