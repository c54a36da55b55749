//! `/v1/models`: the models in service, in OpenAI's form.

use super::{error::ApiError, state::ApiState};
use crate::serve::calls::ClientContext;
use axum::{
    Extension, Json,
    extract::{Path, State, rejection::PathRejection},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use weir_proto::v1;

pub(super) async fn list(State(state): State<ApiState>, Extension(client): Extension<ClientContext>) -> Response {
    let listed = state.calls.ask("/weir.v1.Models/ListModels", &client, |_| Ok(state.models.list(false))).await;
    let response = listed.map(|listed| {
        let models = listed.models.into_iter().map(|model| model_json(model, state.started_at));
        Json(json!({ "object": "list", "data": models.collect::<Vec<_>>() }))
    });
    client.with_request_id(response.map_err(ApiError::from).into_response())
}

pub(super) async fn get(
    State(state): State<ApiState>,
    name: Result<Path<String>, PathRejection>,
    Extension(client): Extension<ClientContext>,
) -> Response {
    client.with_request_id(find(&state, &client, name).await.into_response())
}

async fn find(
    state: &ApiState,
    client: &ClientContext,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(name) = name?;
    let models = &state.models;
    let get = |call: &_| models.get(call, Some(&name), false);
    let model = state.calls.ask("/weir.v1.Models/GetModel", client, get).await?;
    Ok(Json(model_json(model, state.started_at)))
}

/// Converts a model to JSON. This API calls symbols tokens; `token` names their kind.
fn model_json(model: v1::Model, created: u64) -> Value {
    let token = match &model.vocabulary {
        Some(vocabulary) if vocabulary.bytes => "byte",
        Some(vocabulary) if vocabulary.pieces => "piece",
        _ => "character",
    };
    let document_tokens = model.documents.as_ref().map(|documents| documents.max_tokens);
    json!({
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "weir",
        "max_model_len": document_tokens.or(model.limits.map(|limits| limits.max_symbols)),
        "token": token,
        "family": model.family,
        "shape": model.shape,
        "parameters": model.parameters,
        "dtype": model.dtype,
        "pooled": model.pooled,
        "boundary_modes": model.boundary_modes,
        "training_length": model.training_length,
        "documents": model.documents.map(|documents| json!({
            "max_tokens": documents.max_tokens,
            "max_summary_tokens": documents.max_summary_tokens,
            "poolings": documents.poolings.iter().map(|pooling| pooling.layer).collect::<Vec<_>>(),
        })),
    })
}
