//! The segment cache in the engine: a hit changes only the time of an answer.

use super::{jobs::*, resume::models, toy_model::*};
use crate::support::{fixture, settings, text_symbols};
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

/// Returns a text with a space (id 0) every few letters.
fn text(seed: u64, symbols: usize) -> Vec<u32> {
    let letter = |i: u64| if mix(seed + i).is_multiple_of(5) { 0 } else { 1 + (mix(seed * 31 + i) % 20) as u32 };
    (0..symbols as u64).map(letter).collect()
}

fn request(prompt: &[u32], max_chars: usize, boundaries: &BoundaryOptions) -> Generate {
    let mut request = generate(prompt, max_chars);
    request.sampling.seed = 11;
    request.details = Details { echo: false, logprobs: true, top_logprobs: 2, boundaries: true };
    request.boundaries = boundaries.clone();
    request
}

fn terms_of(tenant: &str) -> Terms {
    Terms { tenant: tenant.into(), ..Terms::default() }
}

fn submit(engine: &Handle, request: &Generate) -> Events {
    engine.submit(Job::Generate(request.clone()), None).unwrap()
}

/// Runs a request. Returns its output and the number of its symbols from the cache.
pub(super) fn ask(engine: &Handle, request: &Generate) -> (JobOutput, usize) {
    let mut output = read(submit(engine, request)).unwrap();
    let cached = std::mem::take(&mut output.usage.cached_chars);
    (output, cached)
}

#[test]
fn a_cache_hit_equals_a_cold_run_on_every_kind_of_model() {
    for (name, model, boundaries) in models() {
        let cold = engine(&model, 0);
        let warm = engine(&model, CACHE);
        let shared = text(1, 120);
        let longer = [&shared[..], &text(2, 30)[..]].concat();
        let other = [&shared[..90], &text(3, 30)[..]].concat();
        for (prompt, least) in [(&shared, 0), (&shared, 80), (&longer, 80), (&other, 60), (&longer, 110)] {
            let request = request(&text_symbols(&*model, prompt), 20, &boundaries);
            let (expected, none) = ask(&cold, &request);
            let (output, cached) = ask(&warm, &request);
            assert_eq!(output, expected, "{name}");
            assert_eq!(none, 0);
            assert!(cached >= least && cached < prompt.len(), "{name}: {cached} of {}", prompt.len());
        }
        let usage = warm.segment_cache_usage();
        assert!(usage.hits == 4 && usage.misses == 1 && usage.bytes <= CACHE, "{name}: {usage:?}");
        assert_eq!(warm.load().bytes, 0, "{name}: a row still holds memory");
        drop((cold, warm));
        assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
    }
}

#[test]
fn a_conversation_continues_without_prefill() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-english");
    for dtype in Dtype::ALL {
        let model = load(&folder, &Settings { dtype, ..settings() }).unwrap();
        let cold = engine(&model, 0);
        let warm = engine(&model, CACHE);
        let mut chat = model.card().vocabulary.encode("prompt", "it was the best of times it was the", 100).unwrap();
        for turn in 0..4 {
            let request = request(&chat, 60, &BoundaryOptions::default());
            let (expected, _) = ask(&cold, &request);
            let before = warm.counters().prefill_chars;
            let (output, cached) = ask(&warm, &request);
            assert_eq!(output, expected, "{dtype:?}, turn {turn}");
            // The row feeds only the symbols after the last segment's end, at most one word.
            let fed = (warm.counters().prefill_chars - before) as usize;
            assert_eq!(fed + cached, chat.len());
            assert!(turn == 0 || fed < 40, "{dtype:?}, turn {turn}: {fed} symbols were fed");
            chat.extend(output.characters.iter().map(|character| character.symbol));
            chat.extend(model.card().vocabulary.encode("prompt", " and then", 100).unwrap());
        }
    }
}

