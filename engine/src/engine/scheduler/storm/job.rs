//! Simulated requests, the rows that run them, and the die of a storm.

use crate::engine::scheduler::{Beginning, Demand, FedSymbols, RowActivity, RowStatus, RunPermit};
use std::sync::Arc;

/// Symbols of a page.
const PAGE_SYMBOLS: usize = 4;
const PAGE_BYTES: usize = 8;
/// Symbols beyond its current ones for which a request is admitted.
pub(super) const MARGIN: usize = 6;
/// Maximum symbols of a prompt and of an answer.
pub(super) const MAX_SYMBOLS: usize = 24;
/// Maximum symbols of a long answer.
pub(super) const LONG_ANSWER: usize = 10 * MAX_SYMBOLS;
/// Maximum blocks of a document.
pub(super) const MAX_BLOCKS: usize = 5;
/// Symbols that a block counts as: more than the chunk of some storms.
pub(super) const BLOCK_SYMBOLS: usize = 12;

pub(super) fn bytes_for(symbols: usize) -> usize {
    symbols.div_ceil(PAGE_SYMBOLS) * PAGE_BYTES
}

pub(super) struct Die(pub(super) u64);

impl Die {
    pub(super) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % sides as u64) as usize
    }
}

#[derive(Debug, Clone)]
pub(super) struct SimRequest {
    pub(super) number: usize,
    pub(super) tenant: Arc<str>,
    pub(super) priority: i32,
    /// Blocks of its document; 0: it has none.
    pub(super) blocks: usize,
    pub(super) rows: usize,
    pub(super) prompt: usize,
    /// Symbols to sample on each row.
    pub(super) answer: usize,
    /// Symbols that were sampled.
    pub(super) sampled: usize,
    /// Symbols of a window, if the text is fed in windows, of which only the last is fed again after a preemption.
    pub(super) window: Option<usize>,
    /// Symbols that were fed at least once. After a preemption they are fed again.
    pub(super) reached: usize,
    /// True if its client is behind.
    pub(super) paused: bool,
    pub(super) cancelled: bool,
    /// The storm's work clock when it arrived; `None` once it was admitted.
    pub(super) arrived: Option<u64>,
}

impl SimRequest {
    pub(super) fn symbols(&self) -> usize {
        self.prompt + self.sampled
    }

    pub(super) fn max_symbols(&self) -> usize {
        self.prompt + self.answer
    }

    /// Returns the bytes with `blocks` encoded blocks and `symbols` symbols on each row.
    pub(super) fn bytes(&self, blocks: usize, symbols: usize) -> usize {
        bytes_for(blocks) + self.rows * bytes_for(symbols)
    }

    pub(super) fn max_bytes(&self) -> usize {
        self.bytes(self.blocks, self.max_symbols())
    }

    /// Returns the symbols that need not be fed again when it gets its rows.
    pub(super) fn kept(&self) -> usize {
        self.window.map_or(0, |window| self.reached.saturating_sub(window))
    }

    pub(super) fn demand(&self) -> Demand {
        let symbols = self.symbols();
        let bytes = self.bytes(self.blocks, (symbols + MARGIN).min(self.max_symbols()));
        Demand {
            tenant: Arc::clone(&self.tenant),
            symbols,
            uncached: symbols,
            beginning: Beginning::default(),
            bytes,
            rows: self.rows,
        }
    }
}

/// A simulated request that runs.
pub(super) struct SimRun {
    pub(super) request: SimRequest,
    pub(super) permit: RunPermit,
    /// Blocks of its document that have run.
    pub(super) encoded: usize,
    /// Symbols that each row was fed.
    pub(super) fed: usize,
    /// Rounds until its outcome is ready.
    pub(super) busy: usize,
    pub(super) work: FedSymbols,
}

impl SimRun {
    pub(super) fn activity(&self) -> RowActivity {
        match self.request.symbols() - self.fed {
            _ if self.busy > 0 => RowActivity::Busy,
            _ if self.request.paused => RowActivity::Paused { preemptible: self.request.number.is_multiple_of(2) },
            _ if self.encoded < self.request.blocks => {
                RowActivity::Encoding { blocks: self.request.blocks - self.encoded, block_symbols: BLOCK_SYMBOLS }
            }
            1 if self.fed >= self.request.prompt => RowActivity::Decoding(self.request.rows),
            left @ 1..=3 if self.request.number.is_multiple_of(5) => RowActivity::Searching(left),
            left => RowActivity::Prefilling(left),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.request.bytes(self.encoded, self.fed)
    }

    /// Returns the bytes that a feed allocates.
    pub(super) fn growth(&self, feed: usize) -> usize {
        let after = match self.activity() {
            RowActivity::Encoding { .. } => self.request.bytes(self.encoded + feed, self.fed),
            RowActivity::Decoding(_) => self.request.bytes(self.encoded, self.fed + 1),
            _ => self.request.bytes(self.encoded, self.fed + feed),
        };
        after - self.bytes()
    }

    pub(super) fn status(&mut self) -> RowStatus {
        let symbols = (self.request.symbols() + MARGIN).min(self.request.max_symbols());
        let soon = self.request.bytes(self.request.blocks, symbols) - self.bytes();
        RowStatus::new(&self.permit, self.activity(), self.bytes(), soon, std::mem::take(&mut self.work))
    }

    /// Takes a feed. Returns true if the request is finished.
    pub(super) fn feed(&mut self, symbols: usize) -> bool {
        let decoding = matches!(self.activity(), RowActivity::Decoding(_));
        if matches!(self.activity(), RowActivity::Encoding { .. }) {
            self.encoded += symbols;
            self.work.prompt += symbols;
            return false;
        }
        let symbols = if decoding { 1 } else { symbols };
        let recomputed = self.request.reached.saturating_sub(self.fed).min(symbols);
        self.fed += symbols;
        self.request.reached = self.request.reached.max(self.fed);
        self.work.recomputed += recomputed;
        let count = if decoding { &mut self.work.sampled } else { &mut self.work.prompt };
        *count += (symbols - recomputed) * self.request.rows;
        assert!(self.fed <= self.request.symbols());
        if self.fed < self.request.symbols() {
            return false;
        }
        if self.request.sampled == self.request.answer {
            return true;
        }
        // symbols sampled before a preemption are fed again, not sampled again
        self.request.sampled += 1;
        false
    }
}
