//! A waiting request: what it needs, and its position in its tenant's queue.

use super::rank::Rank;
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

/// Resources that a request needs.
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
    pub(super) fn leave_out(&mut self, shared: usize) {
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
    pub(super) fn is_empty(&self) -> bool {
        self.hashes[0].is_none()
    }

    /// Returns the maximum number of symbols that both texts may begin with: 0 if the first hashes differ.
    pub(super) fn max_shared(&self, other: &Self) -> usize {
        let pairs = self.hashes.iter().zip(&other.hashes);
        let equal = pairs.take_while(|(own, other)| own.is_some() && own == other).count();
        if equal == 0 { 0 } else { LENGTHS.get(equal).map_or(usize::MAX, |next| next - 1) }
    }
}

/// Position in a tenant's queue: preempted requests go first, then the most senior.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueuePosition {
    /// False for a request that was preempted.
    pub(super) is_new: bool,
    pub(super) rank: Rank,
}

#[derive(Debug)]
pub(super) struct Waiting<T> {
    pub(super) request: T,
    pub(super) demand: Demand,
    /// True if it is not to be admitted for now.
    pub(super) on_hold: bool,
    /// Work of its latest stay that it must do again; 0 if it keeps what it did.
    pub(super) lost: u64,
}
