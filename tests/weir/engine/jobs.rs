//! Jobs for the toy, and what they say: in the order in which it must be said.

use super::toy_model::{SAMPLED, Toy, mix};
use weir::{
    decode::{
        contract::{BoundaryOptions, Model},
        options::{Details, Generate, Sampling, Score, Stopping},
        session::Session,
        usage::Timing,
    },
    engine::{Event, Events, Handle, Job},
    error::{Error, Result},
};

/// A plain request.
pub(super) fn generate(prompt: &[u32], max_chars: usize) -> Generate {
    let stopping = Stopping {
        max_chars,
        min_chars: 0,
        max_segments: None,
        stop: Vec::new(),
        include_stop: false,
        ignore_end: false,
    };
    Generate {
        prompt: prompt.to_vec(),
        sampling: Sampling::default(),
        stopping,
        details: Details::default(),
        boundaries: BoundaryOptions::default(),
    }
}

/// A request with this seed and options that follow from it.
pub(super) fn varied(seed: u64) -> Job {
    let number = |purpose: u64, below: u64| (mix(seed.wrapping_mul(31) ^ purpose << 40) % below) as usize;
    let prompt: Vec<u32> = (0..=number(1, 90) as u64).map(|at| number(2 + at, SAMPLED.into()) as u32).collect();
    if number(100, 5) == 0 {
        let (symbols, boundaries) = (prompt, BoundaryOptions::default());
        return Job::Score(Score {
            symbols,
            logprobs: number(101, 2) == 0,
            top: number(102, 3),
            boundaries,
            windows: None,
        });
    }
    let mut request = generate(&prompt, 1 + number(103, 60));
    request.sampling.seed = seed;
    request.sampling.temperature = number(104, 3) as f32 * 0.5;
    request.sampling.repetition_penalty = [1.0, 1.3][number(105, 2)];
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

/// All that a job said, as one comparable thing.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Said {
    pub(super) characters: Vec<weir::decode::options::EmittedSymbol>,
    pub(super) reason: weir::decode::options::FinishReason,
    pub(super) usage: weir::decode::usage::Usage,
}

/// The same job without an engine.
pub(super) fn alone(job: Job, chunk: usize) -> Said {
    let toy = Toy::new();
    let session = match job {
        Job::Generate(request) => Session::generate(request, toy.card()),
        Job::Score(request) => Session::score(request, toy.card()),
    };
    run(session.unwrap(), &toy, chunk)
}

pub(super) fn run(session: Session, toy: &Toy, chunk: usize) -> Said {
    let mut characters = Vec::new();
    let mut tell = |told: Vec<_>| {
        assert!(!told.is_empty());
        characters.extend(told);
        Ok(())
    };
    let (reason, usage) = session.run(toy, chunk, &mut tell).unwrap();
    Said { characters, reason, usage }
}

/// Reads a job to its end, and checks the order of what it says.
pub(super) fn read(events: Events) -> Result<Said> {
    read_timed(events).map(|(said, _)| said)
}

/// The same, with where its time went.
pub(super) fn read_timed(mut events: Events) -> Result<(Said, Timing)> {
    let mut characters = Vec::new();
    let Some(Event::Started { cached_chars }) = events.blocking_recv().unwrap_or(Err(Error::Cancelled)).map(Some)?
    else {
        panic!("the first event tells the start");
    };
    loop {
        match events.blocking_recv().expect("the last event tells the end")? {
            Event::Started { .. } | Event::Document(_) => panic!("started twice, or a document"),
            Event::Characters(told) => characters.extend(told),
            Event::Finished { reason, usage, timing } => {
                assert_eq!(usage.cached_chars, cached_chars, "told at the start and at the end");
                assert!(events.blocking_recv().is_none(), "nothing follows the end");
                assert!(timing.steps > 0 && timing.total_ns >= timing.queue_ns + timing.prefill_ns);
                assert!(timing.total_ns >= timing.time_to_first_char_ns && timing.middle_steps <= timing.steps);
                return Ok((Said { characters, reason, usage }, timing));
            }
        }
    }
}

/// Waits for what must come soon.
pub(super) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !holds() {
        assert!(std::time::Instant::now() < end, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Nothing waits, runs or occupies memory.
pub(super) fn at_rest(toy: &Toy, engine: &Handle) {
    eventually("everything is given back", || {
        let load = engine.load();
        (load.queued, load.running, load.bytes, toy.sequences()) == (0, 0, 0, 0)
    });
}
