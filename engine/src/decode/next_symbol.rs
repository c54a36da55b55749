//! A request for the distribution after a text, and after each symbol of its greedy continuation.

use super::{
    contract::check_mode,
    contract::{BoundaryOptions, Card, SymbolBoundary},
    options::check_length,
    text_window::ForkedText,
};
use crate::error::Result;
use crate::kernels::distribution::LogSoftmax;
use std::sync::Arc;

/// The field of a request that decides the text's end.
const FIELD: &str = "complete.cursor_byte";

/// A request for the distribution of the symbol after a text.
#[derive(Debug, Clone)]
pub struct NextSymbol {
    /// The text's symbols; at least one.
    pub symbols: ForkedText,
    /// How boundaries are decided.
    pub boundaries: BoundaryOptions,
    /// How far the request looks ahead.
    pub lookahead: Lookahead,
}

/// How far a request looks ahead: after its text, it appends the most probable symbol each time.
#[derive(Debug, Clone, Default)]
pub struct Lookahead {
    /// Maximum symbols that are appended; fewer if the model cannot hold as many.
    pub max_symbols: usize,
    /// (V): true for the symbols that may be appended. Empty allows none.
    pub allowed: Arc<[bool]>,
    /// Minimum ln p of the appended symbols together, given the text.
    pub min_logprob: f64,
    /// True if nothing is appended after a symbol with a boundary.
    pub stops_at_boundary: bool,
}

/// The distributions that a request has computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NextDistributions {
    /// The symbols that it appended to the text.
    pub symbols: Vec<u32>,
    /// The distribution after the text, then the one after each of `symbols`.
    pub distributions: Vec<Distribution>,
}

/// The distribution after a text, and the boundary decision of its last symbol.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// (vocab): logits of the next symbol.
    pub logits: Vec<f32>,
    /// The boundary with the last symbol; none for an empty text.
    pub boundary: Option<SymbolBoundary>,
}

/// The distributions of a request that runs.
#[derive(Debug, Clone)]
pub(super) struct DistributionsSoFar {
    lookahead: Lookahead,
    /// ln p of the appended symbols.
    logprob: f64,
    found: NextDistributions,
}

impl DistributionsSoFar {
    pub(super) fn new(lookahead: Lookahead) -> Self {
        Self { lookahead, logprob: 0.0, found: NextDistributions::default() }
    }

    /// Takes the distribution after the latest symbol. Returns the symbol to append, or `None` if the request is done. Fails if the
    /// logits are not valid.
    pub(super) fn push(&mut self, distribution: Distribution) -> Result<Option<u32>> {
        let next = self.next_symbol(&distribution)?;
        self.found.distributions.push(distribution);
        self.found.symbols.extend(next);
        Ok(next)
    }

    fn next_symbol(&mut self, Distribution { logits, boundary }: &Distribution) -> Result<Option<u32>> {
        let Lookahead { max_symbols, allowed, min_logprob, stops_at_boundary } = &self.lookahead;
        let stops = *stops_at_boundary && boundary.is_some_and(|decision| decision.boundary);
        if stops || self.found.symbols.len() >= *max_symbols {
            return Ok(None);
        }
        let softmax = LogSoftmax::new(logits)?;
        let best = (0_u32..).zip(logits).zip(&**allowed).max_by(|((_, a), _), ((_, b), _)| a.total_cmp(b));
        let Some(((symbol, &logit), true)) = best else { return Ok(None) };
        self.logprob += softmax.exact(logit);
        Ok((self.logprob >= *min_logprob).then_some(symbol))
    }

    /// True if it has a distribution.
    pub(super) fn has_any(&self) -> bool {
        !self.found.distributions.is_empty()
    }

    pub(super) fn finish(self) -> NextDistributions {
        self.found
    }
}

impl NextSymbol {
    /// Checks the text and the boundary mode. Fails as [`Score::validate`](super::options::Score::validate) does.
    pub fn validate(&self, card: &Card) -> Result<()> {
        check_length(FIELD, self.symbols.len(), card)?;
        self.symbols.check(|symbols| card.vocabulary.check_text(FIELD, symbols))?;
        check_mode(&self.boundaries, card)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the symbols that a request appends if the next symbol always has probability 0.8. Symbol 2 has a boundary.
    fn symbols(lookahead: Lookahead, next: &[usize]) -> Vec<u32> {
        let mut all = DistributionsSoFar::new(lookahead);
        let mut boundary = None;
        for &next in next {
            let mut logits = vec![0.0; 3];
            logits[next] = 8_f32.ln();
            if all.push(Distribution { logits, boundary }).unwrap().is_none() {
                break;
            }
            boundary = Some(SymbolBoundary { boundary: next == 2, depth: 0, probability: None, end_logprob: None });
        }
        let NextDistributions { symbols, distributions } = all.finish();
        assert_eq!(distributions.len(), symbols.len() + 1);
        symbols
    }

    #[test]
    fn a_request_appends_the_most_probable_symbols() {
        let allowed: Arc<[bool]> = Arc::new([true, false, true]);
        let ahead = |max_symbols, min: f64| Lookahead {
            max_symbols,
            allowed: allowed.clone(),
            min_logprob: min.ln(),
            stops_at_boundary: false,
        };
        let until_boundary = Lookahead { stops_at_boundary: true, ..ahead(3, 0.0) };
        assert_eq!(symbols(until_boundary, &[0, 2, 2, 0]), [0, 2]);
        assert_eq!(symbols(ahead(3, 0.0), &[0, 2, 2, 0]), [0, 2, 2]);
        assert_eq!(symbols(ahead(3, 0.5), &[0, 2, 2, 0]), [0, 2, 2]);
        assert_eq!(symbols(ahead(3, 0.6), &[0, 2, 2, 0]), [0, 2], "0.8 to the third is less");
        assert_eq!(symbols(ahead(3, 0.0), &[0, 1, 2]), [0], "a symbol that is not allowed");
        assert_eq!((symbols(ahead(0, 0.0), &[0]), symbols(Lookahead::default(), &[0])), (vec![], vec![]));
    }
}
