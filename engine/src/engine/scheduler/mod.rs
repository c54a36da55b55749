//! Decides which requests run, wait or are preempted, and what each step feeds. Pure: no tensors, no clock, no threads.
//!
//! - *Admission*: requests are admitted by their tenant's turn ([`tenants`]) and their seniority ([`rank`]). A request is
//!   admitted when the rows that it may need are free and there is memory for its symbols and a margin. Admission is decided
//!   after every change, so a request that waits cannot run. No request overtakes the one whose turn it is.
//! - *What a step feeds* is decided by [`plan`], by the rules of [`budget`].
//! - *Preemption* ([`preemption`]): a request goes back to the front of its tenant's queue if memory runs out, if its client is
//!   behind, or if its tenant holds more than an equal part of the rows while another tenant waits.
//! - *Deadlines that cannot be met* are found with [`Scheduler::work_before`] and [`RateEstimator`].
//!
//! An admitted request holds a [`RunSlot`] until it ends or is preempted.

mod budget;
mod plan;
mod preemption;
mod rank;
mod rate_estimator;
mod row_status;
mod stay;
mod tenants;
mod waiting;
mod work_before;

#[cfg(test)]
mod storm;

use super::accounting;
use budget::{EncodeShare, PromptShare};
pub(crate) use plan::{Feed, PromptLimits};
pub use rank::PRIORITIES;
use rank::Rank;
pub(crate) use rate_estimator::RateEstimator;
pub(crate) use row_status::{FedSymbols, RowActivity, RowStatus, RunPermit};
use stay::Stay;
use std::{collections::VecDeque, sync::Arc};
pub(crate) use tenants::QueuedStatus;
use tenants::Tenants;
pub(crate) use waiting::{Beginning, Demand};
use waiting::{QueuePosition, Waiting};

/// Work that one priority level is worth: about a second of one busy core.
const AGE: u64 = 1 << 14;
/// Work of one turn of a tenant.
const QUANTUM: u64 = 512;
/// Steps for which prompts are limited once a search is fed, including that step: its next request is expected soon.
const SEARCH_STEPS: usize = 4;
/// Work of a decoded symbol. A prompt symbol is 1: a prompt's symbols share the reading of the weights.
const DECODE_WORK: u64 = 4;

/// Resources of a model, and the rules by which they are shared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Maximum rows of all running requests.
    pub(crate) rows: usize,
    pub(super) queue: usize,
    pub(super) queued_symbols: usize,
    /// Maximum bytes of all running requests.
    pub(super) bytes: usize,
    /// Symbol budget of a step.
    pub(crate) chunk: usize,
    pub(super) age: u64,
    pub(super) quantum: u64,
}

impl Rules {
    pub(crate) fn new(rows: usize, queue: usize, queued_symbols: usize, bytes: usize, chunk: usize) -> Self {
        Self { rows: rows.max(1), queue, queued_symbols, bytes, chunk: chunk.max(1), age: AGE, quantum: QUANTUM }
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
    tenant: Arc<str>,
    rank: Rank,
    /// When it last got a slice of a step's budget.
    turn: u64,
    /// Maximum rows that it may have.
    rows: usize,
    /// Symbols credited for the encoding of its document and not used.
    credit: i64,
    /// Bytes that it holds, or was admitted for.
    held: usize,
    /// Additional bytes that it needs soon.
    soon: usize,
    /// Minimum symbols that it feeds before it can end.
    min_symbols: usize,
    /// The beginning of its text.
    beginning: Beginning,
    /// True if it encodes its document: a preemption now would lose this work.
    encoding: bool,
    stay: Stay,
}

impl RunSlot {
    /// Returns the bytes that it is counted with.
    fn bytes(&self) -> usize {
        self.held.saturating_add(self.soon)
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
        let position = self.new_position(priority);
        self.arrived += 1;
        self.tenants.add(position, Waiting { request, demand, on_hold: false, lost: 0 });
        self.admit();
        Ok(())
    }

    /// Frees the slot of a request that ended. `fed` counts the symbols fed since its last status.
    pub(crate) fn finish(&mut self, permit: RunPermit, fed: FedSymbols) {
        self.count_work(permit.0, fed);
        if let Some(slot) = self.release(&permit) {
            self.tenants.leave(&slot.tenant, slot.rows, slot.bytes());
        }
        self.closed = false;
        self.admit();
    }

    /// Frees the slot of a running request and puts it at the front of its tenant's queue, with its remaining demand.
    /// If `on_hold`, [`poll_queue`](Self::poll_queue) must find it ready first. Returns the request if the permit has no slot.
    pub(crate) fn preempt(
        &mut self,
        permit: RunPermit,
        request: T,
        demand: Demand,
        on_hold: bool,
        cause: PreemptionCause,
    ) -> Result<(), T> {
        let Some(slot) = self.release(&permit) else { return Err(request) };
        let position = QueuePosition { is_new: false, rank: slot.rank };
        let lost = if slot.encoding { slot.stay.work() } else { 0 };
        self.tenants.add(position, Waiting { request, demand, on_hold, lost });
        self.tenants.leave(&slot.tenant, slot.rows, slot.bytes());
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
            self.tenants.resize(&slot.tenant, before, after);
            slot.encoding = matches!(status.activity, RowActivity::Encoding { .. });
            slot.held = status.held;
            slot.soon = status.soon;
            slot.min_symbols = match status.activity {
                RowActivity::Prefilling(left) | RowActivity::Searching(left) => left,
                RowActivity::Encoding { blocks, block_symbols } => blocks.saturating_mul(block_symbols),
                _ => 1,
            };
        }
        self.shared_bytes = sum.saturating_sub(distinct);
        self.admit();
    }

    fn count_work(&mut self, slot: usize, fed: FedSymbols) {
        let work = (fed.prompt as u64).saturating_add(DECODE_WORK.saturating_mul(fed.sampled as u64));
        self.clock = self.clock.saturating_add(work).saturating_add(fed.recomputed as u64);
        let Some(Some(slot)) = self.slots.get_mut(slot) else { return };
        slot.stay.count(work, fed.recomputed as u64);
        if work > 0 {
            self.tenants.charge(&slot.tenant, work);
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

    fn new_position(&self, priority: i32) -> QueuePosition {
        QueuePosition { is_new: true, rank: Rank::new(self.clock, priority, self.rules.age, self.arrived) }
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
            return full("prompt characters", queued_symbols);
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
            return full("prompt characters of one tenant", symbols);
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
            let Some((position, Waiting { request, demand, lost, .. })) = self.tenants.take() else { break };
            self.turns += 1;
            let slot = RunSlot {
                tenant: demand.tenant,
                rank: position.rank,
                turn: self.turns,
                rows,
                credit: 0,
                held: bytes,
                soon: 0,
                min_symbols: demand.uncached.max(1),
                beginning: demand.beginning,
                encoding: false,
                stay: Stay::new(lost),
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
        accounting::subtract(&mut self.rows, slot.rows);
        accounting::subtract(&mut self.bytes, slot.bytes());
        // the slots that shared pages are not known: until the next update no bytes count as shared
        self.shared_bytes = 0;
        Some(slot)
    }
}
