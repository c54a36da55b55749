//! Checks that between two steps of the model, the engine allocates only the events that it sends.

use super::{ATTEMPTS, READER, allocations};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};
use weir::{
    decode::{
        contract::{BoundaryOptions, Card, KvMemory, Model, Scratch, SequenceRow, State, StepStatus},
        cost::Cost,
        options::{Details, Generate, Sampling, Stopping},
    },
    engine::{Event, Events, Handle, Job, Limits},
    error::Result,
};

const ROWS: usize = 3;
const CHARS: usize = 400;
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

    fn scratch(&self) -> Scratch {
        self.model.scratch()
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
pub(super) fn check(model: Arc<dyn Model>) {
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
            stopping: Stopping {
                max_chars: CHARS,
                min_chars: 0,
                max_segments: None,
                stop: Vec::new(),
                include_stop: false,
                ignore_end: true,
            },
            details: Details::default(),
            boundaries: BoundaryOptions::default(),
            resumed: Vec::new(),
            speculation: None,
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
