//! Compares the search with a port of fairseq's generator, with its padded arrays and masks.

use super::*;
use proptest::prelude::*;

const MARKS: SpecialIds = SpecialIds { start: 2, pad: 1, end: 2, unknown: 3 };
const VOCABULARY: usize = 12;
const OPTIONS: SearchOptions = SearchOptions {
    beam: 2,
    length_penalty: 1.0,
    min_tokens: 0,
    max_tokens: 9,
    no_repeat_ngram: 0,
    rules: SearchRules::Fairseq,
    early_stopping: EarlyStopping::False,
    repetition_penalty: 1.0,
    sampling: None,
};

/// A model without arithmetic: logits from a hash of all tokens. There are `levels` different logits, so some are equal.
fn logits(seed: u64, fed: &[u32], levels: u64) -> Vec<f32> {
    let mix = |hash: u64, value: u64| (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    let hash = fed.iter().fold(seed, |hash, &token| mix(hash, u64::from(token) + 1));
    let logit = |token| (mix(mix(hash, token), 77) >> 20) % levels;
    (0..VOCABULARY as u64).map(|token| logit(token) as f32 * 6.0 / levels as f32 - 3.0).collect()
}

/// Uses the search's own log-softmax, which has tests of its own, so that results are equal to the bit.
fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let softmax = LogSoftmax::new(logits).unwrap();
    logits.iter().map(|&logit| softmax.logprob(logit)).collect()
}

/// Returns the indices of the k largest values; equals in order.
fn topk(values: &[f32], k: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..values.len()).collect();
    indices.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    indices.truncate(k);
    indices
}

/// Returns the tokens that would repeat an n-gram, searched in the complete padded row.
fn repeats(row: &[u32], step: usize, size: usize) -> Vec<u32> {
    if size == 0 || step + 2 < size {
        return Vec::new();
    }
    let latest = &row[step + 2 - size..=step];
    let runs = row.windows(size).filter(|run| run[size - 1] != MARKS.pad && &run[..size - 1] == latest);
    runs.map(|run| run[size - 1]).collect()
}

/// `SequenceGenerator._generate` for one sentence.
fn naive(options: &SearchOptions, seed: u64, levels: u64) -> Vec<(Vec<u32>, f32)> {
    let beam = options.beam;
    let end = MARKS.end as usize;
    let width = options.max_tokens + 2;
    let mut tokens = vec![vec![MARKS.pad; width]; beam];
    let mut scores = vec![vec![0.0_f32; width]; beam];
    tokens.iter_mut().for_each(|row| row[0] = MARKS.start);
    let mut finalized: Vec<(Vec<u32>, f32)> = Vec::new();
    for step in 0..=options.max_tokens {
        let mut all = Vec::new();
        for row in 0..if step == 0 { 1 } else { beam } {
            let mut lprobs = log_softmax(&logits(seed, &tokens[row][..=step], levels));
            lprobs[MARKS.pad as usize] = f32::NEG_INFINITY;
            if step >= options.max_tokens {
                (0..VOCABULARY).filter(|&token| token != end).for_each(|token| lprobs[token] = f32::NEG_INFINITY);
            } else if step < options.min_tokens {
                lprobs[end] = f32::NEG_INFINITY;
            }
            for token in repeats(&tokens[row], step, options.no_repeat_ngram) {
                lprobs[token as usize] = f32::NEG_INFINITY;
            }
            let before = if step == 0 { 0.0 } else { scores[row][step - 1] };
            all.extend(lprobs.into_iter().map(|lprob| lprob + before));
        }
        let candidates: Vec<_> = topk(&all, (2 * beam).min(all.len() - 1))
            .into_iter()
            .map(|index| (all[index], index / VOCABULARY, index % VOCABULARY))
            .collect();
        let eos_mask: Vec<bool> =
            candidates.iter().map(|&(score, _, token)| token == end && score > f32::NEG_INFINITY).collect();
        let mut newly = false;
        for (&(score, row, _), _) in candidates.iter().zip(&eos_mask).take(beam).filter(|(_, eos)| **eos) {
            newly = true;
            if finalized.len() < beam {
                let mut text = tokens[row][1..step + 2].to_vec();
                text[step] = MARKS.end;
                let penalty = ((step + 1) as f64).powf(f64::from(options.length_penalty));
                finalized.push((text, score / penalty as f32));
            }
        }
        if newly && (finalized.len() == beam || step == options.max_tokens) {
            break;
        }
        // active candidates come first, then ended ones
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|&index| index + usize::from(eos_mask[index]) * candidates.len());
        let old_tokens = tokens.clone();
        let old_scores = scores.clone();
        for (row, &index) in order.iter().take(beam).enumerate() {
            let (score, parent, token) = candidates[index];
            tokens[row] = old_tokens[parent].clone();
            tokens[row][step + 1] = token as u32;
            scores[row] = old_scores[parent].clone();
            scores[row][step] = score;
        }
    }
    finalized.sort_by(|a, b| b.1.total_cmp(&a.1));
    finalized
}

/// Runs a search with rows that record what they were fed. Returns its hypotheses and the settled prefix after each step.
fn search(options: &SearchOptions, seed: u64, levels: u64) -> (Vec<Hypothesis>, Vec<Vec<u32>>) {
    let mut search = BeamSearch::new(options.clone(), MARKS, VOCABULARY);
    let mut rows = vec![vec![MARKS.start]];
    let mut settled = Vec::new();
    loop {
        let logits: Vec<_> = rows.iter().map(|row| logits(seed, row, levels)).collect();
        let outcome = search.advance(logits.iter().map(Vec::as_slice)).unwrap();
        settled.push(search.settled_prefix().to_vec());
        let SearchStep::Continue(moves) = outcome else { return (search.finished().to_vec(), settled) };
        assert!(moves.len() <= options.beam && search.rows() == moves.len());
        rows = moves.iter().map(|&RowMove { parent, token }| [rows[parent].as_slice(), &[token]].concat()).collect();
        for (index, row) in rows.iter().enumerate() {
            assert!(search.symbols_fed(index).eq(row.iter().copied()), "symbols_fed");
        }
    }
}

