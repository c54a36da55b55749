//! The segment cache in the engine: what is found there changes nothing but the time it takes.

use super::{jobs::*, resume::models, toy_model::*};
use crate::support::{fixture, of_text, settings};
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};
use weir::{
    decode::{
        contract::{BoundaryMode, BoundaryOptions, Model, Noise},
        options::{Details, Generate, Score},
    },
    engine::{Events, Handle, Job, Limits, Terms},
    family::load::{Settings, load},
    kernels::Dtype,
};

const CACHE: usize = 64 << 20;

fn engine(model: &Arc<dyn Model>, cache_bytes: usize) -> Handle {
    Handle::start(model.clone(), Limits { cache_bytes, chunk: 48, events: 4096, ..Limits::default() }).unwrap()
}

/// A text with a space (id 0) every few letters.
fn text(seed: u64, symbols: usize) -> Vec<u32> {
    let letter = |at: u64| if mix(seed + at).is_multiple_of(5) { 0 } else { 1 + (mix(seed * 31 + at) % 20) as u32 };
    (0..symbols as u64).map(letter).collect()
}

fn request(prompt: &[u32], max_chars: usize, boundaries: &BoundaryOptions) -> Generate {
    let mut request = generate(prompt, max_chars);
    request.sampling.seed = 11;
    request.details = Details { echo: false, logprobs: true, top_logprobs: 2, boundaries: true };
    request.boundaries = boundaries.clone();
    request
}

fn of(tenant: &str) -> Terms {
    Terms { tenant: tenant.into(), ..Terms::default() }
}

fn submit(engine: &Handle, request: &Generate) -> Events {
    engine.submit(Job::Generate(request.clone()), None).unwrap()
}

/// What it says, and how many symbols of it came from the cache.
pub(super) fn ask(engine: &Handle, request: &Generate) -> (Said, usize) {
    let mut said = read(submit(engine, request)).unwrap();
    let cached = std::mem::take(&mut said.usage.cached_chars);
    (said, cached)
}

#[test]
fn a_hit_says_what_a_cold_run_says_on_every_kind_of_model() {
    for (name, model, boundaries) in models() {
        let (cold, warm) = (engine(&model, 0), engine(&model, CACHE));
        let shared = text(1, 120);
        let longer = [&shared[..], &text(2, 30)[..]].concat();
        let other = [&shared[..90], &text(3, 30)[..]].concat();
        for (prompt, least) in [(&shared, 0), (&shared, 80), (&longer, 80), (&other, 60), (&longer, 110)] {
            let request = request(&of_text(&*model, prompt), 20, &boundaries);
            let (expected, none) = ask(&cold, &request);
            let (said, cached) = ask(&warm, &request);
            assert_eq!(said, expected, "{name}");
            assert_eq!(none, 0);
            assert!(cached >= least && cached < prompt.len(), "{name}: {cached} of {}", prompt.len());
        }
        let usage = warm.segment_cache_usage();
        assert!(usage.hits == 4 && usage.misses == 1 && usage.bytes <= CACHE, "{name}: {usage:?}");
        assert_eq!(warm.load().bytes, 0, "{name}: nothing but the cache holds memory");
        drop((cold, warm));
        assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
    }
}

#[test]
fn a_conversation_goes_on_without_prefill() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-whitespace-english");
    for dtype in Dtype::ALL {
        let model = load(&folder, &Settings { dtype, ..settings() }).unwrap();
        let (cold, warm) = (engine(&model, 0), engine(&model, CACHE));
        let mut talk = model.card().vocabulary.encode("prompt", "it was the best of times it was the", 100).unwrap();
        for turn in 0..4 {
            let request = request(&talk, 60, &BoundaryOptions::default());
            let (expected, _) = ask(&cold, &request);
            let before = warm.counters().prefill_chars;
            let (said, cached) = ask(&warm, &request);
            assert_eq!(said, expected, "{dtype:?}, turn {turn}");
            // all but what follows the last segment's end, which is a word at most
            let fed = (warm.counters().prefill_chars - before) as usize;
            assert_eq!(fed + cached, talk.len());
            assert!(turn == 0 || fed < 40, "{dtype:?}, turn {turn}: {fed} symbols were fed");
            talk.extend(said.characters.iter().map(|character| character.symbol));
            talk.extend(model.card().vocabulary.encode("prompt", " and then", 100).unwrap());
        }
    }
}

#[test]
fn tenants_seeds_and_modes_do_not_meet() {
    let model = fixture("gumbel");
    let warm = engine(&model, CACHE);
    let prompt = text(5, 100);
    let cached = |tenant: &str, mode, seed| {
        let boundaries = BoundaryOptions { mode: Some(mode), noise: Noise::Seeded(seed), offset: 0 };
        let job = Job::Generate(request(&prompt, 3, &boundaries));
        read(warm.submit(job, of(tenant)).unwrap()).unwrap().usage.cached_chars > 0
    };
    let (threshold, sampled) = (BoundaryMode::Threshold, BoundaryMode::Sampled);
    assert!(!cached("a", threshold, 1) && cached("a", threshold, 1), "the same finds it");
    assert!(cached("a", threshold, 2), "where nothing is drawn no seed matters");
    assert!(!cached("b", threshold, 1), "another tenant's");
    assert!(!cached("a", sampled, 1) && cached("a", sampled, 1) && !cached("a", sampled, 2));
}

