//! `/v1/chat/completions`: refused with the call to make instead, because no model here has a chat template.

use super::{error::ApiError, state::ApiState};
use crate::{
    engine::Handle,
    serve::{
        calls::ClientContext,
        completion_request::parse_json,
        registry::{abilities::continues_text, engines::Lease},
    },
};
use axum::{
    Extension,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::json;

/// The field of a chat that the server reads.
#[derive(Deserialize)]
struct ChatRequest {
    model: Option<String>,
}

/// Refuses a request. The error for an unknown model is that of `/v1/completions`.
pub(super) async fn refuse(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Response {
    let error = match find_model(&state, &client, request).await {
        Ok(model) => no_chat(model.as_deref()),
        Err(error) => error,
    };
    client.with_request_id(error.into_response())
}

/// Returns the model of a request. If the request names none, returns the first that completes text, else the first.
async fn find_model(state: &ApiState, client: &ClientContext, request: Request) -> Result<Option<Lease>, ApiError> {
    let body = state.read_body(client, request).await?;
    let ChatRequest { model } = state.parse(body, |bytes| parse_json(bytes, "the body")).await?;
    let engines = state.monitor.engines();
    if let Some(name) = model.filter(|name| !name.is_empty()) {
        return Ok(Some(engines.find("model", Some(name.as_str()))?));
    }
    let mut models = engines.all();
    let first = models.iter().position(|engine| continues_text(engine)).unwrap_or_default();
    Ok((first < models.len()).then(|| models.swap_remove(first)))
}

/// Returns the error that names the call to make to a model.
fn no_chat(model: Option<&Handle>) -> ApiError {
    let call = match model {
        Some(writer) if continues_text(writer) => {
            let name = &writer.card().name;
            let body = json!({ "model": name, "prompt": "the history of ", "max_tokens": 40 });
            format!("{name:?} completes text and has no chat template: send POST /v1/completions with {body}")
        }
        Some(summarizer) => {
            let name = &summarizer.card().name;
            let body = json!({ "model": name, "document": "…" });
            format!("{name:?} summarizes documents and has no chat template: send POST /v1/summaries with {body}")
        }
        None => "this server has no model".to_owned(),
    };
    ApiError::new(StatusCode::BAD_REQUEST, "no_chat_template", format!("messages: {call}")).with_param("messages")
}
