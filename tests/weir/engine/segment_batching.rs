//! Rows that wait for a segment step together: who waits for whom, how long, and that nothing else changes.

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

/// Every symbol that is generated closes a segment, or none does.
fn biased(bias: f32, max_chars: usize) -> Job {
    let mut request = generate(&[1], max_chars);
    request.sampling.logit_bias = vec![(0, bias)];
    Job::Generate(request)
}

fn closing(max_chars: usize) -> Job {
    biased(1000.0, max_chars)
}

fn open(max_chars: usize) -> Job {
    biased(-1000.0, max_chars)
}

fn steps(toy: &Toy) -> usize {
    toy.steps.lock().unwrap().len()
}

/// Lets so many more steps begin, and waits until they have.
fn step(toy: &Toy, more: usize) {
    let before = steps(toy);
    toy.hold(more);
    eventually("the steps were taken", || steps(toy) == before + more);
}

/// An engine with two running jobs, of which the first waits for its segment step and is held there.
fn waiting(boundary_wait: usize, deadline: Option<Duration>) -> (Arc<Toy>, weir::engine::Handle, [Events; 2]) {
    let (toy, deadline) = (Toy::new(), deadline.map(|after| Instant::now() + after));
    let engine = toy.engine(limits(boundary_wait));
    toy.hold(0);
    let first = engine.submit(closing(100), deadline).unwrap();
    step(&toy, 1);
    let second = engine.submit(open(100), None).unwrap();
    eventually("both have rows", || {
        step(&toy, 1);
        engine.load().running == 2
    });
    // The newcomer's prompt was fed at the latest now, and the row beside it closes a segment with every symbol.
    step(&toy, 2);
    (toy, engine, [first, second])
}

#[test]
fn texts_are_the_same_and_nobody_waits_longer_than_allowed() {
    for wait in 0..=3 {
        let toy = Toy::new();
        let engine = toy.engine(Limits { rows: 7, chunk: 16, ..limits(wait) });
        toy.hold(0);
        let jobs: Vec<_> = (0..64).map(|seed| (seed, engine.submit(varied(seed), None).unwrap())).collect();
        toy.release();
        for (seed, events) in jobs {
            let (said, timing) = read_timed(events).unwrap();
            assert_eq!(said, alone(varied(seed), 1000), "job {seed}, wait {wait}");
            assert!(timing.wait_steps <= timing.middle_steps * wait as u64, "{timing:?}");
        }
        let longest = toy.segment_steps.lock().unwrap().iter().map(|&(_, longest)| longest).max();
        assert_eq!(longest, Some(wait), "the most that a row has waited");
        at_rest(&toy, &engine);
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
        // A finish step follows every symbol step, for all rows together.
        assert_eq!(toy.finish_steps.load(SeqCst), steps(&toy), "wait {wait}");
        let steps = toy.segment_steps.lock().unwrap();
        (steps.len(), steps.iter().map(|&(rows, _)| rows).sum::<usize>())
    };
    let (at_once, gathered) = (segment_steps(0), segment_steps(3));
    assert_eq!(at_once.1, gathered.1, "each row has its segment steps");
    assert!(2 * gathered.0 < at_once.0, "{gathered:?}, {at_once:?}");
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
fn a_wait_is_told() {
    let toy = Toy::new();
    let engine = toy.engine(limits(2));
    toy.hold(1);
    let company = engine.submit(open(200), None).unwrap();
    eventually("it runs", || steps(&toy) == 1);
    let events = engine.submit(closing(5), None).unwrap();
    toy.release();
    let (said, timing) = read_timed(events).unwrap();
    assert_eq!(said, alone(closing(5), 1000));
    assert_eq!((timing.steps, timing.middle_steps, timing.wait_steps), (6, 5, 10));
    assert_eq!(read_timed(company).unwrap().1.wait_steps, 0);
}

#[test]
fn a_chunk_does_not_wait_and_takes_others_along() {
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
    at_rest(&toy, &engine);
}

#[test]
fn a_waiting_row_whose_reader_goes_frees_everything() {
    let (toy, engine, [first, second]) = waiting(64, None);
    let taken = toy.segment_steps.lock().unwrap().len();
    drop(first);
    step(&toy, 2);
    assert_eq!((toy.sequences(), engine.load().running), (1, 1));
    toy.release();
    assert_eq!(read(second).unwrap(), alone(open(100), 1000));
    assert_eq!(toy.segment_steps.lock().unwrap().len(), taken, "nobody else needed one");
    at_rest(&toy, &engine);
}

#[test]
fn a_deadline_passes_while_a_row_waits() {
    let (toy, engine, [mut first, second]) = waiting(64, Some(Duration::from_secs(2)));
    thread::sleep(Duration::from_millis(2_020));
    toy.release();
    let error = std::iter::from_fn(|| first.blocking_recv()).find_map(Result::err);
    assert!(matches!(error, Some(Error::Deadline { stage: "while decoding" })), "{error:?}");
    assert_eq!(read(second).unwrap(), alone(open(100), 1000));
    at_rest(&toy, &engine);
}

#[test]
fn nobody_waits_for_a_paused_row() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { events: 8, ..limits(64) });
    let slow = engine.submit(open(500), None).unwrap();
    eventually("it has paused", || slow.len() == 8);
    let paused_at = steps(&toy);
    let (said, timing) = read_timed(engine.submit(closing(50), None).unwrap()).unwrap();
    assert_eq!((said, timing.wait_steps), (alone(closing(50), 1000), 0));
    assert_eq!(steps(&toy), paused_at + 51, "a step for the prompt and each symbol");
    assert_eq!(read(slow).unwrap(), alone(open(500), 1000));
    at_rest(&toy, &engine);
}

