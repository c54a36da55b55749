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

impl SearchRules {
    /// Its name in checkpoints and in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fairseq => "fairseq",
            Self::Transformers => "transformers",
        }
    }
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

impl EarlyStopping {
    /// All values.
    pub const ALL: [Self; 3] = [Self::True, Self::False, Self::Never];

    /// Its name in the API and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::False => "false",
            Self::Never => "never",
        }
    }

    /// Returns the value of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|value| value.name() == name)
    }
}

/// The value in a file: true, false or "never".
#[derive(Deserialize, Serialize)]
#[serde(untagged, expecting = "true, false or \"never\"")]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_names_and_spellings() {
        for (value, name, json) in [
            (EarlyStopping::True, "true", "true"),
            (EarlyStopping::False, "false", "false"),
            (EarlyStopping::Never, "never", "\"never\""),
        ] {
            assert_eq!((value.name(), EarlyStopping::parse(name)), (name, Some(value)));
            assert_eq!(serde_json::from_str::<EarlyStopping>(json).unwrap(), value);
            assert_eq!(serde_json::to_string(&value).unwrap(), json);
        }
        assert_eq!(EarlyStopping::parse("True"), None);
        for rules in [SearchRules::Fairseq, SearchRules::Transformers] {
            assert_eq!(serde_json::to_value(rules).unwrap(), rules.name());
        }
    }
}
