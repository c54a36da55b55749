//! Failed steps, draining and shutdown.

use super::{jobs::*, toy_model::*};
use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    thread,
};
use weir::{
    engine::{Job, Limits, Phase},
    error::{Code, Error},
};

fn ends_with(symbol: u32) -> Job {
    Job::Generate(generate(&[1, 2, 3, symbol], 5))
}

#[test]
fn a_failed_step_ends_its_batch_and_the_engine_continues() {
    let toy = Toy::new();
    let engine = toy.engine(Limits::default());
    for symbol in [PANIC, FAIL, PANIC_IN_MIDDLE, PANIC_AT_FINISH] {
        toy.hold(0);
        let blocking = engine.submit(varied(3), None).unwrap();
        eventually("the first has a row", || toy.sequences() == 1);
        let failing = engine.submit(ends_with(symbol), None).unwrap();
        let neighbor = engine.submit(varied(2), None).unwrap();
        toy.release();
        // Exhausted memory has its own code.
        let code = if symbol == FAIL { Code::ResourceExhausted } else { Code::Internal };
        assert_eq!(read(failing).unwrap_err().code(), code);
        // Rows outside the failed step continue; the others get its error.
        for (events, seed) in [(blocking, 3), (neighbor, 2)] {
            match read(events) {
                Ok(output) => assert_eq!(output, alone(varied(seed), 1000)),
                Err(error) => assert_eq!(error.code(), code),
            }
        }
        assert_idle(&toy, &engine);
        assert_eq!(read(engine.submit(varied(9), None).unwrap()).unwrap(), alone(varied(9), 1000));
    }
    assert_idle(&toy, &engine);
}

#[test]
fn a_failed_segment_step_spares_the_rows_that_were_ready() {
    let toy = Toy::new();
    let engine = toy.engine(Limits::default());
    toy.hold(0);
    let mut request = generate(&[1, 2, 3], 300);
    // No segment ends, so the row never waits.
    request.sampling.logit_bias = vec![(0, -1000.0)];
    let ready = engine.submit(Job::Generate(request.clone()), None).unwrap();
    let failing = engine.submit(ends_with(PANIC_IN_MIDDLE), None).unwrap();
    toy.release();
    assert_eq!(read(failing).unwrap_err().code(), Code::Internal);
    assert_eq!(read(ready).unwrap(), alone(Job::Generate(request), 1000));
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
    assert_eq!(engine.submit(varied(2), None).unwrap_err().code(), Code::Internal);
    assert_eq!(engine.phase(), Phase::Broken);
    // The memory of the running job is released.
    assert_idle(&toy, &engine);
    let wait = tokio::runtime::Builder::new_current_thread().build().unwrap();
    wait.block_on(engine.wait_until_broken());
}

#[test]
fn an_idle_engine_sleeps() {
    let toy = Toy::named("idle", MAX_SYMBOLS, usize::MAX);
    let engine = toy.engine(Limits::default());
    read(engine.submit(varied(1), None).unwrap()).unwrap();
    let before = processor_ticks();
    thread::sleep(std::time::Duration::from_millis(300));
    if let (Some(before), Some(after)) = (before, processor_ticks()) {
        assert!(after - before <= 2, "{} ticks", after - before);
    }
    drop(engine);
}

/// Processor time of this process's workers in hundredths of a second. `None` where `/proc` does not report it.
fn processor_ticks() -> Option<u64> {
    let mut sum = None;
    for task in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        if stat.contains("(weir-idle)") {
            let fields: Vec<_> = stat.rsplit(')').next()?.split_whitespace().collect();
            sum = Some(sum.unwrap_or(0) + fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?);
        }
    }
    sum
}
