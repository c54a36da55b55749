//! Which running request is preempted, and for what.
//!
//! - *For memory*: it is not reserved for what a request may need later, so it can run out. The least senior request is then
//!   preempted; one whose client is behind goes first, then one of a tenant that holds more than an equal part of the bytes.
//!   No request is admitted until another has ended, so that the same memory is not handed to and fro. The last running
//!   request is never preempted: it can always finish, since a request that does not fit alone was rejected.
//! - *For a queued request*: one whose client is behind. If there is none, one of a tenant that has done more than its share of
//!   work and holds more than an equal part of the rows or bytes, if the tenant whose turn it is holds less. Long requests of
//!   one tenant therefore delay other tenants by a few steps, whatever their number and length.
//!
//! A preempted request may have to do work again. It is preempted for another tenant only after it did at least as much new
//! work as it repeated ([`stay`](super::stay)), so at least half of all work is new.

use super::{
    Demand, RunSlot, Scheduler,
    row_status::{RowActivity, RowStatus},
};

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

    /// Returns the index of a request that must make room for another tenant, and gives that tenant the turn. The tenants are
    /// asked in the order of their turns. `None` if each waiting tenant has its share, or if all requests that could be
    /// preempted hold less than it needs.
    fn victim_for_tenant(&mut self, statuses: &[RowStatus]) -> Option<usize> {
        let demands: Vec<Demand> = self.tenants.next_demands().cloned().collect();
        let (victim, tenant) = demands.into_iter().find_map(|demand| {
            let victim = self.victim_for(&demand, statuses)?;
            Some((victim, demand.tenant))
        })?;
        self.tenants.give_turn(tenant);
        Some(victim)
    }

    /// Returns the index of a request that must make room for `next`, a waiting request of another tenant.
    fn victim_for(&self, next: &Demand, statuses: &[RowStatus]) -> Option<usize> {
        let competing = self.tenants.competing();
        let own = self.tenants.share_of(&next.tenant);
        let rows_fit = own.rows == 0 || (own.rows + next.rows).saturating_mul(competing) <= self.rules.rows;
        let bytes_fit = own.bytes == 0 || (own.bytes + next.bytes).saturating_mul(competing) <= self.rules.bytes;
        if competing < 2 || !rows_fit || !bytes_fit {
            return None;
        }
        let lacks_rows = self.rows.saturating_add(next.rows) > self.rules.rows;
        let holds_too_much =
            |slot: &RunSlot| self.holds_too_many_rows(slot) || !lacks_rows && self.holds_too_many_bytes(slot);
        let is_overdrawn = |slot: &RunSlot| self.tenants.share_of(&slot.tenant).balance <= 0;
        let can_yield = |_: &RowStatus, slot: &RunSlot| {
            slot.tenant != next.tenant && self.may_yield(slot) && is_overdrawn(slot) && holds_too_much(slot)
        };
        let mut free_rows = self.rules.rows.saturating_sub(self.rows);
        let mut free_bytes = self.rules.bytes.saturating_sub(self.bytes.saturating_sub(self.shared_bytes));
        for status in statuses {
            if let Some(Some(slot)) = self.slots.get(status.slot)
                && can_yield(status, slot)
            {
                free_rows = free_rows.saturating_add(slot.rows);
                free_bytes = free_bytes.saturating_add(slot.bytes());
            }
        }
        let is_enough = next.rows <= free_rows && next.bytes <= free_bytes;
        self.least_senior(statuses, can_yield).filter(|_| is_enough)
    }

    /// Returns true if a request has stayed long enough to be preempted for another tenant.
    fn may_yield(&self, slot: &RunSlot) -> bool {
        slot.stay.is_long_enough(self.rules.quantum)
    }

    /// Returns true if a request's tenant holds more than an equal part of all rows.
    fn holds_too_many_rows(&self, slot: &RunSlot) -> bool {
        self.tenants.share_of(&slot.tenant).rows.saturating_mul(self.tenants.competing()) > self.rules.rows
    }

    /// Returns true if a request's tenant holds more than an equal part of all bytes.
    fn holds_too_many_bytes(&self, slot: &RunSlot) -> bool {
        self.tenants.share_of(&slot.tenant).bytes.saturating_mul(self.tenants.competing()) > self.rules.bytes
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
    use super::super::{Beginning, Demand, PreemptionCause, Rules, RunPermit, Scheduler};

    fn scheduler_with(requests: &[&'static str]) -> (Scheduler<&'static str>, Vec<RunPermit>) {
        let mut scheduler = Scheduler::new(Rules::new(8, 8, 1000, 100, 16));
        for request in requests {
            scheduler.submit(*request, demand(), 0).unwrap();
        }
        let permits = scheduler.admitted.drain(..).map(|(_, permit)| permit).collect();
        (scheduler, permits)
    }

    fn demand() -> Demand {
        Demand { tenant: "t".into(), symbols: 9, uncached: 9, beginning: Beginning::default(), bytes: 30, rows: 1 }
    }

    /// A request that is preempted because its client reads slowly leaves its memory to a request that was preempted for memory.
    #[test]
    fn memory_of_a_request_on_hold_goes_to_the_request_that_waits() {
        let (mut scheduler, mut permits) = scheduler_with(&["first", "second", "third"]);
        assert_eq!(permits.len(), 3);
        let last = permits.pop().unwrap();
        scheduler.preempt(last, "third", demand(), false, PreemptionCause::Memory).unwrap();
        assert!(scheduler.admitted.is_empty(), "it does not come back at once");
        let behind = permits.pop().unwrap();
        scheduler.preempt(behind, "second", demand(), true, PreemptionCause::Queue).unwrap();
        let admitted: Vec<_> = scheduler.admitted.iter().map(|(request, _)| *request).collect();
        assert_eq!(admitted, ["third"]);
    }
}
