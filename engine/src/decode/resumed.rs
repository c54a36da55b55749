//! The text after which a generation resumes: symbols that an earlier run of the same request has emitted.
//!
//! They are taken as if they had been sampled just now: they count for limits, penalty and stop strings, and are neither drawn nor
//! emitted. Every draw has a number that depends on its position only, so the symbols after them are those of the earlier run.
//! If all boundaries depend on the text alone, the whole text is taken at once and fed in chunks, like a replay. If the model
//! ends segments with marks, these are drawn again: the text is then taken symbol by symbol.

use super::{
    contract::Card,
    options::{Generate, bad},
};
use crate::error::Result;
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

impl Generate {
    /// Returns the resumed text, and true if the model's end mark or end byte follows it.
    pub(super) fn resumed_text(&self, card: &Card) -> (&[u32], bool) {
        match self.resumed.split_last() {
            Some((last, text)) if card.vocabulary.ends_text(*last) => (text, true),
            _ => (&self.resumed, false),
        }
    }

    /// Checks that the resumed text, which `field` gives, fits the limits. Fails with
    /// [`Error::BadOption`](crate::error::Error::BadOption), which names the field.
    pub fn check_resumed_length(&self, field: &'static str, card: &Card) -> Result<()> {
        let (text, _) = self.resumed_text(card);
        let limit = self.stopping.max_chars.min(card.max_symbols.saturating_sub(self.prompt.len()));
        if text.len() <= limit {
            return Ok(());
        }
        let bound = format!("at most {limit} characters (max_chars, and the room after the prompt)");
        Err(bad(field, format!("{} characters", text.len()), bound))
    }

    /// Checks the resumed text against the limits, the vocabulary and where the text may end. Fails with an error that names the
    /// field.
    pub(super) fn validate_resumed(&self, card: &Card) -> Result<()> {
        self.check_resumed_length("resume_text", card)?;
        let (text, ends_text) = self.resumed_text(card);
        self.check_resumed_end(text.len(), ends_text)?;
        card.vocabulary.check_text("resume_text", text)
    }

    /// Checks that a resumed text does not end where no stream of these options ends. Only ids can contain the end.
    fn check_resumed_end(&self, length: usize, ends_text: bool) -> Result<()> {
        if !ends_text {
            return Ok(());
        }
        let field = "resume_ids";
        if self.stopping.ignore_end {
            return Err(bad(field, "one at the end", "no id that ends the text (ignore_eos)".into()));
        }
        let min = self.stopping.min_chars;
        if length < min {
            return Err(bad(field, length, format!("at least {min} ids before the end of the text (min_chars)")));
        }
        Ok(())
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
