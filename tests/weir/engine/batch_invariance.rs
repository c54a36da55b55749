//! Many jobs at once: each has the output that it has alone, and none stalls another.

use super::{jobs::*, toy_model::*};
use std::{sync::Arc, thread, time::Duration};
use weir::engine::{Event, Events, Handle, Job, Limits};

fn small(rows: usize, queue: usize) -> Limits {
    Limits { rows, queue, chunk: 16, events: 8, ..Limits::default() }
}

/// Reads all jobs at once, each on its own thread.
fn read_all(jobs: Vec<(u64, Events)>) -> Vec<(u64, JobOutput)> {
    let readers = jobs.into_iter().map(|(seed, events)| thread::spawn(move || (seed, read(events).unwrap())));
    readers.collect::<Vec<_>>().into_iter().map(|reader| reader.join().unwrap()).collect()
}

#[test]
fn other_rows_do_not_change_an_output() {
    for round in 0..6 {
        let toy = Toy::new();
        let engine = toy.engine(small(1 + round * 3, 200));
        let submit = |index: u64| {
            // Each round has its own order.
            let seed = index * (2 * round as u64 + 1) % 64;
            (seed, engine.submit(varied(seed), None).unwrap())
        };
        for (seed, output) in read_all((0..64).map(submit).collect()) {
            assert_eq!(output, alone(varied(seed), 1000), "job {seed}");
        }
        assert_idle(&toy, &engine);
    }
}

#[test]
fn cancelled_jobs_do_not_disturb_others() {
    let toy = Toy::new();
    let engine = toy.engine(small(6, 800));
    let submit = |seed: u64| (seed, engine.submit(varied(seed), None).unwrap());
    let mut jobs: Vec<_> = (0..300).map(submit).collect();
    let cancelled: Vec<_> = (0..100).map(|index| jobs.swap_remove(mix(index) as usize % jobs.len())).collect();
    // Some readers cancel at once, some after one or two events.
    let cancel = cancelled
        .into_iter()
        .map(|(seed, mut events)| thread::spawn(move || (0..seed % 3).for_each(|_| drop(events.blocking_recv()))));
    let cancelling: Vec<_> = cancel.collect();
    for (seed, output) in read_all(jobs) {
        assert_eq!(output, alone(varied(seed), 7), "job {seed}");
    }
    cancelling.into_iter().for_each(|reader| reader.join().unwrap());
    assert_idle(&toy, &engine);
}

#[test]
fn a_long_prompt_stalls_running_streams_by_a_chunk_at_most() {
    let toy = Toy::new();
    // The stream's events all fit in its buffer, because its reader starts late.
    let engine = toy.engine(Limits { events: 300, boundary_wait: 0, ..small(8, 8) });
    toy.hold(1);
    let stream = engine.submit(Job::Generate(generate(&[1], 200)), None).unwrap();
    let prompts: Vec<_> = (0..3).map(|_| engine.submit(Job::Generate(generate(&[2; 500], 1)), None).unwrap()).collect();
    eventually("all have rows", || engine.load().running == 4);
    toy.release();
    read(stream).unwrap();
    prompts.into_iter().for_each(|events| drop(read(events).unwrap()));
    let steps = toy.steps.lock().unwrap();
    // A step feeds at most one chunk of prompt symbols in addition to the sampled ones.
    assert!(steps.iter().all(|fed| fed.iter().sum::<usize>() <= 16 + 3), "{steps:?}");
    // The stream takes part in every step until it ends; the prompts share the chunks.
    assert!(steps.iter().take(1500 / 16).skip(2).all(|fed| fed.contains(&1)), "{steps:?}");
}

