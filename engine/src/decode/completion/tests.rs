//! The search compared with all continuations, one by one.

use super::*;
use crate::decode::contract::SymbolBoundary;
use crate::text::{TextNormaliser, Vocabulary};
use proptest::prelude::*;

/// The search adds the exponentials of a distribution in f32.
const TOLERANCE: f64 = 1e-6;
const SYMBOLS: [&str; 4] = ["a", "b", " ", "\n"];

/// Logits that are a hash of the text; `sharpness` makes few texts probable.
fn logits(seed: u64, text: &[u32], sharpness: u64) -> Vec<f32> {
    let mix = |value: u64| (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31);
    let hash = text.iter().fold(mix(seed | 1), |hash, &symbol| mix(hash ^ u64::from(symbol + 1)));
    (0..SYMBOLS.len() as u64).map(|id| (mix(hash ^ (id + 7)) % (1 + 40 * sharpness)) as f32 / 20.0).collect()
}

/// A segment ends with a space.
fn distribution(seed: u64, text: &[u32], sharpness: u64) -> Distribution {
    let decision = |&symbol| SymbolBoundary { boundary: symbol == 2, depth: 0, probability: None, end_logprob: None };
    Distribution { logits: logits(seed, text, sharpness), boundary: text.last().map(decision) }
}

fn card() -> Card {
    Card::for_tests(Vocabulary::from_symbols(&SYMBOLS, TextNormaliser::None).unwrap())
}

/// Returns all continuations with their probabilities, most probable first.
fn all(seed: u64, sharpness: u64, rules: CompletionRules) -> Vec<Completion> {
    let mut complete = Vec::new();
    let mut open = vec![Completion { symbols: Vec::new(), logprob: 0.0, boundaries: Vec::new() }];
    while let Some(Completion { symbols, logprob, .. }) = open.pop() {
        let logits = logits(seed, &symbols, sharpness);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let probability = |id: usize| f64::from(logits[id]).exp() / sum;
        let ends: &[usize] = match rules.end {
            CompletionEnd::Word => &[2, 3],
            CompletionEnd::Line => &[3],
            CompletionEnd::Segment | CompletionEnd::Length => &[],
        };
        if !symbols.is_empty() && !ends.is_empty() {
            let end: f64 = ends.iter().map(|&id| probability(id)).sum();
            complete.push(Completion { symbols: symbols.clone(), logprob: logprob + end.ln(), boundaries: Vec::new() });
        }
        for id in (0..SYMBOLS.len()).filter(|id| !ends.contains(id)) {
            let symbols = [&symbols[..], &[id as u32]].concat();
            let next = Completion { logprob: logprob + probability(id).ln(), symbols, boundaries: Vec::new() };
            let ends_segment = rules.end == CompletionEnd::Segment && id == 2;
            let is_complete = next.symbols.len() == rules.max_chars || ends_segment;
            if is_complete { &mut complete } else { &mut open }.push(next);
        }
    }
    complete.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
    complete
}

