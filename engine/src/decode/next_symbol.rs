//! A request for the distribution after a text.

use super::{
    contract::{BoundaryOptions, Card, SymbolBoundary},
    options::{check_length, check_mode},
    shared_prefix::ForkedText,
};
use crate::error::Result;

/// The field of a request that decides the text's end.
const FIELD: &str = "complete.cursor_byte";

/// A request for the distribution of the symbol after a text.
#[derive(Debug, Clone)]
pub struct NextSymbol {
    /// The text's symbols; at least one.
    pub symbols: ForkedText,
    /// How boundaries are decided.
    pub boundaries: BoundaryOptions,
}

/// The distribution after a text, and the boundary decision of its last symbol.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// (vocab): logits of the next symbol.
    pub logits: Vec<f32>,
    /// The boundary with the last symbol; none for an empty text.
    pub boundary: Option<SymbolBoundary>,
}

impl NextSymbol {
    /// Checks the text and the boundary mode. Fails as [`Score::validate`](super::options::Score::validate) does.
    pub fn validate(&self, card: &Card) -> Result<()> {
        check_length(FIELD, self.symbols.len(), card)?;
        self.symbols.check(|symbols| card.vocabulary.check_text(FIELD, symbols))?;
        check_mode(&self.boundaries, card)
    }
}
