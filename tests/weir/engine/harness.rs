//! Jobs for the toy model, their expected outputs, and readers of their events.

use super::*;

/// Maximum length of a sequence, in symbols.
pub(super) const MAX_SYMBOLS: usize = 4096;

impl Toy {
    pub(super) fn new() -> Arc<Self> {
        Self::with(MAX_SYMBOLS, usize::MAX)
    }

    /// Creates a model for sequences of at most `max_symbols` symbols that share `limit` bytes.
    pub(super) fn with(max_symbols: usize, limit: usize) -> Arc<Self> {
        Self::paged("toy", max_symbols, limit, 1, || false)
    }
}

/// Starts an engine on a new model.
pub(super) fn started(limits: Limits) -> (Arc<Toy>, Handle) {
    let toy = Toy::new();
    let engine = toy.engine(limits);
    (toy, engine)
}

/// Starts an engine, and counts the entries that its segment cache evicts.
pub(super) fn counting_evictions(model: &Arc<dyn Model>, limits: Limits) -> (Handle, Arc<AtomicUsize>) {
    struct Evictions(Arc<AtomicUsize>);
    impl Observer for Evictions {
        fn record(&self, event: EngineEvent<'_>) {
            if let EngineEvent::CacheEvicted(entries) = event {
                self.0.fetch_add(entries as usize, SeqCst);
            }
        }
    }
    let evicted = Arc::default();
    let observer = Arc::new(Evictions(Arc::clone(&evicted)));
    (Handle::start_with(Arc::clone(model), limits, observer).unwrap(), evicted)
}

/// Returns a request with default options.
pub(super) fn generate(prompt: &[u32], max_chars: usize) -> Generate {
    let stopping = Stopping { max_chars, ..Stopping::default() };
    Generate { prompt: prompt.to_vec(), stopping, ..Generate::default() }
}

/// Returns a job whose options are derived from `seed`.
pub(super) fn varied(seed: u64) -> Job {
    let number = |purpose: u64, below: u64| (mix(seed.wrapping_mul(31) ^ purpose << 40) % below) as usize;
    let prompt: Vec<u32> = (0..=number(1, 90) as u64).map(|index| number(2 + index, SAMPLED.into()) as u32).collect();
    if number(100, 5) == 0 {
        return Job::Score(Score {
            symbols: prompt,
            logprobs: number(101, 2) == 0,
            top: number(102, 3),
            ..Score::default()
        });
    }
    let mut request = generate(&prompt, 1 + number(103, 60));
    request.sampling.seed = seed;
    request.sampling.temperature = number(104, 3) as f32 * 0.5;
    request.sampling.repetition_penalty = [1.0, 1.3][number(105, 2)];
    request.sampling.presence_penalty = [0.0, 0.4, -0.3][number(112, 3)];
    request.sampling.frequency_penalty = [0.0, 0.2][number(113, 2)];
    request.stopping.max_segments = [None, Some(4)][number(106, 2)];
    request.stopping.stop = [vec![], vec![vec![1, 2, 3], vec![2, 2]]][number(107, 2)].clone();
    request.details = Details {
        echo: number(108, 2) == 0,
        logprobs: number(109, 2) == 0,
        top_logprobs: number(110, 3),
        boundaries: number(111, 2) == 0,
    };
    Job::Generate(request)
}

/// Everything that a job emitted, in one comparable value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct JobOutput {
    pub(super) characters: Vec<EmittedSymbol>,
    pub(super) reason: FinishReason,
    pub(super) usage: Usage,
}

/// Returns the session of a job.
pub(super) fn session(job: Job, card: &Card) -> Session {
    let session = match job {
        Job::Generate(request) => Session::generate(request, card),
        Job::Score(request) => Session::score(request, card),
        Job::Code(request) => Session::code(request, card),
        Job::Next(request) => Session::next_symbol(request, card),
    };
    session.unwrap()
}

/// Runs a job without an engine.
pub(super) fn alone(job: Job, chunk: usize) -> JobOutput {
    let toy = Toy::new();
    run(session(job, toy.card()), &*toy, chunk)
}

