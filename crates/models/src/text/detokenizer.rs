//! Decodes symbols to text one at a time. All pieces together equal [`Vocabulary::decode`]; none splits a code point.

use crate::text::{
    Vocabulary,
    normaliser::{replace_unfinished, take_complete},
    subwords::DecodeState,
};
use std::sync::Arc;
use weir_kernels::error::floor_boundary;

/// Decodes one symbol at a time.
///
/// ```
/// use std::sync::Arc;
/// use weir_models::text::{StreamDetokenizer, TextNormaliser, Vocabulary};
///
/// let bytes = Arc::new(Vocabulary::byte_level(TextNormaliser::None));
/// let ids = bytes.encode("prompt", "né", 100)?;
/// let mut stream = StreamDetokenizer::new(bytes);
/// // The first byte of `é` completes nothing.
/// assert_eq!(ids.iter().map(|&id| stream.push(id).to_owned()).collect::<Vec<_>>(), ["n", "", "é"]);
/// # Ok::<(), weir_kernels::error::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct StreamDetokenizer {
    vocabulary: Arc<Vocabulary>,
    /// Bytes of an unfinished code point: at most three between calls.
    pending: Vec<u8>,
    /// State of the subword decoder, unused for characters and bytes. It has its own unfinished code point.
    subword_state: DecodeState,
    /// Text that the last call completed; kept so that a call allocates nothing.
    piece: String,
    /// True if an unfinished last code point is dropped.
    ends_whole: bool,
}

