//! `/v1/summaries`: one call of `Summarize`, gathered or streamed as events of the server. No other server has such a path: names
//! are those of our own API.

use super::{Door, refusal::Refusal, request, seed::Seed};
use crate::{error::Error, serve::in_process::Caller};
use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Request, State},
    http::header,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio_stream::Stream;
use tonic::{Status, Streaming};
use weir_proto::v1::{
    self, SummarizeRequest, SummarizeResponse, summarization_client::SummarizationClient, summarize_request::Part,
    summarize_response::Event,
};

/// Bytes of a document that one message within the process has.
const PIECE: usize = 64 << 10;

/// The fields of a body.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
struct SummaryRequest {
    model: Option<String>,
    document: Option<String>,
    document_id: Option<String>,
    beam_size: Option<u32>,
    length_penalty: Option<f32>,
    min_tokens: Option<u32>,
    max_tokens: Option<u32>,
    no_repeat_ngram: Option<u32>,
    hypotheses: Option<u32>,
    cut: Option<bool>,
    hard_topk: Option<bool>,
    priority: Option<i32>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<Seed>,
    stream: Option<bool>,
}

impl SummaryRequest {
    /// The messages of the call.
    fn parts(self) -> Vec<SummarizeRequest> {
        let sampling = v1::Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed.map(|Seed(seed)| seed),
            logit_bias: Vec::new(),
        };
        let options = v1::SummarizeOptions {
            model: self.model,
            beam_size: self.beam_size,
            length_penalty: self.length_penalty,
            min_tokens: self.min_tokens,
            max_tokens: self.max_tokens,
            no_repeat_ngram: self.no_repeat_ngram,
            hypotheses: self.hypotheses,
            // drawn only if something is said of it
            sampling: (sampling != v1::Sampling::default()).then_some(sampling),
            cut: self.cut,
            document_id: self.document_id,
            priority: self.priority,
            hard_topk: self.hard_topk,
        };
        let chunk = |text: &str| Part::Chunk(v1::DocumentChunk { text: text.to_owned() });
        let document = self.document.unwrap_or_default();
        let parts = std::iter::once(Part::Options(options)).chain(pieces(&document).map(chunk));
        parts.map(|part| SummarizeRequest { part: Some(part) }).collect()
    }
}

/// A text in pieces that end where a code point does.
fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let mut end = text.len().min(PIECE);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, rest) = text.split_at(end);
        text = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Takes a request.
pub(super) async fn summarize(State(door): State<Door>, caller: Caller, request: Request) -> Response {
    match answered(door, &caller, request).await {
        Ok(response) => caller.named(response),
        Err(refusal) => caller.named(refusal.into_response()),
    }
}

async fn answered(door: Door, caller: &Caller, request: Request) -> Result<Response, Refusal> {
    let body = door.read(request).await?;
    let asked: SummaryRequest = request::read(&body, "the body")?;
    drop(body);
    if asked.document.is_some() && asked.document_id.is_some() {
        return Err(Error::Exclusive { first: "document", second: "document_id" }.into());
    }
    let streams = asked.stream.unwrap_or(false);
    let mut client = SummarizationClient::new(door.services.clone()).max_decoding_message_size(usize::MAX);
    let parts = tokio_stream::iter(asked.parts());
    let answer = client.summarize(caller.call(parts)).await?.into_inner();
    if !streams {
        return Ok(Json(gathered(answer).await?).into_response());
    }
    let events = Body::from_stream(Events { answer, waiting: VecDeque::new(), over: false });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, events).into_response())
}

/// All of it, once it is complete.
async fn gathered(mut answer: Streaming<SummarizeResponse>) -> Result<Value, Refusal> {
    let (mut whole, mut text, mut selected) = (Map::new(), String::new(), Vec::new());
    while let Some(message) = answer.message().await? {
        match message.event {
            Some(Event::Started(started)) => {
                whole.insert("object".into(), "summary".into());
                whole.insert("model".into(), started.model.into());
            }
            Some(Event::Piece(piece)) => text.push_str(&piece.text),
            Some(Event::Selected(kept)) => selected.push(self::selected(&kept)),
            Some(Event::Finished(finished)) => {
                whole.insert("text".into(), std::mem::take(&mut text).into());
                whole.insert("selected".into(), std::mem::take(&mut selected).into());
                whole.extend(self::finished(&finished));
            }
            Some(Event::Progress(_)) | None => {}
        }
    }
    Ok(whole.into())
}

