//! Checks that a steady decode step does not allocate, in the model and in the engine.
//!
//! This is a separate binary because the counting allocator is global, and a single test because concurrent tests would be
//! also counted.
#![allow(unsafe_code, clippy::unwrap_used, reason = "an allocator is unsafe by nature; tests may unwrap")]

use serde_json::{Value, json};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, thread};
use tempfile::TempDir;
use weir::engine::observer::{EngineEvent, FedSymbols, Observer};
use weir::engine::options::{FinishReason, Generate, Sampling, Stopping};
use weir::engine::{Event, Events, Handle, Job, Limits};
use weir::error::Result;
use weir::kernels::Dtype;
use weir::models::contract::{
    BoundaryOptions, Card, Cost, KvMemory, Model, Scratch, SequenceRow, State, StepStatus, Want, advance,
};
use weir::models::load::{self, Settings, load};
use weir::models::usage::{Timing, Usage};
use weir::server::metrics::Metrics;

/// The system allocator with a count of allocations.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// True if allocations of this thread do not count, because it is a reader, not the engine.
    static READER: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    // a thread that is ending has no such cell and does not belong to the engine
    if !READER.try_with(Cell::get).unwrap_or(true) {
        ALLOCATIONS.fetch_add(1, Relaxed);
    }
}

// SAFETY: every call is forwarded to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of the allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of the allocator.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of the allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of allocations so far, of all threads except readers.
fn allocations() -> usize {
    ALLOCATIONS.load(Relaxed)
}

/// Maximum attempts per check. Threads outside the steps, such as one that prepares memory, may allocate at the same time.
/// A step that allocates does so in every attempt.
const ATTEMPTS: usize = 20;

/// Returns small models: their names, the shapes that they are made from, and other settings of the architecture.
fn models() -> [(&'static str, &'static str, Value); 8] {
    let pooled = json!({"pre": 1, "middle": 2, "post": 1});
    let learned = json!({"kind": "learned", "hidden": 32, "threshold": 0.5});
    let spikes = json!({"kind": "entropy-spikes", "window": 2, "companion": "entropy_model"});
    let xpos = json!({"xpos": {"scale_base": 512}});
    let blocks = json!({"blockwise": {"length": 128}});
    let windowed = json!({
        "layers": pooled, "position": xpos, "ngrams": {"sizes": [3, 4, 5], "rows": 50}, "window": blocks,
        "middle_window": {"sliding": {"keys": 40}},
    });
    [
        ("entropy_model", "vanilla-41m", json!({"layers": {"pre": 1}})),
        ("vanilla", "vanilla-41m", json!({"layers": {"pre": 3}})),
        ("spikes", "hourglass-41m", json!({"layers": pooled, "boundaries": spikes})),
        ("learned", "hourglass-41m", json!({"layers": pooled, "boundaries": learned})),
        ("windowed", "hourglass-41m", windowed),
        ("decoder", "decoder-xpos-41m", json!({"layers": 2, "window": blocks, "scale_embedding": true, "tied": true})),
        // the predictor ends segments of generated text, so that every step generates a character
        ("latent", "lslm-41m", json!({"pooling": {"hops": 1}, "boundaries": learned, "driver": "predictor"})),
        ("patches", "blt-41m", json!({"threshold": 3.0})),
    ]
}

/// Makes the layers of a stack small.
fn narrow(stack: &mut Value) {
    if stack.get("dim").is_some() {
        for (key, size) in [("dim", 64), ("heads", 4), ("kv_heads", 4), ("head_dim", 16), ("feed_forward", 128)] {
            if let Some(own) = stack.get_mut(key) {
                *own = size.into();
            }
        }
    }
}

/// Creates a checkpoint of each model and returns their folders, with the shipped model's.
fn folders(root: &Path) -> Vec<PathBuf> {
    let models_folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let mut folders = vec![models_folder.join("hourglass-english")];
    for (name, shape, settings) in models() {
        let shape = fs::read(models_folder.join(format!("shapes/{shape}.json"))).unwrap();
        let mut config: Value = serde_json::from_slice(&shape).unwrap();
        narrow(&mut config["architecture"]);
        let architecture = config["architecture"].as_object_mut().unwrap();
        architecture.values_mut().for_each(narrow);
        architecture.extend(settings.as_object().unwrap().clone());
        let file = root.join(format!("{name}.json"));
        fs::write(&file, config.to_string()).unwrap();
        folders.push(root.join(name));
        load::init(&file, &root.join(name), 3, false).unwrap();
    }
    folders
}

#[test]
fn a_steady_decode_step_allocates_nothing() {
    metrics_check();
    let root = TempDir::new().unwrap();
    // Short runs measure half of the dtypes, the other half for the next model, one of them with one thread and one with two.
    let is_long = std::env::var_os("WEIR_LONG_RUNS").is_some_and(|value| value == "1");
    for (number, folder) in folders(root.path()).into_iter().enumerate() {
        for (index, dtype) in
            Dtype::ALL.into_iter().enumerate().filter(|(index, _)| is_long || (number + index) % 2 == 0)
        {
            for threads in [1, 2].into_iter().filter(|threads| is_long || (number + index) / 2 % 2 + 1 == *threads) {
                let settings = Settings { threads, dtype, memory_bytes: 1 << 30, ..Settings::default() };
                let model: Arc<dyn Model> = load(&folder, &settings).unwrap();
                model_check(&*model);
                check(model);
            }
        }
    }
}

