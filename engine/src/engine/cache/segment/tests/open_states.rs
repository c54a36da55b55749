//! Open states: those of texts that end within a segment or after their shared prefix.

use super::*;
use crate::{
    decode::{
        random::{Purpose, uniform},
        replay::{ReplayStart, SkippedSegments},
        shared_prefix::SharedPrefix,
    },
    engine::cache::segment::open_states::{MAX_OPEN_STATES, OpenMatch, OpenState},
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
fn a_segment_of_a_continuation_gets_no_entry() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity { entries: 2, ..Capacity::with_bytes(1 << 20) });
    let keep_fork = |cache: &mut SegmentCache, document: &[u32], tried: &[u32]| {
        let fork = SharedPrefix::new(document.to_vec()).fork(tried);
        let state = PagedState::new(&fork.symbols().to_vec(), &alive);
        assert!(cache.keep(&key("a"), fork.text(), &state).unwrap());
        cache.keep_open(&key("a"), fork.text(), Box::new(state)).unwrap();
    };
    keep_fork(&mut cache, &[1, 0, 2], &[]);
    assert!(keep(&mut cache, &[7, 0], &alive));
    for tried in [&[2, 0][..], &[3, 0, 4], &[3, 0, 4, 0]] {
        keep_fork(&mut cache, &[1, 0, 2], tried);
        let text = [&[1, 0, 2], tried].concat();
        assert_eq!(checked(&mut cache, &[&text[..], &[5]].concat(), &alive), text.len());
    }
    assert_eq!(checked(&mut cache, &[1, 0, 2, 3, 0, 5], &alive), 3, "an open state cannot be rolled back");
    assert_eq!((cache.usage().entries, cache.usage().evictions), (2, 0));
    // the entry of the document was used later than the other one
    assert!(keep(&mut cache, &[8, 0], &alive));
    assert_eq!([[1, 0, 9], [7, 0, 9], [8, 0, 9]].map(|text| checked(&mut cache, &text, &alive)), [2, 0, 2]);
    // the document now contains the segment, so a continuation of it stores an entry there
    keep_fork(&mut cache, &[1, 0, 2, 2, 0], &[6]);
    while cache.drop_open_state().is_some() {}
    assert_eq!(checked(&mut cache, &[1, 0, 2, 2, 0, 7], &alive), 5);
}

#[test]
fn few_are_held() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 22));
    let text = |number: usize| [1, 0, 5, 5, 5, number as u32 + 1];
    (0..MAX_OPEN_STATES + 2).for_each(|number| keep_open(&mut cache, &text(number), &alive));
    assert_eq!([0, 1, 2, MAX_OPEN_STATES].map(|number| checked(&mut cache, &text(number), &alive)), [2, 2, 6, 6]);
    cache.clear();
    assert_eq!((cache.usage().bytes, alive.load(SeqCst)), (0, 0));
    // a long text would take too much of the cache, and leaves the others there
    let mut small = SegmentCache::new(Capacity::with_bytes(8_000));
    keep_open(&mut small, &[1, 0, 2, 2], &alive);
    keep_open(&mut small, &[&[1, 0][..], &[3; 200]].concat(), &alive);
    assert_eq!(checked(&mut small, &[&[1, 0][..], &[3; 201]].concat(), &alive), 2);
    assert_eq!(checked(&mut small, &[1, 0, 2, 2], &alive), 4);
}

#[test]
fn entries_of_a_full_cache_make_room() {
    let alive = Arc::default();
    let mut cache = SegmentCache::new(Capacity::with_bytes(100_000));
    let mut texts = (10..).map(|number| [number, number, 0]);
    while cache.usage().evictions < 5 {
        keep(&mut cache, &texts.next().unwrap(), &alive);
    }
    keep_open(&mut cache, &[1, 0, 5, 5, 5], &alive);
    assert_eq!(checked(&mut cache, &[1, 0, 5, 5, 5, 6], &alive), 5);
    let evictions = cache.usage().evictions;
    texts.by_ref().take(20).for_each(|text| assert!(keep(&mut cache, &text, &alive)));
    assert!(cache.usage().bytes <= 100_000 && cache.usage().evictions >= evictions + 20);
    assert_eq!(checked(&mut cache, &[1, 0, 5, 5, 5, 6], &alive), 5, "later entries replace entries");
    // a row that needs pages gets those of open states first
    let entries = cache.usage().entries;
    assert!(cache.evict().is_some());
    assert_eq!(cache.usage().entries, entries);
    assert_eq!(checked(&mut cache, &[1, 0, 5, 5, 5, 6], &alive), 2);
    // open states with many pages of their own give way to entries
    let long = |number: u32| [&[1, 0][..], &[number; 60]].concat();
    (10..20).for_each(|number| keep_open(&mut cache, &long(number), &alive));
    assert!(cache.usage().bytes <= 100_000 && cache.usage().entries > entries / 2, "{:?}", cache.usage());
    assert!((10..20).filter(|&number| checked(&mut cache, &long(number), &alive) == 62).count() < 3);
}

