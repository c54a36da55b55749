//! Events that an engine reports to its observer.

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
    engine::{
        Handle, Job, Limits,
        observer::{EngineEvent, Observer},
    },
    error::Error,
};

/// Observer that records everything.
#[derive(Default)]
struct Recorder {
    steps: Mutex<Vec<(usize, usize, usize)>>,
    queued: Mutex<usize>,
    firsts: Mutex<Vec<Duration>>,
    /// For each gap, true if the character before it ended a segment.
    gaps: Mutex<Vec<bool>>,
    ends: Mutex<Vec<(Result<FinishReason, String>, Usage, Timing)>>,
}

impl Observer for Recorder {
    fn record(&self, event: EngineEvent<'_>) {
        match event {
            EngineEvent::Step { rows, fed, middle } => self.steps.lock().unwrap().push((rows, fed, middle)),
            EngineEvent::Admitted(_) => *self.queued.lock().unwrap() += 1,
            EngineEvent::FirstChar(after) => self.firsts.lock().unwrap().push(after),
            EngineEvent::Gap { boundary, .. } => self.gaps.lock().unwrap().push(boundary),
            EngineEvent::Finished { outcome, usage, timing } => {
                let outcome = outcome.cloned().map_err(Error::to_string);
                self.ends.lock().unwrap().push((outcome, *usage, *timing));
            }
            _ => {}
        }
    }
}

fn engine(toy: &Arc<Toy>, limits: Limits) -> (Handle, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    (Handle::start_with(Arc::clone(toy) as Arc<dyn Model>, limits, recorder.clone()).unwrap(), recorder)
}

#[test]
fn each_step_character_and_end_is_reported_once() {
    let toy = Toy::new();
    let (engine, recorder) = engine(&toy, Limits { rows: 5, chunk: 16, ..Limits::default() });
    let jobs: Vec<_> = (0..40).map(|seed| (seed, engine.submit(varied(seed), None).unwrap())).collect();
    let mut usages = Vec::new();
    for (seed, events) in jobs {
        let generates = matches!(varied(seed), Job::Generate(_));
        usages.push((generates, read(events).unwrap().usage));
    }
    assert_idle(&toy, &engine);
    let counters = engine.counters();
    let sum = |field: fn(&Usage) -> usize| usages.iter().map(|(_, usage)| field(usage)).sum::<usize>();

    assert_eq!(*recorder.queued.lock().unwrap(), 40);
    let ends = recorder.ends.lock().unwrap();
    assert!(ends.len() == 40 && ends.iter().all(|(outcome, ..)| outcome.is_ok()));
    assert_eq!(
        ends.iter().map(|(_, usage, _)| usage.generated_chars).sum::<usize>(),
        sum(|usage| usage.generated_chars)
    );

    // Each generation reports its first character, and a gap before every other one.
    let answers = usages.iter().filter(|(generates, usage)| *generates && usage.generated_chars > 0).count();
    assert_eq!(recorder.firsts.lock().unwrap().len(), answers);
    assert_eq!(recorder.gaps.lock().unwrap().len(), sum(|usage| usage.generated_chars) - answers);
    assert!(recorder.gaps.lock().unwrap().contains(&true) && recorder.gaps.lock().unwrap().contains(&false));

    // The counters equal the steps that the model ran.
    let steps = recorder.steps.lock().unwrap();
    let fed: Vec<_> = toy.steps.lock().unwrap().iter().map(|fed| (fed.len(), fed.iter().sum::<usize>())).collect();
    let reported: Vec<_> = steps.iter().filter(|step| step.0 > 0).map(|&(rows, fed, _)| (rows, fed)).collect();
    assert_eq!(reported, fed);
    let middle: Vec<_> = toy.segment_steps.lock().unwrap().iter().map(|&(rows, _)| rows).collect();
    assert_eq!(steps.iter().map(|step| step.2).filter(|&rows| rows > 0).collect::<Vec<_>>(), middle);

    // The counters equal the sums.
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
fn the_end_of_a_queued_request_is_reported() {
    let toy = Toy::new();
    let (engine, recorder) = engine(&toy, Limits { rows: 1, ..Limits::default() });
    toy.hold(0);
    let first = engine.submit(varied(1), None).unwrap();
    eventually("the first has a row", || toy.sequences() == 1);
    let late = engine.submit(varied(2), Some(Instant::now() + Duration::from_millis(20))).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    toy.release();
    assert!(matches!(read(late), Err(Error::Deadline { stage: "in the queue" })));
    read(first).unwrap();
    assert_idle(&toy, &engine);
    assert_eq!(*recorder.queued.lock().unwrap(), 1);
    let ends = recorder.ends.lock().unwrap();
    let (_, usage, timing) = ends.iter().find(|(outcome, ..)| outcome.is_err()).unwrap();
    assert_eq!((ends.len(), *usage), (2, Usage::default()));
    assert!(timing.queue_ns >= 20_000_000 && timing.total_ns == timing.queue_ns);
}

#[test]
fn a_long_step_is_reported_as_busy() {
    let toy = Toy::new();
    let (engine, _) = engine(&toy, Limits::default());
    eventually("the worker sleeps", || engine.busy_for().is_none());
    toy.hold(0);
    let events = engine.submit(varied(1), None).unwrap();
    eventually("the step takes long", || engine.busy_for().is_some_and(|busy| busy > Duration::from_millis(20)));
    toy.release();
    read(events).unwrap();
    eventually("the worker sleeps again", || engine.busy_for().is_none());
}
