//! The options of a summarization request and the results it reports. Pure data: ids, not text.

use super::{
    beam::{Hypothesis, SearchOptions},
    contract::Card,
    document::{Document, DocumentLimits, EncodingStage, LayerTime, PoolingChoice, kept_share},
    options::{FinishReason, Sampling, bad, within},
    search_rules::{EarlyStopping, SearchRules},
    usage::{Timing, Usage},
};
use crate::error::Result;
use std::ops::RangeInclusive;

/// A summarization request. Options that are none take the checkpoint's default.
///
/// ```
/// # use std::path::Path;
/// # use weir_engine::family::load::{Settings, load};
/// use weir_engine::{
///     decode::summary::Summarize,
///     engine::{DocumentEvent, DocumentSource, Event, Handle, Limits},
/// };
///
/// # let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/compared/summarizer-pyramidion");
/// # let model = load(&folder, &Settings::default())?;
/// let Some(encoder) = model.document_encoder() else { panic!("the model reads no documents") };
/// let vocabulary = model.card().vocabulary.clone();
/// let pieces = vocabulary.encode_subwords("document", "The river rose, and the mill stopped.")?;
/// let mut document: Vec<u32> = pieces.iter().map(|piece| piece.id).collect();
/// document.push(encoder.limits().marks.end);
///
/// let request = Summarize { max_tokens: Some(12), ..Summarize::default() };
/// let engine = Handle::start(model, Limits::default())?;
/// let (upload, incoming) = engine.upload();
/// let mut events = engine.summarize(&request, DocumentSource::Uploading(incoming), None)?;
/// // A long document is pushed in parts, and encoded while it arrives.
/// upload.push(&document, &[]);
/// upload.close(false);
/// while let Some(event) = events.blocking_recv() {
///     if let Event::Document(DocumentEvent::Summarized(summary)) = event? {
///         let text = vocabulary.decode(&summary.hypotheses[0].tokens);
///         assert!(!text.is_empty());
///     }
/// }
/// # Ok::<(), weir_engine::error::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summarize {
    /// Beam width: hypotheses followed in parallel.
    pub beam: Option<usize>,
    /// Scores are divided by length to this power.
    pub length_penalty: Option<f32>,
    /// Minimum tokens before the end mark; with it by the rules of transformers.
    pub min_tokens: Option<usize>,
    /// Maximum tokens before the end mark; with it by the rules of transformers.
    pub max_tokens: Option<usize>,
    /// No run of this many tokens is generated twice; 0 turns the rule off.
    pub no_repeat_ngram: Option<usize>,
    /// When a beam search by the rules of transformers stops.
    pub early_stopping: Option<EarlyStopping>,
    /// Penalty of a beam search on tokens that a text has already, by the rules of transformers. Sampling has its own.
    pub repetition_penalty: Option<f32>,
    /// Samples `beam` texts instead of searching for the best ones.
    pub sampling: Option<Sampling>,
    /// True: hard top-k, each vector that a pooling keeps stays as it is. False: soft, the model mixes others into it. None: as
    /// the cached document was encoded; soft for a new document.
    pub hard: Option<bool>,
    /// Hypotheses to return, at most the beam width; default 1.
    pub hypotheses: Option<usize>,
}

/// Limits of a summarization request's options, as reported to clients.
#[derive(Debug, Clone, Copy)]
pub struct SummaryLimits;

impl SummaryLimits {
    /// Maximum beam width.
    pub const BEAM: usize = 64;
    /// Maximum length of a run that is not repeated.
    pub const NGRAM: usize = 64;
    /// Maximum absolute value of the length penalty.
    pub const PENALTY: f32 = 10.0;
    /// Bounds of the repetition penalty.
    pub const REPETITION: RangeInclusive<f32> = 0.01..=100.0;
}

/// A validated request with defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidSummarize {
    /// Options of the search.
    pub rules: SearchOptions,
    /// Number of hypotheses to return.
    pub hypotheses: usize,
    /// Hard or soft top-k, if the request chose.
    pub hard: Option<bool>,
}