#[test]
fn prompts_take_turns() {
    let toy = Toy::new();
    // Without a target for the time of a step, the number of steps does not depend on the machine.
    let engine = toy.engine(Limits { boundary_wait: 0, step: Duration::ZERO, ..small(8, 8) });
    toy.hold(0);
    let long = engine.submit(Job::Generate(generate(&[2; 1600], 1)), None).unwrap();
    let short = engine.submit(Job::Generate(generate(&[2; 20], 1)), None).unwrap();
    eventually("both have rows", || {
        // A step that began before the short prompt came takes the long one alone.
        toy.hold(1);
        engine.load().running == 2
    });
    // The long prompt alone needs 100 steps, so the short one does not wait for it.
    toy.hold(12);
    eventually("the short prompt's job has ended", || engine.load().running == 1);
    toy.release();
    read(short).unwrap();
    read(long).unwrap();
}

#[test]
fn newcomers_do_not_starve_a_long_prompt() {
    let toy = Toy::new();
    let engine = toy.engine(small(64, 8));
    toy.hold(0);
    let mut long = engine.submit(Job::Generate(generate(&[2; 160], 1)), None).unwrap();
    // A prompt that fills a chunk arrives with every step.
    let newcomers: Vec<_> = (0..100)
        .map(|_| {
            let events = engine.submit(Job::Generate(generate(&[2; 16], 1)), None).unwrap();
            let step_count = toy.steps.lock().unwrap().len();
            toy.hold(1);
            eventually("a step was taken", || toy.steps.lock().unwrap().len() > step_count);
            events
        })
        .collect();
    let events: Vec<_> = std::iter::from_fn(|| long.try_recv().ok()).collect();
    toy.release();
    assert!(matches!(events.last(), Some(Ok(Event::Finished { .. }))), "{events:?}");
    newcomers.into_iter().for_each(|events| drop(read(events).unwrap()));
}

#[test]
fn a_cancelled_request_frees_its_row_within_a_step() {
    let toy = Toy::new();
    let engine = toy.engine(small(1, 4));
    toy.hold(3);
    let events = engine.submit(Job::Generate(generate(&[1], 4000)), None).unwrap();
    eventually("three steps were taken", || toy.steps.lock().unwrap().len() == 3);
    drop(events);
    toy.hold(1);
    assert_idle(&toy, &engine);
    toy.release();
}

#[test]
fn a_reader_that_does_not_read_pauses_only_its_own_row() {
    let toy = Toy::new();
    let engine = toy.engine(small(4, 4));
    let slow = engine.submit(Job::Generate(generate(&[1], 500)), None).unwrap();
    for seed in 0..20 {
        let quick = engine.submit(varied(seed), None).unwrap();
        assert_eq!(read(quick).unwrap(), alone(varied(seed), 16));
    }
    eventually("the slow reader's row has paused", || slow.len() == 8 && engine.load().running == 1);
    let steps = toy.steps.lock().unwrap().len();
    thread::sleep(Duration::from_millis(30));
    assert_eq!(toy.steps.lock().unwrap().len(), steps, "a paused row was stepped");
    assert_eq!(read(slow).unwrap(), alone(Job::Generate(generate(&[1], 500)), 16));
    assert_idle(&toy, &engine);
}

#[test]
fn a_paused_job_ends_when_its_reader_cancels() {
    let toy = Toy::new();
    let engine = toy.engine(small(1, 4));
    let slow = engine.submit(Job::Generate(generate(&[1], 500)), None).unwrap();
    let next = engine.submit(varied(1), None).unwrap();
    eventually("the row has paused", || slow.len() == 8);
    drop(slow);
    assert_eq!(read(next).unwrap(), alone(varied(1), 16));
    assert_idle(&toy, &engine);
}

#[test]
fn handles_are_shared_between_threads() {
    let toy = Toy::new();
    let engine = toy.engine(small(4, 1000));
    let submitters: Vec<_> = (0..4u64)
        .map(|thread| {
            let engine: Handle = engine.clone();
            thread::spawn(move || {
                for seed in thread * 50..thread * 50 + 50 {
                    assert_eq!(read(engine.submit(varied(seed), None).unwrap()).unwrap(), alone(varied(seed), 9));
                }
            })
        })
        .collect();
    submitters.into_iter().for_each(|submitter| submitter.join().unwrap());
    assert_idle(&toy, &engine);
    drop(engine);
    assert_eq!(Arc::strong_count(&toy), 1, "the worker has ended and keeps no reference");
}
