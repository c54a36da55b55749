//! The options of a summarization request and the results it reports. Pure data: ids, not text.

use crate::{
    beam::{Hypothesis, SearchOptions},
    constraint::{CompiledConstraint, Constraint},
    options::{FinishReason, Sampling, bad, within},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use weir_kernels::{
    error::{Error, Result, floor_boundary},
    named,
};
use weir_models::{
    contract::{
        Card, Document, DocumentLimits, EarlyStopping, EncodingStage, KeptVector, LayerTime, PoolingChoice,
        SearchRules, SummaryLimits, covers_text, kept_share, no_text,
    },
    text::{LimitStatus, TokenSpan, Vocabulary},
    usage::{Timing, Usage},
};

/// A summarization request. Options that are none take the checkpoint's default.
///
/// ```
/// # use std::path::Path;
/// # use weir_models::load::{Settings, load};
/// use weir_engine::{DocumentEvent, DocumentSource, Event, Handle, Limits, summary::Summarize};
///
/// # let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/compared/summarizer-pyramidion");
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
/// # Ok::<(), weir_kernels::error::Error>(())
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
    /// Rule by which a beam search stops, if it follows transformers.
    pub early_stopping: Option<EarlyStopping>,
    /// Penalty of a beam search on tokens that a text has already, by the rules of transformers. Sampling has its own.
    pub repetition_penalty: Option<f32>,
    /// Samples `beam` texts instead of searching for the best ones.
    pub sampling: Option<Sampling>,
    /// True: hard top-k, kept vectors stay as they are. False: soft. None: as the cached document; soft for a new one.
    pub hard: Option<bool>,
    /// Hypotheses to return, at most the beam width; default 1.
    pub hypotheses: Option<usize>,
    /// The form that the text must have, compiled for the model's vocabulary.
    pub constraint: Option<Arc<CompiledConstraint>>,
    /// Returns the attention to the document's tokens instead of a text. Options of a text must be none.
    pub attention: bool,
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
    /// True if the result is the attention to the document's tokens.
    pub attention: bool,
}

