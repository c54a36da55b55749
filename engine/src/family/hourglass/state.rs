//! One sequence: three caches, where segments ended, and the companion's sequence.
//!
//! All progress follows from these: a row waits for its segment step while `middle` is behind `segment_ends`, and is unfinished
//! while `post` is behind `pre`. So a fork is a clone, and a rollback truncates. The state
//! only counts the symbols that its windows have left behind.

use super::{recent::RecentSymbols, segment_ends::SegmentEnds};
use crate::{
    decode::{
        contract::{Noise, PageUse, SequenceRow, State, state_mut},
        replay::{ReplayStart, SkippedSegments},
    },
    error::{Error, Result},
    family::parts::step::{check_rollback, clone_with_capacity},
    nn::{kv_cache::KvCache, window::Window},
};

/// One sequence of an hourglass. D = width.
pub struct HourglassState {
    /// The symbols that n-grams of later ones read; `None` in a model without n-grams.
    pub recent: Option<RecentSymbols>,
    /// The pre stack's keys and values; with what pooling reads at each symbol: the sum of its segment's outputs up to it, or
    /// its own output.
    pub pre: KvCache,
    /// Window of pre and post stack.
    pub window: Window,
    /// The part above the pre stack; `None` in a vanilla model.
    pub pooled: Option<PooledState>,
    /// Symbols that have had their finish step; later ones are in flight.
    pub finished: usize,
    /// The pre stack's outputs in flight, (D) each: of all symbols, for the residual; in a vanilla model of those whose logits
    /// are wanted, for the head.
    pub hidden: Vec<f32>,
    /// Noise of sampled boundaries; `None` if boundaries are not sampled.
    pub noise: Option<Noise>,
    /// Position of the first symbol in its stream.
    pub offset: usize,
    /// The companion's sequence, if the model has a companion.
    pub companion: Option<CompanionState>,
    /// Start of a resumed sequence; `None` if it starts with the text.
    pub resumed: Option<ReplayStart>,
}

/// Initial capacity in symbols of per-symbol lists, so that a usual sequence never reallocates during a step.
pub const SYMBOL_CAPACITY: usize = 4096;

/// The part of a sequence above the pre stack.
pub struct PooledState {
    /// The middle cache of a sequence without closed segments: the null group, which a window may drop from `middle`.
    pub null_group: KvCache,
    /// The middle stack: position 0 is the null group, position m + 1 segment m; with its output, which upsampling reads.
    pub middle: KvCache,
    /// Window of the middle stack.
    pub middle_window: Window,
    /// The post stack.
    pub post: KvCache,
    /// Last position of each closed segment.
    pub segment_ends: SegmentEnds,
    /// Pooled vectors of the segments that symbols in flight closed: (segments, D)
    pub closed_vectors: Vec<f32>,
    /// The middle stack's outputs from position `middle_outputs_start` on that symbols in flight see, (segments, D); empty if
    /// these closed no segment, so that all see the latest one.
    pub middle_outputs: Vec<f32>,
    /// Position in the middle stack of the first of `middle_outputs`.
    pub middle_outputs_start: usize,
}

/// A companion's sequence.
pub struct CompanionState {
    /// Taken out while the companion steps it.
    pub row: Option<SequenceRow>,
    /// H_t in nats for every symbol fed.
    pub entropies: Vec<f64>,
}

impl HourglassState {
    /// True if the middle stack has not seen all closed segments.
    pub fn needs_segment_step(&self) -> bool {
        self.pooled.as_ref().is_some_and(|pooled| pooled.waiting_segments() > 0)
    }

    /// True if no symbol is in flight.
    pub fn is_ready(&self) -> bool {
        self.finished == self.pre.len()
    }

    /// Clears the vectors of the last feed, and drops symbols and segment ends that no later step needs.
    pub fn start_feed(&mut self) {
        let earliest = self.earliest();
        self.hidden.clear();
        if let Some(recent) = &mut self.recent {
            recent.drop_before(earliest);
        }
        if let Some(pooled) = &mut self.pooled {
            pooled.middle_outputs.clear();
            pooled.closed_vectors.clear();
            pooled.drop_segment_ends(self.window, earliest);
        }
    }

