//! A document encoder without arithmetic: its logits are a hash of the document and of all symbols before them. It counts
//! live objects, can be paused and slowed down, and fails on demand.

mod encoding;

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use weir::{
    decode::{
        contract::{
            BoundaryMode, BoundaryOptions, Card, KvMemory, Model, PageUse, Scratch, SequenceRow, State, StepStatus,
            SymbolBoundary, Want, state_mut,
        },
        cost::Cost,
        document::{DocumentEncoder, DocumentLimits, GenerationDefaults, PoolingStep, SpecialIds},
    },
    error::{Error, Result},
    text::{TextNormaliser, Vocabulary},
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
    gate: (Mutex<StepGate>, Condvar),
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

/// Controls whether, and how fast, steps run.
#[derive(Clone, Copy, PartialEq)]
enum StepGate {
    Free,
    Held,
    Slow(Duration),
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
        let gate = (Mutex::new(StepGate::Free), Condvar::new());
        Arc::new(Self { card, limits, memory, counts: Arc::default(), gate, log: Mutex::default() })
    }

    /// Blocks all further work.
    pub(crate) fn hold(&self) {
        self.set(StepGate::Held);
    }

    /// Lets all work run at full speed.
    pub(crate) fn release(&self) {
        self.set(StepGate::Free);
    }

    /// Makes each block and each step take `duration`.
    pub(crate) fn slow(&self, duration: Duration) {
        self.set(StepGate::Slow(duration));
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

    fn set(&self, gate: StepGate) {
        *self.gate.0.lock().unwrap() = gate;
        self.gate.1.notify_all();
    }

    fn wait(&self) {
        let (gate, changed) = &self.gate;
        let gate = changed.wait_while(gate.lock().unwrap(), |gate| *gate == StepGate::Held).unwrap();
        if let StepGate::Slow(duration) = *gate {
            drop(changed.wait_timeout_while(gate, duration, |gate| *gate != StepGate::Free));
        }
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
    fn bytes(&self) -> usize {
        self.past.len() * BYTES
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
        self.wait();
        self.log.lock().unwrap().push(LoggedStep::Rows(which.len()));
        for &index in which {
            let SequenceRow { state, feed, want, logits, decisions, status, .. } = &mut rows[index];
            assert!(*status == StepStatus::Ready && !feed.is_empty());
            let state = state_mut::<DecoderState>(state.as_mut())?;
            logits.clear();
            decisions.clear();
            for (index, &symbol) in feed.iter().enumerate() {
                state.push(symbol);
                decisions.push(SymbolBoundary { boundary: false, depth: 0, probability: None, end_logprob: None });
                if *want == Want::All || (*want == Want::Last && index + 1 == feed.len()) {
                    logits.extend(logits_of(state.hash()));
                }
            }
            *status = StepStatus::Unfinished;
        }
        Ok(())
    }

    fn segment_step(&self, _: &mut [SequenceRow], _: &[usize], _: &mut Scratch) -> Result<()> {
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

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (value ^ (value >> 33)).wrapping_add(0x9e37_79b9_7f4a_7c15)
}
