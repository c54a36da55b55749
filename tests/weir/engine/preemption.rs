//! Memory is allocated as it is needed, so it can run out. Rows are preempted, and their output does not change.

use super::{
    jobs::*,
    resume::{checkpoint, models},
    toy_model::*,
};
use crate::support::{settings, text_symbols};
use std::sync::Arc;
use weir::{
    decode::{
        contract::{BoundaryOptions, Model},
        options::{Details, Generate, Score, WindowOptions},
        session::Session,
    },
    engine::{Handle, Job, Limits},
    family::load::{Settings, load},
};

/// Returns a request whose answer is long compared with the margin at its admission.
fn long(seed: u64, prompt: usize, max_chars: usize) -> Generate {
    let prompt: Vec<u32> = (0..prompt as u64).map(|index| (mix(seed * 999 + index) % 4) as u32).collect();
    let mut request = generate(&prompt, max_chars);
    request.sampling.seed = seed;
    request.sampling.repetition_penalty = 1.1;
    let bit = |bit: u64| seed & bit > 0;
    request.details = Details { echo: bit(1), logprobs: bit(2), top_logprobs: 0, boundaries: bit(4) };
    request
}

#[test]
fn a_preempted_job_has_the_output_of_an_undisturbed_one() {
    for (rows, cache_bytes) in [(8, 0), (3, 0), (8, 1 << 20)] {
        // All jobs together need far more memory.
        let toy = Toy::with(MAX_SYMBOLS, 700 * BYTES);
        let engine = toy.engine(Limits { rows, cache_bytes, chunk: 32, events: 400, ..Limits::default() });
        let jobs: Vec<_> = (0..24).map(|seed| long(seed, 1 + seed as usize * 3, 300)).collect();
        let submit = |job: &Generate| engine.submit(Job::Generate(job.clone()), None).unwrap();
        let events: Vec<_> = jobs.iter().map(submit).collect();
        for (seed, (job, events)) in jobs.into_iter().zip(events).enumerate() {
            let mut output = read(events).unwrap();
            assert!(cache_bytes > 0 || output.usage.cached_chars == 0);
            output.usage.cached_chars = 0;
            assert_eq!(output, alone(Job::Generate(job), 1000), "job {seed}, {rows} rows");
        }
        eventually("all jobs have ended", || engine.load().running == 0);
        let counters = engine.counters();
        assert!(counters.preemptions > 0, "memory did not run out: {counters:?}");
        // Each end may admit one row that is preempted again, together with later ones.
        assert!(counters.preemptions < 24 * 8, "rows preempt each other: {counters:?}");
        if cache_bytes == 0 {
            // Forks of this model are copies, which are not charged to the cache in advance.
            assert!(toy.peak() <= 700 * BYTES, "{} bytes", toy.peak());
            assert_idle(&toy, &engine);
        } else {
            assert_eq!(engine.load().bytes, 0);
        }
    }
}

#[test]
fn a_preempted_job_can_be_cancelled() {
    let toy = Toy::with(MAX_SYMBOLS, 400 * BYTES);
    let engine = toy.engine(Limits { rows: 4, events: 400, ..Limits::default() });
    let mut jobs: Vec<_> = (0..4).map(|seed| engine.submit(Job::Generate(long(seed, 5, 300)), None).unwrap()).collect();
    eventually("a row was preempted", || engine.counters().preemptions > 0);
    // The youngest row is preempted first.
    drop(jobs.pop());
    drop(jobs.pop());
    let rest: Vec<_> = jobs.into_iter().map(|events| read(events).unwrap()).collect();
    for (seed, output) in rest.into_iter().enumerate() {
        assert_eq!(output, alone(Job::Generate(long(seed as u64, 5, 300)), 1000));
    }
    assert_idle(&toy, &engine);
}

