//! A model without arithmetic, on real key-value pages. Its logits are a hash of all symbols before them. It panics and refuses
//! memory on demand.

use crate::*;
use weir::{
    error::{Error, Result},
    kernels::pages::{Page, PagePool},
    models::{
        contract::{
            BoundaryMode, BoundaryOptions, Card, Cost, KvMemory, PageUse, Scratch, SequenceRow, State, StepStatus,
            SymbolBoundary, Want, state_mut,
        },
        text::{TextNormaliser, Vocabulary},
    },
};

/// Symbols of the vocabulary. The first ends a segment.
pub(crate) const SYMBOLS: [&str; 7] = [" ", "a", "b", "c", "d", "e", "!"];

/// Feeding this symbol panics. It is never generated.
const PANIC: u32 = 6;

/// Message of a panic that the simulation wants.
pub(crate) const WANTED_PANIC: &str = "the simulation wants a panic";

/// Maximum symbols of a sequence.
pub(crate) const MAX_SYMBOLS: usize = 400;

/// Symbols of a page.
const PAGE_SYMBOLS: usize = 8;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 64;

/// Seed of the hash.
const SALT: u64 = 0x51;

pub(crate) struct SimModel {
    card: Card,
    pool: Arc<PagePool>,
    faults: Arc<Faults>,
    dice: Mutex<Dice>,
    /// Symbol steps of 1,000 in which memory is refused.
    refusals: usize,
}

/// Faults that the model has on demand, and unplanned ones.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Set to make the next state that is dropped panic, outside of a step.
    pub(crate) break_worker: AtomicBool,
    /// Set to end all refusals of memory and all stalls.
    pub(crate) calm: AtomicBool,
    /// Number of pages that the pool refused although the engine had made room for them.
    pub(crate) overruns: AtomicUsize,
    /// Number of refusals that the simulation wanted.
    pub(crate) refusals: AtomicUsize,
}

impl SimModel {
    pub(crate) fn new(limit: usize, refusals: usize, dice: Dice, faults: Arc<Faults>) -> Arc<Self> {
        let card = Card {
            name: "sim".into(),
            family: "simulated",
            shape: "a hash".into(),
            training_length: 64,
            max_symbols: MAX_SYMBOLS,
            boundary_modes: vec![BoundaryMode::Threshold],
            sha256: "5a".repeat(32),
            ..Card::for_tests(Vocabulary::from_symbols(&SYMBOLS, TextNormaliser::None).unwrap())
        };
        Arc::new(Self { card, pool: PagePool::new(limit), faults, dice: Mutex::new(dice), refusals })
    }

    /// Returns the bytes of all pages in use.
    pub(crate) fn in_use(&self) -> usize {
        self.pool.in_use()
    }
}

/// Returns the `count` most probable symbols after `prompt`, each chosen after the one before: the text of a request with
/// temperature 0. Of equally probable symbols, the first.
pub(crate) fn greedy(prompt: &str, count: usize) -> String {
    let id = |symbol: char| SYMBOLS.iter().position(|known| known.starts_with(symbol)).unwrap() as u32;
    let mut hash = prompt.chars().fold(SALT, |hash, symbol| mix(hash ^ u64::from(id(symbol))));
    let mut text = String::new();
    for _ in 0..count {
        let best = (0..PANIC).rev().max_by(|a, b| logit(hash, *a).total_cmp(&logit(hash, *b))).unwrap();
        text.push_str(SYMBOLS[best as usize]);
        hash = mix(hash ^ u64::from(best));
    }
    text
}

