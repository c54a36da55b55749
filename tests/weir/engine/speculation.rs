//! Speculation changes no output: jobs with drafts have the characters, reasons and counts of jobs without.

use super::{jobs::*, toy_model::*};
use proptest::prelude::*;
use std::{thread, time::Duration};
use weir::{
    decode::{
        contract::{Model, SequenceRow, advance},
        options::Generate,
        session::{Session, SessionProgress},
        speculation::{DraftBudget, Speculation, guess_rates::GuessRates},
        usage::Usage,
    },
    engine::{Events, Job, Limits},
};

fn limits(speculation: Speculation) -> Limits {
    Limits { rows: 5, queue: 300, chunk: 16, events: 300, speculation, ..Limits::default() }
}

/// The usage without the counts of speculation.
fn without_drafts(output: JobOutput) -> JobOutput {
    JobOutput { usage: Usage { drafted_chars: 0, accepted_chars: 0, ..output.usage }, ..output }
}

fn read_all(jobs: Vec<(u64, Events)>) -> Vec<(u64, JobOutput)> {
    let readers = jobs.into_iter().map(|(seed, events)| thread::spawn(move || (seed, read(events).unwrap())));
    readers.collect::<Vec<_>>().into_iter().map(|reader| reader.join().unwrap()).collect()
}

/// A request whose text repeats itself: one symbol is much more probable than the others.
fn repeating(symbol: u32, max_chars: usize) -> Generate {
    let mut request = generate(&[symbol; 8], max_chars);
    request.sampling.logit_bias = vec![(symbol, 100.0)];
    request
}

#[test]
fn outputs_do_not_depend_on_speculation() {
    for speculation in [Speculation::Auto, Speculation::UpTo(1), Speculation::UpTo(3), Speculation::UpTo(16)] {
        let toy = Toy::new();
        let engine = toy.engine(limits(speculation));
        let jobs = (0..120).map(|seed| (seed, engine.submit(varied(seed), None).unwrap())).collect();
        let mut drafted = 0;
        for (seed, output) in read_all(jobs) {
            drafted += output.usage.drafted_chars;
            assert!(output.usage.accepted_chars <= output.usage.drafted_chars, "job {seed}");
            assert_eq!(without_drafts(output), alone(varied(seed), 1000), "job {seed}, {speculation}");
        }
        assert!(drafted > 0 || speculation == Speculation::Auto, "{speculation}: nothing was drafted");
        assert_idle(&toy, &engine);
        let counters = engine.counters();
        assert_eq!(counters.drafted_chars as usize, drafted);
    }
}

#[test]
fn outputs_do_not_depend_on_speculation_under_memory_pressure() {
    let toy = Toy::with(MAX_SYMBOLS, 400 * BYTES);
    let engine = toy.engine(limits(Speculation::UpTo(8)));
    let jobs = (0..80).map(|seed| (seed, engine.submit(varied(seed), None).unwrap())).collect();
    for (seed, output) in read_all(jobs) {
        let cached_chars = output.usage.cached_chars;
        let expected = alone(varied(seed), 1000);
        let expected = JobOutput { usage: Usage { cached_chars, ..expected.usage }, ..expected };
        assert_eq!(without_drafts(output), expected, "job {seed}");
    }
    assert_idle(&toy, &engine);
}

#[test]
fn accepted_drafts_save_steps() {
    for (speculation, most_steps) in [(Speculation::UpTo(7), 200 / 8 + 4), (Speculation::Auto, 150)] {
        let toy = Toy::new();
        // A step of this model costs the same for any number of symbols. Without a duration, noise would decide what `Auto` measures.
        toy.step_ns.store(1_000_000, std::sync::atomic::Ordering::SeqCst);
        let engine = toy.engine(limits(speculation));
        let (output, timing) = read_timed(engine.submit(Job::Generate(repeating(1, 200)), None).unwrap()).unwrap();
        assert_eq!(output.usage.generated_chars, 200);
        assert!(output.characters.iter().all(|character| character.symbol == 1));
        assert!(timing.steps <= most_steps, "{speculation}: {} steps", timing.steps);
        assert!(output.usage.accepted_chars > 50 && output.usage.accepted_chars < 200);
        let saved = timing.steps + output.usage.accepted_chars as u64;
        // one step takes the prompt, and each other one a sampled symbol
        assert_eq!(saved, 201, "{speculation}");
        assert_idle(&toy, &engine);
    }
}

