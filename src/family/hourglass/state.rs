//! What a sequence remembers: three caches, where segments ended, and the companion's sequence beside it.
//!
//! Everything else follows from these: a row waits for its segment step while `middle` is behind `ends`, and is unfinished
//! while `post` is behind `pre`. So a fork is a clone, and a rollback shortens.

use crate::{
    decode::contract::{Noise, PageUse, Row, State},
    error::{Error, Result},
    nn::cache::Cache,
};

/// One sequence of an hourglass.
pub struct HourglassState {
    /// The pre stack's keys and values, and its output at each symbol: what pooling and the residual read.
    pub pre: Cache,
    /// What there is beyond the pre stack; none in a vanilla model.
    pub pooled: Option<PooledState>,
    /// Symbols that have had their finish step; those behind are in flight.
    pub finished: usize,
    /// What the head is to take in the finish step of a vanilla model, whose pages keep no outputs: (wanted, D).
    pub hidden: Vec<f32>,
    /// Where sampled boundaries take their noise from; none if boundaries are not sampled.
    pub noise: Option<Noise>,
    /// The position of the first symbol in its stream.
    pub offset: usize,
    /// The companion's sequence and its entropies.
    pub companion: Option<CompanionState>,
}

/// Segments that a sequence has room to list from the start, so that no step of a usual one has to make room.
pub const ROOM: usize = 1024;

/// The part of a sequence beyond the pre stack.
pub struct PooledState {
    /// The middle stack: position 0 is the null group, position m + 1 segment m; with its output, which upsampling reads.
    pub middle: Cache,
    /// The post stack.
    pub post: Cache,
    /// The position of each closed segment's last symbol.
    pub ends: Vec<usize>,
}

/// A companion's sequence.
pub struct CompanionState {
    /// Taken out while it is being stepped.
    pub row: Option<Row>,
    /// H_t, in nats, for every symbol fed.
    pub entropies: Vec<f64>,
}

impl HourglassState {
    /// Whether segments are closed that the middle stack has not seen.
    pub fn waits(&self) -> bool {
        self.pooled.as_ref().is_some_and(|pooled| pooled.middle.len() < pooled.ends.len() + 1)
    }

    /// Whether no symbol is in flight.
    pub fn is_ready(&self) -> bool {
        self.finished == self.pre.len()
    }

    /// Shortens all but the companion's sequence to the first `len` symbols.
    fn truncate(&mut self, len: usize) {
        if let Some(pooled) = &mut self.pooled {
            pooled.ends.truncate(pooled.ends.partition_point(|&end| end < len));
            pooled.middle.truncate(pooled.ends.len() + 1);
            pooled.post.truncate(len);
        }
        if let Some(companion) = &mut self.companion {
            companion.entropies.truncate(len);
        }
        self.pre.truncate(len);
        self.finished = self.finished.min(len);
    }

    /// The caches of all stacks.
    fn caches(&self) -> impl Iterator<Item = &Cache> {
        let pooled = self.pooled.iter().flat_map(|pooled| [&pooled.middle, &pooled.post]);
        std::iter::once(&self.pre).chain(pooled)
    }

    /// The companion's state, unless it is being stepped.
    pub(super) fn companion_state(&self) -> Option<&dyn State> {
        Some(&*self.companion.as_ref()?.row.as_ref()?.state)
    }

    /// The part beyond the pre stack.
    ///
    /// # Errors
    /// A vanilla model has none.
    pub fn pooled(&self) -> Result<&PooledState> {
        self.pooled.as_ref().ok_or_else(no_segments)
    }

    /// The same, to change.
    ///
    /// # Errors
    /// A vanilla model has none.
    pub fn pooled_mut(&mut self) -> Result<&mut PooledState> {
        self.pooled.as_mut().ok_or_else(no_segments)
    }
}

impl Clone for PooledState {
    fn clone(&self) -> Self {
        // with the same room as a new one, which a derived clone would not have
        let mut ends = Vec::with_capacity(self.ends.len().max(ROOM));
        ends.extend_from_slice(&self.ends);
        Self { middle: self.middle.clone(), post: self.post.clone(), ends }
    }
}

fn no_segments() -> Error {
    Error::Internal("a vanilla sequence has no segments".into())
}

impl PooledState {
    /// The symbols of segment `m`.
    pub fn segment(&self, m: usize) -> std::ops::RangeInclusive<usize> {
        let start = if m == 0 { 0 } else { self.ends[m - 1] + 1 };
        start..=self.ends[m]
    }

    /// The middle position whose output symbol `t` sees: the number of segments that ended with it or before.
    pub fn sees(&self, t: usize) -> usize {
        self.ends.partition_point(|&end| end <= t)
    }
}

impl State for HourglassState {
    fn len(&self) -> usize {
        self.pre.len()
    }

    fn segments(&self) -> usize {
        self.pooled.as_ref().map_or(0, |pooled| pooled.ends.len())
    }

    fn fork(&self) -> Box<dyn State> {
        let companion = self.companion.as_ref().map(|companion| {
            let shorter = |row: &Row| {
                let mut state = row.state.fork();
                // one that could not be shortened is lost, and the next step says so
                state.rollback(self.finished).ok().map(|()| Row::new(state))
            };
            CompanionState { row: companion.row.as_ref().and_then(shorter), entropies: companion.entropies.clone() }
        });
        let (pre, pooled, noise) = (self.pre.clone(), self.pooled.clone(), self.noise.clone());
        let (finished, hidden, offset) = (self.finished, Vec::new(), self.offset);
        let mut fork = Self { pre, pooled, finished, hidden, noise, offset, companion };
        fork.truncate(finished);
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        if !self.is_ready() {
            return Err(Error::Internal("a row that is not ready cannot be rolled back".into()));
        }
        if len > self.len() {
            return Err(Error::Internal(format!("rollback to {len}, beyond the end {}", self.len())));
        }
        if let Some(row) = self.companion.as_mut().and_then(|companion| companion.row.as_mut()) {
            row.state.rollback(len)?;
        }
        self.truncate(len);
        Ok(())
    }

    fn restart(&mut self, offset: usize) {
        if let Some(row) = self.companion.as_mut().and_then(|companion| companion.row.as_mut()) {
            row.state.restart(offset);
        }
        self.truncate(0);
        self.hidden.clear();
        self.offset = offset;
    }

    fn boundary_before(&self, len: usize) -> usize {
        let Some(pooled) = &self.pooled else { return len.min(self.len()) };
        let closed = pooled.ends.partition_point(|&end| end < len);
        closed.checked_sub(1).map_or(0, |last| pooled.ends[last] + 1)
    }

    fn bytes(&self) -> usize {
        self.caches().map(Cache::bytes).sum::<usize>() + self.companion_state().map_or(0, State::bytes)
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        for page in self.caches().flat_map(Cache::pages) {
            each(PageUse { id: page.id(), bytes: page.bytes().len(), references: page.references() });
        }
        if let Some(companion) = self.companion_state() {
            companion.pages(each);
        }
    }

    fn own_bytes(&self) -> usize {
        let ends = self.pooled.as_ref().map_or(0, |pooled| pooled.ends.capacity() * size_of::<usize>());
        let entropies =
            self.companion.as_ref().map_or(0, |companion| companion.entropies.capacity() * size_of::<f64>());
        let companion = self.companion_state().map_or(0, State::own_bytes);
        size_of::<Self>() + self.caches().map(Cache::own_bytes).sum::<usize>() + ends + entropies + companion
    }
}