#[test]
fn tenants_seeds_and_modes_share_no_cache_entry() {
    let model = fixture("gumbel");
    let warm = engine(&model, CACHE);
    let prompt = text(5, 100);
    let cached = |tenant: &str, mode, seed| {
        let boundaries = BoundaryOptions { mode: Some(mode), noise: Noise::Seeded(seed), offset: 0 };
        let job = Job::Generate(request(&prompt, 3, &boundaries));
        read(warm.submit(job, terms_of(tenant)).unwrap()).unwrap().usage.cached_chars > 0
    };
    let threshold = BoundaryMode::Threshold;
    let sampled = BoundaryMode::Sampled;
    assert!(!cached("a", threshold, 1) && cached("a", threshold, 1), "the same request hits");
    assert!(cached("a", threshold, 2), "the seed matters only to sampled boundaries");
    assert!(!cached("b", threshold, 1), "the entry of another tenant");
    assert!(!cached("a", sampled, 1) && cached("a", sampled, 1) && !cached("a", sampled, 2));
}

#[test]
fn a_scored_text_is_a_cache_entry_for_prompts() {
    let model = fixture("whitespaces");
    let cold = engine(&model, 0);
    let warm = engine(&model, CACHE);
    let symbols = text(7, 150);
    let score = |logprobs| {
        let boundaries = BoundaryOptions::default();
        Job::Score(Score { symbols: symbols.clone(), logprobs, top: 0, boundaries, windows: None })
    };
    let run = |engine: &Handle, job: Job| read(engine.submit(job, None).unwrap()).unwrap();
    for logprobs in [true, false] {
        let output = run(&warm, score(logprobs));
        assert_eq!(output, run(&cold, score(logprobs)));
        assert_eq!(output.usage.cached_chars, 0, "a reported symbol is always computed");
    }
    let request = request(&symbols, 10, &BoundaryOptions::default());
    let (output, cached) = ask(&warm, &request);
    assert!(output == ask(&cold, &request).0 && cached > 100);
}

#[test]
fn a_prompt_is_shared_while_its_answer_is_generated() {
    let model = fixture("whitespaces");
    let warm = engine(&model, CACHE);
    let shared = text(9, 200);
    // No request has ended: the prompt is cached at the end of its prefill.
    let request = request(&shared, 300, &BoundaryOptions::default());
    let mut first = submit(&warm, &request);
    while !matches!(first.blocking_recv().unwrap().unwrap(), weir::engine::Event::Characters(_)) {}
    assert!(ask(&warm, &request).1 > 150);
    drop(first);
}

#[test]
fn the_cache_is_evicted_for_running_rows() {
    let free = fixture("whitespaces");
    let null = settings().memory_bytes - free.memory().limit;
    let limit = free.bytes_for(300);
    let folder = crate::support::converted("whitespaces");
    let model = load(&folder, &Settings { memory_bytes: limit + null, ..settings() }).unwrap();
    let cold = engine(&free, 0);
    // The cache may fill all memory.
    let warm = engine(&model, limit);
    for seed in 0..30 {
        let request = request(&text(seed, 100 + seed as usize * 3), 100, &BoundaryOptions::default());
        assert_eq!(ask(&warm, &request).0, ask(&cold, &request).0, "{seed}");
    }
    let usage = warm.segment_cache_usage();
    assert!(usage.evictions > 0 && usage.entries > 0, "{usage:?}");
    // Several requests fit at a time without cached entries. Their prompts are cached while they run.
    let requests: Vec<_> =
        (0..12).map(|seed| request(&text(100 + seed, 40), 30, &BoundaryOptions::default())).collect();
    let expected: Vec<_> = requests.iter().map(|request| ask(&cold, request).0).collect();
    for (requests, expected) in requests.chunks(3).zip(expected.chunks(3)) {
        let running: Vec<_> = requests.iter().map(|request| submit(&warm, request)).collect();
        for (events, expected) in running.into_iter().zip(expected) {
            assert_eq!(&read(events).unwrap(), expected);
        }
    }
    assert_eq!(warm.counters().preemptions, 0, "a row was preempted for the cache");
    drop(warm);
    assert_eq!(model.memory().in_use, 0);
}

#[test]
fn a_deadline_estimate_counts_cached_symbols() {
    let toy = Toy::new();
    toy.step_ns.store(10_000_000, SeqCst);
    let engine = toy.engine(Limits { chunk: 16, cache_bytes: 1 << 20, ..Limits::default() });
    // A segment ends at the last symbol but one, and is cached.
    let prompt = [vec![2; 1598], vec![0, 1]].concat();
    let job = || Job::Generate(generate(&prompt, 1));
    read(engine.submit(job(), None).unwrap()).unwrap();
    let deadline_in = |time| Terms::from(Some(Instant::now() + time));
    let half = Duration::from_millis(500);
    assert_eq!(read(engine.submit(job(), deadline_in(half)).unwrap()).unwrap().usage.cached_chars, 1599);
    let uncached = Job::Generate(generate(&[vec![3; 1598], vec![0, 1]].concat(), 1));
    assert!(engine.submit(uncached, deadline_in(half)).is_err());
}

