//! Generations without end on models whose every layer has a window: what is kept of their text is bounded, and a row that is
//! lost goes on from there as if nothing had happened.

use super::{caching::ask, jobs::*};
use crate::{
    naive_decoder, naive_hourglass,
    support::{Dice, of_text},
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

/// Symbols that are generated, and from where on rows are lost: after a part of the text was dropped.
const CHARS: usize = 3200;
const LATE: usize = 2100;

/// Of each family that has windows some, plain, pooled and marked.
fn models() -> Vec<(String, Arc<dyn Model>)> {
    let pooled = ["windows", "xpos-windows", "learned-windows", "plain-windows"];
    let decoders = ["xpos, blocks of 11", "sinusoidal, last 40", "marked xpos, blocks of 32", "marked alibi, last 40"];
    let all = naive_hourglass::shapes().into_iter().chain(naive_decoder::shapes());
    let found: Vec<_> =
        all.filter(|(name, _)| pooled.contains(&name.as_str()) || decoders.contains(&name.as_str())).collect();
    assert_eq!(found.len(), pooled.len() + decoders.len());
    found
}

fn request(model: &dyn Model, seed: u64, chars: usize) -> Generate {
    let numbers: Vec<u32> = (0..70).map(|at| if at % 6 == 5 { 3 } else { at % 7 }).collect();
    let mut request = generate(&of_text(model, &numbers), chars);
    (request.sampling.seed, request.sampling.temperature) = (seed, 1.0);
    request.sampling.repetition_penalty = 1.2;
    // a text of marked symbols is not to end by itself
    request.stopping.ignore_end = true;
    request.stopping.stop = vec![of_text(model, &[1; 40])];
    request
}

/// Runs a session that may lose its row before some steps; tells what it says and the most symbols that it held.
fn run(
    model: &dyn Model,
    request: &Generate,
    mut lose: impl FnMut(&mut Session, &SequenceRow, usize) -> Option<SequenceRow>,
) -> (Said, usize) {
    let mut session = Session::generate(request.clone(), model.card()).unwrap();
    let mut rows = [SequenceRow::new(model.begin(BoundaryOptions::default()).unwrap())];
    let (mut scratch, mut characters, mut most) = (model.scratch(), Vec::new(), 0);
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
        most = most.max(session.held_symbols());
        if let SessionProgress::Finished(reason) = progress {
            return (Said { characters, reason, usage: session.usage() }, most);
        }
    }
}

/// A fresh row for a session that lost one.
fn anew(model: &dyn Model, session: &mut Session) -> SequenceRow {
    session.rewind();
    let mut state = model.begin(session.boundaries().clone()).unwrap();
    session.resume(&mut *state).unwrap();
    SequenceRow::new(state)
}

#[test]
fn a_text_is_held_as_far_as_another_row_needs_it() {
    let mut pooled_hits = 0;
    for (name, model) in models() {
        let model = &*model;
        let request = request(model, 5, CHARS);
        let (expected, most) = run(model, &request, |_, _, _| None);
        assert_eq!(expected.characters.len(), CHARS, "{name}");
        assert!(most <= 2100, "{name}: {most} symbols of {CHARS} were held");
        let (mut dice, mut lost) = (Dice::new(3), 0);
        let (said, most) = run(model, &request, |session, _, at| {
            (at >= LATE && dice.below(200) == 0).then(|| {
                lost += 1;
                assert!(session.replay_position() > 0, "{name}: a part was dropped by now");
                anew(model, session)
            })
        });
        assert_eq!(said, expected, "{name}, from its own text");
        assert!(lost > 0 && most <= 2100, "{name}: lost {lost} times, {most} held");
        // from what the cache kept of the row, which it is found by though its text is gone
        let key = Key::of(&"".into(), &BoundaryOptions::default(), model.card()).unwrap();
        let mut cache = SegmentCache::new(Capacity::of_bytes(1 << 30));
        let mut hits = 0;
        let (mut said, _) = run(model, &request, |session, row, at| {
            (at >= LATE && dice.below(200) == 0).then(|| {
                // not if no segment ended lately
                cache.keep(&key, session.text(), &*row.state).unwrap();
                let mut other = anew(model, session);
                if let Some(hit) = cache.find(&key, session.text().prefix(session.cacheable_prefix())).unwrap() {
                    session.start_at(hit.len, hit.state.segments()).unwrap();
                    (other, hits) = (SequenceRow::new(hit.state), hits + 1);
                }
                other
            })
        });
        said.usage.cached_chars = 0;
        assert_eq!(said, expected, "{name}, from the cache");
        assert!(hits > 0 || model.card().pooled, "{name}");
        pooled_hits += if model.card().pooled { hits } else { 0 };
        drop(cache);
        assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
    }
    assert!(pooled_hits > 0, "of no segments' model anything was found");
}

