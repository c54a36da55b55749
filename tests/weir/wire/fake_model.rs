//! A fake model: its logits are a hash of all previous symbols. It can be held, slowed down, and panics on demand.

use super::*;
use crate::toy_model::{StepGate, boundary_before, feed};
use weir::models::contract::PageUse;
use weir::models::text::TextNormaliser;

/// Symbols of the vocabulary. The first ends a segment.
pub(super) const SYMBOLS: [&str; 8] = [" ", "a", "b", "c", "d", "e", "é", "!"];

/// Feeding this symbol panics; it is never generated.
const PANIC: u32 = 7;

/// Maximum symbols of a sequence.
pub(super) const MAX_SYMBOLS: usize = 2000;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Pooled,
    Vanilla,
    Bytes,
    /// Normalises texts, so that a long one can have few symbols.
    Text8,
}

/// Symbols of `Kind::Text8`.
const LETTERS: [&str; 8] = [" ", "a", "b", "c", "d", "e", "f", "g"];

/// A request of at least this many symbols can be held while it is submitted.
pub(super) const HELD_SYMBOLS: usize = 1800;

pub(super) struct Fake {
    card: Card,
    bytes: Arc<AtomicUsize>,
    pub(super) gate: StepGate,
    submission: (Mutex<SubmissionGate>, Condvar),
    steps: AtomicUsize,
    /// Seed of the hash: models with different salts generate different texts.
    salt: u64,
    /// True if every step panics, and the model yields no scratch space for another one.
    broken: AtomicBool,
    /// Panics to come in the worker's planning of a step.
    planning_panics: AtomicUsize,
}

/// Controls whether long requests can be submitted.
#[derive(Default)]
struct SubmissionGate {
    is_closed: bool,
    /// Requests that wait.
    waiting: usize,
}

impl Fake {
    pub(super) fn new(name: &str, kind: Kind) -> Arc<Self> {
        Self::salted(name, kind, 1)
    }

    /// Creates a model whose texts depend on `salt`.
    pub(super) fn salted(name: &str, kind: Kind, salt: u64) -> Arc<Self> {
        let vocabulary = match kind {
            Kind::Bytes => Vocabulary::byte_level(TextNormaliser::None),
            Kind::Text8 => Vocabulary::from_symbols(&LETTERS, TextNormaliser::Text8).unwrap(),
            _ => Vocabulary::from_symbols(&SYMBOLS, TextNormaliser::None).unwrap(),
        };
        let modes = match kind {
            Kind::Vanilla => vec![BoundaryMode::Given],
            _ => vec![BoundaryMode::Threshold, BoundaryMode::Sampled],
        };
        let card = Card {
            name: name.into(),
            family: "fake",
            shape: format!("{kind:?}"),
            parameters: 7,
            training_length: 64,
            max_symbols: MAX_SYMBOLS,
            boundary_modes: modes,
            pooled: kind != Kind::Vanilla,
            sha256: "00ff".into(),
            ..Card::for_tests(vocabulary)
        };
        Arc::new(Self {
            card,
            bytes: Arc::default(),
            gate: StepGate::default(),
            submission: Default::default(),
            steps: AtomicUsize::new(0),
            salt,
            broken: AtomicBool::new(false),
            planning_panics: AtomicUsize::new(0),
        })
    }

    /// Blocks the threads that submit long requests. Running requests must be short.
    pub(super) fn hold_submissions(&self) {
        self.submission.0.lock().unwrap().is_closed = true;
    }

    /// Ends `hold_submissions`.
    pub(super) fn release_submissions(&self) {
        self.submission.0.lock().unwrap().is_closed = false;
        self.submission.1.notify_all();
    }

    /// Returns the number of blocked threads.
    pub(super) fn held_submissions(&self) -> usize {
        self.submission.0.lock().unwrap().waiting
    }

    fn wait_to_submit(&self) {
        let (gate, changed) = &self.submission;
        let mut gate = gate.lock().unwrap();
        gate.waiting += 1;
        let (mut gate, _) =
            changed.wait_timeout_while(gate, crate::toy_model::HOLD_TIMEOUT, |gate| gate.is_closed).unwrap();
        gate.waiting -= 1;
    }

    /// Returns the number of started symbol steps.
    pub(super) fn steps(&self) -> usize {
        self.steps.load(SeqCst)
    }

    /// Breaks the worker at its next step: it cannot start over either.
    pub(super) fn break_for_good(&self) {
        self.broken.store(true, SeqCst);
    }

    /// Lets the worker panic the next `count` times that it plans a step, outside of its handling of single requests.
    pub(super) fn panic_while_planning(&self, count: usize) {
        self.planning_panics.store(count, SeqCst);
    }
}