impl Summarize {
    /// Checks all options against their limits, the model's limits and the `rows` that may run at once; fills in
    /// defaults. Fails with [`Error::BadOption`](crate::error::Error::BadOption), which names the field.
    pub fn plan(&self, card: &Card, limits: &DocumentLimits, rows: usize) -> Result<ValidSummarize> {
        let defaults = &limits.generation;
        // the start mark is one of the targets
        let token_limit = limits.targets.saturating_sub(1);
        // fairseq ranks 2 · beam continuations, so the vocabulary must have as many
        let beams = SummaryLimits::BEAM.min(rows).min(card.vocabulary.len().saturating_sub(1) / 2).max(1);
        let hypotheses = self.hypotheses.unwrap_or(1);
        let beam = self.beam.unwrap_or_else(|| defaults.beam.max(hypotheses).min(beams));
        within("options.beam_size", beam, 1..=beams)?;
        let max_tokens = match (self.max_tokens, self.min_tokens) {
            (Some(max), _) => max,
            (None, min) => defaults.max_tokens.min(token_limit).max(min.unwrap_or(0)),
        };
        within("options.max_tokens", max_tokens, 1..=token_limit)?;
        let min_tokens = self.min_tokens.unwrap_or_else(|| defaults.min_tokens.min(max_tokens));
        within("options.min_tokens", min_tokens, 0..=max_tokens)?;
        let no_repeat_ngram = self.no_repeat_ngram.unwrap_or(defaults.no_repeat_ngram);
        if no_repeat_ngram == 1 || no_repeat_ngram > SummaryLimits::NGRAM {
            let bound = format!("0 to disable the rule, or 2 to {}", SummaryLimits::NGRAM);
            return Err(bad("options.no_repeat_ngram", no_repeat_ngram, bound));
        }
        let length_penalty = self.length_penalty.unwrap_or(defaults.length_penalty);
        within("options.length_penalty", length_penalty, -SummaryLimits::PENALTY..=SummaryLimits::PENALTY)?;
        within("options.hypotheses", hypotheses, 1..=beam)?;
        if let Some(sampling) = &self.sampling {
            sampling.validate(card)?;
        }
        let repetition_penalty = self.repetition_penalty.unwrap_or(defaults.repetition_penalty);
        within("options.repetition_penalty", repetition_penalty, SummaryLimits::REPETITION)?;
        if defaults.rules == SearchRules::Fairseq {
            self.check_fairseq()?;
        }
        let rules = SearchOptions {
            beam,
            length_penalty,
            min_tokens,
            max_tokens,
            no_repeat_ngram,
            rules: defaults.rules,
            early_stopping: self.early_stopping.unwrap_or(defaults.early_stopping),
            repetition_penalty,
            sampling: self.sampling.clone(),
        };
        Ok(ValidSummarize { rules, hypotheses, hard: self.hard })
    }

    /// Fails if an option is set that fairseq's search does not have.
    fn check_fairseq(&self) -> Result<()> {
        if let Some(early_stopping) = self.early_stopping {
            let bound = "no value (this model's search follows fairseq, which always stops at once)";
            return Err(bad("options.early_stopping", early_stopping.name(), bound.into()));
        }
        let searched = self.repetition_penalty.filter(|penalty| *penalty != 1.0 && self.sampling.is_none());
        match searched {
            Some(penalty) => {
                let bound = "1 (this model's search follows fairseq, which has no such penalty; sampling has one)";
                Err(bad("options.repetition_penalty", penalty, bound.into()))
            }
            None => Ok(()),
        }
    }
}

/// A token's bytes in its text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// Returns the end of the last token that covers text, in bytes from the start of the text. `None` if no token covers text.
pub(crate) fn read_bytes(ranges: &[ByteRange]) -> Option<u64> {
    ranges.iter().filter(|range| range.start < range.end).map(|range| range.end).max()
}

/// Report on an encoded document, without its keys and values.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedDocument {
    /// The byte range of each token in the text, if the document was sent as text.
    pub byte_ranges: Vec<ByteRange>,
    /// Number of tokens read, the end mark included.
    pub tokens: usize,
    /// True if the text was truncated.
    pub cut: bool,
    /// Number of vectors that the decoder attends to.
    pub vectors: usize,
    /// Bytes of their keys and values.
    pub bytes: usize,
    /// Bytes of keys and values without pooling.
    pub unpooled_bytes: usize,
    /// The choice of each top-k pooling.
    pub choices: Vec<PoolingChoice>,
    /// Time of each encoder layer, in order.
    pub layers: Vec<LayerTime>,
    /// Time of computing the keys and values, in nanoseconds.
    pub memory_ns: u64,
}