/// Reads until so many characters were told.
fn read_until(events: &mut weir::engine::Events, characters: &mut Vec<EmittedSymbol>, most: usize) {
    while characters.len() < most {
        match events.blocking_recv().unwrap().unwrap() {
            Event::Characters(told) => characters.extend(told),
            Event::Started { .. } => {}
            Event::Finished { .. } | Event::Document(_) => panic!("ended after {} characters", characters.len()),
        }
    }
}

#[test]
fn a_long_generation_makes_way_and_goes_on() {
    for (name, model) in models().into_iter().step_by(2) {
        let (job, brief) = (request(&*model, 8, CHARS), request(&*model, 9, 20));
        let (expected, _) = run(&*model, &job, |_, _, _| None);
        for cache_bytes in [0, 1 << 20] {
            let engine =
                Handle::start(model.clone(), Limits { rows: 1, events: 16, cache_bytes, ..Limits::default() }).unwrap();
            let mut events = engine.submit(Job::Generate(job.clone()), None).unwrap();
            let mut characters = Vec::new();
            let mut prefilled = 70;
            for until in [LATE, LATE + 400] {
                read_until(&mut events, &mut characters, until);
                // its reader stops, and somebody else waits for the only row
                read(engine.submit(Job::Generate(brief.clone()), None).unwrap()).unwrap();
                prefilled += 70;
            }
            let counters = engine.counters();
            assert_eq!(counters.preemptions, 2, "{name}");
            let said = loop {
                match events.blocking_recv().unwrap().unwrap() {
                    Event::Characters(told) => characters.extend(told),
                    Event::Finished { reason, usage, .. } => break Said { characters, reason, usage },
                    Event::Started { .. } | Event::Document(_) => panic!("{name}: not now"),
                }
            };
            assert_eq!(said, expected, "{name}, {cache_bytes} bytes of cache");
            // far less was fed again than had been said by then
            let again = (engine.counters().prefill_chars as usize).saturating_sub(prefilled);
            let most = if cache_bytes == 0 { 2 * 1500 } else { 2 * 64 };
            assert!(again <= most && (again > 0 || cache_bytes > 0), "{name}: {again} symbols were fed again");
            drop(engine);
            assert_eq!(model.memory().in_use, 0, "{name}: pages leaked");
        }
    }
}

#[test]
fn a_prompt_is_found_beside_what_was_generated_from_it() {
    for (name, model) in models() {
        let start = |cache_bytes| {
            let limits = Limits { cache_bytes, chunk: 48, events: 4096, ..Limits::default() };
            Handle::start(model.clone(), limits).unwrap()
        };
        let (cold, warm) = (start(0), start(64 << 20));
        let first = request(&*model, 5, 600);
        let said: Vec<u32> = ask(&cold, &first).0.characters.iter().map(|character| character.symbol).collect();
        let after = |parts: [&[u32]; 2]| Generate { prompt: parts.concat(), ..first.clone() };
        let more = of_text(&*model, &[1, 2, 3, 0, 4]);
        let [again, branch] = [after([&first.prompt, &[]]), after([&first.prompt, &more])];
        let talk = after([&first.prompt, &said]);
        let next = after([&talk.prompt, &more]);
        // each after one that went on far beyond it
        for (request, least) in [(&first, 0), (&again, 60), (&branch, 60), (&next, 600), (&talk, 600), (&again, 60)] {
            let (expected, _) = ask(&cold, request);
            let (said, cached) = ask(&warm, request);
            assert_eq!(said, expected, "{name}, {} symbols", request.prompt.len());
            let whole = request.prompt.len();
            assert!((least..whole).contains(&cached), "{name}: {cached} of {whole}, at least {least} expected");
        }
        let held = warm.segment_cache_usage();
        assert!(held.page_bytes == model.memory().in_use - warm.load().bytes && held.misses == 1, "{name}: {held:?}");
        drop(warm);
        // what is asked for again and again stays, where there is room for a few requests, with two entries each
        let measure = start(64 << 20);
        ask(&measure, &first);
        let limit = 4 * measure.segment_cache_usage().bytes;
        drop(measure);
        let tight = start(limit);
        for round in 0..16 {
            let numbers: Vec<u32> =
                (0..40).map(|at| if at % 6 == 5 { 3 } else { (at * (round + 2) + round) % 7 }).collect();
            let other = Generate { prompt: of_text(&*model, &numbers), ..request(&*model, round.into(), 300) };
            for (request, least) in [(&other, 0), (&again, if round == 0 { 0 } else { 60 })] {
                let (said, cached) = ask(&tight, request);
                assert_eq!(said, ask(&cold, request).0, "{name}");
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