fn search(seed: u64, sharpness: u64, rules: CompletionRules, width: usize) -> CompletionSearch {
    let mut search = CompletionSearch::new(rules, &card()).unwrap();
    loop {
        let expansions = search.next_expansions(width).nodes;
        if expansions.is_empty() {
            return search;
        }
        for node in expansions {
            let text = search.symbols(node);
            search.take(node, Arc::new(distribution(seed, &text, sharpness))).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_most_probable_of_all_are_found(
        seed: u64, sharpness in 0_u64..4, count in 1_usize..9, max_chars in 1_usize..5, width in 1_usize..9, kind in 0_usize..4,
    ) {
        let ends = [CompletionEnd::Word, CompletionEnd::Line, CompletionEnd::Segment, CompletionEnd::Length];
        let rules = CompletionRules { count, end: ends[kind], max_chars };
        let all = all(seed, sharpness, rules);
        let search = search(seed, sharpness, rules, width);
        prop_assert!(!search.is_cut());
        let completions = search.finish();
        prop_assert_eq!(completions.len(), count.min(all.len()));
        for (index, (found, expected)) in completions.iter().zip(&all).enumerate() {
            prop_assert!((found.logprob - expected.logprob).abs() < TOLERANCE, "{index}: {found:?} {expected:?}");
            let named = all.iter().find(|other| other.symbols == found.symbols).unwrap();
            prop_assert!((found.logprob - named.logprob).abs() < TOLERANCE, "equal texts have equal probabilities");
            prop_assert!(completions[..index].iter().all(|other| other.symbols != found.symbols), "distinct");
            // a segment ends with a space; the last character of a cut completion is not decided
            let spaces = found.symbols.iter().take(max_chars - 1).enumerate().filter(|(_, symbol)| **symbol == 2);
            prop_assert_eq!(&found.boundaries, &spaces.map(|(index, _)| index).collect::<Vec<_>>());
        }
    }
}

#[test]
fn requests_look_ahead_while_the_result_would_have_a_place_in_the_round() {
    let rules = CompletionRules { count: 2, end: CompletionEnd::Segment, max_chars: 4 };
    let mut search = CompletionSearch::new(rules, &card()).unwrap();
    let take = |search: &mut CompletionSearch, node, probabilities: [f32; 4]| {
        let logits = probabilities.iter().map(|probability| probability.ln()).collect();
        search.take(node, Arc::new(Distribution { logits, boundary: None })).unwrap();
    };
    let Expansions { nodes, floor } = search.next_expansions(3);
    assert_eq!((nodes.len(), floor), (1, f64::NEG_INFINITY), "nothing else is open");
    let ahead = search.lookahead(nodes[0], 9, floor);
    assert_eq!((ahead.max_symbols, ahead.stops_at_boundary), (3, true), "the last character is not expanded");
    take(&mut search, nodes[0], [0.5, 0.3, 0.15, 0.05]);
    let Expansions { nodes, floor } = search.next_expansions(2);
    assert!(nodes.len() == 2 && (floor - 0.3_f64.ln()).abs() < TOLERANCE, "as probable as the last one: {floor}");
    let ahead = search.lookahead(nodes[0], 1, floor);
    assert!((ahead.min_logprob - 0.6_f64.ln()).abs() < TOLERANCE && ahead.max_symbols == 1, "{ahead:?}");
    for node in nodes {
        take(&mut search, node, [0.9, 0.1, 0.0, 0.0]);
    }
    // the second one waits for its turn; there is room for all others
    let Expansions { nodes, floor } = search.next_expansions(8);
    assert!(nodes.len() == 4 && floor == f64::NEG_INFINITY, "{} {floor}", nodes.len());
    // two complete ones end the search
    let rules = CompletionRules { max_chars: 1, ..rules };
    let mut search = CompletionSearch::new(rules, &card()).unwrap();
    let root = search.next_expansions(1).nodes[0];
    assert_eq!(search.lookahead(root, 9, f64::NEG_INFINITY).max_symbols, 0);
    take(&mut search, root, [0.5, 0.3, 0.15, 0.05]);
    assert!(search.next_expansions(1).nodes.is_empty());
}

#[test]
fn a_search_has_a_limit() {
    // all texts are equally probable
    let rules = CompletionRules { count: 2, end: CompletionEnd::Length, max_chars: 9 };
    let search = search(1, 0, rules, 5);
    assert!(search.is_cut());
    assert_eq!(search.expansions(), MAX_EXPANSIONS);
    // what the search cannot reach is dropped
    assert!(search.queue.len() <= 2 * (rules.count + 1) + SYMBOLS.len(), "{}", search.queue.len());
    assert!(search.finish().is_empty(), "none was complete");
}

/// Each symbol is nearly certain, so a search that goes deep finds some completions and is cut before it has all of them.
#[test]
fn a_search_that_is_cut_returns_the_same_for_every_width() {
    let rules = CompletionRules { count: 16, end: CompletionEnd::Length, max_chars: 200 };
    let results = [1, 2, 3, 8].map(|width| {
        let mut search = CompletionSearch::new(rules, &card()).unwrap();
        let mut computed = 0;
        loop {
            let expansions = search.next_expansions(width).nodes;
            if expansions.is_empty() {
                break;
            }
            computed += expansions.len();
            for node in expansions {
                let mut logits = logits(5, &search.symbols(node), 1);
                logits[0] += 9.0;
                search.take(node, Arc::new(Distribution { logits, boundary: None })).unwrap();
            }
        }
        assert!(search.is_cut() && !search.found.is_empty(), "{}", search.found.len());
        assert_eq!(search.expansions(), MAX_EXPANSIONS);
        let most_waiting = WAITING_BYTES / (SYMBOLS.len() * size_of::<f32>());
        assert!(computed <= MAX_EXPANSIONS + most_waiting + width, "{computed}");
        search.finish()
    });
    assert!(results.iter().all(|result| *result == results[0]));
}

/// The limit is reached while every open continuation is more probable than the complete ones.
#[test]
fn a_search_that_is_cut_returns_the_best_that_it_completed() {
    let card = Card::for_tests(Vocabulary::byte_level(TextNormaliser::None));
    for width in [1, 8] {
        let rules = CompletionRules { count: 5, end: CompletionEnd::Length, max_chars: 3 };
        let mut search = CompletionSearch::new(rules, &card).unwrap();
        // every pushed completion, without pruning
        let mut complete: Vec<f64> = Vec::new();
        loop {
            let expansions = search.next_expansions(width).nodes;
            if expansions.is_empty() {
                break;
            }
            for node in expansions {
                let text = search.symbols(node);
                let own = text.iter().fold(7, |sum: u32, symbol| sum.wrapping_mul(31).wrapping_add(*symbol));
                let logits: Vec<f32> =
                    (0..256).map(|id: u32| (own.wrapping_mul(id + 1) % 97) as f32 / 1000.0).collect();
                let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
                let before = search.nodes[node].logprob;
                // only those of ASCII are compared
                if text.len() == 2 && text.iter().all(|&byte| byte < 128) {
                    complete.extend(logits[..128].iter().map(|&logit| before + f64::from(logit) - sum.ln()));
                }
                search.take(node, Arc::new(Distribution { logits, boundary: None })).unwrap();
            }
        }
        assert!(search.is_cut() && search.found.is_empty() && complete.len() > 1000);
        complete.sort_by(|a, b| b.total_cmp(a));
        let found = search.finish();
        let is_ascii = |found: &&Completion| found.symbols.iter().all(|&byte| byte < 128);
        let ascii: Vec<_> = found.iter().filter(is_ascii).collect();
        assert!(!ascii.is_empty());
        for (found, expected) in ascii.into_iter().zip(&complete) {
            assert!((found.logprob - expected).abs() < 1e-4, "{found:?}, {expected}");
        }
        assert!(found.len() == 5 && found.is_sorted_by(|a, b| a.logprob >= b.logprob), "{found:?}");
    }
}

#[test]
fn completions_of_bytes_are_whole_characters() {
    let card = Card::for_tests(Vocabulary::byte_level(TextNormaliser::None));
    let rules = CompletionRules { count: 3, end: CompletionEnd::Length, max_chars: 2 };
    let mut search = CompletionSearch::new(rules, &card).unwrap();
    // the lead byte of \u{e9} is likely, and then its second byte, a letter and another lead byte
    let likely = |bytes: &[u8]| (0..256).map(|id| if bytes.contains(&(id as u8)) { 9.0 } else { 0.0 }).collect();
    loop {
        let expansions = search.next_expansions(1).nodes;
        if expansions.is_empty() {
            break;
        }
        for node in expansions {
            let logits =
                likely(if search.symbols(node).is_empty() { &[0xc3, 0xff, b'a'] } else { &[0xa9, b'b', 0xc3] });
            search.take(node, Arc::new(Distribution { logits, boundary: None })).unwrap();
        }
    }
    let found: Vec<String> =
        search.finish().iter().map(|completion| card.vocabulary.decode(&completion.symbols)).collect();
    assert_eq!(found[..2], ["ab", "é"].map(String::from));
    assert!(found.len() == 3 && !found[2].contains('\u{fffd}'), "{found:?}");
}

#[test]
fn rules_are_checked() {
    let rules = |count, max_chars| CompletionRules { count, end: CompletionEnd::Word, max_chars };
    let message = |rules: CompletionRules| CompletionSearch::new(rules, &card()).unwrap_err().to_string();
    assert_eq!(message(rules(17, 4)), "complete.count: expected 1 to 16, found 17");
    assert_eq!(message(rules(1, 257)), "complete.max_chars: expected 1 to 256, found 257");
    let unpooled = Card { pooled: false, ..card() };
    let segment = CompletionRules { end: CompletionEnd::Segment, ..rules(1, 4) };
    assert!(matches!(segment.validate(&unpooled), Err(Error::WrongKind { call: "complete.until", .. })));
}
