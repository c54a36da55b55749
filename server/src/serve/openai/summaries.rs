//! `/v1/summaries`: one call of `Summarize`, collected or streamed. OpenAI has no such path, so field names are those of the gRPC
//! API.

use super::{
    error::ApiError,
    sse::{self, EventSource},
    state::{ApiState, Summarized},
};
use crate::{
    decode::{long_documents::LongDocuments, search_rules::EarlyStopping},
    error::Error,
    serve::{
        calls::ClientContext,
        collected::CollectedSize,
        completion_request::{parse_json, seed::Seed},
        middleware::guarded_body::GuardedBody,
    },
};
use axum::{
    Extension, Json,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use prost::Message;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio_stream::{Stream, StreamExt};
use tonic::Status;
use weir_proto::v1::{self, SummarizeRequest, SummarizeResponse, summarize_request::Part, summarize_response::Event};

/// Maximum bytes of a document in one message of a call.
const CHUNK_BYTES: usize = 64 << 10;
/// Memory of formatted fields relative to their encoded length. Objects repeat the names of their fields.
pub(super) const FORMATTED: usize = 16;

/// The fields of a summary request.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
pub(in crate::serve) struct SummaryRequest {
    model: Option<String>,
    document: Option<String>,
    document_id: Option<String>,
    #[serde(alias = "num_beams")]
    beam_size: Option<u32>,
    length_penalty: Option<f32>,
    #[serde(alias = "min_new_tokens")]
    min_tokens: Option<u32>,
    #[serde(alias = "max_new_tokens")]
    max_tokens: Option<u32>,
    #[serde(alias = "no_repeat_ngram_size")]
    no_repeat_ngram: Option<u32>,
    early_stopping: Option<EarlyStopping>,
    hypotheses: Option<u32>,
    cut: Option<bool>,
    long_documents: Option<LongDocuments>,
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
    /// Converts the request to the messages of the call: options, then the document in chunks.
    fn into_messages(self) -> Vec<SummarizeRequest> {
        let sampling = v1::Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: None,
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
            // The summary is sampled only if the request has a sampling option; otherwise it is searched.
            sampling: (sampling != v1::Sampling::default()).then_some(sampling),
            cut: self.cut,
            document_id: self.document_id,
            priority: self.priority,
            hard_topk: self.hard_topk,
            early_stopping: self.early_stopping.map(|when| when.name().to_owned()),
            repetition_penalty: self.repetition_penalty,
            long_documents: self.long_documents.map(long_documents),
        };
        call_messages(options, &self.document.unwrap_or_default())
    }
}

/// Returns the value of the options for a choice.
pub(super) fn long_documents(chosen: LongDocuments) -> i32 {
    let chosen = match chosen {
        LongDocuments::Refuse => v1::LongDocuments::Refuse,
        LongDocuments::Cut => v1::LongDocuments::Cut,
        LongDocuments::Chunk => v1::LongDocuments::Chunk,
    };
    chosen.into()
}

/// Returns the messages of a call: options, then the document in chunks.
pub(super) fn call_messages(options: v1::SummarizeOptions, document: &str) -> Vec<SummarizeRequest> {
    let chunk = |text: &str| Part::Chunk(v1::DocumentChunk { text: text.to_owned() });
    let parts = std::iter::once(Part::Options(options)).chain(chunks(document).map(chunk));
    parts.map(|part| SummarizeRequest { part: Some(part) }).collect()
}

/// Reads the body of a request, and converts it to the messages of a call.
#[cfg(any(test, fuzzing))]
pub(in crate::serve) fn messages(body: &[u8]) -> Vec<SummarizeRequest> {
    parse_json::<SummaryRequest>(body, "the body").map(SummaryRequest::into_messages).unwrap_or_default()
}

/// Splits a text into chunks that end at a character boundary.
fn chunks(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let mut end = text.len().min(CHUNK_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let (chunk, rest) = text.split_at(end);
        text = rest;
        (!chunk.is_empty()).then_some(chunk)
    })
}

