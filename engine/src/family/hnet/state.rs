//! One sequence: the caches and recurrent memories of all stacks, the routers' and averages' vectors, and snapshots of these.
//!
//! Keys and values can be truncated, everything else only moves forward. A rollback therefore restores a snapshot and keeps
//! the symbols after it: the next step feeds these again first. Every length from the oldest snapshot on can be reached this
//! way, with the same bits.

use super::snapshots::{LevelState, OVERDUE, REWIND, Snapshot, SnapshotPlan, StackSnapshot, StackState};
use crate::{
    decode::{
        contract::{PageUse, SequenceRow, State, state_mut},
        usage::LevelCounts,
    },
    error::Result,
    family::parts::step::check_rollback,
};
use std::collections::VecDeque;

/// One sequence of an H-Net.
pub struct HnetState {
    /// The stacks' states, in the order of [`HnetBlueprint::stacks`](super::config::HnetBlueprint::stacks).
    pub stacks: Vec<StackState>,
    /// The chunking stages' vectors, outermost first.
    pub levels: Vec<LevelState>,
    /// The symbols from position `start` on, each with its boundaries once the routers have decided them.
    pub history: Vec<FedSymbol>,
    /// Position of the first of `history`: the oldest snapshot's, or 0.
    pub start: usize,
    /// Chunks that begin before `start`.
    pub earlier_segments: LevelCounts,
    /// Symbols that the stacks have seen. After a rollback fewer than the sequence has: the next step feeds the rest again.
    pub computed: usize,
    /// Symbols that have had their finish step, or were kept by a rollback; later ones are in flight.
    pub ready: usize,
    /// Snapshots, oldest first, at least `REWIND` symbols apart.
    pub snapshots: VecDeque<Snapshot>,
    /// False once a long feed has given up the states before it; see [`fork`](State::fork).
    pub can_rewind_feed: bool,
    /// Vectors of the symbols in flight.
    pub flight: Flight,
}

/// A symbol that was fed.
#[derive(Debug, Clone, Copy)]
pub struct FedSymbol {
    /// Its id.
    pub symbol: u32,
    /// Levels at which a chunk begins with it, the outermost included. Complete once the symbol has had its segment step.
    pub depth: u8,
}

/// Symbols between symbol step and finish step, those that a rollback kept included. D = width of the outermost stage.
#[derive(Default)]
pub struct Flight {
    /// Residual projections: (symbols, D).
    pub residual: Vec<f32>,
    /// Boundary probabilities: (symbols).
    pub probabilities: Vec<f32>,
    /// The encoder's outputs at which chunks begin: (chunks, D).
    pub chunks: Vec<f32>,
    /// The next stage's outputs for them: (chunks, D).
    pub outputs: Vec<f32>,
    /// The snapshot that the steps take on their way, if the feed is long.
    pub plan: Option<SnapshotPlan>,
}

impl Flight {
    /// Forgets all vectors; keeps the memory.
    pub fn clear(&mut self) {
        self.residual.clear();
        self.probabilities.clear();
        self.chunks.clear();
        self.outputs.clear();
        self.plan = None;
    }
}

impl HnetState {
    /// Returns a sequence without symbols.
    pub fn new(stacks: Vec<StackState>, levels: usize) -> Self {
        Self {
            stacks,
            levels: vec![LevelState::default(); levels],
            history: Vec::with_capacity(256),
            start: 0,
            earlier_segments: LevelCounts::default(),
            computed: 0,
            ready: 0,
            snapshots: VecDeque::new(),
            can_rewind_feed: true,
            flight: Flight::default(),
        }
    }

    /// Returns true if no symbol is in flight.
    pub fn is_ready(&self) -> bool {
        self.ready == self.len()
    }

    /// Returns the number of chunks that begin before position `end`, which is not before `start`.
    fn segments_before(&self, end: usize) -> LevelCounts {
        let mut counts = self.earlier_segments;
        self.history[..end - self.start].iter().for_each(|fed| counts.add(usize::from(fed.depth)));
        counts
    }

    /// Returns the symbols that the next symbol step feeds to the stacks if `more` symbols are fed.
    pub fn to_compute(&self, more: usize) -> usize {
        self.len() - self.computed + more
    }

    /// Removes everything from position `len` on. Restores a snapshot if the stacks are further, or `must_restore`.
    fn truncate(&mut self, len: usize, must_restore: bool) {
        self.flight.clear();
        if len < self.computed || must_restore {
            while self.snapshots.back().is_some_and(|snapshot| snapshot.position > len) {
                self.snapshots.pop_back();
            }
            self.restore();
        }
        self.history.truncate(len - self.start);
        self.ready = len;
    }

    /// Returns to the latest snapshot, or to the sequence's start if there is none.
    fn restore(&mut self) {
        match self.snapshots.back() {
            Some(snapshot) => {
                for (stack, kept) in self.stacks.iter_mut().zip(&snapshot.stacks) {
                    stack.cache.truncate(kept.len);
                    stack.memory.put(kept.page.clone());
                }
                self.levels.clone_from(&snapshot.levels);
                self.computed = snapshot.position;
            }
            None => {
                for stack in &mut self.stacks {
                    stack.cache.truncate(0);
                    stack.memory.clear();
                }
                self.levels.iter_mut().for_each(|level| *level = LevelState::default());
                self.computed = 0;
            }
        }
    }

    /// Removes all symbols.
    fn reset(&mut self) {
        self.snapshots.clear();
        self.start = 0;
        self.earlier_segments = LevelCounts::default();
        self.can_rewind_feed = true;
        self.history.clear();
        self.restore();
        self.flight.clear();
        self.ready = 0;
    }
}

