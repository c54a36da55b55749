//! One sequence: four caches, its symbols, and where segments ended.
//!
//! All progress follows from these: a row waits for its segment step while `context` is behind `segment_ends`, and is unfinished
//! while `finished` is behind. The decoder's cache may be behind too, or hold a segment that has closed since: the next finish
//! step that needs it computes the missing positions from the symbols. So a fork is a clone, and a rollback truncates. The
//! token encoder may be behind: symbols that were fed with their boundaries are read when their segment ends.

use crate::{
    decode::contract::{PageUse, State},
    error::Result,
    family::parts::step::{check_rollback, clone_with_capacity},
    kernels::pages::Page,
    nn::kv_cache::KvCache,
};
use std::ops::Range;

/// Initial capacities in segments and symbols, so that a usual sequence never reallocates during a step.
const SEGMENT_CAPACITY: usize = 1024;
const SYMBOL_CAPACITY: usize = 4 * SEGMENT_CAPACITY;

/// One sequence of a latent segment model.
pub struct LslmState {
    /// The token encoder: position 0 is the start symbol, position t + 1 symbol t; with its outputs, which pooling reads.
    pub token: KvCache,
    /// The context encoder: position 0 is the start symbol's own segment, position m + 1 segment m.
    pub context: KvCache,
    /// The decoder's keys and values of the same segments, for cross-attention.
    pub memory: KvCache,
    /// The decoder, in one segment: position 0 is the segment's opening symbol, position i its i-th symbol.
    pub decoder: KvCache,
    /// The segment in `decoder`.
    pub decoder_segment: usize,
    /// The fed symbols.
    pub symbols: Vec<u32>,
    /// True for each symbol that the token encoder has read and after which the predictor ends a segment.
    pub predicted: Vec<bool>,
    /// Position of each closed segment's last symbol.
    pub segment_ends: Vec<usize>,
    /// Symbols that have had their finish step; later ones are in flight.
    pub finished: usize,
    /// Segments closed at the last finish step: a segment may close without a symbol.
    pub finished_segments: usize,
    /// Leading segments that the predictor would have cut the same way.
    pub agreed_segments: usize,
    /// True if a feed is in flight, which may have no symbols.
    pub in_flight: bool,
}

/// The caches of a sequence that has read the start symbol only.
#[derive(Clone)]
pub struct StartCaches {
    /// See [`LslmState::token`].
    pub token: KvCache,
    /// See [`LslmState::context`].
    pub context: KvCache,
    /// See [`LslmState::memory`].
    pub memory: KvCache,
}

impl LslmState {
    /// Returns a sequence that has read the start symbol only; `decoder` is empty.
    pub fn new(start: StartCaches, decoder: KvCache) -> Self {
        let StartCaches { token, context, memory } = start;
        Self {
            token,
            context,
            memory,
            decoder,
            decoder_segment: 0,
            symbols: Vec::with_capacity(SYMBOL_CAPACITY),
            predicted: Vec::with_capacity(SYMBOL_CAPACITY),
            segment_ends: Vec::with_capacity(SEGMENT_CAPACITY),
            finished: 0,
            finished_segments: 0,
            agreed_segments: 0,
            in_flight: false,
        }
    }

    /// True if the context encoder has not read all closed segments.
    pub fn needs_segment_step(&self) -> bool {
        self.context.len() < self.segment_ends.len() + 1
    }

    /// First position of segment `m`, which may be the open one.
    pub fn segment_start(&self, m: usize) -> usize {
        m.checked_sub(1).map_or(0, |before| self.segment_ends[before] + 1)
    }

    /// Positions of segment `m`, which may be the open one.
    pub fn segment(&self, m: usize) -> Range<usize> {
        self.segment_start(m)..self.segment_ends.get(m).map_or(self.symbols.len(), |&end| end + 1)
    }

    /// Number of symbols in the open segment.
    pub fn open_len(&self) -> usize {
        self.segment(self.segment_ends.len()).len()
    }

    /// Number of symbols that the token encoder has read.
    pub fn encoded(&self) -> usize {
        self.predicted.len()
    }

