//! Decides which requests run, wait or are preempted, and what each step feeds. Pure: no tensors, no clock, no threads.
//!
//! - *Admission* is by tenant's turn ([`tenants`]) and seniority ([`Rank`]), when rows are free and there is memory for the
//!   symbols and a margin. No request overtakes the one whose turn it is.
//!
//! - *Preemption for memory*, which is not reserved: of the least senior request; one whose client is behind goes first, then
//!   one of a tenant that holds more than an equal part of the bytes. None is admitted until another has ended, to avoid
//!   thrashing. The last running request can always finish.
//!
//! - *Preemption for a queued request*: of one whose client is behind; or of one whose tenant has had more than its share of
//!   the worker's time and holds more than its part, if the tenant whose turn it is holds less. It must have done at least as much
//!   new work as it repeats, so at least half of all work is new.
//!
//! - *Steps*: a tenant is ahead if it has had at least a turn's time more than another one that has a request to feed. Together, the
//!   tenants that are ahead get a small part of each step, so a flood of any kind of request makes the steps of others at most a
//!   few times longer. Their requests take turns.
//!
//! - *Deadlines that cannot be met* are found with [`Scheduler::work_before`] and the measured step times.

mod budget;
#[cfg(test)]
mod randomized_tests;
pub(crate) mod tenants;

use crate::accounting;
use crate::scheduler::budget::{EncodeShare, PromptShare};
pub(crate) use crate::scheduler::tenants::QueuedStatus;
use crate::scheduler::tenants::{Demand, Rank, Tenants, Waiting};
use std::collections::VecDeque;

/// Work that one priority level is worth: about a second of one busy core.
const AGE: u64 = 1 << 14;

/// Nanoseconds on the worker of one turn of a tenant.
const QUANTUM: u64 = 5_000_000;

/// New work that a request does before it is preempted for another tenant.
const MIN_NEW_WORK: u64 = 128;

/// Steps for which prompts are limited once a search is fed, including that step: its next request is expected soon.
pub(super) const SEARCH_STEPS: usize = 4;

/// Work of a decoded symbol. A prompt symbol is 1: a prompt's symbols share the reading of the weights.
const DECODE_WORK: u64 = 4;

/// Symbols beyond its current ones for which a request must have memory when it is admitted.
pub(crate) const MEMORY_MARGIN: usize = 64;

/// Resources of a model, and the rules by which they are shared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Maximum rows of all running requests.
    pub(crate) rows: usize,
    pub(crate) queue: usize,
    pub(crate) queued_symbols: usize,
    /// Maximum bytes of all running requests.
    pub(crate) bytes: usize,
    /// Symbol budget of a step.
    pub(crate) chunk: usize,
    pub(crate) age: u64,
    pub(crate) quantum: u64,
    pub(crate) min_new_work: u64,
}

