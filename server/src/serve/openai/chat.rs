//! `/v1/chat/completions`: refused with the call to make instead, because no model here has a chat template.

use super::{error::ApiError, state::ApiState};
use crate::serve::{
    in_process::ClientContext,
    registry::{abilities::continues_text, engines::Engines},
};
use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;

/// Refuses a request by its head. Its body is not read.
pub(super) async fn refuse(State(state): State<ApiState>, client: ClientContext, request: Request) -> Response {
    let error = state.check_head(&request).map_or_else(|error| error, |_| no_chat(state.monitor.engines()));
    client.with_request_id(error.into_response())
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