impl EncodedDocument {
    /// Creates the report of a document.
    pub fn new(document: &dyn Document, byte_ranges: Vec<ByteRange>, cut: bool) -> Self {
        Self {
            byte_ranges,
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

    /// Returns the number of bytes of the text up to the end of the last token read, if the document was sent as text. The end mark
    /// has no bytes, and stands at the end of the whole text.
    pub fn read_bytes(&self) -> Option<u64> {
        read_bytes(&self.byte_ranges)
    }

    /// Returns the time of encoding in nanoseconds: all layers, and the keys and values.
    pub fn encode_ns(&self) -> u64 {
        self.layers.iter().fold(self.memory_ns, |sum, layer| sum.saturating_add(layer.ns))
    }

    /// Returns the share of the document's tokens that the last pooling kept, as [`kept_share`] does.
    pub fn kept_share(&self) -> Option<f64> {
        kept_share(&self.choices, self.vectors, self.tokens)
    }

    /// Bytes of memory that the report occupies.
    pub fn own_bytes(&self) -> usize {
        let kept: usize = self.choices.iter().map(|choice| size_of_val(choice.kept.as_slice())).sum();
        size_of::<Self>() + size_of_val(self.byte_ranges.as_slice()) + size_of_val(self.layers.as_slice()) + kept
    }
}

/// New choices of a document's poolings, reported while it is being encoded.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolingUpdate {
    /// Choices not reported before.
    pub choices: Vec<PoolingChoice>,
    /// The byte range of each token in the text, if the document was sent as text.
    pub byte_ranges: Vec<ByteRange>,
    /// Number of tokens read, the end mark included.
    pub tokens: usize,
}

/// Progress of a document's encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentProgress {
    /// The next stage.
    pub stage: EncodingStage,
    /// Tokens received.
    pub tokens: usize,
    /// Bytes of the text up to the end of the last token received, if the document was sent as text.
    pub read_bytes: Option<u64>,
    /// True once the text was truncated.
    pub cut: bool,
    /// Blocks completed.
    pub blocks: usize,
    /// Total number of blocks, known once the whole document was received.
    pub total: Option<usize>,
}

/// The result of a summarization request.
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryResult {
    /// The best hypotheses, best first. Empty only if every continuation was forbidden.
    pub hypotheses: Vec<Hypothesis>,
    /// Id of the document in the document cache, if it is cached.
    pub document_id: Option<String>,
    /// How the best hypothesis ended.
    pub reason: FinishReason,
    /// Tokens of the document and of the best hypothesis.
    pub usage: Usage,
    /// Time spent; `prefill` is the encoding.
    pub timing: Timing,
    /// Time spent waiting for the document.
    pub waits: DocumentWaits,
}

