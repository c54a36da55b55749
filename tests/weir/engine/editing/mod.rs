//! Sessions that edit a document give the results of cold requests for the same text, bit for bit, after any edits.

mod cached_states;
mod long_texts;
mod lookahead;
mod scheduling;

use crate::{
    lex,
    support::{Dice, fixture_in, hnet_in, lslm_in, storms},
};
use std::sync::Arc;
use weir::{
    decode::{
        completion::{CompletionEnd, CompletionRules},
        contract::{BoundaryOptions, Model},
        edited_text::Splice,
        options::{EmittedSymbol, Score},
    },
    engine::{
        Event, Handle, Job, Limits, Terms,
        editing::{EditSession, MAX_SCORED_BYTES},
    },
    error::Error,
    kernels::Dtype,
};

const TEXT_BYTES: usize = 2000;

fn engine(model: &Arc<dyn Model>) -> Handle {
    Handle::start(Arc::clone(model), Limits { cache_bytes: 1 << 24, ..Limits::default() }).unwrap()
}

fn open(engine: &Handle, text: &str) -> EditSession {
    EditSession::open(engine.clone(), Terms::default(), text.to_owned(), 0, TEXT_BYTES).unwrap()
}

/// Returns characters of the model: letters and spaces, if it has them.
fn alphabet(model: &dyn Model) -> Vec<char> {
    let vocabulary = &model.card().vocabulary;
    let readable = |text: &str| vocabulary.encode_exactly("text", text).is_ok_and(|ids| ids.len() == 1);
    let letters: Vec<char> = " abcdef".chars().filter(|letter| readable(&letter.to_string())).collect();
    if letters.len() > 1 {
        return letters;
    }
    let texts = vocabulary.text_ids().map(|id| vocabulary.decode(&[id])).filter(|text| readable(text));
    texts.filter_map(|text| text.chars().next()).take(7).collect()
}

fn words(dice: &mut Dice, alphabet: &[char], length: usize) -> String {
    (0..length).map(|_| alphabet[dice.below(alphabet.len())]).collect()
}

/// Returns the edge of a character of the text.
fn edge(dice: &mut Dice, text: &str) -> usize {
    let edges: Vec<usize> = text.char_indices().map(|(start, _)| start).chain([text.len()]).collect();
    edges[dice.below(edges.len())]
}

/// Returns the scores of a text's last `count` symbols.
fn scored(engine: &Handle, symbols: &[u32], count: usize) -> Vec<EmittedSymbol> {
    let boundaries = BoundaryOptions::default();
    let score = Score { symbols: symbols.to_vec(), logprobs: true, top: 0, boundaries, windows: None };
    let mut events = engine.submit(Job::Score(score), None).unwrap();
    let mut scored = Vec::new();
    while let Some(event) = events.blocking_recv() {
        if let Event::Characters(characters) = event.unwrap() {
            scored.extend(characters);
        }
    }
    scored.split_off(scored.len() - count)
}

/// Splices of a model's document, and how many of them lie between the comparisons after three successive ones.
fn storm_size() -> (u64, u64) {
    if storms() { (17_000, 20) } else { (500, 125) }
}

