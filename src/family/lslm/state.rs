//! What a sequence remembers: four caches, its symbols, and where segments ended.
//!
//! Everything else follows from these: a row waits for its segment step while `context` is behind `ends`, and is unfinished
//! while `finished` is behind. The open segment's row of the decoder may be behind as well, or be that of a segment that is
//! open no more: the next finish step that needs it brings it on, from the symbols. So a fork is a clone, and a rollback
//! shortens. The token encoder may be behind too: symbols that were fed with their boundaries are read when their segment ends.

use crate::{
    decode::contract::{PageUse, State},
    error::{Error, Result},
    kernels::pages::Page,
    nn::kv_cache::KvCache,
};
use std::ops::Range;

/// Segments, and symbols, that a sequence has room to list from the start, so that no step of a usual one has to make room.
const SEGMENTS_ROOM: usize = 1024;
const SYMBOLS_ROOM: usize = 4 * SEGMENTS_ROOM;

/// One sequence of a latent segment model.
pub struct LslmState {
    /// The token encoder: position 0 is the start's mark, position t + 1 symbol t; with its outputs, which pooling reads.
    pub token: KvCache,
    /// The context encoder: position 0 is the segment of the start's mark alone, position m + 1 segment m.
    pub context: KvCache,
    /// The decoder's keys and values of the same segments, for its attention to them.
    pub memory: KvCache,
    /// The decoder's own, of one segment: position 0 is the segment's opening mark, position i its i-th symbol.
    pub open: KvCache,
    /// The segment that `open` is of.
    pub open_of: usize,
    /// The symbols fed.
    pub symbols: Vec<u32>,
    /// What the predictor says of each symbol that the token encoder has seen.
    pub said: Vec<bool>,
    /// The position of each closed segment's last symbol.
    pub ends: Vec<usize>,
    /// Symbols that have had their finish step; those behind are in flight.
    pub finished: usize,
    /// Segments that were closed then: one may be closed without a symbol.
    pub finished_ends: usize,
    /// Segments from the first on that the predictor would have cut alike.
    pub agreed: usize,
    /// Whether a feed is in flight: it need not take a place.
    pub in_flight: bool,
}

/// The caches of a sequence that has seen the start's mark.
#[derive(Clone)]
pub struct Start {
    /// See [`LslmState::token`].
    pub token: KvCache,
    /// See [`LslmState::context`].
    pub context: KvCache,
    /// See [`LslmState::memory`].
    pub memory: KvCache,
}

impl LslmState {
    /// A sequence that has seen nothing but the start's mark; `open` is empty.
    pub fn new(start: Start, open: KvCache) -> Self {
        let Start { token, context, memory } = start;
        Self {
            token,
            context,
            memory,
            open,
            open_of: 0,
            symbols: Vec::with_capacity(SYMBOLS_ROOM),
            said: Vec::with_capacity(SYMBOLS_ROOM),
            ends: Vec::with_capacity(SEGMENTS_ROOM),
            finished: 0,
            finished_ends: 0,
            agreed: 0,
            in_flight: false,
        }
    }

    /// Whether segments are closed that the context encoder has not seen.
    pub fn waits(&self) -> bool {
        self.context.len() < self.ends.len() + 1
    }

    /// The first symbol of segment `m`, which may be the open one.
    pub fn start_of(&self, m: usize) -> usize {
        m.checked_sub(1).map_or(0, |before| self.ends[before] + 1)
    }

    /// The symbols of segment `m`, which may be the open one.
    pub fn segment(&self, m: usize) -> Range<usize> {
        self.start_of(m)..self.ends.get(m).map_or(self.symbols.len(), |&end| end + 1)
    }

    /// Symbols of the open segment.
    pub fn open_len(&self) -> usize {
        self.segment(self.ends.len()).len()
    }

    /// Symbols that the token encoder has seen.
    pub fn read(&self) -> usize {
        self.said.len()
    }

    /// Makes the decoder's row that of the open segment: the row of one that was closed is of no use any more.
    pub fn turn_to_open(&mut self) {
        if self.open_of != self.ends.len() {
            self.open.truncate(0);
            self.open_of = self.ends.len();
        }
    }