#[test]
fn drafts_end_before_their_first_boundary() {
    // symbol 0 ends a segment
    let toy = Toy::new();
    let engine = toy.engine(limits(Speculation::UpTo(7)));
    let output = read(engine.submit(Job::Generate(repeating(0, 50)), None).unwrap()).unwrap();
    assert_eq!((output.usage.generated_segments, output.usage.accepted_chars), (50, 0));
    let mut request = generate(&[1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0], 40);
    request.details.boundaries = true;
    let toy = Toy::new();
    let engine = toy.engine(limits(Speculation::UpTo(7)));
    let output = read(engine.submit(Job::Generate(request.clone()), None).unwrap()).unwrap();
    assert_eq!(without_drafts(output), alone(Job::Generate(request), 7));
    assert!(toy.segment_steps.lock().unwrap().iter().all(|&(rows, _)| rows == 1));
}

#[test]
fn a_request_can_choose() {
    let toy = Toy::new();
    for (engine_wide, own, drafts) in [
        (Speculation::Off, None, false),
        (Speculation::Off, Some(Speculation::UpTo(3)), true),
        (Speculation::UpTo(3), None, true),
        (Speculation::UpTo(3), Some(Speculation::Off), false),
    ] {
        let engine = toy.engine(limits(engine_wide));
        let request = Generate { speculation: own, ..repeating(2, 60) };
        let output = read(engine.submit(Job::Generate(request), None).unwrap()).unwrap();
        assert_eq!(output.usage.drafted_chars > 0, drafts, "{engine_wide} {own:?}");
    }
}

#[test]
fn a_full_step_feeds_no_drafts() {
    let toy = Toy::new();
    // four rows fill the step
    let engine = toy.engine(Limits { chunk: 4, rows: 4, ..limits(Speculation::UpTo(7)) });
    toy.hold(0);
    let jobs: Vec<_> = (0..4).map(|_| engine.submit(Job::Generate(repeating(1, 30)), None).unwrap()).collect();
    eventually("all have rows", || engine.load().running == 4);
    toy.release();
    jobs.into_iter().for_each(|events| drop(read(events).unwrap()));
    let steps = toy.steps.lock().unwrap();
    assert!(steps.iter().all(|fed| fed.iter().sum::<usize>() <= 4 + 3), "{steps:?}");
}

#[test]
fn a_deadline_ends_a_generation_with_drafts() {
    let toy = Toy::new();
    toy.step_ns.store(1_000_000, std::sync::atomic::Ordering::SeqCst);
    let engine = toy.engine(Limits { events: 4000, ..limits(Speculation::UpTo(2)) });
    let deadline = std::time::Instant::now() + Duration::from_millis(60);
    let events = engine.submit(Job::Generate(repeating(1, 3000)), Some(deadline)).unwrap();
    assert!(read(events).is_err());
    assert_idle(&toy, &engine);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_session_with_drafts_equals_one_without(seed in 0u64..100_000, length in 1usize..16) {
        let Job::Generate(request) = varied(seed) else { return Ok(()) };
        let toy = Toy::new();
        let speculation = Some(Speculation::UpTo(length));
        let mut session = Session::generate(Generate { speculation, ..request.clone() }, toy.card()).unwrap();
        let mut row = SequenceRow::new(toy.begin(session.boundaries().clone()).unwrap());
        let mut scratch = toy.scratch();
        let mut characters = Vec::new();
        let mut rates = GuessRates::default();
        let reason = loop {
            let mut budget =
                DraftBudget { free: 100, fixed: 4.0, symbols: 1, expected: 1.0, feeds_prompts: false };
            session.draft(&mut budget, &mut rates);
            session.feed(&mut row, 9);
            toy.symbol_step(std::slice::from_mut(&mut row), &[0], &mut scratch).unwrap();
            if session.has_draft() {
                row.cut_draft().unwrap();
            }
            toy.segment_step(std::slice::from_mut(&mut row), &[0], &mut scratch).unwrap();
            toy.finish_step(std::slice::from_mut(&mut row), &[0], &mut scratch).unwrap();
            let progress = session.absorb(&mut row).unwrap();
            characters.extend(session.take_output());
            if let SessionProgress::Finished(reason) = progress {
                break reason;
            }
        };
        let output = JobOutput { characters, reason, usage: session.usage() };
        // the state holds exactly the fed symbols
        prop_assert_eq!(row.state.len(), session.text_symbols());
        prop_assert_eq!(without_drafts(output), alone(Job::Generate(request), 9));
        // and continues as one that was fed them alone
        let text: Vec<u32> = session.text().after(0).unwrap().to_vec();
        row.set(&[1], weir::decode::contract::Want::Last);
        advance(&*toy as &dyn Model, std::slice::from_mut(&mut row), &[0], &mut scratch).unwrap();
        let expected = logits_after(&[text, vec![1]].concat());
        prop_assert_eq!(&row.logits[..], &expected[..]);
    }
}
