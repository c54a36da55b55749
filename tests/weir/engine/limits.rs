//! Limits, failures, and what observers see.

use super::*;
use crate::engine::harness::read_to_error;
use weir::engine::Phase;

fn limits(rows: usize, queue: usize) -> Limits {
    Limits { rows, queue, ..Limits::default() }
}

fn plain(max_chars: usize) -> Job {
    Job::Generate(generate(&[1], max_chars))
}

#[test]
fn without_a_queue_jobs_still_run() {
    let (toy, engine) = started(limits(1, 0));
    toy.gate.hold(0);
    let first = engine.submit(plain(3), None).unwrap();
    assert!(matches!(engine.submit(plain(3), None), Err(Error::QueueFull { .. })));
    toy.gate.release();
    read(first).unwrap();
    assert_idle(&toy, &engine);
}

#[test]
fn memory_limits_the_running_rows() {
    // The memory holds twenty symbols in total.
    let toy = Toy::with(MAX_SYMBOLS, 20 * BYTES);
    let engine = toy.engine(limits(8, 8));
    match engine.submit(plain(20), None) {
        Err(error @ Error::NeverFits { field: "stopping.max_chars", needed: 210, limit: 200 }) => {
            // The code does not suggest a retry.
            assert_eq!(error.code(), Code::InvalidArgument);
        }
        other => panic!("{other:?}"),
    }
    match engine.submit(Job::Generate(generate(&[1; 21], 1)), None) {
        Err(Error::NeverFits { field: "prompt", needed: 220, limit: 200 }) => {}
        other => panic!("{other:?}"),
    }
    toy.gate.hold(0);
    let jobs: Vec<_> = [8, 8, 9, 1].map(|max| engine.submit(plain(max), None).unwrap()).into();
    // The last would fit, but no job overtakes another.
    assert_eq!((engine.load().running, engine.load().queued), (2, 2));
    toy.gate.release();
    jobs.into_iter().for_each(|events| drop(read(events).unwrap()));
    assert_idle(&toy, &engine);
}

#[test]
fn the_worst_case_is_limited_by_the_context() {
    let toy = Toy::with(10, 10 * BYTES);
    let engine = toy.engine(limits(8, 8));
    assert_eq!(read(engine.submit(plain(10), None).unwrap()).unwrap().usage.generated_chars, 9);
}

