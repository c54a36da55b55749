//! A document encoder without arithmetic: its logits are a hash of the document and of all symbols before them. It counts
//! live objects, can be paused and slowed down, and fails on demand.

use crate::toy_model::{StepGate, feed, mix};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
};
use weir::{
    engine::{
        beam::{BeamSearch, Hypothesis, RowMove, SearchStep},
        summary::{Summarize, ValidSummarize},
    },
    error::{Error, Result},
    models::{
        contract::{
            BoundaryMode, BoundaryOptions, Card, Cost, Document, DocumentEncoder, DocumentLimits, Encoding,
            EncodingProgress, EncodingStage, GenerationDefaults, KeptVector, KvMemory, LayerTime, Model, PageUse,
            PoolingChoice, PoolingStep, Scratch, SequenceRow, SpecialIds, State, StepStatus, SymbolBoundary,
            encoding_mut,
        },
        text::{TextNormaliser, Vocabulary},
    },
};

/// Special ids: bytes that occur in no text.
pub(crate) const MARKS: SpecialIds = SpecialIds { start: 0, pad: 1, end: 0, unknown: 2 };

/// Token that makes the encoder panic.
pub(crate) const PANIC: u32 = 3;

/// Token that makes the encoder return an error.
pub(crate) const FAIL: u32 = 4;

/// Tokens per block.
pub(crate) const BLOCK: usize = 8;

/// Maximum length of a document, in tokens.
pub(crate) const TOKENS: usize = 400;

/// Maximum number of symbols that a row can be fed.
pub(crate) const TARGETS: usize = 60;

/// Bytes per token of a document, and per symbol of a row.
pub(crate) const BYTES: usize = 10;

pub(crate) struct DocumentModel {
    card: Card,
    limits: DocumentLimits,
    memory: usize,
    counts: Arc<Counts>,
    pub(crate) gate: StepGate,
    /// Encoded blocks and symbol steps, in order.
    pub(crate) log: Mutex<Vec<LoggedStep>>,
}

/// A unit of work that was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoggedStep {
    Block,
    /// A symbol step, with its number of rows.
    Rows(usize),
}

#[derive(Default)]
struct Counts {
    alive: AtomicUsize,
    bytes: AtomicUsize,
    peak: AtomicUsize,
    blocks: AtomicUsize,
}

impl DocumentModel {
    pub(crate) fn new() -> Arc<Self> {
        Self::with("reader", usize::MAX)
    }

    /// Creates a model with `memory` bytes.
    pub(crate) fn with(name: &str, memory: usize) -> Arc<Self> {
        let card = Card {
            name: name.into(),
            family: "toy",
            shape: "a hash of documents".into(),
            training_length: TOKENS,
            max_symbols: TARGETS,
            boundary_modes: vec![BoundaryMode::Given],
            ..Card::for_tests(Vocabulary::byte_level(TextNormaliser::None))
        };
        let generation = GenerationDefaults { beam: 2, min_tokens: 3, ..GenerationDefaults::fairseq(12) };
        let limits = DocumentLimits {
            tokens: TOKENS,
            targets: TARGETS,
            padded: false,
            block: BLOCK,
            poolings: vec![PoolingStep { layer: 0, from: TOKENS, to: TOKENS / 2 }],
            marks: MARKS,
            generation,
        };
        Arc::new(Self {
            card,
            limits,
            memory,
            counts: Arc::default(),
            gate: StepGate::default(),
            log: Mutex::default(),
        })
    }

    /// Number of live encodings, documents and rows.
    pub(crate) fn alive(&self) -> usize {
        self.counts.alive.load(SeqCst)
    }

    /// Number of blocks encoded since the start.
    pub(crate) fn blocks(&self) -> usize {
        self.counts.blocks.load(SeqCst)
    }

    /// Maximum number of bytes held since the start.
    pub(crate) fn peak(&self) -> usize {
        self.counts.peak.load(SeqCst)
    }
}

/// Guard that counts an object, and the bytes that it holds, until it is dropped.
struct Alive {
    counts: Arc<Counts>,
    bytes: usize,
}

