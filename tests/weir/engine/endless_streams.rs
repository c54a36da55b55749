//! Endless generation on models whose every layer has a window. The kept text is bounded, and a row that is lost resumes
//! from it with the same output.

use super::{caching::ask, jobs::*};
use crate::{
    decoder_shapes, hourglass,
    support::{Dice, text_symbols},
};
use std::sync::Arc;
use weir::{
    decode::{
        contract::{BoundaryOptions, Model, SequenceRow, advance},
        options::{EmittedSymbol, Generate},
        session::{Session, SessionProgress},
    },
    engine::{
        Event, Handle, Job, Limits,
        cache::{Capacity, Key, SegmentCache},
    },
};

/// Number of generated symbols.
const CHARS: usize = 3200;
/// Position from which rows are lost. The start of the text has been dropped by then.
const LOSS_START: usize = 2100;

/// Returns models with windows: plain, pooled, and with special symbols.
fn models() -> Vec<(String, Arc<dyn Model>)> {
    let pooled =
        ["windows", "xpos-windows", "learned-windows", "plain-windows", "ngrams-windows", "plain-ngrams-windows"];
    let decoders = ["xpos, blocks of 11", "sinusoidal, last 40", "marked xpos, blocks of 32", "marked alibi, last 40"];
    let all = hourglass::shapes().into_iter().chain(decoder_shapes::shapes());
    let models: Vec<_> =
        all.filter(|(name, _)| pooled.contains(&name.as_str()) || decoders.contains(&name.as_str())).collect();
    assert_eq!(models.len(), pooled.len() + decoders.len());
    models
}

fn request(model: &dyn Model, seed: u64, chars: usize) -> Generate {
    let numbers: Vec<u32> = (0..70).map(|i| if i % 6 == 5 { 3 } else { i % 7 }).collect();
    let mut request = generate(&text_symbols(model, &numbers), chars);
    request.sampling.seed = seed;
    request.sampling.temperature = 1.0;
    request.sampling.repetition_penalty = 1.2;
    // An end symbol does not stop the text.
    request.stopping.ignore_end = true;
    request.stopping.stop = vec![text_symbols(model, &[1; 40])];
    request
}

/// Runs a session whose row is replaced where `lose` returns one. Returns the output and the maximum of held symbols.
fn run(
    model: &dyn Model,
    request: &Generate,
    mut lose: impl FnMut(&mut Session, &SequenceRow, usize) -> Option<SequenceRow>,
) -> (JobOutput, usize) {
    let mut session = Session::generate(request.clone(), model.card()).unwrap();
    let mut rows = [SequenceRow::new(model.begin(BoundaryOptions::default()).unwrap())];
    let mut scratch = model.scratch();
    let mut characters = Vec::new();
    let mut max_held = 0;
    loop {
        if !session.is_prefilling()
            && let Some(other) = lose(&mut session, &rows[0], characters.len())
        {
            rows[0] = other;
        }
        session.feed(&mut rows[0], 64);
        advance(model, &mut rows, &[0], &mut scratch).unwrap();
        let progress = session.absorb(&mut rows[0]).unwrap();
        characters.extend(session.take_output());
        max_held = max_held.max(session.held_symbols());
        if let SessionProgress::Finished(reason) = progress {
            return (JobOutput { characters, reason, usage: session.usage() }, max_held);
        }
    }
}

/// Returns a new row for a session that lost its row.
fn fresh_row(model: &dyn Model, session: &mut Session) -> SequenceRow {
    session.rewind();
    let mut state = model.begin(session.boundaries().clone()).unwrap();
    session.resume(&mut *state).unwrap();
    SequenceRow::new(state)
}

#[test]
fn only_the_text_that_a_new_row_needs_is_held() {
    let mut pooled_hits = 0;
    for (name, model) in models() {
        let model = &*model;
        let request = request(model, 5, CHARS);
        let (expected, max_held) = run(model, &request, |_, _, _| None);
        assert_eq!(expected.characters.len(), CHARS, "{name}");
        assert!(max_held <= 2100, "{name}: {max_held} symbols of {CHARS} were held");
        let mut dice = Dice::new(3);
        let mut losses = 0;
        let (output, max_held) = run(model, &request, |session, _, generated| {
            (generated >= LOSS_START && dice.below(200) == 0).then(|| {
                losses += 1;
                assert!(session.replay_position() > 0, "{name}: no text was dropped");
                fresh_row(model, session)
            })
        });
        assert_eq!(output, expected, "{name}, from its own text");
        assert!(losses > 0 && max_held <= 2100, "{name}: lost {losses} times, {max_held} held");
        // Resumes from the cache, which finds the row's state although its text is dropped.
        let key = Key::for_sequence(&"".into(), &BoundaryOptions::default(), model.card()).unwrap();
        let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 30));
        let mut hits = 0;
        let (mut output, _) = run(model, &request, |session, row, generated| {
            (generated >= LOSS_START && dice.below(200) == 0).then(|| {
                cache.keep(&key, session.text(), &*row.state).unwrap();
                let mut other = fresh_row(model, session);
                // The lookup misses if no segment ended recently.
                if let Some(hit) = cache.find(&key, session.text().prefix(session.cacheable_prefix())).unwrap() {
                    session.start_at(hit.len, hit.state.level_segments()).unwrap();
                    other = SequenceRow::new(hit.state);
                    hits += 1;
                }
                other
            })
        });
        output.usage.cached_chars = 0;
        assert_eq!(output, expected, "{name}, from the cache");
        assert!(hits > 0 || model.card().pooled, "{name}");
        pooled_hits += if model.card().pooled { hits } else { 0 };
        drop(cache);
        assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
    }
    assert!(pooled_hits > 0, "no pooled model had a cache hit");
}

