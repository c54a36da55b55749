//! Replay of generated text: a trace gives the same state bit for bit, and a prompt is segmented again by the predictor.

use super::{super::support::*, *};
use weir::{
    decode::{
        contract::{BoundaryMode, BoundaryOptions, SequenceRow, StepStatus, Want, advance},
        options::{Details, Generate, Sampling, Stopping},
        session::{Session, SessionProgress},
        trace,
    },
    engine::cache::{Capacity, Key, SegmentCache},
};

const MODE: BoundaryOptions =
    BoundaryOptions { mode: Some(BoundaryMode::Nxt), noise: weir::decode::contract::Noise::Seeded(0), offset: 0 };

/// Generates in the mode `nxt` and calls `each` after every step. Returns the final session and row.
fn write(
    case: &Case,
    prompt: &[u32],
    seed: u64,
    each: &mut dyn FnMut(&Session, &SequenceRow),
) -> (Session, SequenceRow) {
    let request = Generate {
        prompt: prompt.to_vec(),
        sampling: Sampling { temperature: if seed == 0 { 0.0 } else { 1.5 }, seed, ..Sampling::default() },
        stopping: Stopping {
            max_chars: 60,
            min_chars: 0,
            max_segments: None,
            stop: Vec::new(),
            include_stop: false,
            ignore_end: true,
        },
        details: Details { boundaries: true, ..Details::default() },
        boundaries: MODE,
        resumed: Vec::new(),
        speculation: None,
    };
    let mut session = Session::generate(request, case.model.card()).unwrap();
    let mut rows = [SequenceRow::new(case.model.begin(MODE).unwrap())];
    let mut scratch = case.model.scratch();
    loop {
        session.feed(&mut rows[0], 9);
        advance(&*case.model, &mut rows, &[0], &mut scratch).unwrap();
        let progress = session.absorb(&mut rows[0]).unwrap();
        each(&session, &rows[0]);
        if let SessionProgress::Finished(_) = progress {
            let [row] = rows;
            return (session, row);
        }
    }
}

/// Returns the logits after one more symbol.
fn next(case: &Case, row: SequenceRow, symbol: u32) -> Vec<f32> {
    Alone::from(&*case.model, row).feed(&[symbol]).0
}

fn prompt(case: &Case) -> Vec<u32> {
    case.golden.ids("gen.open.nxt.prompt_ids")[1..].to_vec()
}

/// Replays a trace in chunks of `size` items.
fn replay(case: &Case, items: &[u32], size: usize) -> SequenceRow {
    let mut rows = [SequenceRow::new(case.model.begin(MODE).unwrap())];
    for piece in items.chunks(size.max(1)) {
        rows[0].set(piece, Want::Nothing);
        advance(&*case.model, &mut rows, &[0], &mut case.model.scratch()).unwrap();
    }
    let [row] = rows;
    row
}

#[test]
fn a_trace_reproduces_the_state() {
    for case in Case::all() {
        let any = prompt(&case)[0];
        for seed in 0..4 {
            let prompt = if seed == 0 { Vec::new() } else { prompt(&case) };
            let (session, row) = write(&case, &prompt, seed, &mut |_, _| {});
            let items = session.text().after(0).unwrap().to_vec();
            assert_eq!(items.len(), row.state.len());
            let segments = row.state.segments();
            let expected = next(&case, row, any);
            for size in [1, 7, items.len()] {
                let again = replay(&case, &items, size);
                assert_eq!(again.state.segments(), segments, "{}", case.name);
                assert!(next(&case, again, any) == expected, "{} by {size}", case.name);
            }
        }
        assert_eq!(case.model.memory().in_use, 0);
    }
}

#[test]
fn the_predictor_segments_generated_text_again() {
    let mut differ = 0;
    let mut shared = 0;
    for case in Case::all() {
        for seed in 0..6 {
            let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 30));
            let key = Key::for_sequence(&"".into(), &MODE, case.model.card()).unwrap();
            let (session, row) = write(&case, &prompt(&case), seed, &mut |session, row| {
                let plain = session.text().after(0).unwrap().take(row.state.agreed());
                assert!(plain.iter().all(|item| trace::ends_segment(item).is_none()), "{}", case.name);
            });
            let items = session.text().after(0).unwrap().to_vec();
            cache.keep(&key, &items, &*row.state).unwrap();
            let text: Vec<u32> = items.iter().map(|&item| trace::symbol(item)).collect();
            let (cold, marks) = full(&*case.model, &text, &MODE);
            let differs = |&position: &usize| {
                trace::ends_segment(items[position]).is_some_and(|ends| ends != marks[position].boundary)
            };
            let first = (0..text.len()).find(differs);
            differ += usize::from(first.is_some());
            let hit = cache.find(&key, &text[..text.len() - 1]).unwrap();
            let from = hit.as_ref().map_or(0, |hit| hit.len);
            assert!(from <= first.unwrap_or(text.len()), "{} {seed}: from {from}, {first:?} differs", case.name);
            shared += usize::from(from > 0);
            let mut alone = match hit {
                Some(hit) => Alone::from(&*case.model, SequenceRow::new(hit.state)),
                None => Alone::new(&*case.model, MODE),
            };
            let symbols = case.model.card().vocabulary.len();
            let actual = alone.feed(&text[from..]);
            assert!(
                actual.0 == cold[from * symbols..] && actual.1 == marks[from..],
                "{} {seed} from {from}",
                case.name
            );
        }
    }
    // The test needs texts on which the modes differ.
    assert!(differ > 5 && shared > 5, "{differ} {shared}");
}