    /// Empties the decoder's cache if it holds a segment that has closed, whose keys nothing reads any more.
    pub fn switch_to_open_segment(&mut self) {
        if self.decoder_segment != self.segment_ends.len() {
            self.decoder.truncate(0);
            self.decoder_segment = self.segment_ends.len();
        }
    }

    /// Counts the leading segments that the predictor would have cut the same way, as far as the token encoder has read.
    pub fn count_agreed(&mut self) {
        while let Some(&end) = self.segment_ends.get(self.agreed_segments) {
            let Some(predicted) = self.predicted.get(self.segment_start(self.agreed_segments)..=end) else { return };
            // the predictor closes the segment at its last symbol and not before
            if predicted.iter().position(|&closes| closes) != Some(predicted.len() - 1) {
                return;
            }
            self.agreed_segments += 1;
        }
    }

    /// Maximum bytes of pages that extending the decoder's cache to `positions` can take. Another segment's pages are freed first,
    /// except those shared with forks.
    pub fn decoder_growth(&self, positions: usize) -> usize {
        let layout = self.decoder.layout();
        if self.decoder.pages().iter().any(Page::is_shared) {
            return layout.bytes_for(positions);
        }
        layout.bytes_for(positions).saturating_sub(self.decoder.bytes())
    }

    /// Truncates everything to the first `len` symbols and `segments` segments.
    fn truncate(&mut self, len: usize, segments: usize) {
        self.segment_ends.truncate(segments);
        self.symbols.truncate(len);
        self.predicted.truncate(len);
        self.token.truncate(len + 1);
        self.context.truncate(segments + 1);
        self.memory.truncate(segments + 1);
        self.switch_to_open_segment();
        self.decoder.truncate(self.open_len() + 1);
        self.finished = self.finished.min(len);
        self.finished_segments = self.finished_segments.min(segments);
        self.agreed_segments = self.agreed_segments.min(segments);
    }

    fn caches(&self) -> [&KvCache; 4] {
        [&self.token, &self.context, &self.memory, &self.decoder]
    }
}

impl State for LslmState {
    fn len(&self) -> usize {
        self.symbols.len()
    }

    fn segments(&self) -> usize {
        self.segment_ends.len()
    }

    fn fork(&self) -> Box<dyn State> {
        let mut fork = Self {
            token: self.token.clone(),
            context: self.context.clone(),
            memory: self.memory.clone(),
            decoder: self.decoder.clone(),
            symbols: clone_with_capacity(&self.symbols, SYMBOL_CAPACITY),
            predicted: clone_with_capacity(&self.predicted, SYMBOL_CAPACITY),
            segment_ends: clone_with_capacity(&self.segment_ends, SEGMENT_CAPACITY),
            in_flight: false,
            ..*self
        };
        fork.truncate(self.finished, self.finished_segments);
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        check_rollback(self, !self.in_flight, len)?;
        self.truncate(len, self.segment_ends.partition_point(|&end| end < len));
        Ok(())
    }

    fn restart(&mut self, _offset: usize) {
        // boundaries do not depend on the position in the stream
        self.truncate(0, 0);
        self.in_flight = false;
    }

    fn boundary_before(&self, len: usize) -> usize {
        let closed = self.segment_ends.partition_point(|&end| end < len);
        closed.checked_sub(1).map_or(0, |last| self.segment_ends[last] + 1)
    }

    fn bytes(&self) -> usize {
        self.caches().into_iter().map(KvCache::bytes).sum()
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        for page in self.caches().into_iter().flat_map(KvCache::pages) {
            each(PageUse { id: page.id(), bytes: page.bytes().len(), references: page.references(), own: 1 });
        }
    }

    fn own_bytes(&self) -> usize {
        let lists = self.symbols.capacity() * size_of::<u32>()
            + self.predicted.capacity() * size_of::<bool>()
            + self.segment_ends.capacity() * size_of::<usize>();
        size_of::<Self>() + self.caches().into_iter().map(KvCache::own_bytes).sum::<usize>() + lists
    }

    fn agreed(&self) -> usize {
        self.segment_start(self.agreed_segments)
    }
}