impl Summarize {
    /// Checks all options against their limits, the model's and the `rows`; fills in defaults. The error names the field.
    pub fn plan(&self, card: &Card, limits: &DocumentLimits, rows: usize) -> Result<ValidSummarize> {
        if self.attention {
            self.check_unwritten()?;
            let shortest = Self { beam: Some(1), min_tokens: Some(0), max_tokens: Some(1), ..Self::default() };
            return Ok(ValidSummarize { hard: self.hard, attention: true, ..shortest.plan(card, limits, rows)? });
        }
        let defaults = &limits.generation;
        // the start mark is one of the targets
        let token_limit = limits.targets.saturating_sub(1);
        // fairseq ranks 2 · beam continuations, so the vocabulary must have as many
        let beams = SummaryLimits::BEAM.min(rows).min(card.vocabulary.len().saturating_sub(1) / 2).max(1);
        let hypotheses = self.hypotheses.unwrap_or(1);
        let greedy = self.sampling.as_ref().filter(|sampling| sampling.temperature == 0.0);
        // greedy texts are equal
        let default_beam = if greedy.is_some() { 1 } else { defaults.beam };
        let beam = self.beam.unwrap_or_else(|| default_beam.max(hypotheses).min(beams));
        within("options.beam_size", beam, 1..=beams)?;
        within("options.min_tokens", self.min_tokens.unwrap_or(0), 0..=token_limit)?;
        let max_tokens = match (self.max_tokens, self.min_tokens) {
            (Some(max), _) => max,
            (None, min) => defaults.max_tokens.min(token_limit).max(min.unwrap_or(0)),
        };
        within("options.max_tokens", max_tokens, 1..=token_limit)?;
        let min_tokens = self.min_tokens.unwrap_or_else(|| defaults.min_tokens.min(max_tokens));
        if min_tokens > max_tokens {
            let field = "options.min_tokens";
            return Err(Error::AboveOption {
                field,
                found: min_tokens,
                limit: max_tokens,
                other: "options.max_tokens",
            });
        }
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
        if let Some(greedy) = greedy.filter(|_| beam > 1) {
            check_unsearched(greedy)?;
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
        Ok(ValidSummarize { rules, hypotheses, hard: self.hard, attention: false })
    }

    /// Fails if an option of a text is set.
    fn check_unwritten(&self) -> Result<()> {
        let number = |field, value: Option<usize>| (field, value.map(|value| value.to_string()));
        let factor = |field, value: Option<f32>| (field, value.map(|value| value.to_string()));
        let early_stopping = self.early_stopping.map(|rule| rule.name().to_owned());
        let form = self.constraint.as_ref();
        for (field, found) in [
            number("options.beam_size", self.beam),
            number("options.hypotheses", self.hypotheses),
            number("options.min_tokens", self.min_tokens),
            number("options.max_tokens", self.max_tokens),
            number("options.no_repeat_ngram", self.no_repeat_ngram),
            factor("options.length_penalty", self.length_penalty),
            factor("options.repetition_penalty", self.repetition_penalty),
            ("options.early_stopping", early_stopping),
            (
                form.map_or("options.constraint", |form| Constraint::option_field(form.field())),
                form.map(|_| "one".to_owned()),
            ),
            ("options.sampling", self.sampling.as_ref().map(|_| "options of sampling".to_owned())),
        ] {
            if let Some(found) = found {
                return Err(bad(field, found, "no value, because an extract is not written by the model".into()));
            }
        }
        Ok(())
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

/// Fails if a request for several beams has an option that only sampling has.
fn check_unsearched(sampling: &Sampling) -> Result<()> {
    let found = [
        ("sampling.presence_penalty", sampling.presence_penalty != 0.0, sampling.presence_penalty.to_string()),
        ("sampling.frequency_penalty", sampling.frequency_penalty != 0.0, sampling.frequency_penalty.to_string()),
        ("sampling.logit_bias", !sampling.logit_bias.is_empty(), sampling.logit_bias.len().to_string()),
    ];
    match found.into_iter().find(|(_, is_set, _)| *is_set) {
        Some((field, _, found)) => Err(bad(
            field,
            found,
            "no value with several beams at temperature 0 (a beam search has no such option)".into(),
        )),
        None => Ok(()),
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
    pub fn new(document: &Document, byte_ranges: Vec<ByteRange>, cut: bool) -> Self {
        Self {
            byte_ranges,
            cut,
            tokens: document.tokens,
            vectors: document.vectors,
            bytes: document.bytes,
            unpooled_bytes: document.unpooled_bytes,
            choices: document.choices.clone(),
            layers: document.timings.clone(),
            memory_ns: document.memory_ns,
        }
    }

    /// Returns the bytes of the text up to the end of the last token read, if the document was sent as text.
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
    /// The [attention](weir_models::contract::token_attention) to each token, if the request wanted it; else empty.
    pub attention: Vec<f32>,
}

/// Time that a summary spent waiting for its document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DocumentWaits {
    /// Nanoseconds from the request's admission to the end of the document's upload; 0 for a cached document.
    pub arrival_ns: u64,
    /// Nanoseconds from the end of the upload to the end of the encoding.
    pub rest_ns: u64,
    /// Blocks completed at the end of the upload.
    pub blocks_at_end: usize,
    /// Total number of blocks.
    pub blocks: usize,
}

/// A part of a text that a pooling kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptSpan {
    /// The first byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Mean score of its tokens.
    pub score: f32,
}

/// Returns the spans that a pooling kept, in the order of the text, and the number of kept tokens. Adjacent tokens form one
/// span; tokens without text form none.
pub fn spans(choice: &PoolingChoice, ranges: &[ByteRange], tokens: usize) -> (Vec<KeptSpan>, usize) {
    let mut kept: Vec<&KeptVector> = choice.kept.iter().filter(|kept| kept.token < tokens).collect();
    kept.sort_by_key(|kept| kept.token);
    kept.dedup_by_key(|kept| kept.token);
    let mut spans: Vec<(KeptSpan, usize)> = Vec::new();
    let mut previous = None;
    for &&KeptVector { token, score } in &kept {
        let is_adjacent = previous.is_some_and(|previous| token == previous + 1);
        previous = Some(token);
        let Some(&ByteRange { start, end }) = ranges.get(token).filter(|range| range.start < range.end) else {
            continue;
        };
        // tokens that a normaliser made of one character share its bytes
        match spans.last_mut().filter(|(span, _)| start < span.end || (is_adjacent && start <= span.end)) {
            Some((span, count)) => {
                span.score = (span.score * *count as f32 + score) / (*count + 1) as f32;
                span.end = span.end.max(end);
                *count += 1;
            }
            None => spans.push((KeptSpan { start, end, score }, 1)),
        }
    }
    (spans.into_iter().map(|(span, _)| span).collect(), kept.len())
}

/// Maximum bytes of a document that is summarized in parts.
pub const MAX_BYTES: usize = 16 << 20;

/// Maximum rounds.
pub const MAX_ROUNDS: usize = 8;

/// Bytes of text that the tokenizer takes at once.
const SLICE: usize = 16 << 10;

/// Decides how a request treats a document that is longer than the model reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LongDocuments {
    /// The request fails.
    #[default]
    Refuse,
    /// The model reads the beginning.
    Cut,
    /// The model reads the parts, then their summaries.
    Chunk,
}

named!(LongDocuments { Refuse: "refuse", Cut: "cut", Chunk: "chunk" });

/// Decides what a summary consists of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SummaryMode {
    /// Text that the model writes.
    #[default]
    Abstract,
    /// Sentences of the document.
    Extract,
}