    /// Truncates everything but the companion's sequence to the first `len` symbols.
    fn truncate(&mut self, len: usize) {
        if let Some(pooled) = &mut self.pooled {
            pooled.segment_ends.truncate(len);
            pooled.middle_outputs.clear();
            pooled.closed_vectors.clear();
            match len {
                // a window may have dropped the null group
                0 => pooled.middle = pooled.null_group.clone(),
                _ => pooled.middle.truncate(pooled.segment_ends.len() + 1),
            }
            pooled.post.truncate(len);
        }
        if let Some(companion) = &mut self.companion {
            companion.entropies.truncate(len);
        }
        if let Some(recent) = &mut self.recent {
            recent.truncate(len);
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

    /// The companion's state, unless a step has taken it out.
    pub(super) fn companion_state(&self) -> Option<&dyn State> {
        Some(&*self.companion.as_ref()?.row.as_ref()?.state)
    }

    /// Returns the part above the pre stack. Fails in a vanilla model.
    pub fn pooled(&self) -> Result<&PooledState> {
        self.pooled.as_ref().ok_or_else(no_segments)
    }

    /// Returns the part above the pre stack, mutably. Fails in a vanilla model.
    pub fn pooled_mut(&mut self) -> Result<&mut PooledState> {
        self.pooled.as_mut().ok_or_else(no_segments)
    }
}

fn no_segments() -> Error {
    Error::Internal("a vanilla sequence has no segments".into())
}

impl Clone for PooledState {
    /// Clones all but the vectors in flight, which belong to one row.
    fn clone(&self) -> Self {
        Self {
            null_group: self.null_group.clone(),
            middle: self.middle.clone(),
            middle_window: self.middle_window,
            post: self.post.clone(),
            segment_ends: self.segment_ends.clone(),
            closed_vectors: Vec::new(),
            middle_outputs: Vec::new(),
            middle_outputs_start: 0,
        }
    }
}

impl PooledState {
    /// Number of closed segments that the middle stack has not seen.
    fn waiting_segments(&self) -> usize {
        (self.segment_ends.len() + 1).saturating_sub(self.middle.len())
    }

    /// The middle stack's output, (D), for the last segment that ended at or before symbol `t`, which is in flight or the last
    /// symbol.
    pub fn upsampled(&self, t: usize) -> &[f32] {
        let position = self.segment_ends.count_before(t + 1);
        let dim = self.middle.layout().output;
        let in_flight = position
            .checked_sub(self.middle_outputs_start)
            .and_then(|index| self.middle_outputs.get(index * dim..(index + 1) * dim));
        in_flight.unwrap_or_else(|| self.middle.output(position))
    }

    /// The leading segments that no state of `len` or more symbols depends on; `None` if it depends on all.
    pub fn skippable_segments(&self, window: Window, len: usize) -> Option<SkippedSegments> {
        // The post stack's last layer has keys from its window on, and the first layer's symbols see segments from that symbol
        // on. Through the middle stack, these segments depend on earlier ones.
        let first_seen =
            self.segment_ends.count_before(window.first_key_through(len, self.post.layout().layers.max(1)) + 1);
        let count = self.middle_window.first_key_through(first_seen, self.middle.layout().layers).checked_sub(1)?;
        let next_start = self.segment_ends.start(count)?;
        let next_end = self.segment_ends.end(count)?;
        (next_start > 0).then_some(SkippedSegments { count, next_start, next_end })
    }

    /// Drops the segment ends that no state of `len` or more symbols reads.
    fn drop_segment_ends(&mut self, window: Window, len: usize) {
        if window == Window::Full || !self.segment_ends.is_full() {
            return;
        }
        let needed = match self.middle_window {
            // such a sequence can only be computed again from its beginning
            Window::Full => self.segment_ends.count_before(len),
            _ => self.skippable_segments(window, len).map_or(0, |skipped| skipped.count),
        };
        // the end before a needed segment is where that one starts
        self.segment_ends.drop_before(needed.saturating_sub(2));
    }
}

impl State for HourglassState {
    fn len(&self) -> usize {
        self.pre.len()
    }

    fn segments(&self) -> usize {
        self.pooled.as_ref().map_or(0, |pooled| pooled.segment_ends.len())
    }

    fn fork(&self) -> Box<dyn State> {
        // if the windows have moved past the start of the feed, only an empty sequence is left
        let target = if self.finished < self.earliest() { 0 } else { self.finished };
        let companion = self.companion.as_ref().map(|companion| {
            let fork = |row: &SequenceRow| {
                let mut state = row.state.fork();
                // a companion that cannot be rolled back is lost; the next step reports it
                state.rollback(target).ok().map(|()| SequenceRow::new(state))
            };
            let entropies = clone_with_capacity(&companion.entropies, SYMBOL_CAPACITY);
            CompanionState { row: companion.row.as_ref().and_then(fork), entropies }
        });
        let mut fork = Self {
            recent: self.recent.clone(),
            pre: self.pre.clone(),
            pooled: self.pooled.clone(),
            hidden: Vec::new(),
            noise: self.noise.clone(),
            companion,
            ..*self
        };
        fork.truncate(target);
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        check_rollback(self, self.is_ready(), len)?;
        if let Some(row) = self.companion.as_mut().and_then(|companion| companion.row.as_mut()) {
            row.state.rollback(len)?;
        }
        self.truncate(len);
        Ok(())
    }

    fn cut(&mut self, len: usize) -> Result<()> {
        let in_flight = self.len() - self.finished;
        let kept = len.saturating_sub(self.finished);
        let middle_ran = self.pooled.as_ref().is_some_and(|pooled| !pooled.middle_outputs.is_empty());
        if !(1..=in_flight).contains(&kept) || middle_ran || len < self.earliest() {
            let Self { finished, .. } = self;
            return Err(Error::Internal(format!(
                "cannot cut at {len} of {finished} and {in_flight} symbols in flight"
            )));
        }
        if let Some(companion) = &mut self.companion {
            companion.entropies.truncate(len);
            if let Some(row) = &mut companion.row {
                row.state.rollback(len)?;
            }
        }
        if let Some(recent) = &mut self.recent {
            recent.truncate(len);
        }
        self.pre.truncate(len);
        if let Some(pooled) = &mut self.pooled {
            let before = pooled.waiting_segments();
            pooled.segment_ends.truncate(len);
            let dim = pooled.closed_vectors.len() / before.max(1);
            pooled.closed_vectors.truncate(pooled.waiting_segments() * dim);
            let dim = self.hidden.len() / in_flight;
            self.hidden.truncate(kept * dim);
        }
        Ok(())
    }

    fn earliest(&self) -> usize {
        let companion = self.companion_state().map_or(0, State::earliest);
        let resumed = self.resumed.map_or(0, |start| start.valid_from);
        let own = companion.max(self.window.earliest_rollback(self.pre.start())).max(resumed);
        let Some(pooled) = &self.pooled else { return own };
        let own = own.max(self.window.earliest_rollback(pooled.post.start()));
        // the middle stack is rolled back by segments, after the null group; ends are dropped later than keys
        let middle = pooled.middle_window.earliest_rollback(pooled.middle.start());
        let closed = middle.checked_sub(2).map_or(0, |last| pooled.segment_ends.end(last).map_or(0, |end| end + 1));
        own.max(closed)
    }

    fn replay_start(&self) -> Option<ReplayStart> {
        let valid_from = self.earliest();
        // a companion's sequence cannot be resumed
        if self.companion.is_some() || !self.is_ready() || !(1..=self.len()).contains(&valid_from) {
            return None;
        }
        let skipped = match &self.pooled {
            Some(pooled) => Some(pooled.skippable_segments(self.window, valid_from)?),
            None => None,
        };
        // pooling needs the pre stack's outputs from the start of the first segment on
        let from = skipped.map_or(valid_from, |skipped| skipped.next_start);
        let first_read = self.window.first_key_through(from, self.pre.layout().layers);
        // its n-grams begin earlier
        let context = self.recent.as_ref().map_or(0, RecentSymbols::context);
        let symbol = first_read.saturating_sub(context);
        (symbol > 0).then_some(ReplayStart { symbol, valid_from, skipped })
    }

    fn resume(&mut self, start: ReplayStart) -> Result<()> {
        if !(self.is_empty() && self.companion.is_none() && self.pooled.is_some() == start.skipped.is_some()) {
            return Err(Error::Internal(format!("cannot resume a sequence of {} symbols from {start:?}", self.len())));
        }
        if let Some((pooled, skipped)) = self.pooled.as_mut().zip(start.skipped) {
            pooled.segment_ends = SegmentEnds::from_segment(skipped.count, skipped.next_start);
            pooled.middle = pooled.middle.from_position(skipped.count + 1);
            pooled.post = pooled.post.from_position(skipped.next_end);
        }
        if let Some(recent) = &mut self.recent {
            recent.start_at(start.symbol);
        }
        self.pre = self.pre.from_position(start.symbol);
        self.finished = start.symbol;
        self.resumed = Some(start);
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
                let last = pooled.segment_ends.count_before(len).checked_sub(1);
                last.and_then(|last| pooled.segment_ends.end(last)).map_or(0, |end| end + 1)
            }
        };
        if end < self.earliest() { 0 } else { end }
    }

    fn bytes(&self) -> usize {
        self.caches().map(KvCache::bytes).sum::<usize>() + self.companion_state().map_or(0, State::bytes)
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        for page in self.caches().flat_map(KvCache::pages) {
            each(PageUse { id: page.id(), bytes: page.bytes().len(), references: page.references(), own: 1 });
        }
        if let Some(companion) = self.companion_state() {
            companion.pages(each);
        }
    }

    fn own_bytes(&self) -> usize {
        let ends = self.pooled.as_ref().map_or(0, |pooled| pooled.segment_ends.own_bytes());
        let entropies =
            self.companion.as_ref().map_or(0, |companion| companion.entropies.capacity() * size_of::<f64>());
        let companion = self.companion_state().map_or(0, State::own_bytes);
        let recent = self.recent.as_ref().map_or(0, RecentSymbols::own_bytes);
        size_of::<Self>() + self.caches().map(KvCache::own_bytes).sum::<usize>() + ends + entropies + companion + recent
    }
}

/// The state of row `index`.
pub(super) fn state(rows: &mut [SequenceRow], index: usize) -> Result<&mut HourglassState> {
    state_mut(&mut *rows[index].state)
}