#[test]
fn a_generation_has_bounded_work() {
    let (toy, engine) = started(Limits { request_work: 20, ..limits(1, 1) });
    let submit = |prompt: usize, max_chars| engine.submit(Job::Generate(generate(&vec![1; prompt], max_chars)), None);
    match submit(11, 10) {
        Err(error @ Error::TooMuchWork { field: "stopping.max_chars", work: 21, limit: 20 }) => {
            assert_eq!(error.code(), Code::InvalidArgument);
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(submit(21, 1), Err(Error::TooMuchWork { field: "prompt", work: 22, limit: 20 })));
    read(submit(10, 10).unwrap()).unwrap();
    assert_idle(&toy, &engine);
}

#[test]
fn a_request_runs_no_longer_than_its_limit_and_the_text_until_then_is_sent() {
    let toy = Toy::new();
    toy.step_ns.store(1_000_000, SeqCst);
    let request_time = Duration::from_millis(200);
    let engine = toy.engine(Limits { request_time, ..limits(1, 4) });
    let long = engine.submit(plain(4000), None).unwrap();
    let began = Instant::now();
    // The time in the queue does not count.
    let short = engine.submit(plain(1), None).unwrap();
    let (symbols, error) = read_to_error(long);
    toy.step_ns.store(0, SeqCst);
    assert!(matches!(error, Error::RanTooLong { limit } if limit == request_time), "{error:?}");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!((1..4000).contains(&symbols.len()) && began.elapsed() >= request_time);
    read(short).unwrap();
    // A request that is paused ends too.
    let paused = Toy::new();
    let engine = paused.engine(Limits { request_time, events: 4, ..limits(1, 4) });
    let (symbols, error) = {
        let events = engine.submit(plain(1000), None).unwrap();
        assert_idle(&paused, &engine);
        read_to_error(events)
    };
    assert!(matches!(error, Error::RanTooLong { .. }) && !symbols.is_empty(), "{error:?}");
    let (_, unlimited) = started(Limits { request_time: Duration::ZERO, ..limits(1, 4) });
    assert_eq!(read(unlimited.submit(plain(100), None).unwrap()).unwrap().usage.generated_chars, 100);
}

#[test]
fn a_deadline_passes_while_decoding_and_the_text_until_then_is_sent() {
    let (toy, engine) = started(limits(1, 4));
    toy.gate.hold(5);
    let mut request = generate(&[1], 1000);
    // The whole text is held back, because it may become a stop string.
    let text: Vec<u32> = alone(Job::Generate(request.clone()), 4).characters.iter().map(|c| c.symbol).collect();
    request.stopping.stop = vec![text[..100].to_vec()];
    let deadline = Instant::now() + Duration::from_secs(1);
    let events = engine.submit(Job::Generate(request), Some(deadline)).unwrap();
    eventually("the steps were run", || toy.steps.lock().unwrap().len() == 5);
    assert!(Instant::now() < deadline, "the machine is too slow for this deadline");
    std::thread::sleep(deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(10));
    toy.gate.release();
    let (symbols, error) = read_to_error(events);
    assert!(matches!(error, Error::Deadline { stage: "while decoding" }), "{error:?}");
    // The sixth step had begun, each produced a symbol, and no seventh ran.
    assert_eq!(symbols, text[..6]);
    assert_idle(&toy, &engine);
}

#[test]
fn a_paused_job_has_a_deadline_too() {
    let (toy, engine) = started(Limits { events: 4, ..limits(1, 4) });
    let mut request = generate(&[1], 1000);
    // One symbol waits for its boundary decision, another for the reader.
    request.details.boundaries = true;
    let slow = engine.submit(Job::Generate(request), Some(Instant::now() + Duration::from_millis(50))).unwrap();
    // Its row is freed although the reader does not read, and the generated symbols remain readable.
    eventually("the job starts", || !toy.steps.lock().unwrap().is_empty());
    assert_idle(&toy, &engine);
    let (symbols, error) = read_to_error(slow);
    assert!(matches!(error, Error::Deadline { stage: "while decoding" }), "{error:?}");
    assert_eq!(symbols.len(), toy.steps.lock().unwrap().len());
}

#[test]
fn a_cancelled_job_leaves_the_queue() {
    let (toy, engine) = started(limits(1, 1));
    let slow = engine.submit(plain(1000), None).unwrap();
    let waiting = engine.submit(plain(1), None).unwrap();
    eventually("the row has paused", || slow.len() == 256);
    drop(waiting);
    eventually("the queue is empty", || engine.load().queued == 0);
    drop(slow);
    assert_idle(&toy, &engine);
}

fn ends_with(symbol: u32) -> Job {
    Job::Generate(generate(&[1, 2, 3, symbol], 5))
}

/// Returns a job that never ends a segment, so its row takes part in no segment step.
fn unsegmented(max_chars: usize) -> Job {
    let mut request = generate(&[1, 2, 3], max_chars);
    request.sampling.logit_bias = vec![(0, -1000.0)];
    Job::Generate(request)
}

#[test]
fn a_failed_step_ends_its_batch_and_the_engine_continues() {
    let (toy, engine) = started(Limits { rows: 3, ..Limits::default() });
    for symbol in [PANIC, FAIL, PANIC_IN_MIDDLE, PANIC_AT_FINISH] {
        let steps = toy.begun.load(SeqCst);
        toy.gate.hold(0);
        let decoding = engine.submit(unsegmented(50), None).unwrap();
        eventually("its first step runs alone", || toy.begun.load(SeqCst) > steps);
        let failing = engine.submit(ends_with(symbol), None).unwrap();
        // Its prompt ends a segment, so it waits for a segment step together with the failing one.
        let partner = engine.submit(Job::Generate(generate(&[1, 0, 2], 50)), None).unwrap();
        let queued = engine.submit(varied(2), None).unwrap();
        toy.gate.release();
        // Exhausted memory has its own code.
        let code = if symbol == FAIL { Code::ResourceExhausted } else { Code::Internal };
        assert_eq!(read(failing).unwrap_err().code(), code);
        assert_eq!(read(partner).unwrap_err().code(), code);
        // Of the three, only the segment step runs without the row that decodes.
        match read(decoding) {
            Ok(output) => {
                assert_eq!(symbol, PANIC_IN_MIDDLE);
                assert_eq!(output, alone(unsegmented(50), 1000));
            }
            Err(error) => {
                assert_ne!(symbol, PANIC_IN_MIDDLE);
                assert_eq!(error.code(), code);
            }
        }
        assert_eq!(read(queued).unwrap(), alone(varied(2), 1000));
        assert_idle(&toy, &engine);
    }
    assert_eq!(engine.counters().restarts, 0);
}

#[test]
fn dropping_the_last_handle_ends_all_jobs() {
    let (toy, engine) = started(Limits { rows: 1, ..Limits::default() });
    let running = engine.submit(Job::Generate(generate(&[1], 4000)), None).unwrap();
    let queued = engine.submit(varied(1), None).unwrap();
    eventually("one job runs", || toy.sequences() == 1);
    let other = engine.clone();
    drop(engine);
    assert_eq!(other.load().running, 1, "a clone keeps the engine alive");
    drop(other);
    // The worker thread has been joined.
    assert_eq!((toy.sequences(), Arc::strong_count(&toy)), (0, 1));
    assert!(matches!(read(running), Err(Error::Draining { .. })));
    assert!(matches!(read(queued), Err(Error::Draining { .. })));
}

#[test]
fn a_broken_worker_fails_all_waiting_jobs() {
    let toy = Toy::new();
    // The model creates one scratch at the start, and none after a failed step.
    toy.scratches.store(1, SeqCst);
    let engine = toy.engine(Limits { rows: 1, ..Limits::default() });
    assert_eq!(engine.phase(), Phase::Open);
    toy.gate.hold(0);
    let mut running = engine.submit(ends_with(PANIC), None).unwrap();
    let mut queued = engine.submit(varied(1), None).unwrap();
    toy.gate.release();
    while running.blocking_recv().is_some_and(|event| event.is_ok()) {}
    assert_eq!(queued.blocking_recv().unwrap().unwrap_err().code(), Code::Internal);
    assert_eq!(engine.submit(varied(2), None).unwrap_err().code(), Code::Unavailable);
    assert_eq!(engine.phase(), Phase::Broken);
    // The memory of the running job is released.
    assert_idle(&toy, &engine);
    let wait = tokio::runtime::Builder::new_current_thread().build().unwrap();
    wait.block_on(engine.wait_until_broken());
}

/// The scheduler's state is locked during the panic. No request stays unanswered, and queue and caches work afterwards.
#[test]
fn a_panic_in_the_bookkeeping_ends_all_requests_and_the_worker_starts_over() {
    let (toy, engine) = started(Limits { rows: 2, cache_bytes: 1 << 20, ..Limits::default() });
    for restarts in 1..=3 {
        read(engine.submit(varied(1), None).unwrap()).unwrap();
        toy.gate.hold(0);
        let requests: Vec<_> = (0..6).map(|_| engine.submit(unsegmented(400), None).unwrap()).collect();
        eventually("two requests run", || toy.sequences() >= 2 && engine.load().queued == 4);
        toy.memory_panics.store(1, SeqCst);
        toy.gate.release();
        for events in requests {
            assert_eq!(read(events).unwrap_err().code(), Code::Internal);
        }
        assert_eq!(read(engine.submit(varied(9), None).unwrap()).unwrap(), alone(varied(9), 1000));
        assert_eq!((engine.phase(), engine.counters().restarts), (Phase::Open, restarts));
        assert_eq!(engine.load().running, 0);
    }
    // Once more within the period: the worker is broken.
    toy.memory_panics.store(1, SeqCst);
    assert_eq!(read(engine.submit(varied(1), None).unwrap()).unwrap_err().code(), Code::Internal);
    let wait = tokio::runtime::Builder::new_current_thread().build().unwrap();
    wait.block_on(engine.wait_until_broken());
    assert_eq!(engine.phase(), Phase::Broken);
    assert_eq!(engine.submit(varied(2), None).unwrap_err().code(), Code::Unavailable);
    assert_idle(&toy, &engine);
}

/// An observer that panics when a request ends: the request is answered, and no other is affected.
struct PanickingObserver;

impl Observer for PanickingObserver {
    fn record(&self, event: EngineEvent<'_>) {
        assert!(!matches!(event, EngineEvent::Finished { outcome: Err(_), .. }), "the test requests a panic");
    }
}

#[test]
fn a_panic_at_the_end_of_a_request_ends_no_other() {
    let toy = Toy::new();
    let model = Arc::clone(&toy) as Arc<dyn Model>;
    let engine = Handle::start_with(model, Limits::default(), Arc::new(PanickingObserver)).unwrap();
    toy.gate.hold(0);
    let valid = engine.submit(varied(5), None).unwrap();
    let failing = engine.submit(ends_with(NAN), None).unwrap();
    toy.gate.release();
    assert_eq!(read(failing).unwrap_err().code(), Code::Internal);
    assert_eq!(read(valid).unwrap(), alone(varied(5), 1000));
    assert_eq!((engine.phase(), engine.counters().restarts), (Phase::Open, 0));
    assert_idle(&toy, &engine);
}

#[cfg(target_os = "linux")]
#[test]
fn an_idle_engine_sleeps() {
    let toy = Toy::paged("idle", MAX_SYMBOLS, usize::MAX, 1, || false);
    let engine = toy.engine(Limits::default());
    read(engine.submit(varied(1), None).unwrap()).unwrap();
    let before = processor_ticks();
    thread::sleep(std::time::Duration::from_millis(300));
    let ticks = processor_ticks() - before;
    assert!(ticks <= 2, "{ticks} ticks");
    drop(engine);
}

/// Returns the processor time of the threads named `weir-idle`, in hundredths of a second.
#[cfg(target_os = "linux")]
fn processor_ticks() -> u64 {
    let mut ticks = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        // Other tests' threads may end meanwhile.
        let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { continue };
        if let Some((_, fields)) = stat.split_once("(weir-idle) ") {
            let fields: Vec<_> = fields.split_whitespace().collect();
            ticks.push(fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap());
        }
    }
    assert!(!ticks.is_empty(), "the worker has no thread");
    ticks.iter().sum()
}