named!(SummaryMode { Abstract: "abstract", Extract: "extract" });

/// Names of options in errors.
#[derive(Debug, Clone, Copy)]
pub struct FieldNames {
    /// The document's text.
    pub text: &'static str,
    /// The choice of [`LongDocuments`].
    pub long_documents: &'static str,
}

/// A document that is read in parts: the caller summarizes each [`next_part`](Self::next_part) and passes the result to
/// [`push_summary`](Self::push_summary), until a part is the whole text of its round.
pub struct LongDocument {
    text: String,
    names: FieldNames,
    /// Maximum parts of a round.
    max_parts: usize,
    round: usize,
    /// Parts of the round that are summarized.
    parts: usize,
    /// The first byte of the next part.
    start: usize,
    /// The summaries of the round's parts, joined.
    summaries: String,
}

/// A part of a round's text, as tokens for the encoder.
#[derive(Debug)]
pub struct TextPart {
    /// Number of the round, from 1.
    pub round: usize,
    /// Number of the part in its round, from 1.
    pub number: usize,
    /// The first byte, in the text of the round.
    pub start: u64,
    /// One past the last byte that the model reads.
    pub end: u64,
    /// Bytes of the round's text.
    pub round_bytes: u64,
    /// The tokens, with the end mark.
    pub ids: Vec<u32>,
    /// The bytes of each token, in the text of the round.
    pub byte_ranges: Vec<ByteRange>,
    /// True if only white space follows.
    pub is_last: bool,
    /// Bytes from `start` to the next part.
    step: usize,
}

impl TextPart {
    /// Returns the first byte of the next part, in the text of the round.
    pub fn next_start(&self) -> u64 {
        self.start + self.step as u64
    }

    /// Returns true if the part is the whole text of its round. Its summary is the document's.
    pub fn is_whole(&self) -> bool {
        self.is_last && self.number == 1
    }
}