/// Time that a summary spent waiting for its document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DocumentWaits {
    /// From the request's admission to the end of the document's upload, in nanoseconds; 0 for a cached document.
    pub arrival_ns: u64,
    /// From the end of the upload to the end of the encoding, in nanoseconds.
    pub rest_ns: u64,
    /// Blocks completed at the end of the upload.
    pub blocks_at_end: usize,
    /// Total number of blocks.
    pub blocks: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decode::document::{GenerationDefaults, SpecialIds},
        text::{TextNormaliser, Vocabulary},
    };

    fn card(symbols: usize) -> Card {
        let symbols: Vec<String> =
            (0..symbols as u32).map(|index| char::from_u32(97 + index).unwrap().into()).collect();
        Card::for_tests(Vocabulary::from_symbols(&symbols, TextNormaliser::None).unwrap())
    }

    fn limits() -> DocumentLimits {
        let marks = SpecialIds { start: 2, pad: 1, end: 2, unknown: 3 };
        let generation =
            GenerationDefaults { beam: 3, length_penalty: 1.5, min_tokens: 72, ..GenerationDefaults::fairseq(966) };
        DocumentLimits { tokens: 64, targets: 100, padded: true, block: 8, poolings: Vec::new(), marks, generation }
    }

    fn plan(request: &Summarize) -> Result<ValidSummarize> {
        request.plan(&card(20), &limits(), 8)
    }

    #[test]
    fn missing_options_take_the_checkpoints_defaults_within_the_limits() {
        let ValidSummarize { rules, hypotheses, .. } = plan(&Summarize::default()).unwrap();
        assert_eq!((rules.beam, rules.length_penalty, hypotheses), (3, 1.5, 1));
        assert_eq!((rules.min_tokens, rules.max_tokens), (72, 99));
        let short = plan(&Summarize { max_tokens: Some(10), ..Default::default() }).unwrap().rules;
        assert_eq!((short.min_tokens, short.max_tokens), (10, 10));
        let few = Summarize::default().plan(&card(20), &limits(), 2).unwrap().rules;
        assert_eq!(few.beam, 2, "the number of rows");
    }

    #[test]
    fn errors_name_field_and_limit() {
        let error = |request: Summarize| plan(&request).unwrap_err().to_string();
        let none = Summarize::default;
        assert_eq!(error(Summarize { beam: Some(9), ..none() }), "options.beam_size: expected 1 to 8, found 9");
        assert_eq!(error(Summarize { beam: Some(0), ..none() }), "options.beam_size: expected 1 to 8, found 0");
        let few = Summarize { beam: Some(5), ..none() }.plan(&card(10), &limits(), 8).unwrap_err().to_string();
        assert_eq!(few, "options.beam_size: expected 1 to 4, found 5");
        let long = Summarize { max_tokens: Some(100), ..none() };
        assert_eq!(error(long), "options.max_tokens: expected 1 to 99, found 100");
        let min = Summarize { min_tokens: Some(6), max_tokens: Some(5), ..none() };
        assert_eq!(error(min), "options.min_tokens: expected 0 to 5, found 6");
        assert!(error(Summarize { no_repeat_ngram: Some(1), ..none() }).ends_with("found 1"));
        let penalty = Summarize { length_penalty: Some(f32::NAN), ..none() };
        assert!(error(penalty).starts_with("options.length_penalty: expected "));
        let many = Summarize { beam: Some(3), hypotheses: Some(4), ..none() };
        assert_eq!(error(many), "options.hypotheses: expected 1 to 3, found 4");
        let beam = |hypotheses| Summarize { hypotheses: Some(hypotheses), ..none() }.plan(&card(20), &limits(), 8);
        assert_eq!(beam(5).unwrap().rules.beam, 5, "the default is wide enough");
        let penalty = Summarize { repetition_penalty: Some(0.0), ..none() };
        assert_eq!(error(penalty), "options.repetition_penalty: expected 0.01 to 100, found 0");
    }

    #[test]
    fn options_of_transformers_win_and_are_refused_for_fairseq() {
        let request = Summarize {
            early_stopping: Some(EarlyStopping::Never),
            repetition_penalty: Some(1.5),
            ..Summarize::default()
        };
        let generation = GenerationDefaults {
            early_stopping: EarlyStopping::True,
            repetition_penalty: 1.2,
            ..GenerationDefaults::transformers()
        };
        let limits = DocumentLimits { generation, ..limits() };
        let plan = |request: &Summarize| request.plan(&card(20), &limits, 8).unwrap().rules;
        let rules = plan(&Summarize::default());
        assert_eq!((rules.early_stopping, rules.repetition_penalty), (EarlyStopping::True, 1.2));
        let rules = plan(&request);
        assert_eq!((rules.early_stopping, rules.repetition_penalty), (EarlyStopping::Never, 1.5));
        let refused = |request: Summarize| self::plan(&request).unwrap_err().to_string();
        let message = refused(request.clone());
        assert!(message.starts_with("options.early_stopping: expected no value"), "{message}");
        let message = refused(Summarize { early_stopping: None, ..request.clone() });
        assert!(message.starts_with("options.repetition_penalty: expected 1 ("), "{message}");
        let sampling = Some(Sampling::default());
        let sampled = self::plan(&Summarize { early_stopping: None, sampling, ..request });
        assert!(sampled.is_ok(), "{sampled:?}");
    }
}