/// A state agrees with the predictor up to the end of the last segment before the first different boundary.
#[test]
fn agreement_ends_at_the_first_different_boundary() {
    for case in Case::all() {
        let text = &case.golden.ids("long.ids")[1..120];
        let (_, marks) = full(&*case.model, text, &MODE);
        let ends: Vec<usize> = (0..text.len()).filter(|&position| marks[position].boundary).collect();
        for difference in (0..text.len()).step_by(7) {
            let cut = |position: usize| marks[position].boundary != (position == difference);
            let items: Vec<u32> = (0..text.len()).map(|position| trace::item(text[position], cut(position))).collect();
            let before = ends.iter().filter(|&&end| end < difference).max().map_or(0, |end| end + 1);
            for size in [1, 10, items.len()] {
                let row = replay(&case, &items, size);
                assert_eq!(row.state.agreed(), before, "{} differs at {difference}, by {size}", case.name);
            }
            // After a rollback to the difference, text with the predictor's boundaries agrees to its end.
            let mut alone = Alone::from(&*case.model, replay(&case, &items, 50));
            alone.rows[0].state.rollback(difference).unwrap();
            alone.feed(&text[difference..]);
            let agreed = ends.last().map_or(0, |end| end + 1);
            assert_eq!(alone.rows[0].state.agreed(), agreed, "{} after {difference}", case.name);
        }
    }
}

#[test]
fn a_fork_of_a_row_in_flight_has_its_previous_state() {
    for case in Case::all() {
        let any = prompt(&case)[0];
        // The text ends in an open segment and is fed with its boundaries.
        let mut items: Vec<u32> = prompt(&case);
        items.extend([any, any, any].map(|symbol| trace::item(symbol, false)));
        let mut rows = [replay(&case, &items, 100)];
        let model = &*case.model;
        let mut scratch = model.scratch();
        let before = next(&case, SequenceRow::new(rows[0].state.fork()), any);
        rows[0].set(&[trace::END], Want::Last);
        model.symbol_step(&mut rows, &[0], &mut scratch).unwrap();
        assert_eq!(rows[0].status, StepStatus::Waiting);
        assert!(rows[0].state.rollback(0).is_err(), "{}: in flight", case.name);
        assert!(next(&case, SequenceRow::new(rows[0].state.fork()), any) == before, "{}", case.name);
        model.segment_step(&mut rows, &[0], &mut scratch).unwrap();
        assert!(next(&case, SequenceRow::new(rows[0].state.fork()), any) == before, "{}", case.name);
        model.finish_step(&mut rows, &[0], &mut scratch).unwrap();
        let after = rows[0].logits.clone();
        // The end of the segment may also be part of the symbol's item.
        if let Some(last) = items.last_mut() {
            *last = trace::item(any, true);
        }
        let (last, rest) = items.split_last().unwrap();
        let mut again = Alone::from(model, replay(&case, rest, 100));
        assert!(again.feed(&[*last]).0 == after, "{}", case.name);
        // A rollback to before the end opens the segment again.
        rows[0].state.rollback(items.len() - 1).unwrap();
        let [row] = rows;
        let open = next(&case, SequenceRow::new(row.state.fork()), trace::item(any, false));
        assert!(next(&case, replay(&case, rest, 3), trace::item(any, false)) == open, "{}", case.name);
    }
}

#[test]
fn misplaced_trace_items_are_errors() {
    for case in Case::all() {
        let model = &*case.model;
        let step = |items: &[u32], feed: &[u32]| {
            let mut rows = [replay(&case, items, 100)];
            rows[0].set(feed, Want::Last);
            advance(model, &mut rows, &[0], &mut model.scratch()).map(|()| rows[0].logits.clone())
        };
        let any = prompt(&case)[0];
        assert!(step(&[], &[trace::END]).is_err(), "a segment is empty");
        assert!(step(&[trace::item(any, true)], &[trace::END]).is_err());
        assert!(step(&[any], &[trace::BEGIN]).is_err(), "a text begins twice");
        assert!(step(&[], &[any, trace::END]).is_err() && step(&[], &[trace::BEGIN, any]).is_err());
        assert!(step(&[], &[trace::BEGIN]).unwrap() == case.first_logits());
        let mut rows = [replay(&case, &[any], 1)];
        rows[0].state.rollback(0).unwrap();
        rows[0].set(&[trace::BEGIN], Want::All);
        advance(model, &mut rows, &[0], &mut model.scratch()).unwrap();
        assert!(rows[0].logits == case.first_logits(), "{}: after a rollback too", case.name);
    }
}
