//! The scheduler with a real engine: order, batches, preemption and shared segment steps.

use super::*;
use crate::engine::{editing::next, harness::run, resume::tight};
use proptest::prelude::*;
use weir::engine::codec;
use weir::models::contract::{count_step, is_due};

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
    toy.gate.hold(0);
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
    toy.gate.release();
    assert_eq!(order(&toy, jobs), [urgent, second, usual, low]);
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
    toy.gate.release();
    jobs.into_iter().chain([first]).for_each(|events| drop(read(events).unwrap()));
    assert_idle(&toy, &engine);
}

#[test]
fn the_total_length_of_queued_prompts_is_limited() {
    let toy = Toy::new();
    let (engine, first) = held(&toy, Limits { queued_symbols: 100, ..Limits::default() }, "");
    let score = |symbols| Job::Score(Score { symbols: vec![2; symbols], ..Score::default() });
    let full = |job, tenant| engine.submit(job, terms(tenant, 0)).unwrap_err();
    // The share also holds for the first request of a tenant.
    let refused = full(score(51), "a");
    assert!(matches!(refused, Error::QueueFull { what: "prompt symbols of one tenant", limit: 50, .. }), "{refused}");
    let second = engine.submit(score(50), terms("a", 0)).unwrap();
    let third = engine.submit(plain(25, 1), terms("b", 0)).unwrap();
    assert!(matches!(full(plain(27, 1), "c"), Error::QueueFull { what: "prompt symbols", limit: 100, .. }));
    let fourth = engine.submit(plain(13, 1), terms("c", 0)).unwrap();
    toy.gate.release();
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
    assert!(matches!(engine.submit(plain(3, 1), Some(Instant::now())), Err(Error::Deadline { .. })), "in the past");
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

fn small(rows: usize, queue: usize) -> Limits {
    Limits { rows, queue, chunk: 16, events: 8, ..Limits::default() }
}

#[test]
fn a_long_prompt_stalls_running_streams_by_a_chunk_at_most() {
    let toy = Toy::new();
    // The stream's events all fit in its buffer, because its reader starts late.
    let engine = toy.engine(Limits { events: 300, boundary_wait: 0, ..small(8, 8) });
    toy.gate.hold(1);
    let stream = engine.submit(Job::Generate(generate(&[1], 200)), None).unwrap();
    let prompts: Vec<_> = (0..3).map(|_| engine.submit(Job::Generate(generate(&[2; 500], 1)), None).unwrap()).collect();
    eventually("all have rows", || engine.load().running == 4);
    toy.gate.release();
    read(stream).unwrap();
    prompts.into_iter().for_each(|events| drop(read(events).unwrap()));
    let steps = toy.steps.lock().unwrap();
    // A step feeds at most one chunk of prompt symbols in addition to the sampled ones.
    assert!(steps.iter().all(|fed| fed.iter().sum::<usize>() <= 16 + 3), "{steps:?}");
    // The stream takes part in every step until it ends; the prompts share the chunks.
    assert!(steps.iter().take(1500 / 16).skip(2).all(|fed| fed.contains(&1)), "{steps:?}");
}

#[test]
fn a_cancelled_request_frees_its_row_within_a_step() {
    let (toy, engine) = started(small(1, 4));
    toy.gate.hold(3);
    let events = engine.submit(Job::Generate(generate(&[1], 4000)), None).unwrap();
    eventually("three steps were taken", || toy.steps.lock().unwrap().len() == 3);
    drop(events);
    toy.gate.hold(1);
    assert_idle(&toy, &engine);
    toy.gate.release();
}

#[test]
fn a_reader_that_does_not_read_pauses_only_its_own_row() {
    let (toy, engine) = started(small(4, 4));
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
    // A paused row is free once its reader cancels.
    let slow = engine.submit(Job::Generate(generate(&[1], 500)), None).unwrap();
    eventually("the row has paused", || slow.len() == 8);
    drop(slow);
    assert_idle(&toy, &engine);
}

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
fn a_thousand_cancellations_at_random_points_release_everything_and_disturb_no_other() {
    for cache_bytes in [0, 1 << 20] {
        let toy = Toy::with(MAX_SYMBOLS, 500 * BYTES);
        let limits = Limits { rows: 6, queue: 2400, chunk: 24, events: 400, cache_bytes, ..Limits::default() };
        let engine = toy.engine(limits);
        let job = |seed| Job::Generate(long(seed, 1 + seed as usize % 50, 250));
        let jobs: Vec<_> = (0..1000).map(|seed| engine.submit(job(seed), None).unwrap()).collect();
        // At this point some jobs are queued, some run, some are preempted, and some have ended.
        for (seed, mut events) in (0..).zip(jobs) {
            if seed % 20 == 0 {
                let mut output = read(events).unwrap();
                output.usage.cached_chars = 0;
                assert_eq!(output, alone(job(seed), 1000), "job {seed}");
                continue;
            }
            let events_read = mix(seed) % 5 * 40;
            (0..events_read).for_each(|_| drop(events.blocking_recv()));
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
                let expected = run(Session::generate(request(seed as u64), free.card()).unwrap(), &*free, 64);
                assert_eq!(output, expected, "{name}, job {seed}");
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
        let windows = (seed % 2 == 1).then_some(WindowOptions { length: 90, stride: 35 });
        Job::Score(Score { symbols, logprobs: true, top: 1, windows, ..Score::default() })
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
    toy.gate.hold(count);
    eventually("the steps were run", || step_count(toy) == before + count);
}

/// Returns an engine with two running jobs. The first waits for its segment step.
fn waiting(boundary_wait: usize, deadline: Option<Duration>) -> (Arc<Toy>, weir::engine::Handle, [Events; 2]) {
    let toy = Toy::new();
    let deadline = deadline.map(|after| Instant::now() + after);
    let engine = toy.engine(limits(boundary_wait));
    toy.gate.hold(0);
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
        let (toy, engine) = started(Limits { rows: 7, chunk: 16, ..limits(wait) });
        toy.gate.hold(0);
        let jobs: Vec<_> = (0..64).map(|seed| (seed, engine.submit(varied(seed), None).unwrap())).collect();
        toy.gate.release();
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
        let (toy, engine) = started(limits(wait));
        toy.gate.hold(0);
        let submit = |seed| {
            let mut request = generate(&[1], 200);
            request.sampling.seed = seed;
            engine.submit(Job::Generate(request), None).unwrap()
        };
        let jobs: Vec<_> = (0..8).map(submit).collect();
        toy.gate.release();
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
    let (toy, engine) = started(limits(64));
    for job in [closing(50), varied(7), varied(8)] {
        assert_eq!(read_timed(engine.submit(job, None).unwrap()).unwrap().1.wait_steps, 0);
    }
    assert!(toy.segment_steps.lock().unwrap().iter().all(|&step| step == (1, 0)));
}

#[test]
fn a_wait_is_counted_in_the_timing() {
    let (toy, engine) = started(limits(2));
    toy.gate.hold(1);
    let neighbor = engine.submit(open(200), None).unwrap();
    eventually("the first job runs", || step_count(&toy) == 1);
    let events = engine.submit(closing(5), None).unwrap();
    toy.gate.release();
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
    toy.gate.release();
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
    toy.gate.release();
    assert_eq!(read(second).unwrap(), alone(open(100), 1000));
    assert_eq!(toy.segment_steps.lock().unwrap().len(), before, "no other row needs a segment step");
    assert_idle(&toy, &engine);
}

#[test]
fn a_deadline_passes_while_a_row_waits() {
    let (toy, engine, [mut first, second]) = waiting(64, Some(Duration::from_secs(2)));
    thread::sleep(Duration::from_millis(2_020));
    toy.gate.release();
    let error = std::iter::from_fn(|| first.blocking_recv()).find_map(Result::err);
    assert!(matches!(error, Some(Error::Deadline { stage: "while decoding" })), "{error:?}");
    assert_eq!(read(second).unwrap(), alone(open(100), 1000));
    assert_idle(&toy, &engine);
}

#[test]
fn no_row_waits_for_a_paused_row() {
    let (toy, engine) = started(Limits { events: 8, ..limits(64) });
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
fn a_failed_step_ends_only_the_rows_in_it() {
    // the job's prompt is one symbol, because a longer chunk ends the wait of the first job, which is then in its segment step
    for (prompt, waiting_fails) in [(&[PANIC_AT_FINISH][..], false), (&[1, 2, PANIC_IN_MIDDLE], true)] {
        let (toy, engine, [first, second]) = waiting(64, None);
        let failing = engine.submit(Job::Generate(generate(prompt, 5)), None).unwrap();
        toy.gate.release();
        assert_eq!(read(failing).unwrap_err().code(), Code::Internal);
        let (lost, spared, job) =
            if waiting_fails { (first, second, open(100)) } else { (second, first, closing(100)) };
        assert_eq!(read(lost).unwrap_err().code(), Code::Internal);
        assert_eq!(read(spared).unwrap(), alone(job, 1000));
        assert_idle(&toy, &engine);
    }
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

/// A request that shares its steps with a flood of another tenant's takes few steps more than alone, and these are short: whatever
/// the flood consists of, each counts with its time, and gets a small part of a step.
#[tokio::test(start_paused = true)]
async fn a_flood_of_one_tenant_leaves_short_steps_to_another() {
    const STEP: Duration = Duration::from_millis(1);
    let text = |length: usize| vec![2; length];
    let windows = WindowOptions { length: 64, stride: 48 };
    let floods: [(&str, &dyn Fn() -> Job); 4] = [
        ("generate", &|| plain(1, 4000)),
        ("score", &|| Job::Score(Score { symbols: text(4000), ..Score::default() })),
        ("compress", &|| {
            Job::Code(codec::Code { input: codec::CodeInput::Compress(text(1000)), windows, progress: false })
        }),
        ("search", &|| Job::Next(next(&*Toy::new(), &text(14), 4))),
    ];
    for (kind, job) in floods {
        let toy = Toy::new();
        let model = Arc::clone(&toy) as Arc<dyn Model>;
        let (engine, worker) = Handle::with_task(model, Limits::default(), Arc::new(()));
        let worker = tokio::spawn(worker.run(|| STEP));
        let mut flood = JoinSet::new();
        let mut longest = (0, 0);
        for turn in 0..12 {
            while flood.len() < 160
                && let Ok(mut events) = engine.submit(job(), terms("flood", 7))
            {
                flood.spawn(async move { while events.recv().await.is_some() {} });
            }
            tokio::time::sleep(20 * STEP).await;
            let before = toy.steps.lock().unwrap().len();
            let mut events = engine.submit(plain(4, 8), terms("other", -8)).unwrap();
            while events.recv().await.is_some() {
                while flood.len() < 160
                    && let Ok(mut events) = engine.submit(job(), terms("flood", 7))
                {
                    flood.spawn(async move { while events.recv().await.is_some() {} });
                }
                while flood.try_join_next().is_some() {}
            }
            // the first ones come while steps are unlimited
            if turn > 1 {
                let steps = toy.steps.lock().unwrap()[before..].to_vec();
                longest = (longest.0.max(steps.len()), longest.1.max(steps.iter().flatten().sum()));
            }
        }
        // two turns of the flood, whose steps have at most 80 symbols, and ten steps of which it has 16
        assert!(longest.0 <= 25 && longest.1 <= 2 * 5 * 80 + 10 * 20, "{kind}: {longest:?}");
        flood.shutdown().await;
        drop(engine);
        worker.await.unwrap();
    }
}
