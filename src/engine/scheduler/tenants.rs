//! Who waits, by tenant; and whose turn it is: deficit round robin on work done.
//!
//! Tenants with waiting jobs stand in a ring. Each has a balance of work: what its jobs do is taken off it, as it is done,
//! and once nobody who waits has any left, all who wait get the same again. A turn lets one job in. So over time tenants do
//! the same work, however many jobs each has, and of whatever length. A tenant that has nothing is forgotten.

use super::{Ask, rank::Rank};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

/// A place in a tenant's queue: who ran before goes first, then by seniority.
pub(super) type Place = (bool, Rank);

/// Everybody who waits or runs.
#[derive(Debug)]
pub(super) struct Tenants<T> {
    all: HashMap<Arc<str>, Tenant<T>>,
    /// Those with waiting jobs, in the order of their turns.
    ring: VecDeque<Arc<str>>,
    /// Whose turn it is, until a job of it is let in: a job that has to wait for room is not overtaken.
    turn: Option<Arc<str>>,
    /// Work that a balance grows by at a time, and at most is.
    quantum: i64,
    waiting: usize,
    symbols: usize,
}

#[derive(Debug)]
struct Tenant<T> {
    waiting: BTreeMap<Place, Waiting<T>>,
    /// Symbols of the waiting jobs.
    symbols: usize,
    running: usize,
    /// Work that it may do before others.
    balance: i64,
}

/// A job that waits.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    pub(super) job: T,
    pub(super) ask: Ask,
    /// Whether it is not to be let in for now.
    pub(super) held: bool,
}

/// What becomes of a waiting job that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Fate {
    /// It may be let in.
    Waits,
    /// It waits for something of its own and is passed over.
    Held,
    /// It is to leave.
    Leaves,
}

impl<T> Tenants<T> {
    pub(super) fn new(quantum: u64) -> Self {
        let quantum = i64::try_from(quantum.max(1)).unwrap_or(i64::MAX);
        Self { all: HashMap::new(), ring: VecDeque::new(), turn: None, quantum, waiting: 0, symbols: 0 }
    }

    /// Jobs that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Their symbols.
    pub(super) fn symbols(&self) -> usize {
        self.symbols
    }

    /// A tenant's waiting jobs, and their symbols.
    pub(super) fn waiting_of(&self, tenant: &str) -> (usize, usize) {
        self.all.get(tenant).map_or((0, 0), |tenant| (tenant.waiting.len(), tenant.symbols))
    }

    /// Tenants there are, this one included.
    pub(super) fn count_with(&self, tenant: &str) -> usize {
        self.all.len() + usize::from(!self.all.contains_key(tenant))
    }

    /// A tenant's waiting jobs that go before a place, those that are held excepted.
    pub(super) fn before(&self, tenant: &str, place: Place) -> impl Iterator<Item = &Ask> {
        let tenant = self.all.get(tenant).into_iter();
        let jobs = tenant.flat_map(move |tenant| tenant.waiting.range(..place));
        jobs.filter(|(_, waiting)| !waiting.held).map(|(_, waiting)| &waiting.ask)
    }

