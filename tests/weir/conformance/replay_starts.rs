//! States that are rebuilt from the symbols on which they depend, and cache entries of long texts.

use super::*;
use std::ops::Range;
use weir::decode::replay::ReplayStart;

/// Length of a text whose start is far outside all windows, and which is cut at least once.
const LONG: usize = 2000;

/// Returns true if every layer of a configuration has a window and no document is kept.
fn is_windowed(Configuration { name, model, .. }: &Configuration) -> bool {
    let windows = ["blocks of", "last 40", "scaled", "windows", "xpos-last", "_bca", "sliding"];
    windows.iter().any(|window| name.contains(window)) && model.document_encoder().is_none()
}

/// Rebuilds a sequence from a replay start by feeding the rest of `text`. Checks that it allows no other use before it is
/// valid.
fn rebuilt<'a>(configuration: &'a Configuration, text: &[u32], start: ReplayStart, dice: &mut Dice) -> Alone<'a> {
    let mut again = configuration.alone();
    again.rows[0].state.resume(start).unwrap();
    let mut fed = start.symbol;
    while fed < text.len() {
        let state = &mut again.rows[0].state;
        let invalid = fed < start.valid_from;
        assert_eq!((state.len(), state.fork().is_empty()), (fed, invalid), "{}", configuration.name);
        assert_eq!(state.rollback(fed).is_err(), invalid, "{}", configuration.name);
        assert!(
            !invalid || (state.boundary_before(fed) == 0 && state.replay_start().is_none()),
            "{}",
            configuration.name
        );
        assert!(state.resume(start).is_err(), "{}: the state is not empty", configuration.name);
        let size = (1 + dice.below(70)).min(text.len() - fed);
        again.rows[0].set(&text[fed..fed + size], Want::Nothing);
        advance(again.model, &mut again.rows, &[0], &mut again.scratch).unwrap();
        fed += size;
    }
    again
}

#[test]
fn a_state_is_rebuilt_from_its_replay_start() {
    on_each(|configuration, dice| {
        let model = &*configuration.model;
        let name = &configuration.name;
        let symbols = model.card().vocabulary.len();
        let windowed = is_windowed(configuration);
        let text = dice.text(if windowed { LONG.min(model.card().max_symbols) } else { SYMBOLS }, symbols);
        let complete = full(model, &text, &configuration.boundaries);
        let equal = |alone: &mut Alone<'_>, part: Range<usize>| {
            let actual = alone.feed(&text[part.clone()]);
            let max_error = difference(&actual.0, &complete.0[part.start * symbols..part.end * symbols]);
            assert!(max_error <= configuration.tolerance(), "{name}: {max_error} in {part:?}");
            assert_eq!(actual.1, complete.1[part.clone()], "{name}: {part:?}");
        };
        let mut main = configuration.alone();
        let mut position = 0;
        let mut count = 0;
        let mut before = 0;
        let mut last = None;
        while position + 110 < text.len() {
            let size = 1 + dice.below(60);
            main.feed(&text[position..position + size]);
            position += size;
            let state = &main.rows[0].state;
            let Some(start) = state.replay_start() else { continue };
            assert!(
                (before..=start.valid_from).contains(&start.symbol) && start.cut_position() <= start.symbol,
                "{name}"
            );
            assert_eq!(start.valid_from, state.earliest(), "{name}");
            before = start.symbol;
            last = Some(start);
            count += 1;
            // Checks a few of the many starts, and the last one.
            if dice.below(6) > 0 && position + 110 < text.len() {
                continue;
            }
            let mut again = rebuilt(configuration, &text[..position], start, dice);
            let state = &main.rows[0].state;
            let other = &again.rows[0].state;
            assert_eq!((state.len(), state.segments()), (other.len(), other.segments()), "{name}");
            let earliest = other.earliest();
            let next = other.replay_start().unwrap();
            assert!(earliest >= start.valid_from && earliest <= position, "{name}: {earliest} of {position}");
            assert!(next.symbol >= start.symbol, "{name}: {next:?} after {start:?}");
            let forks = [earliest, earliest + dice.below(position - earliest + 1)].map(|back| (back, other.fork()));
            equal(&mut again, position..position + 40);
            // The rebuilt state is valid from its earliest position, and can itself be rebuilt from its replay start.
            for (back, mut state) in forks {
                state.rollback(back).unwrap();
                equal(&mut Alone::from(model, SequenceRow::new(state)), back..position + 1);
            }
            let mut third = rebuilt(configuration, &text[..position], next, dice);
            equal(&mut third, position..position + 30);
            third.rows[0].state.restart(0);
            assert!(third.rows[0].state.is_empty() && third.rows[0].state.segments() == 0, "{name}");
            equal(&mut third, 0..60);
        }
        assert_eq!(count > 0, windowed, "{name}: {count} replay starts");
        // A later start gives other logits.
        if let Some(start) = last.filter(|start| start.skipped.is_none()) {
            let late = ReplayStart { symbol: start.valid_from - 1, ..start };
            let mut late = rebuilt(configuration, &text[..start.valid_from], late, dice);
            let actual = late.feed(&text[start.valid_from..][..1]);
            assert!(
                difference(&actual.0, &complete.0[start.valid_from * symbols..][..symbols]) > configuration.tolerance(),
                "{name}"
            );
        }
    });
}

#[test]
fn a_cache_entry_of_a_long_text_matches_its_end() {
    on_each(|configuration, dice| {
        let model = &*configuration.model;
        let name = &configuration.name;
        // A table of learned positions may be too short for such a text.
        if !is_windowed(configuration) || model.card().max_symbols < LONG + 40 {
            return;
        }
        let symbols = model.card().vocabulary.len();
        let pooled = model.card().pooled;
        let text = dice.text(LONG, symbols);
        let mut main = configuration.alone();
        text.chunks(50).for_each(|chunk| drop(main.feed(chunk)));
        let key = Key::for_sequence(&"somebody".into(), &configuration.boundaries, model.card()).unwrap();
        let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 30));
        // If the last segment is longer than the windows, no segment end is left to resume from.
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
            // Pooled models count segments, so the text before must be the same.
            assert_eq!(hit.is_some(), same || !pooled, "{name}: {same}");
            let Some(Hit { state, len }) = hit else { continue };
            let fresh = full(model, &text, &configuration.boundaries);
            let mut alone = Alone::from(model, SequenceRow::new(state));
            let actual = alone.feed(&text[len..]);
            assert!(
                difference(&actual.0, &fresh.0[len * symbols..]) <= configuration.tolerance(),
                "{name}: from {len}"
            );
            assert_eq!(actual.1, fresh.1[len..], "{name}");
        }
        // The text differs in one symbol, before the earliest position of the entry.
        let mut near = text;
        near[LONG - 200] = (near[LONG - 200] + 1) % symbols as u32;
        assert_eq!(cache.known(&key, &near), 0, "{name}");
        assert_eq!(std::iter::from_fn(|| cache.evict()).count(), 1, "{name}");
        assert_eq!(cache.usage().bytes, 0, "{name}");
    });
}
