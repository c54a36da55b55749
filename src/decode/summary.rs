//! What a request for a summary may ask for, and what is told of a document. Pure data: ids, not text.

use super::{
    beam::{Hypothesis, SearchOptions},
    contract::Card,
    document::{Document, DocumentLimits, EncodingStage, LayerTime, PoolingChoice},
    options::FinishReason,
    usage::{Timing, Usage},
};
use crate::error::{Error, Result};

/// A request for a summary. What is not given is what the model's checkpoint says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summarize {
    /// Hypotheses that are followed.
    pub beam: Option<usize>,
    /// The power of the length that scores are divided by.
    pub length_penalty: Option<f32>,
    /// Tokens before the end mark, at least.
    pub min_tokens: Option<usize>,
    /// And at most.
    pub max_tokens: Option<usize>,
    /// No run of so many tokens is written twice; 0: no such rule.
    pub no_repeat_ngram: Option<usize>,
    /// Draw tokens instead of searching for the best: `beam` texts.
    pub sampling: Option<super::options::Sampling>,
    /// Take each vector that a pooling keeps as it is, where the model would mix others into it; none: as a document that is kept
    /// was read, and not otherwise.
    pub hard: Option<bool>,
    /// Hypotheses to tell, at most as many as the beam; 1 if not given.
    pub hypotheses: Option<usize>,
}

/// The most that options may be, told to clients.
#[derive(Debug, Clone, Copy)]
pub struct SummaryLimits;

impl SummaryLimits {
    /// Hypotheses that are followed.
    pub const BEAM: usize = 64;
    /// Tokens of a run that is not repeated.
    pub const NGRAM: usize = 64;
    /// The length penalty, either way.
    pub const PENALTY: f32 = 10.0;
}

/// A request that was looked at: what is followed, and how many hypotheses are told.
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryPlan {
    /// How the text is written.
    pub rules: SearchOptions,
    /// Hypotheses that are told.
    pub hypotheses: usize,
    /// Whether vectors are kept as they are, if that was asked for either way.
    pub hard: Option<bool>,
}

impl Summarize {
    /// The same with what is not given filled in, within the bounds, the model's, and the `rows` that may run at once.
    ///
    /// # Errors
    /// [`Error::BadOption`], naming the field.
    pub fn plan(&self, card: &Card, limits: &DocumentLimits, rows: usize) -> Result<SummaryPlan> {
        let given = limits.generation;
        // the mark that every text begins with is a symbol of it
        let most = limits.targets.saturating_sub(1);
        // fairseq weighs twice as many continuations as there are paths, and there must be so many
        let beams = SummaryLimits::BEAM.min(rows).min(card.vocabulary.len().saturating_sub(1) / 2).max(1);
        let beam = self.beam.unwrap_or_else(|| given.beam.min(beams));
        within("options.beam_size", beam, 1..=beams)?;
        let max_tokens = match (self.max_tokens, self.min_tokens) {
            (Some(max), _) => max,
            (None, min) => given.max_tokens.min(most).max(min.unwrap_or(0)),
        };
        within("options.max_tokens", max_tokens, 1..=most)?;
        let min_tokens = self.min_tokens.unwrap_or_else(|| given.min_tokens.min(max_tokens));
        within("options.min_tokens", min_tokens, 0..=max_tokens)?;
        let no_repeat_ngram = self.no_repeat_ngram.unwrap_or(given.no_repeat_ngram);
        if no_repeat_ngram == 1 || no_repeat_ngram > SummaryLimits::NGRAM {
            let bound = format!("0 for no such rule, or 2 to {}", SummaryLimits::NGRAM);
            return Err(bad("options.no_repeat_ngram", no_repeat_ngram, bound));
        }
        let length_penalty = self.length_penalty.unwrap_or(given.length_penalty);
        // what is no number is out of bounds, too
        let bounded = length_penalty.abs() <= SummaryLimits::PENALTY;
        if !bounded {
            let bound = format!("{} to {}", -SummaryLimits::PENALTY, SummaryLimits::PENALTY);
            return Err(bad("options.length_penalty", length_penalty, bound));
        }
        let hypotheses = self.hypotheses.unwrap_or(1);
        within("options.hypotheses", hypotheses, 1..=beam)?;
        if let Some(sampling) = &self.sampling {
            sampling.validate(card)?;
        }
        let sampling = self.sampling.clone();
        let rules = SearchOptions { beam, length_penalty, min_tokens, max_tokens, no_repeat_ngram, sampling };
        Ok(SummaryPlan { rules, hypotheses, hard: self.hard })
    }
}

