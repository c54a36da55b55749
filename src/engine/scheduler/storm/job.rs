//! What storms are made of: jobs, their rows, and a die.

use super::*;

/// Symbols of a page, and its bytes.
pub(super) const PAGE: (usize, usize) = (4, 8);
/// Symbols beyond the given ones that a job is let in with.
pub(super) const MARGIN: usize = 6;
/// The longest prompt and the longest answer of a storm.
pub(super) const LONGEST: usize = 24;

pub(super) fn bytes_for(symbols: usize) -> usize {
    symbols.div_ceil(PAGE.0) * PAGE.1
}

/// A reproducible die.
pub(super) struct Die(pub(super) u64);

impl Die {
    pub(super) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % sides as u64) as usize
    }
}

/// The longest document of a storm in blocks, and what each counts as: more than some steps have.
pub(super) const DOCUMENT: (usize, usize) = (5, 12);

/// A job: a document of so many blocks, if any, so many given symbols, so many to sample on each of its rows.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) number: usize,
    pub(super) tenant: Arc<str>,
    pub(super) priority: i32,
    pub(super) blocks: usize,
    pub(super) rows: usize,
    pub(super) given: usize,
    pub(super) answer: usize,
    /// Symbols sampled.
    pub(super) sampled: usize,
    /// Symbols that were fed once: those before are fed again after the job had to make way.
    pub(super) reached: usize,
    /// Whether its reader is behind.
    pub(super) paused: bool,
    pub(super) cancelled: bool,
    /// New work that had been done when it came; none once it was let in.
    pub(super) came: Option<u64>,
}

impl Job {
    pub(super) fn known(&self) -> usize {
        self.given + self.sampled
    }

    pub(super) fn most(&self) -> usize {
        self.given + self.answer
    }

    /// Bytes with so many blocks and symbols.
    pub(super) fn bytes(&self, blocks: usize, symbols: usize) -> usize {
        bytes_for(blocks) + self.rows * bytes_for(symbols)
    }

    pub(super) fn most_bytes(&self) -> usize {
        self.bytes(self.blocks, self.most())
    }

    pub(super) fn ask(&self) -> Demand {
        let symbols = self.known();
        let bytes = self.bytes(self.blocks, (symbols + MARGIN).min(self.most()));
        Demand { tenant: Arc::clone(&self.tenant), symbols, uncached: symbols, bytes, rows: self.rows }
    }
}

pub(super) struct Row {
    pub(super) job: Job,
    pub(super) permit: RunPermit,
    /// Blocks of its document that have run.
    pub(super) encoded: usize,
    pub(super) fed: usize,
    /// Rounds until its feed is through.
    pub(super) busy: usize,
    pub(super) work: FedSymbols,
}

impl Row {
    pub(super) fn activity(&self) -> RowActivity {
        match self.job.known() - self.fed {
            _ if self.busy > 0 => RowActivity::Busy,
            _ if self.job.paused => RowActivity::Paused { preemptible: self.job.number.is_multiple_of(2) },
            _ if self.encoded < self.job.blocks => {
                RowActivity::Encoding { blocks: self.job.blocks - self.encoded, block_symbols: DOCUMENT.1 }
            }
            1 if self.fed >= self.job.given => RowActivity::Decoding(self.job.rows),
            left => RowActivity::Prefilling(left),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.job.bytes(self.encoded, self.fed)
    }

    /// What a feed takes.
    pub(super) fn growth(&self, feed: usize) -> usize {
        match self.activity() {
            RowActivity::Encoding { .. } => self.job.bytes(self.encoded + feed, self.fed) - self.bytes(),
            RowActivity::Decoding(_) => self.job.bytes(self.encoded, self.fed + 1) - self.bytes(),
            _ => self.job.bytes(self.encoded, self.fed + feed) - self.bytes(),
        }
    }

    pub(super) fn standing(&mut self) -> RowStatus {
        let soon = (self.job.known() - self.fed + MARGIN).min(self.job.most() - self.fed);
        let bytes = self.job.bytes(self.job.blocks, self.fed + soon) - self.bytes();
        RowStatus::new(&self.permit, self.activity(), self.bytes(), bytes, std::mem::take(&mut self.work))
    }

    /// Takes a feed; tells whether the job is finished.
    pub(super) fn feed(&mut self, symbols: usize) -> bool {
        let decoding = matches!(self.activity(), RowActivity::Decoding(_));
        if matches!(self.activity(), RowActivity::Encoding { .. }) {
            self.encoded += symbols;
            self.work.prompt += symbols;
            return false;
        }
        let symbols = if decoding { 1 } else { symbols };
        let again = self.job.reached.saturating_sub(self.fed).min(symbols);
        self.fed += symbols;
        self.job.reached = self.job.reached.max(self.fed);
        self.work.recomputed += again;
        *(if decoding { &mut self.work.sampled } else { &mut self.work.prompt }) += (symbols - again) * self.job.rows;
        assert!(self.fed <= self.job.known());
        if self.fed < self.job.known() {
            return false;
        }
        if self.job.sampled == self.job.answer {
            return true;
        }
        // nothing is sampled twice: what was sampled before is fed again instead
        self.job.sampled += 1;
        false
    }
}
