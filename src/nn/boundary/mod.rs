//! Boundary sources: where segments end. A boundary at t means that the segment ends **with** symbol t.
//!
//! To add one: a file with its type, a variant of [`BoundaryConfig`], and its arms in the tables below. What a source may
//! look at is [`Evidence`]; a family provides all of it, in bulk and step alike, so a source is written once.

pub mod fixed;
pub mod learned;
pub mod spikes;
pub mod summed;
pub mod whitespace;

use super::Place;
use crate::{
    error::Result,
    kernels::{Compute, linear::Linear},
};
use serde::Deserialize;

/// What a checkpoint's `boundaries` says.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BoundaryConfig {
    /// No segments: the vanilla model.
    None {},
    /// Positions 0, k, 2k …
    Fixed {
        /// k
        every: usize,
    },
    /// After this symbol.
    Whitespace {
        /// One character of the vocabulary.
        symbol: String,
    },
    /// A learned predictor on the pre stack's output.
    Learned {
        /// Width of its hidden layer.
        hidden: usize,
        /// Boundary if the probability is above this.
        threshold: f32,
    },
    /// Spikes in a companion model's conditional entropy.
    EntropySpikes {
        /// How many earlier entropies a spike must exceed.
        window: usize,
        /// The companion's subfolder.
        companion: String,
    },
}

/// Finds the id of a character in a vocabulary, if it is a symbol.
pub type IdOf<'a> = &'a dyn Fn(char) -> Option<u32>;

/// A key that is wrong, what was expected, what was found.
type Wrong = (&'static str, String, String);

impl BoundaryConfig {
    /// Whether it ever closes a segment.
    pub fn pools(&self) -> bool {
        !matches!(self, Self::None {})
    }

    /// Its name in a checkpoint.
    pub fn name(&self) -> &'static str {
        match self {
            Self::None {} => "none",
            Self::Fixed { .. } => "fixed",
            Self::Whitespace { .. } => "whitespace",
            Self::Learned { .. } => "learned",
            Self::EntropySpikes { .. } => "entropy-spikes",
        }
    }

    /// A few words for people.
    pub fn describe(&self) -> String {
        match self {
            Self::None {} => "no boundaries (vanilla)".into(),
            Self::Fixed { every } => format!("boundaries every {every}"),
            Self::Whitespace { symbol } => format!("boundaries after {symbol:?}"),
            Self::Learned { .. } => "learned boundaries".into(),
            Self::EntropySpikes { window, .. } => format!("boundaries at entropy spikes, window {window}"),
        }
    }

    /// Width of a learned predictor's hidden layer; 0 if there is none.
    pub fn hidden(&self) -> usize {
        if let Self::Learned { hidden, .. } = self { *hidden } else { 0 }
    }

    /// The companion's subfolder, if one is needed.
    pub fn companion(&self) -> Option<&str> {
        if let Self::EntropySpikes { companion, .. } = self { Some(companion) } else { None }
    }

    /// Checks bounds.
    ///
    /// # Errors
    /// The key, what it must be, and what it is.
    pub fn validate(&self, id_of: IdOf<'_>) -> Result<(), Wrong> {
        const MAX: usize = 1 << 20;
        let bounded = |key, value: usize| {
            let within = (1..=MAX).contains(&value);
            if within { Ok(()) } else { Err((key, format!("1 to {MAX}"), value.to_string())) }
        };
        match self {
            Self::None {} => Ok(()),
            Self::Fixed { every } => bounded("every", *every),
            Self::Whitespace { symbol } => match whitespace::Whitespace::new(symbol, id_of) {
                Some(_) => Ok(()),
                None => Err(("symbol", "one character of the vocabulary".into(), format!("{symbol:?}"))),
            },
            Self::Learned { hidden, threshold } => {
                bounded("hidden", *hidden)?;
                let within = *threshold > 0.0 && *threshold < 1.0;
                if within { Ok(()) } else { Err(("threshold", "above 0, below 1".into(), threshold.to_string())) }
            }
            Self::EntropySpikes { window, companion } => {
                bounded("window", *window)?;
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                if !companion.is_empty() && companion.chars().all(plain) {
                    return Ok(());
                }
                Err(("companion", "a subfolder's name: letters, digits, - and _".into(), format!("{companion:?}")))
            }
        }
    }
}

/// What a source may look at: one entry or row for each symbol of a step.
pub struct Evidence<'a> {
    /// Where the symbols stand.
    pub places: &'a [Place],
    /// The symbols.
    pub symbols: &'a [u32],
    /// Their positions in the streams that the sequences are cut from.
    pub stream_positions: &'a [usize],
    /// The pre stack's output, (rows, D).
    pub hidden: &'a [f32],
    /// Uniform noise for the rows whose boundaries are sampled; none for those decided by threshold.
    pub noise: &'a [Option<f32>],
    /// A sequence's conditional entropies (nats) by the companion, from position 0 to at least its last row here; empty
    /// where there is no companion.
    pub entropies: &'a dyn Fn(usize) -> Result<&'a [f64]>,
}

/// What a source says of one symbol.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// Whether a segment ends with it.
    pub closes: bool,
    /// A learned predictor's output.
    pub probability: Option<f32>,
}

impl Verdict {
    fn certain(closes: bool) -> Self {
        Self { closes, probability: None }
    }
}

/// A boundary source, ready to decide.
pub enum Boundaries {
    /// No segments.
    None,
    /// See [`fixed::Fixed`].
    Fixed(fixed::Fixed),
    /// See [`whitespace::Whitespace`].
    Whitespace(whitespace::Whitespace),
    /// See [`learned::Learned`].
    Learned(learned::Learned),
    /// See [`spikes::Spikes`].
    Spikes(spikes::Spikes),
}

impl Boundaries {
    /// Appends one verdict for each row.
    ///
    /// # Errors
    /// Evidence that is missing.
    pub fn decide(
        &self,
        compute: &Compute,
        evidence: &Evidence<'_>,
        work: &mut learned::Work,
        verdicts: &mut Vec<Verdict>,
    ) -> Result<()> {
        let places = evidence.places.iter();
        match self {
            Self::None => verdicts.extend(places.map(|_| Verdict::certain(false))),
            Self::Fixed(source) => {
                verdicts.extend(evidence.stream_positions.iter().map(|&t| Verdict::certain(source.closes(t))));
            }
            Self::Whitespace(source) => {
                verdicts.extend(evidence.symbols.iter().map(|&symbol| Verdict::certain(source.closes(symbol))));
            }
            Self::Learned(source) => source.decide(compute, evidence, work, verdicts),
            Self::Spikes(source) => {
                for place in places {
                    let entropies = (evidence.entropies)(place.sequence)?;
                    verdicts.push(Verdict::certain(source.closes(entropies, place.position)));
                }
            }
        }
        Ok(())
    }

    /// The matrices that a decision multiplies with.
    pub fn matrices(&self) -> Vec<&Linear> {
        match self {
            Self::Learned(source) => vec![&source.hidden, &source.output],
            Self::None | Self::Fixed(_) | Self::Whitespace(_) | Self::Spikes(_) => Vec::new(),
        }
    }

    /// The most segments that so many symbols can close.
    pub fn most_segments(&self, symbols: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Fixed(source) => source.segments(symbols),
            Self::Whitespace(_) | Self::Learned(_) | Self::Spikes(_) => symbols,
        }
    }
}