fn logit(hash: u64, symbol: u32) -> f32 {
    if symbol == PANIC { f32::NEG_INFINITY } else { (mix(hash ^ u64::from(symbol + 1) << 32) >> 44) as f32 * 1e-5 }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

struct SimState {
    /// For each position, the hash of the symbols up to it and the number of closed segments.
    past: Vec<(u64, usize)>,
    /// Number of symbols whose finish step has run. A fork has only these.
    finished: usize,
    /// Logits of the fed symbols, which the finish step delivers.
    pending: Vec<f32>,
    pages: Vec<Page>,
    pool: Arc<PagePool>,
    faults: Arc<Faults>,
}

impl SimState {
    fn push(&mut self, symbol: u32) -> Result<SymbolBoundary> {
        if self.past.len().is_multiple_of(PAGE_SYMBOLS) {
            self.pages.push(self.count_overrun(self.pool.allocate(PAGE_BYTES))?);
        } else if let Some(mut page) = self.pages.pop() {
            let copied = page.bytes_mut().map(drop);
            self.pages.push(page);
            self.count_overrun(copied)?;
        }
        let (hash, segments) = self.past.last().copied().unwrap_or((SALT, 0));
        let boundary = symbol == 0;
        self.past.push((mix(hash ^ u64::from(symbol)), segments + usize::from(boundary)));
        Ok(SymbolBoundary { boundary, depth: 0, probability: None, end_logprob: None })
    }

    fn count_overrun<T>(&self, allocated: Result<T>) -> Result<T> {
        allocated.inspect_err(|_| {
            self.faults.overruns.fetch_add(1, Relaxed);
        })
    }
}

impl Drop for SimState {
    fn drop(&mut self) {
        // a panic during another one would end the process
        if !std::thread::panicking() && self.faults.break_worker.swap(false, Relaxed) {
            self.pages.clear();
            panic!("{WANTED_PANIC} outside of a step");
        }
    }
}

impl State for SimState {
    fn len(&self) -> usize {
        self.past.len()
    }

    fn segments(&self) -> usize {
        self.past.last().map_or(0, |past| past.1)
    }

    fn fork(&self) -> Box<dyn State> {
        Box::new(Self {
            past: self.past[..self.finished].to_vec(),
            finished: self.finished,
            pending: Vec::new(),
            pages: self.pages[..self.finished.div_ceil(PAGE_SYMBOLS)].to_vec(),
            pool: Arc::clone(&self.pool),
            faults: Arc::clone(&self.faults),
        })
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        if self.finished < self.past.len() || len > self.past.len() {
            return Err(Error::Internal("the state is not ready, or the length is beyond its end".into()));
        }
        self.past.truncate(len);
        self.finished = len;
        self.pages.truncate(len.div_ceil(PAGE_SYMBOLS));
        Ok(())
    }

    fn restart(&mut self, _: usize) {
        self.past.clear();
        self.pending.clear();
        self.pages.clear();
        self.finished = 0;
    }

    fn boundary_before(&self, len: usize) -> usize {
        let prefix = &self.past[..len.min(self.past.len())];
        let segments = prefix.last().map_or(0, |past| past.1);
        if segments == 0 { 0 } else { prefix.partition_point(|past| past.1 < segments) + 1 }
    }

    fn bytes(&self) -> usize {
        self.pages.len() * PAGE_BYTES
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        self.pages.iter().for_each(|page| {
            each(PageUse { id: page.id(), bytes: PAGE_BYTES, references: page.references(), own: 1 });
        });
    }

    fn own_bytes(&self) -> usize {
        size_of::<Self>()
    }
}

impl Model for SimModel {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, _: BoundaryOptions) -> Result<Box<dyn State>> {
        Ok(Box::new(SimState {
            past: Vec::new(),
            finished: 0,
            pending: Vec::new(),
            pages: Vec::new(),
            pool: Arc::clone(&self.pool),
            faults: Arc::clone(&self.faults),
        }))
    }

    fn scratch(&self) -> Scratch {
        Scratch(Box::new(()))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], _: &mut Scratch) -> Result<()> {
        let is_refused = self.dice.lock().unwrap().between(1, 1000) <= self.refusals;
        if is_refused && !self.faults.calm.load(Relaxed) {
            self.faults.refusals.fetch_add(1, Relaxed);
            return Err(Error::OutOfPages { needed: PAGE_BYTES, limit: self.pool.limit() });
        }
        for &index in which {
            let SequenceRow { state, feed, want, logits, decisions, status, .. } = &mut rows[index];
            let state = state_mut::<SimState>(state.as_mut())?;
            logits.clear();
            decisions.clear();
            for (position, &symbol) in feed.iter().enumerate() {
                assert!(symbol != PANIC, "{WANTED_PANIC}");
                decisions.push(state.push(symbol)?);
                if *want == Want::All || (*want == Want::Last && position + 1 == feed.len()) {
                    let hash = state.past.last().map_or(SALT, |past| past.0);
                    state.pending.extend((0..SYMBOLS.len() as u32).map(|symbol| logit(hash, symbol)));
                }
            }
            let closes = decisions.iter().any(|decision| decision.boundary);
            *status = if closes { StepStatus::Waiting } else { StepStatus::Unfinished };
        }
        Ok(())
    }

    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], _: &mut Scratch) -> Result<()> {
        for &index in which {
            if rows[index].status == StepStatus::Waiting {
                rows[index].status = StepStatus::Unfinished;
            }
        }
        Ok(())
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], _: &mut Scratch) -> Result<()> {
        for &index in which {
            let row = &mut rows[index];
            if row.status == StepStatus::Unfinished {
                let state = state_mut::<SimState>(row.state.as_mut())?;
                row.logits = std::mem::take(&mut state.pending);
                state.finished = state.past.len();
                row.status = StepStatus::Ready;
            }
        }
        Ok(())
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        symbols.div_ceil(PAGE_SYMBOLS) * PAGE_BYTES
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        if more == 0 {
            return 0;
        }
        let Ok(state) = weir::models::contract::state_ref::<SimState>(state) else { return 0 };
        let len = state.past.len();
        let is_shared = !len.is_multiple_of(PAGE_SYMBOLS) && state.pages.last().is_some_and(Page::is_shared);
        let pages = (len + more).div_ceil(PAGE_SYMBOLS) - state.pages.len();
        (pages + usize::from(is_shared)) * PAGE_BYTES
    }

    fn memory(&self) -> KvMemory {
        KvMemory { in_use: self.pool.in_use(), limit: self.pool.limit() }
    }

    fn cost(&self, _: usize, _: usize) -> Cost {
        Cost::default()
    }
}
