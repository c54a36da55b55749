//! What one step feeds: a symbol of every row that decodes, and beside these a bounded number of given symbols.
//!
//! Hot path: allocates nothing once its lists have grown to the number of rows.
//!
//! A step's budget is [`Rules::chunk`](super::Rules) symbols. Rows that decode take theirs first, but at most half: so no
//! prompt stalls running streams by more than a chunk, and no crowd of streams keeps prompts out. What is left is shared by
//! the prompts. Half goes to the most senior of them, so that the oldest is always done within a bounded number of steps,
//! whoever comes. The other half goes round among all of them in slices, so that a short prompt is not behind long ones.
//!
//! A document is encoded in blocks, each of which may be larger than a slice, or than the whole budget. So its part of the
//! budget is credited to it, and it runs a block when it has any credit, on account of what is to come. What all documents run
//! in a step is at most what they were given together and one block: of those with credit the one with most goes first. Where
//! no stream waits a block runs in every step.

use super::rank::Rank;
use std::cmp::Reverse;

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
    /// It has a symbol to feed to each of so many sequences.
    Decoding(usize),
    /// It has so many given symbols to feed.
    Prefilling(usize),
    /// It has a document to encode, in blocks that cannot be cut.
    Encoding {
        /// Blocks that can run, as far as is known.
        blocks: usize,
        /// Symbols that one of them counts as.
        block: usize,
    },
}

/// What a row is to be fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Feed {
    /// The row, by its place among those the step is laid out for.
    pub(in crate::engine) row: usize,
    /// Symbols, those of all its sequences together; blocks, if it encodes.
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

/// A row with blocks to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    pub(super) row: usize,
    pub(super) rank: Rank,
    /// Symbols that it was given and has not used; less than nothing if it has used more.
    pub(super) credit: i64,
    /// Symbols that a block counts as.
    pub(super) block: usize,
    /// Blocks that can run.
    pub(super) left: usize,
    /// Blocks that run in this step.
    pub(super) run: usize,
}

/// Shares out what was given to those who encode: `account` is what all of them together were given and have not used.
pub(super) fn encode(account: &mut i64, beside_streams: bool, all: &mut [Blocks]) {
    let mut ran = false;
    loop {
        let able = all.iter_mut().filter(|one| one.left > 0);
        let Some(next) = able.max_by_key(|one| (one.credit, Reverse(one.rank))) else { break };
        let forced = !beside_streams && !ran;
        if *account <= 0 && !forced {
            break;
        }
        let block = i64::try_from(next.block).unwrap_or(i64::MAX);
        // a block that runs because nobody is in a hurry puts nobody into debt
        let price = if beside_streams { block } else { block.min((*account).max(0)) };
        (*account, next.credit) = (account.saturating_sub(price), next.credit.saturating_sub(price));
        (next.left, next.run, ran) = (next.left - 1, next.run + 1, true);
    }
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

    fn documents(credits: &[i64], block: usize) -> Vec<Blocks> {
        let one = |(row, &credit): (usize, &i64)| Blocks {
            row,
            rank: Rank::new(row as u64, 0, 1, row as u64),
            credit,
            block,
            left: 100,
            run: 0,
        };
        credits.iter().enumerate().map(one).collect()
    }

    #[test]
    fn beside_streams_documents_run_what_they_were_given_and_no_more_than_one_block_at_once() {
        let (mut account, mut ran, mut most) = (0, [0; 3], 0);
        let mut credits = [0; 3];
        for _ in 0..1000 {
            credits.iter_mut().for_each(|credit| *credit += 16);
            account += 3 * 16;
            let mut all = documents(&credits, 512);
            encode(&mut account, true, &mut all);
            most = most.max(all.iter().map(|one| one.run).sum());
            for one in all {
                (credits[one.row], ran[one.row]) = (one.credit, ran[one.row] + one.run);
            }
            assert_eq!(account, credits.iter().sum::<i64>());
        }
        // 48,000 symbols are 93.75 blocks
        assert_eq!((most, ran.iter().sum::<usize>()), (1, 94));
        assert!(ran.iter().all(|ran| (31..=32).contains(ran)), "{ran:?}");
    }

    #[test]
    fn alone_a_block_runs_in_every_step_and_nobody_owes_for_it() {
        let (mut account, mut credit) = (0, 0);
        for _ in 0..100 {
            (account, credit) = (account + 256, credit + 256);
            let mut one = documents(&[credit], 512);
            encode(&mut account, false, &mut one);
            assert_eq!(one[0].run, 1);
            credit = one[0].credit;
        }
        assert_eq!((account, credit), (0, 0));
        // small blocks fill the step
        let (mut account, mut one) = (256, documents(&[256], 64));
        encode(&mut account, false, &mut one);
        assert_eq!(one[0].run, 4);
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
