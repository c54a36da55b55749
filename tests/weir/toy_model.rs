//! A model without arithmetic, on real key-value pages: its logits are a hash of all symbols before them. It counts live sequences,
//! records its steps, can be paused, and fails on demand. The simulation also compiles this file.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;
use weir::engine::observer::{EngineEvent, Observer};
use weir::engine::{Handle, Limits};
use weir::error::{Error, Result};
use weir::kernels::pages::{Page, PagePool};
use weir::models::contract::{
    BoundaryMode, BoundaryOptions, Card, Cost, KvMemory, Model, PageUse, Scratch, SequenceRow, State, StepStatus,
    SymbolBoundary, Want, state_mut, state_ref,
};
use weir::models::text::{TextNormaliser, Vocabulary};

/// Symbols of the vocabulary. The first ends a segment.
pub(crate) const SYMBOLS: [&str; 9] = [" ", "a", "b", "c", "!", "#", "$", "%", "&"];

/// Size of the vocabulary.
pub(crate) const VOCABULARY: usize = SYMBOLS.len();

/// Number of symbols that can be sampled: 0 to 3.
pub(crate) const SAMPLED: u32 = 4;

/// Symbol that makes the symbol step panic.
pub(crate) const PANIC: u32 = 4;

/// Symbol that makes the symbol step return an error.
pub(crate) const FAIL: u32 = 5;

/// Symbol that makes the segment step panic.
pub(crate) const PANIC_IN_MIDDLE: u32 = 6;

/// Symbol whose logits are NaN.
pub(crate) const NAN: u32 = 7;

/// Symbol that makes the finish step panic.
pub(crate) const PANIC_AT_FINISH: u32 = 8;

/// Beginning of the message of a panic that a test wants.
pub(crate) const WANTED_PANIC: &str = "the test wants a panic";

/// Key-value bytes per symbol.
pub(crate) const BYTES: usize = 10;

/// Hash of the empty text.
const SALT: u64 = 1;

/// Maximum time that a step or request is held, so that a test fails instead of hanging.
pub(crate) const HOLD_TIMEOUT: Duration = Duration::from_secs(60);

/// Decides when, and how fast, the steps of a model run.
#[derive(Default)]
pub(crate) struct StepGate {
    /// Steps that may still begin, unlimited if `None`; and the least time of a step.
    pace: Mutex<(Option<usize>, Duration)>,
    changed: Condvar,
}

impl StepGate {
    /// Lets at most `steps` further steps begin.
    pub(crate) fn hold(&self, steps: usize) {
        self.set(Some(steps), Duration::ZERO);
    }

    /// Lets all steps run at full speed.
    pub(crate) fn release(&self) {
        self.set(None, Duration::ZERO);
    }

    /// Makes each step take at least `step`.
    pub(crate) fn slow(&self, step: Duration) {
        self.set(None, step);
    }

    fn set(&self, steps: Option<usize>, step: Duration) {
        *self.pace.lock().unwrap() = (steps, step);
        self.changed.notify_all();
    }

    /// Waits until a step may run.
    pub(crate) fn pass(&self) {
        let held = |(steps, _): &mut (Option<usize>, Duration)| *steps == Some(0);
        // A test that fails while it holds the steps must not wait for the worker for ever.
        let (mut pace, _) = self.changed.wait_timeout_while(self.pace.lock().unwrap(), HOLD_TIMEOUT, held).unwrap();
        pace.0 = pace.0.map(|steps| steps.saturating_sub(1));
        let step = pace.1;
        drop(self.changed.wait_timeout_while(pace, step, |(_, step)| !step.is_zero()));
    }
}