struct FakeState {
    /// Hash of the symbols up to each position, and the number of segments closed there.
    past: Vec<(u64, usize)>,
    salt: u64,
    boundaries: BoundaryOptions,
    space: u32,
    bytes: Arc<AtomicUsize>,
}

impl FakeState {
    fn push(&mut self, symbol: u32) -> Result<SymbolBoundary> {
        assert!(symbol != PANIC, "requested panic");
        let (hash, segments) = self.past.last().copied().unwrap_or((self.salt, 0));
        let space = symbol == self.space;
        let boundary = match self.boundaries.mode {
            Some(BoundaryMode::Sampled) => self.boundaries.noise.at(self.past.len())? < 0.3,
            _ => space,
        };
        self.past.push((mix(hash ^ u64::from(symbol)), segments + usize::from(boundary)));
        self.bytes.fetch_add(1, SeqCst);
        Ok(SymbolBoundary { boundary, probability: Some(if space { 0.75 } else { 0.25 }), ..SymbolBoundary::default() })
    }

    fn logits(&self, vocabulary: usize) -> Vec<f32> {
        let hash = self.past.last().map_or(0, |past| past.0);
        let logit = |symbol| (mix(hash ^ (symbol as u64) << 32) % 97) as f32 * 0.03;
        (0..vocabulary).map(|symbol| if symbol == PANIC as usize { f32::NEG_INFINITY } else { logit(symbol) }).collect()
    }
}

impl Drop for FakeState {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.past.len(), SeqCst);
    }
}

impl State for FakeState {
    fn len(&self) -> usize {
        self.past.len()
    }

    fn segments(&self) -> usize {
        self.past.last().map_or(0, |past| past.1)
    }

    fn fork(&self) -> Box<dyn State> {
        self.bytes.fetch_add(self.past.len(), SeqCst);
        Box::new(Self {
            past: self.past.clone(),
            salt: self.salt,
            boundaries: self.boundaries.clone(),
            space: self.space,
            bytes: Arc::clone(&self.bytes),
        })
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        self.bytes.fetch_sub(self.past.len() - len, SeqCst);
        self.past.truncate(len);
        Ok(())
    }

    fn restart(&mut self, offset: usize) {
        self.bytes.fetch_sub(self.past.len(), SeqCst);
        self.past.clear();
        self.boundaries.offset = offset;
    }

    fn boundary_before(&self, len: usize) -> usize {
        if self.space == u32::MAX { len.min(self.past.len()) } else { boundary_before(&self.past, len) }
    }

    fn bytes(&self) -> usize {
        self.past.len()
    }

    /// Reports one page that no other state shares, since a fork copies.
    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        each(PageUse { id: self.past.as_ptr().addr(), bytes: self.bytes(), references: 1, own: 1 });
    }

    fn own_bytes(&self) -> usize {
        size_of::<Self>()
    }
}

impl Model for Fake {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        let space = match (self.card.pooled, self.card.vocabulary.id_of(' ')) {
            (true, Some(space)) => space,
            _ => u32::MAX,
        };
        let bytes = Arc::clone(&self.bytes);
        Ok(Box::new(FakeState { past: Vec::new(), salt: self.salt, boundaries, space, bytes }))
    }

    fn scratch(&self) -> Scratch {
        assert!(!self.broken.load(SeqCst), "requested break");
        Scratch(Box::new(()))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], _: &mut Scratch) -> Result<()> {
        self.steps.fetch_add(1, SeqCst);
        self.gate.pass();
        assert!(!self.broken.load(SeqCst), "requested break");
        let size = self.card.vocabulary.len();
        for &index in which {
            feed(&mut rows[index], |state: &mut FakeState, symbol, wanted| {
                let boundary = state.push(symbol)?;
                wanted.into_iter().for_each(|logits| logits.extend(state.logits(size)));
                Ok(boundary)
            })?;
        }
        Ok(())
    }

    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], _: &mut Scratch) -> Result<()> {
        for &index in which {
            rows[index].status = StepStatus::Unfinished;
        }
        Ok(())
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], _: &mut Scratch) -> Result<()> {
        for &index in which {
            rows[index].status = StepStatus::Ready;
        }
        Ok(())
    }

    /// Called while a request is submitted.
    fn bytes_for(&self, symbols: usize) -> usize {
        if symbols >= HELD_SYMBOLS {
            self.wait_to_submit();
        }
        symbols
    }

    fn growth(&self, _: &dyn State, more: usize) -> usize {
        let take = |left: usize| left.checked_sub(1);
        assert!(self.planning_panics.fetch_update(SeqCst, SeqCst, take).is_err(), "requested panic in the planning");
        more
    }

    fn memory(&self) -> KvMemory {
        KvMemory { in_use: self.bytes.load(SeqCst), limit: 1 << 30 }
    }

    fn cost(&self, _: usize, _: usize) -> Cost {
        Cost::default()
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}
