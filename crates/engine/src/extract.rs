//! Extractive summaries: a document's sentences, and the choice of those to whose tokens the decoder attends most.

use crate::{
    options::{bad, within},
    summary::{ByteRange, KeptSpan},
};
use std::ops::Range;
use unicode_segmentation::UnicodeSegmentation;
use weir_kernels::error::Result;

/// Abbreviations before names and numbers. A full stop after one, or after single letters, ends no sentence.
const ABBREVIATIONS: [&str; 24] = [
    "al", "Capt", "cf", "Col", "Dr", "Eq", "Fig", "Gen", "Gov", "Lt", "Mr", "Mrs", "Ms", "No", "Nos", "Prof", "Rep",
    "Rev", "Sec", "Sen", "Sgt", "St", "Vol", "vs",
];

/// The length of an extract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtractLimits {
    /// Maximum sentences.
    pub sentences: usize,
    /// Maximum tokens of all sentences together.
    pub max_tokens: usize,
}

impl ExtractLimits {
    /// Sentences of an extract if the request limits neither their number nor their tokens.
    const SENTENCES: usize = 3;

    /// Returns the limits of a request, for a model that reads `tokens` tokens at once. Fails if one is out of bounds.
    pub fn new(sentences: Option<usize>, max_tokens: Option<usize>, tokens: usize) -> Result<Self> {
        let default = if max_tokens.is_some() { usize::MAX } else { Self::SENTENCES };
        let limits = Self { sentences: sentences.unwrap_or(default), max_tokens: max_tokens.unwrap_or(tokens) };
        within("options.sentences", limits.sentences, 1..=usize::MAX)?;
        within("options.max_tokens", limits.max_tokens, 1..=tokens)?;
        Ok(limits)
    }
}

/// The sentences of the parts of a document that were read, with the attention to their tokens.
#[derive(Debug, Clone, Default)]
pub struct Extract {
    sentences: Vec<Sentence>,
}

#[derive(Debug, Clone)]
struct Sentence {
    bytes: Range<usize>,
    tokens: usize,
    attention: f32,
}

impl Sentence {
    /// Returns the score by which sentences are chosen: neither the longest sentence nor one striking word wins by itself.
    fn score(&self) -> f32 {
        self.attention / (self.tokens.max(1) as f32).sqrt()
    }
}

impl Extract {
    /// Adds the sentences of a part of a text, with the `attention` to the tokens at these `ranges` of the text.
    pub fn add(&mut self, text: &str, part: Range<usize>, attention: &[f32], ranges: &[ByteRange]) {
        let known = self.sentences.len();
        let sentence = |bytes: Range<usize>| {
            let bytes = part.start + bytes.start..part.start + bytes.end;
            Sentence { bytes, tokens: 0, attention: 0.0 }
        };
        let of_part = text.get(part.clone()).unwrap_or_default();
        self.sentences.extend(sentences(of_part).into_iter().map(sentence));
        let new = &mut self.sentences[known..];
        for (weight, range) in attention.iter().zip(ranges).filter(|(_, range)| range.start < range.end) {
            // a token may begin with the space before a sentence
            let last = usize::try_from(range.end).unwrap_or(usize::MAX).saturating_sub(1);
            let index = new.partition_point(|sentence| sentence.bytes.end <= last);
            if let Some(sentence) = new.get_mut(index).filter(|sentence| sentence.bytes.start <= last) {
                sentence.tokens += 1;
                sentence.attention += weight;
            }
        }
    }

    /// Bytes of memory that its sentences occupy.
    pub fn own_bytes(&self) -> usize {
        self.sentences.capacity() * size_of::<Sentence>()
    }

