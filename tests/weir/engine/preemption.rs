//! Memory is given as it is needed, so it can run out: rows make way, and nobody can tell from what they say.

use super::{
    jobs::*,
    resume::{checkpoint, models},
    toy_model::*,
};
use crate::support::{of_text, settings};
use std::sync::Arc;
use weir::{
    decode::{
        contract::{BoundaryOptions, Model},
        options::{Details, Generate, Score, Windows},
        session::Session,
    },
    engine::{Handle, Job, Limits},
    family::load::{Settings, load},
};

/// A request whose answer is long beside the margin that it is let in with.
fn long(seed: u64, prompt: usize, max_chars: usize) -> Generate {
    let prompt: Vec<u32> = (0..prompt as u64).map(|at| (mix(seed * 999 + at) % 4) as u32).collect();
    let mut request = generate(&prompt, max_chars);
    request.sampling.seed = seed;
    request.sampling.repetition_penalty = 1.1;
    let bit = |bit: u64| seed & bit > 0;
    request.details = Details { echo: bit(1), logprobs: bit(2), top_logprobs: 0, boundaries: bit(4) };
    request
}

#[test]
fn jobs_that_make_way_say_what_they_say_undisturbed() {
    for (rows, cache_bytes) in [(8, 0), (3, 0), (8, 1 << 20)] {
        // all of them together come to need far more
        let toy = Toy::with(MAX_SYMBOLS, 700 * BYTES);
        let engine = toy.engine(Limits { rows, cache_bytes, chunk: 32, events: 400, ..Limits::default() });
        let jobs: Vec<_> = (0..24).map(|seed| long(seed, 1 + seed as usize * 3, 300)).collect();
        let submit = |job: &Generate| engine.submit(Job::Generate(job.clone()), None).unwrap();
        let events: Vec<_> = jobs.iter().map(submit).collect();
        for (seed, (job, events)) in jobs.into_iter().zip(events).enumerate() {
            let mut said = read(events).unwrap();
            assert!(cache_bytes > 0 || said.usage.cached_chars == 0);
            said.usage.cached_chars = 0;
            assert_eq!(said, alone(Job::Generate(job), 1000), "job {seed}, {rows} rows");
        }
        eventually("everybody has left", || engine.load().running == 0);
        let counters = engine.counters();
        assert!(counters.preemptions > 0, "memory was to run out: {counters:?}");
        // each end may let one in that has to make way again, with those that came after it
        assert!(counters.preemptions < 24 * 8, "rows made way to and fro: {counters:?}");
        if cache_bytes == 0 {
            // this model's forks are copies, which the cache is not charged for in advance
            assert!(toy.peak() <= 700 * BYTES, "{} bytes", toy.peak());
            at_rest(&toy, &engine);
        } else {
            assert_eq!(engine.load().bytes, 0);
        }
    }
}

#[test]
fn one_that_made_way_can_be_cancelled_and_has_its_deadline() {
    let toy = Toy::with(MAX_SYMBOLS, 400 * BYTES);
    let engine = toy.engine(Limits { rows: 4, events: 400, ..Limits::default() });
    let mut jobs: Vec<_> = (0..4).map(|seed| engine.submit(Job::Generate(long(seed, 5, 300)), None).unwrap()).collect();
    eventually("somebody made way", || engine.counters().preemptions > 0);
    // the youngest first
    drop(jobs.pop());
    drop(jobs.pop());
    let rest: Vec<_> = jobs.into_iter().map(|events| read(events).unwrap()).collect();
    for (seed, said) in rest.into_iter().enumerate() {
        assert_eq!(said, alone(Job::Generate(long(seed as u64, 5, 300)), 1000));
    }
    at_rest(&toy, &engine);
}

