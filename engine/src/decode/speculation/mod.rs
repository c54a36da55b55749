//! Bit-exact speculation: a generating session feeds symbols that it guesses together with the sampled one.
//!
//! A [draft](drafter) continues the text as it went on after an earlier place (`suffix_matcher`), or as texts usually go on
//! ([`ngrams`]). The model processes the sampled symbol and the draft in one step, with the logits after each. The sampler then
//! draws at each position as it always does, and a drafted symbol is accepted while it equals the drawn one. The rest is rolled
//! back. Every number and every draw depends on the symbols before it and on its position, not on how symbols were split into
//! steps. So the text is the same, bit for bit.
//!
//! A draft ends at its first boundary. Whether a symbol is one is known after the symbol step; the rows then drop the symbols from
//! there on ([`SequenceRow::cut`](super::contract::SequenceRow::cut)). So the middle stack runs for accepted symbols only.

pub mod drafter;
pub mod guess_rates;
pub mod ngrams;
mod suffix_matcher;

use std::fmt::{self, Display, Formatter};

/// Maximum symbols of a draft. Every state can be rolled back by as many.
pub const MAX_DRAFT: usize = 16;

/// A generation's setting for speculation. The text does not depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Speculation {
    /// Drafts are never fed.
    #[default]
    Off,
    /// Drafts are fed as far as they are expected to save time.
    Auto,
    /// Drafts of at most this many symbols are fed, whether or not they save time.
    UpTo(usize),
}

impl Speculation {
    /// The values that [`parse`](Self::parse) accepts.
    pub const EXPECTED: &str = "\"auto\", \"off\" or a whole number from 1 to 16";

    /// Returns the setting that `text` names: `auto`, `off` or the maximum length of a draft.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "auto" => Some(Self::Auto),
            number => number.parse().ok().filter(|length| (1..=MAX_DRAFT).contains(length)).map(Self::UpTo),
        }
    }

    /// Maximum symbols of a draft.
    pub fn max_draft(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Auto => MAX_DRAFT,
            Self::UpTo(length) => length.min(MAX_DRAFT),
        }
    }
}

impl Display for Speculation {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => formatter.write_str("off"),
            Self::Auto => formatter.write_str("auto"),
            Self::UpTo(length) => write!(formatter, "{length}"),
        }
    }
}

/// The room that a step has for drafted symbols, and the times that decide whether a draft pays.
///
/// A step takes a fixed time plus the time of its symbols. Without drafts it yields one symbol for each row that decodes. A drafted
/// symbol yields one more if it is accepted. It raises the yield per unit of time exactly if the probability of that, divided by the
/// time of a symbol, exceeds the yield so far.
#[derive(Debug, Clone, Copy)]
pub struct DraftBudget {
    /// Symbols that the step has room for.
    pub free: usize,
    /// The fixed time of a step, in multiples of a symbol's time.
    pub fixed: f64,
    /// Symbols that the step feeds.
    pub symbols: usize,
    /// Expected number of symbols that the step yields.
    pub expected: f64,
    /// True if the step also feeds prompts, which fill it.
    pub feeds_prompts: bool,
}

impl DraftBudget {
    /// Adds a drafted symbol, which is accepted with this probability, if `setting` permits that and there is room for it. Returns
    /// false otherwise.
    pub fn take(&mut self, setting: Speculation, probability: f64) -> bool {
        let pays = match setting {
            Speculation::Off => false,
            Speculation::Auto => {
                !self.feeds_prompts && probability * (self.fixed + self.symbols as f64) > self.expected
            }
            Speculation::UpTo(_) => true,
        };
        if !pays || self.free == 0 {
            return false;
        }
        self.free -= 1;
        self.symbols += 1;
        self.expected += probability;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_names() {
        for setting in [Speculation::Off, Speculation::Auto, Speculation::UpTo(1), Speculation::UpTo(16)] {
            assert_eq!(Speculation::parse(&setting.to_string()), Some(setting));
        }
        for text in ["", "0", "17", "-1", "on", "Auto", "4.0"] {
            assert_eq!(Speculation::parse(text), None, "{text}");
        }
        assert!(Speculation::EXPECTED.contains(&MAX_DRAFT.to_string()));
    }

    #[test]
    fn a_symbol_pays_if_it_raises_the_yield_per_unit_of_time() {
        for fixed in [0.0, 0.5, 4.0, 20.0] {
            for rows in 1..20 {
                for tenth in 0..=10 {
                    let probability = f64::from(tenth) / 10.0;
                    let new =
                        || DraftBudget { free: 1, fixed, symbols: rows, expected: rows as f64, feeds_prompts: false };
                    let mut budget = new();
                    let before = rows as f64 / (fixed + rows as f64);
                    let after = (rows as f64 + probability) / (fixed + rows as f64 + 1.0);
                    // a tie may go either way
                    if (after - before).abs() > 1e-9 {
                        assert_eq!(budget.take(Speculation::Auto, probability), after > before);
                    }
                    let mut full = DraftBudget { free: 0, ..new() };
                    assert!(!full.take(Speculation::UpTo(4), 1.0) && !new().take(Speculation::Off, 1.0));
                    let mut mixed = DraftBudget { feeds_prompts: true, ..new() };
                    assert!(!mixed.take(Speculation::Auto, 1.0) && mixed.take(Speculation::UpTo(4), 0.1));
                }
            }
        }
    }
}
