//! A model without arithmetic: its logits are a hash of all symbols before them. It counts live sequences, records its
//! steps, can be paused, and fails on demand.

use super::*;
use std::sync::atomic::AtomicU64;
use weir::models::{
    contract::{PageUse, state_mut},
    text::TextNormaliser,
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
pub(super) fn with(scratch: &mut Scratch, step: impl FnOnce() -> Result<()>) -> Result<()> {
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

/// Returns a request with default options.
pub(super) fn generate(prompt: &[u32], max_chars: usize) -> Generate {
    let stopping = Stopping {
        max_chars,
        min_chars: 0,
        max_segments: None,
        stop: Vec::new(),
        include_stop: false,
        ignore_end: false,
    };
    Generate {
        prompt: prompt.to_vec(),
        sampling: Sampling::default(),
        stopping,
        details: Details::default(),
        boundaries: BoundaryOptions::default(),
        resumed: Vec::new(),
        speculation: None,
    }
}

/// Returns a job whose options are derived from `seed`.
pub(super) fn varied(seed: u64) -> Job {
    let number = |purpose: u64, below: u64| (mix(seed.wrapping_mul(31) ^ purpose << 40) % below) as usize;
    let prompt: Vec<u32> = (0..=number(1, 90) as u64).map(|index| number(2 + index, SAMPLED.into()) as u32).collect();
    if number(100, 5) == 0 {
        return Job::Score(Score {
            symbols: prompt,
            logprobs: number(101, 2) == 0,
            top: number(102, 3),
            boundaries: BoundaryOptions::default(),
            windows: None,
        });
    }
    let mut request = generate(&prompt, 1 + number(103, 60));
    request.sampling.seed = seed;
    request.sampling.temperature = number(104, 3) as f32 * 0.5;
    request.sampling.repetition_penalty = [1.0, 1.3][number(105, 2)];
    request.stopping.max_segments = [None, Some(4)][number(106, 2)];
    request.stopping.stop = [vec![], vec![vec![1, 2, 3], vec![2, 2]]][number(107, 2)].clone();
    request.details = Details {
        echo: number(108, 2) == 0,
        logprobs: number(109, 2) == 0,
        top_logprobs: number(110, 3),
        boundaries: number(111, 2) == 0,
    };
    Job::Generate(request)
}

/// Everything that a job emitted, in one comparable value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct JobOutput {
    pub(super) characters: Vec<weir::engine::options::EmittedSymbol>,
    pub(super) reason: weir::engine::options::FinishReason,
    pub(super) usage: weir::models::usage::Usage,
}

/// Runs a job without an engine.
pub(super) fn alone(job: Job, chunk: usize) -> JobOutput {
    let toy = Toy::new();
    let session = match job {
        Job::Generate(request) => Session::generate(request, toy.card()),
        Job::Score(request) => Session::score(request, toy.card()),
        Job::Code(request) => Session::code(request, toy.card()),
        Job::Next(request) => Session::next_symbol(request, toy.card()),
    };
    run(session.unwrap(), &toy, chunk)
}

pub(super) fn run(session: Session, toy: &Toy, chunk: usize) -> JobOutput {
    let mut characters = Vec::new();
    let mut emit = |symbols: Vec<_>| {
        assert!(!symbols.is_empty());
        characters.extend(symbols);
        Ok(())
    };
    let (reason, usage) = session.run(toy, chunk, &mut emit).unwrap();
    JobOutput { characters, reason, usage }
}

/// Reads a job's events to the end and checks their order.
pub(super) fn read(events: Events) -> Result<JobOutput> {
    read_timed(events).map(|(output, _)| output)
}

/// Same as [`read`], and returns the timing too.
pub(super) fn read_timed(mut events: Events) -> Result<(JobOutput, Timing)> {
    let mut characters = Vec::new();
    let Some(Event::Started { cached_chars }) = events.blocking_recv().unwrap_or(Err(Error::Cancelled)).map(Some)?
    else {
        panic!("the first event is Started");
    };
    loop {
        match events.blocking_recv().expect("the last event ends the job")? {
            Event::Started { .. } | Event::Coded(_) | Event::Next(_) | Event::Document(_) => {
                panic!("started twice, or a document")
            }
            Event::Characters(symbols) => characters.extend(symbols),
            Event::Finished { reason, usage, timing } => {
                assert_eq!(usage.cached_chars, cached_chars, "the first and last event report the same");
                assert!(events.blocking_recv().is_none(), "nothing follows the end");
                assert!(timing.steps > 0 && timing.total_ns >= timing.queue_ns + timing.prefill_ns);
                assert!(timing.total_ns >= timing.time_to_first_char_ns && timing.middle_steps <= timing.steps);
                return Ok((JobOutput { characters, reason, usage }, timing));
            }
        }
    }
}

/// Polls `condition` until it holds. Panics after 20 seconds.
pub(super) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Waits until no request is queued, runs or holds memory.
pub(super) fn assert_idle(toy: &Toy, engine: &Handle) {
    eventually("everything is released", || {
        let load = engine.load();
        (load.queued, load.running, load.bytes, toy.sequences()) == (0, 0, 0, 0)
    });
}
