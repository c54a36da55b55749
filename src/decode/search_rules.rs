//! Semantics of a search for texts, as checkpoints name them.

use serde::{Deserialize, Serialize};

/// The library whose search is followed. They differ in what may be generated and in when the search ends: see
/// [`beam`](super::beam).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchRules {
    /// fairseq's `SequenceGenerator`.
    #[default]
    Fairseq,
    /// `generate` of Hugging Face's transformers, version 5.
    Transformers,
}

/// When a beam search by the rules of transformers stops, after `beam` hypotheses have finished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Spelling", into = "Spelling")]
pub enum EarlyStopping {
    /// At once.
    True,
    /// When no running path has a better score at its present length than the worst of them.
    #[default]
    False,
    /// When no running path can reach a better score at any length up to the limit.
    Never,
}

/// The value in a file: true, false or "never".
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Spelling {
    Flag(bool),
    Word(String),
}

impl TryFrom<Spelling> for EarlyStopping {
    type Error = String;

    fn try_from(spelling: Spelling) -> Result<Self, String> {
        match spelling {
            Spelling::Flag(true) => Ok(Self::True),
            Spelling::Flag(false) => Ok(Self::False),
            Spelling::Word(word) if word == "never" => Ok(Self::Never),
            Spelling::Word(word) => Err(format!("{word:?}, expected true, false or \"never\"")),
        }
    }
}

impl From<EarlyStopping> for Spelling {
    fn from(early_stopping: EarlyStopping) -> Self {
        match early_stopping {
            EarlyStopping::True => Self::Flag(true),
            EarlyStopping::False => Self::Flag(false),
            EarlyStopping::Never => Self::Word("never".into()),
        }
    }
}
