//! States from the segment cache, on each configuration.

use super::*;

/// Returns the length of the common prefix of two texts.
fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[test]
fn a_cached_state_equals_a_cold_run() {
    on_each(|configuration, dice| {
        let model = &*configuration.model;
        let key = Key::for_sequence(&"somebody".into(), &configuration.boundaries, model.card()).unwrap();
        let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 30));
        let symbols = model.card().vocabulary.len();
        let mut texts = vec![configuration.text(dice)];
        // Each text has the shortest length to which its state can be rolled back.
        let mut kept: Vec<(Vec<u32>, usize)> = Vec::new();
        for round in 0..10 {
            // The text is a prefix of a known text, followed by other symbols.
            let mut text = texts[dice.below(texts.len())].clone();
            if round > 0 {
                let cut = dice.below(text.len());
                let more = 1 + dice.below(60);
                let other = dice.text(more, symbols);
                text.splice(cut.., other);
            }
            let fresh = full(model, &text, &configuration.boundaries);
            let (mut alone, from) = match cache.find(&key, &text[..text.len() - 1]).unwrap() {
                Some(Hit { state, len }) => (Alone::from(model, SequenceRow::new(state)), len),
                None => (configuration.alone(), 0),
            };
            assert_eq!(alone.rows[0].state.len(), from);
            // The expected length is the longest prefix shared with an earlier text, up to the end of a segment.
            let ends = |&position: &usize| match model.card().pooled {
                true => position == 0 || fresh.1[position - 1].boundary,
                false => position.is_multiple_of(configuration.resume_step()),
            };
            let serves = |(known, earliest): &(Vec<u32>, usize)| {
                let shared = common_prefix(known, &text[..text.len() - 1]);
                // Positions that the windows have dropped are not available.
                (0..=shared).rev().find(ends).filter(|position| position >= earliest).unwrap_or(0)
            };
            assert_eq!(from, kept.iter().map(serves).max().unwrap_or(0), "{}", configuration.name);
            let actual = alone.feed(&text[from..]);
            assert!(
                difference(&actual.0, &fresh.0[from * symbols..]) <= configuration.tolerance(),
                "{}: {from}",
                configuration.name
            );
            assert_eq!(actual.1, fresh.1[from..], "{}", configuration.name);
            cache.keep(&key, &text, &*alone.rows[0].state).unwrap();
            kept.push((text.clone(), alone.rows[0].state.earliest()));
            texts.push(text);
        }
        let held = cache.usage().page_bytes;
        assert_eq!(held, model.memory().in_use, "{}: pages are not counted exactly once", configuration.name);
        assert_eq!(cache.evictable_bytes(), held, "{}: a page is used outside the cache", configuration.name);
        assert_eq!(std::iter::from_fn(|| cache.evict()).sum::<usize>(), held, "{}", configuration.name);
    });
}
