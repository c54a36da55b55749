//! What one step feeds: a symbol of every row that decodes, and beside these a bounded number of given symbols.
//!
//! Hot path: allocates nothing once its lists have grown to the number of rows.
//!
//! A step's budget is [`Rules::chunk`](super::Rules) symbols. Rows that decode take theirs first, but at most half: so no
//! prompt stalls running streams by more than a chunk, and no crowd of streams keeps prompts out. What is left is shared by
//! the prompts. Half goes to the most senior of them, so that the oldest is always done within a bounded number of steps,
//! whoever comes. The other half goes round among all of them in slices, so that a short prompt is not behind long ones.

use super::rank::Rank;

/// Turns that a step's budget is cut into for the prompts that share it.
const SLICES: usize = 4;

/// What a running row can do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Doing {
    /// It was fed and is not ready.
    Busy,
    /// Its reader is behind: for so long that it makes way if somebody waits, or not yet.
    Paused {
        /// Whether it makes way.
        yields: bool,
    },
    /// It has a sampled symbol to feed.
    Decoding,
    /// It has so many given symbols to feed.
    Prefilling(usize),
}

/// What a row is to be fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Feed {
    /// The row, by its place among those the step is laid out for.
    pub(in crate::engine) row: usize,
    /// Symbols.
    pub(in crate::engine) symbols: usize,
}

/// A row with given symbols to feed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prompt {
    pub(super) row: usize,
    pub(super) rank: Rank,
    /// When it last had a slice; who waits longest is next.
    pub(super) turn: u64,
    /// Symbols to feed.
    pub(super) left: usize,
    /// Symbols that it is fed in this step.
    pub(super) fed: usize,
}

/// Shares a step's budget among prompts, beside so many rows that decode. Those that had a slice get a new turn.
pub(super) fn share(chunk: usize, decoding: usize, prompts: &mut [Prompt], turns: &mut u64) {
    let mut budget = chunk.saturating_sub(decoding).max(chunk.div_ceil(2));
    if let Some(senior) = prompts.iter_mut().min_by_key(|prompt| prompt.rank) {
        senior.fed = senior.left.min(budget.div_ceil(2));
        budget -= senior.fed;
    }
    prompts.sort_unstable_by_key(|prompt| prompt.turn);
    let slice = (chunk / SLICES).max(1);
    while budget > 0 {
        let before = budget;
        for prompt in prompts.iter_mut() {
            let more = (prompt.left - prompt.fed).min(slice).min(budget);
            if more > 0 {
                prompt.fed += more;
                budget -= more;
                *turns += 1;
                prompt.turn = *turns;
            }
        }
        if budget == before {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn prompts(lefts: &[usize]) -> Vec<Prompt> {
        let prompt = |(row, &left): (usize, &usize)| {
            let rank = Rank::new(row as u64, 0, 1, row as u64);
            Prompt { row, rank, turn: row as u64, left, fed: 0 }
        };
        lefts.iter().enumerate().map(prompt).collect()
    }

    fn fed(prompts: &[Prompt]) -> Vec<usize> {
        let mut fed = vec![0; prompts.len()];
        prompts.iter().for_each(|prompt| fed[prompt.row] = prompt.fed);
        fed
    }

    #[test]
    fn alone_a_prompt_has_all_of_the_budget() {
        let mut one = prompts(&[1000]);
        share(256, 0, &mut one, &mut 0);
        assert_eq!(fed(&one), [256]);
    }

    #[test]
    fn the_oldest_has_half_and_short_ones_are_not_behind_long_ones() {
        let mut four = prompts(&[1000, 1000, 1000, 20]);
        let mut turns = 9;
        share(256, 0, &mut four, &mut turns);
        // the other half is two slices
        assert_eq!(fed(&four), [128 + 64, 64, 0, 0]);
        four.iter_mut().for_each(|prompt| (prompt.left, prompt.fed) = (prompt.left - prompt.fed, 0));
        share(256, 0, &mut four, &mut turns);
        assert_eq!(fed(&four), [128 + 44, 0, 64, 20]);
    }

    #[test]
    fn streams_leave_prompts_at_least_half() {
        for (decoding, given) in [(0, 16), (3, 13), (8, 8), (300, 8)] {
            let mut one = prompts(&[1000]);
            share(16, decoding, &mut one, &mut 0);
            assert_eq!(fed(&one), [given], "{decoding}");
        }
    }

    proptest! {
        #[test]
        fn the_budget_is_used_up_and_never_exceeded(
            lefts in vec(1usize..300, 1..40), chunk in 1usize..400, decoding in 0usize..500,
        ) {
            let mut prompts = prompts(&lefts);
            share(chunk, decoding, &mut prompts, &mut 1000);
            let (sum, left): (usize, usize) = (fed(&prompts).iter().sum(), lefts.iter().sum());
            let budget = chunk.saturating_sub(decoding).max(chunk.div_ceil(2));
            prop_assert_eq!(sum, budget.min(left));
            prop_assert!(fed(&prompts).iter().zip(&lefts).all(|(fed, left)| fed <= left));
            prop_assert!(fed(&prompts)[0] >= lefts[0].min(budget.div_ceil(2)));
        }

        #[test]
        fn everybody_has_a_slice_within_a_round(lefts in vec(1usize..2000, 1..40), chunk in 2usize..400) {
            let (mut prompts, mut turns) = (prompts(&lefts), lefts.len() as u64);
            let mut had = vec![false; lefts.len()];
            // at least one slice a step goes round, and each serves somebody new
            for _ in 0..lefts.len() {
                share(chunk, 0, &mut prompts, &mut turns);
                for prompt in &mut prompts {
                    had[prompt.row] |= prompt.fed > 0;
                    (prompt.left, prompt.fed) = (prompt.left - prompt.fed, 0);
                }
            }
            prop_assert!(had.iter().all(|had| *had));
        }
    }
}
