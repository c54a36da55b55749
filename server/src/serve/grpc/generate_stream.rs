//! The messages of a `Generate` response: `started`, pieces, `finished`.

use super::{convert::ResponseFormat, pieces::Pieces, response_stream::MessageEncoder, totals};
use crate::{
    decode::{contract::Card, options::FinishReason},
    engine::Event,
};
use std::sync::Arc;
use weir_proto::v1::{self, generate_response::Event as Payload};

/// Encodes the events of one generation.
pub(crate) struct GenerateEncoder {
    request_id: String,
    model: String,
    format: ResponseFormat,
    pieces: Pieces,
    started: Option<v1::Started>,
    finished: Option<v1::Finished>,
    /// Unicode characters of the generated text that was encoded, here or by the stream that this one resumes.
    text_chars: u64,
    closed: bool,
}

impl GenerateEncoder {
    pub(super) fn new(format: ResponseFormat, card: &Card, request_id: &str) -> Self {
        Self {
            request_id: request_id.to_owned(),
            model: card.name.clone(),
            pieces: Pieces::new(&format, Arc::clone(&card.vocabulary)),
            text_chars: format.resumed_text_chars as u64,
            format,
            started: None,
            finished: None,
            closed: false,
        }
    }

    /// Continues after these symbols, which an earlier stream has sent.
    pub(super) fn after(mut self, symbols: &[u32]) -> Self {
        self.pieces.skip(symbols);
        self
    }

    /// Returns the characters of the prompt that normalising changed.
    #[cfg(feature = "http")]
    pub(in crate::serve) fn normalized_chars(&self) -> u64 {
        self.format.normalized_chars as u64
    }

    fn started(&mut self, cached_chars: usize) -> v1::Started {
        v1::Started {
            request_id: std::mem::take(&mut self.request_id),
            model: std::mem::take(&mut self.model),
            prompt_chars: self.format.prompt_chars as u64,
            cached_chars: cached_chars as u64,
            prompt_text_chars: Some(self.format.prompt_text_chars as u64),
            normalized_chars: Some(self.format.normalized_chars as u64),
            seed: Some(self.format.seed),
            resumed_chars: self.format.resumed_chars as u64,
        }
    }

    fn matched_stop(&self, reason: &FinishReason) -> Option<String> {
        match reason {
            FinishReason::Stop(index) => self.format.stop.get(*index).cloned(),
            _ => None,
        }
    }
}

impl MessageEncoder for GenerateEncoder {
    type Message = v1::GenerateResponse;

    const LEADING: usize = 1;

    fn push(&mut self, event: Event) {
        match event {
            Event::Started { cached_chars } => self.started = Some(self.started(cached_chars)),
            Event::Coded(_) | Event::Next(_) | Event::Document(_) => {}
            Event::Characters(characters) => self.pieces.push(characters),
            Event::Finished { reason, usage, timing } => {
                tracing::debug!(
                    ?reason,
                    generated_chars = usage.generated_chars,
                    total_ns = timing.total_ns,
                    "finished"
                );
                self.finished = Some(v1::Finished {
                    reason: totals::reason(&reason).into(),
                    matched_stop: self.matched_stop(&reason),
                    seed: self.format.seed,
                    usage: Some(v1::Usage {
                        prompt_text_chars: Some(self.format.prompt_text_chars as u64),
                        normalized_chars: Some(self.format.normalized_chars as u64),
                        ..totals::usage(usage)
                    }),
                    timing: Some(totals::timing(timing)),
                    levels: totals::levels(&usage, &timing),
                });
            }
        }
    }

    fn close(&mut self) {
        self.closed = true;
    }

    fn next(&mut self) -> Option<v1::GenerateResponse> {
        let payload = if let Some(started) = self.started.take() {
            Payload::Started(started)
        } else if let Some(piece) = if self.closed { self.pieces.rest() } else { self.pieces.next() } {
            if !piece.prompt {
                self.text_chars += piece.text.chars().count() as u64;
            }
            Payload::Piece(piece)
        } else {
            let mut finished = self.finished.take()?;
            if let Some(usage) = &mut finished.usage {
                usage.generated_text_chars = Some(self.text_chars);
            }
            Payload::Finished(finished)
        };
        Some(v1::GenerateResponse { event: Some(payload) })
    }

    fn is_full(&self) -> bool {
        self.pieces.is_full()
    }
}
