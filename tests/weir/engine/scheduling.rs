//! The scheduler inside the engine: priorities, tenants, shares of the queue, and deadlines that cannot be met. The unit
//! tests of the scheduler are in its own folder.

use super::{jobs::*, toy_model::*};
use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};
use weir::{
    decode::{contract::BoundaryOptions, options::Score},
    engine::{Events, Handle, Job, Limits, Terms},
    error::{Code, Error},
};

fn plain(prompt: usize, max_chars: usize) -> Job {
    Job::Generate(generate(&vec![2; prompt], max_chars))
}

fn terms(tenant: &str, priority: i32) -> Terms {
    Terms { tenant: tenant.into(), priority, ..Terms::default() }
}

/// Returns the prompt lengths of jobs in the order in which they got the only row. Each prompt is fed in one step, and only
/// prompts are fed in steps of more than one symbol.
fn order(toy: &Toy, jobs: Vec<Events>) -> Vec<usize> {
    jobs.into_iter().for_each(|events| drop(read(events).unwrap()));
    toy.steps.lock().unwrap().iter().flatten().copied().filter(|&length| length > 1).collect()
}

/// Returns an engine that runs no step, and the job that holds its only row.
fn held(toy: &Arc<Toy>, limits: Limits, tenant: &str) -> (Handle, Events) {
    let engine = toy.engine(Limits { rows: 1, ..limits });
    toy.hold(0);
    let first = engine.submit(plain(1, 3), terms(tenant, 0)).unwrap();
    eventually("the job has its row", || toy.sequences() == 1);
    (engine, first)
}

#[test]
fn higher_priorities_go_first() {
    let toy = Toy::new();
    let (engine, first) = held(&toy, Limits::default(), "");
    let low = 2;
    let usual = 3;
    let urgent = 4;
    let second = 5;
    let submit = |(length, priority)| engine.submit(plain(length, 3), terms("", priority)).unwrap();
    let jobs: Vec<_> = [(low, -8), (usual, 0), (urgent, 7), (second, 7)].map(submit).into();
    toy.release();
    assert_eq!(order(&toy, jobs), [urgent, second, usual, low]);
    read(first).unwrap();
    assert_idle(&toy, &engine);
}