/// What one message tells, under its name.
fn told(event: &Event) -> Value {
    match event {
        Event::Started(v1::SummaryStarted { request_id, model, cached_tokens }) => {
            json!({ "started": { "request_id": request_id, "model": model, "cached_tokens": cached_tokens } })
        }
        Event::Progress(v1::Progress { stage, layer, tokens_read, blocks_encoded, blocks_total }) => {
            json!({ "progress": {
            "stage": stage,
            "layer": layer,
            "tokens_read": tokens_read,
            "blocks_encoded": blocks_encoded,
            "blocks_total": blocks_total,
        } })
        }
        Event::Selected(kept) => json!({ "selected": selected(kept) }),
        Event::Piece(v1::SummaryPiece { text }) => json!({ "piece": { "text": text } }),
        Event::Finished(end) => json!({ "finished": finished(end) }),
    }
}

fn selected(v1::Selected { layer, spans, tokens }: &v1::Selected) -> Value {
    let span = |v1::Span { byte_start, byte_end, score }: &v1::Span| json!({ "byte_start": byte_start, "byte_end": byte_end, "score": score });
    json!({ "layer": layer, "tokens": tokens, "spans": spans.iter().map(span).collect::<Vec<_>>() })
}

fn finished(finished: &v1::SummaryFinished) -> Map<String, Value> {
    let reason = match finished.reason() {
        v1::SummaryFinishReason::EndOfText => "end_of_text",
        _ => "max_tokens",
    };
    let usage = finished.usage.unwrap_or_default();
    let timing = finished.timing.clone().unwrap_or_default();
    let hypothesis = |one: &v1::Hypothesis| json!({ "text": one.text, "ids": one.ids, "score": one.score, "logprobs": one.logprobs });
    let layer = |one: &v1::EncoderLayer| json!({ "length": one.length, "ns": one.ns });
    let mut told = Map::new();
    told.insert("reason".into(), reason.into());
    told.insert("document_id".into(), finished.document_id.clone().into());
    told.insert("hypotheses".into(), finished.hypotheses.iter().map(hypothesis).collect());
    let counts = json!({
        "document_tokens": usage.document_tokens,
        "cached_tokens": usage.cached_tokens,
        "cut": usage.cut,
        "summary_tokens": usage.summary_tokens,
        "vectors": usage.vectors,
        "cross_attention_bytes": usage.cross_attention_bytes,
        "unpooled_cross_attention_bytes": usage.unpooled_cross_attention_bytes,
    });
    told.insert("usage".into(), counts);
    let times = json!({
        "queue_ns": timing.queue_ns,
        "upload_ns": timing.upload_ns,
        "encode_rest_ns": timing.encode_rest_ns,
        "blocks_at_end": timing.blocks_at_end,
        "blocks": timing.blocks,
        "layers": timing.layers.iter().map(layer).collect::<Vec<_>>(),
        "memory_ns": timing.memory_ns,
        "time_to_first_token_ns": timing.time_to_first_token_ns,
        "decode_ns": timing.decode_ns,
        "decode_ns_per_token": timing.decode_ns_per_token,
        "total_ns": timing.total_ns,
    });
    told.insert("timing".into(), times);
    told
}

/// An answer as events of the server, each a line of JSON.
struct Events {
    answer: Streaming<SummarizeResponse>,
    waiting: VecDeque<Bytes>,
    over: bool,
}

impl Events {
    fn say(&mut self, what: &dyn std::fmt::Display) {
        self.waiting.push_back(format!("data: {what}\n\n").into());
    }

    fn take(&mut self, message: Option<Result<SummarizeResponse, Status>>) {
        match message {
            Some(Ok(message)) => return message.event.iter().for_each(|event| self.say(&told(event))),
            Some(Err(status)) => self.say(&Refusal::from(status).body()),
            None => {}
        }
        self.say(&"[DONE]");
        self.over = true;
    }
}

impl Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(line) = self.waiting.pop_front() {
                return Poll::Ready(Some(Ok(line)));
            }
            if self.over {
                return Poll::Ready(None);
            }
            let message = ready!(Pin::new(&mut self.answer).poll_next(cx));
            self.take(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_cut_between_code_points() {
        let text = format!("a{}", "é".repeat(PIECE));
        let parts: Vec<_> = pieces(&text).collect();
        assert!(parts.len() > 2 && parts.iter().all(|part| part.len() <= PIECE));
        assert_eq!(parts.concat(), text);
        assert_eq!(pieces("").count(), 0);
    }

    #[test]
    fn nothing_is_drawn_unless_it_is_asked_for() {
        let options = |body: &str| {
            let mut parts = request::read::<SummaryRequest>(body.as_bytes(), "the body").unwrap().parts();
            assert_eq!(parts.len(), 2);
            match parts.swap_remove(0).part {
                Some(Part::Options(options)) => options,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(options(r#"{"document": "a", "beam_size": 3}"#).sampling, None);
        assert!(options(r#"{"document": "a", "seed": 3}"#).sampling.is_some());
        assert!(request::read::<SummaryRequest>(br#"{"document": "a", "beam": 3}"#, "the body").is_err());
    }
}
