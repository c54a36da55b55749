//! Rows that share a segment step: which rows wait, how long, and that their output does not change.

use super::{jobs::*, toy_model::*};
use proptest::{collection::vec, prelude::*};
use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};
use weir::{
    decode::{
        boundary_wait::{count_step, is_due},
        contract::{BoundaryOptions, Model, SequenceRow, StepStatus, Want},
    },
    engine::{Events, Job, Limits},
    error::{Code, Error},
};

fn limits(boundary_wait: usize) -> Limits {
    Limits { boundary_wait, events: 300, ..Limits::default() }
}

/// Returns a job that adds `bias` to the logit of the symbol that closes a segment.
fn biased(bias: f32, max_chars: usize) -> Job {
    let mut request = generate(&[1], max_chars);
    request.sampling.logit_bias = vec![(0, bias)];
    Job::Generate(request)
}

/// Returns a job whose every symbol closes a segment.
fn closing(max_chars: usize) -> Job {
    biased(1000.0, max_chars)
}

/// Returns a job that closes no segment.
fn open(max_chars: usize) -> Job {
    biased(-1000.0, max_chars)
}

fn step_count(toy: &Toy) -> usize {
    toy.steps.lock().unwrap().len()
}

/// Lets `count` more steps begin and waits for them.
fn step(toy: &Toy, count: usize) {
    let before = step_count(toy);
    toy.hold(count);
    eventually("the steps were run", || step_count(toy) == before + count);
}

/// Returns an engine with two running jobs. The first waits for its segment step.
fn waiting(boundary_wait: usize, deadline: Option<Duration>) -> (Arc<Toy>, weir::engine::Handle, [Events; 2]) {
    let toy = Toy::new();
    let deadline = deadline.map(|after| Instant::now() + after);
    let engine = toy.engine(limits(boundary_wait));
    toy.hold(0);
    let first = engine.submit(closing(100), deadline).unwrap();
    step(&toy, 1);
    let second = engine.submit(open(100), None).unwrap();
    eventually("both have rows", || {
        step(&toy, 1);
        engine.load().running == 2
    });
    // After these steps the second prompt is fed, and the first row has closed a segment.
    step(&toy, 2);
    (toy, engine, [first, second])
}

#[test]
fn outputs_are_equal_and_no_row_waits_longer_than_allowed() {
    for wait in 0..=3 {
        let toy = Toy::new();
        let engine = toy.engine(Limits { rows: 7, chunk: 16, ..limits(wait) });
        toy.hold(0);
        let jobs: Vec<_> = (0..64).map(|seed| (seed, engine.submit(varied(seed), None).unwrap())).collect();
        toy.release();
        for (seed, events) in jobs {
            let (output, timing) = read_timed(events).unwrap();
            assert_eq!(output, alone(varied(seed), 1000), "job {seed}, wait {wait}");
            assert!(timing.wait_steps <= timing.middle_steps * wait as u64, "{timing:?}");
        }
        let longest = toy.segment_steps.lock().unwrap().iter().map(|&(_, longest)| longest).max();
        assert_eq!(longest, Some(wait), "the longest wait of a row");
        assert_idle(&toy, &engine);
    }
}

#[test]
fn rows_that_wait_share_segment_steps() {
    let segment_steps = |wait| {
        let toy = Toy::new();
        let engine = toy.engine(limits(wait));
        toy.hold(0);
        let submit = |seed| {
            let mut request = generate(&[1], 200);
            request.sampling.seed = seed;
            engine.submit(Job::Generate(request), None).unwrap()
        };
        let jobs: Vec<_> = (0..8).map(submit).collect();
        toy.release();
        jobs.into_iter().for_each(|events| drop(read(events).unwrap()));
        // Each symbol step is followed by one finish step for all rows.
        assert_eq!(toy.finish_steps.load(SeqCst), step_count(&toy), "wait {wait}");
        let steps = toy.segment_steps.lock().unwrap();
        (steps.len(), steps.iter().map(|&(rows, _)| rows).sum::<usize>())
    };
    let (single_steps, single_rows) = segment_steps(0);
    let (shared_steps, shared_rows) = segment_steps(3);
    assert_eq!(single_rows, shared_rows, "each row has its segment steps");
    assert!(2 * shared_steps < single_steps, "{shared_steps} steps with a wait, {single_steps} without");
}

