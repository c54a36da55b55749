//! From the engine to the wire: characters become pieces.
//!
//! Symbols come in runs of any length; pieces are cut by the request's wishes alone where it has any. The text of a piece
//! never ends within a code point.

use super::convert::{Cut, Plan, Tell};
use crate::{
    decode::options::EmittedSymbol,
    text::{StreamDetokenizer, Vocabulary},
};
use std::{collections::VecDeque, sync::Arc};
use weir_proto::v1;

/// Characters that are sent together at most, unless the request asks for more.
const MOST_TOGETHER: usize = 256;
/// Characters of one segment that are sent together at most: a segment need not ever end.
const MOST_OF_SEGMENT: usize = 4096;

/// Characters on their way into pieces.
pub(in crate::serve) struct Pieces {
    waiting: VecDeque<EmittedSymbol>,
    /// How many of the first of these end no segment.
    open: usize,
    /// Characters of the prompt that are still to be sent.
    echo: usize,
    cut: Cut,
    tell: Tell,
    text: StreamDetokenizer,
    vocabulary: Arc<Vocabulary>,
}

impl Pieces {
    /// Nothing yet.
    pub(in crate::serve) fn new(plan: &Plan, vocabulary: Arc<Vocabulary>) -> Self {
        let echo = if plan.echo { plan.prompt_chars } else { 0 };
        let text = StreamDetokenizer::new(Arc::clone(&vocabulary));
        Self { waiting: VecDeque::new(), open: 0, echo, cut: plan.cut, tell: plan.tell, text, vocabulary }
    }

    /// Takes the next characters.
    pub(in crate::serve) fn push(&mut self, characters: Vec<EmittedSymbol>) {
        self.waiting.extend(characters);
    }

    /// Whether so much waits that it should be sent before more is taken.
    pub(in crate::serve) fn is_full(&self) -> bool {
        self.waiting.len() >= self.most()
    }

    /// The next piece, if one is complete.
    pub(in crate::serve) fn next(&mut self) -> Option<v1::Piece> {
        self.complete().map(|count| self.piece(count))
    }

    /// The next piece of what is left when there will be no more characters.
    pub(in crate::serve) fn rest(&mut self) -> Option<v1::Piece> {
        if let Some(piece) = self.next() {
            return Some(piece);
        }
        let mut piece = self.piece(self.waiting.len().min(self.most()));
        if self.waiting.is_empty() {
            // A code point that was left unfinished.
            piece.text.push_str(self.text.finish());
        }
        (!piece.text.is_empty() || !piece.characters.is_empty()).then_some(piece)
    }

    fn most(&self) -> usize {
        match self.cut {
            Cut::Characters(least) => least.max(MOST_TOGETHER),
            Cut::Segment => MOST_OF_SEGMENT,
        }
    }

    /// How many characters the next piece has, if it is complete.
    fn complete(&mut self) -> Option<usize> {
        let (waiting, most) = (self.waiting.len(), self.most());
        let count = match self.cut {
            Cut::Characters(least) => (waiting >= least).then(|| waiting.min(most)),
            Cut::Segment => {
                let further = self.waiting.iter().take(most).skip(self.open).position(ends_segment);
                let last = further.map(|further| self.open + further);
                self.open = last.unwrap_or(waiting.min(most));
                last.map(|last| last + 1).or((waiting >= most).then_some(most))
            }
        };
        // Prompt and answer are never in one piece.
        match self.echo {
            0 => count,
            echo if waiting >= echo => Some(count.map_or(echo, |count| count.min(echo))),
            _ => count,
        }
    }

    fn piece(&mut self, count: usize) -> v1::Piece {
        let mut piece = v1::Piece { prompt: self.echo > 0, ..Default::default() };
        self.echo = self.echo.saturating_sub(count);
        self.open = self.open.saturating_sub(count);
        for character in self.waiting.drain(..count) {
            piece.text.push_str(self.text.push(character.symbol));
            if self.tell.characters {
                piece.characters.push(told(character, self.tell.boundaries, &self.vocabulary));
            }
        }
        piece
    }
}

fn ends_segment(character: &EmittedSymbol) -> bool {
    character.decision.is_some_and(|mark| mark.boundary)
}

/// A character as it is told.
pub(in crate::serve) fn told(character: EmittedSymbol, boundaries: bool, vocabulary: &Vocabulary) -> v1::Character {
    let mark = character.decision.filter(|_| boundaries);
    let top = character.top.into_iter();
    v1::Character {
        text: symbol(character.symbol, vocabulary),
        logprob: character.logprob,
        boundary: mark.map(|mark| mark.boundary),
        boundary_probability: mark.and_then(|mark| mark.probability),
        nxt_logprob: mark.and_then(|mark| mark.end_logprob),
        top: top.map(|(id, logprob)| v1::Alternative { text: symbol(id, vocabulary), logprob, id }).collect(),
        id: character.symbol,
    }
}