#[test]
fn a_priority_out_of_range_is_rejected() {
    let toy = Toy::new();
    let engine = toy.engine(Limits::default());
    for priority in [-9, 8, i32::MIN, i32::MAX] {
        match engine.submit(plain(1, 1), terms("", priority)) {
            Err(error @ Error::BadOption { field: "priority", .. }) => {
                assert_eq!(error.code(), Code::InvalidArgument);
                assert!(error.to_string().contains("-8 to 7"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    for priority in [-8, 7] {
        read(engine.submit(plain(1, 1), terms("", priority)).unwrap()).unwrap();
    }
}

/// A tenant with long requests of high priority gets its turn by the work that they do, not by their number.
#[test]
fn tenants_take_turns_whatever_their_priorities() {
    let toy = Toy::new();
    let (engine, first) = held(&toy, Limits::default(), "many");
    let mut jobs = Vec::new();
    let [many, few] = [2, 3];
    let mut submit = |job, terms| jobs.push(engine.submit(job, terms).unwrap());
    (0..6).for_each(|_| submit(plain(many, 600), terms("many", 7)));
    (0..4).for_each(|_| submit(plain(few, 3), terms("few", -8)));
    toy.release();
    let order = order(&toy, jobs);
    // The first long request does more work than all four short ones.
    let second_long = order.iter().enumerate().filter(|(_, length)| **length == many).nth(1).unwrap().0;
    assert_eq!(order[..second_long].iter().filter(|length| **length == few).count(), 4, "{order:?}");
    assert_eq!(order[0], many, "{order:?}");
    read(first).unwrap();
    assert_idle(&toy, &engine);
}

#[test]
fn only_a_tenant_over_its_share_is_rejected() {
    let toy = Toy::new();
    let (engine, first) = held(&toy, Limits { queue: 8, ..Limits::default() }, "many");
    let submit = |tenant: &str| engine.submit(plain(1, 3), terms(tenant, 0));
    let mut jobs: Vec<_> = (0..4).map(|_| submit("many").unwrap()).collect();
    match submit("many") {
        Err(error @ Error::QueueFull { what: "requests of one tenant", limit: 4, .. }) => {
            assert_eq!(error.code(), Code::ResourceExhausted);
        }
        other => panic!("{other:?}"),
    }
    for (tenant, share) in [("few", 2), ("fewer", 1), ("last", 1)] {
        (0..share).for_each(|_| jobs.push(submit(tenant).unwrap()));
        assert!(matches!(submit(tenant), Err(Error::QueueFull { .. })), "{tenant}");
    }
    assert!(matches!(submit("late"), Err(Error::QueueFull { what: "requests", limit: 8, .. })));
    toy.release();
    jobs.into_iter().chain([first]).for_each(|events| drop(read(events).unwrap()));
    assert_idle(&toy, &engine);
}

#[test]
fn the_total_length_of_queued_prompts_is_limited() {
    let toy = Toy::new();
    let (engine, first) = held(&toy, Limits { queued_symbols: 100, ..Limits::default() }, "");
    let score = |symbols| {
        let boundaries = BoundaryOptions::default();
        Job::Score(Score { symbols: vec![2; symbols], logprobs: false, top: 0, boundaries, windows: None })
    };
    let full = |job, tenant| engine.submit(job, terms(tenant, 0)).unwrap_err();
    // The share holds for the first request of a tenant, too.
    let refused = full(score(51), "a");
    assert!(
        matches!(refused, Error::QueueFull { what: "prompt characters of one tenant", limit: 50, .. }),
        "{refused}"
    );
    let second = engine.submit(score(50), terms("a", 0)).unwrap();
    let third = engine.submit(plain(25, 1), terms("b", 0)).unwrap();
    assert!(matches!(full(plain(27, 1), "c"), Error::QueueFull { what: "prompt characters", limit: 100, .. }));
    let fourth = engine.submit(plain(13, 1), terms("c", 0)).unwrap();
    toy.release();
    [first, second, third, fourth].into_iter().for_each(|events| drop(read(events).unwrap()));
    // Running jobs do not count, and a job that gets a row at once is not queued.
    read(engine.submit(plain(200, 1), terms("a", 0)).unwrap()).unwrap();
    assert_idle(&toy, &engine);
}

/// Returns an engine that has measured its prefill rate: 16 symbols in ten milliseconds.
fn measured(rows: usize) -> (Arc<Toy>, Handle) {
    let toy = Toy::new();
    toy.step_ns.store(10_000_000, SeqCst);
    let engine = toy.engine(Limits { rows, chunk: 16, ..Limits::default() });
    read(engine.submit(plain(160, 1), None).unwrap()).unwrap();
    (toy, engine)
}

fn within(time: Duration) -> Terms {
    Some(Instant::now() + time).into()
}

#[test]
fn a_deadline_that_cannot_be_met_is_rejected_at_once() {
    let (_toy, engine) = measured(4);
    // 1600 symbols take a second.
    match engine.submit(plain(1600, 1), within(Duration::from_millis(500))) {
        Err(error @ Error::Deadline { stage }) => {
            assert_eq!(error.code(), Code::DeadlineExceeded);
            assert!(stage.contains("measured rate"), "{stage}");
        }
        other => panic!("{other:?}"),
    }
    read(engine.submit(plain(16, 1), within(Duration::from_secs(10))).unwrap()).unwrap();
    // A long answer is no reason to reject: it may end early, and its first part has value.
    let long = engine.submit(plain(1, 4000), within(Duration::from_millis(200))).unwrap();
    assert!(matches!(read(long), Err(Error::Deadline { stage: "while decoding" })));
}

#[test]
fn no_deadline_is_rejected_before_a_measurement() {
    let toy = Toy::new();
    toy.step_ns.store(10_000_000, SeqCst);
    let engine = toy.engine(Limits { chunk: 16, ..Limits::default() });
    // No rate has been measured.
    let events = engine.submit(plain(1600, 1), within(Duration::from_millis(100))).unwrap();
    assert!(matches!(read(events), Err(Error::Deadline { stage: "while decoding" })));
}

#[test]
fn work_that_must_run_before_counts_against_a_deadline() {
    let (toy, engine) = measured(1);
    let long = engine.submit(plain(1600, 1), None).unwrap();
    let result = engine.submit(plain(1, 1), within(Duration::from_millis(300)));
    assert!(matches!(result, Err(Error::Deadline { .. })), "{result:?}");
    drop(long);
    assert_idle(&toy, &engine);
    read(engine.submit(plain(1, 1), within(Duration::from_secs(10))).unwrap()).unwrap();
    // With a free row the job is only delayed.
    let (_toy, engine) = measured(2);
    let long = engine.submit(plain(1600, 1), None).unwrap();
    read(engine.submit(plain(1, 1), within(Duration::from_secs(10))).unwrap()).unwrap();
    drop(long);
}