#[test]
fn a_thousand_cancellations_at_random_points_release_everything() {
    for cache_bytes in [0, 1 << 20] {
        let toy = Toy::with(MAX_SYMBOLS, 500 * BYTES);
        let limits = Limits { rows: 6, queue: 2400, chunk: 24, events: 400, cache_bytes, ..Limits::default() };
        let engine = toy.engine(limits);
        let jobs: Vec<_> = (0..1000)
            .map(|seed| engine.submit(Job::Generate(long(seed, 1 + seed as usize % 50, 250)), None).unwrap())
            .collect();
        // At this point some jobs are queued, some run, some are preempted, and some have ended.
        for (index, mut events) in jobs.into_iter().enumerate() {
            let read = mix(index as u64) % 5 * 40;
            (0..read).for_each(|_| drop(events.blocking_recv()));
        }
        eventually("everything is released", || {
            let load = engine.load();
            let counters = engine.counters();
            (load.queued, load.running, load.bytes, counters.running, counters.waiting) == (0, 0, 0, 0, 0)
                && toy.sequences() == engine.segment_cache_usage().entries
        });
        assert!(engine.counters().preemptions > 0);
    }
}

/// Returns the output of a request on a model with enough memory.
fn undisturbed(model: &dyn Model, request: &Generate) -> JobOutput {
    let session = Session::generate(request.clone(), model.card()).unwrap();
    let mut characters = Vec::new();
    let mut emit = |symbols: Vec<_>| {
        characters.extend(symbols);
        Ok(())
    };
    let (reason, usage) = session.run(model, 64, &mut emit).unwrap();
    JobOutput { characters, reason, usage }
}

/// Loads the same checkpoint with memory for `symbols` symbols in total.
fn tight(name: &str, model: &dyn Model, settings: &Settings, symbols: usize) -> Arc<dyn Model> {
    let null = settings.memory_bytes - model.memory().limit;
    let memory_bytes = model.bytes_for(symbols) + null;
    load(&checkpoint(name), &Settings { memory_bytes, ..settings.clone() }).unwrap()
}

#[test]
fn preemption_does_not_change_outputs_of_real_models() {
    let mut preemptions = 0;
    for (name, free, boundaries) in models() {
        let dtype = weir::kernels::Dtype::parse(free.card().dtype).unwrap();
        let model = tight(&name, &*free, &Settings { dtype, ..settings() }, 260);
        for cache_bytes in [0, model.memory().limit / 3] {
            let limits = Limits { rows: 4, chunk: 32, cache_bytes, ..Limits::default() };
            let engine = Handle::start(model.clone(), limits).unwrap();
            let request = |seed| {
                let long = long(seed, 20, 140);
                Generate { boundaries: boundaries.clone(), prompt: text_symbols(&*free, &long.prompt), ..long }
            };
            let jobs: Vec<_> = (0..4).map(|seed| engine.submit(Job::Generate(request(seed)), None).unwrap()).collect();
            for (seed, events) in jobs.into_iter().enumerate() {
                let mut output = read(events).unwrap_or_else(|error| panic!("{name}: {error}"));
                output.usage.cached_chars = 0;
                assert_eq!(output, undisturbed(&*free, &request(seed as u64)), "{name}, job {seed}");
            }
            preemptions += engine.counters().preemptions;
            drop(engine);
            assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
        }
    }
    assert!(preemptions > 10, "memory did not run out: {preemptions} preemptions");
}

#[test]
fn scoring_is_preempted_and_resumes() {
    let toy = Toy::with(MAX_SYMBOLS, 500 * BYTES);
    let engine = toy.engine(Limits { rows: 4, chunk: 16, ..Limits::default() });
    let score = |seed: u64| {
        let symbols = (0..200).map(|index| (mix(seed * 999 + index) % 4) as u32).collect();
        let boundaries = BoundaryOptions::default();
        let windows = (seed % 2 == 1).then_some(WindowOptions { length: 90, stride: 35 });
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
    assert_idle(&toy, &engine);
}
