//! The queue: waiting requests by tenant, and whose turn it is, by deficit round robin on time of the worker.
//!
//! Each tenant has a balance of time, from which the time of its requests is subtracted. Every tenant gets a quantum back
//! whenever each competing tenant could have had a quantum of time; and at once if no waiting tenant has a positive balance. A
//! turn admits one request of a tenant with a positive balance. So tenants have the same time, for any number and length of
//! requests.

use crate::accounting;
use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher as _;
use std::hash::{DefaultHasher, Hash};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Maximum tenants without requests whose debt is kept.
const MAX_DEBTORS: usize = 256;

/// Maximum debt or credit of a tenant in quanta: time that others did not use is not paid back for longer.
const MAX_BALANCE: i64 = 256;

/// Quanta after which a tenant that was alone all the time counts as alone: about ten seconds.
const ALONE_AFTER: u64 = 2048;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueuedStatus {
    /// It can be admitted.
    Ready,
    /// It waits for its client or upload and is passed over.
    OnHold,
    /// It has ended and leaves the queue.
    Ended,
}

/// Requests that wait and have not run yet. Preempted ones do not keep the requests of others out of the queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NewRequests {
    pub(super) requests: usize,
    pub(super) symbols: usize,
}

impl NewRequests {
    fn add(&mut self, rank: Rank, symbols: usize) {
        if rank.is_new {
            accounting::add(&mut self.requests, 1);
            accounting::add(&mut self.symbols, symbols);
        }
    }

    fn subtract(&mut self, rank: Rank, symbols: usize) {
        if rank.is_new {
            accounting::subtract(&mut self.requests, 1);
            accounting::subtract(&mut self.symbols, symbols);
        }
    }
}

#[derive(Debug)]
pub(super) struct Tenants<T> {
    /// Tenants with requests, and tenants that owe time.
    pub(super) all: BTreeMap<Arc<str>, Tenant<T>>,
    /// Tenants with waiting requests, in the order of their turns.
    pub(super) ring: VecDeque<Arc<str>>,
    /// The tenant whose turn it is. It keeps the turn until its request is admitted, so no other request overtakes; or until
    /// its running requests have overdrawn its balance and another waiting tenant has not.
    pub(super) turn: Option<Arc<str>>,
    /// Initial balance of a tenant, and the time that it gets back at once.
    quantum: i64,
    /// Time used in competition for which no quantum was given back yet.
    unpaid: i64,
    /// Time used since tenants competed.
    alone: u64,
    /// Tenants with requests.
    pub(super) present: usize,
    /// Tenants with a request that runs or can be admitted.
    pub(super) competing: usize,
    pub(super) waiting: usize,
    pub(super) new: NewRequests,
}

#[derive(Debug)]
pub(super) struct Tenant<T> {
    pub(super) waiting: BTreeMap<Rank, Waiting<T>>,
    new: NewRequests,
    running: usize,
    share: TenantShare,
}

/// What a tenant has at present.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TenantShare {
    pub(super) rows: usize,
    pub(super) bytes: usize,
    /// Time that it may use before others; negative if it has used more.
    pub(super) balance: i64,
}

impl<T> Tenants<T> {
    pub(super) fn new(quantum: u64) -> Self {
        Self {
            all: BTreeMap::new(),
            ring: VecDeque::new(),
            turn: None,
            quantum: i64::try_from(quantum.max(1)).unwrap_or(i64::MAX),
            unpaid: 0,
            alone: u64::MAX,
            present: 0,
            competing: 0,
            waiting: 0,
            new: NewRequests::default(),
        }
    }

    /// Returns the number of a tenant's waiting requests, preempted ones included.
    pub(super) fn waiting_of(&self, tenant: &str) -> usize {
        self.all.get(tenant).map_or(0, |tenant| tenant.waiting.len())
    }

    pub(super) fn new_of(&self, tenant: &str) -> NewRequests {
        self.all.get(tenant).map(|tenant| tenant.new).unwrap_or_default()
    }

    pub(super) fn demands_of(&mut self, tenant: &str) -> impl Iterator<Item = (Rank, &mut Demand)> {
        let tenant = self.all.get_mut(tenant).into_iter();
        let waiting = tenant.flat_map(|tenant| tenant.waiting.iter_mut());
        waiting.map(|(rank, waiting)| (*rank, &mut waiting.demand))
    }