#[test]
fn edits_give_the_results_of_cold_requests() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let f32 = Dtype::F32;
    let models = [
        fixture_in("whitespaces", Dtype::Int8),
        fixture_in("gumbel", f32),
        lslm_in("dp", f32),
        hnet_in("two_stage", f32),
        lex::model("xpos_sliding", f32),
        lex::model("alibi_bca", f32),
    ];
    for (number, model) in models.into_iter().enumerate() {
        let name = model.card().name.clone();
        let mut dice = Dice::new(number as u64 + 1);
        let warm = engine(&model);
        let alphabet = alphabet(&*model);
        let mut session = open(&warm, &words(&mut dice, &alphabet, 60));
        session.keep_distributions(1 << 14);
        session.keep_symbols(1 << 14);
        let mut fork = session.clone();
        let mut reused = 0;
        let mut reused_distributions = 0;
        let (splices, between) = storm_size();
        for round in 1..=splices {
            match dice.below(40) {
                0 => fork = session.clone(),
                1 => std::mem::swap(&mut session, &mut fork),
                _ => {}
            }
            let before = session.text().text().to_owned();
            let start = edge(&mut dice, &before);
            let end =
                before[start..].char_indices().nth(dice.below(12)).map_or(before.len(), |(offset, _)| start + offset);
            // the text stays within the context of the smallest model
            let longest = if before.chars().count() > 100 { 1 } else { 12 };
            let added = dice.below(longest);
            let text = words(&mut dice, &alphabet, added);
            session.splice(round, &[Splice { range: start..end, text }]).unwrap();
            if round % between > 2 || session.text().text().chars().count() < 20 {
                continue;
            }
            let text = session.text().text().to_owned();
            let cold_engine = engine(&model);
            let cold = open(&cold_engine, &text);
            let kept = text.chars().count() - dice.below(12);
            let cursor = text.char_indices().nth(kept).map_or(text.len(), |(offset, _)| offset);
            let has_segment_ends = model.card().pooled && !model.card().begins_chunks;
            let ends = [CompletionEnd::Length, CompletionEnd::Word, CompletionEnd::Segment];
            let end = ends[dice.below(if has_segment_ends { 3 } else { 2 })];
            // long enough for requests that look ahead
            let max_chars = if dice.below(16) == 0 { 4 } else { 2 };
            let rules = CompletionRules { count: 3, end, max_chars };
            let own = runtime.block_on(session.complete(cursor, rules).unwrap().run()).unwrap();
            let expected = runtime.block_on(cold.complete(cursor, rules).unwrap().run()).unwrap();
            assert_eq!(own.items, expected.items, "{name}, {text:?} at {cursor}");
            assert_eq!((own.is_cut, own.expansions), (expected.is_cut, expected.expansions), "{name}");
            assert_eq!(expected.reused_distributions, 0, "{name}: a session that keeps none");
            let again = runtime.block_on(session.complete(cursor, rules).unwrap().run()).unwrap();
            assert_eq!(again.items, own.items, "{name}, asked again");
            reused_distributions += again.reused_distributions;
            assert_eq!(own.reused + own.recomputed, expected.recomputed, "{name}");
            reused += own.reused;
            if end == CompletionEnd::Length {
                let prefix = model.card().encode("text", &text[..cursor]).unwrap();
                // a shorter one ends with the model's end mark, which is no part of the text
                for item in own.items.iter().filter(|item| item.symbols.len() == rules.max_chars) {
                    let score = scored(&cold_engine, &[&prefix[..], &item.symbols].concat(), item.symbols.len());
                    let sum: f64 = score.iter().map(|character| f64::from(character.logprob.unwrap())).sum();
                    assert!((sum - item.logprob).abs() < 1e-4, "{name}: {sum} {item:?}");
                    let has_boundary = |index: &usize| score[*index].decision.is_some_and(|decision| decision.boundary);
                    let expected: Vec<usize> = (0..rules.max_chars - 1).filter(has_boundary).collect();
                    assert_eq!(item.boundaries, expected, "{name}: {item:?}");
                }
            }
            let range =
                edge(&mut dice, &text[..text.char_indices().nth(kept / 2).map_or(0, |(offset, _)| offset)])..cursor;
            let own = runtime.block_on(session.score(range.clone()).unwrap().run()).unwrap();
            let expected = runtime.block_on(cold.score(range.clone()).unwrap().run()).unwrap();
            assert!(own == expected && !own.characters.is_empty(), "{name}, {text:?}, {range:?}");
        }
        assert!(reused > 0, "{name}: no edit found the state before it");
        assert!(reused_distributions > 0, "{name}: no search found a distribution");
        drop(session);
        drop(fork);
        drop(warm);
        assert_eq!(model.memory().in_use, 0, "{name}");
    }
}

/// A typist who takes characters back and edits the text before the word gets what a session without a cache gets.
#[test]
fn keystrokes_reuse_what_the_last_searches_computed() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for model in [fixture_in("whitespaces", Dtype::Int8), lex::model("alibi_bca", Dtype::F32)] {
        let name = model.card().name.clone();
        let alphabet = alphabet(&*model);
        let mut dice = Dice::new(7);
        let warm = engine(&model);
        let mut session = open(&warm, &words(&mut dice, &alphabet, 30));
        session.keep_distributions(1 << 22);
        let rules = CompletionRules { count: 2, end: CompletionEnd::Length, max_chars: 2 };
        let mut computed = 0;
        let mut needed = 0;
        for round in 1..40 {
            let len = session.text().text().len();
            let typed = alphabet[dice.below(alphabet.len())].to_string();
            let last = session.text().text().chars().last().map_or(0, char::len_utf8);
            let splice = match dice.below(8) {
                0 => Splice { range: 0..session.text().text().chars().next().map_or(0, char::len_utf8), text: typed },
                1 | 2 if len > 20 => Splice { range: len - last..len, text: String::new() },
                _ if len > 60 => Splice { range: len - last..len, text: String::new() },
                _ => Splice { range: len..len, text: typed },
            };
            session.splice(round, &[splice]).unwrap();
            let text = session.text().text().to_owned();
            let cold_engine = engine(&model);
            let cold = open(&cold_engine, &text);
            let own = runtime.block_on(session.complete(text.len(), rules).unwrap().run()).unwrap();
            let expected = runtime.block_on(cold.complete(text.len(), rules).unwrap().run()).unwrap();
            assert_eq!((&own.items, own.is_cut), (&expected.items, expected.is_cut), "{name}: {text:?}");
            assert_eq!(own.expansions, expected.expansions, "{name}: {text:?}");
            computed += own.distributions;
            needed += expected.distributions;
            // asked again, nothing is computed
            let again = runtime.block_on(session.complete(text.len(), rules).unwrap().run()).unwrap();
            assert_eq!((again.distributions, again.recomputed, &again.items), (0, 0, &own.items), "{name}");
        }
        assert!(computed * 10 < needed * 9, "{name}: {computed} of {needed}");
    }
}