impl Alive {
    fn new(counts: &Arc<Counts>) -> Self {
        counts.alive.fetch_add(1, SeqCst);
        Self { counts: Arc::clone(counts), bytes: 0 }
    }

    fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
        let before = self.counts.bytes.fetch_add(bytes, SeqCst);
        self.counts.peak.fetch_max(before + bytes, SeqCst);
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.counts.alive.fetch_sub(1, SeqCst);
        self.counts.bytes.fetch_sub(self.bytes, SeqCst);
    }
}

/// State of a row that decodes from a document.
struct DecoderState {
    /// Hash of the document.
    hash: u64,
    /// Symbols, shared with forks.
    past: Vec<Arc<Symbol>>,
    alive: Alive,
}

/// Keys and values of a symbol.
struct Symbol {
    /// Hash of the document and of all symbols up to this one.
    hash: u64,
    counts: Arc<Counts>,
}

impl Drop for Symbol {
    fn drop(&mut self) {
        self.counts.bytes.fetch_sub(BYTES, SeqCst);
    }
}

impl DecoderState {
    fn hash(&self) -> u64 {
        self.past.last().map_or(self.hash, |symbol| symbol.hash)
    }

    fn push(&mut self, symbol: u32) {
        let counts = Arc::clone(&self.alive.counts);
        let before = counts.bytes.fetch_add(BYTES, SeqCst);
        counts.peak.fetch_max(before + BYTES, SeqCst);
        self.past.push(Arc::new(Symbol { hash: mix(self.hash() ^ u64::from(symbol)), counts }));
    }
}

impl State for DecoderState {
    fn len(&self) -> usize {
        self.past.len()
    }
    fn segments(&self) -> usize {
        0
    }
    fn fork(&self) -> Box<dyn State> {
        Box::new(Self { hash: self.hash, past: self.past.clone(), alive: Alive::new(&self.alive.counts) })
    }
    fn rollback(&mut self, _: usize) -> Result<()> {
        Err(Error::Internal("rollback is not supported".into()))
    }
    fn restart(&mut self, _: usize) {
        self.past.clear();
    }
    fn boundary_before(&self, len: usize) -> usize {
        len
    }
    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        let page = |symbol: &Arc<Symbol>| PageUse {
            id: Arc::as_ptr(symbol).addr(),
            bytes: BYTES,
            references: Arc::strong_count(symbol),
            own: 1,
        };
        self.past.iter().for_each(|symbol| each(page(symbol)));
    }
    fn own_bytes(&self) -> usize {
        size_of::<Self>()
    }
}

/// Returns the logits after `fed` symbols about a document. They are multiples of 0.5, so that some symbols tie.
pub(crate) fn logits(document: &[u32], fed: &[u32]) -> Vec<f32> {
    let hash = document.iter().fold(7, |hash, &token| mix(hash ^ u64::from(token)));
    logits_of(fed.iter().fold(mix(hash), |hash, &symbol| mix(hash ^ u64::from(symbol))))
}

/// Returns the hypotheses of a beam search without an engine, on at most `rows` rows.
pub(crate) fn hypotheses(document: &[u32], request: &Summarize, model: &DocumentModel, rows: usize) -> Vec<Hypothesis> {
    let ValidSummarize { rules, hypotheses, .. } = request.plan(&model.card, &model.limits, rows).unwrap();
    let mut search = BeamSearch::new(rules, MARKS, 256);
    let mut rows = vec![vec![MARKS.start]];
    loop {
        let row_logits: Vec<_> = rows.iter().map(|row| logits(document, row)).collect();
        match search.advance(row_logits.iter().map(Vec::as_slice)).unwrap() {
            SearchStep::Done => return search.finished()[..hypotheses.min(search.finished().len())].to_vec(),
            SearchStep::Continue(moves) => {
                let extended = |&RowMove { parent, token }: &RowMove| [rows[parent].as_slice(), &[token]].concat();
                rows = moves.iter().map(extended).collect();
            }
        }
    }
}