    /// Returns the demands of a tenant's waiting requests that go before `rank`, without those on hold.
    pub(super) fn before(&self, tenant: &str, rank: Rank) -> impl Iterator<Item = &Demand> {
        let tenant = self.all.get(tenant).into_iter();
        let requests = tenant.flat_map(move |tenant| tenant.waiting.range(..rank));
        requests.filter(|(_, waiting)| !waiting.on_hold).map(|(_, waiting)| &waiting.demand)
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = &T> {
        self.all.values().flat_map(|tenant| tenant.waiting.values()).map(|waiting| &waiting.request)
    }

    pub(super) fn add(&mut self, rank: Rank, waiting: Waiting<T>) {
        let name = Arc::clone(&waiting.demand.tenant);
        let symbols = waiting.demand.symbols;
        let tenant = self.all.entry(Arc::clone(&name)).or_insert_with(|| Tenant {
            waiting: BTreeMap::new(),
            new: NewRequests::default(),
            running: 0,
            share: TenantShare { balance: self.quantum, ..TenantShare::default() },
        });
        if tenant.waiting.is_empty() {
            self.ring.push_back(name);
        }
        tenant.new.add(rank, symbols);
        tenant.waiting.insert(rank, waiting);
        accounting::add(&mut self.waiting, 1);
        self.new.add(rank, symbols);
        self.recount();
    }

    pub(super) fn share_of(&self, name: &str) -> TenantShare {
        self.all.get(name).map(|tenant| tenant.share).unwrap_or_default()
    }

    /// Records that the running requests of a tenant need `after` bytes instead of `before`.
    pub(super) fn resize(&mut self, name: &str, before: usize, after: usize) {
        if let Some(tenant) = self.all.get_mut(name) {
            accounting::replace(&mut tenant.share.bytes, before, after);
        }
    }

    /// Returns the demand of the request whose turn it is.
    pub(super) fn next(&mut self) -> Option<&Demand> {
        let name = self.turn.take().filter(|name| self.keeps_turn(name)).or_else(|| self.choose())?;
        let tenant = self.all.get(&name)?;
        self.turn = Some(name);
        tenant.first().map(|(_, waiting)| &waiting.demand)
    }

    /// Returns the first demand of each tenant that may run, in the order of their turns.
    pub(super) fn next_demands(&self) -> impl Iterator<Item = &Demand> {
        let others = self.ring.iter().filter(|name| self.turn.as_ref() != Some(name));
        let tenants = self.turn.iter().chain(others).filter_map(|name| self.all.get(name));
        let can_run = tenants.filter(|tenant| tenant.can_run());
        can_run.filter_map(|tenant| tenant.first().map(|(_, waiting)| &waiting.demand))
    }

    /// Removes the request whose turn it is, and counts it as running.
    pub(super) fn take(&mut self) -> Option<(Rank, Waiting<T>)> {
        self.next()?;
        let name = self.turn.take()?;
        let tenant = self.all.get(&name)?;
        let rank = tenant.first().map(|(rank, _)| *rank)?;
        let waiting = self.remove(&name, rank)?;
        if let Some(tenant) = self.all.get_mut(&name) {
            accounting::add(&mut tenant.running, 1);
            accounting::add(&mut tenant.share.rows, waiting.demand.rows);
            accounting::add(&mut tenant.share.bytes, waiting.demand.bytes);
        }
        // the next turn is another tenant's
        if let Some(index) = self.ring.iter().position(|other| *other == name) {
            self.ring.remove(index);
            self.ring.push_back(name);
        }
        self.recount();
        Some((rank, waiting))
    }

    /// Subtracts time that a running request used from its tenant's balance. Time is free while no other tenant competes.
    pub(super) fn charge(&mut self, tenant: &str, time: u64) {
        if self.competing < 2 {
            self.alone = self.alone.saturating_add(time);
            return;
        }
        self.alone = 0;
        let time = i64::try_from(time).unwrap_or(i64::MAX);
        let max_debt = self.quantum.saturating_mul(MAX_BALANCE);
        if let Some(tenant) = self.all.get_mut(tenant) {
            tenant.share.balance = tenant.share.balance.saturating_sub(time).max(-max_debt);
        }
        self.unpaid = self.unpaid.saturating_add(time);
        let round = self.quantum.saturating_mul(i64::try_from(self.competing).unwrap_or(i64::MAX));
        if self.unpaid >= round {
            self.pay(self.unpaid / round);
            self.unpaid %= round;
        }
    }

    /// Returns true if tenants compete or did so lately: another one may come in the middle of a step.
    pub(super) fn were_competing(&self) -> bool {
        self.competing > 1 || self.alone < self.quantum.unsigned_abs().saturating_mul(ALONE_AFTER)
    }

    /// Records that a running request of the tenant runs no longer, and what it held.
    pub(super) fn leave(&mut self, name: &str, rows: usize, bytes: usize) {
        if let Some(tenant) = self.all.get_mut(name) {
            accounting::subtract(&mut tenant.running, 1);
            accounting::subtract(&mut tenant.share.rows, rows);
            accounting::subtract(&mut tenant.share.bytes, bytes);
        }
        self.forget(name);
    }

    /// Polls every waiting request. Passes those that have ended to `ended`.
    pub(super) fn poll(&mut self, mut poll: impl FnMut(&mut T) -> QueuedStatus, mut ended: impl FnMut(T)) {
        let mut leaving = Vec::new();
        for (name, tenant) in &mut self.all {
            for (rank, waiting) in &mut tenant.waiting {
                let status = poll(&mut waiting.request);
                waiting.on_hold = status == QueuedStatus::OnHold;
                if status == QueuedStatus::Ended {
                    leaving.push((Arc::clone(name), *rank));
                }
            }
        }
        for (name, rank) in leaving {
            if let Some(waiting) = self.remove(&name, rank) {
                ended(waiting.request);
            }
            self.forget(&name);
        }
        self.recount();
    }

    pub(super) fn clear(&mut self) -> impl Iterator<Item = T> {
        let empty = Self { quantum: self.quantum, ..Self::new(1) };
        let all = std::mem::replace(self, empty).all;
        all.into_values().flat_map(|tenant| tenant.waiting.into_values()).map(|waiting| waiting.request)
    }

    fn keeps_turn(&self, name: &Arc<str>) -> bool {
        let Some(tenant) = self.all.get(name).filter(|tenant| tenant.first().is_some()) else { return false };
        let can_run = |other: &Arc<str>| self.all.get(other).is_some_and(Tenant::can_run);
        tenant.share.balance > 0 || !self.ring.iter().any(can_run)
    }

    /// Returns the ring's first tenant with a request to admit and a positive balance. If none is positive, pays all first.
    fn choose(&mut self) -> Option<Arc<str>> {
        let waits = |name: &&Arc<str>| self.all.get(*name).is_some_and(|tenant| tenant.first().is_some());
        let best = self.ring.iter().filter(waits).filter_map(|name| Some(self.all.get(name)?.share.balance)).max()?;
        if best <= 0 {
            self.pay(best.saturating_neg() / self.quantum + 1);
        }
        let can_run = |name: &&Arc<str>| self.all.get(*name).is_some_and(Tenant::can_run);
        self.ring.iter().find(can_run).cloned()
    }

    /// Gives every tenant `quanta` quanta, so that the differences between tenants with requests stay. Forgets tenants without
    /// requests that owe nothing any more.
    fn pay(&mut self, quanta: i64) {
        let quantum = self.quantum;
        let max_credit = quantum.saturating_mul(MAX_BALANCE);
        let pay = quantum.saturating_mul(quanta);
        self.all.retain(|_, tenant| {
            let max = if tenant.is_present() { max_credit } else { quantum.max(tenant.share.balance) };
            tenant.share.balance = tenant.share.balance.saturating_add(pay).min(max);
            tenant.share.balance < quantum || tenant.is_present()
        });
    }

    fn remove(&mut self, name: &str, rank: Rank) -> Option<Waiting<T>> {
        let tenant = self.all.get_mut(name)?;
        let waiting = tenant.waiting.remove(&rank)?;
        tenant.new.subtract(rank, waiting.demand.symbols);
        accounting::subtract(&mut self.waiting, 1);
        self.new.subtract(rank, waiting.demand.symbols);
        if tenant.waiting.is_empty() {
            self.ring.retain(|other| **other != *name);
        }
        Some(waiting)
    }

    /// Forgets a tenant that has no requests and owes nothing.
    fn forget(&mut self, name: &str) {
        self.recount();
        let quantum = self.quantum;
        if self.all.get(name).is_some_and(|tenant| !tenant.is_present() && tenant.share.balance >= quantum) {
            self.all.remove(name);
        }
        // without competition nothing is owed; and many names of one client must not make the map grow without limit
        if self.present == 0 || self.all.len() - self.present > MAX_DEBTORS {
            self.all.retain(|_, tenant| tenant.is_present());
        }
    }

    fn recount(&mut self) {
        self.present = self.all.values().filter(|tenant| tenant.is_present()).count();
        self.competing = self.all.values().filter(|tenant| tenant.running > 0 || tenant.first().is_some()).count();
    }
}

impl<T> Tenant<T> {
    fn is_present(&self) -> bool {
        self.running > 0 || !self.waiting.is_empty()
    }

