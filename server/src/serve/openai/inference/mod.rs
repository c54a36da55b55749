//! `/v2`: the Open Inference Protocol (KServe's protocol, version 2) over HTTP and JSON.
//!
//! A request becomes a call of the same protocol over gRPC within the process. `request` reads tensors in JSON, and `response`
//! writes them. Errors have this protocol's form: an object whose `error` is a text.

pub(in crate::serve) mod request;
mod response;

use self::request::InferenceRequest;
use super::{
    error::ApiError,
    state::{ApiServices, ApiState},
};
use crate::serve::{
    in_process::{ClientContext, Services},
    middleware::guarded_body::GuardedBody,
};
use axum::{
    Json,
    body::Body,
    extract::{Path, Request, State, rejection::PathRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use prost::Message;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use weir_proto::inference::{
    ModelInferResponse, ModelMetadataRequest, ModelReadyRequest, ServerLiveRequest, ServerMetadataRequest,
    ServerReadyRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
};

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
pub(super) async fn server(State(state): State<ApiState>, client: ClientContext) -> Response {
    let answer = service(&state.services).server_metadata(client.call(ServerMetadataRequest {})).await;
    let answer = answer.map(|answer| Json(response::server(answer.into_inner())));
    finish(&client, answer.map_err(ApiError::from))
}

/// Answers 200 if no model's worker hangs. Needs no key.
pub(super) async fn live(State(state): State<ApiState>, client: ClientContext) -> Response {
    let answer = service(&state.services).server_live(client.call(ServerLiveRequest {})).await;
    let answer = answer.map(|answer| flag(answer.get_ref().live, json!({ "live": answer.get_ref().live })));
    finish(&client, answer.map_err(ApiError::from))
}

/// Answers 200 if the server takes requests. Needs no key.
pub(super) async fn ready(State(state): State<ApiState>, client: ClientContext) -> Response {
    let answer = service(&state.services).server_ready(client.call(ServerReadyRequest {})).await;
    let answer = answer.map(|answer| flag(answer.get_ref().ready, json!({ "ready": answer.get_ref().ready })));
    finish(&client, answer.map_err(ApiError::from))
}

/// Returns the tensors of a model.
pub(super) async fn model(State(state): State<ApiState>, path: PathResult, client: ClientContext) -> Response {
    finish(&client, metadata(&state, &client, path).await)
}

async fn metadata(state: &ApiState, client: &ClientContext, path: PathResult) -> Result<Json<Value>, ApiError> {
    let Path(path) = path?;
    let call = client.call(ModelMetadataRequest { name: path.name, version: path.version });
    let answer = service(&state.services).model_metadata(call).await?;
    Ok(Json(response::model(answer.into_inner())))
}

/// Answers 200 if a model takes requests.
pub(super) async fn model_ready(State(state): State<ApiState>, path: PathResult, client: ClientContext) -> Response {
    finish(&client, readiness(&state, &client, path).await)
}

async fn readiness(
    state: &ApiState,
    client: &ClientContext,
    path: PathResult,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let Path(path) = path?;
    let call = client.call(ModelReadyRequest { name: path.name.clone(), version: path.version });
    let ready = service(&state.services).model_ready(call).await?.get_ref().ready;
    Ok(flag(ready, json!({ "name": path.name, "ready": ready })))
}

/// Answers a request for text, in one message.
pub(super) async fn infer(
    State(state): State<ApiState>,
    path: PathResult,
    client: ClientContext,
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
        state.check_head(&request)?;
        let message = format!("{BINARY}: binary tensors are not supported; send them as JSON");
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "binary_tensors", message));
    }
    let body = state.read_body(request).await?;
    let tenant = Arc::clone(&body.tenant);
    let request = state.parse(body, |bytes| InferenceRequest::parse(bytes, "the body")).await?;
    let call = client.call(request.into_message(path.name, path.version));
    let answer = service(&state.services).model_infer(call).await?.into_inner();
    let bytes = answer.encoded_len().saturating_mul(FORMATTED);
    let mut size = state.services.collected.begin(&tenant, "use ModelStreamInfer over gRPC");
    size.grow_to(bytes)?;
    // A long response also takes long to format.
    let formatted = state.services.workers.run(&tenant, bytes, move || format(answer));
    Ok(formatted.await??.map(|body| Body::new(GuardedBody::new(body, size))))
}

fn format(answer: ModelInferResponse) -> Result<Response, ApiError> {
    Ok(Json(response::inference(answer)?).into_response())
}

fn service(services: &ApiServices) -> GrpcInferenceServiceClient<Services> {
    GrpcInferenceServiceClient::new(services.calls.clone()).max_decoding_message_size(usize::MAX)
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
