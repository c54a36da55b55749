//! `/v2`: the Open Inference Protocol (KServe's protocol, version 2) over HTTP and JSON.
//!
//! A request becomes a call of the same method as over gRPC. `request` reads tensors in JSON, and `response`
//! writes them. Errors have this protocol's form: an object whose `error` is a text.

pub(in crate::serve) mod request;
mod response;

use self::request::InferenceRequest;
use super::{error::ApiError, state::ApiState};
use crate::serve::{
    calls::ClientContext, grpc::generation::Incoming, middleware::guarded_body::GuardedBody, oip::models as metadata,
};
use axum::{
    Extension, Json,
    body::Body,
    extract::{Path, Request, State, rejection::PathRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use prost::Message;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use weir_proto::inference::ModelInferResponse;

/// Memory of a response in JSON relative to its encoded length: one byte may become an escape of six.
const FORMATTED: usize = 8;
/// Header of a request whose tensors follow the JSON in binary.
const BINARY: &str = "inference-header-content-length";

/// The model that a path names.
#[derive(Deserialize)]
pub(super) struct ModelPath {
    name: String,
    /// Absent for the only version.
    #[serde(default)]
    version: String,
}

/// The model that a path names, unless its escapes are malformed.
type PathResult = Result<Path<ModelPath>, PathRejection>;

/// Returns the name and version of the server, and the extensions that it supports.
pub(super) async fn server(State(state): State<ApiState>, Extension(client): Extension<ClientContext>) -> Response {
    let answer =
        state.calls.ask("/inference.GRPCInferenceService/ServerMetadata", &client, |_| Ok(metadata::server())).await;
    finish(&client, answer.map(|answer| Json(response::server(answer))).map_err(ApiError::from))
}

/// Answers 200 if no model's worker hangs. Needs no key.
pub(super) async fn live(State(state): State<ApiState>, Extension(client): Extension<ClientContext>) -> Response {
    let live = state
        .calls
        .ask("/inference.GRPCInferenceService/ServerLive", &client, |_| Ok(state.monitor.alive().is_ok()))
        .await;
    finish(&client, live.map(|live| flag(live, json!({ "live": live }))).map_err(ApiError::from))
}

/// Answers 200 if the server takes requests. Needs no key.
pub(super) async fn ready(State(state): State<ApiState>, Extension(client): Extension<ClientContext>) -> Response {
    let ready = state
        .calls
        .ask("/inference.GRPCInferenceService/ServerReady", &client, |_| Ok(state.monitor.ready().is_ok()))
        .await;
    finish(&client, ready.map(|ready| flag(ready, json!({ "ready": ready }))).map_err(ApiError::from))
}

/// Returns the tensors of a model.
pub(super) async fn model(
    State(state): State<ApiState>,
    path: PathResult,
    Extension(client): Extension<ClientContext>,
) -> Response {
    finish(&client, tensors(&state, &client, path).await)
}

async fn tensors(state: &ApiState, client: &ClientContext, path: PathResult) -> Result<Json<Value>, ApiError> {
    let Path(ModelPath { name, version }) = path?;
    let inference = &state.inference;
    let metadata = |call: &_| inference.metadata(call, &name, &version);
    Ok(Json(response::model(state.calls.ask("/inference.GRPCInferenceService/ModelMetadata", client, metadata).await?)))
}

/// Answers 200 if a model takes requests.
pub(super) async fn model_ready(
    State(state): State<ApiState>,
    path: PathResult,
    Extension(client): Extension<ClientContext>,
) -> Response {
    finish(&client, readiness(&state, &client, path).await)
}

async fn readiness(
    state: &ApiState,
    client: &ClientContext,
    path: PathResult,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let Path(ModelPath { name, version }) = path?;
    let inference = &state.inference;
    let ready = state
        .calls
        .ask("/inference.GRPCInferenceService/ModelReady", client, |_| Ok(inference.is_ready(&name, &version)))
        .await?;
    Ok(flag(ready, json!({ "name": name, "ready": ready })))
}

/// Answers a request for text, in one message.
pub(super) async fn infer(
    State(state): State<ApiState>,
    path: PathResult,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Response {
    let answer = handle(&state, path, &client, request).await;
    finish(&client, answer)
}

async fn handle(
    state: &ApiState,
    path: PathResult,
    client: &ClientContext,
    request: Request,
) -> Result<Response, ApiError> {
    let Path(path) = path?;
    if request.headers().contains_key(BINARY) {
        state.check_head(client, &request)?;
        let message = format!("{BINARY}: binary tensors are not supported; send them as JSON");
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "binary_tensors", message));
    }
    let body = state.read_body(client, request).await?;
    let tenant = Arc::clone(&body.tenant);
    let request = state.parse(body, |bytes| InferenceRequest::parse(bytes, "the body")).await?;
    let message = request.into_message(path.name, path.version);
    let inference = &state.inference;
    let answer = state.calls.begin(
        "/inference.GRPCInferenceService/ModelInfer",
        client,
        message.encoded_len(),
        async |call, memory| inference.infer(client, Incoming { message, call, memory: Some(memory) }).await,
    );
    let answer = answer.await?.into_complete();
    let bytes = answer.encoded_len().saturating_mul(FORMATTED);
    let mut size = state.collected.begin(&tenant, "use ModelStreamInfer over gRPC");
    size.grow_to(bytes)?;
    // A long response also takes long to format.
    let formatted = state.calls.jobs.workers.run(&tenant, bytes, move || format(answer));
    Ok(formatted.await??.map(|body| Body::new(GuardedBody::new(body, size))))
}

fn format(answer: ModelInferResponse) -> Result<Response, ApiError> {
    Ok(Json(response::inference(answer)?).into_response())
}

/// Returns a status that probes read, with the same in JSON.
fn flag(holds: bool, body: Value) -> (StatusCode, Json<Value>) {
    // The protocol asks for a 4xx status.
    (if holds { StatusCode::OK } else { StatusCode::BAD_REQUEST }, Json(body))
}

/// Adds the request's id, and gives an error this protocol's form.
fn finish(client: &ClientContext, answer: Result<impl IntoResponse, ApiError>) -> Response {
    client.with_request_id(answer.map_or_else(ApiError::into_text_response, IntoResponse::into_response))
}
