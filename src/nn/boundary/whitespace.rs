//! A boundary after each space: the space belongs to the word before it. Other white space, such as a newline, is not one.

use super::IdOf;

/// After one symbol.
pub struct Whitespace {
    symbol: u32,
}

impl Whitespace {
    /// After `symbol`, which must be one character of the vocabulary.
    pub fn new(symbol: &str, id_of: IdOf<'_>) -> Option<Self> {
        let mut characters = symbol.chars();
        let (first, None) = (characters.next()?, characters.next()) else { return None };
        id_of(first).map(|symbol| Self { symbol })
    }

    /// Whether a segment ends with `symbol`.
    pub fn closes(&self, symbol: u32) -> bool {
        symbol == self.symbol
    }
}