#[test]
fn a_row_alone_never_waits() {
    let toy = Toy::new();
    let engine = toy.engine(limits(64));
    for job in [closing(50), varied(7), varied(8)] {
        assert_eq!(read_timed(engine.submit(job, None).unwrap()).unwrap().1.wait_steps, 0);
    }
    assert!(toy.segment_steps.lock().unwrap().iter().all(|&step| step == (1, 0)));
}

#[test]
fn a_wait_is_counted_in_the_timing() {
    let toy = Toy::new();
    let engine = toy.engine(limits(2));
    toy.hold(1);
    let neighbor = engine.submit(open(200), None).unwrap();
    eventually("the first job runs", || step_count(&toy) == 1);
    let events = engine.submit(closing(5), None).unwrap();
    toy.release();
    let (output, timing) = read_timed(events).unwrap();
    assert_eq!(output, alone(closing(5), 1000));
    assert_eq!((timing.steps, timing.middle_steps, timing.wait_steps), (6, 5, 10));
    assert_eq!(read_timed(neighbor).unwrap().1.wait_steps, 0);
}

#[test]
fn a_chunk_does_not_wait_and_ends_the_wait_of_others() {
    let (toy, engine, [first, second]) = waiting(64, None);
    let prompt = engine.submit(Job::Generate(generate(&[1, 0, 2], 1)), None).unwrap();
    eventually("the prompt was fed", || {
        step(&toy, 1);
        toy.steps.lock().unwrap().last().unwrap().contains(&3)
    });
    step(&toy, 1);
    assert_eq!(toy.segment_steps.lock().unwrap().last().unwrap().0, 2);
    toy.release();
    assert_eq!(read(prompt).unwrap(), alone(Job::Generate(generate(&[1, 0, 2], 1)), 1000));
    assert_eq!(read(first).unwrap(), alone(closing(100), 1000));
    assert_eq!(read(second).unwrap(), alone(open(100), 1000));
    assert_idle(&toy, &engine);
}

#[test]
fn a_cancelled_waiting_row_releases_everything() {
    let (toy, engine, [first, second]) = waiting(64, None);
    let before = toy.segment_steps.lock().unwrap().len();
    drop(first);
    step(&toy, 2);
    assert_eq!((toy.sequences(), engine.load().running), (1, 1));
    toy.release();
    assert_eq!(read(second).unwrap(), alone(open(100), 1000));
    assert_eq!(toy.segment_steps.lock().unwrap().len(), before, "no other row needs a segment step");
    assert_idle(&toy, &engine);
}

#[test]
fn a_deadline_passes_while_a_row_waits() {
    let (toy, engine, [mut first, second]) = waiting(64, Some(Duration::from_secs(2)));
    thread::sleep(Duration::from_millis(2_020));
    toy.release();
    let error = std::iter::from_fn(|| first.blocking_recv()).find_map(Result::err);
    assert!(matches!(error, Some(Error::Deadline { stage: "while decoding" })), "{error:?}");
    assert_eq!(read(second).unwrap(), alone(open(100), 1000));
    assert_idle(&toy, &engine);
}

#[test]
fn no_row_waits_for_a_paused_row() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { events: 8, ..limits(64) });
    let slow = engine.submit(open(500), None).unwrap();
    eventually("the row has paused", || slow.len() == 8);
    let before = step_count(&toy);
    let (output, timing) = read_timed(engine.submit(closing(50), None).unwrap()).unwrap();
    assert_eq!((output, timing.wait_steps), (alone(closing(50), 1000), 0));
    assert_eq!(step_count(&toy), before + 51, "one step for the prompt and one per symbol");
    assert_eq!(read(slow).unwrap(), alone(open(500), 1000));
    assert_idle(&toy, &engine);
}

#[test]
fn a_waiting_row_with_a_slow_reader_delays_no_other() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { events: 8, ..limits(2) });
    let slow = engine.submit(closing(500), None).unwrap();
    for seed in 0..20 {
        assert_eq!(read(engine.submit(varied(seed), None).unwrap()).unwrap(), alone(varied(seed), 1000));
    }
    assert_eq!(read(slow).unwrap(), alone(closing(500), 1000));
    assert_idle(&toy, &engine);
}