    /// Returns true if it has a request to admit and a positive balance.
    fn can_run(&self) -> bool {
        self.share.balance > 0 && self.first().is_some()
    }

    /// Returns the first waiting request that is not on hold.
    fn first(&self) -> Option<(&Rank, &Waiting<T>)> {
        self.waiting.iter().find(|(_, waiting)| !waiting.on_hold)
    }
}

/// Range of priorities. Higher goes first.
pub const PRIORITIES: RangeInclusive<i32> = -8..=7;

/// Seniority of a request: the least rank is admitted first and preempted last. It is the work clock at arrival, moved back by
/// priority times [`Rules::age`]. It never changes, so queues are never sorted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// False for a request that waits after a preemption: it goes before all new ones of its tenant.
    pub(crate) is_new: bool,
    pub(crate) effective_arrival: i64,
    /// Order of arrival, which breaks ties.
    pub(crate) number: u64,
}

impl Rank {
    /// Returns the rank of the `number`th request, which arrives when the work clock is at `clock`.
    pub(crate) fn new(clock: u64, priority: i32, age: u64, number: u64) -> Self {
        let priority = i64::from(priority.clamp(*PRIORITIES.start(), *PRIORITIES.end()));
        let clock = i64::try_from(clock).unwrap_or(i64::MAX);
        let age = i64::try_from(age).unwrap_or(i64::MAX);
        Self { is_new: true, effective_arrival: clock.saturating_sub(age.saturating_mul(priority)), number }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Demand {
    pub(crate) tenant: Arc<str>,
    /// Symbols of its prompt or document.
    pub(crate) symbols: usize,
    /// Symbols that no cache holds: they must be fed before there is an answer.
    pub(crate) uncached: usize,
    /// The beginning of its text, if the segment cache may keep its states.
    pub(crate) beginning: Beginning,
    /// Bytes that it needs to start.
    pub(crate) bytes: usize,
    /// Maximum rows that it may have.
    pub(crate) rows: usize,
}

impl Demand {
    /// Lowers its uncached symbols: the cache may hold the first `shared` ones.
    pub(crate) fn leave_out(&mut self, shared: usize) {
        self.uncached = self.uncached.min(self.symbols.saturating_sub(shared));
    }
}

/// Lengths of the beginnings that are compared.
const LENGTHS: [usize; 5] = [16, 64, 256, 1024, 4096];

/// Hashes of the beginnings of a text. Requests with equal hashes may share cached states.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Beginning {
    /// One for each of [`LENGTHS`] that the text has; none for a text that is not cached.
    hashes: [Option<u64>; LENGTHS.len()],
}

impl Beginning {
    /// Hashes a text of at least the longest length, or a complete one. `key` tells apart texts that share no states.
    pub(crate) fn new(key: &impl Hash, mut symbols: impl Iterator<Item = u32>) -> Self {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let mut hashed = 0;
        let hashes = LENGTHS.map(|len| {
            while hashed < len {
                symbols.next()?.hash(&mut hasher);
                hashed += 1;
            }
            Some(hasher.finish())
        });
        Self { hashes }
    }

    /// Returns true if no other text may share states with it.
    pub(crate) fn is_empty(&self) -> bool {
        self.hashes[0].is_none()
    }

    /// Returns the maximum number of symbols that both texts may begin with: 0 if the first hashes differ.
    pub(crate) fn max_shared(&self, other: &Self) -> usize {
        let pairs = self.hashes.iter().zip(&other.hashes);
        let equal = pairs.take_while(|(own, other)| own.is_some() && own == other).count();
        if equal == 0 { 0 } else { LENGTHS.get(equal).map_or(usize::MAX, |next| next - 1) }
    }
}

#[derive(Debug)]
pub(super) struct Waiting<T> {
    pub(crate) request: T,
    pub(crate) demand: Demand,
    /// True if it is not to be admitted for now.
    pub(crate) on_hold: bool,
    /// Work since its last admission that it must do again; 0 if it keeps what it did.
    pub(crate) lost: u64,
}