    /// All who wait.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &T> {
        self.all.values().flat_map(|tenant| tenant.waiting.values()).map(|waiting| &waiting.job)
    }

    /// Puts a job into its tenant's queue.
    pub(super) fn add(&mut self, place: Place, waiting: Waiting<T>) {
        let name = Arc::clone(&waiting.ask.tenant);
        let symbols = waiting.ask.symbols;
        let tenant = self.all.entry(Arc::clone(&name)).or_insert_with(|| Tenant {
            waiting: BTreeMap::new(),
            symbols: 0,
            running: 0,
            balance: self.quantum,
        });
        if tenant.waiting.is_empty() {
            self.ring.push_back(name);
        }
        tenant.symbols += symbols;
        tenant.waiting.insert(place, waiting);
        self.waiting += 1;
        self.symbols += symbols;
    }

    /// What the job whose turn it is asks for.
    pub(super) fn next(&mut self) -> Option<&Ask> {
        let waits = |name: &Arc<str>| self.all.get(name).is_some_and(|tenant| tenant.first().is_some());
        let name = self.turn.take().filter(waits).or_else(|| self.choose())?;
        let tenant = self.all.get(&name)?;
        self.turn = Some(name);
        tenant.first().map(|(_, waiting)| &waiting.ask)
    }

    /// Lets the job whose turn it is in: it runs from now on.
    pub(super) fn take(&mut self) -> Option<(Place, Waiting<T>)> {
        self.next()?;
        let name = self.turn.take()?;
        let tenant = self.all.get_mut(&name)?;
        let place = tenant.first().map(|(place, _)| *place)?;
        tenant.running += 1;
        let waiting = self.remove(&name, place)?;
        // the next turn is somebody else's
        if let Some(at) = self.ring.iter().position(|other| *other == name) {
            self.ring.remove(at);
            self.ring.push_back(name);
        }
        Some((place, waiting))
    }

    /// A running job of the tenant has done so much work. What is done while nobody else waits is free.
    pub(super) fn charge(&mut self, tenant: &str, work: u64) {
        if self.ring.iter().all(|name| **name == *tenant) {
            return;
        }
        if let Some(tenant) = self.all.get_mut(tenant) {
            tenant.balance = tenant.balance.saturating_sub(i64::try_from(work).unwrap_or(i64::MAX));
        }
    }

    /// A running job of the tenant runs no longer.
    pub(super) fn leave(&mut self, name: &str) {
        if let Some(tenant) = self.all.get_mut(name) {
            tenant.running -= 1;
        }
        self.forget(name);
    }

    /// Looks at every waiting job; hands those that leave to `left`.
    pub(super) fn sweep(&mut self, mut look: impl FnMut(&mut T) -> Fate, mut left: impl FnMut(T)) {
        let mut leaving = Vec::new();
        for (name, tenant) in &mut self.all {
            for (place, waiting) in &mut tenant.waiting {
                let fate = look(&mut waiting.job);
                waiting.held = fate == Fate::Held;
                if fate == Fate::Leaves {
                    leaving.push((Arc::clone(name), *place));
                }
            }
        }
        for (name, place) in leaving {
            if let Some(waiting) = self.remove(&name, place) {
                left(waiting.job);
            }
            self.forget(&name);
        }
    }

    /// Removes everybody, those who run too, and hands over those who wait.
    pub(super) fn end(&mut self) -> impl Iterator<Item = T> {
        (self.waiting, self.symbols, self.turn) = (0, 0, None);
        self.ring.clear();
        let all = std::mem::take(&mut self.all);
        all.into_values().flat_map(|tenant| tenant.waiting.into_values()).map(|waiting| waiting.job)
    }

    /// The first in the ring who has something to let in and work left to do; before that, if nobody has work left, all who
    /// wait get more.
    fn choose(&mut self) -> Option<Arc<str>> {
        let waits = |name: &&Arc<str>| self.all.get(*name).is_some_and(|tenant| tenant.first().is_some());
        let best = self.ring.iter().filter(waits).filter_map(|name| Some(self.all.get(name)?.balance)).max()?;
        if best <= 0 {
            let times = best.saturating_neg() / self.quantum + 1;
            for tenant in self.all.values_mut().filter(|tenant| tenant.first().is_some()) {
                let more = tenant.balance.saturating_add(self.quantum.saturating_mul(times));
                tenant.balance = more.min(self.quantum);
            }
        }
        let can =
            |name: &&Arc<str>| self.all.get(*name).is_some_and(|tenant| tenant.balance > 0 && tenant.first().is_some());
        self.ring.iter().find(can).cloned()
    }

    fn remove(&mut self, name: &str, place: Place) -> Option<Waiting<T>> {
        let tenant = self.all.get_mut(name)?;
        let waiting = tenant.waiting.remove(&place)?;
        tenant.symbols -= waiting.ask.symbols;
        self.waiting -= 1;
        self.symbols -= waiting.ask.symbols;
        if tenant.waiting.is_empty() {
            self.ring.retain(|other| **other != *name);
        }
        Some(waiting)
    }

    /// Forgets a tenant that has nothing.
    fn forget(&mut self, name: &str) {
        if self.all.get(name).is_some_and(|tenant| tenant.running == 0 && tenant.waiting.is_empty()) {
            self.all.remove(name);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.ring.is_empty() && (self.waiting, self.symbols) == (0, 0)
    }
}

impl<T> Tenant<T> {
    /// Who goes first of those that are not held.
    fn first(&self) -> Option<(&Place, &Waiting<T>)> {
        self.waiting.iter().find(|(_, waiting)| !waiting.held)
    }
}
