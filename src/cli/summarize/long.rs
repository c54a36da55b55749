//! Documents that are longer than the model takes, in parts: each is summarized, and the summaries, joined by line breaks, are the next
//! round's text. The last round has one part.

use super::{
    input::Document,
    summary::{DocumentPart, KeptTokens, OnEvent, PartProgress, Summarizer, Summary, SummaryEvent},
    text_reader::TextReader,
};
use crate::{
    decode::spans::KeptSpan,
    error::{Error, Result},
};

/// Maximum bytes of a document.
pub(super) const MAX_BYTES: usize = 16 << 20;
/// Maximum parts of a round.
const MAX_PARTS: usize = 64;
/// Maximum rounds.
const MAX_ROUNDS: usize = 8;

/// The result of one round.
enum Round {
    /// The text had one part.
    Whole(Box<Summary>),
    Parts(Vec<DocumentPart>),
}

/// Summarizes a document of any length up to [`MAX_BYTES`]. `summarize` reads the beginning of a text that is too long. Fails as it
/// does, and if the document has too many parts or bytes, or if its summaries are not shorter than the text.
pub(super) fn summarize(
    summarize: &mut Summarizer<'_>,
    document: &Document,
    on_event: &mut OnEvent<'_>,
) -> Result<Summary> {
    let mut text = read(document)?;
    let mut parts = Vec::new();
    for number in 1..=MAX_ROUNDS {
        match round(summarize, &text, number, on_event)? {
            Round::Whole(summary) => {
                on_event(SummaryEvent::Text(summary.text()))?;
                return Ok(Summary { parts, ..*summary });
            }
            Round::Parts(new) => {
                let summaries: Vec<&str> = new.iter().map(|part| part.summary.as_str()).collect();
                let joined = summaries.join("\n");
                if joined.len() >= text.len() {
                    let found = format!("{} bytes of summaries in round {number}", joined.len());
                    let bound = format!("fewer than the {} bytes of the text (a lower --max-len helps)", text.len());
                    return Err(Error::bad_option("--long-documents", found, bound));
                }
                parts.extend(new);
                text = joined;
            }
        }
    }
    let found = format!("a text of {} bytes after {MAX_ROUNDS} rounds", text.len());
    Err(Error::bad_option("--long-documents", found, "a text that the model can read (a lower --max-len helps)"))
}

/// Reads a document up to [`MAX_BYTES`].
fn read(document: &Document) -> Result<String> {
    let mut portions = match document {
        Document::File(file) => TextReader::open(file)?,
        Document::Text(text) => TextReader::text(text),
        Document::Ids(_) => {
            return Err(Error::Setting("--ids cannot be used with --long-documents chunk: give --file".into()));
        }
    };
    let mut text = String::new();
    while let Some(portion) = portions.next()? {
        text += &portion;
        if text.len() > MAX_BYTES {
            let unit = "bytes (--long-documents chunk)";
            return Err(Error::LongerThan { field: "--file", limit: MAX_BYTES, unit, why: None });
        }
    }
    Ok(text)
}

fn round(summarize: &mut Summarizer<'_>, text: &str, round: usize, on_event: &mut OnEvent<'_>) -> Result<Round> {
    let mut parts: Vec<DocumentPart> = Vec::new();
    let mut start = 0;
    loop {
        let rest = text.get(start..).unwrap_or_default();
        let mut summary = summarize(&Document::Text(rest.to_owned()), &mut |_| Ok(()))?;
        let read = match summary.document.bytes {
            Some(bytes) => floor_boundary(rest, bytes as usize),
            None if summary.document.cut => {
                return Err(Error::Setting("--long-documents: the server does not tell how much it has read".into()));
            }
            None => rest.len(),
        };
        let is_last = !summary.document.cut || rest[read..].trim().is_empty();
        if is_last && parts.is_empty() {
            // Only white space was cut.
            summary.document.cut = false;
            return Ok(Round::Whole(Box::new(summary)));
        }
        // The first part gives an estimate of their number, before the others are summarized.
        let estimate = if parts.is_empty() { text.len().div_ceil(read.max(1)) } else { parts.len() + 1 };
        if estimate > MAX_PARTS {
            let found = format!("about {estimate} parts of {} tokens", summary.document.tokens);
            return Err(Error::bad_option("--long-documents", found, format!("at most {MAX_PARTS} parts")));
        }
        parts.push(part(round, start, read, summary));
        let progress = PartProgress { round, part: parts.len(), read: start + read, bytes: text.len() };
        on_event(SummaryEvent::Part(progress))?;
        if is_last {
            return Ok(Round::Parts(parts));
        }
        match next_start(rest, read) {
            0 => return Err(Error::Internal("the model read none of its text".into())),
            next => start += next,
        }
    }
}

fn part(round: usize, start: usize, read: usize, summary: Summary) -> DocumentPart {
    let offset = start as u64;
    let shifted = |KeptSpan { start, end, score }| KeptSpan { start: start + offset, end: end + offset, score };
    let pooling = |kept: KeptTokens| KeptTokens { spans: kept.spans.into_iter().map(shifted).collect(), ..kept };
    DocumentPart {
        round,
        start: offset,
        end: offset + read as u64,
        tokens: summary.document.tokens,
        summary: summary.text().to_owned(),
        poolings: summary.poolings.into_iter().map(pooling).collect(),
    }
}

