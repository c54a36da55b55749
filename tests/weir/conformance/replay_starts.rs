//! States that are built again from the symbols that they depend on, and cached entries that stand for these.

use super::*;
use std::ops::Range;
use weir::decode::replay::ReplayStart;

/// Symbols of a text whose beginning windows leave far behind: more than a place where texts are cut.
const LONG: usize = 2000;

/// Whether every layer of a configuration has a window, and nothing beside it remembers more.
fn is_windowed(Configuration { name, model, .. }: &Configuration) -> bool {
    let windows = ["blocks of", "last 40", "scaled", "windows", "xpos-last", "_bca", "sliding"];
    windows.iter().any(|window| name.contains(window)) && model.document_encoder().is_none()
}

/// A sequence taken up at an origin and fed up to a position; on the way it is good for nothing else.
fn taken_up<'a>(
    configuration: &'a Configuration,
    (text, at): (&[u32], usize),
    origin: ReplayStart,
    dice: &mut Dice,
) -> Alone<'a> {
    let mut again = configuration.alone();
    again.rows[0].state.resume(origin).unwrap();
    let mut fed = origin.symbol;
    while fed < at {
        let state = &mut again.rows[0].state;
        let unsound = fed < origin.valid_from;
        assert_eq!((state.len(), state.fork().is_empty()), (fed, unsound), "{}", configuration.name);
        assert_eq!(state.rollback(fed).is_err(), unsound, "{}", configuration.name);
        assert!(
            !unsound || (state.boundary_before(fed) == 0 && state.replay_start().is_none()),
            "{}",
            configuration.name
        );
        assert!(state.resume(origin).is_err(), "{}: it has seen something", configuration.name);
        let size = (1 + dice.below(70)).min(at - fed);
        again.rows[0].set(&text[fed..fed + size], Want::Nothing);
        advance(again.model, &mut again.rows, &[0], &mut again.scratch).unwrap();
        fed += size;
    }
    again
}

#[test]
fn a_state_is_built_again_from_its_origin() {
    on_each(|configuration, dice| {
        let (model, name) = (&*configuration.model, &configuration.name);
        let symbols = model.card().vocabulary.len();
        let windowed = is_windowed(configuration);
        let text = dice.text(if windowed { LONG.min(model.card().max_symbols) } else { SYMBOLS }, symbols);
        let whole = full(model, &text, &configuration.boundaries);
        let equal = |alone: &mut Alone<'_>, part: Range<usize>| {
            let got = alone.feed(&text[part.clone()]);
            let off = difference(&got.0, &whole.0[part.start * symbols..part.end * symbols]);
            assert!(off <= BATCH_TOLERANCE, "{name}: {off} in {part:?}");
            assert_eq!(got.1, whole.1[part.clone()], "{name}: {part:?}");
        };
        let mut main = configuration.alone();
        let (mut at, mut built, mut before) = (0, 0, 0);
        let mut last = None;
        while at + 110 < text.len() {
            let size = 1 + dice.below(60);
            main.feed(&text[at..at + size]);
            at += size;
            let state = &main.rows[0].state;
            let Some(origin) = state.replay_start() else { continue };
            assert!(
                (before..=origin.valid_from).contains(&origin.symbol) && origin.cut_position() <= origin.symbol,
                "{name}"
            );
            assert_eq!(origin.valid_from, state.earliest(), "{name}");
            before = origin.symbol;
            last = Some(origin);
            built += 1;
            // there are many: a few of them, and the last one
            if dice.below(6) > 0 && at + 110 < text.len() {
                continue;
            }
            let mut again = taken_up(configuration, (&text, at), origin, dice);
            let (state, other) = (&main.rows[0].state, &again.rows[0].state);
            assert_eq!((state.len(), state.segments()), (other.len(), other.segments()), "{name}");
            let (earliest, next) = (other.earliest(), other.replay_start().unwrap());
            assert!(earliest >= origin.valid_from && earliest <= at, "{name}: {earliest} of {at}");
            assert!(next.symbol >= origin.symbol, "{name}: {next:?} after {origin:?}");
            let forks = [earliest, earliest + dice.below(at - earliest + 1)].map(|back| (back, other.fork()));
            equal(&mut again, at..at + 40);
            // from the earliest place on it is right, and then from its own origin again
            for (back, mut state) in forks {
                state.rollback(back).unwrap();
                equal(&mut Alone::from(model, SequenceRow::new(state)), back..at + 1);
            }
            let mut third = taken_up(configuration, (&text, at), next, dice);
            equal(&mut third, at..at + 30);
            third.rows[0].state.restart(0);
            assert!(third.rows[0].state.is_empty() && third.rows[0].state.segments() == 0, "{name}");
            equal(&mut third, 0..60);
        }
        assert_eq!(built > 0, windowed, "{name}: {built} origins");
        // and one that is too late shows
        if let Some(origin) = last.filter(|origin| origin.skipped.is_none()) {
            let late = ReplayStart { symbol: origin.valid_from - 1, ..origin };
            let got =
                taken_up(configuration, (&text, origin.valid_from), late, dice).feed(&text[origin.valid_from..][..1]);
            assert!(difference(&got.0, &whole.0[origin.valid_from * symbols..][..symbols]) > BATCH_TOLERANCE, "{name}");
        }
    });
}

