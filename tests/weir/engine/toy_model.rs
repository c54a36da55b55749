//! A model without arithmetic: its logits are a hash of all symbols before them. It counts live sequences, records its
//! steps, can be paused, and fails on demand.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
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
    },
    engine::{Handle, Limits},
    error::{Error, Result},
    text::{TextNormaliser, Vocabulary},
};

/// Number of symbols that can be sampled: 0 to 3. Symbol 0 ends a segment.
pub(super) const SAMPLED: u32 = 4;
/// Symbol that makes the symbol step panic.
pub(super) const PANIC: u32 = 4;
/// Symbol that makes the symbol step return an error.
pub(super) const FAIL: u32 = 5;
/// Symbol that makes the segment step panic.
pub(super) const PANIC_IN_MIDDLE: u32 = 6;
/// Symbol whose logits are NaN.
pub(super) const NAN: u32 = 7;
/// Symbol that makes the finish step panic.
pub(super) const PANIC_AT_FINISH: u32 = 8;
/// Size of the vocabulary.
pub(super) const VOCABULARY: usize = 9;
/// Maximum length of a sequence, in symbols.
pub(super) const MAX_SYMBOLS: usize = 4096;
/// Key-value bytes per symbol.
pub(super) const BYTES: usize = 10;

pub(super) struct Toy {
    card: Card,
    limit: usize,
    counts: Arc<Counts>,
    gate: (Mutex<RemainingSteps>, Condvar),
    /// Number of symbol steps that have reached the gate.
    pub(super) begun: AtomicUsize,
    /// Panics to come in the worker's accounting of memory.
    pub(super) memory_panics: AtomicUsize,
    /// For each symbol step, the number of symbols that each row fed.
    pub(super) steps: Mutex<Vec<Vec<usize>>>,
    /// For each segment step, its number of rows and the longest wait among them in symbol steps.
    pub(super) segment_steps: Mutex<Vec<(usize, usize)>>,
    /// Number of finish steps.
    pub(super) finish_steps: AtomicUsize,
    /// Minimum duration of a symbol step, in nanoseconds.
    pub(super) step_ns: AtomicU64,
    /// Number of scratches that can still be created.
    pub(super) scratches: AtomicUsize,
}

#[derive(Default)]
struct Counts {
    /// Sequences created since the start.
    created: AtomicUsize,
    sequences: AtomicUsize,
    bytes: AtomicUsize,
    /// Maximum of `bytes` since the start.
    peak: AtomicUsize,
}

/// Maximum time for which a step is held.
const HOLD_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of steps that may still begin. Unlimited if `None`.
type RemainingSteps = Option<usize>;

impl Toy {
    pub(super) fn new() -> Arc<Self> {
        Self::with(MAX_SYMBOLS, usize::MAX)
    }

    /// Creates a model for sequences of at most `max_symbols` symbols that share `limit` bytes.
    pub(super) fn with(max_symbols: usize, limit: usize) -> Arc<Self> {
        Self::named("toy", max_symbols, limit)
    }

    pub(super) fn named(name: &str, max_symbols: usize, limit: usize) -> Arc<Self> {
        let card = Card {
            name: name.into(),
            family: "toy",
            shape: "a hash".into(),
            training_length: 64,
            max_symbols,
            boundary_modes: vec![BoundaryMode::Given],
            speculates: true,
            ..Card::for_tests(vocabulary())
        };
        Arc::new(Self {
            card,
            limit,
            counts: Arc::default(),
            gate: Default::default(),
            begun: AtomicUsize::new(0),
            memory_panics: AtomicUsize::new(0),
            steps: Mutex::default(),
            segment_steps: Mutex::default(),
            finish_steps: AtomicUsize::new(0),
            step_ns: AtomicU64::new(0),
            scratches: AtomicUsize::new(usize::MAX),
        })
    }

    pub(super) fn engine(self: &Arc<Self>, limits: Limits) -> Handle {
        Handle::start(Arc::clone(self) as Arc<dyn Model>, limits).unwrap()
    }

    /// Lets at most `steps` further steps begin.
    pub(super) fn hold(&self, steps: usize) {
        *self.gate.0.lock().unwrap() = Some(steps);
        self.gate.1.notify_all();
    }

    /// Lets all steps begin.
    pub(super) fn release(&self) {
        *self.gate.0.lock().unwrap() = None;
        self.gate.1.notify_all();
    }

    pub(super) fn sequences(&self) -> usize {
        self.counts.sequences.load(SeqCst)
    }

    /// Maximum number of bytes that all sequences held together.
    pub(super) fn peak(&self) -> usize {
        self.counts.peak.load(SeqCst)
    }

