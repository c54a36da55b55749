//! Against a second way of doing it: fairseq's generator as it is written, with its padded arrays and masks.

use super::*;
use proptest::prelude::*;

const MARKS: SpecialIds = SpecialIds { start: 2, pad: 1, end: 2, unknown: 3 };
const VOCABULARY: usize = 12;

/// A model without arithmetic: logits from a hash of all tokens so far. `levels`: how many different logits there are, so that
/// there are equals.
fn logits(seed: u64, fed: &[u32], levels: u64) -> Vec<f32> {
    let mix = |hash: u64, value: u64| (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    let hash = fed.iter().fold(seed, |hash, &token| mix(hash, u64::from(token) + 1));
    let logit = |token| (mix(mix(hash, token), 77) >> 20) % levels;
    (0..VOCABULARY as u64).map(|token| logit(token) as f32 * 6.0 / levels as f32 - 3.0).collect()
}

/// By the search's own sums, which have tests of their own: here it is what is done with them, to the bit.
fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let normaliser = LogSoftmax::of(logits).unwrap();
    logits.iter().map(|&logit| normaliser.logprob(logit)).collect()
}

/// The k largest of all, the earlier of equals first: their places.
fn topk(values: &[f32], k: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..values.len()).collect();
    places.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    places.truncate(k);
    places
}

/// The tokens that would repeat a run, looked for in all of the padded row.
fn repeats(row: &[u32], step: usize, size: usize) -> Vec<u32> {
    if size == 0 || step + 2 < size {
        return Vec::new();
    }
    let latest = &row[step + 2 - size..=step];
    let runs = row.windows(size).filter(|run| run[size - 1] != MARKS.pad && &run[..size - 1] == latest);
    runs.map(|run| run[size - 1]).collect()
}

/// `SequenceGenerator._generate` for one sentence.
fn naive(rules: &SearchOptions, seed: u64, levels: u64) -> Vec<(Vec<u32>, f32)> {
    let (beam, end) = (rules.beam, MARKS.end as usize);
    let width = rules.max_tokens + 2;
    let mut tokens = vec![vec![MARKS.pad; width]; beam];
    let mut scores = vec![vec![0.0_f32; width]; beam];
    tokens.iter_mut().for_each(|row| row[0] = MARKS.start);
    let mut finalized: Vec<(Vec<u32>, f32)> = Vec::new();
    for step in 0..=rules.max_tokens {
        let mut all = Vec::new();
        for row in 0..if step == 0 { 1 } else { beam } {
            let mut lprobs = log_softmax(&logits(seed, &tokens[row][..=step], levels));
            lprobs[MARKS.pad as usize] = f32::NEG_INFINITY;
            if step >= rules.max_tokens {
                (0..VOCABULARY).filter(|&token| token != end).for_each(|token| lprobs[token] = f32::NEG_INFINITY);
            } else if step < rules.min_tokens {
                lprobs[end] = f32::NEG_INFINITY;
            }
            for token in repeats(&tokens[row], step, rules.no_repeat_ngram) {
                lprobs[token as usize] = f32::NEG_INFINITY;
            }
            let before = if step == 0 { 0.0 } else { scores[row][step - 1] };
            all.extend(lprobs.into_iter().map(|lprob| lprob + before));
        }
        let candidates: Vec<_> = topk(&all, (2 * beam).min(all.len() - 1))
            .into_iter()
            .map(|place| (all[place], place / VOCABULARY, place % VOCABULARY))
            .collect();
        let eos_mask: Vec<bool> =
            candidates.iter().map(|&(score, _, token)| token == end && score > f32::NEG_INFINITY).collect();
        let mut newly = false;
        for (&(score, row, _), _) in candidates.iter().zip(&eos_mask).take(beam).filter(|(_, eos)| **eos) {
            newly = true;
            if finalized.len() < beam {
                let mut text = tokens[row][1..step + 2].to_vec();
                text[step] = MARKS.end;
                let penalty = ((step + 1) as f64).powf(f64::from(rules.length_penalty));
                finalized.push((text, score / penalty as f32));
            }
        }
        if newly && (finalized.len() == beam || step == rules.max_tokens) {
            break;
        }
        // active ones come first, ended ones behind them
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|&place| place + usize::from(eos_mask[place]) * candidates.len());
        let (old_tokens, old_scores) = (tokens.clone(), scores.clone());
        for (row, &place) in order.iter().take(beam).enumerate() {
            let (score, from, token) = candidates[place];
            tokens[row] = old_tokens[from].clone();
            tokens[row][step + 1] = token as u32;
            scores[row] = old_scores[from].clone();
            scores[row][step] = score;
        }
    }
    finalized.sort_by(|a, b| b.1.total_cmp(&a.1));
    finalized
}