#[test]
fn scored_texts_serve_prompts_and_the_other_way_round() {
    let model = fixture("whitespaces");
    let (cold, warm) = (engine(&model, 0), engine(&model, CACHE));
    let symbols = text(7, 150);
    let score = |logprobs| {
        let (symbols, boundaries) = (symbols.clone(), BoundaryOptions::default());
        Job::Score(Score { symbols, logprobs, top: 0, boundaries, windows: None })
    };
    let say = |engine: &Handle, job: Job| read(engine.submit(job, None).unwrap()).unwrap();
    for logprobs in [true, false] {
        let said = say(&warm, score(logprobs));
        assert_eq!(said, say(&cold, score(logprobs)));
        assert_eq!(said.usage.cached_chars, 0, "what is told of a symbol is computed");
    }
    let request = request(&symbols, 10, &BoundaryOptions::default());
    let (said, cached) = ask(&warm, &request);
    assert!(said == ask(&cold, &request).0 && cached > 100);
}

#[test]
fn whoever_comes_while_a_prompt_is_answered_shares_it() {
    let model = fixture("whitespaces");
    let warm = engine(&model, CACHE);
    let shared = text(9, 200);
    // nobody has ended: the prompt was kept when it was through
    let request = request(&shared, 300, &BoundaryOptions::default());
    let mut first = submit(&warm, &request);
    while !matches!(first.blocking_recv().unwrap().unwrap(), weir::engine::Event::Characters(_)) {}
    assert!(ask(&warm, &request).1 > 150);
    drop(first);
}

#[test]
fn the_cache_makes_way_for_those_who_run() {
    let free = fixture("whitespaces");
    let null = settings().memory_bytes - free.memory().limit;
    let limit = free.bytes_for(300);
    let folder = crate::support::converted("whitespaces");
    let model = load(&folder, &Settings { memory_bytes: limit + null, ..settings() }).unwrap();
    // the cache may fill all of it
    let (cold, warm) = (engine(&free, 0), engine(&model, limit));
    for seed in 0..30 {
        let request = request(&text(seed, 100 + seed as usize * 3), 100, &BoundaryOptions::default());
        assert_eq!(ask(&warm, &request).0, ask(&cold, &request).0, "{seed}");
    }
    let usage = warm.segment_cache_usage();
    assert!(usage.evictions > 0 && usage.entries > 0, "{usage:?}");
    // several at a time, for whom there is room if nothing is cached; their own prompts are, while they go on
    let requests: Vec<_> =
        (0..12).map(|seed| request(&text(100 + seed, 40), 30, &BoundaryOptions::default())).collect();
    let expected: Vec<_> = requests.iter().map(|request| ask(&cold, request).0).collect();
    for (requests, expected) in requests.chunks(3).zip(expected.chunks(3)) {
        let running: Vec<_> = requests.iter().map(|request| submit(&warm, request)).collect();
        for (events, expected) in running.into_iter().zip(expected) {
            assert_eq!(&read(events).unwrap(), expected);
        }
    }
    assert_eq!(warm.counters().preemptions, 0, "nobody had to make way for what is cached");
    drop(warm);
    assert_eq!(model.memory().in_use, 0);
}

#[test]
fn a_deadline_counts_on_what_is_cached() {
    let toy = Toy::new();
    toy.slowness.store(10_000_000, SeqCst);
    let engine = toy.engine(Limits { chunk: 16, cache_bytes: 1 << 20, ..Limits::default() });
    // a segment ends with its last symbol but one; it is kept
    let prompt = [vec![2; 1598], vec![0, 1]].concat();
    let job = || Job::Generate(generate(&prompt, 1));
    read(engine.submit(job(), None).unwrap()).unwrap();
    let within = |time| Terms::from(Some(Instant::now() + time));
    let half = Duration::from_millis(500);
    assert_eq!(read(engine.submit(job(), within(half)).unwrap()).unwrap().usage.cached_chars, 1599);
    let stranger = Job::Generate(generate(&[vec![3; 1598], vec![0, 1]].concat(), 1));
    assert!(engine.submit(stranger, within(half)).is_err());
}

#[test]
fn failed_rows_are_not_kept() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { cache_bytes: 1 << 20, chunk: 4, ..Limits::default() });
    for symbol in [PANIC, FAIL, PANIC_IN_MIDDLE, PANIC_AT_FINISH, NAN] {
        let prompt = [vec![0; 8], vec![symbol]].concat();
        assert!(read(engine.submit(Job::Generate(generate(&prompt, 5)), None).unwrap()).is_err());
        assert_eq!(engine.segment_cache_usage().entries, 0);
    }
    assert_eq!((toy.sequences(), engine.load().bytes), (0, 0));
}