/// Returns where the next part begins, after one that ends at byte `read`: behind the last sentence or line that ends in the last
/// quarter of the part, or behind its last word, or at its end. White space is skipped. 0 only if nothing was read.
fn next_start(text: &str, read: usize) -> usize {
    let end = floor_boundary(text, read);
    let from = floor_boundary(text, end - end / 4);
    let mut sentence = None;
    let mut word = None;
    let mut characters = text.get(from..).unwrap_or_default().char_indices().peekable();
    while let Some((offset, character)) = characters.next() {
        let after = from + offset + character.len_utf8();
        if after > end {
            break;
        }
        let is_before_space = characters.peek().is_none_or(|(_, next)| next.is_whitespace());
        if character == '\n' || (matches!(character, '.' | '!' | '?') && is_before_space) {
            sentence = Some(after);
        }
        if is_before_space {
            word = Some(after);
        }
    }
    let next = sentence.or(word).unwrap_or(end);
    let rest = text.get(next..).unwrap_or_default();
    next + rest.len() - rest.trim_start().len()
}

/// Returns the last character boundary at or before `byte`.
fn floor_boundary(text: &str, byte: usize) -> usize {
    let mut byte = byte.min(text.len());
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    byte
}

#[cfg(test)]
mod tests {
    use super::{
        super::summary::{DocumentUsage, SummaryText, SummaryTimes},
        *,
    };

    /// A model that reads `limit` bytes and writes the first `length` bytes of them.
    fn summary(text: &str, limit: usize, length: usize) -> Summary {
        let read = floor_boundary(text, limit);
        let written = text[..floor_boundary(text, length.min(read))].to_owned();
        let spans = vec![KeptSpan { start: 0, end: 1, score: 0.5 }];
        Summary {
            hypotheses: vec![SummaryText { ids: Vec::new(), score: 0.0, text: written, logprobs: Vec::new() }],
            reason: "end_of_text",
            poolings: vec![KeptTokens { layer: 0, tokens: 1, spans, order: None }],
            document: DocumentUsage {
                tokens: read,
                bytes: Some(read as u64),
                cut: read < text.len(),
                vectors: 1,
                cross_attention_bytes: 1,
                unpooled_cross_attention_bytes: 1,
                kept_share: None,
            },
            summary_tokens: length,
            timing: SummaryTimes { encode_ns: 0, layers: Vec::new(), memory_ns: 0, decode_ns: 0, total_ns: 0 },
            parts: Vec::new(),
        }
    }

    /// Summarizes a text; returns the summary, and all texts that the model was given.
    fn run(text: &str, limit: usize, length: usize) -> (Result<Summary>, Vec<String>) {
        let mut given = Vec::new();
        let mut model = |document: &Document, _: &mut OnEvent<'_>| match document {
            Document::Text(text) => {
                given.push(text.clone());
                Ok(summary(text, limit, length))
            }
            _ => panic!("no text"),
        };
        let mut shown = String::new();
        let mut on_event = |event: SummaryEvent<'_>| {
            if let SummaryEvent::Text(text) = event {
                shown += text;
            }
            Ok(())
        };
        let result = super::summarize(&mut model, &Document::Text(text.to_owned()), &mut on_event);
        if let Ok(summary) = &result {
            assert_eq!(summary.text(), shown);
        }
        (result, given)
    }

    #[test]
    fn a_text_that_fits_has_no_parts() {
        let (summary, given) = run("one. two", 100, 4);
        assert_eq!((summary.unwrap().parts.len(), given.len()), (0, 1));
    }

    #[test]
    fn parts_end_with_sentences_and_cover_the_text() {
        let sentences: Vec<String> = (10..40).map(|index| format!("Sentence {index} ends here.")).collect();
        let text = sentences.join(" ");
        let (summary, _) = run(&text, 120, 12);
        let summary = summary.unwrap();
        let first: Vec<_> = summary.parts.iter().filter(|part| part.round == 1).collect();
        assert!(first.len() > 5);
        let mut covered = 0;
        for part in &first {
            assert!(part.start <= covered && part.end > covered, "{} {} {covered}", part.start, part.end);
            assert!(text[part.start as usize..].starts_with("Sentence"), "{}", part.start);
            assert_eq!(part.summary, text[part.start as usize..][..12]);
            assert_eq!(part.poolings[0].spans[0].start, part.start);
            covered = part.end;
        }
        assert_eq!(covered, text.len() as u64);
        assert!(summary.text().starts_with("Sentence 10"), "{}", summary.text());
    }

    #[test]
    fn summaries_that_are_too_long_are_summarized_in_parts_again() {
        let text = "Some sentence is here. ".repeat(30);
        let (summary, _) = run(&text, 120, 20);
        let summary = summary.unwrap();
        assert_eq!(summary.parts.last().unwrap().round, 2);
        assert_eq!(summary.text(), &text[..20]);
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
            let (result, given) = run(text, limit, length);
            (result.err().unwrap().to_string(), given.len())
        };
        let (message, calls) = refused(&"word ".repeat(1000), 10, 3);
        assert!(message.contains("about 500 parts") && message.contains("at most 64"), "{message}");
        assert_eq!(calls, 1, "before the other parts are summarized");
        let (message, _) = refused(&"word ".repeat(20), 20, 1000);
        assert!(message.contains("bytes of summaries in round 1"), "{message}");
        let long = "a".repeat(MAX_BYTES + 1);
        let (message, calls) = refused(&long, 10, 3);
        assert!(message.contains(&MAX_BYTES.to_string()) && calls == 0, "{message}");
        let ids = super::summarize(&mut |_, _| panic!(), &Document::Ids(vec![1]), &mut |_| Ok(()));
        assert!(ids.err().unwrap().to_string().contains("--ids cannot be used"));
    }
}