pub(crate) struct Toy {
    card: Card,
    shared: Arc<Shared>,
    /// Returns true if a symbol step is to fail for lack of memory.
    refuses: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) gate: StepGate,
    /// Number of symbol steps that have reached the gate.
    pub(crate) begun: AtomicUsize,
    /// Panics to come in the worker's accounting of memory.
    pub(crate) memory_panics: AtomicUsize,
    /// For each symbol step, the number of symbols that each row fed.
    pub(crate) steps: Mutex<Vec<Vec<usize>>>,
    /// For each segment step, its number of rows and the longest wait among them in symbol steps.
    pub(crate) segment_steps: Mutex<Vec<(usize, usize)>>,
    /// Number of finish steps.
    pub(crate) finish_steps: AtomicUsize,
    /// Minimum duration of a symbol step, in nanoseconds.
    pub(crate) step_ns: AtomicU64,
    /// Number of scratches that can still be created.
    pub(crate) scratches: AtomicUsize,
}

/// State that the model's sequences share.
struct Shared {
    pool: Arc<PagePool>,
    /// Symbols of a page.
    page_symbols: usize,
    sequences: AtomicUsize,
    /// Maximum bytes in use since the start.
    peak: AtomicUsize,
    /// Number of pages that the pool refused.
    overruns: AtomicUsize,
    /// True if the next sequence that is dropped panics, outside of a step.
    breaks_worker: AtomicBool,
}

