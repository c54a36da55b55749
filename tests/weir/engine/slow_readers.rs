//! Readers that stop reading: they delay no other request, and are ended after a time.

use super::{jobs::*, toy_model::*};
use std::{
    thread,
    time::{Duration, Instant},
};
use weir::{
    engine::{Event, Job, Limits},
    error::{Code, Error},
};

fn long(seed: u64, max_chars: usize) -> Job {
    let mut request = generate(&[1, 0, 2], max_chars);
    request.sampling.seed = seed;
    Job::Generate(request)
}

#[test]
fn a_stalled_reader_is_ended_after_the_stall_limit() {
    let toy = Toy::new();
    let stall = Duration::from_millis(150);
    let engine = toy.engine(Limits { events: 4, stall, ..Limits::default() });
    let start = Instant::now();
    let mut slow = engine.submit(long(1, 500), None).unwrap();
    assert_idle(&toy, &engine);
    assert!(start.elapsed() >= stall);
    // The reader receives the ready characters first, then the error.
    let mut received = 0;
    let mut last = None;
    while let Some(event) = slow.blocking_recv() {
        match event {
            Ok(Event::Characters(characters)) => received += characters.len(),
            Ok(_) => {}
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap();
    assert!(matches!(error, Error::Stalled { limit } if limit == stall) && received >= 4, "{error}, {received}");
    assert_eq!(error.code(), Code::ResourceExhausted);
}

#[test]
fn a_slow_but_steady_reader_is_not_ended() {
    let toy = Toy::new();
    let stall = Duration::from_millis(400);
    let engine = toy.engine(Limits { events: 2, stall, ..Limits::default() });
    // on a busy machine this thread may itself pause for longer than the limit
    let is_answered = (0..5).any(|_| {
        let mut events = engine.submit(long(2, 12), None).unwrap();
        let mut received = 0;
        let start = Instant::now();
        loop {
            thread::sleep(Duration::from_millis(60));
            match events.blocking_recv().unwrap() {
                Ok(Event::Characters(characters)) => received += characters.len(),
                Ok(Event::Finished { .. }) => break,
                Ok(_) => {}
                Err(Error::Stalled { .. }) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(received == 12 && start.elapsed() > stall);
        true
    });
    assert!(is_answered);
    assert_idle(&toy, &engine);
}

#[test]
fn rows_of_slow_readers_are_preempted_and_resumed() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { rows: 2, events: 8, ..Limits::default() });
    let mut slow: Vec<_> = (0..2).map(|seed| engine.submit(long(seed, 60), None).unwrap()).collect();
    eventually("both rows have paused", || slow.iter().all(|events| events.len() == 8));
    // Without preemption these requests would wait forever.
    for seed in 0..10 {
        assert_eq!(read(engine.submit(varied(seed), None).unwrap()).unwrap(), alone(varied(seed), 1000));
    }
    assert!(engine.counters().preemptions >= 1);
    let second = slow.pop().unwrap();
    assert_eq!(read(slow.pop().unwrap()).unwrap(), alone(long(0, 60), 1000));
    assert_eq!(read(second).unwrap(), alone(long(1, 60), 1000));
    assert_idle(&toy, &engine);
}

#[test]
fn a_preempted_job_with_a_stalled_reader_is_ended() {
    let toy = Toy::new();
    let stall = Duration::from_secs(2);
    let engine = toy.engine(Limits { rows: 1, events: 4, stall, ..Limits::default() });
    let mut slow = engine.submit(long(1, 500), None).unwrap();
    eventually("the row has paused", || slow.len() == 4);
    assert_eq!(read(engine.submit(varied(3), None).unwrap()).unwrap(), alone(varied(3), 1000));
    assert_eq!((engine.counters().preemptions, engine.load().queued), (1, 1));
    assert_idle(&toy, &engine);
    let error = std::iter::from_fn(|| slow.blocking_recv()).find_map(Result::err);
    assert!(matches!(error, Some(Error::Stalled { .. })), "{error:?}");
}

#[test]
fn a_preempted_job_ends_when_its_reader_cancels() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { rows: 1, events: 4, ..Limits::default() });
    let slow = engine.submit(long(1, 500), None).unwrap();
    eventually("the row has paused", || slow.len() == 4);
    read(engine.submit(varied(3), None).unwrap()).unwrap();
    assert_eq!(engine.load().queued, 1);
    drop(slow);
    assert_idle(&toy, &engine);
}