pub(super) fn run(session: Session, model: &dyn Model, chunk: usize) -> JobOutput {
    let mut characters = Vec::new();
    let mut emit = |symbols: Vec<_>| {
        assert!(!symbols.is_empty());
        characters.extend(symbols);
        Ok(())
    };
    let (reason, usage) = session.run(model, chunk, &mut emit).unwrap();
    JobOutput { characters, reason, usage }
}

/// Returns a row for a session that has none, or has lost it.
pub(super) fn fresh_row(model: &dyn Model, session: &Session) -> SequenceRow {
    let mut state = model.begin(session.boundaries().clone()).unwrap();
    session.resume(&mut *state).unwrap();
    SequenceRow::new(state)
}

/// Runs a session on a row. Before each step, `change` may take the row away; it gets the number of the step and of the characters
/// emitted before it. Returns the output and the number of the last step.
pub(super) fn drive(
    session: &mut Session,
    model: &dyn Model,
    row: &mut SequenceRow,
    chunk: usize,
    mut change: impl FnMut(&mut Session, &mut SequenceRow, usize, usize),
) -> (JobOutput, usize) {
    let mut scratch = model.scratch();
    let mut characters = Vec::new();
    for step in 0.. {
        change(session, row, step, characters.len());
        let decoding = !session.is_prefilling();
        session.feed(row, chunk);
        assert!(!decoding || row.feed.len() == 1);
        advance(model, std::slice::from_mut(row), &[0], &mut scratch).unwrap();
        let progress = session.absorb(row).unwrap();
        characters.extend(session.take_output());
        assert_eq!(progress == SessionProgress::Prefilling, session.is_prefilling());
        if let SessionProgress::Finished(reason) = progress {
            return (JobOutput { characters, reason, usage: session.usage() }, step);
        }
    }
    unreachable!()
}

/// Reads a job's events to the end and checks their order.
pub(super) fn read(events: Events) -> Result<JobOutput> {
    read_timed(events).map(|(output, _)| output)
}

/// Same as [`read`], and returns the timing too.
pub(super) fn read_timed(mut events: Events) -> Result<(JobOutput, Timing)> {
    let Some(Event::Started { cached_chars }) = events.blocking_recv().unwrap_or(Err(Error::Cancelled)).map(Some)?
    else {
        panic!("the first event is Started");
    };
    let (output, timing) = read_rest(events, Vec::new())?;
    assert_eq!(output.usage.cached_chars, cached_chars, "the first and last event report the same");
    Ok((output, timing))
}

/// Reads a job that has emitted `characters` to its end.
pub(super) fn read_rest(mut events: Events, mut characters: Vec<EmittedSymbol>) -> Result<(JobOutput, Timing)> {
    loop {
        match events.blocking_recv().expect("the last event ends the job")? {
            Event::Started { .. } | Event::Coding(_) | Event::Coded(_) | Event::Next(_) | Event::Document(_) => {
                panic!("started twice, or a document")
            }
            Event::Characters(symbols) => characters.extend(symbols),
            Event::Finished { reason, usage, timing } => {
                assert!(events.blocking_recv().is_none(), "nothing follows the end");
                assert!(timing.steps > 0 && timing.total_ns >= timing.queue_ns + timing.prefill_ns);
                assert!(timing.total_ns >= timing.time_to_first_char_ns && timing.middle_steps <= timing.steps);
                return Ok((JobOutput { characters, reason, usage }, timing));
            }
        }
    }
}

/// Reads up to an error. Returns the symbols before it and the error.
pub(super) fn read_to_error(mut events: Events) -> (Vec<u32>, Error) {
    let mut symbols = Vec::new();
    loop {
        match events.blocking_recv().unwrap() {
            Ok(Event::Characters(characters)) => symbols.extend(characters.into_iter().map(|emitted| emitted.symbol)),
            Ok(Event::Started { .. }) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert!(events.blocking_recv().is_none(), "nothing follows the error");
                return (symbols, error);
            }
        }
    }
}

/// Polls `condition` until it holds. Panics after 20 seconds.
pub(super) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Waits until no request is queued, runs or holds memory.
pub(super) fn assert_idle(toy: &Toy, engine: &Handle) {
    eventually("everything is released", || {
        let load = engine.load();
        (load.queued, load.running, load.bytes, toy.sequences()) == (0, 0, 0, 0)
    });
}
