//! What an engine tells whoever measures it.

use super::{jobs::*, toy_model::*};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use weir::{
    decode::{
        contract::Model,
        options::FinishReason,
        usage::{Timing, Usage},
    },
    engine::{Handle, Job, Limits, observer::Observer},
    error::Error,
};

/// Writes everything down.
#[derive(Default)]
struct Notes {
    steps: Mutex<Vec<(usize, usize, usize)>>,
    queued: Mutex<usize>,
    firsts: Mutex<Vec<Duration>>,
    /// For each gap: whether the character before it ended a segment.
    gaps: Mutex<Vec<bool>>,
    ends: Mutex<Vec<(Result<FinishReason, String>, Usage, Timing)>>,
}

impl Observer for Notes {
    fn step(&self, rows: usize, fed: usize, middle: usize) {
        self.steps.lock().unwrap().push((rows, fed, middle));
    }

    fn queued(&self, _: Duration) {
        *self.queued.lock().unwrap() += 1;
    }

    fn first_char(&self, after: Duration) {
        self.firsts.lock().unwrap().push(after);
    }

    fn gap(&self, _: Duration, boundary: bool) {
        self.gaps.lock().unwrap().push(boundary);
    }

    fn finished(&self, outcome: Result<&FinishReason, &Error>, usage: &Usage, timing: &Timing) {
        let outcome = outcome.cloned().map_err(Error::to_string);
        self.ends.lock().unwrap().push((outcome, *usage, *timing));
    }
}

fn engine(toy: &Arc<Toy>, limits: Limits) -> (Handle, Arc<Notes>) {
    let notes = Arc::new(Notes::default());
    (Handle::start_with(Arc::clone(toy) as Arc<dyn Model>, limits, notes.clone()).unwrap(), notes)
}

#[test]
fn every_step_character_and_end_is_told_once() {
    let toy = Toy::new();
    let (engine, notes) = engine(&toy, Limits { rows: 5, chunk: 16, ..Limits::default() });
    let jobs: Vec<_> = (0..40).map(|seed| (seed, engine.submit(varied(seed), None).unwrap())).collect();
    let mut usages = Vec::new();
    for (seed, events) in jobs {
        let generates = matches!(varied(seed), Job::Generate(_));
        usages.push((generates, read(events).unwrap().usage));
    }
    at_rest(&toy, &engine);
    let counters = engine.counters();
    let sum = |of: fn(&Usage) -> usize| usages.iter().map(|(_, usage)| of(usage)).sum::<usize>();

    assert_eq!(*notes.queued.lock().unwrap(), 40);
    let ends = notes.ends.lock().unwrap();
    assert!(ends.len() == 40 && ends.iter().all(|(outcome, ..)| outcome.is_ok()));
    assert_eq!(
        ends.iter().map(|(_, usage, _)| usage.generated_chars).sum::<usize>(),
        sum(|usage| usage.generated_chars)
    );

    // a generation's characters: the first, and a gap before each other one
    let answers = usages.iter().filter(|(generates, usage)| *generates && usage.generated_chars > 0).count();
    assert_eq!(notes.firsts.lock().unwrap().len(), answers);
    assert_eq!(notes.gaps.lock().unwrap().len(), sum(|usage| usage.generated_chars) - answers);
    assert!(notes.gaps.lock().unwrap().contains(&true) && notes.gaps.lock().unwrap().contains(&false));

    // steps, as the model saw them
    let steps = notes.steps.lock().unwrap();
    let fed: Vec<_> = toy.steps.lock().unwrap().iter().map(|fed| (fed.len(), fed.iter().sum::<usize>())).collect();
    let told: Vec<_> = steps.iter().filter(|step| step.0 > 0).map(|&(rows, fed, _)| (rows, fed)).collect();
    assert_eq!(told, fed);
    let middle: Vec<_> = toy.segment_steps.lock().unwrap().iter().map(|&(rows, _)| rows).collect();
    assert_eq!(steps.iter().map(|step| step.2).filter(|&rows| rows > 0).collect::<Vec<_>>(), middle);

    // the totals add up to the same
    assert_eq!((counters.running, counters.waiting), (0, 0));
    assert_eq!(counters.steps, fed.len() as u64);
    assert_eq!(counters.symbol_rows, fed.iter().map(|step| step.0 as u64).sum::<u64>());
    assert_eq!(counters.segment_steps, middle.len() as u64);
    assert_eq!(counters.segment_rows, middle.iter().sum::<usize>() as u64);
    assert_eq!(counters.prefill_chars, sum(|usage| usage.prompt_chars) as u64);
    assert_eq!(counters.generated_chars, sum(|usage| usage.generated_chars) as u64);
    assert_eq!(counters.middle_run, sum(|usage| usage.prompt_segments + usage.generated_segments) as u64);
    let symbols = sum(|usage| usage.prompt_chars + usage.generated_chars) as u64;
    assert_eq!(counters.middle_run + counters.middle_skipped, symbols);
}

#[test]
fn an_end_without_a_row_is_told_too() {
    let toy = Toy::new();
    let (engine, notes) = engine(&toy, Limits { rows: 1, ..Limits::default() });
    toy.hold(0);
    let first = engine.submit(varied(1), None).unwrap();
    eventually("it has a row", || toy.sequences() == 1);
    let late = engine.submit(varied(2), Some(Instant::now() + Duration::from_millis(20))).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    toy.release();
    assert!(matches!(read(late), Err(Error::Deadline { stage: "in the queue" })));
    read(first).unwrap();
    at_rest(&toy, &engine);
    assert_eq!(*notes.queued.lock().unwrap(), 1);
    let ends = notes.ends.lock().unwrap();
    let (_, usage, timing) = ends.iter().find(|(outcome, ..)| outcome.is_err()).unwrap();
    assert_eq!((ends.len(), *usage), (2, Usage::default()));
    assert!(timing.queue_ns >= 20_000_000 && timing.total_ns == timing.queue_ns);
}

#[test]
fn a_round_that_lasts_is_seen() {
    let toy = Toy::new();
    let (engine, _) = engine(&toy, Limits::default());
    eventually("it sleeps", || engine.busy_for().is_none());
    toy.hold(0);
    let events = engine.submit(varied(1), None).unwrap();
    eventually("it is at it for long", || engine.busy_for().is_some_and(|busy| busy > Duration::from_millis(20)));
    toy.release();
    read(events).unwrap();
    eventually("it sleeps again", || engine.busy_for().is_none());
}