    /// Counts the segments that the predictor would have cut alike, as far as that is known.
    pub fn count_agreed(&mut self) {
        while let Some(&end) = self.ends.get(self.agreed) {
            let Some(said) = self.said.get(self.start_of(self.agreed)..=end) else { return };
            // an end at its last symbol and none before
            if said.iter().position(|&closes| closes) != Some(said.len() - 1) {
                return;
            }
            self.agreed += 1;
        }
    }

    /// Bytes of pages that bringing the decoder's row up to so many positions can take. Another segment's row is given up
    /// first; but what it shares with forks brings nothing.
    pub fn open_growth(&self, positions: usize) -> usize {
        let layout = self.open.layout();
        if self.open.pages().iter().any(Page::is_shared) {
            return layout.bytes_for(positions);
        }
        layout.bytes_for(positions).saturating_sub(self.open.bytes())
    }

    /// Shortens it to the first `len` symbols and `ends` segments.
    fn truncate(&mut self, len: usize, ends: usize) {
        self.ends.truncate(ends);
        self.symbols.truncate(len);
        self.said.truncate(len);
        self.token.truncate(len + 1);
        self.context.truncate(ends + 1);
        self.memory.truncate(ends + 1);
        self.turn_to_open();
        self.open.truncate(self.open_len() + 1);
        self.finished = self.finished.min(len);
        self.finished_ends = self.finished_ends.min(ends);
        self.agreed = self.agreed.min(ends);
    }

    fn caches(&self) -> [&KvCache; 4] {
        [&self.token, &self.context, &self.memory, &self.open]
    }
}

impl State for LslmState {
    fn len(&self) -> usize {
        self.symbols.len()
    }

    fn segments(&self) -> usize {
        self.ends.len()
    }

    fn fork(&self) -> Box<dyn State> {
        let Self { open_of, finished, finished_ends, agreed, .. } = *self;
        let mut fork = Self {
            token: self.token.clone(),
            context: self.context.clone(),
            memory: self.memory.clone(),
            open: self.open.clone(),
            open_of,
            symbols: roomy(&self.symbols, SYMBOLS_ROOM),
            said: roomy(&self.said, SYMBOLS_ROOM),
            ends: roomy(&self.ends, SEGMENTS_ROOM),
            finished,
            finished_ends,
            agreed,
            in_flight: false,
        };
        fork.truncate(finished, finished_ends);
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        if self.in_flight {
            return Err(Error::Internal("a row that is not ready cannot be rolled back".into()));
        }
        if len > self.len() {
            return Err(Error::Internal(format!("rollback to {len}, beyond the end {}", self.len())));
        }
        self.truncate(len, self.ends.partition_point(|&end| end < len));
        Ok(())
    }

    fn restart(&mut self, _offset: usize) {
        // where its first symbol stands in a stream makes no difference to it
        self.truncate(0, 0);
        self.in_flight = false;
    }

    fn boundary_before(&self, len: usize) -> usize {
        let closed = self.ends.partition_point(|&end| end < len);
        closed.checked_sub(1).map_or(0, |last| self.ends[last] + 1)
    }

    fn bytes(&self) -> usize {
        self.caches().into_iter().map(KvCache::bytes).sum()
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        for page in self.caches().into_iter().flat_map(KvCache::pages) {
            each(PageUse { id: page.id(), bytes: page.bytes().len(), references: page.references() });
        }
    }

    fn own_bytes(&self) -> usize {
        let lists = self.symbols.capacity() * size_of::<u32>()
            + self.said.capacity() * size_of::<bool>()
            + self.ends.capacity() * size_of::<usize>();
        size_of::<Self>() + self.caches().into_iter().map(KvCache::own_bytes).sum::<usize>() + lists
    }

    fn agreed(&self) -> usize {
        self.start_of(self.agreed)
    }
}

/// A copy with the same room as a new list, which a plain clone would not have.
fn roomy<T: Copy>(list: &[T], room: usize) -> Vec<T> {
    let mut copy = Vec::with_capacity(list.len().max(room));
    copy.extend_from_slice(list);
    copy
}
