//! Limits of the queue, of memory and of time.

use super::{jobs::*, toy_model::*};
use std::{
    sync::atomic::Ordering::SeqCst,
    time::{Duration, Instant},
};
use weir::{
    decode::options::FinishReason,
    engine::{Event, Events, Job, Limits},
    error::{Code, Error},
};

fn limits(rows: usize, queue: usize) -> Limits {
    Limits { rows, queue, ..Limits::default() }
}

fn plain(max_chars: usize) -> Job {
    Job::Generate(generate(&[1], max_chars))
}

#[test]
fn a_full_queue_rejects_and_recovers() {
    let toy = Toy::new();
    let engine = toy.engine(limits(2, 6));
    toy.hold(0);
    let accepted: Vec<_> = (0..5).map(|_| engine.submit(plain(5), None).unwrap()).collect();
    for _ in 0..50 {
        match engine.submit(plain(5), None) {
            Err(Error::QueueFull { what: "requests of one tenant", limit: 3, retry }) => {
                assert!(retry >= Duration::from_millis(100) && retry <= Duration::from_secs(30));
            }
            other => panic!("{other:?}"),
        }
    }
    let load = engine.load();
    assert_eq!((load.queued, load.running), (3, 2));
    toy.release();
    accepted.into_iter().for_each(|events| drop(read(events).unwrap()));
    read(engine.submit(plain(5), None).unwrap()).unwrap();
    assert_idle(&toy, &engine);
}

#[test]
fn without_a_queue_jobs_still_run() {
    let toy = Toy::new();
    let engine = toy.engine(limits(1, 0));
    toy.hold(0);
    let first = engine.submit(plain(3), None).unwrap();
    assert!(matches!(engine.submit(plain(3), None), Err(Error::QueueFull { .. })));
    toy.release();
    read(first).unwrap();
    assert_idle(&toy, &engine);
}

#[test]
fn memory_limits_the_running_rows() {
    // The memory holds twenty symbols in total.
    let toy = Toy::with(MAX_SYMBOLS, 20 * BYTES);
    let engine = toy.engine(limits(8, 8));
    match engine.submit(plain(20), None) {
        Err(error @ Error::NeverFits { field: "stopping.max_chars", needed: 210, limit: 200 }) => {
            // The code does not suggest a retry.
            assert_eq!(error.code(), Code::InvalidArgument);
        }
        other => panic!("{other:?}"),
    }
    match engine.submit(Job::Generate(generate(&[1; 21], 1)), None) {
        Err(Error::NeverFits { field: "prompt", needed: 220, limit: 200 }) => {}
        other => panic!("{other:?}"),
    }
    toy.hold(0);
    let jobs: Vec<_> = [8, 8, 9, 1].map(|max| engine.submit(plain(max), None).unwrap()).into();
    // The last would fit, but no job overtakes another.
    assert_eq!((engine.load().running, engine.load().queued), (2, 2));
    toy.release();
    jobs.into_iter().for_each(|events| drop(read(events).unwrap()));
    assert_idle(&toy, &engine);
}

#[test]
fn the_worst_case_is_limited_by_the_context() {
    let toy = Toy::with(10, 10 * BYTES);
    let engine = toy.engine(limits(8, 8));
    assert_eq!(read(engine.submit(plain(10), None).unwrap()).unwrap().usage.generated_chars, 9);
}

#[test]
fn invalid_jobs_are_rejected_at_once() {
    let toy = Toy::new();
    let engine = toy.engine(limits(1, 1));
    let rejection = |job| engine.submit(job, None).unwrap_err().code();
    assert_eq!(rejection(plain(usize::MAX)), Code::InvalidArgument);
    assert_eq!(rejection(Job::Generate(generate(&[99], 1))), Code::InvalidArgument);
    assert_eq!(rejection(Job::Generate(generate(&[], 1))), Code::InvalidArgument);
    assert_idle(&toy, &engine);
}

#[test]
fn a_request_for_no_characters_succeeds() {
    let toy = Toy::new();
    let engine = toy.engine(limits(1, 1));
    let output = read(engine.submit(plain(0), None).unwrap()).unwrap();
    assert_eq!((output.characters.len(), output.reason), (0, FinishReason::MaxChars));
    assert_eq!((output.usage.prompt_chars, output.usage.generated_chars), (1, 0));
    assert_idle(&toy, &engine);
}

#[test]
fn a_generation_has_bounded_work() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { request_work: 20, ..limits(1, 1) });
    let submit = |prompt: usize, max_chars| engine.submit(Job::Generate(generate(&vec![1; prompt], max_chars)), None);
    match submit(11, 10) {
        Err(error @ Error::TooMuchWork { field: "stopping.max_chars", work: 21, limit: 20 }) => {
            assert_eq!(error.code(), Code::InvalidArgument);
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(submit(21, 1), Err(Error::TooMuchWork { field: "prompt", work: 22, limit: 20 })));
    read(submit(10, 10).unwrap()).unwrap();
    assert_idle(&toy, &engine);
}