/// Observer that records everything.
#[derive(Default)]
struct Recorder {
    steps: Mutex<Vec<(usize, usize, usize)>>,
    queued: Mutex<usize>,
    firsts: Mutex<Vec<Duration>>,
    /// For each gap, true if the character before it ended a segment.
    gaps: Mutex<Vec<bool>>,
    ends: Mutex<Vec<(Result<FinishReason, String>, Usage, Timing)>>,
}

impl Observer for Recorder {
    fn record(&self, event: EngineEvent<'_>) {
        match event {
            EngineEvent::Step { rows, fed, middle } => self.steps.lock().unwrap().push((rows, fed, middle)),
            EngineEvent::Admitted(_) => *self.queued.lock().unwrap() += 1,
            EngineEvent::FirstChar(after) => self.firsts.lock().unwrap().push(after),
            EngineEvent::Gap { boundary, .. } => self.gaps.lock().unwrap().push(boundary),
            EngineEvent::Finished { outcome, usage, timing } => {
                let outcome = outcome.cloned().map_err(Error::to_string);
                self.ends.lock().unwrap().push((outcome, *usage, *timing));
            }
            _ => {}
        }
    }
}

fn engine(toy: &Arc<Toy>, limits: Limits) -> (Handle, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    (Handle::start_with(Arc::clone(toy) as Arc<dyn Model>, limits, recorder.clone()).unwrap(), recorder)
}

