//! Who waits, by tenant; and whose turn it is: deficit round robin on work done.
//!
//! Tenants with waiting jobs stand in a ring. Each has a balance of work: what its jobs do is taken off it, as it is done, and
//! every tenant gets a quantum back for every quantum that each who competes could have done meanwhile, or at once if nobody
//! who waits has anything left. Nobody saves up more than a quantum but by waiting. A turn lets one job in, of a tenant with
//! work left. So over time tenants do the same work, however many jobs each has, and of whatever length; and whoever did more
//! than others comes in again after as much work of each of them, whoever else keeps coming. Who has nothing is forgotten,
//! unless he owes.

use super::{Ask, rank::Rank};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

/// A place in a tenant's queue: who ran before goes first, then by seniority.
pub(super) type Place = (bool, Rank);

/// Tenants without jobs who are remembered for what they owe.
const REMEMBERED: usize = 256;

/// Everybody who waits or runs.
#[derive(Debug)]
pub(super) struct Tenants<T> {
    /// Those with jobs, and those who owe.
    all: HashMap<Arc<str>, Tenant<T>>,
    /// Those with waiting jobs, in the order of their turns.
    ring: VecDeque<Arc<str>>,
    /// Whose turn it is, until a job of it is let in: a job that has to wait for room is not overtaken.
    turn: Option<Arc<str>>,
    /// Work that a balance grows by at a time, and that it is at first.
    quantum: i64,
    /// Work done in competition for which nobody got anything back yet.
    unpaid: i64,
    /// Tenants with jobs.
    present: usize,
    /// Of these, those with one that runs or may be let in.
    competing: usize,
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
        let (all, ring) = (HashMap::new(), VecDeque::new());
        Self { all, ring, turn: None, quantum, unpaid: 0, present: 0, competing: 0, waiting: 0, symbols: 0 }
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

    /// Tenants with jobs, this one included.
    pub(super) fn count_with(&self, tenant: &str) -> usize {
        self.present + usize::from(!self.all.get(tenant).is_some_and(Tenant::is_present))
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
        self.recount();
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
        self.recount();
        Some((place, waiting))
    }

    /// A running job of the tenant has done so much work. What is done while nobody competes is free.
    pub(super) fn charge(&mut self, tenant: &str, work: u64) {
        if self.competing < 2 {
            return;
        }
        let work = i64::try_from(work).unwrap_or(i64::MAX);
        if let Some(tenant) = self.all.get_mut(tenant) {
            tenant.balance = tenant.balance.saturating_sub(work);
        }
        self.unpaid = self.unpaid.saturating_add(work);
        let all = self.quantum.saturating_mul(i64::try_from(self.competing).unwrap_or(i64::MAX));
        if self.unpaid >= all {
            self.pay(self.unpaid / all);
            self.unpaid %= all;
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
        self.recount();
    }

    /// Removes everybody, those who run too, and hands over those who wait.
    pub(super) fn end(&mut self) -> impl Iterator<Item = T> {
        (self.waiting, self.symbols, self.turn) = (0, 0, None);
        (self.present, self.competing, self.unpaid) = (0, 0, 0);
        self.ring.clear();
        let all = std::mem::take(&mut self.all);
        all.into_values().flat_map(|tenant| tenant.waiting.into_values()).map(|waiting| waiting.job)
    }

    /// The first in the ring who has something to let in and work left to do; before that, if nobody has work left, all get
    /// more.
    fn choose(&mut self) -> Option<Arc<str>> {
        let waits = |name: &&Arc<str>| self.all.get(*name).is_some_and(|tenant| tenant.first().is_some());
        let best = self.ring.iter().filter(waits).filter_map(|name| Some(self.all.get(name)?.balance)).max()?;
        if best <= 0 {
            self.pay(best.saturating_neg() / self.quantum + 1);
        }
        let can =
            |name: &&Arc<str>| self.all.get(*name).is_some_and(|tenant| tenant.balance > 0 && tenant.first().is_some());
        self.ring.iter().find(can).cloned()
    }

    /// Gives everybody so many quanta; who owes no more and has nothing is forgotten.
    fn pay(&mut self, times: i64) {
        let (quantum, more) = (self.quantum, self.quantum.saturating_mul(times));
        self.all.retain(|_, tenant| {
            let most = if tenant.first().is_some() { i64::MAX } else { quantum.max(tenant.balance) };
            tenant.balance = tenant.balance.saturating_add(more).min(most);
            tenant.balance < quantum || tenant.is_present()
        });
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

    /// Forgets a tenant that has nothing and owes nothing.
    fn forget(&mut self, name: &str) {
        self.recount();
        let quantum = self.quantum;
        if self.all.get(name).is_some_and(|tenant| !tenant.is_present() && tenant.balance >= quantum) {
            self.all.remove(name);
        }
        // without anybody who competes nothing is owed; and nobody makes this list long by coming under many names
        if self.present == 0 || self.all.len() - self.present > REMEMBERED {
            self.all.retain(|_, tenant| tenant.is_present());
        }
    }

    fn recount(&mut self) {
        self.present = self.all.values().filter(|tenant| tenant.is_present()).count();
        self.competing = self.all.values().filter(|tenant| tenant.competes()).count();
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.ring.is_empty() && (self.waiting, self.symbols) == (0, 0)
    }
}

impl<T> Tenant<T> {
    fn is_present(&self) -> bool {
        self.running > 0 || !self.waiting.is_empty()
    }

    fn competes(&self) -> bool {
        self.running > 0 || self.first().is_some()
    }

    /// Who goes first of those that are not held.
    fn first(&self) -> Option<(&Place, &Waiting<T>)> {
        self.waiting.iter().find(|(_, waiting)| !waiting.held)
    }
}
