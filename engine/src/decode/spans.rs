//! Maps the vectors that a pooling kept to spans of the document's text.

use super::{
    document::{KeptVector, PoolingChoice},
    summary::ByteRange,
};

/// A part of a text that a pooling kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptSpan {
    /// The first byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Mean score of its tokens.
    pub score: f32,
}

/// Returns the spans that a pooling kept of a document of `tokens` tokens, in the order of the text, and the number of kept
/// tokens. `ranges` holds the bytes of each token. Adjacent tokens form one span; tokens without text form none.
pub fn spans(choice: &PoolingChoice, ranges: &[ByteRange], tokens: usize) -> (Vec<KeptSpan>, usize) {
    let mut kept: Vec<&KeptVector> = choice.kept.iter().filter(|kept| kept.token < tokens).collect();
    kept.sort_by_key(|kept| kept.token);
    kept.dedup_by_key(|kept| kept.token);
    let mut spans: Vec<(KeptSpan, usize)> = Vec::new();
    let mut previous = None;
    for &&KeptVector { token, score } in &kept {
        let is_adjacent = previous.is_some_and(|previous| token == previous + 1);
        previous = Some(token);
        let Some(&ByteRange { start, end }) = ranges.get(token).filter(|range| range.start < range.end) else {
            continue;
        };
        // tokens that a normaliser made of one character share its bytes
        match spans.last_mut().filter(|(span, _)| start < span.end || (is_adjacent && start <= span.end)) {
            Some((span, count)) => {
                span.score = (span.score * *count as f32 + score) / (*count + 1) as f32;
                span.end = span.end.max(end);
                *count += 1;
            }
            None => spans.push((KeptSpan { start, end, score }, 1)),
        }
    }
    (spans.into_iter().map(|(span, _)| span).collect(), kept.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_tokens_form_one_span_and_padding_none() {
        // three tokens of one word, a space of its own, a token of two bytes, an end mark
        let range = |(start, end)| ByteRange { start, end };
        let ranges = [(0, 3), (3, 5), (5, 6), (7, 8), (8, 10), (10, 10)].map(range);
        let kept = |pairs: &[(usize, f32)]| PoolingChoice {
            layer: 2,
            kept: pairs.iter().map(|&(token, score)| KeptVector { token, score }).collect(),
        };
        let spans = |choice: &PoolingChoice| {
            let (spans, tokens) = super::spans(choice, &ranges, 6);
            (spans.iter().map(|span| (span.start, span.end, span.score)).collect::<Vec<_>>(), tokens)
        };
        // in the order of scores, with padding after the document
        let (actual, tokens) = spans(&kept(&[(4, 0.9), (0, 0.5), (7, 0.4), (1, 0.25), (5, 0.1), (100, 0.1)]));
        assert_eq!((actual, tokens), (vec![(0, 5, 0.375), (8, 10, 0.9)], 4));
        // a byte lies between them
        let (actual, _) = spans(&kept(&[(2, 0.5), (3, 0.25), (4, 0.75)]));
        assert_eq!(actual, [(5, 6, 0.5), (7, 10, 0.5)]);
        assert_eq!(spans(&kept(&[])), (Vec::new(), 0));
        let ranges = [(0, 3), (0, 3), (0, 3), (3, 4)].map(range);
        let (actual, tokens) = super::spans(&kept(&[(0, 0.25), (2, 0.75)]), &ranges, 4);
        assert_eq!((actual, tokens), (vec![KeptSpan { start: 0, end: 3, score: 0.5 }], 2));
    }
}
