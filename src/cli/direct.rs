//! What the commands compute without a server: logits, exact log-probabilities, and whatever is given as ids, which the API does not
//! take for these calls.

use crate::cli::{
    document::{Document, TextReader},
    output::{self, Progress},
    scores::{MarkedTextBits, Scores, TextBits},
};
use std::{f64::consts::LN_2, path::Path, sync::Arc};
use weir_engine::{
    DocumentEvent, DocumentSource, Event, Handle, Limits,
    options::{EmittedSymbol, WindowOptions, check_length, must_pool},
    score::{
        StepSize, WindowScore, forced_target, read_document, run as evaluate, score_window, target_logits, windows,
    },
    summary::{ByteRange, Summarize},
};
use weir_kernels::{
    distribution::log_probability,
    error::{Error, Result},
};
use weir_models::{
    contract::{
        BoundaryOptions, DocumentEncoder, Model, PoolingChoice, SymbolBoundary, Want, covers_text, levels, no_text,
    },
    text::{LimitStatus, TextCounter, TokenSpan},
};
use weir_proto::v1::{SegmentResponse, Usage, summarize_response::Event as SummarizeEvent};
use weir_server::run::messages;

/// Symbols per step of segments: enough for efficient matrix products, few enough to need little memory.
const CHUNK: usize = 512;

/// A text and how a model scores it.
pub(super) struct Evaluation<'a> {
    pub(super) model: &'a dyn Model,
    pub(super) symbols: &'a [u32],
    /// True if the end-of-text symbol follows, which is scored but not fed.
    pub(super) has_end: bool,
    /// The flag that gives the text.
    pub(super) flag: &'static str,
    /// Symbols per step of a text that is scored as one sequence.
    pub(super) step: StepSize,
    pub(super) boundaries: BoundaryOptions,
    pub(super) logits: Option<&'a Path>,
}

/// Outputs per symbol. Windows never feed the last symbol. A model with a start-of-text symbol has one entry more, for the logits
/// before the first symbol.
#[derive(Default)]
struct Outputs {
    /// ln p of each symbol except the first. With a start-of-text symbol the first is included, and the end-of-text symbol if the
    /// text ends with one.
    logprobs: Vec<f64>,
    boundaries: Vec<u8>,
    depths: Vec<u8>,
    /// Logits (symbols, vocabulary), if requested.
    logits: Vec<f32>,
    keep_logits: bool,
    /// Sums for models with special symbols.
    marked: Option<MarkedTextBits>,
}

impl Outputs {
    fn push(&mut self, next: Option<&u32>, logits: &[f32], mark: SymbolBoundary) -> Result<()> {
        self.boundaries.push(mark.boundary.into());
        self.depths.push(mark.depth);
        if let Some(&next) = next {
            let logprob = log_probability(logits, next)?;
            self.logprobs.push(logprob);
            self.marked.as_mut().map_or(Ok(()), |marked| marked.add_symbol_with(logits, next, logprob))?;
        }
        if let Some(marked) = &mut self.marked {
            marked.add_end(mark.end_logprob);
        }
        if self.keep_logits {
            self.logits.extend_from_slice(logits);
        }
        Ok(())
    }

    fn nats(&self) -> f64 {
        -self.logprobs.iter().sum::<f64>()
    }
}

