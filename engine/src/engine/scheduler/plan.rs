//! Plans a step: what each running request is fed, by the rules of [`budget`].

use super::{
    SEARCH_STEPS, Scheduler,
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

/// The part of `--chunk` that prompts may have in any case while a search runs: a quarter.
const SEARCHING_SHARE: usize = 4;

/// Maximum prompt symbols of a step, so that it does not delay other rows for long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromptLimits {
    /// Limit while other rows decode.
    pub(crate) decoding: usize,
    /// Limit while a search for completions runs.
    pub(crate) searching: usize,
}

impl<T> Scheduler<T> {
    /// Plans a step of the requests that [`update_rows`](Self::update_rows) was last called with. Searches are fed before prompts,
    /// with at most half of the step's budget.
    pub(crate) fn plan(&mut self, statuses: &[RowStatus], limits: PromptLimits, feeds: &mut Vec<Feed>) {
        feeds.clear();
        self.prompts.clear();
        let mut decoding = 0;
        let mut searching = 0;
        for (request, status) in statuses.iter().enumerate() {
            let Some(Some(slot)) = self.slots.get(status.slot) else { continue };
            let left = match status.activity {
                RowActivity::Busy | RowActivity::Paused { .. } => continue,
                RowActivity::Decoding(symbols) => {
                    decoding += symbols;
                    feeds.push(Feed { request, symbols });
                    continue;
                }
                RowActivity::Searching(left) if searching + left <= self.rules.chunk / 2 => {
                    searching += left;
                    feeds.push(Feed { request, symbols: left });
                    continue;
                }
                RowActivity::Prefilling(left) | RowActivity::Searching(left) => left,
                RowActivity::Encoding { blocks, block_symbols } => blocks.saturating_mul(block_symbols),
            };
            self.prompts.push(PromptShare { request, rank: slot.rank, turn: slot.turn, left, fed: 0 });
        }
        let decodes = |status: &RowStatus| matches!(status.activity, RowActivity::Decoding(_) | RowActivity::Busy);
        let mixed = statuses.iter().any(decodes);
        self.steps_since_search = if searching > 0 { 0 } else { self.steps_since_search.saturating_add(1) };
        let mut chunk = self.rules.chunk;
        if mixed {
            chunk = chunk.min(limits.decoding.max(1));
        }
        if self.steps_since_search < SEARCH_STEPS {
            // models with slow steps would gain little, and their prompts would nearly stop
            chunk = chunk.min(limits.searching.max(self.rules.chunk / SEARCHING_SHARE).max(1));
        }
        budget::share_prompts(chunk, decoding + searching, &mut self.prompts, &mut self.turns);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::scheduler::{Beginning, Demand, FedSymbols, Rules, RunPermit};

    const CHUNK: usize = 256;

    /// Returns a scheduler with `count` running requests, and their permits.
    fn running(count: usize) -> (Scheduler<()>, Vec<RunPermit>) {
        let mut scheduler = Scheduler::new(Rules::new(count, 1, 1, 1 << 20, CHUNK));
        for _ in 0..count {
            let demand = Demand {
                tenant: "".into(),
                symbols: 1,
                uncached: 1,
                beginning: Beginning::default(),
                bytes: 0,
                rows: 1,
            };
            scheduler.submit((), demand, 0).unwrap();
        }
        let permits = scheduler.admitted.drain(..).map(|((), permit)| permit).collect();
        (scheduler, permits)
    }

    /// Plans a step. Returns the symbols that each request is fed.
    fn plan(scheduler: &mut Scheduler<()>, permits: &[RunPermit], activities: &[RowActivity]) -> Vec<usize> {
        plan_within(scheduler, permits, activities, PromptLimits { decoding: 100, searching: 80 })
    }

    fn plan_within(
        scheduler: &mut Scheduler<()>,
        permits: &[RunPermit],
        activities: &[RowActivity],
        limits: PromptLimits,
    ) -> Vec<usize> {
        let pairs = permits.iter().zip(activities);
        let statuses: Vec<RowStatus> =
            pairs.map(|(permit, &activity)| RowStatus::new(permit, activity, 0, 0, FedSymbols::default())).collect();
        let mut feeds = Vec::new();
        scheduler.plan(&statuses, limits, &mut feeds);
        let mut fed = vec![0; activities.len()];
        feeds.iter().for_each(|feed| fed[feed.request] += feed.symbols);
        fed
    }

    #[test]
    fn searches_do_not_wait_for_prompts() {
        let prompts = [RowActivity::Prefilling(1000); 15];
        let (mut scheduler, permits) = running(17);
        let sum = |fed: &[usize]| fed.iter().sum::<usize>();
        assert_eq!(sum(&plan(&mut scheduler, &permits, &prompts)), CHUNK);
        let searches = [&prompts[..], &[RowActivity::Searching(3), RowActivity::Searching(5)]].concat();
        for _ in 0..3 {
            let fed = plan(&mut scheduler, &permits, &searches);
            assert_eq!((&fed[15..], sum(&fed)), (&[3, 5][..], 80));
        }
        // between two requests of a search, steps stay short
        for _ in 1..SEARCH_STEPS {
            assert_eq!(sum(&plan(&mut scheduler, &permits, &prompts)), 80);
        }
        assert_eq!(sum(&plan(&mut scheduler, &permits, &prompts)), CHUNK);
        // next to a stream, too
        let streams = [&prompts[..], &[RowActivity::Decoding(1)]].concat();
        assert_eq!(sum(&plan(&mut scheduler, &permits, &streams)), 100);
        let both = [&streams[..], &[RowActivity::Searching(5)]].concat();
        assert_eq!(sum(&plan(&mut scheduler, &permits, &both)), 80);
    }

    #[test]
    fn prompts_keep_a_quarter_of_the_chunk_next_to_searches() {
        let (mut scheduler, permits) = running(2);
        let activities = [RowActivity::Prefilling(1000), RowActivity::Searching(2)];
        let fed = plan_within(&mut scheduler, &permits, &activities, PromptLimits { decoding: 100, searching: 16 });
        assert_eq!(fed.iter().sum::<usize>(), CHUNK / SEARCHING_SHARE);
    }

    #[test]
    fn searches_leave_half_of_a_step_to_prompts() {
        let (mut scheduler, permits) = running(32);
        let mut activities = vec![RowActivity::Searching(16); 31];
        activities.push(RowActivity::Prefilling(1000));
        for _ in 0..8 {
            let fed = plan(&mut scheduler, &permits, &activities);
            assert_eq!(fed[..8], [16; 8], "half of the budget");
            // the other searches and the prompt share what is left: half of the limit
            assert_eq!((fed[8..].iter().sum::<usize>(), fed.iter().sum::<usize>()), (40, CHUNK / 2 + 40));
        }
        activities.fill(RowActivity::Searching(16));
        activities[0] = RowActivity::Prefilling(1000);
        assert!(plan(&mut scheduler, &permits, &activities)[0] >= 10, "the most senior prompt");
    }
}