/// The search with rows that remember what they were fed, and what it had settled after each step.
fn search(rules: &SearchOptions, seed: u64, levels: u64) -> (Vec<Hypothesis>, Vec<Vec<u32>>) {
    let mut search = BeamSearch::new(rules.clone(), MARKS, VOCABULARY);
    let (mut rows, mut settled) = (vec![vec![MARKS.start]], Vec::new());
    loop {
        let given: Vec<_> = rows.iter().map(|row| logits(seed, row, levels)).collect();
        let outcome = search.advance(given.iter().map(Vec::as_slice)).unwrap();
        settled.push(search.settled_prefix().to_vec());
        let SearchStep::Continue(moves) = outcome else { return (search.finished().to_vec(), settled) };
        assert!(moves.len() <= rules.beam && search.rows() == moves.len());
        rows = moves.iter().map(|&RowMove { from, token }| [rows[from].as_slice(), &[token]].concat()).collect();
        for (index, row) in rows.iter().enumerate() {
            assert!(search.symbols_fed(index).eq(row.iter().copied()), "what a row was fed is known");
        }
    }
}

fn rules() -> impl Strategy<Value = SearchOptions> {
    let penalty = prop_oneof![Just(1.0_f32), Just(0.0), Just(0.6), Just(2.0)];
    (1_usize..=5, penalty, 0_usize..8, 0_usize..10, prop_oneof![Just(0_usize), 2_usize..4]).prop_map(
        |(beam, length_penalty, min, more, no_repeat_ngram)| SearchOptions {
            beam,
            length_penalty,
            min_tokens: min,
            max_tokens: min + more,
            no_repeat_ngram,
            sampling: None,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn searches_as_fairseq_does(rules in rules(), seed in any::<u64>(), levels in prop_oneof![Just(4_u64), Just(1 << 20)]) {
        let (found, settled) = search(&rules, seed, levels);
        let naive = naive(&rules, seed, levels);
        let found: Vec<_> = found.into_iter().map(|one| (one.tokens, one.score)).collect();
        prop_assert_eq!(&found, &naive);
        // what was settled stays, and is what the best begins with
        if let Some((best, _)) = found.first() {
            let text = &best[..best.len() - 1];
            prop_assert_eq!(settled.last().map(Vec::as_slice), Some(text));
            prop_assert!(settled.iter().all(|early| text.starts_with(early)));
            prop_assert!(settled.is_sorted_by_key(Vec::len));
        }
    }

    #[test]
    fn draws_each_path_by_itself(seed in any::<u64>(), beam in 1_usize..5, min in 0_usize..5) {
        let sampling = |seed| Some(Sampling { seed, ..Sampling::default() });
        let rules = |beam, seed| SearchOptions {
            beam, length_penalty: 1.0, min_tokens: min, max_tokens: 9, no_repeat_ngram: 0, sampling: sampling(seed),
        };
        let (mut together, _) = search(&rules(beam, seed), seed, 1 << 20);
        let alone = |index: usize| search(&rules(1, seed.wrapping_add(index as u64)), seed, 1 << 20).0.remove(0);
        let mut apart: Vec<_> = (0..beam).map(alone).collect();
        apart.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.tokens.cmp(&b.tokens)));
        together.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.tokens.cmp(&b.tokens)));
        prop_assert_eq!(&together, &apart);
        for one in &apart {
            prop_assert!((min..=9).contains(&(one.tokens.len() - 1)));
            prop_assert!(!one.tokens.contains(&MARKS.pad));
        }
    }
}

#[test]
fn runs_are_not_repeated() {
    let rules = SearchOptions {
        beam: 3,
        length_penalty: 1.0,
        min_tokens: 40,
        max_tokens: 60,
        no_repeat_ngram: 2,
        sampling: None,
    };
    let (found, _) = search(&rules, 9, 1 << 20);
    assert_eq!(found.len(), 3);
    for one in found {
        let fed: Vec<_> = [MARKS.start].into_iter().chain(one.tokens.iter().copied()).collect();
        let mut runs: Vec<_> = fed.windows(2).collect();
        runs.sort_unstable();
        let count = runs.len();
        runs.dedup();
        assert_eq!(runs.len(), count, "{:?}", one.tokens);
    }
}

#[test]
fn scores_are_of_their_tokens() {
    let rules = SearchOptions {
        beam: 2,
        length_penalty: 2.0,
        min_tokens: 3,
        max_tokens: 9,
        no_repeat_ngram: 0,
        sampling: None,
    };
    let (found, _) = search(&rules, 5, 1 << 20);
    for one in found {
        assert_eq!(one.tokens.len(), one.logprobs.len());
        let sum: f32 = one.logprobs.iter().sum();
        let score = sum / (one.tokens.len() as f32).powi(2);
        assert!((score - one.score).abs() < 1e-6, "{score} {}", one.score);
    }
}

#[test]
fn logits_that_are_none_are_refused() {
    let rules = SearchOptions {
        beam: 2,
        length_penalty: 1.0,
        min_tokens: 0,
        max_tokens: 3,
        no_repeat_ngram: 0,
        sampling: None,
    };
    let search = BeamSearch::new(rules, MARKS, VOCABULARY);
    let whole = vec![0.0; VOCABULARY];
    assert!(search.clone().advance([whole.as_slice(); 2].into_iter()).is_err(), "of two rows");
    assert!(search.clone().advance([&whole[1..]].into_iter()).is_err(), "too short");
    assert!(search.clone().advance([[f32::NAN; VOCABULARY].as_slice()].into_iter()).is_err(), "no numbers");
}