/// Reads events until `count` characters have arrived.
fn read_until(events: &mut weir::engine::Events, characters: &mut Vec<EmittedSymbol>, count: usize) {
    while characters.len() < count {
        match events.blocking_recv().unwrap().unwrap() {
            Event::Characters(symbols) => characters.extend(symbols),
            Event::Started { .. } => {}
            Event::Finished { .. } | Event::Coded(_) | Event::Next(_) | Event::Document(_) => {
                panic!("ended after {} characters", characters.len())
            }
        }
    }
}

#[test]
fn a_long_generation_is_preempted_and_resumes() {
    for (name, model) in models().into_iter().step_by(2) {
        let job = request(&*model, 8, CHARS);
        let brief = request(&*model, 9, 20);
        let (expected, _) = run(&*model, &job, |_, _, _| None);
        for cache_bytes in [0, 1 << 20] {
            let engine =
                Handle::start(model.clone(), Limits { rows: 1, events: 16, cache_bytes, ..Limits::default() }).unwrap();
            let mut events = engine.submit(Job::Generate(job.clone()), None).unwrap();
            let mut characters = Vec::new();
            let mut prompt_symbols = 70;
            for until in [LOSS_START, LOSS_START + 400] {
                read_until(&mut events, &mut characters, until);
                // The reader stops, and another request waits for the only row.
                read(engine.submit(Job::Generate(brief.clone()), None).unwrap()).unwrap();
                prompt_symbols += 70;
            }
            let counters = engine.counters();
            assert_eq!(counters.preemptions, 2, "{name}");
            let output = loop {
                match events.blocking_recv().unwrap().unwrap() {
                    Event::Characters(symbols) => characters.extend(symbols),
                    Event::Finished { reason, usage, .. } => break JobOutput { characters, reason, usage },
                    Event::Started { .. } | Event::Coded(_) | Event::Next(_) | Event::Document(_) => {
                        panic!("{name}: unexpected event")
                    }
                }
            };
            assert_eq!(output, expected, "{name}, {cache_bytes} bytes of cache");
            // The symbols fed again are far fewer than those generated before.
            let replayed = (engine.counters().prefill_chars as usize).saturating_sub(prompt_symbols);
            let limit = if cache_bytes == 0 { 2 * 1500 } else { 2 * 64 };
            assert!(
                replayed <= limit && (replayed > 0 || cache_bytes > 0),
                "{name}: {replayed} symbols were fed again"
            );
            drop(engine);
            assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
        }
    }
}

#[test]
fn a_prompt_stays_cached_next_to_its_continuation() {
    for (name, model) in models() {
        let start = |cache_bytes| {
            let limits = Limits { cache_bytes, chunk: 48, events: 4096, ..Limits::default() };
            Handle::start(model.clone(), limits).unwrap()
        };
        let cold = start(0);
        let warm = start(64 << 20);
        let first = request(&*model, 5, 600);
        let answer: Vec<u32> = ask(&cold, &first).0.characters.iter().map(|character| character.symbol).collect();
        let with_prompt = |parts: [&[u32]; 2]| Generate { prompt: parts.concat(), ..first.clone() };
        let more = text_symbols(&*model, &[1, 2, 3, 0, 4]);
        let repeat = with_prompt([&first.prompt, &[]]);
        let branch = with_prompt([&first.prompt, &more]);
        let chat = with_prompt([&first.prompt, &answer]);
        let next = with_prompt([&chat.prompt, &more]);
        // Each request follows one whose text is longer than its prompt.
        for (request, least) in [(&first, 0), (&repeat, 60), (&branch, 60), (&next, 600), (&chat, 600), (&repeat, 60)] {
            let (expected, _) = ask(&cold, request);
            let (output, cached) = ask(&warm, request);
            assert_eq!(output, expected, "{name}, {} symbols", request.prompt.len());
            let len = request.prompt.len();
            assert!((least..len).contains(&cached), "{name}: {cached} of {len}, at least {least} expected");
        }
        let usage = warm.segment_cache_usage();
        assert!(
            usage.page_bytes == model.memory().in_use - warm.load().bytes && usage.misses == 1,
            "{name}: {usage:?}"
        );
        drop(warm);
        // A repeated prompt stays in a cache for a few requests with two entries each.
        let measure = start(64 << 20);
        ask(&measure, &first);
        let limit = 4 * measure.segment_cache_usage().bytes;
        drop(measure);
        let tight = start(limit);
        for round in 0..16 {
            let numbers: Vec<u32> =
                (0..40).map(|i| if i % 6 == 5 { 3 } else { (i * (round + 2) + round) % 7 }).collect();
            let other = Generate { prompt: text_symbols(&*model, &numbers), ..request(&*model, round.into(), 300) };
            for (request, least) in [(&other, 0), (&repeat, if round == 0 { 0 } else { 60 })] {
                let (output, cached) = ask(&tight, request);
                assert_eq!(output, ask(&cold, request).0, "{name}");
                assert!(
                    cached >= least && tight.segment_cache_usage().bytes <= limit,
                    "{name}: {cached}, {:?}",
                    tight.segment_cache_usage()
                );
            }
        }
        assert!(tight.segment_cache_usage().evictions > 0, "{name}");
        drop((cold, tight));
        assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
    }
}