    fn pass_gate(&self) {
        self.begun.fetch_add(1, SeqCst);
        let held = |steps: &mut RemainingSteps| *steps == Some(0);
        // A test that fails while it holds the steps must not wait for the worker for ever.
        let (mut steps, _) = self.gate.1.wait_timeout_while(self.gate.0.lock().unwrap(), HOLD_TIMEOUT, held).unwrap();
        if let Some(steps) = &mut *steps {
            *steps = steps.saturating_sub(1);
        }
    }
}

fn vocabulary() -> Vocabulary {
    let symbols: [String; VOCABULARY] = std::array::from_fn(|id| char::from(b'a' + id as u8).to_string());
    Vocabulary::from_symbols(&symbols, TextNormaliser::None).unwrap()
}

struct ToyState {
    id: usize,
    /// For each position, the hash of the symbols up to it and the number of closed segments.
    past: Vec<(u64, usize)>,
    /// Number of symbols whose finish step has run.
    finished: usize,
    /// Logits of the fed symbols, which the finish step delivers.
    pending_logits: Vec<f32>,
    /// Symbol steps since the row began to wait, counted by the model.
    waited: usize,
    counts: Arc<Counts>,
}

impl ToyState {
    fn new(past: Vec<(u64, usize)>, counts: Arc<Counts>) -> Self {
        let id = counts.created.fetch_add(1, SeqCst);
        counts.sequences.fetch_add(1, SeqCst);
        counts.bytes.fetch_add(past.len() * BYTES, SeqCst);
        Self { id, finished: past.len(), past, pending_logits: Vec::new(), waited: 0, counts }
    }

    fn push(&mut self, symbol: u32) -> SymbolBoundary {
        let (hash, segments) = self.past.last().copied().unwrap_or((1, 0));
        let boundary = symbol == 0 || symbol == PANIC_IN_MIDDLE;
        self.past.push((mix(hash ^ u64::from(symbol)), segments + usize::from(boundary)));
        let before = self.counts.bytes.fetch_add(BYTES, SeqCst);
        self.counts.peak.fetch_max(before + BYTES, SeqCst);
        SymbolBoundary { boundary, depth: 0, probability: None, end_logprob: None }
    }

    fn logits(&self, last: u32) -> [f32; VOCABULARY] {
        let hash = self.past.last().unwrap().0;
        std::array::from_fn(|symbol| match symbol as u32 {
            _ if last == NAN => f32::NAN,
            // Coarse values, so that some symbols tie.
            0..SAMPLED => (mix(hash ^ (symbol as u64) << 32) % 9) as f32 * 0.5 - 2.0,
            _ => f32::NEG_INFINITY,
        })
    }
}

impl Drop for ToyState {
    fn drop(&mut self) {
        self.counts.sequences.fetch_sub(1, SeqCst);
        self.counts.bytes.fetch_sub(self.past.len() * BYTES, SeqCst);
    }
}

impl State for ToyState {
    fn len(&self) -> usize {
        self.past.len()
    }

    fn segments(&self) -> usize {
        self.past.last().map_or(0, |past| past.1)
    }

    fn fork(&self) -> Box<dyn State> {
        Box::new(Self::new(self.past[..self.finished].to_vec(), Arc::clone(&self.counts)))
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        if self.finished < self.past.len() || len > self.past.len() {
            return Err(Error::Internal("the state is not ready, or the length is beyond its end".into()));
        }
        self.counts.bytes.fetch_sub((self.past.len() - len) * BYTES, SeqCst);
        self.past.truncate(len);
        self.finished = len;
        Ok(())
    }

    fn cut(&mut self, len: usize) -> Result<()> {
        if !(self.finished + 1..=self.past.len()).contains(&len) {
            return Err(Error::Internal("no symbol in flight is left, or the length is beyond the end".into()));
        }
        self.counts.bytes.fetch_sub((self.past.len() - len) * BYTES, SeqCst);
        // all logits are wanted for a draft
        self.pending_logits.truncate((len - self.finished) * VOCABULARY);
        self.past.truncate(len);
        Ok(())
    }

    fn restart(&mut self, _: usize) {
        self.counts.bytes.fetch_sub(self.past.len() * BYTES, SeqCst);
        self.past.clear();
        self.pending_logits.clear();
        self.finished = 0;
    }

    fn boundary_before(&self, len: usize) -> usize {
        let prefix = &self.past[..len.min(self.past.len())];
        let segments = prefix.last().map_or(0, |past| past.1);
        if segments == 0 { 0 } else { prefix.partition_point(|past| past.1 < segments) + 1 }
    }

    fn bytes(&self) -> usize {
        self.past.len() * BYTES
    }