fn options() -> impl Strategy<Value = SearchOptions> {
    let penalty = prop_oneof![Just(1.0_f32), Just(0.0), Just(0.6), Just(2.0)];
    (1_usize..=5, penalty, 0_usize..8, 0_usize..10, prop_oneof![Just(0_usize), 2_usize..4]).prop_map(
        |(beam, length_penalty, min_tokens, more, no_repeat_ngram)| {
            let max_tokens = min_tokens + more;
            SearchOptions { beam, length_penalty, min_tokens, max_tokens, no_repeat_ngram, ..OPTIONS }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn searches_as_fairseq_does(options in options(), seed in any::<u64>(), levels in prop_oneof![Just(4_u64), Just(1 << 20)]) {
        let (actual, settled) = search(&options, seed, levels);
        let naive = naive(&options, seed, levels);
        let actual: Vec<_> = actual.into_iter().map(|text| (text.tokens, text.score)).collect();
        prop_assert_eq!(&actual, &naive);
        // a settled prefix only grows, and the best hypothesis begins with it
        if let Some((best, _)) = actual.first() {
            let text = &best[..best.len() - 1];
            prop_assert_eq!(settled.last().map(Vec::as_slice), Some(text));
            prop_assert!(settled.iter().all(|early| text.starts_with(early)));
            prop_assert!(settled.is_sorted_by_key(Vec::len));
        }
    }

    #[test]
    fn draws_each_path_separately(seed in any::<u64>(), beam in 1_usize..5, min in 0_usize..5) {
        let sampling = |seed| Some(Sampling { seed, ..Sampling::default() });
        let options = |beam, seed| SearchOptions { beam, min_tokens: min, sampling: sampling(seed), ..OPTIONS };
        let (mut together, _) = search(&options(beam, seed), seed, 1 << 20);
        let alone = |index: usize| search(&options(1, seed.wrapping_add(index as u64)), seed, 1 << 20).0.remove(0);
        let mut apart: Vec<_> = (0..beam).map(alone).collect();
        apart.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.tokens.cmp(&b.tokens)));
        together.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.tokens.cmp(&b.tokens)));
        prop_assert_eq!(&together, &apart);
        for text in &apart {
            prop_assert!((min..=9).contains(&(text.tokens.len() - 1)));
            prop_assert!(!text.tokens.contains(&MARKS.pad));
        }
    }
}

#[test]
fn ngrams_are_not_repeated() {
    let options = SearchOptions { beam: 3, min_tokens: 40, max_tokens: 60, no_repeat_ngram: 2, ..OPTIONS };
    let (actual, _) = search(&options, 9, 1 << 20);
    assert_eq!(actual.len(), 3);
    for text in actual {
        let fed: Vec<_> = [MARKS.start].into_iter().chain(text.tokens.iter().copied()).collect();
        let mut runs: Vec<_> = fed.windows(2).collect();
        runs.sort_unstable();
        let count = runs.len();
        runs.dedup();
        assert_eq!(runs.len(), count, "{:?}", text.tokens);
    }
}

#[test]
fn scores_are_normalised_sums_of_logprobs() {
    let options = SearchOptions { length_penalty: 2.0, min_tokens: 3, ..OPTIONS };
    let (actual, _) = search(&options, 5, 1 << 20);
    for text in actual {
        assert_eq!(text.tokens.len(), text.logprobs.len());
        let sum: f32 = text.logprobs.iter().sum();
        let score = sum / (text.tokens.len() as f32).powi(2);
        assert!((score - text.score).abs() < 1e-6, "{score} {}", text.score);
    }
}

#[test]
fn invalid_logits_are_rejected() {
    let search = BeamSearch::new(OPTIONS, MARKS, VOCABULARY);
    let complete = vec![0.0; VOCABULARY];
    assert!(search.clone().advance([complete.as_slice(); 2].into_iter()).is_err(), "two rows");
    assert!(search.clone().advance([&complete[1..]].into_iter()).is_err(), "too short");
    assert!(search.clone().advance([[f32::NAN; VOCABULARY].as_slice()].into_iter()).is_err(), "NaN");
}

/// transformers does not search with one beam: it takes the best token until that is the end mark, whatever the other options.
#[test]
fn one_beam_ends_at_the_first_end_mark() {
    let mut early = 0;
    for seed in 0..200 {
        let options = SearchOptions {
            beam: 1,
            rules: SearchRules::Transformers,
            early_stopping: if seed % 2 == 0 { EarlyStopping::Never } else { EarlyStopping::False },
            length_penalty: 3.0,
            max_tokens: 40,
            ..OPTIONS
        };
        let (found, _) = search(&options, seed, 1 << 20);
        let end = found[0].tokens.iter().position(|token| *token == MARKS.end);
        early += usize::from(end.is_some_and(|end| end + 1 < options.max_tokens));
        assert!(found.len() == 1 && end.is_none_or(|end| end + 1 == found[0].tokens.len()), "{:?}", found[0].tokens);
        let mut fed = vec![MARKS.start];
        for token in &found[0].tokens {
            assert_eq!(*token as usize, topk(&logits(seed, &fed, 1 << 20), 1)[0]);
            fed.push(*token);
        }
    }
    assert!(early > 100, "{early}");
}