fn within(field: &'static str, found: usize, bound: std::ops::RangeInclusive<usize>) -> Result<()> {
    if bound.contains(&found) {
        return Ok(());
    }
    Err(bad(field, found, format!("{} to {}", bound.start(), bound.end())))
}

fn bad(field: &'static str, found: impl ToString, bound: String) -> Error {
    Error::BadOption { field, found: found.to_string(), bound }
}

/// A token's bytes in its text, from the first to the one after the last.
pub type ByteRange = (u64, u64);

/// A document that was encoded, without its keys and values.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedDocument {
    /// Where its tokens stand in the text as it came, if it came as text.
    pub places: Vec<ByteRange>,
    /// Tokens that were read, the end mark included.
    pub tokens: usize,
    /// Whether the text went on.
    pub cut: bool,
    /// Vectors that the decoder attends to.
    pub vectors: usize,
    /// Bytes of their keys and values.
    pub bytes: usize,
    /// The same, if nothing had been pooled.
    pub unpooled_bytes: usize,
    /// What each pooling that chooses has chosen.
    pub choices: Vec<PoolingChoice>,
    /// What the encoder's layers took, in order.
    pub layers: Vec<LayerTime>,
    /// What making the keys and values took, in nanoseconds.
    pub memory_ns: u64,
}

impl EncodedDocument {
    /// Of a document.
    pub fn of(document: &dyn Document, places: Vec<ByteRange>, cut: bool) -> Self {
        Self {
            places,
            cut,
            tokens: document.tokens(),
            vectors: document.vectors(),
            bytes: document.bytes(),
            unpooled_bytes: document.unpooled_bytes(),
            choices: document.choices().to_vec(),
            layers: document.timings().to_vec(),
            memory_ns: document.memory_ns(),
        }
    }

    /// Bytes that this occupies.
    pub fn own_bytes(&self) -> usize {
        let kept: usize = self.choices.iter().map(|choice| size_of_val(choice.kept.as_slice())).sum();
        size_of::<Self>() + size_of_val(self.places.as_slice()) + size_of_val(self.layers.as_slice()) + kept
    }
}

/// What some of a document's poolings have chosen, before it is encoded.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolingUpdate {
    /// Of the poolings that were not told of before.
    pub choices: Vec<PoolingChoice>,
    /// Where its tokens stand in the text as it came, if it came as text.
    pub places: Vec<ByteRange>,
    /// Tokens that were read, the end mark included.
    pub tokens: usize,
}

/// How far a document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentProgress {
    /// What comes next.
    pub stage: EncodingStage,
    /// Tokens that have come.
    pub tokens: usize,
    /// Blocks that ran.
    pub blocks: usize,
    /// Blocks in all, once the whole document has come.
    pub total: Option<usize>,
}

/// How a summary ended.
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryResult {
    /// The best hypotheses, best first. None only if every continuation was forbidden.
    pub hypotheses: Vec<Hypothesis>,
    /// Under what the document is kept, if it is.
    pub document_id: Option<String>,
    /// Whether the best hypothesis ended by itself.
    pub reason: FinishReason,
    /// Tokens of the document and of the best hypothesis.
    pub usage: Usage,
    /// Where the time went: `prefill` is the encoding.
    pub timing: Timing,
    /// What was waited for.
    pub waits: DocumentWaits,
}