#[test]
fn a_waiting_row_whose_reader_is_slow_holds_up_nobody() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { events: 8, ..limits(2) });
    let slow = engine.submit(closing(500), None).unwrap();
    for seed in 0..20 {
        assert_eq!(read(engine.submit(varied(seed), None).unwrap()).unwrap(), alone(varied(seed), 1000));
    }
    assert_eq!(read(slow).unwrap(), alone(closing(500), 1000));
    at_rest(&toy, &engine);
}

#[test]
fn a_failed_finish_step_spares_the_rows_that_wait() {
    let (toy, engine, [first, second]) = waiting(64, None);
    // one symbol: beside a chunk nobody waits
    let bad = engine.submit(Job::Generate(generate(&[PANIC_AT_FINISH], 5)), None).unwrap();
    toy.release();
    assert_eq!(read(bad).unwrap_err().code(), Code::Internal);
    assert_eq!(read(second).unwrap_err().code(), Code::Internal, "it was to be finished in the same step");
    assert_eq!(read(first).unwrap(), alone(closing(100), 1000));
    at_rest(&toy, &engine);
}

#[test]
fn a_failed_segment_step_ends_the_rows_that_waited_for_it_and_no_others() {
    let (toy, engine, [first, second]) = waiting(64, None);
    let bad = engine.submit(Job::Generate(generate(&[1, 2, PANIC_IN_MIDDLE], 5)), None).unwrap();
    toy.release();
    assert_eq!(read(bad).unwrap_err().code(), Code::Internal);
    assert_eq!(read(first).unwrap_err().code(), Code::Internal);
    assert_eq!(read(second).unwrap(), alone(open(100), 1000));
    at_rest(&toy, &engine);
}

/// Rows that wait: how long each has, and how many symbols it was fed.
fn rows(waited: &[(usize, usize)]) -> Vec<SequenceRow> {
    let toy = Toy::new();
    let row = |&(waited, fed): &(usize, usize)| {
        let mut row = SequenceRow::new(toy.begin(BoundaryOptions::default()).unwrap());
        row.set(&vec![0; fed], Want::Last);
        (row.status, row.waited) = (StepStatus::Waiting, waited);
        row
    };
    waited.iter().map(row).collect()
}

proptest! {
    #[test]
    fn the_rule_keeps_its_word(
        waited in vec((0usize..70, 1usize..3), 0..9), more in (0usize..70, 1usize..3), others: bool, wait in 0usize..=64,
    ) {
        let due = |waited: &[_], others, wait| is_due(rows(waited).iter(), others, wait);
        let found = due(&waited, others, wait);
        prop_assert!(!found || !waited.is_empty(), "a step for nobody");
        if !waited.is_empty() {
            prop_assert!(due(&waited, false, wait), "nobody to wait for");
            prop_assert!(due(&waited, others, 0), "at once");
            prop_assert!(found || waited.iter().all(|row| *row == (row.0.min(wait.saturating_sub(1)), 1)));
        }
        // Time, company and impatience only hasten it.
        let longer: Vec<_> = waited.iter().map(|&(steps, fed)| (steps + 1, fed)).collect();
        let joined = [&waited[..], &[more]].concat();
        prop_assert!(!found || due(&longer, others, wait) && due(&joined, others, wait));
        prop_assert!(!found || due(&waited, others, wait.saturating_sub(1)) && due(&waited, false, wait));
    }

    #[test]
    fn rounds_by_the_rule_go_on_and_keep_the_bound(
        closes in vec(vec(any::<bool>(), 1..40), 1..6), wait in 0usize..5,
    ) {
        let mut rows = rows(&vec![(0, 1); closes.len()]);
        rows.iter_mut().for_each(|row| row.status = StepStatus::Ready);
        let mut fed = vec![0; rows.len()];
        while fed.iter().zip(&closes).any(|(&fed, closes)| fed < closes.len()) {
            count_step(&mut rows);
            let mut stepped = 0;
            for (at, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.status == StepStatus::Ready) {
                if let Some(&closes) = closes[at].get(fed[at]) {
                    row.set(&[0], Want::Last);
                    row.status = if closes { StepStatus::Waiting } else { StepStatus::Ready };
                    fed[at] += 1;
                    stepped += 1;
                }
            }
            prop_assert!(stepped > 0, "all wait for each other");
            let waiting = |row: &&SequenceRow| row.status == StepStatus::Waiting;
            let others = (0..rows.len()).any(|at| rows[at].status == StepStatus::Ready && fed[at] < closes[at].len());
            if is_due(rows.iter().filter(waiting), others, wait) {
                rows.iter_mut().for_each(|row| row.status = StepStatus::Ready);
            }
            prop_assert!(rows.iter().filter(waiting).all(|row| row.waited < wait), "it will be longer than allowed");
            prop_assert!(rows.len() > 1 || rows[0].status == StepStatus::Ready, "a row alone waits");
        }
    }
}