impl LongDocument {
    /// Begins the first round with the text of a document. A round has at most `max_parts` parts.
    pub fn new(text: String, names: FieldNames, max_parts: usize) -> Self {
        Self { text, names, max_parts, round: 1, parts: 0, start: 0, summaries: String::new() }
    }

    /// Returns the text of the round.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the bytes of the round's text that no part has covered.
    pub fn bytes_left(&self) -> usize {
        self.text.len().saturating_sub(self.start)
    }

    /// Returns the next part: as much of the text as the model reads. Fails if the text is empty or has too many parts.
    pub fn next_part(&self, vocabulary: &Arc<Vocabulary>, limits: &DocumentLimits) -> Result<TextPart> {
        let rest = self.text.get(self.start..).unwrap_or_default();
        let (mut tokens, cut) = self.tokens(rest, vocabulary, limits)?;
        let last = tokens.iter().filter(|token| token.start < token.end).max_by_key(|token| token.end);
        let byte = |offset: u64| floor_boundary(rest, usize::try_from(offset).unwrap_or(usize::MAX));
        let read = match last {
            // The tokens of a character have its byte range, and the limit may fall between them: the next part reads it again.
            Some(token) if cut && is_one_character(rest, byte(token.start), byte(token.end)) => byte(token.start),
            Some(token) => byte(token.end),
            None if cut => 0,
            None => rest.len(),
        };
        tokens.retain(|token| token.end <= read as u64);
        let is_last = !cut || rest.get(read..).unwrap_or_default().trim().is_empty();
        let step = next_start(rest, read);
        if step == 0 && !is_last {
            return Err(Error::Internal("the model read none of its text".into()));
        }
        let after = self.text.len().saturating_sub(read);
        let estimate = if self.parts == 0 { 1 + after.div_ceil(step.max(1)) } else { self.parts + 1 };
        if estimate > self.max_parts && !(is_last && self.parts == 0) {
            let found = format!("about {estimate} parts of {} tokens", tokens.len() + 1);
            let bound = format!("at most {} parts (the server's --document-parts)", self.max_parts);
            return Err(Error::bad_option(self.names.long_documents, found, bound));
        }
        let offset = self.start as u64;
        let byte_range = |token: &TokenSpan| ByteRange { start: token.start + offset, end: token.end + offset };
        let mut ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let mut byte_ranges: Vec<_> = tokens.iter().map(byte_range).collect();
        let end = offset + read as u64;
        ids.push(limits.marks.end);
        byte_ranges.push(ByteRange { start: end, end });
        Ok(TextPart {
            round: self.round,
            number: self.parts + 1,
            start: offset,
            end,
            round_bytes: self.text.len() as u64,
            ids,
            byte_ranges,
            is_last,
            step,
        })
    }

    /// Returns the tokens at the beginning of a text that the model reads, and whether the text continues.
    fn tokens(
        &self,
        text: &str,
        vocabulary: &Arc<Vocabulary>,
        limits: &DocumentLimits,
    ) -> Result<(Vec<TokenSpan>, bool)> {
        let mut tokenizer = limits.tokenizer(Arc::clone(vocabulary), self.names.text).with_truncation(true);
        let mut tokens = Vec::new();
        let mut status = LimitStatus::Within;
        let mut rest = text;
        while status == LimitStatus::Within && !rest.is_empty() {
            let (slice, after) = rest.split_at(floor_boundary(rest, SLICE));
            status = tokenizer.push(slice, &mut tokens)?;
            rest = after;
        }
        if status == LimitStatus::Within {
            status = tokenizer.finish(&mut tokens)?;
        }
        if !covers_text(&tokens) {
            return Err(no_text(self.names.text));
        }
        Ok((tokens, status == LimitStatus::Exceeded))
    }

    /// Goes on to the next part of the same round.
    pub fn skip(&mut self, part: &TextPart) {
        self.parts += 1;
        self.start += part.step;
    }