    /// Reports one page: a fork copies its parent.
    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        each(PageUse { id: self.id, bytes: self.bytes(), references: 1, own: 1 });
    }

    fn own_bytes(&self) -> usize {
        size_of::<Self>()
    }
}

impl Model for Toy {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, _: BoundaryOptions) -> Result<Box<dyn State>> {
        Ok(Box::new(ToyState::new(Vec::new(), Arc::clone(&self.counts))))
    }

    fn scratch(&self) -> Scratch {
        let taken = self.scratches.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        assert!(taken.is_ok(), "the test allows no further scratch");
        Scratch(Box::new(true))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.pass_gate();
        std::thread::sleep(Duration::from_nanos(self.step_ns.load(SeqCst)));
        with(scratch, || {
            self.steps.lock().unwrap().push(which.iter().map(|&index| rows[index].feed.len()).collect());
            for row in rows.iter_mut().filter(|row| row.status == StepStatus::Waiting) {
                state_mut::<ToyState>(row.state.as_mut())?.waited += 1;
            }
            which.iter().try_for_each(|&index| feed(&mut rows[index]))
        })
    }

    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        with(scratch, || {
            let mut row_count = 0;
            let mut longest = 0;
            for &index in which {
                let row = &mut rows[index];
                if row.status == StepStatus::Waiting {
                    let state = state_mut::<ToyState>(row.state.as_mut())?;
                    assert!(!row.feed.contains(&PANIC_IN_MIDDLE), "the test requests a panic in the segment step");
                    assert_eq!(state.waited, row.waited, "the engine counts a different wait");
                    row_count += 1;
                    longest = longest.max(std::mem::take(&mut state.waited));
                    row.status = StepStatus::Unfinished;
                }
            }
            if row_count > 0 {
                self.segment_steps.lock().unwrap().push((row_count, longest));
            }
            Ok(())
        })
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        with(scratch, || {
            self.finish_steps.fetch_add(1, SeqCst);
            for &index in which {
                let row = &mut rows[index];
                if row.status == StepStatus::Unfinished {
                    let state = state_mut::<ToyState>(row.state.as_mut())?;
                    assert!(!row.feed.contains(&PANIC_AT_FINISH), "the test requests a panic in the finish step");
                    row.logits = std::mem::take(&mut state.pending_logits);
                    state.finished = state.past.len();
                    row.status = StepStatus::Ready;
                }
            }
            Ok(())
        })
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        symbols * BYTES
    }

    fn growth(&self, _: &dyn State, more: usize) -> usize {
        more * BYTES
    }

    fn memory(&self) -> KvMemory {
        let is_worker = std::thread::current().name().is_some_and(|name| name.starts_with("weir-"));
        let take = |left: usize| left.checked_sub(1);
        if is_worker {
            assert!(self.memory_panics.fetch_update(SeqCst, SeqCst, take).is_err(), "the test requests a panic");
        }
        KvMemory { in_use: self.counts.bytes.load(SeqCst), limit: self.limit }
    }

    fn cost(&self, _: usize, _: usize) -> Cost {
        Cost::default()
    }
}

/// Runs a step and panics if its scratch was part of a failed step.
fn with(scratch: &mut Scratch, step: impl FnOnce() -> Result<()>) -> Result<()> {
    let clean = scratch.0.downcast_mut::<bool>().unwrap();
    assert!(std::mem::take(clean), "a failed step's scratch was used again");
    step()?;
    *clean = true;
    Ok(())
}

fn feed(row: &mut SequenceRow) -> Result<()> {
    let SequenceRow { state, feed, want, logits, decisions, status, .. } = row;
    assert!(*status == StepStatus::Ready && !feed.is_empty());
    let state = state_mut::<ToyState>(state.as_mut())?;
    logits.clear();
    decisions.clear();
    for (index, &symbol) in feed.iter().enumerate() {
        assert!(symbol != PANIC, "the test requests a panic");
        if symbol == FAIL {
            return Err(Error::OutOfPages { needed: 1, limit: 0 });
        }
        decisions.push(state.push(symbol));
        if *want == Want::All || (*want == Want::Last && index + 1 == feed.len()) {
            state.pending_logits.extend(state.logits(symbol));
        }
    }
    let closes = decisions.iter().any(|decision| decision.boundary);
    *status = if closes { StepStatus::Waiting } else { StepStatus::Unfinished };
    Ok(())
}

/// Returns the logits after `text`, computed from its start.
pub(super) fn logits_after(text: &[u32]) -> [f32; VOCABULARY] {
    let mut state = ToyState::new(Vec::new(), Arc::default());
    text.iter().for_each(|&symbol| {
        state.push(symbol);
    });
    state.logits(*text.last().unwrap())
}

pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (value ^ (value >> 33)).wrapping_add(0x9e37_79b9_7f4a_7c15)
}
