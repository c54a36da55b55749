//! The connections of one listener: how many it accepts, in all and from one network, and which one closes in favour of a new one.
//!
//! A network is one IPv4 address or one IPv6 /64. A connection whose handshake is incomplete takes no place among the open ones:
//! it waits in a pool of its own, in which a new handshake replaces the oldest one of the network with the most. An open
//! connection can be evicted while it has no call that needs a key: it closes when its network or the whole listener
//! needs the place. When all places are taken by other calls, a few more connections are accepted for health checks only.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, hash_map},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tokio::sync::watch;

/// Connections that are accepted for health checks when all other places are taken.
const HEALTH_PLACES: usize = 16;
/// There is one place for an incomplete handshake per this many open connections, and at least [`MIN_HANDSHAKES`].
const CONNECTIONS_PER_HANDSHAKE: usize = 8;
const MIN_HANDSHAKES: usize = 16;

/// Maximum numbers of connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// Open connections.
    pub(crate) total: usize,
    /// Open connections of one network.
    pub(crate) per_network: usize,
}

/// The connections of one listener.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    limits: ConnectionLimits,
    max_handshakes: usize,
    places: Mutex<Places>,
    /// True while new connections are rejected, so that the log has one warning and not thousands.
    rejecting: AtomicBool,
}

#[derive(Debug, Default)]
struct Places {
    /// Number of the next connection, or of the next change from busy to idle. Orders both by age.
    next: u64,
    /// Connections in their handshake, oldest first.
    handshakes: BTreeMap<u64, Entry>,
    /// Connections after their handshake.
    open: HashMap<u64, Entry>,
    /// Connections that may only check health.
    health: HashMap<u64, Entry>,
    /// Open connections of each network that has any.
    by_network: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Entry {
    network: IpAddr,
    /// Number of calls in progress that need a key, if the server has keys.
    calls: usize,
    /// When the last of these ended, or the connection opened, in the order of [`Places::next`].
    idle_since: u64,
    /// True once the connection has to close.
    evicted: watch::Sender<bool>,
}

/// What a connection may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Any call.
    AllCalls,
    /// Health checks: the listener has no place for more.
    HealthOnly,
}

/// A connection's place in the table. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    table: Arc<ConnectionTable>,
    id: u64,
    evicted: watch::Receiver<bool>,
}

/// A call in progress. Its connection is idle when the last of these is dropped.
#[derive(Debug)]
pub(crate) struct CallInProgress {
    table: Arc<ConnectionTable>,
    id: u64,
    /// False if the connection may be evicted during the call.
    keeps_place: bool,
    /// The connection's number of calls, for those who wait until it is idle.
    calls: watch::Sender<usize>,
}

impl ConnectionTable {
    /// Creates an empty table.
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<Self> {
        let max_handshakes = (limits.total / CONNECTIONS_PER_HANDSHAKE).max(MIN_HANDSHAKES);
        Arc::new(Self { limits, max_handshakes, places: Mutex::default(), rejecting: AtomicBool::new(false) })
    }

    /// Returns a place for a connection that begins its handshake. If there is none left, the oldest handshake of the network
    /// with the most is evicted.
    pub(crate) fn begin_handshake(self: &Arc<Self>, address: IpAddr) -> ConnectionPlace {
        let mut places = self.places();
        if places.handshakes.len() >= self.max_handshakes {
            let all = places.handshakes.iter().map(|(id, entry)| Candidate::new(*id, entry));
            if let Some(id) = oldest_of_largest(all) {
                evict(places.handshakes.remove(&id));
            }
        }
        let id = places.number();
        let (sender, evicted) = watch::channel(false);
        let entry = Entry { network: network(address), calls: 0, idle_since: id, evicted: sender };
        places.handshakes.insert(id, entry);
        ConnectionPlace { table: Arc::clone(self), id, evicted }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Moves a connection to the open ones, if it has a place there or an idle connection can be evicted.
    fn open(&mut self, id: u64, entry: Entry, limits: ConnectionLimits) -> Result<(), Entry> {
        let own = self.by_network.get(&entry.network).copied().unwrap_or(0);
        let victim = if own >= limits.per_network {
            oldest_of_largest(idle(&self.open).filter(|candidate| candidate.network == entry.network))
        } else if self.open.len() >= limits.total {
            // A network whose connections are all busy is not considered, although it may have the most.
            oldest_of_largest(idle(&self.open))
        } else {
            None
        };
        let has_place = own < limits.per_network && self.open.len() < limits.total;
        if let Some(victim) = victim {
            self.remove_open(victim);
        } else if !has_place {
            return Err(entry);
        }
        *self.by_network.entry(entry.network).or_default() += 1;
        self.open.insert(id, entry);
        Ok(())
    }

    /// Accepts a connection for health checks only. If no place is left, the oldest of the network with the most is evicted.
    fn open_for_health(&mut self, id: u64, entry: Entry) {
        if self.health.len() >= HEALTH_PLACES {
            // Also one with a call: a check is short, so a long one has held its place longest.
            let all = self.health.iter().map(|(id, entry)| Candidate::new(*id, entry));
            if let Some(victim) = oldest_of_largest(all) {
                evict(self.health.remove(&victim));
            }
        }
        self.health.insert(id, entry);
    }

    fn remove_open(&mut self, id: u64) {
        let Some(entry) = self.open.remove(&id) else { return };
        if let Some(count) = self.by_network.get_mut(&entry.network) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_network.remove(&entry.network);
            }
        }
        evict(Some(entry));
    }

    fn entry(&mut self, id: u64) -> Option<&mut Entry> {
        self.open.get_mut(&id).or_else(|| self.health.get_mut(&id))
    }
}