pub(super) async fn summarize(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Response {
    client.with_request_id(handle(state, &client, request).await.into_response())
}

async fn handle(state: ApiState, client: &ClientContext, request: Request) -> Result<Response, ApiError> {
    let body = state.read_body(client, request).await?;
    let tenant = Arc::clone(&body.tenant);
    let request = state.parse(body, |bytes| parse_json::<SummaryRequest>(bytes, "the body")).await?;
    if request.document.is_some() && request.document_id.is_some() {
        return Err(Error::Exclusive { first: "document", second: "document_id" }.into());
    }
    let wants_stream = request.stream.unwrap_or(false);
    let response = state.calls.summarize(client, request.into_messages()).await?;
    if wants_stream {
        return sse::response(SummaryEvents { messages: response, is_complete: false }, state.calls.jobs.late_headers)
            .await;
    }
    let size = state.collected.begin(&tenant, "set stream to true");
    collect(response, size).await
}

/// Returns the summary in one message, once it is complete.
async fn collect(mut response: Summarized, mut size: CollectedSize) -> Result<Response, ApiError> {
    let mut bytes = 0_usize;
    let mut summary = Map::new();
    let mut text = String::new();
    let mut selected = Vec::new();
    let mut parts = Vec::new();
    while let Some(message) = response.next().await.transpose()? {
        bytes = bytes.saturating_add(message.encoded_len().saturating_mul(FORMATTED));
        size.grow_to(bytes)?;
        match message.event {
            Some(Event::Started(started)) => {
                summary.insert("object".into(), "summary".into());
                summary.insert("model".into(), started.model.into());
            }
            Some(Event::Piece(piece)) => text.push_str(&piece.text),
            Some(Event::Selected(kept)) => selected.push(selected_json(&kept)),
            Some(Event::Part(part)) => parts.push(part_json(&part)),
            Some(Event::Finished(finished)) => {
                summary.insert("text".into(), std::mem::take(&mut text).into());
                summary.insert("selected".into(), std::mem::take(&mut selected).into());
                summary.extend(finished_fields(&finished));
                summary.insert("parts".into(), std::mem::take(&mut parts).into());
            }
            Some(Event::Progress(_)) | None => {}
        }
    }
    if !summary.contains_key("timing") {
        return Err(sse::ended_early().into());
    }
    let response = Json(Value::from(summary)).into_response();
    Ok(response.map(|body| Body::new(GuardedBody::new(body, size))))
}

/// Converts an event to JSON under its name.
fn event_json(event: &Event) -> Value {
    match event {
        Event::Started(v1::SummaryStarted { request_id, model, cached_tokens }) => {
            json!({ "started": { "request_id": request_id, "model": model, "cached_tokens": cached_tokens } })
        }
        Event::Progress(progress) => json!({ "progress": progress_json(progress) }),
        Event::Selected(kept) => json!({ "selected": selected_json(kept) }),
        Event::Part(part) => json!({ "part": part_json(part) }),
        Event::Piece(v1::SummaryPiece { text }) => json!({ "piece": { "text": text } }),
        Event::Finished(end) => json!({ "finished": finished_fields(end) }),
    }
}

fn progress_json(progress: &v1::Progress) -> Value {
    json!({
        "stage": progress.stage,
        "layer": progress.layer,
        "tokens_read": progress.tokens_read,
        "blocks_encoded": progress.blocks_encoded,
        "blocks_total": progress.blocks_total,
        "document_bytes": progress.document_bytes,
        "cut": progress.cut,
    })
}

fn selected_json(v1::Selected { layer, spans, tokens }: &v1::Selected) -> Value {
    let span = |v1::Span { byte_start, byte_end, score }: &v1::Span| json!({ "byte_start": byte_start, "byte_end": byte_end, "score": score });
    json!({ "layer": layer, "tokens": tokens, "spans": spans.iter().map(span).collect::<Vec<_>>() })
}

fn part_json(part: &v1::SummaryPart) -> Value {
    let mut fields = json!({
        "round": part.round,
        "part": part.part,
        "byte_start": part.byte_start,
        "byte_end": part.byte_end,
        "round_bytes": part.round_bytes,
        "document_tokens": part.document_tokens,
        "summary_tokens": part.summary_tokens,
        "summary": part.summary,
    });
    // The last event does not repeat the spans.
    if !part.selected.is_empty() {
        fields["selected"] = part.selected.iter().map(selected_json).collect();
    }
    fields
}

pub(super) fn finished_fields(finished: &v1::SummaryFinished) -> Map<String, Value> {
    let reason = match finished.reason() {
        v1::SummaryFinishReason::EndOfText => "end_of_text",
        _ => "max_tokens",
    };
    let usage = finished.usage.unwrap_or_default();
    let timing = finished.timing.clone().unwrap_or_default();
    let hypothesis = |v1::Hypothesis { text, ids, score, logprobs }: &v1::Hypothesis| json!({ "text": text, "ids": ids, "score": score, "logprobs": logprobs });
    let layer = |layer: &v1::EncoderLayer| json!({ "length": layer.length, "ns": layer.ns });
    let mut fields = Map::new();
    fields.insert("reason".into(), reason.into());
    fields.insert("document_id".into(), finished.document_id.clone().into());
    fields.insert("hypotheses".into(), finished.hypotheses.iter().map(hypothesis).collect());
    let counts = json!({
        "document_tokens": usage.document_tokens,
        "cached_tokens": usage.cached_tokens,
        "cut": usage.cut,
        "summary_tokens": usage.summary_tokens,
        "vectors": usage.vectors,
        "cross_attention_bytes": usage.cross_attention_bytes,
        "unpooled_cross_attention_bytes": usage.unpooled_cross_attention_bytes,
        "document_bytes": usage.document_bytes,
    });
    fields.insert("usage".into(), counts);
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
        "encode_ns": timing.encode_ns,
        "kept_share": timing.kept_share,
        "cross_attention_bytes": timing.cross_attention_bytes,
        "unpooled_cross_attention_bytes": timing.unpooled_cross_attention_bytes,
    });
    fields.insert("timing".into(), times);
    fields.insert("parts".into(), finished.parts.iter().map(part_json).collect());
    fields
}

