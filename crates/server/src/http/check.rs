//! `/v1/check`: one call of `Check`. Field names are those of the gRPC API; offsets are `start`, `end`, `start_utf16` and `end_utf16`.

use crate::{
    call::ClientContext,
    completion_request::parse_json,
    grpc::{generation::Incoming, response::log_rejection},
    http::{
        error::{ApiError, Json},
        state::{ApiState, JSON},
    },
    middleware::CallResponse,
};
use axum::{
    Extension,
    extract::{Request, State},
};
use prost::Message;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_proto::v1;

pub(crate) async fn check(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Result<Json, ApiError> {
    let body = state.read_body(&client, request, JSON).await?;
    let Body(message) = state.parse(body, |json| parse_json(&json, "the body")).await?;
    let bytes = message.encoded_len();
    let jobs = &state.calls.jobs;
    let call = state.calls.begin("/weir.v1.Generation/Check", &client, bytes, async |call, memory| {
        jobs.check_text(Incoming { message, call, memory: Some(memory) }).await.inspect_err(log_rejection)
    });
    let checked = call.await.map(CallResponse::into_complete);
    checked.map(|checked| Json(response(&checked))).map_err(ApiError::from)
}

/// The body of a request.
#[derive(Deserialize)]
#[serde(transparent)]
struct Body(#[serde(with = "CheckFields")] v1::CheckRequest);

#[derive(Deserialize)]
#[serde(remote = "v1::CheckRequest", deny_unknown_fields, expecting = "an object")]
struct CheckFields {
    model: Option<String>,
    text: String,
    threshold: Option<f32>,
    alternatives: Option<u32>,
    max_words: Option<u32>,
    priority: Option<i32>,
}

fn response(checked: &v1::CheckResponse) -> Value {
    let usage = checked.usage.unwrap_or_default();
    let timing = checked.timing.unwrap_or_default();
    json!({
        "object": "check",
        "words": checked.words.iter().map(word).collect::<Vec<_>>(),
        "cut": checked.cut,
        "usage": {
            "prompt_tokens": usage.prompt_chars,
            "total_tokens": usage.prompt_chars,
            "normalized_chars": usage.normalized_chars(),
            "compared_words": checked.compared_words,
        },
        "timing": { "queue_ns": timing.queue_ns, "total_ns": checked.duration_ns },
    })
}

fn word(word: &v1::CheckedWord) -> Value {
    json!({
        "text": word.text,
        "start": word.start_byte,
        "end": word.end_byte,
        "start_utf16": word.start_utf16,
        "end_utf16": word.end_utf16,
        "logprob": word.logprob,
        "alternatives": word.alternatives,
    })
}
