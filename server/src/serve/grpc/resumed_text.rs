//! The text that an earlier stream of a `Generate` has sent, as text or as ids.

use crate::{
    decode::contract::Card,
    error::{Error, Result},
    text::TextCounter,
};
use std::sync::Arc;

/// Marks bytes that are not UTF-8. A text with it does not determine its symbols, if symbols are bytes.
const REPLACEMENT: char = '\u{fffd}';

/// The symbols of a resumed text; empty without one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ResumedRequest {
    pub(super) symbols: Vec<u32>,
    /// Unicode characters of its text that were sent.
    pub(super) text_chars: usize,
}

impl ResumedRequest {
    /// Encodes a text exactly, or takes ids as they are. Fails if a request has both or no seed, if the model's text does not
    /// determine its symbols, and if a symbol is unknown or the text longer than the model's longest sequence. A text never has the
    /// end byte, because no stream sends it as text; among ids it may only be the last one.
    pub(super) fn new(text: &str, ids: Vec<u32>, seed: Option<u64>, card: &Card) -> Result<Self> {
        if text.is_empty() && ids.is_empty() {
            return Ok(Self::default());
        }
        if !(text.is_empty() || ids.is_empty()) {
            return Err(Error::Exclusive { first: "resume_text", second: "resume_ids" });
        }
        if seed.is_none() {
            return Err(Error::bad_option("sampling.seed", "nothing", "the seed of the stream that is resumed"));
        }
        if ids.is_empty() { Self::from_text(text, card) } else { Self::from_ids(ids, card) }
    }

    fn from_text(text: &str, card: &Card) -> Result<Self> {
        let field = "resume_text";
        let vocabulary = &card.vocabulary;
        if !vocabulary.is_spelled_out() {
            return Err(Error::WrongKind {
                call: field,
                model: card.name.clone(),
                wanted: "has a text for each of its symbols",
                found: format!("{}, which needs resume_ids", card.shape),
            });
        }
        let text_chars = text.chars().count();
        check_length(field, if vocabulary.is_bytes() { text.len() } else { text_chars }, card)?;
        if let Some(offset) = text.chars().position(|character| character == REPLACEMENT)
            && vocabulary.is_bytes()
        {
            let found = format!("U+FFFD at character {offset}, which stands for bytes that are not UTF-8");
            return Err(Error::bad_option(field, found, "a text without U+FFFD, or resume_ids"));
        }
        let symbols = vocabulary.encode_exactly(field, text)?;
        if let Some(end) = vocabulary.end_byte()
            && let Some(offset) = symbols.iter().position(|symbol| *symbol == end)
        {
            let bound = format!("a text without the end byte {end}");
            return Err(Error::bad_option(field, format!("one at byte {offset}"), bound));
        }
        Ok(Self { symbols, text_chars })
    }

    fn from_ids(ids: Vec<u32>, card: &Card) -> Result<Self> {
        let field = "resume_ids";
        check_length(field, ids.len(), card)?;
        card.vocabulary.check_ids(field, &ids)?;
        let before_end = ids.split_last().filter(|(last, _)| card.vocabulary.ends_text(**last)).map(|(_, text)| text);
        let text = before_end.unwrap_or(&ids);
        if let Some(end) = card.vocabulary.end_byte()
            && let Some(index) = text.iter().position(|id| *id == end)
        {
            let bound = format!("the end byte {end} only as the last id");
            return Err(Error::bad_option(field, format!("one at index {index}"), bound));
        }
        let mut counter = TextCounter::new(Arc::clone(&card.vocabulary));
        text.iter().for_each(|&id| counter.push(id, true));
        if before_end.is_some() {
            counter.finish();
        }
        Ok(Self { symbols: ids, text_chars: counter.chars })
    }
}

fn check_length(field: &'static str, length: usize, card: &Card) -> Result<()> {
    let limit = card.max_symbols;
    if length <= limit {
        return Ok(());
    }
    let why = card.max_symbols_why;
    Err(Error::TooLong { field, length, limit, unit: "characters", why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{TextMarks, TextNormaliser, Vocabulary};

    fn letters() -> Card {
        Card::for_tests(Vocabulary::from_symbols(&[" ", "a", "b", "é"], TextNormaliser::Text8).unwrap())
    }

    fn bytes() -> Card {
        Card::for_tests(Vocabulary::byte_level(TextNormaliser::None))
    }

    #[test]
    fn texts_are_not_normalised_and_ids_are_taken_as_they_are() {
        let text = |text, card: &Card| ResumedRequest::new(text, Vec::new(), Some(1), card).unwrap();
        assert_eq!(text(" é  a", &letters()), ResumedRequest { symbols: vec![0, 3, 0, 0, 1], text_chars: 5 });
        assert_eq!(text("é", &bytes()), ResumedRequest { symbols: vec![0xc3, 0xa9], text_chars: 1 });
        assert_eq!(ResumedRequest::new("", Vec::new(), None, &bytes()).unwrap(), ResumedRequest::default());
        // the last code point is not complete, so it was not sent
        let ids = ResumedRequest::new("", vec![0x61, 0xc3], Some(1), &bytes()).unwrap();
        assert_eq!(ids, ResumedRequest { symbols: vec![0x61, 0xc3], text_chars: 1 });
        // the end byte is no text, and nothing completes the code point before it
        let ended = Card::for_tests(Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap());
        let ids = ResumedRequest::new("", vec![0x61, 0xc3, 3], Some(1), &ended).unwrap();
        assert_eq!(ids, ResumedRequest { symbols: vec![0x61, 0xc3, 3], text_chars: 2 });
    }

    #[test]
    fn wrong_texts_are_refused_by_name() {
        let marks = TextMarks { start: 254, end: 255 };
        let marked = Card::for_tests(Vocabulary::byte_level_with_marks(marks, TextNormaliser::None).unwrap());
        let ended = Card::for_tests(Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap());
        let long = "a".repeat(101);
        for (text, ids, seed, card, expected) in [
            (
                "a\u{3}",
                vec![],
                Some(1),
                ended.clone(),
                "resume_text: expected a text without the end byte 3, found one at byte 1",
            ),
            (
                "",
                vec![0x61, 3, 0x62, 3],
                Some(1),
                ended.clone(),
                "resume_ids: expected the end byte 3 only as the last id, found one at index 1",
            ),
            (
                "",
                vec![3, 0x61],
                Some(1),
                ended,
                "resume_ids: expected the end byte 3 only as the last id, found one at index 0",
            ),
            ("a", vec![1], Some(1), letters(), "resume_text and resume_ids exclude each other: give one"),
            (
                "a",
                vec![],
                None,
                letters(),
                "sampling.seed: expected the seed of the stream that is resumed, found nothing",
            ),
            (
                "aB",
                vec![],
                Some(1),
                letters(),
                "resume_text: expected symbols of the model's vocabulary, found 'B' at character 1",
            ),
            (&long, vec![], Some(1), bytes(), "resume_text: expected at most 100 characters, found 101"),
            ("", vec![1; 101], Some(1), letters(), "resume_ids: expected at most 100 characters, found 101"),
            (
                "",
                vec![4],
                Some(1),
                letters(),
                "resume_ids: expected symbols of the model's vocabulary, found id 4 (the vocabulary has 4 symbols) at",
            ),
            (
                "a\u{fffd}",
                vec![],
                Some(1),
                bytes(),
                "resume_text: expected a text without U+FFFD, or resume_ids, found U+FFFD",
            ),
            ("a", vec![], Some(1), marked, "resume_text: expected a model that has a text for each of its symbols"),
        ] {
            let message = ResumedRequest::new(text, ids, seed, &card).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