#[test]
fn each_step_character_and_end_is_reported_once() {
    let toy = Toy::new();
    let (engine, recorder) = engine(&toy, Limits { rows: 5, chunk: 16, ..Limits::default() });
    let jobs: Vec<_> = (0..40).map(|seed| (seed, engine.submit(varied(seed), None).unwrap())).collect();
    let mut usages = Vec::new();
    for (seed, events) in jobs {
        let generates = matches!(varied(seed), Job::Generate(_));
        usages.push((generates, read(events).unwrap().usage));
    }
    assert_idle(&toy, &engine);
    let counters = engine.counters();
    let sum = |field: fn(&Usage) -> usize| usages.iter().map(|(_, usage)| field(usage)).sum::<usize>();

    assert_eq!(*recorder.queued.lock().unwrap(), 40);
    let ends = recorder.ends.lock().unwrap();
    assert!(ends.len() == 40 && ends.iter().all(|(outcome, ..)| outcome.is_ok()));
    assert_eq!(
        ends.iter().map(|(_, usage, _)| usage.generated_chars).sum::<usize>(),
        sum(|usage| usage.generated_chars)
    );

    // Each generation reports its first character, and a gap before every other one.
    let answers = usages.iter().filter(|(generates, usage)| *generates && usage.generated_chars > 0).count();
    assert_eq!(recorder.firsts.lock().unwrap().len(), answers);
    assert_eq!(recorder.gaps.lock().unwrap().len(), sum(|usage| usage.generated_chars) - answers);
    assert!(recorder.gaps.lock().unwrap().contains(&true) && recorder.gaps.lock().unwrap().contains(&false));

    // The counters equal the steps that the model ran.
    let steps = recorder.steps.lock().unwrap();
    let fed: Vec<_> = toy.steps.lock().unwrap().iter().map(|fed| (fed.len(), fed.iter().sum::<usize>())).collect();
    let reported: Vec<_> = steps.iter().filter(|step| step.0 > 0).map(|&(rows, fed, _)| (rows, fed)).collect();
    assert_eq!(reported, fed);
    let middle: Vec<_> = toy.segment_steps.lock().unwrap().iter().map(|&(rows, _)| rows).collect();
    assert_eq!(steps.iter().map(|step| step.2).filter(|&rows| rows > 0).collect::<Vec<_>>(), middle);

    // The counters equal the sums.
    assert_eq!((counters.running, counters.waiting), (0, 0));
    assert_eq!(counters.steps, fed.len() as u64);
    assert_eq!(counters.symbol_rows, fed.iter().map(|step| step.0 as u64).sum::<u64>());
    assert_eq!(counters.segment_steps, middle.len() as u64);
    assert_eq!(counters.segment_rows, middle.iter().sum::<usize>() as u64);
    assert_eq!(counters.prefill_chars, sum(|usage| usage.prompt_chars) as u64);
    assert_eq!(counters.generated_chars, sum(|usage| usage.generated_chars) as u64);
    assert_eq!(counters.middle_run, sum(|usage| usage.prompt_segments + usage.generated_segments) as u64);
    let symbols = sum(|usage| usage.prompt_chars + usage.generated_chars) as u64;
    assert_eq!(counters.middle_run + counters.middle_skipped, symbols);
}