const ROWS: usize = 3;
const CHARS: usize = 320;

/// Symbol steps of a generation whose allocations are counted.
const COUNTED: std::ops::Range<usize> = 100..300;

/// Slots of a block of the event channel, which is allocated as a unit.
const BLOCK: usize = 16;

/// Counts of a generation.
#[derive(Clone, Copy, Default)]
struct Counts {
    symbol_steps: usize,
    segment_steps: usize,
    /// Maximum symbol steps that a row has waited for a segment step.
    max_waited: usize,
    /// Characters that the counted steps finished.
    characters: usize,
    /// Allocations within the counted steps of the model.
    in_model: usize,
    /// Total allocations at the first counted step, and at the first step after the counted ones.
    total: [usize; 2],
}

/// A model that counts allocations within its steps and between them.
struct CountingModel {
    model: Arc<dyn Model>,
    counts: Mutex<Counts>,
    generations: AtomicUsize,
}

impl CountingModel {
    fn step(&self, work: impl FnOnce() -> Result<()>, count: impl FnOnce(&mut Counts)) -> Result<()> {
        let before = allocations();
        work()?;
        let allocated = allocations() - before;
        let mut counts = self.counts.lock().unwrap();
        if COUNTED.contains(&counts.symbol_steps.saturating_sub(1)) {
            counts.in_model += allocated;
            count(&mut counts);
        }
        Ok(())
    }
}

impl Model for CountingModel {
    fn card(&self) -> &Card {
        self.model.card()
    }

    fn begin(&self, options: BoundaryOptions) -> Result<Box<dyn State>> {
        self.generations.fetch_add(1, SeqCst);
        self.model.begin(options)
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let mut counts = self.counts.lock().unwrap();
        // steps of many symbols are prefill
        if which.iter().all(|&index| rows[index].feed.len() == 1) && rows.len() == ROWS {
            for (edge, step) in [COUNTED.start, COUNTED.end].into_iter().enumerate() {
                if counts.symbol_steps == step {
                    counts.total[edge] = allocations();
                }
            }
            counts.symbol_steps += 1;
        }
        drop(counts);
        self.step(|| self.model.symbol_step(rows, which, scratch), |_| {})
    }

    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let waiting = which.iter().map(|&index| &rows[index]).filter(|row| row.status == StepStatus::Waiting);
        let waited = waiting.map(|row| row.waited).max().unwrap_or(0);
        let count = |counts: &mut Counts| {
            counts.segment_steps += 1;
            counts.max_waited = counts.max_waited.max(waited);
        };
        self.step(|| self.model.segment_step(rows, which, scratch), count)
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let finished = which.iter().filter(|&&index| rows[index].status == StepStatus::Unfinished).count();
        self.step(|| self.model.finish_step(rows, which, scratch), |counts| counts.characters += finished)
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        self.model.bytes_for(symbols)
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        self.model.growth(state, more)
    }

    fn memory(&self) -> KvMemory {
        self.model.memory()
    }

    fn cost(&self, symbols: usize, segments: usize) -> Cost {
        self.model.cost(symbols, segments)
    }
}

/// The first generation of requests allocates buffers, tables and pages. A later one must reuse them.
fn check(model: Arc<dyn Model>) {
    let pooled = model.card().pooled;
    let about = format!("{}, {}", model.card().shape, model.card().dtype);
    let model = Arc::new(CountingModel { model, counts: Mutex::default(), generations: AtomicUsize::new(0) });
    // channels hold all events, because a full one would pause its row
    let limits = Limits { rows: ROWS, events: 2 * CHARS, boundary_wait: 2, ..Limits::default() };
    let engine = Handle::start(Arc::clone(&model) as Arc<dyn Model>, limits).unwrap();
    generate(&engine, &model);
    let mut reason = String::new();
    let steady = (0..ATTEMPTS).any(|_| {
        let Counts { symbol_steps, segment_steps, max_waited, characters, in_model, total } = generate(&engine, &model);
        assert!(symbol_steps >= COUNTED.end && characters >= COUNTED.len(), "{about}: {symbol_steps}, {characters}");
        assert!((segment_steps > 0) == pooled && (max_waited > 0) == pooled, "{about}");
        // each event allocates its characters and takes a slot of a channel, which grows by blocks
        let between = total[1] - total[0];
        let blocks = characters.div_ceil(BLOCK) + ROWS;
        reason = format!("{in_model} in the model's steps, {between} between them for {characters} events");
        in_model == 0 && (characters..=characters + blocks).contains(&between)
    });
    assert!(steady, "{about}: {reason}");
}

