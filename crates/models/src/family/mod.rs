//! Complete models, one paper a file. A family reads the `architecture` of a [`Config`] into a [`Blueprint`]: the required
//! tensors, and how to build a [`Model`] from them. Loading, `weir init`, `weir inspect` and the converters use only these.

pub mod blt;
pub mod decoder;
pub mod families;
pub mod hnet;
pub mod hourglass;
#[cfg(feature = "candle")]
pub mod hugging_face;
pub mod lslm;
pub mod parts;
pub mod pyramidion;
pub(crate) mod settings;
pub mod t5;
pub mod t5_layers;

use crate::checkpoint::{CONFIG_FILE, Config, Weights};
pub use crate::checkpoint::{Init, TensorSpec};
use crate::contract::{BoundaryMode, Card, Exactness, Model};
use crate::family::settings::{Bounds, Settings};
use crate::ngrams::NgramTable;
use std::{fmt::Debug, path::Path, sync::Arc};
use weir_kernels::error::Result;

/// Reads and validates a family's architecture; errors name `config.json` by the path.
pub type Reader = fn(&Config, &Path) -> Result<Box<dyn Blueprint>>;

/// A validated architecture.
pub trait Blueprint: Debug + Send + Sync {
    /// Every tensor that the checkpoint must hold, no more and no fewer.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// Returns a human-readable summary in one line.
    fn shape(&self) -> String;

    /// Subfolders of the entropy models that this model needs.
    fn entropy_models(&self) -> Vec<&str> {
        Vec::new()
    }

    /// True if the family reads documents and writes summaries; only then has its configuration generation options.
    fn reads_documents(&self) -> bool {
        false
    }

    /// True if the model can run without its pooling ([`Settings::unpooled`]).
    fn has_unpooled_baseline(&self) -> bool {
        false
    }

    /// True if symbols may be the tokens of a subword tokenizer.
    fn reads_tokens(&self) -> bool {
        self.reads_documents()
    }

    /// Numbers in tables that are computed from the tensors when the model is built, and kept next to them.
    fn computed_numbers(&self) -> usize {
        0
    }

    /// How exactly the model's results repeat, as the conformance suite demands it.
    fn exactness(&self) -> Exactness {
        Exactness::Bitwise
    }

    /// True if generations may feed drafts: see [`Card::speculates`].
    fn speculates(&self) -> bool {
        false
    }

    /// Limits of the model's sequences.
    fn bounds(&self) -> Bounds {
        Bounds::default()
    }

    /// Builds the model from `parts`, whose weights were checked. Fails if memory runs out or the settings do not suit it.
    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>>;
}

/// Everything that a model is built from.
pub struct Parts {
    /// The configuration that all families share.
    pub config: Config,
    /// The name that the model is served under.
    pub name: String,
    /// Its purpose, in a few words; empty if its card does not state one.
    pub scope: String,
    /// Its tensors.
    pub weights: Weights,
    /// SHA-256 of the weight files, in hexadecimal.
    pub sha256: String,
    /// The models that [`Blueprint::entropy_models`] named, in that order.
    pub entropy_models: Vec<Arc<dyn Model>>,
    /// The checkpoint's n-grams, if it has any and the family speculates.
    pub ngrams: Option<Arc<NgramTable>>,
    /// Threads, memory, limits.
    pub settings: Settings,
}

impl Parts {
    /// Returns the card of a model without pooling, boundary modes and start symbol. Fails if the settings ask for too many
    /// symbols.
    pub fn card(&self, family: &'static str, blueprint: &dyn Blueprint) -> Result<Card> {
        let (max_symbols, max_symbols_why) = self.settings.longest(self.config.training_length, blueprint.bounds())?;
        let tensors = blueprint.tensors();
        Ok(Card {
            name: self.name.clone(),
            scope: self.scope.clone(),
            family,
            shape: blueprint.shape(),
            parameters: tensors.iter().filter(|tensor| tensor.trained).map(TensorSpec::numbers).sum(),
            vocabulary: self.config.vocabulary(Path::new(CONFIG_FILE))?,
            training_length: self.config.training_length,
            max_symbols,
            max_symbols_why,
            boundary_modes: vec![BoundaryMode::Given],
            boundary_threshold: None,
            first_logits: None,
            pooled: false,
            begins_chunks: false,
            speculates: blueprint.speculates(),
            ngrams: self.ngrams.clone(),
            unpooled_baseline: false,
            dtype: self.settings.dtype.name(),
            isa: self.settings.isa,
            sha256: self.sha256.clone(),
            exactness: blueprint.exactness(),
            sampling: self.config.sampling,
        })
    }
}