fn logits_of(hash: u64) -> Vec<f32> {
    let logit = |symbol: u64| match symbol {
        0 => (mix(hash ^ 99) % 15) as f32 * 0.5,
        97..=122 | 32 => (mix(hash ^ symbol << 32) % 12) as f32 * 0.5,
        _ => -20.0,
    };
    (0..256).map(logit).collect()
}

impl Model for DocumentModel {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, _: BoundaryOptions) -> Result<Box<dyn State>> {
        Err(Error::Internal("rows begin from documents".into()))
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(true))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        assert!(*scratch.0.downcast_ref::<bool>().unwrap(), "a failed step's scratch was used again");
        self.gate.pass();
        self.log.lock().unwrap().push(LoggedStep::Rows(which.len()));
        for &index in which {
            feed(&mut rows[index], |state: &mut DecoderState, symbol, wanted| {
                state.push(symbol);
                wanted.into_iter().for_each(|logits| logits.extend(logits_of(state.hash())));
                Ok(SymbolBoundary::default())
            })?;
        }
        Ok(())
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], _: &mut Scratch) -> Result<()> {
        which.iter().for_each(|&index| rows[index].status = StepStatus::Ready);
        Ok(())
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        symbols * BYTES
    }

    fn growth(&self, _: &dyn State, more: usize) -> usize {
        more * BYTES
    }

    fn memory(&self) -> KvMemory {
        KvMemory { in_use: self.counts.bytes.load(SeqCst), limit: self.memory }
    }

    fn cost(&self, _: usize, _: usize) -> Cost {
        Cost::default()
    }

    fn document_encoder(&self) -> Option<&dyn DocumentEncoder> {
        Some(self)
    }
}

/// The memory of a document.
struct HashedMemory {
    hash: u64,
    _alive: Alive,
}

/// Encoding with two layers. The first runs while the document arrives.
#[derive(Default)]
struct Opening {
    tokens: Vec<u32>,
    closed: bool,
    hard: bool,
    /// Number of encoded blocks.
    ran: usize,
    /// Choices of the pooling after the first layer, until the document exists.
    choices: Vec<PoolingChoice>,
    document: Option<Arc<Document>>,
    alive: Option<Alive>,
    counts: Arc<Counts>,
}

impl Opening {
    fn blocks(&self) -> usize {
        self.tokens.len().div_ceil(BLOCK)
    }

    fn stage(&self) -> EncodingStage {
        let complete = self.tokens.len() / BLOCK;
        match self.ran {
            _ if self.document.is_some() => EncodingStage::Done,
            ran if ran < complete || (self.closed && ran < self.blocks()) => EncodingStage::Layer(0),
            _ if !self.closed => EncodingStage::Waiting,
            ran if ran < 2 * self.blocks() => EncodingStage::Layer(1),
            _ => EncodingStage::Memory,
        }
    }
}

impl Encoding for Opening {
    fn push(&mut self, tokens: &[u32]) -> Result<()> {
        if self.closed {
            return Err(Error::Internal("closed".into()));
        }
        let length = self.tokens.len() + tokens.len();
        if length > TOKENS {
            return Err(Error::TooLong { field: "document", length, limit: TOKENS, unit: "tokens", why: None });
        }
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }
    fn close(&mut self) -> Result<()> {
        if self.tokens.is_empty() {
            return Err(Error::BadOption {
                field: "document",
                found: "\"\"".into(),
                bound: "at least one token".into(),
            });
        }
        self.closed = true;
        Ok(())
    }
    fn tokens(&self) -> usize {
        self.tokens.len()
    }
    fn progress(&self) -> EncodingProgress {
        let total = self.closed.then(|| 2 * self.blocks() + 1);
        EncodingProgress { stage: self.stage(), blocks: self.ran, total }
    }
    fn choices(&self) -> &[PoolingChoice] {
        &self.choices
    }
    fn document(&self) -> Option<Arc<Document>> {
        self.document.clone()
    }
    fn bytes(&self) -> usize {
        self.alive.as_ref().map_or(0, |alive| alive.bytes) + self.document.as_ref().map_or(0, |document| document.bytes)
    }
}

