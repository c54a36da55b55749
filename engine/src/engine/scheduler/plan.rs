//! Plans a step: what each running request is fed, by the rules of [`budget`].

use super::{
    Scheduler,
    budget::{self, EncodeShare, PromptShare},
    row_status::{RowActivity, RowStatus},
};

/// The feed of a running request in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Feed {
    /// Index of the request's status in the slice that the step was planned from.
    pub(crate) request: usize,
    /// Symbols for all its rows together; blocks if it encodes.
    pub(crate) symbols: usize,
}

impl<T> Scheduler<T> {
    /// Plans a step of the requests that [`update_rows`](Self::update_rows) was last called with. The step feeds at most
    /// `mixed_symbols` prompt symbols while other rows decode.
    pub(crate) fn plan(&mut self, statuses: &[RowStatus], mixed_symbols: usize, feeds: &mut Vec<Feed>) {
        feeds.clear();
        self.prompts.clear();
        let mut decoding = 0;
        for (request, status) in statuses.iter().enumerate() {
            let Some(Some(slot)) = self.slots.get(status.slot) else { continue };
            let left = match status.activity {
                RowActivity::Busy | RowActivity::Paused { .. } => continue,
                RowActivity::Decoding(symbols) => {
                    decoding += symbols;
                    feeds.push(Feed { request, symbols });
                    continue;
                }
                RowActivity::Prefilling(left) => left,
                RowActivity::Encoding { blocks, block_symbols } => blocks.saturating_mul(block_symbols),
            };
            self.prompts.push(PromptShare { request, rank: slot.rank, turn: slot.turn, left, fed: 0 });
        }
        let decodes = |status: &RowStatus| matches!(status.activity, RowActivity::Decoding(_) | RowActivity::Busy);
        let mixed = statuses.iter().any(decodes);
        let chunk = if mixed { mixed_symbols.clamp(1, self.rules.chunk) } else { self.rules.chunk };
        budget::share_prompts(chunk, decoding, &mut self.prompts, &mut self.turns);
        self.encodings.clear();
        for prompt in &self.prompts {
            let Some(status) = statuses.get(prompt.request) else { continue };
            let Some(Some(slot)) = self.slots.get_mut(status.slot) else { continue };
            slot.turn = prompt.turn;
            if let RowActivity::Encoding { blocks, block_symbols } = status.activity {
                let fed = i64::try_from(prompt.fed).unwrap_or(i64::MAX);
                slot.credit = slot.credit.saturating_add(fed);
                self.encode_credit = self.encode_credit.saturating_add(fed);
                self.encodings.push(EncodeShare {
                    request: prompt.request,
                    rank: slot.rank,
                    credit: slot.credit,
                    block_symbols,
                    left: blocks,
                    blocks: 0,
                });
            } else if prompt.fed > 0 {
                feeds.push(Feed { request: prompt.request, symbols: prompt.fed });
            }
        }
        self.plan_encoding(statuses, mixed, feeds);
    }

    fn plan_encoding(&mut self, statuses: &[RowStatus], mixed: bool, feeds: &mut Vec<Feed>) {
        if self.encodings.is_empty() {
            self.encode_credit = 0;
            return;
        }
        budget::share_blocks(&mut self.encode_credit, mixed, &mut self.encodings);
        for share in &self.encodings {
            let status = statuses.get(share.request);
            if let Some(Some(slot)) = status.and_then(|status| self.slots.get_mut(status.slot)) {
                slot.credit = share.credit;
            }
            if share.blocks > 0 {
                feeds.push(Feed { request: share.request, symbols: share.blocks });
            }
        }
    }
}
