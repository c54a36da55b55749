//! The symbol budget of a step: one symbol for every row that decodes, and a limited number of prompt symbols. Hot path:
//! allocates nothing once its lists have grown.
//!
//! Rows that decode take theirs first. Prompts get the rest of [`Rules::chunk`](super::Rules), but never less than half of it: a
//! prompt delays streams by at most a chunk, and streams cannot keep prompts out. Half of the prompts' part goes to the most
//! senior prompt, and all prompts take turns at slices of the other half. Requests of searches for completions are fed like rows
//! that decode; while a search runs, prompts get less.
//!
//! A document is encoded in blocks, which may be larger than the budget. Its part is credited to it, and it runs a block
//! whenever its credit is positive; the document with the most credit goes first. If no row decodes, a block runs in every step.

use crate::scheduler::tenants::Rank;
use std::cmp::Reverse;

/// Slices that a step's budget is cut into for the prompts that share it.
const SLICES: usize = 4;

#[derive(Debug, Clone, Copy)]
pub(super) struct PromptShare {
    pub(super) request: usize,
    pub(super) rank: Rank,
    /// Turn at which it last got a slice. The prompt that has waited longest is next.
    pub(super) turn: u64,
    /// Symbols left to feed.
    pub(super) left: usize,
    /// Symbols that it is fed in this step.
    pub(super) fed: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct EncodeShare {
    pub(super) request: usize,
    pub(super) rank: Rank,
    /// Symbols credited and not used; negative if it has used more.
    pub(super) credit: i64,
    /// Symbols that a block counts as.
    pub(super) block_symbols: usize,
    /// Blocks that can run.
    pub(super) left: usize,
    /// Blocks that run in this step.
    pub(super) blocks: usize,
}

/// Assigns blocks to documents. `total_credit` is the unused credit of all documents; `mixed` is true if other rows decode.
pub(super) fn share_blocks(total_credit: &mut i64, mixed: bool, shares: &mut [EncodeShare]) {
    let mut ran = false;
    loop {
        let can_run = shares.iter_mut().filter(|share| share.left > 0);
        let Some(next) = can_run.max_by_key(|share| (share.credit, Reverse(share.rank))) else { break };
        if *total_credit <= 0 && (mixed || ran) {
            break;
        }
        let block = i64::try_from(next.block_symbols).unwrap_or(i64::MAX);
        // a block that delays no stream costs no more than the credit there is
        let price = if mixed { block } else { block.min((*total_credit).max(0)) };
        *total_credit = total_credit.saturating_sub(price);
        next.credit = next.credit.saturating_sub(price);
        next.left -= 1;
        next.blocks += 1;
        ran = true;
    }
}

/// Shares a step's budget of `chunk` symbols among prompts, while `decoding` rows decode. A slice renews a prompt's turn.
pub(super) fn share_prompts(chunk: usize, decoding: usize, prompts: &mut [PromptShare], turns: &mut u64) {
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

    fn prompts(lefts: &[usize]) -> Vec<PromptShare> {
        let share = |(request, &left): (usize, &usize)| PromptShare {
            request,
            rank: Rank::new(request as u64, 0, 1, request as u64),
            turn: request as u64,
            left,
            fed: 0,
        };
        lefts.iter().enumerate().map(share).collect()
    }

    /// Symbols fed to each request.
    fn fed(prompts: &[PromptShare]) -> Vec<usize> {
        let mut fed = vec![0; prompts.len()];
        prompts.iter().for_each(|prompt| fed[prompt.request] = prompt.fed);
        fed
    }

    /// Removes what was fed, as after a step.
    fn advance(prompts: &mut [PromptShare]) {
        for prompt in prompts {
            prompt.left -= prompt.fed;
            prompt.fed = 0;
        }
    }

    fn documents(credits: &[i64], block_symbols: usize) -> Vec<EncodeShare> {
        let share = |(request, &credit): (usize, &i64)| EncodeShare {
            request,
            rank: Rank::new(request as u64, 0, 1, request as u64),
            credit,
            block_symbols,
            left: 100,
            blocks: 0,
        };
        credits.iter().enumerate().map(share).collect()
    }

    #[test]
    fn with_streams_documents_run_what_they_were_credited_and_at_most_one_block_a_step() {
        let mut total_credit = 0;
        let mut credits = [0; 3];
        let mut ran = [0; 3];
        let mut max_blocks = 0;
        for _ in 0..1000 {
            credits.iter_mut().for_each(|credit| *credit += 16);
            total_credit += 3 * 16;
            let mut shares = documents(&credits, 512);
            share_blocks(&mut total_credit, true, &mut shares);
            max_blocks = max_blocks.max(shares.iter().map(|share| share.blocks).sum());
            for share in shares {
                credits[share.request] = share.credit;
                ran[share.request] += share.blocks;
            }
            assert_eq!(total_credit, credits.iter().sum::<i64>());
        }
        // 48,000 symbols are 93.75 blocks
        assert_eq!((max_blocks, ran.iter().sum::<usize>()), (1, 94));
        assert!(ran.iter().all(|ran| (31..=32).contains(ran)), "{ran:?}");
    }

    #[test]
    fn alone_a_document_runs_a_block_in_every_step_without_debt() {
        let mut total_credit = 0;
        let mut credit = 0;
        for _ in 0..100 {
            total_credit += 256;
            let mut shares = documents(&[credit + 256], 512);
            share_blocks(&mut total_credit, false, &mut shares);
            assert_eq!(shares[0].blocks, 1);
            credit = shares[0].credit;
        }
        assert_eq!((total_credit, credit), (0, 0));
        // small blocks fill the step
        let mut shares = documents(&[256], 64);
        share_blocks(&mut 256, false, &mut shares);
        assert_eq!(shares[0].blocks, 4);
    }

    #[test]
    fn the_oldest_gets_half_and_short_prompts_do_not_wait_for_long_ones() {
        let mut shares = prompts(&[1000, 1000, 1000, 20]);
        let mut turns = 9;
        share_prompts(256, 0, &mut shares, &mut turns);
        // the other half is two slices
        assert_eq!(fed(&shares), [128 + 64, 64, 0, 0]);
        advance(&mut shares);
        share_prompts(256, 0, &mut shares, &mut turns);
        assert_eq!(fed(&shares), [128 + 44, 0, 64, 20]);
    }

    proptest! {
        #[test]
        fn the_budget_is_used_up_and_never_exceeded(
            lefts in vec(1usize..300, 1..40), chunk in 1usize..400, decoding in 0usize..500,
        ) {
            let mut prompts = prompts(&lefts);
            share_prompts(chunk, decoding, &mut prompts, &mut 1000);
            let fed = fed(&prompts);
            let budget = chunk.saturating_sub(decoding).max(chunk.div_ceil(2));
            prop_assert_eq!(fed.iter().sum::<usize>(), budget.min(lefts.iter().sum()));
            prop_assert!(fed.iter().zip(&lefts).all(|(fed, left)| fed <= left));
            prop_assert!(fed[0] >= lefts[0].min(budget.div_ceil(2)));
        }

        #[test]
        fn every_prompt_gets_a_slice_within_a_round(lefts in vec(1usize..2000, 1..40), chunk in 2usize..400) {
            let mut prompts = prompts(&lefts);
            let mut turns = lefts.len() as u64;
            let mut served = vec![false; lefts.len()];
            // at least one slice a step goes round, and each serves another prompt
            for _ in 0..lefts.len() {
                share_prompts(chunk, 0, &mut prompts, &mut turns);
                prompts.iter().for_each(|prompt| served[prompt.request] |= prompt.fed > 0);
                advance(&mut prompts);
            }
            prop_assert!(served.iter().all(|served| *served));
        }
    }
}