/// A symbol by itself: its text, or its escape if it is none.
pub(in crate::serve) fn symbol(id: u32, vocabulary: &Vocabulary) -> String {
    match vocabulary.byte_of(id) {
        Some(byte) if !byte.is_ascii() => format!("\\x{byte:02x}"),
        _ => vocabulary.decode(&[id]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode::contract::SymbolBoundary, text::TextNormaliser};
    use proptest::prelude::*;

    fn pieces(cut: Cut, prompt_chars: usize, characters: bool) -> Pieces {
        let tell = Tell { characters, boundaries: characters };
        let plan = Plan { prompt_chars, echo: prompt_chars > 0, cut, tell, stop: Vec::new(), seed: 0 };
        Pieces::new(&plan, Arc::new(Vocabulary::byte_level(TextNormaliser::None)))
    }

    fn bytes(text: &str) -> Vec<EmittedSymbol> {
        let mark = |byte| Some(SymbolBoundary { boundary: byte == b' ', probability: None, end_logprob: None });
        let character =
            |byte: u8| EmittedSymbol { symbol: byte.into(), logprob: None, decision: mark(byte), top: Vec::new() };
        text.bytes().map(character).collect()
    }

    /// The texts of all pieces when the text comes in runs of `step` bytes and is sent as it comes.
    fn sent(mut pieces: Pieces, text: &str, step: usize) -> Vec<String> {
        let mut all = Vec::new();
        for run in bytes(text).chunks(step) {
            pieces.push(run.to_vec());
            all.extend(std::iter::from_fn(|| pieces.next()));
        }
        all.extend(std::iter::from_fn(|| pieces.rest()));
        all.into_iter().map(|piece| piece.text).collect()
    }

    #[test]
    fn by_default_what_is_there_is_sent() {
        assert_eq!(sent(pieces(Cut::Characters(1), 0, false), "abcde", 2), ["ab", "cd", "e"]);
        assert_eq!(sent(pieces(Cut::Characters(1), 0, false), &"a".repeat(300), 300)[0].len(), MOST_TOGETHER);
    }

    #[test]
    fn a_piece_waits_for_its_characters() {
        assert_eq!(sent(pieces(Cut::Characters(3), 0, false), "abcdefg", 1), ["abc", "def", "g"]);
    }

    #[test]
    fn segments_are_sent_one_by_one() {
        assert_eq!(sent(pieces(Cut::Segment, 0, false), "ab c  de", 100), ["ab ", "c ", " ", "de"]);
        assert_eq!(sent(pieces(Cut::Segment, 0, false), "ab c  de", 1), ["ab ", "c ", " ", "de"]);
    }

    #[test]
    fn a_segment_without_end_is_sent_in_parts() {
        let text = ["a".repeat(2 * MOST_OF_SEGMENT + 5), " b".into()].concat();
        for step in [1, 1000] {
            let mut pieces = pieces(Cut::Segment, 0, false);
            let mut most = 0;
            let mut lengths = Vec::new();
            for run in bytes(&text).chunks(step) {
                assert!(!pieces.is_full());
                pieces.push(run.to_vec());
                lengths.extend(std::iter::from_fn(|| pieces.next()).map(|piece| piece.text.len()));
                most = most.max(pieces.waiting.len());
            }
            lengths.extend(std::iter::from_fn(|| pieces.rest()).map(|piece| piece.text.len()));
            assert_eq!(lengths, [MOST_OF_SEGMENT, MOST_OF_SEGMENT, 6, 1]);
            assert!(most < MOST_OF_SEGMENT, "{most} characters waited");
        }
    }

    #[test]
    fn prompt_and_answer_are_never_in_one_piece() {
        assert_eq!(sent(pieces(Cut::Characters(3), 4, false), "abcdefg", 100), ["abcd", "efg"]);
        assert_eq!(sent(pieces(Cut::Characters(3), 4, false), "abcdefg", 1), ["abc", "d", "efg"]);
        assert_eq!(sent(pieces(Cut::Segment, 4, false), "a bcde f", 100), ["a ", "bc", "de ", "f"]);
        let mut pieces = pieces(Cut::Characters(1), 2, true);
        pieces.push(bytes("abc"));
        let kinds: Vec<_> = std::iter::from_fn(|| pieces.next()).map(|piece| (piece.prompt, piece.text)).collect();
        assert_eq!(kinds, [(true, "ab".into()), (false, "c".into())]);
    }

    #[test]
    fn an_unfinished_code_point_is_told_at_the_end() {
        let mut pieces = pieces(Cut::Characters(1), 0, true);
        pieces.push(bytes("é")[..1].to_vec());
        let piece = pieces.next().unwrap();
        assert_eq!((piece.text.as_str(), piece.characters[0].text.as_str()), ("", "\\xc3"));
        assert_eq!(pieces.rest().unwrap().text, "\u{fffd}");
        assert_eq!(pieces.rest(), None);
    }

    proptest! {
        #[test]
        fn pieces_together_are_the_text(
            text in "[a é€ ]{0,40}", step in 1_usize..9, least in 1_usize..6, prompt in 0_usize..9, segments: bool,
        ) {
            let cut = if segments { Cut::Segment } else { Cut::Characters(least) };
            prop_assert_eq!(sent(pieces(cut, prompt, false), &text, step).concat(), text);
        }
    }
}
