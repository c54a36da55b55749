//! The text of sampled tokens that are not yet emitted: which bytes each of them completes.

use crate::text::{StreamDetokenizer, Vocabulary};
use std::{collections::VecDeque, sync::Arc};

/// The text of the held tokens of a generation.
#[derive(Debug, Clone)]
pub(super) struct TokenText {
    stream: StreamDetokenizer,
    /// Bytes that each held token completes, oldest first.
    lengths: VecDeque<usize>,
}

impl TokenText {
    pub(super) fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self { stream: StreamDetokenizer::new(vocabulary), lengths: VecDeque::new() }
    }

    /// Adds a token and returns the text that it completes.
    pub(super) fn push(&mut self, token: u32) -> &str {
        let text = self.stream.push(token);
        self.lengths.push_back(text.len());
        text
    }

    /// Returns the bytes of the held tokens before the latest one.
    pub(super) fn before_latest(&self) -> usize {
        self.lengths.iter().rev().skip(1).sum()
    }

    /// Returns how many held tokens the first `bytes` bytes need, and the bytes that belong to them of the last one's text if these
    /// are not all. A token that completes no text belongs to what follows it.
    pub(super) fn position(&self, bytes: usize) -> (usize, Option<usize>) {
        let mut before = 0;
        for (index, &length) in self.lengths.iter().enumerate() {
            if before == bytes {
                return (index, None);
            }
            if before + length > bytes {
                return (index + 1, Some(bytes - before));
            }
            before += length;
        }
        (self.lengths.len(), None)
    }

    /// Returns how many of the last held tokens the last `bytes` bytes need, with the tokens that begin their first code point.
    pub(super) fn symbols_of_last(&self, bytes: usize) -> usize {
        let mut covered = 0;
        let mut count = 0;
        for &length in self.lengths.iter().rev() {
            // an unfinished code point may become part of a stop string, too
            if covered >= bytes && length > 0 {
                break;
            }
            covered += length;
            count += 1;
        }
        count
    }

    /// Drops the first `count` tokens, which were emitted.
    pub(super) fn release(&mut self, count: usize) {
        self.lengths.drain(..count.min(self.lengths.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(lengths: &[usize]) -> TokenText {
        let vocabulary = Vocabulary::byte_level(crate::text::TextNormaliser::None);
        TokenText { lengths: lengths.iter().copied().collect(), ..TokenText::new(Arc::new(vocabulary)) }
    }

    #[test]
    fn bytes_are_mapped_to_tokens() {
        let text = held(&[2, 0, 3, 1]);
        assert_eq!(
            [0, 1, 2, 3, 5, 6].map(|bytes| text.position(bytes)),
            [(0, None), (1, Some(1)), (1, None), (3, Some(1)), (3, None), (4, None)]
        );
        assert_eq!([0, 1, 2, 4, 5].map(|bytes| text.symbols_of_last(bytes)), [0, 1, 3, 3, 4]);
        assert_eq!(held(&[2, 0, 0]).symbols_of_last(0), 2);
    }
}