impl Rules {
    pub(crate) fn new(rows: usize, queue: usize, queued_symbols: usize, bytes: usize, chunk: usize) -> Self {
        Self {
            rows: rows.max(1),
            queue,
            queued_symbols,
            bytes,
            chunk: chunk.max(1),
            age: AGE,
            quantum: QUANTUM,
            min_new_work: MIN_NEW_WORK,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The queue is full.
    Full {
        /// Name of the limited quantity.
        what: &'static str,
        limit: usize,
    },
    /// It needs more bytes or more rows than there are.
    NeverFits,
}

#[derive(Debug)]
struct RunSlot {
    /// What it needs: its bytes are those that it holds, and its uncached symbols the minimum that it feeds before it can end.
    demand: Demand,
    rank: Rank,
    /// Turn at which it last got a slice of a step's budget.
    turn: u64,
    /// Symbols credited for the encoding of its document and not used.
    credit: i64,
    /// Additional bytes that it needs soon.
    soon: usize,
    /// True if it encodes its document: a preemption now would lose this work.
    encoding: bool,
    /// New work since it was admitted.
    new_work: u64,
    /// Work since it was admitted that it had done before a preemption.
    repeated_work: u64,
    /// Minimum new work before it is preempted for another tenant: twice what its last preemption lost.
    min_new_work: u64,
}

impl RunSlot {
    fn bytes(&self) -> usize {
        self.demand.bytes.saturating_add(self.soon)
    }
}

/// Why a request is preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreemptionCause {
    /// A step needs more memory than there is.
    Memory,
    /// A queued request takes its place.
    Queue,
}

/// The scheduler of one model, over requests of any type.
#[derive(Debug)]
pub(crate) struct Scheduler<T> {
    rules: Rules,
    tenants: Tenants<T>,
    slots: Vec<Option<RunSlot>>,
    free: Vec<usize>,
    /// Requests that may run and were not fetched yet.
    pub(crate) admitted: VecDeque<(T, RunPermit)>,
    pub(crate) running: usize,
    rows: usize,
    bytes: usize,
    /// Bytes counted for more than one slot.
    shared_bytes: usize,
    /// True while no request is admitted next to running ones: memory ran out, and none has ended since.
    closed: bool,
    /// Work done.
    clock: u64,
    arrived: u64,
    /// Number of budget slices given.
    turns: u64,
    /// Symbols credited to all documents together and not used.
    encode_credit: i64,
    prompts: Vec<PromptShare>,
    encodings: Vec<EncodeShare>,
    /// Turns and indices of the requests of tenants that are ahead.
    ahead: Vec<(u64, usize)>,
    /// Steps planned since one fed a search.
    steps_since_search: usize,
}

impl<T> Scheduler<T> {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            tenants: Tenants::new(rules.quantum),
            slots: Vec::new(),
            free: Vec::new(),
            admitted: VecDeque::new(),
            running: 0,
            rows: 0,
            bytes: 0,
            shared_bytes: 0,
            closed: false,
            clock: 0,
            arrived: 0,
            turns: 0,
            encode_credit: 0,
            prompts: Vec::new(),
            encodings: Vec::new(),
            ahead: Vec::new(),
            steps_since_search: SEARCH_STEPS,
        }
    }

    /// Fails if a request would be rejected now.
    pub(crate) fn check(&mut self, demand: &Demand) -> Result<(), Rejection> {
        if demand.bytes > self.rules.bytes || demand.rows > self.rules.rows {
            return Err(Rejection::NeverFits);
        }
        if !(self.tenants.next().is_none() && self.fits(demand.bytes, demand.rows)) {
            self.check_queue_limits(demand)?;
        }
        Ok(())
    }

    pub(crate) fn submit(&mut self, request: T, demand: Demand, priority: i32) -> Result<(), Rejection> {
        self.check(&demand)?;
        let rank = self.new_rank(priority);
        self.arrived += 1;
        self.tenants.add(rank, Waiting { request, demand, on_hold: false, lost: 0 });
        self.admit();
        Ok(())
    }

    /// Frees the slot of a request that ended. `fed` counts the symbols fed since its last status.
    pub(crate) fn finish(&mut self, permit: RunPermit, fed: WorkDone) {
        self.count_work(permit.0, fed);
        if let Some(slot) = self.release(&permit) {
            self.tenants.leave(&slot.demand.tenant, slot.demand.rows, slot.bytes());
        }
        self.closed = false;
        self.admit();
    }

    /// Frees the slot of a running request and puts it at the front of its tenant's queue. If `on_hold`,
    /// [`poll_queue`](Self::poll_queue) must find it ready first.
    pub(crate) fn preempt(
        &mut self,
        permit: RunPermit,
        request: T,
        demand: Demand,
        on_hold: bool,
        cause: PreemptionCause,
    ) -> Result<(), T> {
        let Some(slot) = self.release(&permit) else { return Err(request) };
        let rank = Rank { is_new: false, ..slot.rank };
        let lost = if slot.encoding { slot.new_work.saturating_add(slot.repeated_work) } else { 0 };
        self.tenants.add(rank, Waiting { request, demand, on_hold, lost });
        self.tenants.leave(&slot.demand.tenant, slot.demand.rows, slot.bytes());
        match cause {
            // its memory is for the request that waits
            PreemptionCause::Queue => self.closed = false,
            // a request on hold does not come back for the memory that it gave
            PreemptionCause::Memory if on_hold => {}
            PreemptionCause::Memory => self.closed = true,
        }
        self.admit();
        Ok(())
    }

    /// Polls every waiting request. Passes those that have ended to `ended`.
    pub(crate) fn poll_queue(&mut self, poll: impl FnMut(&mut T) -> QueuedStatus, ended: impl FnMut(T)) {
        self.tenants.poll(poll, ended);
        self.admit();
    }

    /// Updates the status of all running requests. They hold at most `distinct` bytes together: shared pages count once.
    pub(crate) fn update_rows(&mut self, statuses: &[RowStatus], distinct: usize) {
        let mut sum: usize = 0;
        for status in statuses {
            self.count_work(status.slot, status.fed);
            sum = sum.saturating_add(status.held);
            let Some(slot) = self.slots.get_mut(status.slot).and_then(Option::as_mut) else { continue };
            let before = slot.bytes();
            let after = status.held.saturating_add(status.soon);
            accounting::replace(&mut self.bytes, before, after);
            self.tenants.resize(&slot.demand.tenant, before, after);
            slot.encoding = matches!(status.activity, RowActivity::Encoding { .. });
            slot.demand.bytes = status.held;
            slot.soon = status.soon;
            slot.demand.uncached = status.activity.known_symbols();
        }
        self.shared_bytes = sum.saturating_sub(distinct);
        self.admit();
    }

    fn count_work(&mut self, slot: usize, fed: WorkDone) {
        let work = (fed.prompt as u64).saturating_add(DECODE_WORK.saturating_mul(fed.sampled as u64));
        self.clock = self.clock.saturating_add(work).saturating_add(fed.recomputed as u64);
        let Some(Some(slot)) = self.slots.get_mut(slot) else { return };
        slot.new_work = slot.new_work.saturating_add(work);
        slot.repeated_work = slot.repeated_work.saturating_add(fed.recomputed as u64);
        if fed.time > 0 {
            self.tenants.charge(&slot.demand.tenant, fed.time);
        }
    }

    /// Returns true if the next request to be admitted lacks nothing but memory.
    pub(crate) fn waits_for_memory(&mut self) -> bool {
        let free = self.rules.rows.saturating_sub(self.rows);
        !self.closed && self.tenants.next().is_some_and(|demand| demand.rows <= free)
    }

    /// Removes all requests and returns those that were not fetched yet. Running requests are gone with the worker.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = T> {
        self.slots.clear();
        self.free.clear();
        self.running = 0;
        self.rows = 0;
        self.bytes = 0;
        self.shared_bytes = 0;
        std::mem::take(&mut self.admitted).into_iter().map(|(request, _)| request).chain(self.tenants.clear())
    }

    pub(crate) fn queued(&self) -> impl Iterator<Item = &T> {
        self.tenants.requests()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.tenants.waiting
    }

    /// Returns the rank of a request that arrives now.
    fn new_rank(&self, priority: i32) -> Rank {
        Rank::new(self.clock, priority, self.rules.age, self.arrived)
    }

    /// Rejects a request that the queue, or its tenant's share of it, has no room for.
    fn check_queue_limits(&self, demand: &Demand) -> Result<(), Rejection> {
        let Rules { queue, queued_symbols, .. } = self.rules;
        let full = |what, limit| Err(Rejection::Full { what, limit });
        let total = self.tenants.new;
        if total.requests >= queue {
            return full("requests", queue);
        }
        if total.symbols.saturating_add(demand.symbols) > queued_symbols {
            return full("prompt symbols", queued_symbols);
        }
        // With its preempted requests, so that those that wait for their clients do not pile up.
        if self.tenants.waiting_of(&demand.tenant) >= queue {
            return full("requests of one tenant", queue);
        }
        let own = self.tenants.new_of(&demand.tenant);
        let requests = accounting::share(queue, total.requests.saturating_sub(own.requests), 0);
        if own.requests >= requests {
            return full("requests of one tenant", requests);
        }
        let symbols = accounting::share(queued_symbols, total.symbols.saturating_sub(own.symbols), 0);
        if own.symbols.saturating_add(demand.symbols) > symbols {
            return full("prompt symbols of one tenant", symbols);
        }
        Ok(())
    }

    fn fits(&self, bytes: usize, rows: usize) -> bool {
        let held = self.bytes.saturating_sub(self.shared_bytes);
        let has_memory = !self.closed && held.saturating_add(bytes) <= self.rules.bytes;
        self.rows.saturating_add(rows) <= self.rules.rows && (has_memory || self.running == 0)
    }

    /// Admits the waiting requests that fit, in order.
    fn admit(&mut self) {
        while let Some(demand) = self.tenants.next() {
            let bytes = demand.bytes;
            let rows = demand.rows;
            if !self.fits(bytes, rows) {
                break;
            }
            let Some((rank, Waiting { request, demand, lost, .. })) = self.tenants.take() else { break };
            self.turns += 1;
            let slot = RunSlot {
                demand: Demand { uncached: demand.uncached.max(1), ..demand },
                rank: Rank { is_new: true, ..rank },
                turn: self.turns,
                credit: 0,
                soon: 0,
                encoding: false,
                new_work: 0,
                repeated_work: 0,
                min_new_work: lost.saturating_mul(2),
            };
            let index = self.free.pop().unwrap_or_else(|| {
                self.slots.push(None);
                self.slots.len() - 1
            });
            self.slots[index] = Some(slot);
            accounting::add(&mut self.running, 1);
            accounting::add(&mut self.rows, rows);
            accounting::add(&mut self.bytes, bytes);
            self.closed = false;
            self.admitted.push_back((request, RunPermit(index)));
        }
    }

    fn release(&mut self, permit: &RunPermit) -> Option<RunSlot> {
        let slot = self.slots.get_mut(permit.0).and_then(Option::take)?;
        self.free.push(permit.0);
        accounting::subtract(&mut self.running, 1);
        accounting::subtract(&mut self.rows, slot.demand.rows);
        accounting::subtract(&mut self.bytes, slot.bytes());
        // the slots that shared pages are not known: until the next update no bytes count as shared
        self.shared_bytes = 0;
        Some(slot)
    }
}