/// A summary as server-sent events.
struct SummaryEvents {
    messages: Summarized,
    /// True after the last event.
    is_complete: bool,
}

impl EventSource for SummaryEvents {
    type Message = SummarizeResponse;

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<SummarizeResponse, Status>>> {
        Pin::new(&mut self.messages).poll_next(cx)
    }

    fn event(&mut self, message: SummarizeResponse) -> Option<Value> {
        self.is_complete |= matches!(message.event, Some(Event::Finished(_)));
        message.event.as_ref().map(event_json)
    }

    fn is_output(&self, message: &SummarizeResponse) -> bool {
        !matches!(message.event, Some(Event::Started(_)))
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_split_at_character_boundaries() {
        let text = format!("a{}", "é".repeat(CHUNK_BYTES));
        let parts: Vec<_> = chunks(&text).collect();
        assert!(parts.len() > 2 && parts.iter().all(|part| part.len() <= CHUNK_BYTES));
        assert_eq!(parts.concat(), text);
        assert_eq!(chunks("").count(), 0);
    }

    #[test]
    fn summaries_are_sampled_only_on_request() {
        let options = |body: &str| {
            let mut messages = parse_json::<SummaryRequest>(body.as_bytes(), "the body").unwrap().into_messages();
            assert_eq!(messages.len(), 2);
            match messages.swap_remove(0).part {
                Some(Part::Options(options)) => options,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(options(r#"{"document": "a", "beam_size": 3}"#).sampling, None);
        assert!(options(r#"{"document": "a", "seed": 3}"#).sampling.is_some());
        let search = options(r#"{"document": "a", "repetition_penalty": 1.5, "early_stopping": true}"#);
        assert_eq!((search.sampling, search.repetition_penalty), (None, Some(1.5)));
        assert_eq!(search.early_stopping.as_deref(), Some("true"));
        let names = r#"{"document": "a", "num_beams": 2, "min_new_tokens": 3, "max_new_tokens": 4,
            "no_repeat_ngram_size": 5, "early_stopping": "never"}"#;
        let names = options(names);
        assert_eq!((names.beam_size, names.min_tokens, names.max_tokens), (Some(2), Some(3), Some(4)));
        assert_eq!((names.no_repeat_ngram, names.early_stopping.as_deref()), (Some(5), Some("never")));
        assert!(parse_json::<SummaryRequest>(br#"{"document": "a", "beam": 3}"#, "the body").is_err());
    }
}