impl StreamDetokenizer {
    /// Creates the detokenizer of an empty text.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        let mut stream = Self {
            vocabulary,
            pending: Vec::with_capacity(4),
            subword_state: DecodeState::default(),
            piece: String::with_capacity(16),
            ends_whole: false,
        };
        if stream.vocabulary.token_marks().is_some()
            && let Some(tokenizer) = stream.vocabulary.tokenizer()
        {
            stream.subword_state = tokenizer.continuation();
        }
        stream
    }

    /// If `ends_whole`, drops an unfinished last code point instead of replacing it with U+FFFD.
    pub fn ending_whole(self, ends_whole: bool) -> Self {
        Self { ends_whole, ..self }
    }

    /// Returns a detokenizer of an empty text with the same settings.
    pub fn restarted(&self) -> Self {
        Self::new(Arc::clone(&self.vocabulary)).ending_whole(self.ends_whole)
    }

    /// Decodes the next symbol and returns the text that it completes, possibly none. An invalid byte becomes U+FFFD at once.
    pub fn push(&mut self, id: u32) -> &str {
        self.piece.clear();
        if self.vocabulary.is_subword() {
            self.push_subword(id);
            return &self.piece;
        }
        match self.vocabulary.byte_of(id) {
            Some(byte) => {
                self.pending.push(byte);
                self.take_complete();
            }
            // ids without a text do not end a code point
            None if self.vocabulary.is_sparse() => {
                let vocabulary = Arc::clone(&self.vocabulary);
                if let Some(text) = vocabulary.added_text(id) {
                    self.replace_unfinished();
                    self.piece.push_str(text);
                }
            }
            None => {
                self.replace_unfinished();
                self.piece.extend(self.vocabulary.surface(id));
            }
        }
        &self.piece
    }

    /// Decodes the next symbol as [`push`](Self::push) does. With `cut`, the text ends after that many bytes of it.
    pub fn push_symbol(&mut self, id: u32, cut: Option<usize>) -> &str {
        if cut == Some(0) {
            // the text ends before the symbol, so a code point that is unfinished here stays unfinished
            return self.finish();
        }
        self.push(id);
        if let Some(cut) = cut {
            self.piece.truncate(floor_boundary(&self.piece, cut));
            self.pending.clear();
            self.subword_state = DecodeState::default();
        }
        &self.piece
    }

    /// Decodes the next subword. Without a tokenizer, ids have no text.
    fn push_subword(&mut self, id: u32) {
        let Some(tokenizer) = self.vocabulary.tokenizer() else { return };
        let marks = self.vocabulary.token_marks();
        match marks.is_some_and(|marks| marks.start.last() == Some(&id)) {
            // a text begins after its start mark
            true => tokenizer.decode_rest(&mut self.subword_state, &mut self.piece),
            false => tokenizer.decode_next(&mut self.subword_state, id, &mut self.piece),
        }
    }

    /// Ends the text and returns what was held back: U+FFFD for an unfinished code point, unless
    /// [`ending_whole`](Self::ending_whole) is set.
    pub fn finish(&mut self) -> &str {
        self.piece.clear();
        if self.ends_whole {
            self.pending.clear();
            self.subword_state.pending.clear();
        }
        match self.vocabulary.tokenizer() {
            Some(tokenizer) => tokenizer.decode_rest(&mut self.subword_state, &mut self.piece),
            None => self.replace_unfinished(),
        }
        &self.piece
    }

    /// Decodes a separate text with this detokenizer's settings.
    pub fn decode(&self, ids: &[u32]) -> String {
        if !self.ends_whole {
            return self.vocabulary.decode(ids);
        }
        let mut stream = self.restarted();
        let mut text = String::new();
        for &id in ids {
            text.push_str(stream.push(id));
        }
        text.push_str(stream.finish());
        text
    }

    fn take_complete(&mut self) {
        take_complete(&mut self.pending, &mut self.piece, !self.vocabulary.is_sparse());
    }

    fn replace_unfinished(&mut self) {
        replace_unfinished(&mut self.pending, &mut self.piece, !self.vocabulary.is_sparse());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::TextNormaliser;
    use proptest::prelude::*;

    fn stream() -> StreamDetokenizer {
        StreamDetokenizer::new(Arc::new(Vocabulary::byte_level(TextNormaliser::None)))
    }

    #[test]
    fn an_end_byte_ends_the_code_point_before_it() {
        let vocabulary = Arc::new(Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap());
        let mut stream = StreamDetokenizer::new(vocabulary);
        assert_eq!([stream.push(3).to_owned(), stream.push(0xc3).to_owned()], ["\u{3}", ""]);
        assert_eq!(stream.push_symbol(3, Some(0)), "\u{fffd}");
        assert_eq!((stream.push_symbol(3, Some(0)).to_owned(), stream.finish()), (String::new(), ""));
    }

    #[test]
    fn sparse_bytes_drop_what_is_not_utf8() {
        let vocabulary = Arc::new(Vocabulary::sparse_bytes(3, 384, &[], TextNormaliser::None).unwrap());
        // é with an id without meaning inside, a byte that never occurs in UTF-8, and an unfinished code point
        let ids = [0xc3 + 3, 260, 0xa9 + 3, 0xff + 3, 1, u32::from(b'x') + 3, 0, 0xe2 + 3];
        assert_eq!(decode_all(StreamDetokenizer::new(vocabulary.clone()), &ids), "éx");
        assert_eq!(vocabulary.decode(&ids), "éx");
        assert_eq!(
            (vocabulary.len(), vocabulary.printable(383), vocabulary.is_subword()),
            (384, "<extra_id_124>".into(), false)
        );
        assert_eq!(vocabulary.encode("text", "aé", 9).unwrap(), [100, 198, 172]);
        assert!(Vocabulary::sparse_bytes(129, 384, &[], TextNormaliser::None).is_err());
    }

    fn decode_all(mut stream: StreamDetokenizer, ids: &[u32]) -> String {
        let mut text: String = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
        text.push_str(stream.finish());
        assert_eq!(stream.finish(), "");
        text
    }

    #[test]
    fn a_code_point_is_never_split() {
        let mut stream = stream();
        let pieces: Vec<_> = "a€b".bytes().map(|byte| stream.push(byte.into()).to_owned()).collect();
        assert_eq!(pieces, ["a", "", "", "€", "b"]);
        assert_eq!(stream.push(0xe2), "");
        assert_eq!(stream.push(0x28), "\u{fffd}(");
        assert_eq!(stream.push(0xff), "\u{fffd}");
        assert_eq!(stream.push(0xf0), "");
        assert_eq!(stream.finish(), "\u{fffd}");
    }

    #[test]
    fn a_whole_text_lacks_only_unfinished_bytes() {
        let ids: Vec<u32> = "a\u{fffd}é".bytes().map(u32::from).collect();
        let (_, cut) = ids.split_last().unwrap();
        for (ends_whole, end) in [(false, "\u{fffd}"), (true, "")] {
            let stream = stream().ending_whole(ends_whole);
            assert_eq!([cut, &ids].map(|ids| stream.decode(ids)), [format!("a\u{fffd}{end}"), "a\u{fffd}é".into()]);
            assert_eq!(decode_all(stream, cut), format!("a\u{fffd}{end}"));
        }
    }

    #[test]
    fn characters_are_returned_at_once() {
        let vocabulary = Vocabulary::from_symbols(&["é", " "], TextNormaliser::None).unwrap();
        let mut stream = StreamDetokenizer::new(Arc::new(vocabulary));
        assert_eq!((stream.push(0).to_owned(), stream.push(1).to_owned()), ("é".into(), " ".into()));
        assert_eq!(stream.push(2), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn pieces_concatenate_to_the_lossy_text(
            any in prop::collection::vec(any::<u8>(), 0..64), text: String, start in 0_usize..4, end in 0_usize..4,
        ) {
            // a text may begin and end within a code point
            let cut = text.as_bytes().get(start..text.len().saturating_sub(end)).unwrap_or_default();
            for bytes in [&any[..], cut] {
                let ids: Vec<u32> = bytes.iter().map(|&byte| byte.into()).collect();
                prop_assert_eq!(decode_all(stream(), &ids), String::from_utf8_lossy(bytes));
            }
        }

        #[test]
        fn pieces_concatenate_to_the_decoded_text(ids in prop::collection::vec(prop_oneof![0..256_u32, 0..300_u32], 0..64)) {
            prop_assert_eq!(decode_all(stream(), &ids), Vocabulary::byte_level(TextNormaliser::None).decode(&ids));
        }
    }
}
