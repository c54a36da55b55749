//! Failed steps, draining and shutdown.

use super::{jobs::*, toy_model::*};
use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    thread,
};
use weir::{
    decode::contract::Model,
    engine::{
        Handle, Job, Limits, Phase,
        observer::{EngineEvent, Observer},
    },
    error::{Code, Error},
};

fn ends_with(symbol: u32) -> Job {
    Job::Generate(generate(&[1, 2, 3, symbol], 5))
}

/// Returns a job that never ends a segment, so its row takes part in no segment step.
fn unsegmented(max_chars: usize) -> Job {
    let mut request = generate(&[1, 2, 3], max_chars);
    request.sampling.logit_bias = vec![(0, -1000.0)];
    Job::Generate(request)
}

#[test]
fn a_failed_step_ends_its_batch_and_the_engine_continues() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { rows: 3, ..Limits::default() });
    for symbol in [PANIC, FAIL, PANIC_IN_MIDDLE, PANIC_AT_FINISH] {
        let steps = toy.begun.load(SeqCst);
        toy.hold(0);
        let decoding = engine.submit(unsegmented(50), None).unwrap();
        eventually("its first step runs alone", || toy.begun.load(SeqCst) > steps);
        let failing = engine.submit(ends_with(symbol), None).unwrap();
        // Its prompt ends a segment, so it waits for a segment step together with the failing one.
        let partner = engine.submit(Job::Generate(generate(&[1, 0, 2], 50)), None).unwrap();
        let queued = engine.submit(varied(2), None).unwrap();
        toy.release();
        // Exhausted memory has its own code.
        let code = if symbol == FAIL { Code::ResourceExhausted } else { Code::Internal };
        assert_eq!(read(failing).unwrap_err().code(), code);
        assert_eq!(read(partner).unwrap_err().code(), code);
        // Of the three, only the segment step runs without the row that decodes.
        match read(decoding) {
            Ok(output) => {
                assert_eq!(symbol, PANIC_IN_MIDDLE);
                assert_eq!(output, alone(unsegmented(50), 1000));
            }
            Err(error) => {
                assert_ne!(symbol, PANIC_IN_MIDDLE);
                assert_eq!(error.code(), code);
            }
        }
        assert_eq!(read(queued).unwrap(), alone(varied(2), 1000));
        assert_idle(&toy, &engine);
    }
    assert_eq!(engine.counters().restarts, 0);
}

#[test]
fn a_failed_segment_step_spares_the_rows_that_were_ready() {
    let toy = Toy::new();
    let engine = toy.engine(Limits::default());
    toy.hold(0);
    let ready = engine.submit(unsegmented(300), None).unwrap();
    let failing = engine.submit(ends_with(PANIC_IN_MIDDLE), None).unwrap();
    toy.release();
    assert_eq!(read(failing).unwrap_err().code(), Code::Internal);
    assert_eq!(read(ready).unwrap(), alone(unsegmented(300), 1000));
    assert_idle(&toy, &engine);
}

#[test]
fn nan_logits_end_only_their_own_row() {
    let toy = Toy::new();
    let engine = toy.engine(Limits::default());
    toy.hold(0);
    let valid = engine.submit(varied(5), None).unwrap();
    let failing = engine.submit(ends_with(NAN), None).unwrap();
    toy.release();
    assert_eq!(read(failing).unwrap_err().code(), Code::Internal);
    assert_eq!(read(valid).unwrap(), alone(varied(5), 1000));
    assert_idle(&toy, &engine);
}

#[test]
fn draining_finishes_admitted_jobs_and_rejects_new_ones() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { rows: 1, ..Limits::default() });
    toy.hold(0);
    let jobs: Vec<_> = (0..3).map(|seed| engine.submit(varied(seed), None).unwrap()).collect();
    engine.drain();
    assert!(matches!(engine.submit(varied(9), None), Err(Error::Draining { .. })));
    toy.release();
    for (seed, events) in jobs.into_iter().enumerate() {
        assert_eq!(read(events).unwrap(), alone(varied(seed as u64), 1000));
    }
    assert_idle(&toy, &engine);
}

#[test]
fn dropping_the_last_handle_ends_all_jobs() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { rows: 1, ..Limits::default() });
    let running = engine.submit(Job::Generate(generate(&[1], 4000)), None).unwrap();
    let queued = engine.submit(varied(1), None).unwrap();
    eventually("one job runs", || toy.sequences() == 1);
    let other = engine.clone();
    drop(engine);
    assert_eq!(other.load().running, 1, "a clone keeps the engine alive");
    drop(other);
    // The worker thread has been joined.
    assert_eq!((toy.sequences(), Arc::strong_count(&toy)), (0, 1));
    assert!(matches!(read(running), Err(Error::Draining { .. })));
    assert!(matches!(read(queued), Err(Error::Draining { .. })));
}

#[test]
fn dropping_an_idle_engine_joins_its_thread() {
    let toy = Toy::new();
    drop(toy.engine(Limits::default()));
    assert_eq!(Arc::strong_count(&toy), 1);
}

