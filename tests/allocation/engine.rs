//! The engine's steps, through its handle: between one step of the model and the next it allocates the events that it sends,
//! and nothing else.

use super::{READER, allocations};
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
/// The symbol steps of a generation that are counted: from the first of them to the last.
const COUNTED: std::ops::Range<usize> = 100..300;
/// Places of a block of the events' channel, each of which is allocated as a whole.
const BLOCK: usize = 16;

/// What was noted of a generation.
#[derive(Clone, Copy, Default)]
struct Notes {
    symbol_steps: usize,
    segment_steps: usize,
    /// Most symbol steps that a row had waited for a segment step.
    waited: usize,
    /// Of the counted steps: characters that became known.
    characters: usize,
    /// What the model's own steps allocated.
    in_model: usize,
    /// What was allocated when the first counted step began, and when the one behind the last did.
    all: [usize; 2],
}

/// A model that notes what is allocated in its steps and between them.
struct Watched {
    model: Arc<dyn Model>,
    notes: Mutex<Notes>,
    generations: AtomicUsize,
}

impl Watched {
    fn step(&self, work: impl FnOnce() -> Result<()>, note: impl FnOnce(&mut Notes)) -> Result<()> {
        let before = allocations();
        work()?;
        let allocated = allocations() - before;
        let mut notes = self.notes.lock().unwrap();
        if COUNTED.contains(&notes.symbol_steps.saturating_sub(1)) {
            notes.in_model += allocated;
            note(&mut notes);
        }
        Ok(())
    }
}

impl Model for Watched {
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
        let mut notes = self.notes.lock().unwrap();
        // prompts are fed in steps of many symbols, which are no steady ones
        if which.iter().all(|&index| rows[index].feed.len() == 1) && rows.len() == ROWS {
            for (edge, step) in [COUNTED.start, COUNTED.end].into_iter().enumerate() {
                if notes.symbol_steps == step {
                    notes.all[edge] = allocations();
                }
            }
            notes.symbol_steps += 1;
        }
        drop(notes);
        self.step(|| self.model.symbol_step(rows, which, scratch), |_| {})
    }

    fn segment_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let waiting = which.iter().map(|&index| &rows[index]).filter(|row| row.status == StepStatus::Waiting);
        let waited = waiting.map(|row| row.waited).max().unwrap_or(0);
        let note = |notes: &mut Notes| {
            notes.segment_steps += 1;
            notes.waited = notes.waited.max(waited);
        };
        self.step(|| self.model.segment_step(rows, which, scratch), note)
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], scratch: &mut Scratch) -> Result<()> {
        let finished = which.iter().filter(|&&index| rows[index].status == StepStatus::Unfinished).count();
        self.step(|| self.model.finish_step(rows, which, scratch), |notes| notes.characters += finished)
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

/// A first generation of requests makes buffers, tables and pages; the second finds all of them.
pub(super) fn check(model: Arc<dyn Model>) {
    let (pooled, about) = (model.card().pooled, format!("{}, {}", model.card().shape, model.card().dtype));
    let watched = Arc::new(Watched { model, notes: Mutex::default(), generations: AtomicUsize::new(0) });
    // readers have room for all that is said: one that is behind would pause its row
    let limits = Limits { rows: ROWS, events: 2 * CHARS, boundary_wait: 2, ..Limits::default() };
    let engine = Handle::start(Arc::clone(&watched) as Arc<dyn Model>, limits).unwrap();
    for generation in 0..2 {
        *watched.notes.lock().unwrap() = Notes::default();
        generate(&engine);
        assert_eq!(watched.generations.load(SeqCst), (generation + 1) * ROWS);
    }
    let Notes { symbol_steps, segment_steps, waited, characters, in_model, all } = *watched.notes.lock().unwrap();
    assert!(symbol_steps >= COUNTED.end && characters >= COUNTED.len(), "{about}: {symbol_steps}, {characters}");
    assert_eq!((segment_steps > 0, waited > 0), (pooled, pooled), "{about}");
    assert_eq!(in_model, 0, "{about}: in the model's steps");
    // each event carries its characters in memory of their own, and takes a place in a channel that grows by blocks
    let (between, blocks) = (all[1] - all[0], characters.div_ceil(BLOCK) + ROWS);
    assert!((characters..=characters + blocks).contains(&between), "{about}: {between} for {characters} events");
}

/// Requests that run beside each other, each read to its end by a thread of its own.
fn generate(engine: &Handle) {
    let submit = |seed: usize| {
        let stop = Vec::new();
        let stopping = Stopping {
            max_chars: CHARS,
            min_chars: 0,
            max_segments: None,
            stop,
            include_stop: false,
            ignore_end: true,
        };
        let sampling = Sampling { seed: seed as u64, ..Sampling::default() };
        let (details, boundaries) = (Details::default(), BoundaryOptions::default());
        let prompt = (0..30).map(|at| (at * seed as u32) % 7).collect();
        engine.submit(Job::Generate(Generate { prompt, sampling, stopping, details, boundaries }), None).unwrap()
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
    // all are submitted before a thread is started, which may take longer than a generation
    let submitted: Vec<_> = (1..=ROWS).map(submit).collect();
    let readers: Vec<_> = submitted.into_iter().map(reader).collect();
    READER.set(true);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    READER.set(false);
}
