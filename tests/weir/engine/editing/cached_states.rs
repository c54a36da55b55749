//! The states that searches leave in the segment cache, and searches whose text is no longer in the cache.

use super::{engine, open};
use crate::support::fixture_in;
use std::sync::Arc;
use tokio::runtime::Runtime;
use weir::{
    decode::{
        completion::{CompletionEnd, CompletionRules},
        contract::Model,
        edited_text::Splice,
    },
    engine::{Handle, Limits, editing::EditSession},
    kernels::Dtype,
};

/// A search computes the distributions after many segments that the text does not have. They must not displace other texts.
#[test]
fn a_search_adds_no_entries_for_segments_that_it_tries() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let model = fixture_in("whitespaces", Dtype::F32);
    let engine = engine(&model);
    let text = "abc de ".repeat(12);
    let mut session = open(&engine, &text);
    let complete = |session: &EditSession, end| {
        let rules = CompletionRules { count: 16, end, max_chars: 4 };
        let found = runtime.block_on(session.complete(session.text().text().len(), rules).unwrap().run()).unwrap();
        assert!(found.distributions > 20, "{end:?}: {} distributions", found.distributions);
        found
    };
    for end in [CompletionEnd::Segment, CompletionEnd::Length] {
        complete(&session, end);
        assert_eq!(engine.segment_cache_usage().entries, 1, "{end:?}");
    }
    // a segment that the text has is an entry, which takes the place of the shorter one
    session.splice(1, &[Splice { range: text.len()..text.len(), text: "ab c".into() }]).unwrap();
    assert!(complete(&session, CompletionEnd::Segment).reused >= text.len());
    assert_eq!(engine.segment_cache_usage().entries, 1);
}

/// The states of a text may be evicted while the session still has a distribution after it.
#[test]
fn an_evicted_text_is_read_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let pooled = fixture_in("whitespaces", Dtype::F32);
    let unpooled = fixture_in("vanilla", Dtype::F32);
    for (model, end) in
        [(&pooled, CompletionEnd::Length), (&pooled, CompletionEnd::Segment), (&unpooled, CompletionEnd::Length)]
    {
        read_once(&runtime, model, end);
    }
}

fn read_once(runtime: &Runtime, model: &Arc<dyn Model>, end: CompletionEnd) {
    let text = "abc de ".repeat(12);
    let rules = |max_chars| CompletionRules { count: 3, end, max_chars };
    let complete =
        |session: &EditSession, rules| runtime.block_on(session.complete(text.len(), rules).unwrap().run()).unwrap();
    let cold_engine = engine(model);
    let cold = complete(&open(&cold_engine, &text), rules(3));
    let measured = engine(model);
    complete(&open(&measured, &text), rules(1));
    let cache_bytes = 8 * measured.segment_cache_usage().bytes;
    let small = Handle::start(Arc::clone(model), Limits { cache_bytes, ..Limits::default() }).unwrap();
    let session = open(&small, &text);
    session.keep_distributions(1 << 16);
    assert_eq!(complete(&session, rules(1)).distributions, 1);
    // other texts take the place of its state, which is the least recently used one
    for number in 0..40_u8 {
        let letters = [char::from(b'f' + number % 20), if number < 20 { 'b' } else { 'c' }];
        let other = text.replace("ab", &String::from_iter(letters));
        complete(&open(&small, &other), rules(1));
    }
    assert!(small.segment_cache_usage().evictions > 4);
    let before = small.counters().prefill_chars;
    let warm = complete(&session, rules(3));
    let fed = small.counters().prefill_chars - before;
    assert_eq!((&warm.items, warm.reused, warm.recomputed), (&cold.items, 0, text.len()));
    assert_eq!((warm.expansions, warm.reused_distributions), (cold.expansions, 1));
    // the other requests feed some characters of the last word
    let most = text.len() + 10 * warm.distributions;
    assert!(fed as usize <= most && warm.distributions > 8, "{fed} characters, {} distributions", warm.distributions);
}
