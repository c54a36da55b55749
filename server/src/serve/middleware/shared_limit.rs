//! A limited amount that all callers share: calls in progress, or bytes of requests. A caller may hold half of what the others leave,
//! and at least the smallest share while it lasts.

use crate::engine::accounting;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A limited amount and who holds it. A caller may hold half of what the other callers leave.
#[derive(Debug)]
pub(super) struct SharedLimit {
    limit: usize,
    /// Minimum share of a caller, while that much is left.
    smallest_share: usize,
    usage: Mutex<Usage>,
}

#[derive(Debug, Default)]
struct Usage {
    total: usize,
    /// The amount of each caller that holds any.
    by_caller: HashMap<Arc<str>, usize>,
}

/// The limit that a caller has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exceeded {
    /// The limit of all callers together.
    Total(usize),
    /// The limit of this caller at this moment.
    Caller(usize),
}

impl SharedLimit {
    /// Creates a limit of which nothing is taken.
    pub(super) fn new(limit: usize, smallest_share: usize) -> Self {
        Self { limit, smallest_share, usage: Mutex::default() }
    }

    /// Returns the amount that a caller may hold while the others hold `others`.
    fn share(&self, others: usize) -> usize {
        accounting::share(self.limit, others, self.smallest_share)
    }

    /// Returns the amount that a caller may hold if no other holds any.
    pub(super) fn largest_share(&self) -> usize {
        self.share(0)
    }

    /// Takes `amount` for a caller. Changes nothing if that exceeds a limit.
    pub(super) fn take(&self, caller: &Arc<str>, amount: usize) -> Result<(), Exceeded> {
        let mut usage = self.usage();
        let own = usage.by_caller.get(caller).copied().unwrap_or(0);
        let caller_limit = self.share(usage.total.saturating_sub(own));
        let within = |held: usize, limit: usize| held.checked_add(amount).filter(|sum| *sum <= limit);
        let total = within(usage.total, self.limit).ok_or(Exceeded::Total(self.limit))?;
        let own = within(own, caller_limit).ok_or(Exceeded::Caller(caller_limit))?;
        usage.total = total;
        usage.by_caller.insert(Arc::clone(caller), own);
        Ok(())
    }

    /// Gives back `amount` that [`Self::take`] took for this caller.
    pub(super) fn give_back(&self, caller: &Arc<str>, amount: usize) {
        let mut usage = self.usage();
        let own = usage.by_caller.get(caller).copied().unwrap_or(0);
        if amount > own {
            // Only a bug leads here. The account stays, so its limit still holds.
            tracing::error!(amount, own, "more was given back than a caller holds");
            return;
        }
        // The total is the sum over all callers.
        usage.total = usage.total.saturating_sub(amount);
        if own == amount {
            usage.by_caller.remove(caller);
        } else {
            usage.by_caller.insert(Arc::clone(caller), own.saturating_sub(amount));
        }
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl SharedLimit {
    /// Returns the total amount and the number of callers that hold any.
    pub(super) fn held(&self) -> (usize, usize) {
        let usage = self.usage();
        (usage.total, usage.by_caller.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_leaves_half_to_the_next() {
        let limit = SharedLimit::new(16, 0);
        let callers = [("a", 8), ("b", 4), ("c", 2), ("d", 1), ("e", 1)];
        for (caller, share) in callers {
            let caller = Arc::from(caller);
            for _ in 0..share {
                assert_eq!(limit.take(&caller, 1), Ok(()), "{caller}");
            }
            assert!(limit.take(&caller, 1).is_err(), "{caller}");
        }
        assert_eq!(limit.take(&"f".into(), 1), Err(Exceeded::Total(16)));
        callers.iter().for_each(|(caller, share)| limit.give_back(&Arc::from(*caller), *share));
        assert_eq!(limit.held(), (0, 0));
    }

    #[test]
    fn a_caller_may_hold_the_smallest_share() {
        let limit = SharedLimit::new(80, 30);
        assert_eq!(limit.take(&"a".into(), 41), Err(Exceeded::Caller(40)));
        assert_eq!(limit.take(&"a".into(), 40), Ok(()));
        assert_eq!(limit.take(&"b".into(), 31), Err(Exceeded::Caller(30)));
        assert_eq!(limit.take(&"b".into(), 30), Ok(()));
        assert_eq!(limit.take(&"c".into(), 11), Err(Exceeded::Total(80)));
        assert_eq!(limit.take(&"c".into(), 10), Ok(()));
    }

    #[test]
    fn amounts_that_overflow_are_refused() {
        let limit = SharedLimit::new(usize::MAX, usize::MAX);
        assert_eq!(limit.take(&"a".into(), usize::MAX), Ok(()));
        assert_eq!(limit.take(&"a".into(), 1), Err(Exceeded::Total(usize::MAX)));
        limit.give_back(&"b".into(), 1);
        assert_eq!(limit.held(), (usize::MAX, 1), "a caller gives back only what it holds");
    }
}
