//! How `Score` answers: chunks, then the summary. Nothing is kept but what the next chunk needs.

use super::{pieces::told, response_stream::MessageEncoder, totals};
use crate::{decode::options::EmittedSymbol, engine::Event, text::Vocabulary};
use std::{collections::VecDeque, f64::consts::LN_2, sync::Arc};
use weir_proto::v1::{self, score_response::Event as Said};

/// Characters of one chunk.
const CHUNK: usize = 512;

/// The messages of one scored text.
pub(in crate::serve) struct Scored {
    vocabulary: Arc<Vocabulary>,
    seed: u64,
    waiting: VecDeque<EmittedSymbol>,
    /// The log-probabilities' sum, and how many they are.
    total: f64,
    scored: u64,
    /// The sum of the log-probabilities of segments' ends, in a model that writes segments.
    ends: Option<f64>,
    summary: Option<v1::ScoreSummary>,
}

impl Scored {
    /// Nothing yet, of a text under a model with this vocabulary, which may write segments.
    pub(in crate::serve) fn new(seed: u64, vocabulary: Arc<Vocabulary>, segments: bool) -> Self {
        let ends = segments.then_some(0.0);
        Self { vocabulary, seed, waiting: VecDeque::new(), total: 0.0, scored: 0, ends, summary: None }
    }
}

impl MessageEncoder for Scored {
    type Message = v1::ScoreResponse;

    const HEAD: usize = 0;

    fn take(&mut self, event: Event) {
        match event {
            Event::Started { .. } | Event::Document(_) => {}
            Event::Characters(characters) => {
                for logprob in characters.iter().filter_map(|character| character.logprob) {
                    self.total += f64::from(logprob);
                    self.scored += 1;
                }
                let marks = characters.iter().filter_map(|character| character.decision);
                let ends = marks.filter_map(|mark| mark.end_logprob).map(f64::from).sum::<f64>();
                self.ends = self.ends.map(|sum| sum + ends);
                self.waiting.extend(characters);
            }
            Event::Finished { usage, timing, .. } => {
                tracing::info!(chars = usage.prompt_chars, total_ns = timing.total_ns, "scored");
                let per_char = |nats: f64| (self.scored > 0).then(|| -nats / LN_2 / self.scored as f64);
                self.summary = Some(v1::ScoreSummary {
                    bits_per_char: per_char(self.total),
                    nxt_bits_per_char: self.ends.and_then(per_char),
                    scored_chars: self.scored,
                    seed: self.seed,
                    usage: Some(totals::usage(usage)),
                    timing: Some(totals::timing(timing)),
                });
            }
        }
    }

    fn close(&mut self) {}

    fn next(&mut self) -> Option<v1::ScoreResponse> {
        let said = if self.waiting.is_empty() {
            Said::Summary(self.summary.take()?)
        } else {
            let next = self.waiting.drain(..self.waiting.len().min(CHUNK));
            let characters = next.map(|character| told(character, true, &self.vocabulary)).collect();
            Said::Chunk(v1::ScoreChunk { characters })
        };
        Some(v1::ScoreResponse { event: Some(said) })
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= CHUNK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decode::{
            options::FinishReason,
            usage::{Timing, Usage},
        },
        text::TextNormaliser,
    };

    fn said(count: usize) -> Vec<Said> {
        let mut scored = Scored::new(7, Arc::new(Vocabulary::byte_level(TextNormaliser::None)), false);
        let logprob = |at| (at > 0).then_some(-0.5_f32.ln().abs());
        let character = |at| EmittedSymbol { symbol: 97, logprob: logprob(at), decision: None, top: Vec::new() };
        scored.take(Event::Characters((0..count).map(character).collect()));
        scored.take(Event::Finished { reason: FinishReason::End, usage: Usage::default(), timing: Timing::default() });
        std::iter::from_fn(|| scored.next()).filter_map(|message| message.event).collect()
    }

    #[test]
    fn chunks_are_bounded_and_the_summary_is_last() {
        let said = said(CHUNK + 1);
        let [Said::Chunk(first), Said::Chunk(second), Said::Summary(summary)] = &said[..] else { panic!("{said:?}") };
        assert_eq!((first.characters.len(), second.characters.len()), (CHUNK, 1));
        assert_eq!((summary.scored_chars, summary.seed), (CHUNK as u64, 7));
        assert!((summary.bits_per_char.unwrap() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn one_character_has_no_score() {
        let said = said(1);
        let Some(Said::Summary(summary)) = said.last() else { panic!("{said:?}") };
        assert_eq!((summary.bits_per_char, summary.scored_chars), (None, 0));
    }
}