/// What of a summary's time was spent on its document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DocumentWaits {
    /// From the job's row to the end of the document's arrival, in nanoseconds; nothing of one that was kept.
    pub arrival_ns: u64,
    /// From then to the end of its encoding.
    pub rest_ns: u64,
    /// Blocks that had run by the end of its arrival.
    pub blocks_at_end: usize,
    /// Blocks in all.
    pub blocks: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decode::document::{GenerationDefaults, SpecialIds},
        text::{TextNormaliser, Vocabulary},
    };
    use std::sync::Arc;

    fn card(symbols: usize) -> Card {
        let symbols: Vec<String> = (0..symbols as u32).map(|at| char::from_u32(97 + at).unwrap().into()).collect();
        Card {
            name: "m".into(),
            family: "fake",
            shape: String::new(),
            parameters: 0,
            vocabulary: Arc::new(Vocabulary::from_symbols(&symbols, TextNormaliser::None).unwrap()),
            training_length: 8,
            max_symbols: 100,
            max_symbols_why: None,
            boundary_modes: Vec::new(),
            first_logits: None,
            pooled: true,
            dtype: "f32",
            sha256: String::new(),
        }
    }

    fn limits() -> DocumentLimits {
        let marks = SpecialIds { start: 2, pad: 1, end: 2, unknown: 3 };
        let generation =
            GenerationDefaults { beam: 3, length_penalty: 1.5, min_tokens: 72, max_tokens: 966, no_repeat_ngram: 0 };
        DocumentLimits { tokens: 64, targets: 100, padded: true, block: 8, poolings: Vec::new(), marks, generation }
    }

    fn plan(request: &Summarize) -> Result<SummaryPlan> {
        request.plan(&card(20), &limits(), 8)
    }

    #[test]
    fn what_is_not_given_is_the_checkpoints_within_what_there_is() {
        let SummaryPlan { rules, hypotheses, .. } = plan(&Summarize::default()).unwrap();
        assert_eq!((rules.beam, rules.length_penalty, hypotheses), (3, 1.5, 1));
        assert_eq!((rules.min_tokens, rules.max_tokens), (72, 99));
        let short = plan(&Summarize { max_tokens: Some(10), ..Default::default() }).unwrap().rules;
        assert_eq!((short.min_tokens, short.max_tokens), (10, 10));
        let few = Summarize::default().plan(&card(20), &limits(), 2).unwrap().rules;
        assert_eq!(few.beam, 2, "as many rows as there are");
    }

    #[test]
    fn bounds_are_told_with_their_fields() {
        let told = |request: Summarize| plan(&request).unwrap_err().to_string();
        let none = Summarize::default;
        assert_eq!(told(Summarize { beam: Some(9), ..none() }), "options.beam_size: 9 is out of bounds: 1 to 8");
        assert_eq!(told(Summarize { beam: Some(0), ..none() }), "options.beam_size: 0 is out of bounds: 1 to 8");
        let few = Summarize { beam: Some(5), ..none() }.plan(&card(10), &limits(), 8).unwrap_err().to_string();
        assert_eq!(few, "options.beam_size: 5 is out of bounds: 1 to 4");
        assert_eq!(
            told(Summarize { max_tokens: Some(100), ..none() }),
            "options.max_tokens: 100 is out of bounds: 1 to 99"
        );
        let min = Summarize { min_tokens: Some(6), max_tokens: Some(5), ..none() };
        assert_eq!(told(min), "options.min_tokens: 6 is out of bounds: 0 to 5");
        assert!(told(Summarize { no_repeat_ngram: Some(1), ..none() }).starts_with("options.no_repeat_ngram: 1 "));
        assert!(
            told(Summarize { length_penalty: Some(f32::NAN), ..none() }).starts_with("options.length_penalty: NaN ")
        );
        let many = Summarize { hypotheses: Some(4), ..none() };
        assert_eq!(told(many), "options.hypotheses: 4 is out of bounds: 1 to 3");
    }
}