/// The right to run: a slot that [`Scheduler::finish`] or [`Scheduler::preempt`] takes back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunPermit(usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowActivity {
    /// Nothing: it was fed and its outcome is not ready.
    Busy,
    /// Nothing: its client or its upload is behind.
    Paused {
        /// True if it may be preempted when a queued request needs its slot: it has been behind for a while.
        preemptible: bool,
    },
    /// Feed one sampled symbol to each of this number of rows.
    Decoding(usize),
    /// Feed at most this number of symbols that follow its sampled one for certain.
    Forced(usize),
    /// Feed this number of known symbols.
    Prefilling(usize),
    /// Feed this number of known symbols, which is small. A search waits for the distribution after them.
    Searching(usize),
    /// Encode its document, in blocks that cannot be split.
    Encoding {
        /// Known blocks that can run.
        blocks: usize,
        /// Symbols that a block counts as.
        block_symbols: usize,
    },
}

impl RowActivity {
    /// Returns the symbols of a prompt or document that can be fed; 1 if there are none.
    fn known_symbols(self) -> usize {
        match self {
            Self::Prefilling(left) | Self::Searching(left) | Self::Forced(left) => left,
            Self::Encoding { blocks, block_symbols } => blocks.saturating_mul(block_symbols),
            Self::Busy | Self::Paused { .. } | Self::Decoding(_) => 1,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RowStatus {
    slot: usize,
    pub(crate) activity: RowActivity,
    held: usize,
    /// Additional bytes that it needs soon.
    soon: usize,
    /// Symbols that it was fed since the last report.
    fed: WorkDone,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WorkDone {
    /// Symbols of prompts, scored texts, documents and drafts.
    pub(crate) prompt: usize,
    pub(crate) sampled: usize,
    /// Symbols of either kind that were fed again after a preemption.
    pub(crate) recomputed: usize,
    /// Nanoseconds of the worker: its part of the steps that did new work.
    pub(crate) time: u64,
}

impl RowStatus {
    pub(crate) fn new(permit: &RunPermit, activity: RowActivity, held: usize, soon: usize, fed: WorkDone) -> Self {
        Self { slot: permit.0, activity, held, soon, fed }
    }
}

impl<T> Scheduler<T> {
    /// Discounts symbols that an earlier request of this tenant will have cached, for `demand` and for the requests it
    /// overtakes.
    pub(crate) fn discount(&mut self, demand: &mut Demand, priority: i32) {
        if demand.beginning.is_empty() {
            return;
        }
        let running = self.running_of(&demand.tenant);
        let mut shared = running.map(|other| demand.beginning.max_shared(&other.beginning)).max().unwrap_or(0);
        let own_rank = self.new_rank(priority);
        for (rank, other) in self.tenants.demands_of(&demand.tenant) {
            let both = demand.beginning.max_shared(&other.beginning);
            if rank > own_rank {
                other.leave_out(both);
            }
            shared = shared.max(both);
        }
        demand.leave_out(shared);
    }

    fn running_of(&self, tenant: &str) -> impl Iterator<Item = &Demand> {
        self.slots.iter().flatten().map(|slot| &slot.demand).filter(move |demand| *demand.tenant == *tenant)
    }

    /// Returns a lower bound of the symbols that are fed before a new request is done: its own, and those of the shortest
    /// requests of its tenant before it. Other tenants may lose rows to it.
    pub(crate) fn work_before(&self, demand: &Demand, priority: i32) -> usize {
        let waiting = self.tenants.before(&demand.tenant, self.new_rank(priority)).map(|demand| demand.uncached.max(1));
        let running = self.running_of(&demand.tenant).map(|demand| demand.uncached);
        let mut before: Vec<usize> = waiting.chain(running).collect();
        before.sort_unstable();
        let ended = (before.len() + 1).saturating_sub(self.rules.rows);
        before[..ended].iter().sum::<usize>().saturating_add(demand.uncached.max(1))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Feed {
    /// Index of the request's status in the slice that the step was planned from.
    pub(crate) request: usize,
    /// Symbols for all its rows together; blocks if it encodes.
    pub(crate) symbols: usize,
}

/// The part of `--chunk` that prompts may have in any case while a search runs: a quarter.
pub(super) const SEARCHING_SHARE: usize = 4;

/// Maximum prompt symbols of a step, so that it does not delay other rows for long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepLimits {
    /// Limit while other rows decode.
    pub(crate) decoding: usize,
    /// Limit while a search for completions runs.
    pub(crate) searching: usize,
    /// Limit while several tenants have requests, and for a while afterwards.
    pub(crate) shared: usize,
    /// Limit for all requests of tenants that are ahead, while another tenant has a request to feed.
    pub(crate) ahead: usize,
    /// Prompt symbols that take as long as a decoded one.
    pub(crate) decoded: usize,
}

impl<T> Scheduler<T> {
    /// Plans a step of the requests that [`update_rows`](Self::update_rows) was last called with. Searches are fed before prompts,
    /// with at most half of the step's budget. Returns true if some tenants are ahead, so that the others are in a hurry.
    pub(crate) fn plan(&mut self, statuses: &[RowStatus], limits: StepLimits, feeds: &mut Vec<Feed>) -> bool {
        feeds.clear();
        self.prompts.clear();
        self.encodings.clear();
        self.ahead.clear();
        let most_ahead = self.most_ahead(statuses);
        let mut chunk = self.rules.chunk;
        if self.tenants.were_competing() {
            chunk = chunk.min(limits.shared.max(1));
        }
        let mut decoding = 0;
        let mut searching = 0;
        for (request, status) in statuses.iter().enumerate() {
            let Some(Some(slot)) = self.slots.get(status.slot) else { continue };
            let left = match status.activity {
                RowActivity::Busy | RowActivity::Paused { .. } => continue,
                _ if self.tenants.share_of(&slot.demand.tenant).balance <= most_ahead => {
                    self.ahead.push((slot.turn, request));
                    continue;
                }
                RowActivity::Decoding(symbols) => {
                    decoding += symbols;
                    feeds.push(Feed { request, symbols });
                    continue;
                }
                // like drafts, the symbols after the first one share a part of the step
                RowActivity::Forced(left) => {
                    let symbols = left.min((chunk / 2).saturating_sub(decoding)).max(1);
                    decoding += symbols;
                    feeds.push(Feed { request, symbols });
                    continue;
                }
                RowActivity::Searching(left) if searching + left <= chunk / 2 => {
                    searching += left;
                    feeds.push(Feed { request, symbols: left });
                    continue;
                }
                activity => activity.known_symbols(),
            };
            self.prompts.push(PromptShare { request, rank: slot.rank, turn: slot.turn, left, fed: 0 });
        }
        let decodes = |status: &RowStatus| {
            matches!(status.activity, RowActivity::Decoding(_) | RowActivity::Forced(_) | RowActivity::Busy)
        };
        let mixed = statuses.iter().any(decodes);
        self.steps_since_search = if searching > 0 { 0 } else { self.steps_since_search.saturating_add(1) };
        if mixed {
            chunk = chunk.min(limits.decoding.max(1));
        }
        if self.steps_since_search < SEARCH_STEPS {
            // models with slow steps would gain little, and their prompts would nearly stop
            chunk = chunk.min(limits.searching.max(self.rules.chunk / SEARCHING_SHARE).max(1));
        }
        budget::share_prompts(chunk, decoding + searching, &mut self.prompts, &mut self.turns);
        for index in 0..self.prompts.len() {
            let PromptShare { request, turn, fed, .. } = self.prompts[index];
            if let Some(status) = statuses.get(request) {
                self.feed_prompt(request, status, turn, fed, feeds);
            }
        }
        self.plan_ahead(statuses, limits, feeds);
        let hurries = !self.ahead.is_empty();
        self.plan_encoding(statuses, mixed || hurries, feeds);
        hurries
    }

    /// Returns the largest balance of a tenant that is ahead: a quantum less than that of the tenant which has had least of all
    /// that have a request to feed.
    fn most_ahead(&self, statuses: &[RowStatus]) -> i64 {
        if self.tenants.competing < 2 {
            return i64::MIN;
        }
        let fed = statuses.iter().filter(|status| !matches!(status.activity, RowActivity::Paused { .. }));
        let slots = fed.filter_map(|status| self.slots.get(status.slot)?.as_ref());
        let largest = slots.map(|slot| self.tenants.share_of(&slot.demand.tenant).balance).max();
        largest.map_or(i64::MIN, |balance| balance.saturating_sub_unsigned(self.rules.quantum))
    }

    /// Feeds `symbols` symbols to a prompt, or credits them to a document.
    fn feed_prompt(&mut self, request: usize, status: &RowStatus, turn: u64, symbols: usize, feeds: &mut Vec<Feed>) {
        let Some(Some(slot)) = self.slots.get_mut(status.slot) else { return };
        slot.turn = turn;
        if let RowActivity::Encoding { blocks, block_symbols } = status.activity {
            let credit = i64::try_from(symbols).unwrap_or(i64::MAX);
            slot.credit = slot.credit.saturating_add(credit);
            self.encode_credit = self.encode_credit.saturating_add(credit);
            let RunSlot { rank, credit, .. } = *slot;
            self.encodings.push(EncodeShare { request, rank, credit, block_symbols, left: blocks, blocks: 0 });
        } else if symbols > 0 {
            feeds.push(Feed { request, symbols });
        }
    }

    /// Feeds the requests of tenants that are ahead, in the order of their turns, until their part of the step is used up.
    fn plan_ahead(&mut self, statuses: &[RowStatus], limits: StepLimits, feeds: &mut Vec<Feed>) {
        let mut ahead = std::mem::take(&mut self.ahead);
        ahead.sort_unstable();
        let mut budget = limits.ahead.min(self.rules.chunk).max(1);
        for &(turn, request) in &ahead {
            let Some(status) = statuses.get(request) else { continue };
            if budget == 0 {
                // a document runs the blocks that were credited before
                self.feed_prompt(request, status, turn, 0, feeds);
                continue;
            }
            let (symbols, cost) = match status.activity {
                RowActivity::Decoding(rows) => (rows, rows.saturating_mul(limits.decoded)),
                RowActivity::Forced(left) => (left.min(budget), limits.decoded.saturating_add(left.min(budget))),
                activity => (activity.known_symbols().min(budget), activity.known_symbols()),
            };
            self.turns += 1;
            self.feed_prompt(request, status, self.turns, symbols, feeds);
            budget = budget.saturating_sub(cost);
        }
        self.ahead = ahead;
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

impl<T> Scheduler<T> {
    /// Returns the index of the request to preempt when a step needs more memory than there is; `None` if it is the last.
    pub(crate) fn memory_victim(&self, statuses: &[RowStatus]) -> Option<usize> {
        if statuses.len() < 2 {
            return None;
        }
        let is_paused = |status: &RowStatus| matches!(status.activity, RowActivity::Paused { .. });
        let paused = self.least_senior(statuses, |status, _| is_paused(status));
        let greedy = || self.least_senior(statuses, |_, slot| self.holds_too_many_bytes(slot) && self.may_yield(slot));
        paused.or_else(greedy).or_else(|| self.least_senior(statuses, |_, _| true))
    }

    /// Returns the index of a request to preempt for the queued one whose turn it is and that has no slot.
    pub(crate) fn preemption_victim(&mut self, statuses: &[RowStatus]) -> Option<usize> {
        self.tenants.next()?;
        let is_behind = |status: &RowStatus| status.activity == RowActivity::Paused { preemptible: true };
        self.least_senior(statuses, |status, _| is_behind(status)).or_else(|| self.victim_for_tenant(statuses))
    }

    /// Returns the index of a request that must make room for another tenant, and gives that tenant the turn. `None` if each
    /// waiting tenant has its share, or no request that could be preempted holds more than it needs.
    fn victim_for_tenant(&mut self, statuses: &[RowStatus]) -> Option<usize> {
        let demands: Vec<Demand> = self.tenants.next_demands().cloned().collect();
        let (victim, tenant) = demands.into_iter().find_map(|demand| {
            let victim = self.victim_for(&demand, statuses)?;
            Some((victim, demand.tenant))
        })?;
        self.tenants.turn = Some(tenant);
        Some(victim)
    }

    /// Returns the index of a request that must make room for `next`, a waiting request of another tenant.
    fn victim_for(&self, next: &Demand, statuses: &[RowStatus]) -> Option<usize> {
        let competing = self.tenants.competing;
        let own = self.tenants.share_of(&next.tenant);
        let rows_fit = own.rows == 0 || (own.rows + next.rows).saturating_mul(competing) <= self.rules.rows;
        let bytes_fit = own.bytes == 0 || (own.bytes + next.bytes).saturating_mul(competing) <= self.rules.bytes;
        if competing < 2 || !rows_fit || !bytes_fit {
            return None;
        }
        let lacks_rows = self.rows.saturating_add(next.rows) > self.rules.rows;
        let holds_too_much =
            |slot: &RunSlot| self.holds_too_many_rows(slot) || !lacks_rows && self.holds_too_many_bytes(slot);
        let is_overdrawn = |slot: &RunSlot| self.tenants.share_of(&slot.demand.tenant).balance <= 0;
        let can_yield = |_: &RowStatus, slot: &RunSlot| {
            slot.demand.tenant != next.tenant && self.may_yield(slot) && is_overdrawn(slot) && holds_too_much(slot)
        };
        let mut free_rows = self.rules.rows.saturating_sub(self.rows);
        let mut free_bytes = self.rules.bytes.saturating_sub(self.bytes.saturating_sub(self.shared_bytes));
        for status in statuses {
            if let Some(Some(slot)) = self.slots.get(status.slot)
                && can_yield(status, slot)
            {
                free_rows = free_rows.saturating_add(slot.demand.rows);
                free_bytes = free_bytes.saturating_add(slot.bytes());
            }
        }
        let is_enough = next.rows <= free_rows && next.bytes <= free_bytes;
        self.least_senior(statuses, can_yield).filter(|_| is_enough)
    }

    /// Returns true if a request has done enough new work to be preempted for another tenant.
    fn may_yield(&self, slot: &RunSlot) -> bool {
        slot.new_work >= slot.repeated_work.max(slot.min_new_work).max(self.rules.min_new_work)
    }

    /// Returns true if a request's tenant holds more than an equal part of all rows.
    fn holds_too_many_rows(&self, slot: &RunSlot) -> bool {
        self.tenants.share_of(&slot.demand.tenant).rows.saturating_mul(self.tenants.competing) > self.rules.rows
    }

    /// Returns true if a request's tenant holds more than an equal part of all bytes.
    fn holds_too_many_bytes(&self, slot: &RunSlot) -> bool {
        self.tenants.share_of(&slot.demand.tenant).bytes.saturating_mul(self.tenants.competing) > self.rules.bytes
    }

    /// Returns the index of the least senior request that passes `filter`; one whose client is behind first.
    fn least_senior(&self, statuses: &[RowStatus], filter: impl Fn(&RowStatus, &RunSlot) -> bool) -> Option<usize> {
        let slot = |status: &RowStatus| self.slots.get(status.slot)?.as_ref();
        let passes = |status: &RowStatus| slot(status).is_some_and(|slot| filter(status, slot));
        let paused = |status: &RowStatus| matches!(status.activity, RowActivity::Paused { .. });
        let candidates = statuses.iter().enumerate().filter(|(_, status)| passes(status));
        let victim = candidates.max_by_key(|(_, status)| (paused(status), slot(status).map(|slot| slot.rank)));
        victim.map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tenants::Beginning;

    const CHUNK: usize = 256;

    const LIMITS: StepLimits = StepLimits { decoding: 100, searching: 80, shared: 60, ahead: 20, decoded: 3 };

    fn demand(bytes: usize) -> Demand {
        Demand { tenant: "t".into(), symbols: 9, uncached: 9, beginning: Beginning::default(), bytes, rows: 1 }
    }

    /// Returns a scheduler with running requests, which hold `bytes` bytes each, and their permits.
    fn running_of<T>(
        rules: Rules,
        requests: impl IntoIterator<Item = T>,
        bytes: usize,
    ) -> (Scheduler<T>, Vec<RunPermit>) {
        let mut scheduler = Scheduler::new(rules);
        requests.into_iter().for_each(|request| scheduler.submit(request, demand(bytes), 0).unwrap());
        let permits = scheduler.admitted.drain(..).map(|(_, permit)| permit).collect();
        (scheduler, permits)
    }

    /// Returns a scheduler with `count` running requests, and their permits.
    fn running(count: usize) -> (Scheduler<()>, Vec<RunPermit>) {
        running_of(Rules::new(count, 1, 1, 1 << 20, CHUNK), vec![(); count], 0)
    }

    /// Plans a step. Returns the symbols that each request is fed.
    fn plan(scheduler: &mut Scheduler<()>, permits: &[RunPermit], activities: &[RowActivity]) -> Vec<usize> {
        plan_within(scheduler, permits, activities, LIMITS)
    }

    fn plan_within(
        scheduler: &mut Scheduler<()>,
        permits: &[RunPermit],
        activities: &[RowActivity],
        limits: StepLimits,
    ) -> Vec<usize> {
        let pairs = permits.iter().zip(activities);
        let statuses: Vec<RowStatus> =
            pairs.map(|(permit, &activity)| RowStatus::new(permit, activity, 0, 0, WorkDone::default())).collect();
        let mut feeds = Vec::new();
        scheduler.plan(&statuses, limits, &mut feeds);
        let mut fed = vec![0; activities.len()];
        feeds.iter().for_each(|feed| fed[feed.request] += feed.symbols);
        fed
    }

    #[test]
    fn forced_texts_share_half_of_a_step() {
        let (mut scheduler, permits) = running(32);
        let fed = plan(&mut scheduler, &permits, &[RowActivity::Forced(32); 32]);
        assert!(fed.iter().all(|symbols| (1..=32).contains(symbols)), "{fed:?}");
        assert!(fed.iter().sum::<usize>() < CHUNK / 2 + 32, "{fed:?}");
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
        // also next to a stream
        let streams = [&prompts[..], &[RowActivity::Decoding(1)]].concat();
        assert_eq!(sum(&plan(&mut scheduler, &permits, &streams)), 100);
        let both = [&streams[..], &[RowActivity::Searching(5)]].concat();
        assert_eq!(sum(&plan(&mut scheduler, &permits, &both)), 80);
    }

    #[test]
    fn prompts_keep_a_quarter_of_the_chunk_next_to_searches() {
        let (mut scheduler, permits) = running(2);
        let activities = [RowActivity::Prefilling(1000), RowActivity::Searching(2)];
        let fed = plan_within(&mut scheduler, &permits, &activities, StepLimits { searching: 16, ..LIMITS });
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

    /// Returns what requests of two tenants are fed after the first has used `time` more than the second.
    fn plan_of_two_tenants(time: u64, first: &[RowActivity], second: &[RowActivity], limits: StepLimits) -> Vec<usize> {
        let activities = [first, second].concat();
        let mut scheduler = Scheduler::new(Rules::new(activities.len(), 1, 1, 1 << 20, CHUNK));
        let of_tenant = |(index, _)| if index < first.len() { "first" } else { "second" };
        for tenant in activities.iter().enumerate().map(of_tenant) {
            scheduler.submit((), Demand { tenant: tenant.into(), ..demand(0) }, 0).unwrap();
        }
        scheduler.tenants.charge("first", time);
        let permits: Vec<_> = scheduler.admitted.drain(..).map(|(_, permit)| permit).collect();
        plan_within(&mut scheduler, &permits, &activities, limits)
    }

    #[test]
    fn a_tenant_that_is_ahead_gets_a_small_part_of_a_step() {
        let one = [RowActivity::Decoding(1)];
        let prompt = [RowActivity::Prefilling(1000)];
        let fed = |first: &[_], second: &[_]| {
            let fed = plan_of_two_tenants(QUANTUM, first, second, LIMITS);
            (fed[..first.len()].iter().sum::<usize>(), fed[first.len()..].to_vec())
        };
        // seven decoded symbols take as long as 21 of a prompt
        assert_eq!(fed(&[RowActivity::Decoding(1); 31], &one), (7, vec![1]));
        assert_eq!(fed(&[RowActivity::Prefilling(1000); 31], &one), (20, vec![1]));
        assert_eq!(fed(&[RowActivity::Searching(16); 31], &one), (20, vec![1]));
        let document = RowActivity::Encoding { blocks: 9, block_symbols: 20 };
        assert_eq!(fed(&[document; 31], &one), (1, vec![1]));
        // the other tenant's prompt does not wait behind 31 others
        assert_eq!(fed(&[RowActivity::Prefilling(1000); 31], &[RowActivity::Prefilling(9)]), (20, vec![9]));
        assert_eq!(fed(&[RowActivity::Decoding(1); 31], &prompt), (7, vec![60]));
        // a client that does not read is in no hurry
        assert_eq!(fed(&[RowActivity::Decoding(1); 31], &[RowActivity::Paused { preemptible: false }]), (31, vec![0]));
        let equal = plan_of_two_tenants(QUANTUM - 1, &[RowActivity::Decoding(1); 31], &one, LIMITS);
        assert_eq!(equal, [1; 32]);
        let alone = plan_of_two_tenants(QUANTUM, &prompt, &[], LIMITS);
        assert_eq!(alone, [CHUNK]);
        let unlimited = plan_of_two_tenants(QUANTUM, &[prompt[0]; 2], &one, StepLimits { ahead: usize::MAX, ..LIMITS });
        assert_eq!(unlimited, [CHUNK, 0, 1], "--step-milliseconds 0");
    }

    #[test]
    fn steps_stay_short_for_a_while_after_another_tenant_has_left() {
        let (mut scheduler, permits) = running(1);
        let other = Demand { tenant: "other".into(), ..demand(0) };
        let fed = |scheduler: &mut Scheduler<()>| plan(scheduler, &permits, &[RowActivity::Prefilling(1000)]);
        assert_eq!(fed(&mut scheduler), [CHUNK]);
        scheduler.rules.rows += 1;
        scheduler.submit((), other, 0).unwrap();
        assert_eq!(fed(&mut scheduler), [60]);
        scheduler.tenants.charge("t", 1);
        let (_, permit) = scheduler.admitted.pop_back().unwrap();
        scheduler.finish(permit, WorkDone::default());
        assert_eq!(fed(&mut scheduler), [60]);
        scheduler.tenants.charge("t", 20_000_000_000);
        assert_eq!(fed(&mut scheduler), [CHUNK]);
    }

    /// A request that is preempted because its client reads slowly leaves its memory to a request that was preempted for memory.
    #[test]
    fn memory_of_a_request_on_hold_goes_to_the_request_that_waits() {
        let rules = Rules::new(8, 8, 1000, 100, 16);
        let (mut scheduler, mut permits) = running_of(rules, ["first", "second", "third"], 30);
        assert_eq!(permits.len(), 3);
        let last = permits.pop().unwrap();
        scheduler.preempt(last, "third", demand(30), false, PreemptionCause::Memory).unwrap();
        assert!(scheduler.admitted.is_empty(), "it does not come back at once");
        let behind = permits.pop().unwrap();
        scheduler.preempt(behind, "second", demand(30), true, PreemptionCause::Queue).unwrap();
        let admitted: Vec<_> = scheduler.admitted.iter().map(|(request, _)| *request).collect();
        assert_eq!(admitted, ["third"]);
    }
}