    /// Returns the sentences with the highest scores that fit the limits, in the order of the text, and the number of their tokens. Fails if
    /// no sentence is short enough.
    pub fn choose(&self, limits: ExtractLimits) -> Result<(Vec<KeptSpan>, usize)> {
        let mut ranked: Vec<&Sentence> = self.sentences.iter().filter(|sentence| sentence.tokens > 0).collect();
        ranked.sort_by(|a, b| b.score().total_cmp(&a.score()));
        let mut chosen: Vec<&Sentence> = Vec::new();
        let mut tokens = 0;
        for sentence in &ranked {
            if chosen.len() < limits.sentences && sentence.tokens <= limits.max_tokens - tokens {
                tokens += sentence.tokens;
                chosen.push(sentence);
            }
        }
        if let (true, Some(shortest)) = (chosen.is_empty(), ranked.iter().map(|sentence| sentence.tokens).min()) {
            let bound = format!("at least {shortest}, the tokens of the shortest sentence");
            return Err(bad("options.max_tokens", limits.max_tokens, bound));
        }
        chosen.sort_by_key(|sentence| sentence.bytes.start);
        let span = |sentence: &Sentence| KeptSpan {
            start: sentence.bytes.start as u64,
            end: sentence.bytes.end as u64,
            score: sentence.score(),
        };
        Ok((chosen.into_iter().map(span).collect(), tokens))
    }
}

/// Returns the text of an extract: its sentences, with a space between two if the text has white space after the first.
pub fn joined(text: &str, spans: &[KeptSpan]) -> String {
    let mut extract = String::new();
    for (index, span) in spans.iter().enumerate() {
        extract.push_str(text.get(span.start as usize..span.end as usize).unwrap_or_default());
        let rest = text.get(span.end as usize..).unwrap_or_default();
        if index + 1 < spans.len() && rest.starts_with(char::is_whitespace) {
            extract.push(' ');
        }
    }
    extract
}

/// Returns the first `count` sentences of a text, joined as an extract is.
pub fn first_sentences(text: &str, count: usize) -> String {
    let span = |bytes: Range<usize>| KeptSpan { start: bytes.start as u64, end: bytes.end as u64, score: 0.0 };
    let spans: Vec<KeptSpan> = sentences(text).into_iter().take(count).map(span).collect();
    joined(text, &spans)
}

/// Returns the bytes of each sentence without the white space around it: the sentences of Unicode's annex 29 within each paragraph,
/// joined after abbreviations and before small letters. Text without letters and digits is part of none.
pub(crate) fn sentences(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for paragraph in paragraphs(text) {
        // a line break within a paragraph ends no sentence
        let flowing = text.get(paragraph.clone()).unwrap_or_default().replace(['\n', '\r'], " ");
        let mut start = 0;
        for (offset, piece) in flowing.split_sentence_bound_indices() {
            let end = offset + piece.len();
            let sentence = &flowing[start..end];
            let goes_on = flowing[end..].starts_with(char::is_lowercase);
            if end < flowing.len() && (goes_on || ends_with_abbreviation(sentence)) {
                continue;
            }
            if sentence.contains(char::is_alphanumeric) {
                let from = paragraph.start + start + sentence.len() - sentence.trim_start().len();
                found.push(from..from + sentence.trim().len());
            }
            start = end;
        }
    }
    found
}

/// Returns the bytes of each paragraph. A blank line ends one, and a heading of Markdown or an item of a list begins one.
fn paragraphs(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut is_new = true;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim();
        let begins = is_new || ["#", "- ", "* ", "• "].iter().any(|mark| content.starts_with(mark));
        match found.last_mut().filter(|_| !begins) {
            Some(paragraph) => paragraph.end = at + line.len(),
            None => found.push(at..at + line.len()),
        }
        at += line.len();
        is_new = content.is_empty() || content.starts_with('#');
    }
    found
}

