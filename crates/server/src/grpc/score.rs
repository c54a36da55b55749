//! The messages of a `Score` response: chunks of characters, then the summary. The encoder keeps only the next chunk.

use crate::{
    grpc::{
        convert,
        response::{MessageEncoder, character, ends_segment, is_cut},
    },
    middleware::limits::check_unary,
};
use std::{collections::VecDeque, f64::consts::LN_2, sync::Arc};
use weir_engine::{
    Event,
    options::{EmittedSymbol, Score},
};
use weir_kernels::error::Result;
use weir_models::{
    contract::{Card, levels},
    text::{TextCounter, Vocabulary},
    usage::MAX_LEVELS,
};
use weir_proto::v1::{self, score_response::Event as Payload};

/// Maximum characters of a chunk, in which each alternative counts like one.
const CHUNK: usize = 512;

/// Encodes the events of one scored text.
pub(crate) struct ScoreEncoder {
    vocabulary: Arc<Vocabulary>,
    seed: u64,
    /// Maximum characters of a chunk.
    max_chars: usize,
    waiting: VecDeque<EmittedSymbol>,
    /// Sum of the characters' log-probabilities, without the end of the text.
    logprob_sum: f64,
    /// Bits of the text and its end, renormalised, if they are requested.
    renormalized_bits: Option<f64>,
    /// True if the text is scored in windows.
    windowed: bool,
    /// Characters with a log-probability.
    scored: u64,
    /// Size of all text, and of the text of scored characters.
    text: TextCounter,
    scored_text: TextCounter,
    /// Sum of the log-probabilities of segment ends, for a model that writes segments.
    end_logprob_sum: Option<f64>,
    summary: Option<v1::ScoreSummary>,
    /// Unicode characters of the text, as sent, that normalising replaced or dropped.
    normalized_chars: usize,
}

impl ScoreEncoder {
    /// Creates an encoder for a text in which normalising changed `normalized_chars` characters.
    pub(super) fn new(job: &Score, seed: u64, card: &Card, normalized_chars: usize) -> Self {
        let text = TextCounter::new(Arc::clone(&card.vocabulary));
        let specials = card.vocabulary.specials();
        Self {
            vocabulary: Arc::clone(&card.vocabulary),
            seed,
            max_chars: (CHUNK / job.top.saturating_add(1)).max(1),
            waiting: VecDeque::new(),
            logprob_sum: 0.0,
            renormalized_bits: specials.filter(|_| job.exact).map(|_| 0.0),
            windowed: job.windows.is_some(),
            scored: 0,
            scored_text: text.clone(),
            text,
            // Such a model scores segment ends.
            end_logprob_sum: specials.filter(|_| card.pooled).map(|_| 0.0),
            summary: None,
            normalized_chars,
        }
    }
}

impl MessageEncoder for ScoreEncoder {
    type Message = v1::ScoreResponse;

    const LEADING: usize = 0;

    fn push(&mut self, event: Event) {
        match event {
            Event::Started { .. } | Event::Coding(_) | Event::Coded(_) | Event::Next(_) | Event::Document(_) => {}
            Event::Characters(characters) => {
                let end = self.vocabulary.specials().map(|specials| specials.end);
                for character in &characters {
                    let exact = character.exact.as_deref();
                    let renormalized = exact.and_then(|exact| exact.renormalized).unwrap_or_default();
                    self.renormalized_bits = self.renormalized_bits.map(|bits| bits - renormalized / LN_2);
                    if Some(character.symbol) == end {
                        continue;
                    }
                    if let Some(logprob) = character.logprob {
                        self.logprob_sum += exact.map_or(logprob.into(), |exact| exact.logprob);
                        self.scored += 1;
                    }
                    self.text.push(character.symbol, true);
                    self.scored_text.push(character.symbol, character.logprob.is_some());
                }
                let ends = characters.iter().filter_map(|character| character.decision?.end_logprob);
                let ends = ends.map(f64::from).sum::<f64>();
                self.end_logprob_sum = self.end_logprob_sum.map(|sum| sum + ends);
                self.waiting.extend(characters);
            }
            Event::Finished { usage, timing, .. } => {
                tracing::debug!(chars = usage.prompt_chars, total_ns = timing.total_ns, "scored");
                self.text.finish();
                self.scored_text.finish();
                let units = match self.vocabulary.is_subword() {
                    true => self.scored_text.chars,
                    false => usize::try_from(self.scored).unwrap_or(usize::MAX),
                };
                let per = |nats: f64, count: usize| (self.scored > 0 && count > 0).then(|| -nats / LN_2 / count as f64);
                let per_char = |nats: f64| per(nats, units);
                let prompt_text_chars = Some(self.text.chars as u64);
                let normalized_chars = Some(self.normalized_chars as u64);
                self.summary = Some(v1::ScoreSummary {
                    bits_per_char: per_char(self.logprob_sum),
                    nxt_bits_per_char: self.end_logprob_sum.and_then(per_char),
                    scored_chars: self.scored,
                    seed: self.seed,
                    bits_per_byte: per(self.logprob_sum, self.scored_text.bytes),
                    usage: Some(v1::Usage { prompt_text_chars, normalized_chars, ..convert::usage(usage) }),
                    timing: Some(convert::timing(timing)),
                    levels: convert::levels(&usage, &timing),
                    renormalized_bits: self.renormalized_bits,
                    window_shortening_factor: usage.window_shortening_factor().filter(|_| self.windowed),
                });
            }
        }
    }