fn opened(key: u32, text: &[u32], alive: &Arc<AtomicUsize>) -> OpenState<u32> {
    OpenState::new(key, TreeKey::WHOLE, text.into(), Box::new(PagedState::new(&[], alive)), 1)
}

#[test]
fn the_longest_state_is_that_of_a_naive_search() {
    let alive = Arc::default();
    let mut found = 0;
    for round in 0..2_000 {
        let dice = |draw, sides| (uniform(round, Purpose::Sampling, draw) * sides as f32) as usize;
        let symbols = |first| (0..dice(first, 7)).map(|index| dice(first + 1 + index, 2) as u32).collect();
        let mut states = OpenStates::new();
        let mut texts: Vec<(u32, Vec<u32>)> = Vec::new();
        for number in 0..12 {
            let text: Vec<u32> = symbols(100 + 10 * number);
            let key = number as u32 % 2;
            let own = (key, text);
            if !own.1.is_empty() && !texts.contains(&own) {
                states.push(opened(key, &own.1, &alive));
                texts.push(own);
            }
        }
        let text: Vec<u32> = symbols(300);
        let shortest = dice(400, 3);
        let all = texts.iter().enumerate();
        let serving = all.filter(|(_, (key, own))| *key == 1 && own.len() > shortest && text.starts_with(own));
        let naive = serving.max_by_key(|(_, (_, own))| own.len());
        let naive = naive.map(|(index, (_, own))| OpenMatch { index, len: own.len() });
        assert_eq!(states.longest(&1, &text, shortest), naive);
        let shared = SharedPrefix::new(text[..dice(401, text.len() + 1)].to_vec());
        let prefix = states.longest(&1, shared.text(), shortest);
        assert_eq!(prefix, states.longest(&1, &text[..shared.len()], shortest));
        let fork = shared.fork(&text[shared.len()..]);
        assert_eq!(states.longest(&1, fork.text(), shortest), naive);
        found += usize::from(naive.is_some());
    }
    assert!(found > 300, "{found}");
}

/// The state depends on the symbols from 2,500 on, and on the text before if it counts segments. Texts are cut at 2,048.
#[test]
fn a_windowed_state_serves_all_texts_with_the_symbols_that_it_depends_on() {
    let alive = Arc::default();
    let text: Vec<u32> = (0..3000).map(|index| if index % 7 == 6 { 0 } else { 1 + index % 3 }).collect();
    let changed_at = |position: usize| {
        let mut text = [&text[..], &[5]].concat();
        text[position] = 9;
        text
    };
    for skipped in [None, Some(SkippedSegments { count: 1, next_start: 2501, next_end: 2504 })] {
        let mut state = PagedState::windowed(&text, Some(16), &alive);
        state.replay_start = Some(ReplayStart { symbol: 2500, valid_from: 2510, skipped });
        let mut cache = SegmentCache::new(Capacity::with_bytes(1 << 20));
        cache.keep_open(&key("a"), &text, Box::new(state)).unwrap();
        let served = [3000, 5, 2047, 2048, 2998].map(|position| cache.known(&key("a"), &changed_at(position)));
        let before = if skipped.is_some() { 0 } else { 3000 };
        assert_eq!(served, [3000, before, before, 0, boundary(&text)]);
        // the entry and the open state keep only the symbols after the cut
        let symbols = cache.usage().bytes - cache.usage().page_bytes;
        assert!((2 * 952 * 4..3000 * 4).contains(&symbols), "{symbols}");
    }
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
            0..3 => {
                let (document, tried) = text.split_at(dice(2, len + 1));
                let fork = SharedPrefix::new(document.to_vec()).fork(tried);
                cache.keep_open(&key("a"), fork.text(), Box::new(row)).unwrap();
            }
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