    /// Takes the summary of a part. After the last part the summaries are the text of the next round. Fails if they are not
    /// shorter than the text, or if no round is left.
    pub fn push_summary(&mut self, part: &TextPart, summary: &str) -> Result<()> {
        self.skip(part);
        let Self { text, names, round, parts, start, summaries, .. } = self;
        if *parts > 1 {
            summaries.push('\n');
        }
        summaries.push_str(summary);
        if summaries.len() >= text.len() {
            let found = format!("{} bytes of summaries in round {round}", summaries.len());
            let bound = format!("fewer than the {} bytes of the text (shorter summaries help)", text.len());
            return Err(Error::bad_option(names.long_documents, found, bound));
        }
        if !part.is_last {
            return Ok(());
        }
        if *round == MAX_ROUNDS {
            let found = format!("a text of {} bytes after {MAX_ROUNDS} rounds", summaries.len());
            let bound = "a text that the model can read (shorter summaries help)";
            return Err(Error::bad_option(names.long_documents, found, bound));
        }
        if summaries.trim().is_empty() {
            let found = format!("no text in the summaries of round {round}");
            return Err(Error::bad_option(names.long_documents, found, "summaries with text"));
        }
        *text = std::mem::take(summaries);
        *round += 1;
        *parts = 0;
        *start = 0;
        Ok(())
    }
}

/// Returns where the next part begins: behind the last sentence or line that ends in the last quarter of the part read, or
/// behind its last word, or at its end.
fn next_start(text: &str, read: usize) -> usize {
    let end = floor_boundary(text, read);
    let from = floor_boundary(text, end - end / 4);
    let mut sentence = None;
    let mut word = None;
    let mut characters = text.get(from..).unwrap_or_default().char_indices().peekable();
    while let Some((offset, character)) = characters.next() {
        let after = from + offset + character.len_utf8();
        if after > end {
            break;
        }
        let is_before_space = characters.peek().is_none_or(|(_, next)| next.is_whitespace());
        if character == '\n' || (matches!(character, '.' | '!' | '?') && is_before_space) {
            sentence = Some(after);
        }
        if is_before_space {
            word = Some(after);
        }
    }
    let next = sentence.or(word).unwrap_or(end);
    let rest = text.get(next..).unwrap_or_default();
    next + rest.len() - rest.trim_start().len()
}

