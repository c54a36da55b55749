//! Splits generated characters into the pieces of a `Generate` response.
//!
//! The engine emits characters in runs of any length. A request may fix where pieces end. The text of a piece never ends within a
//! code point.

use super::convert::{CharacterDetails, PieceSplit, ResponseFormat};
use crate::{
    decode::{contract::SymbolBoundary, options::EmittedSymbol},
    text::{StreamDetokenizer, Vocabulary},
};
use std::{collections::VecDeque, sync::Arc};
use weir_proto::v1;

/// Maximum characters of a piece, unless the request asks for more. With alternatives, fewer: each counts like a character.
const MAX_PIECE: usize = 256;
/// Maximum characters of a piece that waits for its segment to end: a segment may never end. With alternatives, fewer.
const MAX_SEGMENT: usize = 4096;

/// Characters that wait for their piece to be complete.
pub(super) struct Pieces {
    waiting: VecDeque<EmittedSymbol>,
    /// The first `searched` characters end no segment.
    searched: usize,
    /// Characters of the prompt that are still to be sent.
    echo: usize,
    split: PieceSplit,
    details: CharacterDetails,
    detokenizer: StreamDetokenizer,
    vocabulary: Arc<Vocabulary>,
}

impl Pieces {
    pub(super) fn new(format: &ResponseFormat, vocabulary: Arc<Vocabulary>) -> Self {
        Self {
            waiting: VecDeque::new(),
            searched: 0,
            echo: if format.echo { format.prompt_chars } else { 0 },
            split: format.split,
            details: format.details,
            detokenizer: StreamDetokenizer::new(Arc::clone(&vocabulary)),
            vocabulary,
        }
    }

    /// Continues after generated symbols that were sent before.
    pub(super) fn skip(&mut self, symbols: &[u32]) {
        for &symbol in symbols {
            self.detokenizer.push(symbol);
        }
    }

    /// Appends the next characters.
    pub(super) fn push(&mut self, characters: Vec<EmittedSymbol>) {
        self.waiting.extend(characters);
    }

    /// Returns true if a piece should be sent before more characters are taken.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= self.max_chars()
    }

    /// Returns the next piece, if one is complete.
    pub(super) fn next(&mut self) -> Option<v1::Piece> {
        self.complete_len().map(|count| self.take(count))
    }

    /// Returns the next piece after the last character has arrived.
    pub(super) fn rest(&mut self) -> Option<v1::Piece> {
        if let Some(piece) = self.next() {
            return Some(piece);
        }
        let mut piece = self.take(self.waiting.len().min(self.max_chars()));
        if self.waiting.is_empty() && piece.ids.is_empty() {
            // An incomplete code point at the end. Ids have no such text, so it is a piece of its own next to them.
            piece.text.push_str(self.detokenizer.finish());
        }
        (!piece.text.is_empty() || !piece.characters.is_empty() || !piece.ids.is_empty()).then_some(piece)
    }

    /// Returns the maximum number of characters that wait for their piece.
    fn max_chars(&self) -> usize {
        let each = 1 + self.details.alternatives;
        match self.split {
            PieceSplit::Characters(min) => min.max(MAX_PIECE / each),
            PieceSplit::Segment => MAX_SEGMENT / each,
        }
    }

    /// Returns the number of characters of the next piece, if it is complete.
    fn complete_len(&mut self) -> Option<usize> {
        let waiting = self.waiting.len();
        let max = self.max_chars();
        let count = match self.split {
            PieceSplit::Characters(min) => (waiting >= min).then(|| waiting.min(max)),
            PieceSplit::Segment => {
                let cut = (self.searched..waiting.min(max)).find(|&last| {
                    let own = &self.waiting[last];
                    self.waiting.get(last + 1).map_or_else(|| ends_segment(own), |next| is_cut(own, next))
                });
                // the next symbol may begin a segment, so the last one is searched again
                self.searched = cut.unwrap_or(waiting.min(max).saturating_sub(1));
                cut.map(|last| last + 1).or((waiting >= max).then_some(max))
            }
        };
        // A piece never holds both prompt and generated text.
        match self.echo {
            0 => count,
            echo if waiting >= echo => Some(count.map_or(echo, |count| count.min(echo))),
            _ => count,
        }
    }

    /// Removes the first `count` characters as a piece.
    fn take(&mut self, count: usize) -> v1::Piece {
        let mut piece = v1::Piece { prompt: self.echo > 0, ..Default::default() };
        self.echo = self.echo.saturating_sub(count);
        self.searched = self.searched.saturating_sub(count);
        for symbol in self.waiting.drain(..count) {
            piece.text.push_str(self.detokenizer.push_symbol(symbol.symbol, symbol.cut));
            if self.details.ids {
                piece.ids.push(symbol.symbol);
            }
            if self.details.listed {
                let details = if piece.prompt { character } else { generated_character };
                piece.characters.push(details(symbol, self.details.boundaries, &self.vocabulary));
            }
        }
        piece
    }
}