#[test]
fn a_thousand_cancellations_at_random_points_leave_nothing() {
    for cache_bytes in [0, 1 << 20] {
        let toy = Toy::with(MAX_SYMBOLS, 500 * BYTES);
        let limits = Limits { rows: 6, queue: 1200, chunk: 24, events: 400, cache_bytes, ..Limits::default() };
        let engine = toy.engine(limits);
        let jobs: Vec<_> = (0..1000)
            .map(|seed| engine.submit(Job::Generate(long(seed, 1 + seed as usize % 50, 250)), None).unwrap())
            .collect();
        // some while they wait, some while they run, some that made way, some that have ended
        for (at, mut events) in jobs.into_iter().enumerate() {
            let read = mix(at as u64) % 5 * 40;
            (0..read).for_each(|_| drop(events.blocking_recv()));
        }
        eventually("everything is given back", || {
            let (load, counters) = (engine.load(), engine.counters());
            let kept = engine.segment_cache_usage().entries;
            (load.queued, load.running, load.bytes, counters.running, counters.waiting) == (0, 0, 0, 0, 0)
                && toy.sequences() == kept
        });
        assert!(engine.counters().preemptions > 0);
    }
}

/// What a request says on a model with memory for everything.
fn undisturbed(model: &dyn Model, request: &Generate) -> Said {
    let session = Session::generate(request.clone(), model.card()).unwrap();
    let mut characters = Vec::new();
    let mut tell = |told: Vec<_>| {
        characters.extend(told);
        Ok(())
    };
    let (reason, usage) = session.run(model, 64, &mut tell).unwrap();
    Said { characters, reason, usage }
}

/// The same checkpoint with memory for sequences of so many symbols in all.
fn tight(name: &str, model: &dyn Model, like: &Settings, symbols: usize) -> Arc<dyn Model> {
    let null = like.memory_bytes - model.memory().limit;
    load(&checkpoint(name), &Settings { memory_bytes: model.bytes_for(symbols) + null, ..like.clone() }).unwrap()
}

#[test]
fn on_real_models_too() {
    let mut made_way = 0;
    for (name, free, boundaries) in models() {
        let dtype = weir::kernels::Dtype::parse(free.card().dtype).unwrap();
        let model = tight(&name, &*free, &Settings { dtype, ..settings() }, 260);
        for cache_bytes in [0, model.memory().limit / 3] {
            let limits = Limits { rows: 4, chunk: 32, cache_bytes, ..Limits::default() };
            let engine = Handle::start(model.clone(), limits).unwrap();
            let request = |seed| {
                let long = long(seed, 20, 140);
                Generate { boundaries: boundaries.clone(), prompt: of_text(&*free, &long.prompt), ..long }
            };
            let jobs: Vec<_> = (0..4).map(|seed| engine.submit(Job::Generate(request(seed)), None).unwrap()).collect();
            for (seed, events) in jobs.into_iter().enumerate() {
                let mut said = read(events).unwrap_or_else(|error| panic!("{name}: {error}"));
                said.usage.cached_chars = 0;
                assert_eq!(said, undisturbed(&*free, &request(seed as u64)), "{name}, job {seed}");
            }
            made_way += engine.counters().preemptions;
            drop(engine);
            assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
        }
    }
    assert!(made_way > 10, "memory was to run out: {made_way}");
}

#[test]
fn scoring_makes_way_too() {
    let toy = Toy::with(MAX_SYMBOLS, 500 * BYTES);
    let engine = toy.engine(Limits { rows: 4, chunk: 16, ..Limits::default() });
    let score = |seed: u64| {
        let symbols = (0..200).map(|at| (mix(seed * 999 + at) % 4) as u32).collect();
        let boundaries = BoundaryOptions::default();
        let windows = (seed % 2 == 1).then_some(Windows { length: 90, stride: 35 });
        Job::Score(Score { symbols, logprobs: true, top: 1, boundaries, windows })
    };
    let generating: Vec<_> =
        (0..3).map(|seed| engine.submit(Job::Generate(long(seed, 3, 200)), None).unwrap()).collect();
    let scoring: Vec<_> = (0..3).map(|seed| engine.submit(score(seed), None).unwrap()).collect();
    for (seed, events) in generating.into_iter().enumerate() {
        assert_eq!(read(events).unwrap(), alone(Job::Generate(long(seed as u64, 3, 200)), 1000));
    }
    for (seed, events) in scoring.into_iter().enumerate() {
        assert_eq!(read(events).unwrap(), alone(score(seed as u64), 1000));
    }
    at_rest(&toy, &engine);
}
