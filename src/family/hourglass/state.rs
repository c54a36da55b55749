//! What a sequence remembers: three caches, where segments ended, and the companion's sequence beside it.
//!
//! Everything else follows from these: a row waits for its segment step while `middle` is behind `ends`, and is unfinished
//! while `post` is behind `pre`. So a fork is a clone, and a rollback shortens. Of what its windows have left behind it knows
//! how much there was, and nothing else.

use super::ends::Ends;
use crate::{
    decode::{
        contract::{Noise, PageUse, SequenceRow, State},
        replay::{ReplayStart, SkippedSegments},
    },
    error::{Error, Result},
    nn::{kv_cache::KvCache, window::Window},
};

/// One sequence of an hourglass.
pub struct HourglassState {
    /// The pre stack's keys and values; with what pooling reads at each symbol: the sum of its segment's outputs so far, or its
    /// own output.
    pub pre: KvCache,
    /// What pre and post stack attend to.
    pub window: Window,
    /// What there is beyond the pre stack; none in a vanilla model.
    pub pooled: Option<PooledState>,
    /// Symbols that have had their finish step; those behind are in flight.
    pub finished: usize,
    /// The pre stack's outputs in flight, (D) each: of all symbols, for the residual; in a vanilla model of those whose logits
    /// are wanted, for the head.
    pub hidden: Vec<f32>,
    /// Where sampled boundaries take their noise from; none if boundaries are not sampled.
    pub noise: Option<Noise>,
    /// The position of the first symbol in its stream.
    pub offset: usize,
    /// The companion's sequence and its entropies.
    pub companion: Option<CompanionState>,
    /// Where it was taken up, if that was not at the text's beginning.
    pub resumed: Option<ReplayStart>,
}

/// Symbols that a sequence has room to list numbers of from the start, so that no step of a usual one has to make room.
pub const SYMBOLS_ROOM: usize = 4096;

/// The part of a sequence beyond the pre stack.
pub struct PooledState {
    /// What the middle stack's cache is before a segment has closed: the null group, which a window may leave behind.
    pub null: KvCache,
    /// The middle stack: position 0 is the null group, position m + 1 segment m; with its output, which upsampling reads.
    pub middle: KvCache,
    /// What the middle stack attends to.
    pub middle_window: Window,
    /// The post stack.
    pub post: KvCache,
    /// Where segments ended.
    pub ends: Ends,
    /// The vectors of the segments that symbols in flight closed, (D) each.
    pub closed: Vec<f32>,
    /// The middle stack's outputs from position `above_from` on, (D) each, as far as symbols in flight see them; empty if none
    /// of these closed a segment, and all see the latest one.
    pub above: Vec<f32>,
    /// See `above`.
    pub above_from: usize,
}

/// A companion's sequence.
pub struct CompanionState {
    /// Taken out while it is being stepped.
    pub row: Option<SequenceRow>,
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
            pooled.ends.truncate(len);
            pooled.above.clear();
            pooled.closed.clear();
            match len {
                // its null group may be gone, as may all that the other two began with
                0 => pooled.middle = pooled.null.clone(),
                _ => pooled.middle.truncate(pooled.ends.len() + 1),
            }
            pooled.post.truncate(len);
        }
        if let Some(companion) = &mut self.companion {
            companion.entropies.truncate(len);
        }
        self.pre.truncate(len);
        self.finished = self.finished.min(len);
        self.resumed = self.resumed.filter(|_| len > 0);
    }

    /// The caches of all stacks.
    fn caches(&self) -> impl Iterator<Item = &KvCache> {
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
        let (null, middle, post, ends) = (self.null.clone(), self.middle.clone(), self.post.clone(), self.ends.clone());
        // what is in flight belongs to one row
        let (closed, above) = (Vec::new(), Vec::new());
        Self { null, middle, middle_window: self.middle_window, post, ends, closed, above, above_from: 0 }
    }
}

/// A copy with the same room as a new list, which a plain clone would not have.
fn roomy<T: Copy>(list: &[T], room: usize) -> Vec<T> {
    let mut copy = Vec::with_capacity(list.len().max(room));
    copy.extend_from_slice(list);
    copy
}

fn no_segments() -> Error {
    Error::Internal("a vanilla sequence has no segments".into())
}

impl PooledState {
    /// The middle stack's output that symbol `t`, in flight or the last one, sees: that of the last segment which ended with it
    /// or before.
    pub fn seen(&self, t: usize) -> &[f32] {
        let (position, dim) = (self.ends.before(t + 1), self.middle.layout().output);
        match position.checked_sub(self.above_from).and_then(|index| self.above.get(index * dim..(index + 1) * dim)) {
            Some(above) => above,
            None => self.middle.output(position),
        }
    }

    /// The segments that a state of `sound` symbols or more does not depend on; none if it depends on all.
    pub fn passed(&self, window: Window, sound: usize) -> Option<SkippedSegments> {
        // The post stack's last layer has keys from its window on, the first layer's symbols see segments from that one on; and
        // these depend, through the middle stack, on some before.
        let seen = self.ends.before(window.first_key_through(sound, self.post.layout().layers.max(1)) + 1);
        let count = self.middle_window.first_key_through(seen, self.middle.layout().layers).checked_sub(1)?;
        let (opens, closes) = (self.ends.start(count)?, self.ends.get(count)?);
        (opens > 0).then_some(SkippedSegments { count, next_start: opens, next_end: closes })
    }

