//! How `Generate` answers: `started`, pieces, `finished`.

use super::{convert::Plan, pieces::Pieces, response_stream::MessageEncoder, totals};
use crate::{
    decode::{contract::Card, options::FinishReason},
    engine::Event,
};
use std::sync::Arc;
use weir_proto::v1::{self, generate_response::Event as Said};

/// The messages of one generation.
pub(in crate::serve) struct Generated {
    request_id: String,
    model: String,
    plan: Plan,
    pieces: Pieces,
    started: Option<v1::Started>,
    finished: Option<v1::Finished>,
    closed: bool,
}

impl Generated {
    /// Nothing yet.
    pub(in crate::serve) fn new(plan: Plan, card: &Card, request_id: &str) -> Self {
        let pieces = Pieces::new(&plan, Arc::clone(&card.vocabulary));
        let (request_id, model) = (request_id.to_owned(), card.name.clone());
        Self { request_id, model, plan, pieces, started: None, finished: None, closed: false }
    }

    fn started(&mut self, cached_chars: usize) -> v1::Started {
        v1::Started {
            request_id: std::mem::take(&mut self.request_id),
            model: std::mem::take(&mut self.model),
            prompt_chars: self.plan.prompt_chars as u64,
            cached_chars: cached_chars as u64,
        }
    }

    fn matched(&self, reason: &FinishReason) -> Option<String> {
        match reason {
            FinishReason::Stop(index) => self.plan.stop.get(*index).cloned(),
            _ => None,
        }
    }
}

impl MessageEncoder for Generated {
    type Message = v1::GenerateResponse;

    const HEAD: usize = 1;

    fn take(&mut self, event: Event) {
        match event {
            Event::Started { cached_chars } => self.started = Some(self.started(cached_chars)),
            Event::Document(_) => {}
            Event::Characters(characters) => self.pieces.push(characters),
            Event::Finished { reason, usage, timing } => {
                tracing::info!(
                    ?reason,
                    generated_chars = usage.generated_chars,
                    total_ns = timing.total_ns,
                    "finished"
                );
                self.finished = Some(v1::Finished {
                    reason: totals::reason(&reason).into(),
                    matched_stop: self.matched(&reason),
                    seed: self.plan.seed,
                    usage: Some(totals::usage(usage)),
                    timing: Some(totals::timing(timing)),
                });
            }
        }
    }

    fn close(&mut self) {
        self.closed = true;
    }

    fn next(&mut self) -> Option<v1::GenerateResponse> {
        let said = if let Some(started) = self.started.take() {
            Said::Started(started)
        } else if let Some(piece) = if self.closed { self.pieces.rest() } else { self.pieces.next() } {
            Said::Piece(piece)
        } else {
            Said::Finished(self.finished.take()?)
        };
        Some(v1::GenerateResponse { event: Some(said) })
    }

    fn is_full(&self) -> bool {
        self.pieces.is_full()
    }
}