impl Evaluation<'_> {
    /// Scores the text as one sequence.
    pub(super) fn whole(&self) -> Result<Scores> {
        let Self { model, symbols, .. } = *self;
        let card = model.card();
        // The end-of-text symbol is not fed, so it does not count.
        check_length(self.flag, symbols.len(), card)?;
        let marked = card.vocabulary.specials().map(|specials| MarkedTextBits::new(specials, card.pooled));
        let mut outputs = Outputs { marked, ..self.outputs() };
        let end = marked.filter(|_| self.has_end).map(|marked| marked.end());
        let next = |position: usize| symbols.get(position).or(end.as_ref().filter(|_| position == symbols.len()));
        if let Some(logits) = &card.first_logits {
            let start = SymbolBoundary { boundary: card.pooled, ..SymbolBoundary::default() };
            outputs.push(next(0), logits, start)?;
        }
        evaluate(model, symbols, self.step, self.boundaries.clone(), Want::All, &mut |position, logits, mark| {
            outputs.push(next(position + 1), logits, mark)
        })?;
        let nats = outputs.marked.as_ref().map_or_else(|| outputs.nats(), MarkedTextBits::text_nats);
        let text_bits = TextBits::new(model, symbols, usize::from(card.first_logits.is_none()), nats);
        self.scores(outputs, text_bits, None)
    }

    /// Scores the text in windows. `in_pieces` is true if they are independent pieces of one length.
    pub(super) fn windowed(&self, size: WindowOptions, in_pieces: bool) -> Result<Scores> {
        let Self { model, symbols, .. } = *self;
        check_length("--windowed", size.length, model.card())?;
        let mut outputs = self.outputs();
        let mut sum = WindowScore::default();
        let mut progress = Progress::windows();
        let count = windows(symbols.len(), size).count() as u64;
        let note = if in_pieces { format!("length {}: ", size.length) } else { String::new() };
        for (done, window) in (1..).zip(windows(symbols.len(), size)) {
            sum += score_window(model, symbols, window, &self.boundaries, &mut |position, logits, mark| {
                outputs.push(symbols.get(position + 1), logits, mark)
            })?;
            progress.update(done, count);
            progress.note(format!("{note}{:.3} bits per symbol", sum.nats / sum.scored as f64 / LN_2));
        }
        drop(progress);
        // No window predicts the first symbol. Pieces add up in the order of the text, as on a server.
        let text_bits = TextBits::new(model, symbols, 1, if in_pieces { outputs.nats() } else { sum.nats });
        self.scores(outputs, text_bits, (sum.segments > 0).then(|| sum.fed as f64 / sum.segments as f64))
    }

    fn outputs(&self) -> Outputs {
        Outputs { keep_logits: self.logits.is_some(), ..Outputs::default() }
    }

    /// Writes the file of `--logits`, if requested, and returns the scores.
    fn scores(&self, outputs: Outputs, text_bits: TextBits, shortening_factor: Option<f64>) -> Result<Scores> {
        let card = self.model.card();
        if let Some(path) = self.logits {
            let boundaries = card.pooled.then_some(&*outputs.boundaries);
            let shape = [outputs.boundaries.len(), card.vocabulary.len()];
            output::logits(path, &outputs.logits, shape, boundaries)?;
        }
        Ok(Scores {
            symbols: self.symbols.len() + usize::from(self.has_end),
            fed: self.symbols.len(),
            text_chars: TextCounter::chars_of(self.symbols, card.vocabulary.clone()),
            logprobs: outputs.logprobs,
            boundaries: outputs.boundaries,
            levels: levels(outputs.depths),
            shortening_factor,
            text_bits,
            marked: outputs.marked,
        })
    }
}

/// Splits the text that `--ids` gives into segments.
pub(super) fn segments(model: &dyn Model, ids: &[u32], boundaries: BoundaryOptions) -> Result<SegmentResponse> {
    let card = model.card();
    must_pool("Segment", card)?;
    card.vocabulary.check_text("--ids", ids)?;
    check_length("--ids", ids.len(), card)?;
    let mut characters = Vec::with_capacity(ids.len());
    evaluate(model, ids, StepSize::Chunked(CHUNK), boundaries, Want::Nothing, &mut |position, _, decision| {
        let decision = Some(decision);
        characters.push(EmittedSymbol { symbol: ids[position], logprob: None, decision, top: Vec::new(), cut: None });
        Ok(())
    })?;
    let is_boundary = |character: &&EmittedSymbol| character.decision.is_some_and(|decision| decision.boundary);
    let prompt_segments = characters.iter().filter(is_boundary).count() as u64;
    Ok(SegmentResponse {
        segments: messages::segments(&characters, &card.vocabulary),
        boundary_levels: messages::boundary_levels(&characters),
        usage: Some(Usage { prompt_chars: ids.len() as u64, prompt_segments, ..Usage::default() }),
        ..SegmentResponse::default()
    })
}

/// A document as its model reads it.
#[derive(Default)]
pub(super) struct Tokens {
    ids: Vec<u32>,
    /// The bytes of each token in the text; empty for a document given by ids.
    byte_ranges: Vec<ByteRange>,
    /// True if the document continues after the tokens.
    cut: bool,
}