/// Returns true if a text ends with an abbreviation and its full stop: one of [`ABBREVIATIONS`], or letters with full stops.
fn ends_with_abbreviation(text: &str) -> bool {
    let Some(before) = text.trim_end().strip_suffix('.') else { return false };
    let word = before.rsplit(|c: char| c.is_whitespace() || matches!(c, '(' | '[' | '"' | '\u{201c}')).next();
    word.is_some_and(|word| {
        let is_letter = |part: &str| part.chars().count() == 1 && part.chars().all(char::is_alphabetic);
        ABBREVIATIONS.contains(&word) || word.split('.').all(is_letter)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<&str> {
        sentences(text).into_iter().map(|bytes| &text[bytes]).collect()
    }

    #[test]
    fn sentences_end_at_marks_and_paragraphs_but_not_after_abbreviations() {
        let text = "Mr. J. Smith came, e.g. at noon. \"Why?\" he asked!  See Fig. 3 of v1.2.\n\n# A title\nIts text\nflows on.";
        let expected = [
            "Mr. J. Smith came, e.g. at noon.",
            "\"Why?\" he asked!",
            "See Fig. 3 of v1.2.",
            "# A title",
            "Its text\nflows on.",
        ];
        assert_eq!(split(text), expected);
        assert_eq!(split("- one\n- two\n\n***\n\n"), ["- one", "- two"]);
        assert_eq!(split("日本語の文章。次の文。"), ["日本語の文章。", "次の文。"]);
        assert_eq!(split("no end"), ["no end"]);
        assert_eq!(split(" \n "), Vec::<&str>::new());
    }

    const TEXT: &str = "The mill stands. A flood came and tore the weir. We sold it. The weir is new.";

    /// Returns the extract of [`TEXT`], whose tokens are its words, and the number of its tokens.
    fn chosen(sentences: Option<usize>, max_tokens: Option<usize>) -> Result<(String, usize)> {
        let mut ranges = Vec::new();
        let mut attention = Vec::new();
        let mut at = 0;
        for word in TEXT.split_inclusive(' ') {
            ranges.push(ByteRange { start: at, end: at + word.trim_end().len() as u64 });
            attention.push(if word.starts_with("weir") { 3.0 } else { 0.1 });
            at += word.len() as u64;
        }
        let mut extract = Extract::default();
        // in two parts, of which the first was read further than its sentences go
        extract.add(TEXT, 0..49, &attention, &ranges);
        extract.add(TEXT, 49..TEXT.len(), &attention[10..], &ranges[10..]);
        let (spans, tokens) = extract.choose(ExtractLimits::new(sentences, max_tokens, 100)?)?;
        Ok((joined(TEXT, &spans), tokens))
    }

    #[test]
    fn the_best_sentences_within_the_limits_are_chosen_in_order() {
        let flood = "A flood came and tore the weir.";
        let new = "The weir is new.";
        assert_eq!(chosen(Some(1), None).unwrap(), (new.into(), 4));
        assert_eq!(chosen(Some(2), None).unwrap(), (format!("{flood} {new}"), 11));
        assert_eq!(chosen(None, None).unwrap().1, 14, "three sentences");
        assert_eq!(chosen(None, Some(8)).unwrap(), (format!("The mill stands. {new}"), 7));
        assert_eq!(chosen(None, Some(100)).unwrap(), (TEXT.into(), 17));
        assert_eq!(first_sentences(TEXT, 2), format!("The mill stands. {flood}"));
        let refused = |sentences, max_tokens| chosen(sentences, max_tokens).unwrap_err().to_string();
        let short = "options.max_tokens: expected at least 3, the tokens of the shortest sentence, found 2";
        assert_eq!(refused(None, Some(2)), short);
        assert_eq!(refused(None, Some(101)), "options.max_tokens: expected 1 to 100, found 101");
        assert!(refused(Some(0), None).starts_with("options.sentences: expected 1 to "));
    }

    #[test]
    fn tokens_between_sentences_do_not_count_and_one_may_begin_with_a_space() {
        let mut extract = Extract::default();
        let ranges = [(0, 4), (4, 6), (5, 9), (9, 10), (10, 10)].map(|(start, end)| ByteRange { start, end });
        extract.add("One.  Two.", 0..10, &[1.0; 5], &ranges);
        let counted: Vec<_> = extract.sentences.iter().map(|sentence| (sentence.tokens, sentence.attention)).collect();
        assert_eq!(counted, [(1, 1.0), (2, 2.0)]);
    }
}