impl DocumentEncoder for DocumentModel {
    fn limits(&self) -> &DocumentLimits {
        &self.limits
    }

    fn open(&self, hard: bool) -> Result<Box<dyn Encoding>> {
        let alive = Some(Alive::new(&self.counts));
        Ok(Box::new(Opening { alive, hard, counts: Arc::clone(&self.counts), ..Opening::default() }))
    }

    fn bytes_for(&self, tokens: usize) -> usize {
        2 * tokens.next_multiple_of(BLOCK) * BYTES
    }

    fn multiply_adds(&self, tokens: usize, _: usize) -> usize {
        tokens
    }

    fn advance(&self, encoding: &mut dyn Encoding, blocks: usize, scratch: &mut Scratch) -> Result<usize> {
        let opening = encoding_mut::<Opening>(encoding)?;
        let clean = scratch.0.downcast_mut::<bool>().unwrap();
        assert!(std::mem::take(clean), "a failed step's scratch was used again");
        let mut ran = 0;
        while ran < blocks && !matches!(opening.stage(), EncodingStage::Waiting | EncodingStage::Done) {
            self.gate.pass();
            self.log.lock().unwrap().push(LoggedStep::Block);
            self.counts.blocks.fetch_add(1, SeqCst);
            let block = opening.tokens.chunks(BLOCK).nth(opening.ran).unwrap_or_default();
            assert!(!block.contains(&PANIC), "the test requests a panic");
            if block.contains(&FAIL) {
                return Err(Error::OutOfPages { needed: 1, limit: 0 });
            }
            match opening.stage() {
                EncodingStage::Layer(0) => opening.alive.as_mut().unwrap().grow(BLOCK * BYTES),
                EncodingStage::Memory => {
                    let mut alive = Alive::new(&opening.counts);
                    alive.grow(opening.tokens.len() * BYTES);
                    // Releases the memory of the encoder.
                    opening.alive = None;
                    opening.choices.clear();
                    opening.document = Some(Arc::new(hashed_document(&opening.tokens, opening.hard, alive)));
                }
                _ => {}
            }
            opening.ran += 1;
            ran += 1;
            if opening.closed && opening.ran == opening.blocks() {
                opening.choices = vec![pooling_choice(&opening.tokens)];
            }
        }
        *clean = true;
        Ok(ran)
    }

    fn begin(&self, document: &Document) -> Result<Box<dyn State>> {
        let HashedMemory { hash, .. } = *document.memory.downcast_ref().unwrap();
        Ok(Box::new(DecoderState { hash, past: Vec::new(), alive: Alive::new(&self.counts) }))
    }

    /// Attends to later vectors more.
    fn attention(&self, document: &Document, _: &mut Scratch) -> Result<Vec<f32>> {
        Ok((1..=document.vectors).map(|vector| vector as f32).collect())
    }
}

/// Returns the vectors that the pooling after the first layer keeps.
fn pooling_choice(tokens: &[u32]) -> PoolingChoice {
    let kept =
        (0..tokens.len()).step_by(2).map(|token| KeptVector { token, score: (token % 7) as f32 / 8.0 }).collect();
    PoolingChoice { layer: 0, kept }
}

fn hashed_document(tokens: &[u32], hard: bool, alive: Alive) -> Document {
    let hash = tokens.iter().fold(7, |hash, &token| mix(hash ^ u64::from(token)));
    Document {
        tokens: tokens.len(),
        vectors: tokens.len().div_ceil(2),
        bytes: alive.bytes,
        unpooled_bytes: tokens.len() * 2 * BYTES,
        own_bytes: 0,
        choices: vec![pooling_choice(tokens)],
        timings: vec![LayerTime { length: tokens.len(), ns: 5 }; 2],
        memory_ns: 7,
        memory: Box::new(HashedMemory { hash: mix(hash ^ u64::from(hard)), _alive: alive }),
    }
}
