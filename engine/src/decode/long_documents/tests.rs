//! Parts, rounds and bounds, with a model that reads bytes.

use super::*;
use crate::{
    decode::document::{GenerationDefaults, SpecialIds},
    text::TextNormaliser,
};

const NAMES: FieldNames = FieldNames { text: "text", long_documents: "long" };

/// Limits of a model that reads `bytes` bytes.
fn limits(bytes: usize) -> DocumentLimits {
    DocumentLimits {
        tokens: bytes + 1,
        targets: 10,
        padded: false,
        block: 8,
        poolings: Vec::new(),
        marks: SpecialIds { start: 0, pad: 1, end: 0, unknown: 2 },
        generation: GenerationDefaults::fairseq(9),
    }
}

/// Summarizes a text by the first `length` bytes of each part. Returns the summary, the parts with their texts, and the number of
/// summaries.
fn run(text: &str, limit: usize, length: usize) -> (Result<String>, Vec<(TextPart, String)>) {
    let vocabulary = Arc::new(Vocabulary::byte_level(TextNormaliser::None));
    let mut document = LongDocument::new(text.to_owned(), NAMES);
    let mut parts = Vec::new();
    loop {
        let part = match document.next_part(&vocabulary, &limits(limit)) {
            Ok(part) => part,
            Err(error) => return (Err(error), parts),
        };
        let read = document.text[part.start as usize..part.end as usize].to_owned();
        let ids: Vec<u32> = read.bytes().map(u32::from).chain([0]).collect();
        assert_eq!((&part.ids[..ids.len() - 1], part.ids.last()), (&ids[..ids.len() - 1], Some(&0)));
        assert_eq!(part.byte_ranges[0], ByteRange { start: part.start, end: part.byte_ranges[0].end });
        let summary = read[..floor_boundary(&read, length)].to_owned();
        if part.is_whole() {
            return (Ok(summary), parts);
        }
        let pushed = document.push_summary(&part, &summary);
        parts.push((part, summary));
        if let Err(error) = pushed {
            return (Err(error), parts);
        }
    }
}

#[test]
fn choices_have_names() {
    for value in LongDocuments::ALL {
        assert_eq!(LongDocuments::parse(value.name()), Some(value));
        assert_eq!(serde_json::to_value(value).unwrap(), value.name());
    }
    assert_eq!(LongDocuments::parse("all"), None);
}

#[test]
fn a_text_that_fits_has_no_parts() {
    for text in ["one. two", "one. two \n\n   "] {
        let (summary, parts) = run(text, 9, 4);
        assert_eq!((summary.unwrap().as_str(), parts.len()), ("one.", 0), "{text:?}");
    }
}

#[test]
fn parts_end_with_sentences_and_cover_the_text() {
    let sentences: Vec<String> = (10..40).map(|index| format!("Sentence {index} ends here.")).collect();
    let text = sentences.join(" ");
    let (summary, parts) = run(&text, 120, 12);
    let first: Vec<_> = parts.iter().filter(|(part, _)| part.round == 1).collect();
    assert!(first.len() > 5);
    let mut covered = 0;
    for (index, (part, summary)) in first.iter().enumerate() {
        assert_eq!((part.number, part.round_bytes), (index + 1, text.len() as u64));
        assert!(part.start <= covered && part.end > covered, "{} {} {covered}", part.start, part.end);
        assert!(text[part.start as usize..].starts_with("Sentence"), "{}", part.start);
        assert_eq!(summary, &text[part.start as usize..][..12]);
        covered = part.end;
    }
    assert_eq!(covered, text.len() as u64);
    assert_eq!(summary.unwrap(), "Sentence 10 ");
}

#[test]
fn summaries_that_are_too_long_are_summarized_in_parts_again() {
    let text = "Some sentence is here. ".repeat(30);
    let (summary, parts) = run(&text, 120, 20);
    let (last, _) = parts.last().unwrap();
    assert_eq!((last.round, summary.unwrap().as_str()), (2, &text[..20]));
    let round: Vec<&str> =
        parts.iter().filter(|(part, _)| part.round == 1).map(|(_, summary)| summary.as_str()).collect();
    assert_eq!(last.round_bytes, round.join("\n").len() as u64);
}

#[test]
fn boundaries_prefer_sentences_then_words() {
    let text = "aaaa bbbb cccc. dddd eeee";
    assert_eq!(next_start(text, 18), 16, "behind the sentence");
    assert_eq!(next_start("aaaa bbbb cccc dddd", 16), 15, "behind the word");
    assert_eq!(next_start("aaaaaaaaaaaa", 8), 8);
    assert_eq!(next_start("ééééééé", 5), 4, "between characters");
    assert_eq!(next_start("abc", 0), 0);
}

#[test]
fn work_is_bounded() {
    let refused = |text: &str, limit, length| {
        let (result, parts) = run(text, limit, length);
        (result.unwrap_err().to_string(), parts.len())
    };
    let (message, summarized) = refused(&"word ".repeat(1000), 10, 3);
    assert!(message.contains("long: expected at most 64 parts, found about 500 parts of 11 tokens"), "{message}");
    assert_eq!(summarized, 0, "before any part is summarized");
    // later parts overlap more than the first one, so the estimate is too low
    let (message, summarized) = refused(&["b".repeat(40), "aaaaaaaaaaaaaaa. ".repeat(72)].concat(), 20, 1);
    assert!(message.contains("about 65 parts"), "{message}");
    assert_eq!(summarized, 64);
    let (message, _) = refused(&"word ".repeat(20), 20, 1000);
    assert!(
        message.contains("bytes of summaries in round 1") && message.contains("shorter summaries help"),
        "{message}"
    );
    let (message, _) = refused("", 20, 1);
    assert_eq!(message, "text: expected text of at least one token, found none");
    let (message, _) = refused(&"word ".repeat(20), 20, 0);
    assert!(message.contains("no text in the summaries of round 1"), "{message}");
}

#[test]
fn rounds_are_bounded() {
    let vocabulary = Arc::new(Vocabulary::byte_level(TextNormaliser::None));
    let mut document = LongDocument::new("a".repeat(100), NAMES);
    // Each round's text is two bytes shorter than the last, so that it always has two parts.
    let mut push = || {
        let part = document.next_part(&vocabulary, &limits(50))?;
        let long = part.round_bytes as usize - 4;
        document.push_summary(&part, &"x".repeat(if part.number == 1 { long } else { 1 }))
    };
    (1..2 * MAX_ROUNDS).for_each(|_| push().unwrap());
    let message = push().unwrap_err().to_string();
    assert!(message.contains("found a text of 84 bytes after 8 rounds"), "{message}");
}

/// A part that ends within a character leaves the whole character to the next one.
#[test]
fn no_byte_of_a_text_without_spaces_is_lost() {
    let text = "日本語の文章です。".repeat(40);
    for limit in [100, 101, 102, 128] {
        let (summary, parts) = run(&text, limit, 9);
        summary.unwrap();
        let mut covered = 0;
        for (part, _) in parts.iter().filter(|(part, _)| part.round == 1) {
            assert!(part.start <= covered && part.end > covered, "{limit}: {} {} {covered}", part.start, part.end);
            assert_eq!(part.ids.len() as u64 - 1, part.end - part.start, "all bytes and no others are read");
            covered = part.end;
        }
        assert_eq!(covered, text.len() as u64);
    }
}
