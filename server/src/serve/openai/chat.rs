//! `/v1/chat/completions`: refused with the call to make instead, because no model here has a chat template.

use super::{error::ApiError, state::ApiState};
use crate::serve::{
    completion_request::parse_json,
    in_process::ClientContext,
    registry::{abilities::continues_text, engines::Engines},
};
use axum::{
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
pub(super) async fn refuse(State(state): State<ApiState>, client: ClientContext, request: Request) -> Response {
    let error = match check_model(&state, request).await {
        Ok(()) => no_chat(state.monitor.engines()),
        Err(error) => error,
    };
    client.with_request_id(error.into_response())
}

/// Checks that the server has the model of a request.
async fn check_model(state: &ApiState, request: Request) -> Result<(), ApiError> {
    let body = state.read_body(request).await?;
    let ChatRequest { model } = state.parse(body, |bytes| parse_json(bytes, "the body")).await?;
    if let Some(name) = model.filter(|name| !name.is_empty()) {
        state.monitor.engines().find("model", Some(name.as_str()))?;
    }
    Ok(())
}

/// Returns the error that names the call to make.
fn no_chat(engines: &Engines) -> ApiError {
    let models = engines.all();
    let writer = models.iter().find(|engine| continues_text(engine));
    let call = match (writer, models.first()) {
        (Some(writer), _) => {
            let body = json!({ "model": writer.card().name, "prompt": "the history of ", "max_tokens": 40 });
            format!(
                "this server's models complete text and have no chat template: send POST /v1/completions with {body}"
            )
        }
        (None, Some(summarizer)) => {
            let body = json!({ "model": summarizer.card().name, "document": "…" });
            format!("this server's models summarize documents: send POST /v1/summaries with {body}")
        }
        (None, None) => "this server has no model".to_owned(),
    };
    ApiError::new(StatusCode::BAD_REQUEST, "no_chat_template", format!("messages: {call}")).with_param("messages")
}