impl ConnectionPlace {
    /// Opens the connection after its handshake. Returns `None` if it was evicted meanwhile.
    pub(crate) fn open(&self) -> Option<Admission> {
        let mut places = self.table.places();
        // A connection that was evicted meanwhile has no entry.
        let mut entry = places.handshakes.remove(&self.id)?;
        entry.idle_since = places.number();
        let limits = self.table.limits;
        let admission = match places.open(self.id, entry, limits) {
            Ok(()) => Admission::AllCalls,
            Err(entry) => {
                places.open_for_health(self.id, entry);
                Admission::HealthOnly
            }
        };
        drop(places);
        let is_full = admission == Admission::HealthOnly;
        if is_full && !self.table.rejecting.swap(is_full, Relaxed) {
            let ConnectionLimits { total, per_network } = limits;
            tracing::warn!(total, per_network, "rejecting connections: all that a limit allows have calls in progress");
        } else if !is_full {
            self.table.rejecting.store(false, Relaxed);
        }
        Some(admission)
    }

    /// Returns the connection's number, which is unique and grows with each connection.
    pub(crate) fn number(&self) -> u64 {
        self.id
    }

    /// Counts a call until the returned value is dropped. `calls` gets the connection's number of calls at every change.
    pub(crate) fn begin_call(&self, calls: &watch::Sender<usize>) -> CallInProgress {
        if let Some(entry) = self.table.places().entry(self.id) {
            entry.calls = entry.calls.saturating_add(1);
        }
        self.count_call(calls, true)
    }

    /// Counts a call as [`begin_call`](Self::begin_call) does. The call needs no key, so the connection may be evicted.
    pub(crate) fn begin_keyless_call(&self, calls: &watch::Sender<usize>) -> CallInProgress {
        self.count_call(calls, false)
    }

    fn count_call(&self, calls: &watch::Sender<usize>, keeps_place: bool) -> CallInProgress {
        calls.send_modify(|calls| *calls = calls.saturating_add(1));
        CallInProgress { table: Arc::clone(&self.table), id: self.id, keeps_place, calls: calls.clone() }
    }

    /// Waits until the connection has to close in favour of another.
    pub(crate) async fn evicted(&self) {
        // An error means that the entry is gone, which happens only with an eviction.
        let _ = self.evicted.clone().wait_for(|evicted| *evicted).await;
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut places = self.table.places();
        places.handshakes.remove(&self.id);
        places.health.remove(&self.id);
        places.remove_open(self.id);
    }
}

impl Drop for CallInProgress {
    fn drop(&mut self) {
        if self.keeps_place {
            let mut places = self.table.places();
            let now = places.number();
            if let Some(entry) = places.entry(self.id) {
                entry.calls = entry.calls.saturating_sub(1);
                entry.idle_since = now;
            }
        }
        self.calls.send_modify(|calls| *calls = calls.saturating_sub(1));
    }
}

/// A connection that may be evicted.
struct Candidate {
    id: u64,
    network: IpAddr,
    idle_since: u64,
}

impl Candidate {
    fn new(id: u64, entry: &Entry) -> Self {
        Self { id, network: entry.network, idle_since: entry.idle_since }
    }
}

fn idle(entries: &HashMap<u64, Entry>) -> impl Iterator<Item = Candidate> {
    let idle = entries.iter().filter(|(_, entry)| entry.calls == 0);
    idle.map(|(id, entry)| Candidate::new(*id, entry))
}

/// Returns the number of the oldest connection among those of the network that has the most.
fn oldest_of_largest(candidates: impl Iterator<Item = Candidate>) -> Option<u64> {
    let mut networks: HashMap<IpAddr, (usize, Candidate)> = HashMap::new();
    for candidate in candidates {
        match networks.entry(candidate.network) {
            hash_map::Entry::Vacant(network) => drop(network.insert((1, candidate))),
            hash_map::Entry::Occupied(mut network) => {
                let (count, oldest) = network.get_mut();
                *count += 1;
                if candidate.idle_since < oldest.idle_since {
                    *oldest = candidate;
                }
            }
        }
    }
    let largest = networks.into_values().max_by_key(|(count, oldest)| (*count, Reverse(oldest.idle_since)));
    largest.map(|(_, oldest)| oldest.id)
}

fn evict(entry: Option<Entry>) {
    if let Some(entry) = entry {
        entry.evicted.send_replace(true);
    }
}

/// Returns the network of an address: the address itself, or the first 64 bits of an IPv6 address, whose site chooses the rest
/// freely.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests;
