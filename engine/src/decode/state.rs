//! The state of one sequence in a model, and the scratch memory of a thread that steps it.

use super::{replay::ReplayStart, usage::LevelCounts};
use crate::error::{Error, Result};
use std::any::Any;

/// One sequence's state: what the model keeps of the symbols fed so far. Dropping it frees its pages.
pub trait State: Any + Send + Sync {
    /// Number of symbols fed.
    fn len(&self) -> usize;

    /// True if no symbol was fed.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of closed segments.
    fn segments(&self) -> usize;

    /// Number of closed segments by level of chunking. The first level's are [`segments`](Self::segments), which is the only
    /// level of most models.
    fn level_segments(&self) -> LevelCounts {
        LevelCounts::one(self.segments())
    }

    /// Returns a second sequence with the same past, ready to be fed. Both share pages until one of them writes.
    ///
    /// A row that is not ready is forked as it was before its feed: work in flight belongs to one row only. If the row's
    /// windows have moved on too far since then (a chunk of many symbols), the fork is empty.
    fn fork(&self) -> Box<dyn State>;

    /// Drops all symbols from position `len` on. Fails with [`Error::Internal`] if `len` is beyond the end, is before
    /// [`earliest`](Self::earliest) and not 0, or the row is not ready.
    fn rollback(&mut self, len: usize) -> Result<()>;

    /// Drops the symbols in flight from position `len` on, after their symbol step and before any other step. The segments that
    /// they closed are open again. Fails with [`Error::Internal`] if `len` is beyond the end or leaves no symbol in flight, and if
    /// the family's feeds cannot be cut.
    fn cut(&mut self, len: usize) -> Result<()> {
        Err(Error::Internal(format!("a feed of this family cannot be cut at {len}")))
    }

    /// The shortest length, other than 0, that [`rollback`](Self::rollback) accepts. A state with moving windows drops the
    /// symbols behind them; other states drop nothing.
    fn earliest(&self) -> usize {
        0
    }

    /// Drops all symbols, including those in flight. The state is then as [`Model::begin`](super::contract::Model::begin)
    /// returns it, except that its first symbol is at `offset` in its stream.
    fn restart(&mut self, offset: usize);

    /// The position from which the text must be fed to rebuild this state; none if all of the text must be fed. The same for
    /// every length that the state can be [rolled back](Self::earliest) to. None for a row that is not ready.
    fn replay_start(&self) -> Option<ReplayStart> {
        None
    }

    /// Continues from the [`replay_start`](Self::replay_start) of another state of the same model: counts the symbols
    /// before it as fed. Below [`ReplayStart::valid_from`] symbols its numbers are invalid, and it can only be rolled
    /// back to 0. Fails with [`Error::Internal`] if the state is not empty, or its model never returns such a start.
    fn resume(&mut self, start: ReplayStart) -> Result<()> {
        Err(Error::Internal(format!("a state that needs its whole text cannot resume from {start:?}")))
    }

    /// Length of the longest prefix of at most `len` symbols that ends with a segment and that the state can be rolled back
    /// to; 0 if there is none. In a model without segments every symbol is such an end.
    fn boundary_before(&self, len: usize) -> usize;

    /// Bytes of the pages that this state refers to, shared pages included.
    fn bytes(&self) -> usize;

    /// Calls `each` once for each of these pages.
    fn pages(&self, each: &mut dyn FnMut(PageUse));

    /// Bytes of memory outside of its pages.
    fn own_bytes(&self) -> usize;

    /// Length of the longest prefix of whole segments whose boundaries equal the predictor's. Its plain symbols rebuild the
    /// state, also if a [`trace`](super::trace) was fed. Equals `len` where only the predictor ends segments.
    fn agreed(&self) -> usize {
        self.len()
    }
}

/// A page of key-value memory, as page accounting sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageUse {
    /// Unique among all pages of all models while this page is held.
    pub id: usize,
    /// Its size.
    pub bytes: usize,
    /// Number of references to it.
    pub references: usize,
    /// References that the state itself holds, at least one. If these are all, dropping the state frees the page.
    pub own: usize,
}

/// Working memory of one thread that runs steps. The model creates it; it is opaque to all other code.
pub struct Scratch(pub Box<dyn Any + Send>);

/// Downcasts a state to the concrete type of the family that created it. Fails if another model created the state.
pub fn state_ref<S: State>(state: &dyn State) -> Result<&S> {
    (state as &dyn Any).downcast_ref().ok_or_else(foreign_state)
}

/// Mutable variant of [`state_ref`].
pub fn state_mut<S: State>(state: &mut dyn State) -> Result<&mut S> {
    (state as &mut dyn Any).downcast_mut().ok_or_else(foreign_state)
}

fn foreign_state() -> Error {
    Error::Internal("a row holds the state of another model".into())
}
