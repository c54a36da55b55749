//! What a pooling has kept of a document, as spans of its text.

use super::{
    document::{KeptVector, PoolingChoice},
    summary::ByteRange,
};

/// A part of a text that a pooling has kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptSpan {
    /// Its first byte.
    pub start: u64,
    /// The byte after its last.
    pub end: u64,
    /// The mean of its tokens' scores.
    pub score: f32,
}

/// What a pooling has chosen of so many tokens, which stand at these places, in the order of the text: neighbouring tokens make one span, and what has no text makes none. Also
/// how many of the document's tokens it has kept.
pub fn spans(choice: &PoolingChoice, places: &[ByteRange], tokens: usize) -> (Vec<KeptSpan>, usize) {
    let mut kept: Vec<&KeptVector> = choice.kept.iter().filter(|kept| kept.token < tokens).collect();
    kept.sort_by_key(|kept| kept.token);
    // tokens may come from one and the same place only if they are one behind the other
    kept.dedup_by_key(|kept| kept.token);
    let mut spans: Vec<(KeptSpan, usize)> = Vec::new();
    let mut before = None;
    for &&KeptVector { token, score } in &kept {
        let follows = before.is_some_and(|before| token == before + 1);
        before = Some(token);
        let Some(&(start, end)) = places.get(token).filter(|(start, end)| start < end) else { continue };
        // tokens that a normaliser made of one character share its place
        match spans.last_mut().filter(|(span, _)| start < span.end || (follows && start <= span.end)) {
            Some((span, count)) => {
                span.score = (span.score * *count as f32 + score) / (*count + 1) as f32;
                (span.end, *count) = (span.end.max(end), *count + 1);
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
    fn neighbours_make_one_span_and_padding_none() {
        // three tokens of one word, a space of its own, a token of two bytes, an end mark
        let places = [(0, 3), (3, 5), (5, 6), (7, 8), (8, 10), (10, 10)];
        let kept = |pairs: &[(usize, f32)]| PoolingChoice {
            layer: 2,
            kept: pairs.iter().map(|&(token, score)| KeptVector { token, score }).collect(),
        };
        let spans = |choice: &PoolingChoice| {
            let (spans, tokens) = super::spans(choice, &places, 6);
            (spans.iter().map(|span| (span.start, span.end, span.score)).collect::<Vec<_>>(), tokens)
        };
        // in the order of scores, with padding behind the document
        let (found, tokens) = spans(&kept(&[(4, 0.9), (0, 0.5), (7, 0.4), (1, 0.25), (5, 0.1), (100, 0.1)]));
        assert_eq!((found, tokens), (vec![(0, 5, 0.375), (8, 10, 0.9)], 4));
        // a byte lies between them
        let (found, _) = spans(&kept(&[(2, 0.5), (3, 0.25), (4, 0.75)]));
        assert_eq!(found, [(5, 6, 0.5), (7, 10, 0.5)]);
        assert_eq!(spans(&kept(&[])), (Vec::new(), 0));
        let places = [(0, 3), (0, 3), (0, 3), (3, 4)];
        let (found, tokens) = super::spans(&kept(&[(0, 0.25), (2, 0.75)]), &places, 4);
        assert_eq!((found, tokens), (vec![KeptSpan { start: 0, end: 3, score: 0.5 }], 2));
    }
}
