//! Snapshots of a sequence: what a rollback restores.
//!
//! A snapshot refers to the pages of the recurrent memories as they were; the sequence then copies each page before it writes
//! it. It remembers lengths of the caches, which are truncated, and copies the few vectors of routers and averages. At most
//! [`MAX_SNAPSHOTS`] exist at a time.

use crate::{
    kernels::pages::Page,
    nn::{kv_cache::KvCache, recurrent::RecurrentMemory, window::ROLLBACK},
};

/// Symbols that a rollback can always remove, and minimum distance of two snapshots.
pub(super) const REWIND: usize = ROLLBACK;
/// Distance after which a snapshot is taken although no chunk begins.
pub(super) const OVERDUE: usize = 2 * REWIND;
/// Symbols of a feed from which the steps take a snapshot on their way, [`REWIND`] symbols before its end.
pub(super) const LONG_FEED: usize = 2 * REWIND;
/// Maximum snapshots of a sequence, one that is being taken included.
pub(super) const MAX_SNAPSHOTS: usize = 3;
/// Maximum symbols between the oldest snapshot and the end of a sequence whose symbols have all been finished.
pub(super) const MAX_REPLAY: usize = OVERDUE + LONG_FEED + REWIND;

/// One stack's state.
#[derive(Clone)]
pub struct StackState {
    /// Keys and values of the attention layers. Its length counts the positions of any stack, also without such layers.
    pub cache: KvCache,
    /// States of the Mamba-2 layers.
    pub memory: RecurrentMemory,
}

/// The vectors that a chunking stage keeps between positions; empty before the first.
#[derive(Debug, Clone, Default)]
pub struct LevelState {
    /// The router's query of the last position: (D).
    pub query: Vec<f32>,
    /// Moving average of the chunks' outputs: (D).
    pub average: Vec<f32>,
}

/// A state to return to.
#[derive(Clone)]
pub struct Snapshot {
    /// Number of symbols before it.
    pub position: usize,
    /// True if a chunk began with the last of them.
    pub ends_segment: bool,
    pub stacks: Vec<StackSnapshot>,
    pub levels: Vec<LevelState>,
}

/// One stack's part of a snapshot.
#[derive(Clone)]
pub struct StackSnapshot {
    /// Length of the cache.
    pub len: usize,
    /// Page of the recurrent memory; `None` if it was never written.
    pub page: Option<Page>,
}

impl Snapshot {
    /// Returns the pages that it refers to.
    pub fn pages(&self) -> impl Iterator<Item = &Page> {
        self.stacks.iter().filter_map(|stack| stack.page.as_ref())
    }
}

impl StackSnapshot {
    /// Returns the part of a snapshot that is taken now.
    pub fn of(stack: &StackState) -> Self {
        Self { len: stack.cache.len(), page: stack.memory.page().cloned() }
    }
}

/// A snapshot within a feed, which each stack takes when it has come so far. A part that is missing in the end is that of the
/// finished state, because nothing was fed to it after the snapshot's position.
#[derive(Default)]
pub struct SnapshotPlan {
    /// Number of symbols before it.
    pub position: usize,
    /// The snapshot's position in each stage, once the router of the stage around it has found it.
    pub stages: Vec<Option<usize>>,
    /// The stacks' parts.
    pub stacks: Vec<Option<StackSnapshot>>,
    /// The routers' queries.
    pub queries: Vec<Option<Vec<f32>>>,
    /// The moving averages.
    pub averages: Vec<Option<Vec<f32>>>,
}

impl SnapshotPlan {
    /// Plans a snapshot before symbol `position` of a model with that many stacks and chunking stages.
    pub fn new(position: usize, stacks: usize, levels: usize) -> Self {
        let mut stages = vec![None; levels + 1];
        stages[0] = Some(position);
        Self { position, stages, stacks: vec![None; stacks], queries: vec![None; levels], averages: vec![None; levels] }
    }

    /// Returns the snapshot, with the parts of the finished state where none was taken.
    pub fn complete(self, stacks: &[StackState], levels: &[LevelState], ends_segment: bool) -> Snapshot {
        let taken = self.stacks.into_iter().zip(stacks);
        let stacks = taken.map(|(taken, stack)| taken.unwrap_or_else(|| StackSnapshot::of(stack))).collect();
        let vectors = self.queries.into_iter().zip(self.averages);
        let complete = levels.iter().zip(vectors).map(|(level, (query, average))| LevelState {
            query: query.unwrap_or_else(|| level.query.clone()),
            average: average.unwrap_or_else(|| level.average.clone()),
        });
        Snapshot { position: self.position, ends_segment, stacks, levels: complete.collect() }
    }

    /// Takes a stack's part if the stack is exactly at the snapshot's position in its stage.
    pub fn take_stack(&mut self, index: usize, stage: usize, stack: &StackState) {
        if self.stages[stage] == Some(stack.cache.len()) && self.stacks[index].is_none() {
            self.stacks[index] = Some(StackSnapshot::of(stack));
        }
    }
}