/// The second request continues from the states of the first one, although both arrive before there are any.
#[test]
fn a_deadline_estimate_counts_a_shared_text_once() {
    let toy = Toy::new();
    toy.step_ns.store(10_000_000, SeqCst);
    let engine = toy.engine(Limits { rows: 1, chunk: 16, cache_bytes: 1 << 20, ..Limits::default() });
    let job = |start: Vec<u32>, rest: u32| Job::Generate(generate(&[start, vec![rest; 3198], vec![0, 1]].concat(), 1));
    // After this request the rate is known: at most 1,600 symbols a second. A text takes 2 s at least.
    read(engine.submit(job(vec![], 3), None).unwrap()).unwrap();
    let first = engine.submit(job(vec![], 2), None).unwrap();
    let soon = || Terms::from(Some(Instant::now() + Duration::from_secs(3)));
    assert!(engine.submit(job(vec![], 4), soon()).is_err(), "both texts must be read");
    assert!(engine.submit(job(vec![2; 20], 4), soon()).is_err(), "most of both texts must be read");
    drop(engine.submit(job(vec![], 2), soon()).unwrap());
    drop(first);
}

#[test]
fn failed_rows_are_not_cached() {
    let toy = Toy::new();
    let engine = toy.engine(Limits { cache_bytes: 1 << 20, chunk: 4, ..Limits::default() });
    for symbol in [PANIC, FAIL, PANIC_IN_MIDDLE, PANIC_AT_FINISH, NAN] {
        let prompt = [vec![0; 8], vec![symbol]].concat();
        assert!(read(engine.submit(Job::Generate(generate(&prompt, 5)), None).unwrap()).is_err());
        assert_eq!(engine.segment_cache_usage().entries, 0);
    }
    assert_eq!((toy.sequences(), engine.load().bytes), (0, 0));
}

/// The pool hands out pages filled with NaN in builds with debug assertions, such as this one. So an answer that depends on what a
/// page held before is an error, and differs from that of a model with pages that no other request used.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "pages keep their contents without debug assertions")]
fn pages_of_another_tenant_leave_no_trace() {
    for ((name, used, boundaries), (_, fresh, _)) in models().into_iter().zip(models()) {
        for model in [&used, &fresh] {
            assert_eq!(model.memory().in_use, 0, "{name}");
        }
        let answers = |model: &Arc<dyn Model>, tenant: &str, seed: u64| {
            let engine = engine(model, 0);
            // longer than a page, and not a multiple of it
            let mut request = request(&text_symbols(&**model, &text(seed, 150)), 30, &boundaries);
            request.details.echo = true;
            read(engine.submit(Job::Generate(request), terms_of(tenant)).unwrap()).unwrap()
        };
        answers(&used, "a", 1);
        assert_eq!(used.memory().in_use, 0, "{name}: the pages are free");
        assert_eq!(answers(&used, "b", 2), answers(&fresh, "b", 2), "{name}");
    }
}

#[test]
fn a_tenant_keeps_its_cached_texts_while_another_fills_the_cache() {
    let model = fixture("whitespaces");
    let boundaries = BoundaryOptions::default();
    let warm = engine(&model, 3 * model.bytes_for(200));
    let cached = |tenant: &str, seed: u64| {
        let job = Job::Generate(request(&text(seed, 120), 2, &boundaries));
        read(warm.submit(job, terms_of(tenant)).unwrap()).unwrap().usage.cached_chars
    };
    assert_eq!(cached("quiet", 1), 0);
    for seed in 100..140 {
        assert_eq!(cached("busy", seed), 0);
    }
    let usage = warm.segment_cache_usage();
    assert!(usage.evictions > 30, "the cache is full: {usage:?}");
    assert!(cached("quiet", 1) > 80, "another tenant displaced the entry");
}
