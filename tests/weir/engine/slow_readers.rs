//! Readers that do not read: they hold up nobody, and not for ever.

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
fn a_reader_that_takes_nothing_is_cut_after_a_time() {
    let toy = Toy::new();
    let stall = Duration::from_millis(150);
    let engine = toy.engine(Limits { events: 4, stall, ..Limits::default() });
    let began = Instant::now();
    let mut slow = engine.submit(long(1, 500), None).unwrap();
    at_rest(&toy, &engine);
    assert!(began.elapsed() >= stall);
    // what was ready is still there, then the reason
    let (mut told, mut last) = (0, None);
    while let Some(event) = slow.blocking_recv() {
        match event {
            Ok(Event::Characters(characters)) => told += characters.len(),
            Ok(_) => {}
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap();
    assert!(matches!(error, Error::Stalled { limit } if limit == stall) && told >= 4, "{error}, {told}");
    assert_eq!(error.code(), Code::ResourceExhausted);
}

#[test]
fn a_reader_that_takes_something_now_and_then_is_not_cut() {
    let toy = Toy::new();
    let stall = Duration::from_millis(400);
    let engine = toy.engine(Limits { events: 2, stall, ..Limits::default() });
    let mut events = engine.submit(long(2, 12), None).unwrap();
    let mut told = 0;
    let began = Instant::now();
    loop {
        thread::sleep(Duration::from_millis(60));
        match events.blocking_recv().unwrap().unwrap() {
            Event::Characters(characters) => told += characters.len(),
            Event::Finished { .. } => break,
            Event::Started { .. } | Event::Document(_) => {}
        }
    }
    assert!(told == 12 && began.elapsed() > stall);
    at_rest(&toy, &engine);
}

#[test]
fn rows_of_slow_readers_make_way_for_those_who_wait_and_come_back() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { rows: 2, events: 8, ..Limits::default() });
    let mut slow: Vec<_> = (0..2).map(|seed| engine.submit(long(seed, 60), None).unwrap()).collect();
    eventually("both rows have paused", || slow.iter().all(|events| events.len() == 8));
    // nobody reads: these would wait for ever
    for seed in 0..10 {
        assert_eq!(read(engine.submit(varied(seed), None).unwrap()).unwrap(), alone(varied(seed), 1000));
    }
    assert!(engine.counters().preemptions >= 1);
    let second = slow.pop().unwrap();
    assert_eq!(read(slow.pop().unwrap()).unwrap(), alone(long(0, 60), 1000));
    assert_eq!(read(second).unwrap(), alone(long(1, 60), 1000));
    at_rest(&toy, &engine);
}

#[test]
fn one_that_made_way_is_cut_too_and_its_place_is_free() {
    let toy = Toy::new();
    let stall = Duration::from_millis(500);
    let engine = toy.engine(Limits { rows: 1, events: 4, stall, ..Limits::default() });
    let mut slow = engine.submit(long(1, 500), None).unwrap();
    eventually("its row has paused", || slow.len() == 4);
    assert_eq!(read(engine.submit(varied(3), None).unwrap()).unwrap(), alone(varied(3), 1000));
    assert_eq!((engine.counters().preemptions, engine.load().queued), (1, 1));
    at_rest(&toy, &engine);
    let error = std::iter::from_fn(|| slow.blocking_recv()).find_map(Result::err);
    assert!(matches!(error, Some(Error::Stalled { .. })), "{error:?}");
}

#[test]
fn one_that_made_way_goes_with_its_reader() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { rows: 1, events: 4, ..Limits::default() });
    let slow = engine.submit(long(1, 500), None).unwrap();
    eventually("its row has paused", || slow.len() == 4);
    read(engine.submit(varied(3), None).unwrap()).unwrap();
    assert_eq!(engine.load().queued, 1);
    drop(slow);
    at_rest(&toy, &engine);
}