#[test]
fn an_entry_of_a_long_text_stands_for_its_end() {
    on_each(|configuration, dice| {
        let (model, name) = (&*configuration.model, &configuration.name);
        // a table of learned positions may be too short for such a text
        if !is_windowed(configuration) || model.card().max_symbols < LONG + 40 {
            return;
        }
        let (symbols, pooled) = (model.card().vocabulary.len(), model.card().pooled);
        let text = dice.text(LONG, symbols);
        let mut main = configuration.alone();
        text.chunks(50).for_each(|chunk| drop(main.feed(chunk)));
        let key = Key::of(&"somebody".into(), &configuration.boundaries, model.card()).unwrap();
        let mut cache = SegmentCache::new(Capacity::of_bytes(1 << 30));
        // a last segment that is longer than what the windows hold leaves no end of a segment to go back to
        let state = &*main.rows[0].state;
        let ends = state.boundary_before(state.len()) > 0;
        assert_eq!(cache.keep(&key, &text, state).unwrap(), ends, "{name}");
        drop(main);
        if !ends {
            return;
        }
        let mut other = text.clone();
        other[..300].iter_mut().for_each(|symbol| *symbol = (*symbol + 1) % symbols as u32);
        for (mut text, same) in [(text.clone(), true), (other, false)] {
            text.extend(dice.text(40, symbols));
            let known = cache.known(&key, &text);
            let hit = cache.find(&key, &text).unwrap();
            assert_eq!(hit.as_ref().map_or(0, |hit| hit.len), known, "{name}");
            // where segments are counted, those before are to be the same
            assert_eq!(hit.is_some(), same || !pooled, "{name}: {same}");
            let Some(Hit { state, len }) = hit else { continue };
            let fresh = full(model, &text, &configuration.boundaries);
            let mut alone = Alone::from(model, SequenceRow::new(state));
            let got = alone.feed(&text[len..]);
            assert!(difference(&got.0, &fresh.0[len * symbols..]) <= BATCH_TOLERANCE, "{name}: from {len}");
            assert_eq!(got.1, fresh.1[len..], "{name}");
        }
        // another one that differs in one symbol, before all that the entry can go back to
        let mut near = text;
        near[LONG - 200] = (near[LONG - 200] + 1) % symbols as u32;
        assert_eq!(cache.known(&key, &near), 0, "{name}");
        assert_eq!(std::iter::from_fn(|| cache.evict()).count(), 1, "{name}");
        assert_eq!(cache.usage().bytes, 0, "{name}");
    });
}