    /// Forgets where segments ended, as far as nothing will ask for it.
    pub fn forget_ends(&mut self, window: Window, sound: usize) {
        if window == Window::Full || !self.ends.is_full() {
            return;
        }
        let needed = match self.middle_window {
            // there is no going on from anywhere but the beginning
            Window::Full => self.ends.before(sound),
            _ => self.passed(window, sound).map_or(0, |passed| passed.count),
        };
        // the last one that ended before is where the next one starts
        self.ends.forget_before(needed.saturating_sub(2));
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
        // where windows have moved on too far since, there is no way back to before the feed
        let target = if self.finished < self.earliest() { 0 } else { self.finished };
        let companion = self.companion.as_ref().map(|companion| {
            let shorter = |row: &SequenceRow| {
                let mut state = row.state.fork();
                // one that could not be shortened is lost, and the next step says so
                state.rollback(target).ok().map(|()| SequenceRow::new(state))
            };
            let entropies = roomy(&companion.entropies, SYMBOLS_ROOM);
            CompanionState { row: companion.row.as_ref().and_then(shorter), entropies }
        });
        let (pre, window, pooled, noise) = (self.pre.clone(), self.window, self.pooled.clone(), self.noise.clone());
        let (finished, hidden, offset, resumed) = (self.finished, Vec::new(), self.offset, self.resumed);
        let mut fork = Self { pre, window, pooled, finished, hidden, noise, offset, companion, resumed };
        fork.truncate(target);
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        if !self.is_ready() {
            return Err(Error::Internal("a row that is not ready cannot be rolled back".into()));
        }
        if len > self.len() {
            return Err(Error::Internal(format!("rollback to {len}, beyond the end {}", self.len())));
        }
        if len > 0 && len < self.earliest() {
            let earliest = self.earliest();
            return Err(Error::Internal(format!(
                "rollback to {len}, whose window is forgotten: none or {earliest} on"
            )));
        }
        if let Some(row) = self.companion.as_mut().and_then(|companion| companion.row.as_mut()) {
            row.state.rollback(len)?;
        }
        self.truncate(len);
        Ok(())
    }

    fn earliest(&self) -> usize {
        let companion = self.companion_state().map_or(0, State::earliest);
        let resumed = self.resumed.map_or(0, |origin| origin.valid_from);
        let own = companion.max(self.window.earliest_rollback(self.pre.start())).max(resumed);
        let Some(pooled) = &self.pooled else { return own };
        let own = own.max(self.window.earliest_rollback(pooled.post.start()));
        // the middle stack goes back by segments; its position 0 is the null group; ends are forgotten later than keys
        let middle = pooled.middle_window.earliest_rollback(pooled.middle.start());
        let closed = middle.checked_sub(2).map_or(0, |last| pooled.ends.get(last).map_or(0, |end| end + 1));
        own.max(closed)
    }

    fn replay_start(&self) -> Option<ReplayStart> {
        let sound = self.earliest();
        // what a companion needs is its own affair
        if self.companion.is_some() || !self.is_ready() || !(1..=self.len()).contains(&sound) {
            return None;
        }
        let passed = match &self.pooled {
            Some(pooled) => Some(pooled.passed(self.window, sound)?),
            None => None,
        };
        // of segments the pre stack's outputs are needed from the first one's start on, for whole vectors
        let from = passed.map_or(sound, |passed| passed.next_start);
        let symbol = self.window.first_key_through(from, self.pre.layout().layers);
        (symbol > 0).then_some(ReplayStart { symbol, valid_from: sound, skipped: passed })
    }

    fn resume(&mut self, origin: ReplayStart) -> Result<()> {
        if !(self.is_empty() && self.companion.is_none() && self.pooled.is_some() == origin.skipped.is_some()) {
            return Err(Error::Internal(format!("a sequence of {} was to go on from {origin:?}", self.len())));
        }
        if let Some((pooled, passed)) = self.pooled.as_mut().zip(origin.skipped) {
            pooled.ends = Ends::from_segment(passed.count, passed.next_start);
            pooled.middle = pooled.middle.from_position(passed.count + 1);
            pooled.post = pooled.post.from_position(passed.next_end);
        }
        self.pre = self.pre.from_position(origin.symbol);
        (self.finished, self.resumed) = (origin.symbol, Some(origin));
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
        let len = len.min(self.len());
        let end = match &self.pooled {
            None => len,
            Some(pooled) => {
                let last = pooled.ends.before(len).checked_sub(1);
                last.and_then(|last| pooled.ends.get(last)).map_or(0, |end| end + 1)
            }
        };
        if end < self.earliest() { 0 } else { end }
    }

    fn bytes(&self) -> usize {
        self.caches().map(KvCache::bytes).sum::<usize>() + self.companion_state().map_or(0, State::bytes)
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        for page in self.caches().flat_map(KvCache::pages) {
            each(PageUse { id: page.id(), bytes: page.bytes().len(), references: page.references() });
        }
        if let Some(companion) = self.companion_state() {
            companion.pages(each);
        }
    }

    fn own_bytes(&self) -> usize {
        let ends = self.pooled.as_ref().map_or(0, |pooled| pooled.ends.own_bytes());
        let entropies =
            self.companion.as_ref().map_or(0, |companion| companion.entropies.capacity() * size_of::<f64>());
        let companion = self.companion_state().map_or(0, State::own_bytes);
        size_of::<Self>() + self.caches().map(KvCache::own_bytes).sum::<usize>() + ends + entropies + companion
    }
}