    fn close(&mut self) {}

    fn next(&mut self) -> Option<v1::ScoreResponse> {
        let payload = if self.waiting.is_empty() {
            Payload::Summary(self.summary.take()?)
        } else {
            let count = self.waiting.len().min(self.max_chars);
            let exact = self.waiting.iter().take(count).filter_map(|symbol| symbol.exact.as_deref());
            let exact_logprobs = exact.map(|exact| exact.logprob).collect();
            let next = self.waiting.drain(..count);
            let characters = next.map(|symbol| character(symbol, true, &self.vocabulary)).collect();
            Payload::Chunk(v1::ScoreChunk { characters, exact_logprobs })
        };
        Some(v1::ScoreResponse { event: Some(payload) })
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= self.max_chars
    }
}

/// Bytes of the message of a segment of one symbol without its text: the headers of the message and its text, four offsets of
/// `offset` bytes, a probability or an entropy, and a depth.
fn segment_bytes(offset: usize) -> usize {
    const HEADERS: usize = 2 + 2;
    const PROBABILITY_AND_DEPTH: usize = 5 + 2;
    HEADERS + 4 * (1 + offset) + PROBABILITY_AND_DEPTH
}

/// Returns the maximum bytes of a response with the segments of a text of `symbols` symbols and `bytes` bytes, for each symbol: even if
/// each is a segment.
fn bytes_per_symbol(symbols: usize, bytes: usize, card: &Card) -> usize {
    // the bytes of code points that are cut are shown as U+FFFD
    let shown = if card.vocabulary.is_bytes() { 1 + char::REPLACEMENT_CHARACTER.len_utf8() } else { 2 };
    let text = bytes.saturating_mul(shown).div_ceil(symbols.max(1));
    let levels = if card.begins_chunks { MAX_LEVELS } else { 0 };
    text.saturating_add(segment_bytes(prost::length_delimiter_len(bytes)) + levels)
}

/// Checks that a response with the segments of a text is not too long.
pub(super) fn check_segments(symbols: usize, bytes: usize, card: &Card) -> Result<()> {
    const WHY: &str = "so that the response has at most 4 MiB; Score streams the boundaries of longer texts";
    check_unary("text", symbols, "symbols", 0, bytes_per_symbol(symbols, bytes, card), WHY)
}

/// Returns the segments of a text, in order. Together they cover all of it.
pub(super) fn segments(characters: &[EmittedSymbol], vocabulary: &Vocabulary) -> Vec<v1::Segment> {
    let mut all = Vec::new();
    let mut byte = 0;
    let mut char = 0;
    let mut last_end = true;
    for run in characters.chunk_by(|before, after| !is_cut(before, after)) {
        let ids: Vec<_> = run.iter().map(|character| character.symbol).collect();
        let text = vocabulary.decode(&ids);
        let chars = vocabulary.count_without_marks(&ids);
        // Byte symbols count themselves: the text may contain replacement characters.
        let bytes = if vocabulary.is_bytes() { chars } else { text.len() };
        let begins = run.first().and_then(|first| first.decision).filter(|first| first.begins_segment());
        let decided = begins.or_else(|| run.last()?.decision);
        last_end = run.last().is_some_and(ends_segment);
        let segment = v1::Segment {
            text,
            byte_start: byte,
            byte_end: byte + bytes as u64,
            char_start: char,
            char_end: char + chars as u64,
            boundary_probability: decided.and_then(|decision| decision.probability),
            boundary_entropy: decided.and_then(|decision| decision.entropy),
            open: false,
            chunk_depth: begins.map_or(0, |first| first.depth.into()),
        };
        byte = segment.byte_end;
        char = segment.char_end;
        all.push(segment);
    }
    // only the last segment of a text may go on after it
    all.last_mut().into_iter().for_each(|last: &mut v1::Segment| last.open = !last_end);
    all
}

