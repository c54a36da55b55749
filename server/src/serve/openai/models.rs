//! `/v1/models`: the models in service, in OpenAI's form.

use super::{
    error::ApiError,
    state::{ApiServices, ApiState},
};
use crate::serve::{
    grpc::models::WithoutSymbols,
    in_process::{ClientContext, Services},
};
use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use weir_proto::v1::{self, GetModelRequest, ListModelsRequest, models_client::ModelsClient};

pub(super) async fn list(State(state): State<ApiState>, client: ClientContext) -> Response {
    let listed = service(&state.services).list_models(brief(client.call(ListModelsRequest {}))).await;
    let response = listed.map(|listed| {
        let models = listed.into_inner().models.into_iter().map(|model| model_json(model, state.started_at));
        Json(json!({ "object": "list", "data": models.collect::<Vec<_>>() }))
    });
    client.with_request_id(response.map_err(ApiError::from).into_response())
}

pub(super) async fn get(
    State(state): State<ApiState>,
    name: Result<Path<String>, PathRejection>,
    client: ClientContext,
) -> Response {
    client.with_request_id(find(&state, &client, name).await.into_response())
}

async fn find(
    state: &ApiState,
    client: &ClientContext,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(name) = name?;
    let call = brief(client.call(GetModelRequest { name: Some(name) }));
    let model = service(&state.services).get_model(call).await?;
    Ok(Json(model_json(model.into_inner(), state.started_at)))
}

fn service(services: &ApiServices) -> ModelsClient<Services> {
    ModelsClient::new(services.calls.clone()).max_decoding_message_size(usize::MAX)
}

/// Leaves out the symbols of vocabularies, which this API does not list.
fn brief<T>(mut call: tonic::Request<T>) -> tonic::Request<T> {
    call.extensions_mut().insert(WithoutSymbols);
    call
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
