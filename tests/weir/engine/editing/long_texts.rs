//! Documents that are longer than the pieces in which a session keeps their symbols.

use super::{alphabet, edge, words};
use crate::{decoder_shapes, hourglass, support::Dice};
use std::sync::Arc;
use weir::{
    decode::{
        completion::{CompletionEnd, CompletionRules},
        contract::Model,
        edited_text::Splice,
    },
    engine::{Handle, Limits, Terms, editing::EditSession},
};

/// Bytes of a document.
const TEXT_BYTES: usize = 6_000;
/// Splices of a document; every fourth is followed by a comparison.
const SPLICES: u64 = 80;

/// Returns models with windows, whose texts may have any length.
fn models() -> Vec<Arc<dyn Model>> {
    let wanted = ["windows", "learned-windows", "xpos, blocks of 11"];
    let all = hourglass::shapes().into_iter().chain(decoder_shapes::shapes());
    let models: Vec<_> = all.filter(|(name, _)| wanted.contains(&name.as_str())).map(|(_, model)| model).collect();
    assert_eq!(models.len(), wanted.len());
    models
}

fn open(engine: &Handle, text: &str) -> EditSession {
    EditSession::open(engine.clone(), Terms::default(), text.to_owned(), 0, 8 * TEXT_BYTES).unwrap()
}

/// Returns the last edge of a character within the first `bytes` bytes.
fn edge_before(text: &str, bytes: usize) -> usize {
    (0..=bytes.min(text.len())).rev().find(|&edge| text.is_char_boundary(edge)).unwrap_or(0)
}

/// Sessions keep their symbols or not, and the states of their texts are in the cache or were evicted.
#[test]
fn edits_of_a_long_text_give_the_results_of_cold_requests() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let rules = CompletionRules { count: 2, end: CompletionEnd::Length, max_chars: 2 };
    for (number, model) in models().into_iter().enumerate() {
        let name = model.card().name.clone();
        let engine =
            |cache_bytes| Handle::start(Arc::clone(&model), Limits { cache_bytes, ..Limits::default() }).unwrap();
        let complete =
            |session: &EditSession, cursor| runtime.block_on(session.complete(cursor, rules).unwrap().run()).unwrap();
        for (cache_bytes, symbol_bytes) in [(1 << 24, 1 << 20), (1 << 24, 0), (1, 1 << 20)] {
            let mut dice = Dice::new(10 * number as u64 + 1);
            let alphabet = alphabet(&*model);
            let warm = engine(cache_bytes);
            let mut session = open(&warm, &words(&mut dice, &alphabet, TEXT_BYTES));
            session.keep_symbols(symbol_bytes);
            let mut fork = session.clone();
            let mut reused = 0;
            for round in 1..=SPLICES {
                match dice.below(20) {
                    0 => fork = session.clone(),
                    1 => std::mem::swap(&mut session, &mut fork),
                    _ => {}
                }
                let text = session.text().text();
                let start =
                    if dice.below(6) > 0 { text.len().saturating_sub(dice.below(8)) } else { edge(&mut dice, text) };
                let start = edge_before(text, start);
                let removed = if dice.below(10) == 0 { 2_500 } else { dice.below(4) };
                let end = edge_before(text, start + removed).max(start);
                let added = if dice.below(10) == 0 { 2_500 } else { dice.below(3) };
                let typed = words(&mut dice, &alphabet, added);
                session.splice(round, &[Splice { range: start..end, text: typed }]).unwrap();
                if round % 4 != 0 {
                    continue;
                }
                let text = session.text().text().to_owned();
                let cursor = if dice.below(4) == 0 { edge(&mut dice, &text) } else { text.len() };
                let cursor = if cursor == 0 { text.len() } else { cursor };
                let cold_engine = engine(1 << 24);
                let own = complete(&session, cursor);
                let expected = complete(&open(&cold_engine, &text), cursor);
                assert_eq!(own.items, expected.items, "{name}, round {round} at {cursor} of {}", text.len());
                reused += own.reused;
            }
            assert_eq!(reused > 0, cache_bytes > 1, "{name}: {reused}");
            drop((session, fork, warm));
            assert_eq!(model.memory().in_use, 0, "{name}");
        }
    }
}