#[test]
fn the_end_of_a_queued_request_is_reported() {
    let toy = Toy::new();
    let (engine, recorder) = engine(&toy, Limits { rows: 1, ..Limits::default() });
    toy.gate.hold(0);
    let first = engine.submit(varied(1), None).unwrap();
    eventually("the first has a row", || toy.sequences() == 1);
    let late = engine.submit(varied(2), Some(Instant::now() + Duration::from_millis(20))).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    toy.gate.release();
    assert!(matches!(read(late), Err(Error::Deadline { stage: "in the queue" })));
    read(first).unwrap();
    assert_idle(&toy, &engine);
    assert_eq!(*recorder.queued.lock().unwrap(), 1);
    let ends = recorder.ends.lock().unwrap();
    let (_, usage, timing) = ends.iter().find(|(outcome, ..)| outcome.is_err()).unwrap();
    assert_eq!((ends.len(), *usage), (2, Usage::default()));
    assert!(timing.queue_ns >= 20_000_000 && timing.total_ns == timing.queue_ns);
}

#[test]
fn a_long_step_is_reported_as_busy() {
    let toy = Toy::new();
    let (engine, _) = engine(&toy, Limits::default());
    eventually("the worker sleeps", || engine.busy_for().is_none());
    toy.gate.hold(0);
    let events = engine.submit(varied(1), None).unwrap();
    eventually("the step takes long", || engine.busy_for().is_some_and(|busy| busy > Duration::from_millis(20)));
    toy.gate.release();
    read(events).unwrap();
    eventually("the worker sleeps again", || engine.busy_for().is_none());
}
