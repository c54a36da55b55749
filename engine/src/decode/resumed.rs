//! The text after which a generation resumes: symbols that an earlier run of the same request has emitted.
//!
//! They are taken as if they had been sampled just now: they count for limits, penalty and stop strings, and are neither drawn nor
//! emitted. Every draw has a number that depends on its position only, so the symbols after them are those of the earlier run.
//! If all boundaries depend on the text alone, the whole text is taken at once and fed in chunks, like a replay. If the model
//! ends segments with marks, these are drawn again: the text is then taken symbol by symbol.

use std::collections::VecDeque;

/// The symbols that are still to be taken.
#[derive(Debug, Clone, Default)]
pub(super) struct ResumedSymbols {
    symbols: VecDeque<u32>,
    /// True if the model's end mark or end byte follows them.
    ends_text: bool,
    /// Number of symbols that were taken.
    taken: usize,
}

impl ResumedSymbols {
    /// Creates the resumed text; `ends_text` is true if the model's end mark or end byte follows the symbols.
    pub(super) fn new(symbols: &[u32], ends_text: bool) -> Self {
        Self { symbols: symbols.iter().copied().collect(), ends_text, taken: 0 }
    }

    /// Returns the next symbol, if one is left.
    pub(super) fn take(&mut self) -> Option<u32> {
        let symbol = self.symbols.pop_front()?;
        self.taken += 1;
        Some(symbol)
    }

    /// Number of symbols that were taken.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Number of symbols that are still to be taken.
    pub(super) fn remaining(&self) -> usize {
        self.symbols.len()
    }

    /// True if all symbols were taken, and the end mark or end byte follows.
    pub(super) fn has_ended(&self) -> bool {
        self.ends_text && self.symbols.is_empty()
    }

    /// Drops the symbols that are left, because the generation ended before them.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_mark_counts_after_the_last_symbol() {
        let mut text = ResumedSymbols::new(&[3, 4], true);
        assert!(!text.has_ended() && !ResumedSymbols::default().has_ended());
        assert_eq!((text.take(), text.remaining(), text.taken()), (Some(3), 1, 1));
        assert_eq!((text.take(), text.has_ended(), text.take(), text.taken()), (Some(4), true, None, 2));
        let mut stopped = ResumedSymbols::new(&[3, 4], false);
        stopped.clear();
        assert_eq!((stopped.take(), stopped.taken(), stopped.has_ended()), (None, 0, false));
    }
}