impl Toy {
    /// Creates a model for sequences of at most `max_symbols` symbols that share `limit` bytes, in pages of `page_symbols` symbols.
    pub(crate) fn paged(
        name: &str,
        max_symbols: usize,
        limit: usize,
        page_symbols: usize,
        refuses: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        let card = Card {
            name: name.into(),
            family: "toy",
            shape: "a hash".into(),
            training_length: 64,
            max_symbols,
            boundary_modes: vec![BoundaryMode::Threshold],
            speculates: true,
            sha256: "5a".repeat(32),
            ..Card::for_tests(Vocabulary::from_symbols(&SYMBOLS, TextNormaliser::None).unwrap())
        };
        let shared = Shared {
            pool: PagePool::new(limit),
            page_symbols,
            sequences: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            overruns: AtomicUsize::new(0),
            breaks_worker: AtomicBool::new(false),
        };
        Arc::new(Self {
            card,
            shared: Arc::new(shared),
            refuses: Box::new(refuses),
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

    pub(crate) fn engine(self: &Arc<Self>, limits: Limits) -> Handle {
        Handle::start(Arc::clone(self) as Arc<dyn Model>, limits).unwrap()
    }

    /// Makes the next sequence that is dropped panic, or no longer.
    pub(crate) fn break_worker(&self, breaks: bool) {
        self.shared.breaks_worker.store(breaks, SeqCst);
    }

    pub(crate) fn sequences(&self) -> usize {
        self.shared.sequences.load(SeqCst)
    }

    /// Maximum number of bytes that all sequences held together.
    pub(crate) fn peak(&self) -> usize {
        self.shared.peak.load(SeqCst)
    }

    /// Number of pages that the pool refused although the engine had made room for them.
    pub(crate) fn overruns(&self) -> usize {
        self.shared.overruns.load(SeqCst)
    }
}

struct ToyState {
    /// For each position, the hash of the symbols up to it and the number of closed segments.
    past: Vec<(u64, usize)>,
    /// Number of symbols whose finish step has run. A fork has only these.
    finished: usize,
    /// Logits of the fed symbols, which the finish step delivers.
    pending_logits: Vec<f32>,
    /// Symbol steps since the row began to wait, counted by the model.
    waited: usize,
    pages: Vec<Page>,
    shared: Arc<Shared>,
}

impl ToyState {
    fn new(past: Vec<(u64, usize)>, pages: Vec<Page>, shared: &Arc<Shared>) -> Self {
        shared.sequences.fetch_add(1, SeqCst);
        Self { finished: past.len(), past, pending_logits: Vec::new(), waited: 0, pages, shared: Arc::clone(shared) }
    }

    fn push(&mut self, symbol: u32, is_wanted: bool) -> Result<SymbolBoundary> {
        assert!(symbol != PANIC, "{WANTED_PANIC}");
        if symbol == FAIL {
            return Err(Error::OutOfPages { needed: 1, limit: 0 });
        }
        let Shared { pool, page_symbols, peak, overruns, .. } = &*self.shared;
        let allocated = if self.past.len().is_multiple_of(*page_symbols) {
            pool.allocate(page_symbols * BYTES).map(|page| self.pages.push(page))
        } else {
            self.pages.last_mut().map_or(Ok(()), |page| page.bytes_mut().map(drop))
        };
        allocated.inspect_err(|_| _ = overruns.fetch_add(1, SeqCst))?;
        peak.fetch_max(pool.in_use(), SeqCst);
        let (hash, segments) = self.past.last().copied().unwrap_or((SALT, 0));
        let boundary = symbol == 0 || symbol == PANIC_IN_MIDDLE;
        let hash = extended(hash, symbol);
        self.past.push((hash, segments + usize::from(boundary)));
        if is_wanted {
            self.pending_logits.extend(logits_of(hash, symbol));
        }
        Ok(SymbolBoundary { boundary, ..SymbolBoundary::default() })
    }

    fn truncate(&mut self, len: usize) {
        self.past.truncate(len);
        self.pages.truncate(len.div_ceil(self.shared.page_symbols));
    }
}

impl Drop for ToyState {
    fn drop(&mut self) {
        self.shared.sequences.fetch_sub(1, SeqCst);
        // a panic during another one would end the process
        if !thread::panicking() && self.shared.breaks_worker.swap(false, SeqCst) {
            self.pages.clear();
            panic!("{WANTED_PANIC} outside of a step");
        }
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
        let pages = self.pages[..self.finished.div_ceil(self.shared.page_symbols)].to_vec();
        Box::new(Self::new(self.past[..self.finished].to_vec(), pages, &self.shared))
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        if self.finished < self.past.len() || len > self.past.len() {
            return Err(Error::Internal("the state is not ready, or the length is beyond its end".into()));
        }
        self.truncate(len);
        self.finished = len;
        Ok(())
    }

    fn cut(&mut self, len: usize) -> Result<()> {
        if !(self.finished + 1..=self.past.len()).contains(&len) {
            return Err(Error::Internal("no symbol in flight is left, or the length is beyond the end".into()));
        }
        // all logits are wanted for a draft
        self.pending_logits.truncate((len - self.finished) * VOCABULARY);
        self.truncate(len);
        Ok(())
    }

    fn restart(&mut self, _: usize) {
        self.truncate(0);
        self.pending_logits.clear();
        self.finished = 0;
    }

    fn boundary_before(&self, len: usize) -> usize {
        boundary_before(&self.past, len)
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        let bytes = self.shared.page_symbols * BYTES;
        self.pages
            .iter()
            .for_each(|page| each(PageUse { id: page.id(), bytes, references: page.references(), own: 1 }));
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
        Ok(Box::new(ToyState::new(Vec::new(), Vec::new(), &self.shared)))
    }

    fn scratch(&self) -> Scratch {
        let taken = self.scratches.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        assert!(taken.is_ok(), "the test allows no further scratch");
        Scratch(Box::new(true))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        self.begun.fetch_add(1, SeqCst);
        self.gate.pass();
        thread::sleep(Duration::from_nanos(self.step_ns.load(SeqCst)));
        with(scratch, || {
            // a step that fails was waited for too
            for row in rows.iter_mut().filter(|row| row.status == StepStatus::Waiting) {
                state_mut::<ToyState>(row.state.as_mut())?.waited += 1;
            }
            if (self.refuses)() {
                return Err(Error::OutOfPages { needed: BYTES, limit: self.shared.pool.limit() });
            }
            self.steps.lock().unwrap().push(which.iter().map(|&index| rows[index].feed.len()).collect());
            which.iter().try_for_each(|&index| {
                feed(&mut rows[index], |state: &mut ToyState, symbol, wanted| state.push(symbol, wanted.is_some()))
            })
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
                    assert!(!row.feed.contains(&PANIC_IN_MIDDLE), "{WANTED_PANIC} in the segment step");
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
                    assert!(!row.feed.contains(&PANIC_AT_FINISH), "{WANTED_PANIC} in the finish step");
                    row.logits = std::mem::take(&mut state.pending_logits);
                    state.finished = state.past.len();
                    row.status = StepStatus::Ready;
                }
            }
            Ok(())
        })
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        symbols.next_multiple_of(self.shared.page_symbols) * BYTES
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        let page_symbols = self.shared.page_symbols;
        let Ok(state) = state_ref::<ToyState>(state) else { return 0 };
        if more == 0 {
            return 0;
        }
        let len = state.past.len();
        let copies = !len.is_multiple_of(page_symbols) && state.pages.last().is_some_and(Page::is_shared);
        let pages = (len + more).div_ceil(page_symbols) - state.pages.len();
        (pages + usize::from(copies)) * page_symbols * BYTES
    }

    fn memory(&self) -> KvMemory {
        let is_worker = thread::current().name().is_some_and(|name| name.starts_with("weir-"));
        let take = |left: usize| left.checked_sub(1);
        if is_worker {
            assert!(self.memory_panics.fetch_update(SeqCst, SeqCst, take).is_err(), "{WANTED_PANIC} in the accounting");
        }
        KvMemory { in_use: self.shared.pool.in_use(), limit: self.shared.pool.limit() }
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

/// Returns the end of the last segment that is closed at `len`. `past` has the number of closed segments at each position.
pub(crate) fn boundary_before(past: &[(u64, usize)], len: usize) -> usize {
    let prefix = &past[..len.min(past.len())];
    let segments = prefix.last().map_or(0, |past| past.1);
    if segments == 0 { 0 } else { prefix.partition_point(|past| past.1 < segments) + 1 }
}

/// Feeds a row to its state: `push` adds a symbol, and the logits after it if there is a list for them.
pub(crate) fn feed<S: State>(
    row: &mut SequenceRow,
    push: impl Fn(&mut S, u32, Option<&mut Vec<f32>>) -> Result<SymbolBoundary>,
) -> Result<()> {
    let SequenceRow { state, feed, want, logits, decisions, status, .. } = row;
    assert!(*status == StepStatus::Ready && !feed.is_empty());
    let state = state_mut::<S>(state.as_mut())?;
    logits.clear();
    decisions.clear();
    for (index, &symbol) in feed.iter().enumerate() {
        let is_wanted = *want == Want::All || (*want == Want::Last && index + 1 == feed.len());
        decisions.push(push(state, symbol, is_wanted.then_some(&mut *logits))?);
    }
    let closes = decisions.iter().any(|decision| decision.boundary);
    *status = if closes { StepStatus::Waiting } else { StepStatus::Unfinished };
    Ok(())
}

/// Returns the hash of a text that goes on with `symbol`.
fn extended(hash: u64, symbol: u32) -> u64 {
    mix(hash ^ u64::from(symbol))
}

/// Returns the logits after a text that ends with `last`.
fn logits_of(hash: u64, last: u32) -> [f32; VOCABULARY] {
    std::array::from_fn(|symbol| match symbol as u32 {
        _ if last == NAN => f32::NAN,
        // Coarse values, so that some symbols tie.
        0..SAMPLED => (mix(hash ^ (symbol as u64) << 32) % 9) as f32 * 0.5 - 2.0,
        _ => f32::NEG_INFINITY,
    })
}

/// Returns the logits after `text`, computed from its start.
pub(crate) fn logits_after(text: &[u32]) -> [f32; VOCABULARY] {
    logits_of(text.iter().fold(SALT, |hash, &symbol| extended(hash, symbol)), *text.last().unwrap())
}

pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (value ^ (value >> 33)).wrapping_add(0x9e37_79b9_7f4a_7c15)
}

/// Counts the requests of an engine.
#[derive(Default)]
pub(crate) struct RequestCounts {
    pub(crate) accepted: AtomicUsize,
    pub(crate) finished: AtomicUsize,
}

impl Observer for RequestCounts {
    fn record(&self, event: EngineEvent<'_>) {
        match event {
            EngineEvent::Accepted => _ = self.accepted.fetch_add(1, SeqCst),
            EngineEvent::Finished { .. } => _ = self.finished.fetch_add(1, SeqCst),
            _ => {}
        }
    }
}