/// Runs concurrent requests, each read to its end by a separate thread. Returns the counts.
fn generate(engine: &Handle, model: &CountingModel) -> Counts {
    *model.counts.lock().unwrap() = Counts::default();
    let begun = model.generations.load(SeqCst);
    let submit = |seed: usize| {
        let generate = Generate {
            prompt: (0..30).map(|index| (index * seed as u32) % 7).collect(),
            sampling: Sampling { seed: seed as u64, ..Sampling::default() },
            stopping: Stopping { max_chars: CHARS, ignore_end: true, ..Stopping::default() },
            ..Generate::default()
        };
        engine.submit(Job::Generate(generate), None).unwrap()
    };
    let reader = |mut events: Events| {
        thread::spawn(move || {
            READER.set(true);
            while let Some(event) = events.blocking_recv() {
                if let Event::Finished { usage, .. } = event.unwrap() {
                    assert_eq!(usage.generated_chars, CHARS);
                }
            }
        })
    };
    // All rows run together, however slow this thread is: no step ends before all requests are submitted.
    let no_step = model.counts.lock().unwrap();
    let submitted: Vec<_> = (1..=ROWS).map(submit).collect();
    drop(no_step);
    READER.set(true);
    let readers: Vec<_> = submitted.into_iter().map(reader).collect();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    READER.set(false);
    assert_eq!(model.generations.load(SeqCst), begun + ROWS);
    *model.counts.lock().unwrap()
}

/// Records every kind of event 700 times.
fn metrics_check() {
    let meter = Metrics::default().meter("m");
    meter.begin();
    let record_all = || (0..700).for_each(|step| record(&*meter, step));
    // histograms grow to their largest value
    record_all();
    let before = allocations();
    record_all();
    assert_eq!(allocations() - before, 0, "metrics");
}

fn record(meter: &dyn Observer, step: usize) {
    let took = Duration::from_micros(step as u64);
    meter.record(EngineEvent::Step { rows: 3, fed: 3, middle: step % 2 });
    meter.record(EngineEvent::Admitted(took));
    meter.record(EngineEvent::FirstChar(Duration::from_millis(step as u64)));
    meter.record(EngineEvent::Gap { gap: took, boundary: step.is_multiple_of(2) });
    meter.record(EngineEvent::Fed(FedSymbols { prompt: step, ..FedSymbols::default() }));
    meter.record(EngineEvent::CacheLookup { symbols: step, found: step / 2, bytes: 8 });
    let (usage, timing) = (&Usage::default(), &Timing::default());
    meter.record(EngineEvent::Finished { outcome: Ok(&FinishReason::MaxChars), usage, timing });
}

/// Symbols of a sequence, enough to allocate pages and close segments.
const SYMBOLS: usize = 450;

/// Position at which sequences are forked: in the middle of a page.
const FORK: usize = 205;

const ALL: [usize; ROWS] = [0, 1, 2];

/// The first generation of sequences allocates buffers, tables and pages. A later one must reuse them.
fn model_check(model: &dyn Model) {
    let mut scratch = model.scratch();
    generation(model, &mut scratch);
    let mut allocations = [0; 2];
    let no_allocations = (0..ATTEMPTS).any(|_| {
        allocations = generation(model, &mut scratch);
        allocations == [0; 2]
    });
    let card = model.card();
    assert!(no_allocations, "{}, {}: {allocations:?} from the start and after a fork", card.shape, card.dtype);
}

/// Runs sequences from the start to a fork, and their forks to the end. Returns the allocations of both.
fn generation(model: &dyn Model, scratch: &mut Scratch) -> [usize; 2] {
    let mut rows: Vec<_> =
        ALL.iter().map(|_| SequenceRow::new(model.begin(BoundaryOptions::default()).unwrap())).collect();
    // the first step of a row allocates its buffers
    steps(model, &mut rows, 0..1, scratch);
    let fresh = steps(model, &mut rows, 1..FORK, scratch);
    let mut forks: Vec<_> = rows.iter().map(|row| SequenceRow::new(row.state.fork())).collect();
    // the first step after a fork also allocates buffers and copies shared pages; the first closed segment does the same in
    // the middle stack
    steps(model, &mut forks, FORK..FORK + 20, scratch);
    let forked = steps(model, &mut forks, FORK + 20..SYMBOLS, scratch);
    [fresh, forked]
}

/// Feeds each row one symbol per step, from a different text with a space every few letters. Returns the allocations.
fn steps(model: &dyn Model, rows: &mut [SequenceRow], range: std::ops::Range<usize>, scratch: &mut Scratch) -> usize {
    let symbols = model.card().vocabulary.len();
    let space = model.card().encode("the text", " ").unwrap()[0];
    let before = allocations();
    for step in range {
        for (index, row) in rows.iter_mut().enumerate() {
            let letter = (step * 7 + index * 3) % symbols;
            row.set(&[if (step + index).is_multiple_of(5) { space } else { letter as u32 }], Want::Last);
        }
        advance(model, rows, &ALL, scratch).unwrap();
    }
    allocations() - before
}