#[test]
fn an_edit_computes_what_follows_its_segment() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let model = fixture_in("whitespaces", Dtype::F32);
    let engine = engine(&model);
    let mut session = open(&engine, &"abc de ".repeat(12));
    let rules = CompletionRules { count: 1, end: CompletionEnd::Length, max_chars: 1 };
    let complete =
        |session: &EditSession, cursor| runtime.block_on(session.complete(cursor, rules).unwrap().run()).unwrap();
    assert_eq!((complete(&session, 84).reused, complete(&session, 40).recomputed), (0, 1));
    // the segment that ends at the 70th character is whole, and the one after it is open
    session.splice(1, &[Splice { range: 72..73, text: "xy".into() }]).unwrap();
    let edited = complete(&session, 85);
    assert_eq!((edited.reused, edited.recomputed), (70, 15));
}

/// The memory that is reserved for scores suffices for a text that is spelled out.
#[test]
fn spelled_out_digits_fit_the_bytes_of_a_score() {
    let model = fixture_in("whitespaces", Dtype::F32);
    let engine = engine(&model);
    let card = model.card();
    for part in ["3", "3a", "a"] {
        let text = part.repeat(240.min(card.max_symbols / 7) / part.len());
        let symbols = card.encode("text", &text).unwrap();
        let held = symbols.capacity() * size_of::<u32>() + 256 * symbols.len();
        let reserved = open(&engine, &text).score_bytes(&(0..text.len()));
        assert!((held..16 * held).contains(&reserved), "{part}: {held} of {reserved}");
    }
}

#[test]
fn a_distribution_of_the_empty_text_is_not_computed() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let engine = engine(&lslm_in("dp", Dtype::F32));
    let session = open(&engine, "");
    let rules = CompletionRules { count: 2, end: CompletionEnd::Length, max_chars: 1 };
    let found = runtime.block_on(session.complete(0, rules).unwrap().run()).unwrap();
    assert_eq!((found.items.len(), found.distributions, found.reused_distributions), (2, 0, 0));
}

#[test]
fn wrong_requests_are_refused() {
    let model = fixture_in("whitespaces", Dtype::F32);
    let engine = engine(&model);
    let session = open(&engine, "abc");
    let rules = CompletionRules { count: 1, end: CompletionEnd::Word, max_chars: 9 };
    let refused = |cursor, rules| session.complete(cursor, rules).map(drop).unwrap_err().to_string();
    assert!(refused(4, rules).starts_with("complete.cursor_byte: expected at most 3, the bytes of the text, found 4"));
    assert!(refused(0, rules).starts_with("complete.cursor_byte"));
    assert!(refused(3, CompletionRules { count: 0, ..rules }).starts_with("complete.count: expected 1 to 16, found 0"));
    assert!(session.score(2..2).map(drop).unwrap_err().to_string().starts_with("score.end_byte"));
    let long = EditSession::open(engine.clone(), Terms::default(), "a".repeat(40_000), 0, 40_000).unwrap();
    let refused = long.score(1..MAX_SCORED_BYTES + 2).map(drop).unwrap_err().to_string();
    assert_eq!(refused, "score.end_byte: expected at most 32768 bytes in a range, found 32769");
    let uncached = Handle::start(model, Limits::default()).unwrap();
    let refused = EditSession::open(uncached, Terms::default(), String::new(), 0, 9).map(drop).unwrap_err();
    assert!(matches!(refused, Error::WrongKind { call: "Edit", .. }), "{refused}");
}