/// Returns true if the text is cut between two neighbouring symbols.
pub(super) fn is_cut(before: &EmittedSymbol, after: &EmittedSymbol) -> bool {
    ends_segment(before) || after.decision.is_some_and(SymbolBoundary::begins_segment)
}

/// Returns true if the text is cut after a symbol, whatever follows it.
pub(super) fn ends_segment(symbol: &EmittedSymbol) -> bool {
    symbol.decision.is_some_and(SymbolBoundary::ends_segment)
}

/// Returns the message for a symbol, with its boundary decision if `boundaries` is true.
pub(super) fn character(symbol: EmittedSymbol, boundaries: bool, vocabulary: &Vocabulary) -> v1::Character {
    let decision = symbol.decision.filter(|_| boundaries);
    let top = symbol.top.into_iter();
    v1::Character {
        text: symbol_text(symbol.symbol, vocabulary),
        logprob: symbol.logprob,
        boundary: decision.map(|decision| decision.boundary),
        boundary_probability: decision.and_then(|decision| decision.probability),
        nxt_logprob: decision.and_then(|decision| decision.end_logprob),
        chunk_depth: decision.map_or(0, |decision| decision.depth.into()),
        top: top.map(|(id, logprob)| alternative(id, logprob, vocabulary)).collect(),
        id: symbol.symbol,
        raw_bytes: vocabulary.raw_bytes(symbol.symbol),
        ends_text: false,
    }
}

/// Returns the message for a generated symbol. An end symbol has no text in a generated text.
fn generated_character(symbol: EmittedSymbol, boundaries: bool, vocabulary: &Vocabulary) -> v1::Character {
    let mut sent = character(symbol, boundaries, vocabulary);
    sent.ends_text = vocabulary.ends_text(sent.id);
    if sent.ends_text {
        sent.text.clear();
    }
    sent.top.iter_mut().filter(|other| vocabulary.ends_text(other.id)).for_each(|other| other.text.clear());
    sent
}

fn alternative(id: u32, logprob: f32, vocabulary: &Vocabulary) -> v1::Alternative {
    v1::Alternative { text: symbol_text(id, vocabulary), logprob, id, raw_bytes: vocabulary.raw_bytes(id) }
}