#[test]
fn a_request_runs_no_longer_than_its_limit_and_the_text_until_then_is_sent() {
    let toy = Toy::new();
    toy.step_ns.store(1_000_000, SeqCst);
    let request_time = Duration::from_millis(200);
    let engine = toy.engine(Limits { request_time, ..limits(1, 4) });
    let long = engine.submit(plain(4000), None).unwrap();
    let began = Instant::now();
    // The time in the queue does not count.
    let short = engine.submit(plain(1), None).unwrap();
    let (symbols, error) = read_to_error(long);
    toy.step_ns.store(0, SeqCst);
    assert!(matches!(error, Error::RanTooLong { limit } if limit == request_time), "{error:?}");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!((1..4000).contains(&symbols.len()) && began.elapsed() >= request_time);
    read(short).unwrap();
    // A request that is paused ends too.
    let paused = Toy::new();
    let engine = paused.engine(Limits { request_time, events: 4, ..limits(1, 4) });
    let (symbols, error) = {
        let events = engine.submit(plain(1000), None).unwrap();
        assert_idle(&paused, &engine);
        read_to_error(events)
    };
    assert!(matches!(error, Error::RanTooLong { .. }) && !symbols.is_empty(), "{error:?}");
}

#[test]
fn without_a_time_limit_a_request_runs_on() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { request_time: Duration::ZERO, ..limits(1, 4) });
    assert_eq!(read(engine.submit(plain(100), None).unwrap()).unwrap().usage.generated_chars, 100);
}

#[test]
fn a_deadline_in_the_past_is_rejected() {
    let toy = Toy::new();
    let engine = toy.engine(limits(1, 1));
    assert!(matches!(engine.submit(plain(3), Some(Instant::now())), Err(Error::Deadline { .. })));
}

#[test]
fn a_deadline_passes_in_the_queue() {
    let toy = Toy::new();
    let engine = toy.engine(limits(1, 4));
    // The first reader does not read, so its row pauses. The model is held until both requests are submitted: the second times out
    // in the queue before it can preempt the first.
    toy.hold(0);
    let first = engine.submit(plain(1000), None).unwrap();
    let second = engine.submit(plain(1), Some(Instant::now() + Duration::from_millis(50))).unwrap();
    toy.release();
    assert!(matches!(read(second), Err(Error::Deadline { stage: "in the queue" })));
    assert_eq!(engine.load().queued, 0);
    read(first).unwrap();
    assert_idle(&toy, &engine);
}

#[test]
fn a_deadline_passes_while_decoding_and_the_text_until_then_is_sent() {
    let toy = Toy::new();
    let engine = toy.engine(limits(1, 4));
    toy.hold(5);
    let mut request = generate(&[1], 1000);
    // The whole text is held back, because it may become a stop string.
    let text: Vec<u32> = alone(Job::Generate(request.clone()), 4).characters.iter().map(|c| c.symbol).collect();
    request.stopping.stop = vec![text[..100].to_vec()];
    let deadline = Instant::now() + Duration::from_secs(1);
    let events = engine.submit(Job::Generate(request), Some(deadline)).unwrap();
    eventually("the steps were run", || toy.steps.lock().unwrap().len() == 5);
    assert!(Instant::now() < deadline, "the machine is too slow for this deadline");
    std::thread::sleep(deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(10));
    toy.release();
    let (symbols, error) = read_to_error(events);
    assert!(matches!(error, Error::Deadline { stage: "while decoding" }), "{error:?}");
    // The sixth step had begun, each produced a symbol, and no seventh ran.
    assert_eq!(symbols, text[..6]);
    assert_idle(&toy, &engine);
}

#[test]
fn a_paused_job_has_a_deadline_too() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { events: 4, ..limits(1, 4) });
    let mut request = generate(&[1], 1000);
    // One symbol waits for its boundary decision, another for the reader.
    request.details.boundaries = true;
    let slow = engine.submit(Job::Generate(request), Some(Instant::now() + Duration::from_millis(50))).unwrap();
    // Its row is freed although the reader does not read, and the generated symbols remain readable.
    eventually("the job starts", || !toy.steps.lock().unwrap().is_empty());
    assert_idle(&toy, &engine);
    let (symbols, error) = read_to_error(slow);
    assert!(matches!(error, Error::Deadline { stage: "while decoding" }), "{error:?}");
    assert_eq!(symbols.len(), toy.steps.lock().unwrap().len());
}

/// Reads up to an error. Returns the symbols before it and the error.
fn read_to_error(mut events: Events) -> (Vec<u32>, Error) {
    let mut symbols = Vec::new();
    loop {
        match events.blocking_recv().unwrap() {
            Ok(Event::Characters(characters)) => symbols.extend(characters.into_iter().map(|emitted| emitted.symbol)),
            Ok(Event::Started { .. }) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => return (symbols, error),
        }
    }
}

#[test]
fn a_cancelled_job_leaves_the_queue() {
    let toy = Toy::new();
    let engine = toy.engine(limits(1, 1));
    let slow = engine.submit(plain(1000), None).unwrap();
    let waiting = engine.submit(plain(1), None).unwrap();
    eventually("the row has paused", || slow.len() == 256);
    drop(waiting);
    eventually("the queue is empty", || engine.load().queued == 0);
    drop(slow);
    assert_idle(&toy, &engine);
}
