//! Symbols that are no text: a model's own marks between the characters.
//!
//! They have ids among the others', wherever the checkpoint puts them. `unknown` is the one that may stand in a text: for a
//! character that the vocabulary lacks. None of them is ever encoded from text, so a text that spells one out is text.

use serde::{Deserialize, Serialize};

/// The ids of a model's marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Specials {
    /// Stands before each text; the model puts it there itself.
    pub start: u32,
    /// Ends a text.
    pub end: u32,
    /// Stands before each segment where segments are written; the model puts it there itself.
    pub segment_start: u32,
    /// Ends each segment where segments are written.
    pub segment_end: u32,
    /// Stands for a character that is not in the vocabulary.
    pub unknown: u32,
}

impl Specials {
    /// How many there are.
    pub const COUNT: usize = 5;

    /// Each with its name in a checkpoint.
    pub fn named(self) -> [(&'static str, u32); Self::COUNT] {
        [
            ("start", self.start),
            ("end", self.end),
            ("segment_start", self.segment_start),
            ("segment_end", self.segment_end),
            ("unknown", self.unknown),
        ]
    }

    /// Whether an id is one of them.
    pub fn holds(self, id: u32) -> bool {
        self.named().iter().any(|&(_, own)| own == id)
    }

    /// Its name in messages and listings, if it is one of them.
    pub fn shown(self, id: u32) -> Option<&'static str> {
        const SHOWN: [&str; Specials::COUNT] = ["<BoS>", "<eos>", "<bos>", "<nxt>", "<oov>"];
        self.named().iter().zip(SHOWN).find(|((_, own), _)| *own == id).map(|(_, shown)| shown)
    }

    /// Those that are never sampled: two that the model writes itself, and one without a surface.
    pub fn never_sampled(self) -> [u32; 3] {
        [self.start, self.segment_start, self.unknown]
    }

    /// The first one that is out of bounds, stands twice, or where `taken` has a symbol of text: its name, what was expected,
    /// what was found.
    pub(super) fn wrong(self, len: usize, taken: impl Fn(u32) -> bool) -> Option<(&'static str, String, String)> {
        let named = self.named();
        for (index, (name, id)) in named.into_iter().enumerate() {
            if id as usize >= len {
                return Some((name, format!("an id below {len}"), id.to_string()));
            }
            if let Some((other, _)) = named[..index].iter().find(|(_, own)| *own == id) {
                return Some((name, "an id of its own".into(), format!("{id}, which is {other}'s")));
            }
            if taken(id) {
                return Some((name, "an id that is no symbol of text".into(), id.to_string()));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Specials = Specials { start: 0, end: 1, segment_start: 2, segment_end: 3, unknown: 9 };

    #[test]
    fn ids_are_distinct_and_in_bounds() {
        assert_eq!(MARKS.wrong(10, |_| false), None);
        assert_eq!(MARKS.wrong(9, |_| false).unwrap().0, "unknown");
        assert_eq!(Specials { end: 3, ..MARKS }.wrong(10, |_| false).unwrap().0, "segment_end");
        assert_eq!(MARKS.wrong(10, |id| id == 2).unwrap().0, "segment_start");
        assert!(MARKS.holds(9) && !MARKS.holds(4));
        assert_eq!((MARKS.shown(0), MARKS.shown(2), MARKS.shown(5)), (Some("<BoS>"), Some("<bos>"), None));
    }
}