#[test]
fn a_broken_worker_fails_all_waiting_jobs() {
    let toy = Toy::new();
    // The model creates one scratch at the start, and none after a failed step.
    toy.scratches.store(1, SeqCst);
    let engine = toy.engine(Limits { rows: 1, ..Limits::default() });
    assert_eq!(engine.phase(), Phase::Open);
    toy.hold(0);
    let mut running = engine.submit(ends_with(PANIC), None).unwrap();
    let mut queued = engine.submit(varied(1), None).unwrap();
    toy.release();
    while running.blocking_recv().is_some_and(|event| event.is_ok()) {}
    assert_eq!(queued.blocking_recv().unwrap().unwrap_err().code(), Code::Internal);
    assert_eq!(engine.submit(varied(2), None).unwrap_err().code(), Code::Unavailable);
    assert_eq!(engine.phase(), Phase::Broken);
    // The memory of the running job is released.
    assert_idle(&toy, &engine);
    let wait = tokio::runtime::Builder::new_current_thread().build().unwrap();
    wait.block_on(engine.wait_until_broken());
}

/// The scheduler's state is locked during the panic. No request stays unanswered, and queue and caches work afterwards.
#[test]
fn a_panic_in_the_bookkeeping_ends_all_requests_and_the_worker_starts_over() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { rows: 2, cache_bytes: 1 << 20, ..Limits::default() });
    for restarts in 1..=3 {
        read(engine.submit(varied(1), None).unwrap()).unwrap();
        toy.hold(0);
        let requests: Vec<_> = (0..6).map(|_| engine.submit(unsegmented(400), None).unwrap()).collect();
        eventually("two requests run", || toy.sequences() >= 2 && engine.load().queued == 4);
        toy.memory_panics.store(1, SeqCst);
        toy.release();
        for events in requests {
            assert_eq!(read(events).unwrap_err().code(), Code::Internal);
        }
        assert_eq!(read(engine.submit(varied(9), None).unwrap()).unwrap(), alone(varied(9), 1000));
        assert_eq!((engine.phase(), engine.counters().restarts), (Phase::Open, restarts));
        assert_eq!(engine.load().running, 0);
    }
    // Once more within the period: the worker is broken.
    toy.memory_panics.store(1, SeqCst);
    assert_eq!(read(engine.submit(varied(1), None).unwrap()).unwrap_err().code(), Code::Internal);
    let wait = tokio::runtime::Builder::new_current_thread().build().unwrap();
    wait.block_on(engine.wait_until_broken());
    assert_eq!(engine.phase(), Phase::Broken);
    assert_eq!(engine.submit(varied(2), None).unwrap_err().code(), Code::Unavailable);
    assert_idle(&toy, &engine);
}

/// An observer that panics when a request ends: the request is answered, and no other is affected.
struct PanickingObserver;

impl Observer for PanickingObserver {
    fn record(&self, event: EngineEvent<'_>) {
        assert!(!matches!(event, EngineEvent::Finished { outcome: Err(_), .. }), "the test requests a panic");
    }
}

#[test]
fn a_panic_at_the_end_of_a_request_ends_no_other() {
    let toy = Toy::new();
    let model = Arc::clone(&toy) as Arc<dyn Model>;
    let engine = Handle::start_with(model, Limits::default(), Arc::new(PanickingObserver)).unwrap();
    toy.hold(0);
    let valid = engine.submit(varied(5), None).unwrap();
    let failing = engine.submit(ends_with(NAN), None).unwrap();
    toy.release();
    assert_eq!(read(failing).unwrap_err().code(), Code::Internal);
    assert_eq!(read(valid).unwrap(), alone(varied(5), 1000));
    assert_eq!((engine.phase(), engine.counters().restarts), (Phase::Open, 0));
    assert_idle(&toy, &engine);
}

#[cfg(target_os = "linux")]
#[test]
fn an_idle_engine_sleeps() {
    let toy = Toy::named("idle", MAX_SYMBOLS, usize::MAX);
    let engine = toy.engine(Limits::default());
    read(engine.submit(varied(1), None).unwrap()).unwrap();
    let before = processor_ticks();
    thread::sleep(std::time::Duration::from_millis(300));
    let ticks = processor_ticks() - before;
    assert!(ticks <= 2, "{ticks} ticks");
    drop(engine);
}

/// Returns the processor time of the threads named `weir-idle`, in hundredths of a second.
#[cfg(target_os = "linux")]
fn processor_ticks() -> u64 {
    let mut ticks = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        // Other tests' threads may end meanwhile.
        let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { continue };
        if let Some((_, fields)) = stat.split_once("(weir-idle) ") {
            let fields: Vec<_> = fields.split_whitespace().collect();
            ticks.push(fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap());
        }
    }
    assert!(!ticks.is_empty(), "the worker has no thread");
    ticks.iter().sum()
}