impl Tokens {
    /// Reads a document. `cut` reads the beginning of a text that is longer than the model's limit. Fails if the model does not read
    /// documents, and if the document cannot be read, is too long, or has unknown ids.
    pub(super) fn read(model: &dyn Model, document: &Document, cut: bool) -> Result<Self> {
        let limits = encoder(model)?.limits();
        let vocabulary = &model.card().vocabulary;
        let mut reader = match document {
            Document::Ids(ids) => {
                vocabulary.check_ids("--ids", ids)?;
                return Ok(Self { ids: ids.clone(), ..Self::default() });
            }
            Document::File(file) => TextReader::open(file)?,
            Document::Text(text) => TextReader::text(text),
        };
        let mut tokenizer = limits.tokenizer(Arc::clone(vocabulary), "--file").with_truncation(cut);
        let mut tokens = Vec::new();
        let status = loop {
            let portion = reader.next()?;
            let status = match &portion {
                None => tokenizer.finish(&mut tokens)?,
                Some(portion) => tokenizer.push(portion, &mut tokens)?,
            };
            if portion.is_none() || status == LimitStatus::Exceeded {
                break status;
            }
        };
        let is_longer = status == LimitStatus::Exceeded;
        if is_longer && !cut {
            // The end-of-text token also counts.
            let limit = limits.tokens.saturating_sub(1);
            return Err(Error::LongerThan { field: "--file", limit, unit: "tokens", why: None });
        }
        if !covers_text(&tokens) {
            return Err(no_text("--file"));
        }
        let end = tokenizer.bytes();
        let byte_range = |token: &TokenSpan| ByteRange { start: token.start, end: token.end };
        let byte_ranges = tokens.iter().map(byte_range).chain([ByteRange { start: end, end }]).collect();
        let ids = tokens.iter().map(|token| token.id).chain([limits.marks.end]).collect();
        Ok(Self { ids, byte_ranges, cut: is_longer })
    }
}

/// Summarizes a document. Passes the events to `visit`, as a server sends them, and returns the choices of the pooling layers, which no
/// server sends.
pub(super) fn summarize(
    model: Arc<dyn Model>,
    limits: Limits,
    request: &Summarize,
    document: &Tokens,
    visit: &mut dyn FnMut(SummarizeEvent) -> Result<()>,
) -> Result<Vec<PoolingChoice>> {
    let mut encode = messages::summary(model.card(), encoder(&*model)?.limits().marks.end);
    let engine = Handle::start(model, limits)?;
    let (upload, arriving) = engine.upload();
    let mut events = engine.summarize(request, DocumentSource::Uploading(arriving), None)?;
    upload.push(&document.ids, &document.byte_ranges);
    upload.close(document.cut);
    let mut choices = Vec::new();
    while let Some(event) = events.blocking_recv() {
        let event = event?;
        if let Event::Document(DocumentEvent::Encoded(encoded)) = &event {
            choices.clone_from(&encoded.choices);
        }
        encode(Some(event)).into_iter().filter_map(|message| message.event).try_for_each(&mut *visit)?;
    }
    encode(None).into_iter().filter_map(|message| message.event).try_for_each(visit)?;
    Ok(choices)
}

/// Feeds a summary to the decoder and writes the logits (target ids, vocabulary) to `out`. `hard` keeps the selected vectors unchanged.
pub(super) fn forced_summary(
    model: &dyn Model,
    document: &Tokens,
    target: &[u32],
    hard: bool,
    out: &Path,
) -> Result<()> {
    let encoder = encoder(model)?;
    let fed = forced_target(model, encoder.limits(), target)?;
    let encoding = if hard { encoder.open_hard()? } else { encoder.open() };
    let mut scratch = model.scratch();
    let document = read_document(encoder, encoding, &document.ids, &mut scratch)?;
    let logits = target_logits(model, encoder.begin(&*document)?, &fed, &mut scratch)?;
    output::logits(out, &logits, [fed.len(), model.card().vocabulary.len()], None)
}

/// Returns the encoder of a model that reads documents. Fails if it continues text.
fn encoder(model: &dyn Model) -> Result<&dyn DocumentEncoder> {
    let card = model.card();
    model.document_encoder().ok_or_else(|| Error::only_continues_text(&card.name, &card.shape))
}