/// Returns true if the bytes from `start` to `end` are one character of several bytes, and not the first of the text.
fn is_one_character(text: &str, start: usize, end: usize) -> bool {
    start > 0 && end > start + 1 && text.get(start..end).is_some_and(|piece| piece.chars().count() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_models::{
        contract::{GenerationDefaults, SpecialIds},
        text::TextNormaliser,
    };

    const NAMES: FieldNames = FieldNames { text: "text", long_documents: "long" };

    /// Limits of a model that reads `bytes` bytes.
    fn limits_of(bytes: usize) -> DocumentLimits {
        DocumentLimits {
            tokens: bytes + 1,
            targets: 10,
            padded: false,
            block: 8,
            poolings: Vec::new(),
            marks: SpecialIds { start: 0, pad: 1, end: 0, unknown: 2 },
            generation: GenerationDefaults::fairseq(9),
        }
    }

    /// Summarizes a text by the first `length` bytes of each part. Returns the summary, the parts with their texts, and the number of
    /// summaries.
    fn run(text: &str, limit: usize, length: usize) -> (Result<String>, Vec<(TextPart, String)>) {
        let vocabulary = Arc::new(Vocabulary::byte_level(TextNormaliser::None));
        let mut document = LongDocument::new(text.to_owned(), NAMES, 64);
        let mut parts = Vec::new();
        loop {
            let part = match document.next_part(&vocabulary, &limits_of(limit)) {
                Ok(part) => part,
                Err(error) => return (Err(error), parts),
            };
            let read = document.text[part.start as usize..part.end as usize].to_owned();
            let ids: Vec<u32> = read.bytes().map(u32::from).chain([0]).collect();
            assert_eq!((&part.ids[..ids.len() - 1], part.ids.last()), (&ids[..ids.len() - 1], Some(&0)));
            assert_eq!(part.byte_ranges[0], ByteRange { start: part.start, end: part.byte_ranges[0].end });
            let summary = read[..floor_boundary(&read, length)].to_owned();
            if part.is_whole() {
                return (Ok(summary), parts);
            }
            let pushed = document.push_summary(&part, &summary);
            parts.push((part, summary));
            if let Err(error) = pushed {
                return (Err(error), parts);
            }
        }
    }

    #[test]
    fn choices_have_the_same_names_in_json() {
        for value in LongDocuments::ALL {
            assert_eq!(serde_json::to_value(value).unwrap(), value.name());
        }
    }

    #[test]
    fn a_text_that_fits_has_no_parts() {
        for text in ["one. two", "one. two \n\n   "] {
            let (summary, parts) = run(text, 9, 4);
            assert_eq!((summary.unwrap().as_str(), parts.len()), ("one.", 0), "{text:?}");
        }
    }

    #[test]
    fn parts_end_with_sentences_and_cover_the_text() {
        let sentences: Vec<String> = (10..40).map(|index| format!("Sentence {index} ends here.")).collect();
        let text = sentences.join(" ");
        let (summary, parts) = run(&text, 120, 12);
        let first: Vec<_> = parts.iter().filter(|(part, _)| part.round == 1).collect();
        assert!(first.len() > 5);
        let mut covered = 0;
        for (index, (part, summary)) in first.iter().enumerate() {
            assert_eq!((part.number, part.round_bytes), (index + 1, text.len() as u64));
            assert!(part.start <= covered && part.end > covered, "{} {} {covered}", part.start, part.end);
            assert!(text[part.start as usize..].starts_with("Sentence"), "{}", part.start);
            assert_eq!(summary, &text[part.start as usize..][..12]);
            covered = part.end;
        }
        assert_eq!(covered, text.len() as u64);
        assert_eq!(summary.unwrap(), "Sentence 10 ");
    }

    #[test]
    fn boundaries_prefer_sentences_then_words() {
        let text = "aaaa bbbb cccc. dddd eeee";
        assert_eq!(next_start(text, 18), 16, "behind the sentence");
        assert_eq!(next_start("aaaa bbbb cccc dddd", 16), 15, "behind the word");
        assert_eq!(next_start("aaaaaaaaaaaa", 8), 8);
        assert_eq!(next_start("ééééééé", 5), 4, "between characters");
        assert_eq!(next_start("abc", 0), 0);
    }

    #[test]
    fn work_is_bounded() {
        let refused = |text: &str, limit, length| {
            let (result, parts) = run(text, limit, length);
            (result.unwrap_err().to_string(), parts.len())
        };
        let (message, summarized) = refused(&"word ".repeat(1000), 10, 3);
        assert!(
            message.contains(
                "long: expected at most 64 parts (the server's --document-parts), found about 500 parts of 11 tokens"
            ),
            "{message}"
        );
        assert_eq!(summarized, 0, "before any part is summarized");
        // later parts overlap more than the first one, so the estimate is too low
        let (message, summarized) = refused(&["b".repeat(40), "aaaaaaaaaaaaaaa. ".repeat(72)].concat(), 20, 1);
        assert!(message.contains("about 65 parts"), "{message}");
        assert_eq!(summarized, 64);
        let (message, _) = refused(&"word ".repeat(20), 20, 1000);
        assert!(
            message.contains("bytes of summaries in round 1") && message.contains("shorter summaries help"),
            "{message}"
        );
        let (message, _) = refused("", 20, 1);
        assert_eq!(message, "text: expected text of at least one token, found none");
        let (message, _) = refused(&"word ".repeat(20), 20, 0);
        assert!(message.contains("no text in the summaries of round 1"), "{message}");
    }

    #[test]
    fn rounds_are_bounded() {
        let vocabulary = Arc::new(Vocabulary::byte_level(TextNormaliser::None));
        let mut document = LongDocument::new("a".repeat(100), NAMES, 64);
        // Each round's text is two bytes shorter than the last, so that it always has two parts.
        let mut push = || {
            let part = document.next_part(&vocabulary, &limits_of(50))?;
            let long = part.round_bytes as usize - 4;
            document.push_summary(&part, &"x".repeat(if part.number == 1 { long } else { 1 }))
        };
        (1..2 * MAX_ROUNDS).for_each(|_| push().unwrap());
        let message = push().unwrap_err().to_string();
        assert!(message.contains("found a text of 84 bytes after 8 rounds"), "{message}");
    }

    /// A part that ends within a character leaves the whole character to the next one.
    #[test]
    fn no_byte_of_a_text_without_spaces_is_lost() {
        let text = "日本語の文章です。".repeat(40);
        for limit in [100, 101, 102, 128] {
            let (summary, parts) = run(&text, limit, 9);
            summary.unwrap();
            let mut covered = 0;
            for (part, _) in parts.iter().filter(|(part, _)| part.round == 1) {
                assert!(part.start <= covered && part.end > covered, "{limit}: {} {} {covered}", part.start, part.end);
                assert_eq!(part.ids.len() as u64 - 1, part.end - part.start, "all bytes and no others are read");
                covered = part.end;
            }
            assert_eq!(covered, text.len() as u64);
        }
    }

    #[test]
    fn adjacent_tokens_form_one_span_and_padding_none() {
        // three tokens of one word, a space of its own, a token of two bytes, an end mark
        let range = |(start, end)| ByteRange { start, end };
        let ranges = [(0, 3), (3, 5), (5, 6), (7, 8), (8, 10), (10, 10)].map(range);
        let kept = |pairs: &[(usize, f32)]| PoolingChoice {
            layer: 2,
            kept: pairs.iter().map(|&(token, score)| KeptVector { token, score }).collect(),
        };
        let spans = |choice: &PoolingChoice| {
            let (spans, tokens) = crate::summary::spans(choice, &ranges, 6);
            (spans.iter().map(|span| (span.start, span.end, span.score)).collect::<Vec<_>>(), tokens)
        };
        // in the order of scores, with padding after the document
        let (actual, tokens) = spans(&kept(&[(4, 0.9), (0, 0.5), (7, 0.4), (1, 0.25), (5, 0.1), (100, 0.1)]));
        assert_eq!((actual, tokens), (vec![(0, 5, 0.375), (8, 10, 0.9)], 4));
        // a byte lies between them
        let (actual, _) = spans(&kept(&[(2, 0.5), (3, 0.25), (4, 0.75)]));
        assert_eq!(actual, [(5, 6, 0.5), (7, 10, 0.5)]);
        assert_eq!(spans(&kept(&[])), (Vec::new(), 0));
        let ranges = [(0, 3), (0, 3), (0, 3), (3, 4)].map(range);
        let (actual, tokens) = crate::summary::spans(&kept(&[(0, 0.25), (2, 0.75)]), &ranges, 4);
        assert_eq!((actual, tokens), (vec![KeptSpan { start: 0, end: 3, score: 0.5 }], 2));
    }

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
    fn the_beam_fits_the_vocabulary_and_the_hypotheses() {
        let beam = Summarize { beam: Some(5), ..Summarize::default() };
        let error = beam.plan(&card(10), &limits(), 8).unwrap_err().to_string();
        assert_eq!(error, "options.beam_size: expected 1 to 4, found 5");
        let wide = plan(&Summarize { hypotheses: Some(5), ..Summarize::default() }).unwrap();
        assert_eq!(wide.rules.beam, 5, "the default is wide enough");
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