/// Returns the boundaries of each level, if there are several.
pub(super) fn boundary_levels(characters: &[EmittedSymbol]) -> Vec<v1::BoundaryLevel> {
    let levels = levels(characters.iter().map(|character| character.decision.map_or(0, |decision| decision.depth)));
    let level = |level: Vec<u8>| v1::BoundaryLevel { boundaries: level.into_iter().map(u32::from).collect() };
    if levels.len() > 1 { levels.into_iter().map(level).collect() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use weir_engine::options::FinishReason;
    use weir_models::{
        contract::SymbolBoundary,
        text::TextNormaliser,
        usage::{Timing, Usage},
    };

    fn messages(count: usize) -> Vec<Payload> {
        let card = Card::for_tests(Vocabulary::byte_level(TextNormaliser::None));
        let mut encoder = ScoreEncoder::new(&Score::default(), 7, &card, 0);
        let logprob = |index| (index > 0).then_some(-0.5_f32.ln().abs());
        let character = |index| EmittedSymbol { logprob: logprob(index), ..EmittedSymbol::plain(97) };
        encoder.push(Event::Characters((0..count).map(character).collect()));
        encoder.push(Event::Finished { reason: FinishReason::End, usage: Usage::default(), timing: Timing::default() });
        std::iter::from_fn(|| encoder.next()).filter_map(|message| message.event).collect()
    }

    #[test]
    fn chunks_are_bounded_and_the_summary_is_last() {
        let messages = messages(CHUNK + 1);
        let [Payload::Chunk(first), Payload::Chunk(second), Payload::Summary(summary)] = &messages[..] else {
            panic!("{messages:?}")
        };
        assert_eq!((first.characters.len(), second.characters.len()), (CHUNK, 1));
        assert_eq!((summary.scored_chars, summary.seed), (CHUNK as u64, 7));
        assert!((summary.bits_per_char.unwrap() - 1.0).abs() < 1e-6);
        assert_eq!(summary.bits_per_byte, summary.bits_per_char);
        assert_eq!(summary.usage.unwrap().prompt_text_chars, Some(CHUNK as u64 + 1));
    }

    #[test]
    fn one_character_has_no_score() {
        let messages = messages(1);
        let Some(Payload::Summary(summary)) = messages.last() else { panic!("{messages:?}") };
        assert_eq!((summary.bits_per_char, summary.scored_chars), (None, 0));
    }

    /// Returns the symbols, with a boundary after each index in `closing`.
    fn emitted(symbols: &[u32], closing: &[usize]) -> Vec<EmittedSymbol> {
        let decision = |index| {
            Some(SymbolBoundary {
                boundary: closing.contains(&index),
                probability: Some(index as f32 / 10.0),
                ..SymbolBoundary::default()
            })
        };
        let character = |(index, &symbol)| EmittedSymbol { decision: decision(index), ..EmittedSymbol::plain(symbol) };
        symbols.iter().enumerate().map(character).collect()
    }

    #[test]
    fn responses_are_as_long_as_their_bound_at_most() {
        let letters: Vec<String> = ('a'..='z').map(String::from).collect();
        let texts = [
            (Vocabulary::byte_level(TextNormaliser::None), "é".repeat(10_000)),
            (Vocabulary::byte_level(TextNormaliser::None), "a".repeat(20_000)),
            (Vocabulary::from_symbols(&letters, TextNormaliser::None).unwrap(), "z".repeat(20_000)),
        ];
        for (vocabulary, text) in texts {
            let symbols = vocabulary.encode("text", &text, 20_000).unwrap();
            let every: Vec<usize> = (0..symbols.len()).collect();
            let segments = segments(&emitted(&symbols, &every), &vocabulary);
            let bytes = v1::SegmentResponse { text: text.clone(), segments, ..Default::default() }.encoded_len();
            let bound = symbols.len() * bytes_per_symbol(symbols.len(), text.len(), &Card::for_tests(vocabulary));
            assert!(bytes <= bound && bytes > bound / 2, "{bytes}, {bound}");
        }
    }

    #[test]
    fn bytes_may_be_cut_within_a_code_point_and_end_with_a_boundary() {
        let vocabulary = Vocabulary::byte_level(TextNormaliser::None);
        let segments = segments(&emitted(&[0xc3, 0xa9, 0x61], &[0, 2]), &vocabulary);
        assert_eq!(segments.iter().map(|segment| segment.open).collect::<Vec<_>>(), [false, false]);
        assert_eq!((segments[0].text.as_str(), segments[0].byte_end), ("\u{fffd}", 1));
        assert_eq!((segments[1].byte_start, segments[1].byte_end), (1, 3));
    }
}