#[test]
fn a_failed_finish_step_spares_the_rows_that_wait() {
    let (toy, engine, [first, second]) = waiting(64, None);
    // The job feeds one symbol, because a longer chunk would end the wait.
    let failing = engine.submit(Job::Generate(generate(&[PANIC_AT_FINISH], 5)), None).unwrap();
    toy.release();
    assert_eq!(read(failing).unwrap_err().code(), Code::Internal);
    assert_eq!(read(second).unwrap_err().code(), Code::Internal, "the row was in the same finish step");
    assert_eq!(read(first).unwrap(), alone(closing(100), 1000));
    assert_idle(&toy, &engine);
}

#[test]
fn a_failed_segment_step_ends_only_the_rows_in_it() {
    let (toy, engine, [first, second]) = waiting(64, None);
    let failing = engine.submit(Job::Generate(generate(&[1, 2, PANIC_IN_MIDDLE], 5)), None).unwrap();
    toy.release();
    assert_eq!(read(failing).unwrap_err().code(), Code::Internal);
    assert_eq!(read(first).unwrap_err().code(), Code::Internal);
    assert_eq!(read(second).unwrap(), alone(open(100), 1000));
    assert_idle(&toy, &engine);
}

/// Creates waiting rows from the steps that each has waited and the number of symbols that it was fed.
fn waiting_rows(waited_and_fed: &[(usize, usize)]) -> Vec<SequenceRow> {
    let toy = Toy::new();
    let row = |&(waited, fed): &(usize, usize)| {
        let mut row = SequenceRow::new(toy.begin(BoundaryOptions::default()).unwrap());
        row.set(&vec![0; fed], Want::Last);
        row.status = StepStatus::Waiting;
        row.waited = waited;
        row
    };
    waited_and_fed.iter().map(row).collect()
}

proptest! {
    #[test]
    fn the_wait_rule_is_monotonic(
        rows in vec((0usize..70, 1usize..3), 0..9), more in (0usize..70, 1usize..3), others: bool, wait in 0usize..=64,
    ) {
        // the caller has no others if a row was fed a chunk
        let due = |rows: &[(usize, usize)], others, wait| {
            is_due(waiting_rows(rows).iter(), others && rows.iter().all(|&(_, fed)| fed == 1), wait)
        };
        let actual = due(&rows, others, wait);
        prop_assert!(!actual || !rows.is_empty(), "a step without rows");
        if !rows.is_empty() {
            prop_assert!(due(&rows, false, wait), "no other row to wait for");
            prop_assert!(due(&rows, others, 0), "at once");
            prop_assert!(actual || rows.iter().all(|row| *row == (row.0.min(wait.saturating_sub(1)), 1)));
        }
        // A longer wait, more rows or a smaller limit never delay the step.
        let longer: Vec<_> = rows.iter().map(|&(steps, fed)| (steps + 1, fed)).collect();
        let joined = [&rows[..], &[more]].concat();
        prop_assert!(!actual || due(&longer, others, wait) && due(&joined, others, wait));
        prop_assert!(!actual || due(&rows, others, wait.saturating_sub(1)) && due(&rows, false, wait));
    }

    #[test]
    fn steps_by_the_wait_rule_progress_within_the_limit(
        closes in vec(vec(any::<bool>(), 1..40), 1..6), wait in 0usize..5,
    ) {
        let mut rows = waiting_rows(&vec![(0, 1); closes.len()]);
        rows.iter_mut().for_each(|row| row.status = StepStatus::Ready);
        let mut fed = vec![0; rows.len()];
        while fed.iter().zip(&closes).any(|(&fed, closes)| fed < closes.len()) {
            count_step(&mut rows);
            let mut stepped = 0;
            for (index, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.status == StepStatus::Ready) {
                if let Some(&closes) = closes[index].get(fed[index]) {
                    row.set(&[0], Want::Last);
                    row.status = if closes { StepStatus::Waiting } else { StepStatus::Ready };
                    fed[index] += 1;
                    stepped += 1;
                }
            }
            prop_assert!(stepped > 0, "all rows wait for each other");
            let waiting = |row: &&SequenceRow| row.status == StepStatus::Waiting;
            let others = (0..rows.len()).any(|i| rows[i].status == StepStatus::Ready && fed[i] < closes[i].len());
            if is_due(rows.iter().filter(waiting), others, wait) {
                rows.iter_mut().for_each(|row| row.status = StepStatus::Ready);
            }
            prop_assert!(rows.iter().filter(waiting).all(|row| row.waited < wait), "a row will wait longer than allowed");
            prop_assert!(rows.len() > 1 || rows[0].status == StepStatus::Ready, "a single row waits");
        }
    }
}
