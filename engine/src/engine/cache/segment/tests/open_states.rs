//! Open states: those of texts that end within a segment.

use super::*;
use crate::{
    decode::random::{Purpose, uniform},
    engine::cache::segment::open_states::MAX_OPEN_STATES,
};

fn keep_open(cache: &mut SegmentCache, text: &[u32], alive: &Arc<AtomicUsize>) {
    cache.keep_open(&key("a"), text, Box::new(PagedState::new(text, alive))).unwrap();
}

/// Checks that a hit has the state of what it serves, and that the cache counts the pages that exist. Returns what it serves.
fn checked(cache: &mut SegmentCache, text: &[u32], alive: &Arc<AtomicUsize>) -> usize {
    let known = cache.known(&key("a"), text);
    let hit = cache.find(&key("a"), text).unwrap();
    let len = hit.as_ref().map_or(0, |hit| hit.len);
    assert_eq!(len, known);
    if let Some(hit) = hit {
        assert_eq!(text_of(&*hit.state), text[..len]);
    }
    assert_eq!(cache.usage().page_bytes, alive.load(SeqCst) * PAGE_BYTES);
    assert_eq!(cache.evictable_bytes(), cache.usage().page_bytes);
    len
}

#[test]
fn a_text_serves_those_that_begin_with_all_of_it() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 20));
    keep_open(&mut cache, &[1, 0, 2, 2], &alive);
    keep_open(&mut cache, &[1, 0, 2, 2], &alive);
    keep_open(&mut cache, &[1, 0, 2, 2, 1], &alive);
    let mut served = |text: &[u32]| checked(&mut cache, text, &alive);
    assert_eq!((served(&[1, 0, 2, 2, 3, 3]), served(&[1, 0, 2, 2]), served(&[1, 0, 2, 2, 1, 1])), (4, 4, 5));
    assert_eq!((served(&[1, 0, 2]), served(&[1, 0, 2, 3, 3]), served(&[2, 0, 2, 2])), (2, 2, 0));
    assert_eq!((cache.usage().entries, cache.known(&key("b"), &[1, 0, 2, 2])), (1, 0));
    assert!(keep(&mut cache, &[1, 0, 2, 2, 1, 0], &alive));
    assert_eq!(checked(&mut cache, &[1, 0, 2, 2, 1, 0, 3], &alive), 6, "the end of a segment serves more");
    // open states are evicted first, the least recently used one before the others
    assert_eq!(checked(&mut cache, &[1, 0, 2, 2], &alive), 4);
    assert!(cache.evict().is_some());
    assert_eq!(checked(&mut cache, &[1, 0, 2, 2, 1], &alive), 4);
    assert!(cache.evict().is_some());
    assert_eq!(checked(&mut cache, &[1, 0, 2, 2, 1], &alive), 2);
    while cache.evict().is_some() {}
    assert_eq!((cache.usage().bytes, alive.load(SeqCst)), (0, 0));
}

#[test]
fn few_are_held() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 20));
    let text = |number: usize| [1, 0, 5, 5, 5, number as u32 + 1];
    (0..MAX_OPEN_STATES + 2).for_each(|number| keep_open(&mut cache, &text(number), &alive));
    assert_eq!([0, 1, 2, MAX_OPEN_STATES].map(|number| checked(&mut cache, &text(number), &alive)), [2, 2, 6, 6]);
    cache.clear();
    assert_eq!((cache.usage().bytes, alive.load(SeqCst)), (0, 0));
    // a long text would take too much of the cache
    let mut small = SegmentCache::new(Capacity::with_bytes(8_000));
    keep_open(&mut small, &[&[1, 0][..], &[3; 200]].concat(), &alive);
    assert_eq!(checked(&mut small, &[&[1, 0][..], &[3; 201]].concat(), &alive), 2);
}

/// Rows continue from hits, so that entries and open states share pages in every order.
#[test]
fn texts_of_a_storm_have_their_own_states() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity::with_bytes(20_000));
    let mut open_hits = 0;
    for round in 0..6_000 {
        let dice = |draw, sides| (uniform(round, Purpose::Sampling, draw) * sides as f32) as usize;
        let len = 1 + dice(0, 9);
        let text: Vec<u32> = (0..len).map(|index| dice(index + 3, 3) as u32).collect();
        let hit = cache.find(&key("a"), &text).unwrap();
        let mut row = hit.map_or_else(|| PagedState::new(&[], &alive), |hit| paged(&*hit.state).clone());
        text[row.len()..].iter().for_each(|&symbol| row.push(symbol));
        match dice(1, 8) {
            0..3 => cache.keep_open(&key("a"), &text, Box::new(row)).unwrap(),
            3..6 => {
                cache.keep(&key("a"), &text, &row).unwrap();
                drop(row);
            }
            6 => drop((row, cache.evict())),
            _ => drop(row),
        }
        let served = checked(&mut cache, &text, &alive);
        open_hits += usize::from(served > boundary(&text[..served]));
        assert!(cache.usage().bytes <= 20_000);
    }
    assert!(open_hits > 300, "{open_hits}");
    while cache.evict().is_some() {}
    assert_eq!((cache.usage().bytes, alive.load(SeqCst)), (0, 0));
}

fn paged(state: &dyn State) -> &PagedState {
    crate::decode::contract::state_ref(state).unwrap()
}