/// Returns the text of a single symbol, or an escape for a byte that is no text by itself.
pub(super) fn symbol_text(id: u32, vocabulary: &Vocabulary) -> String {
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

    fn pieces(split: PieceSplit, prompt_chars: usize, listed: bool) -> Pieces {
        let details = CharacterDetails { listed, boundaries: listed, alternatives: 0, ids: false };
        let format = ResponseFormat {
            prompt_chars,
            prompt_text_chars: prompt_chars,
            normalized_chars: 0,
            echo: prompt_chars > 0,
            split,
            details,
            stop: Vec::new(),
            seed: 0,
            resumed_chars: 0,
            resumed_text_chars: 0,
        };
        Pieces::new(&format, Arc::new(Vocabulary::byte_level(TextNormaliser::None)))
    }

    fn bytes(text: &str) -> Vec<EmittedSymbol> {
        let decision =
            |byte| Some(SymbolBoundary { boundary: byte == b' ', depth: 0, probability: None, end_logprob: None });
        let symbol = |byte: u8| EmittedSymbol {
            symbol: byte.into(),
            logprob: None,
            decision: decision(byte),
            top: Vec::new(),
            cut: None,
        };
        text.bytes().map(symbol).collect()
    }

    /// Returns the texts of all pieces when the text arrives in runs of `step` bytes and pieces are sent at once.
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
    fn by_default_ready_characters_are_sent() {
        assert_eq!(sent(pieces(PieceSplit::Characters(1), 0, false), "abcde", 2), ["ab", "cd", "e"]);
        assert_eq!(sent(pieces(PieceSplit::Characters(1), 0, false), &"a".repeat(300), 300)[0].len(), MAX_PIECE);
    }

    #[test]
    fn a_piece_waits_for_its_characters() {
        assert_eq!(sent(pieces(PieceSplit::Characters(3), 0, false), "abcdefg", 1), ["abc", "def", "g"]);
    }

    #[test]
    fn segments_are_sent_one_by_one() {
        assert_eq!(sent(pieces(PieceSplit::Segment, 0, false), "ab c  de", 100), ["ab ", "c ", " ", "de"]);
        assert_eq!(sent(pieces(PieceSplit::Segment, 0, false), "ab c  de", 1), ["ab ", "c ", " ", "de"]);
    }

    #[test]
    fn a_segment_without_end_is_sent_in_parts() {
        let text = ["a".repeat(2 * MAX_SEGMENT + 5), " b".into()].concat();
        for step in [1, 1000] {
            let mut pieces = pieces(PieceSplit::Segment, 0, false);
            let mut max_waiting = 0;
            let mut lengths = Vec::new();
            for run in bytes(&text).chunks(step) {
                assert!(!pieces.is_full());
                pieces.push(run.to_vec());
                lengths.extend(std::iter::from_fn(|| pieces.next()).map(|piece| piece.text.len()));
                max_waiting = max_waiting.max(pieces.waiting.len());
            }
            lengths.extend(std::iter::from_fn(|| pieces.rest()).map(|piece| piece.text.len()));
            assert_eq!(lengths, [MAX_SEGMENT, MAX_SEGMENT, 6, 1]);
            assert!(max_waiting < MAX_SEGMENT, "{max_waiting} characters waited");
        }
    }

    #[test]
    fn prompt_and_generated_text_are_never_in_one_piece() {
        assert_eq!(sent(pieces(PieceSplit::Characters(3), 4, false), "abcdefg", 100), ["abcd", "efg"]);
        assert_eq!(sent(pieces(PieceSplit::Characters(3), 4, false), "abcdefg", 1), ["abc", "d", "efg"]);
        assert_eq!(sent(pieces(PieceSplit::Segment, 4, false), "a bcde f", 100), ["a ", "bc", "de ", "f"]);
        let mut pieces = pieces(PieceSplit::Characters(1), 2, true);
        pieces.push(bytes("abc"));
        let kinds: Vec<_> = std::iter::from_fn(|| pieces.next()).map(|piece| (piece.prompt, piece.text)).collect();
        assert_eq!(kinds, [(true, "ab".into()), (false, "c".into())]);
    }

    #[test]
    fn an_incomplete_code_point_is_sent_at_the_end() {
        let mut pieces = pieces(PieceSplit::Characters(1), 0, true);
        pieces.push(bytes("é")[..1].to_vec());
        let piece = pieces.next().unwrap();
        assert_eq!((piece.text.as_str(), piece.characters[0].text.as_str()), ("", "\\xc3"));
        assert_eq!(piece.characters[0].raw_bytes, Some(vec![0xc3]));
        assert_eq!(pieces.rest().unwrap().text, "\u{fffd}");
        assert_eq!(pieces.rest(), None);
    }

    proptest! {
        #[test]
        fn pieces_together_are_the_text(
            text in "[a é€ ]{0,40}", step in 1_usize..9, min in 1_usize..6, prompt in 0_usize..9, segments: bool,
        ) {
            let split = if segments { PieceSplit::Segment } else { PieceSplit::Characters(min) };
            prop_assert_eq!(sent(pieces(split, prompt, false), &text, step).concat(), text);
        }
    }

    #[test]
    fn an_end_symbol_has_text_only_in_prompts() {
        let vocabulary = Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap();
        let symbol = || EmittedSymbol { top: vec![(3, -1.0), (97, -2.0)], ..EmittedSymbol::plain(3) };
        let texts = |sent: v1::Character| {
            let top: Vec<String> = sent.top.into_iter().map(|other| other.text).collect();
            (sent.text, top, sent.ends_text)
        };
        let given = texts(character(symbol(), false, &vocabulary));
        assert_eq!(given, ("\u{3}".into(), vec!["\u{3}".into(), "a".into()], false));
        let generated = texts(generated_character(symbol(), false, &vocabulary));
        assert_eq!(generated, (String::new(), vec![String::new(), "a".into()], true));
    }
}
