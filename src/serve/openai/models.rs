//! `/v1/models`: what is served, in OpenAI's form.

use super::{Door, refusal::Refusal};
use crate::serve::in_process::Caller;
use axum::{
    Json,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use weir_proto::v1::{self, GetModelRequest, ListModelsRequest, models_client::ModelsClient};

/// All of them.
pub(super) async fn list(State(door): State<Door>, caller: Caller) -> Response {
    let listed = ModelsClient::new(door.services.clone()).list_models(caller.call(ListModelsRequest {})).await;
    let answer = listed.map(|models| {
        let data: Vec<_> = models.into_inner().models.into_iter().map(|model| described(model, door.since)).collect();
        Json(json!({ "object": "list", "data": data }))
    });
    caller.named(answer.map_err(Refusal::from).into_response())
}

/// One of them.
pub(super) async fn get(State(door): State<Door>, Path(name): Path<String>, caller: Caller) -> Response {
    let call = caller.call(GetModelRequest { name: Some(name) });
    let found = ModelsClient::new(door.services.clone()).get_model(call).await;
    let answer = found.map(|model| Json(described(model.into_inner(), door.since)));
    caller.named(answer.map_err(Refusal::from).into_response())
}

/// A token is a symbol here, and it is said which.
fn described(model: v1::Model, since: u64) -> Value {
    let token = match &model.vocabulary {
        Some(own) if own.bytes => "byte",
        Some(own) if own.pieces => "piece",
        _ => "character",
    };
    let reads = model.documents.as_ref().map(|documents| documents.max_tokens);
    json!({
        "id": model.name,
        "object": "model",
        "created": since,
        "owned_by": "weir",
        "max_model_len": reads.or(model.limits.map(|limits| limits.max_symbols)),
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