impl HnetState {
    /// Ends the flight: stores the planned snapshot, or takes one if it is due, and drops those that no rollback needs.
    pub fn finish_flight(&mut self) {
        if let Some(plan) = self.flight.plan.take() {
            let ends_segment = self.is_boundary_before(plan.position);
            self.snapshots.push_back(plan.complete(&self.stacks, &self.levels, ends_segment));
        }
        self.ready = self.len();
        self.computed = self.ready;
        self.flight.clear();
        let distance = self.ready - self.snapshots.back().map_or(self.start, |last| last.position);
        let ends_segment = self.is_boundary_before(self.ready);
        if distance >= OVERDUE || distance >= REWIND && ends_segment {
            let stacks = self.stacks.iter().map(StackSnapshot::of).collect();
            let levels = self.levels.clone();
            self.snapshots.push_back(Snapshot { position: self.ready, ends_segment, stacks, levels });
        }
        self.drop_old_snapshots();
    }

    /// Returns true if a chunk began with the symbol before `position`, which is after `start`.
    fn is_boundary_before(&self, position: usize) -> bool {
        let index = position.checked_sub(self.start + 1);
        index.and_then(|index| self.history.get(index)).is_some_and(|fed| fed.depth > 0)
    }

    /// Drops the oldest states while a later snapshot is still [`REWIND`] symbols before the end.
    fn drop_old_snapshots(&mut self) {
        let far = |snapshot: &Snapshot| snapshot.position + REWIND <= self.ready;
        let is_far = self.snapshots.iter().map(far).collect::<Vec<_>>();
        let Some(oldest) = is_far.iter().rposition(|&far| far) else { return };
        self.snapshots.drain(..oldest);
        let Some(position) = self.snapshots.front().map(|snapshot| snapshot.position) else { return };
        self.earlier_segments = self.segments_before(position);
        self.history.drain(..position - self.start);
        self.start = position;
        self.can_rewind_feed = true;
    }

    /// Returns the position of a stack from which its keys must be kept: that of the oldest state to return to.
    pub fn kept_from(&self, index: usize) -> usize {
        let oldest = self.snapshots.front().filter(|oldest| oldest.position == self.start);
        oldest.map_or(0, |oldest| oldest.stacks[index].len)
    }
}

impl State for HnetState {
    fn len(&self) -> usize {
        self.start + self.history.len()
    }

    fn segments(&self) -> usize {
        self.level_segments().level(0)
    }

    fn level_segments(&self) -> LevelCounts {
        self.segments_before(self.len())
    }

    fn fork(&self) -> Box<dyn State> {
        let mut fork = Self {
            stacks: self.stacks.clone(),
            levels: self.levels.clone(),
            history: self.history.clone(),
            snapshots: self.snapshots.clone(),
            flight: Flight::default(),
            ..*self
        };
        if !self.is_ready() {
            // a long feed has dropped what it started from; then only an empty sequence is left
            if self.can_rewind_feed { fork.truncate(self.ready, true) } else { fork.reset() }
        }
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        check_rollback(self, self.is_ready(), len)?;
        if len == 0 {
            self.reset()
        } else {
            self.truncate(len, false)
        }
        Ok(())
    }

    fn earliest(&self) -> usize {
        self.start
    }

    fn restart(&mut self, _: usize) {
        self.reset();
    }

    fn boundary_before(&self, len: usize) -> usize {
        let held = len.min(self.len()).checked_sub(self.start);
        let last = held.and_then(|held| self.history[..held].iter().rposition(|fed| fed.depth > 0));
        match last {
            Some(index) => self.start + index + 1,
            // the symbol before the oldest snapshot may have been a boundary
            None => self
                .snapshots
                .front()
                .map_or(0, |first| if first.ends_segment && len >= self.start { self.start } else { 0 }),
        }
    }

    fn bytes(&self) -> usize {
        let mut bytes = 0;
        self.pages(&mut |page| bytes += page.bytes);
        bytes
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        let cached = self.stacks.iter().flat_map(|stack| stack.cache.pages());
        let current = self.stacks.iter().filter_map(|stack| stack.memory.page());
        let mut recurrent: Vec<_> = current.chain(self.snapshots.iter().flat_map(Snapshot::pages)).collect();
        // a snapshot shares its pages with the sequence until that goes on
        recurrent.sort_by_key(|page| page.id());
        let mut rest = &recurrent[..];
        for page in cached {
            each(PageUse { id: page.id(), bytes: page.bytes().len(), references: page.references(), own: 1 });
        }
        while let Some(page) = rest.first() {
            let own = rest.iter().take_while(|other| other.id() == page.id()).count();
            each(PageUse { id: page.id(), bytes: page.bytes().len(), references: page.references(), own });
            rest = &rest[own..];
        }
    }

    fn own_bytes(&self) -> usize {
        let vectors = |levels: &[LevelState]| -> usize {
            levels.iter().map(|level| (level.query.capacity() + level.average.capacity()) * size_of::<f32>()).sum()
        };
        let snapshots: usize = self.snapshots.iter().map(|snapshot| vectors(&snapshot.levels)).sum();
        let caches: usize = self.stacks.iter().map(|stack| stack.cache.own_bytes() + size_of::<StackState>()).sum();
        size_of::<Self>()
            + caches
            + vectors(&self.levels)
            + snapshots
            + self.history.capacity() * size_of::<FedSymbol>()
    }
}

/// The state of row `index`.
pub(super) fn state(rows: &mut [SequenceRow], index: usize) -> Result<&mut HnetState> {
    state_mut(&mut *rows[index].state)
}
