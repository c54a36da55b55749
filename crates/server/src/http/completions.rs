//! `/v1/completions`: one call of `Generate` for each choice, collected or streamed; a model that summarizes answers in [`summaries`].
//! Also refuses chats.

use crate::{
    call::ClientContext,
    calls::Generated,
    completion_request::{CompletionRequest, Names, Path, Surface, parse_json},
    http::{
        error::ApiError,
        response::{self, Choice, Completion, CompletionHead, SentChoice, TokenCounts},
        state::{ApiState, JSON},
        summaries,
    },
    registry::{Lease, continues_text},
};
use axum::{
    Extension,
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio_stream::{Stream, StreamMap};
use weir_engine::{Handle, clock};
use weir_kernels::error::Result;
use weir_proto::v1::generate_response::Event;

pub(crate) async fn complete(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Result<Response, ApiError> {
    let received_at = clock::now();
    let body = state.read_body(&client, request, JSON).await?;
    let tenant = Arc::clone(&body.tenant);
    let mut request = state.parse(body, |json| CompletionRequest::parse(json, Path::Completions)).await?;
    let engines = state.monitor.engines();
    let model = request.model.as_deref();
    if let Some(engine) = summaries::summarizer(engines, model)? {
        request.drop_biases_without_symbol(engine.card().vocabulary.len());
        return summaries::complete_by_summaries(&state, &client, request, &engine, &tenant).await;
    }
    // `Generate` refuses an unknown model.
    if let Ok(engine) = engines.find_able("model", model, continues_text) {
        request.adapt_to(engine.card());
        // Only a model with a start mark continues an empty text.
        if engine.card().first_logits.is_none() {
            request.prompt.list()?;
        }
    }
    let completion = Generations::start(&state, &client, &request).await;
    let completion = completion.map_err(|error| ApiError::named(error, &request.names(Surface::Completions)))?;
    let counts = completion.counts();
    let received_at = request.wants_boundaries().then_some(received_at);
    Ok(counts.add_header(response::complete(completion, &state, &tenant, request, received_at).await?))
}

/// The calls of one request, and the output collected from them.
struct Generations {
    head: CompletionHead,
    names: Names,
    choices: Vec<Choice>,
    choices_per_prompt: usize,
    /// The running calls by the index of their choice.
    streams: StreamMap<usize, Generated>,
    /// Bytes of memory of the output so far, estimated.
    bytes: usize,
}

impl Generations {
    async fn start(state: &ApiState, client: &ClientContext, request: &CompletionRequest) -> Result<Self> {
        let mut choices = Vec::new();
        let mut streams = StreamMap::new();
        for (index, message) in request.generate_requests()?.enumerate() {
            let generated = state.calls.generate(client, message).await?;
            let encoder = generated.response.encoder();
            let echoed = encoder.echoed().map(Arc::clone);
            choices.push(Choice::new(index, request.wants_characters(), encoder.normalized_chars(), echoed));
            streams.insert(index, generated);
        }
        let head = CompletionHead::new(&client.request_id);
        let names = request.names(Surface::Completions);
        Ok(Self { head, names, choices, choices_per_prompt: request.choices_per_prompt(), streams, bytes: 0 })
    }

    /// Counts the tokens of all choices. A prompt counts once, however many choices it has.
    fn counts(&self) -> TokenCounts {
        let counts = self.choices.iter().enumerate().map(|(index, choice)| match index % self.choices_per_prompt {
            0 => choice.counts,
            _ => choice.counts.without_prompt(),
        });
        counts.fold(TokenCounts::default(), TokenCounts::add)
    }
}

impl Completion for Generations {
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<usize>>> {
        loop {
            let Some((index, message)) = ready!(Pin::new(&mut self.streams).poll_next(cx)) else {
                return Poll::Ready(None);
            };
            let event = match message {
                Ok(message) => message.event,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            let Some(choice) = self.choices.get_mut(index) else { continue };
            match event {
                Some(Event::Started(started)) => {
                    self.head.set_model(&started.model);
                    choice.start(&started);
                }
                Some(Event::Piece(piece)) => choice.push(piece),
                Some(Event::Finished(finished)) => choice.finish(finished),
                None => {}
            }
            if choice.has_output() {
                self.bytes = self.bytes.saturating_add(choice.take_growth());
                return Poll::Ready(Some(Ok(index)));
            }
        }
    }

    fn take_choices(&mut self, index: usize) -> Vec<SentChoice> {
        self.choices.get_mut(index).map(Choice::take_output).into_iter().collect()
    }

    fn outputs(&self) -> usize {
        self.choices.len()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn head(&self) -> &CompletionHead {
        &self.head
    }

    fn names(&self) -> &Names {
        &self.names
    }

    fn usage(&self) -> Value {
        self.counts().usage()
    }

    fn is_complete(&self) -> bool {
        self.choices.iter().all(Choice::is_complete)
    }
}

// `/v1/chat/completions`: refused with the call to make instead, because no model here has a chat template.

/// The field of a chat that the server reads.
#[derive(Deserialize)]
struct ChatRequest {
    model: Option<String>,
}

/// Refuses a request. The error for an unknown model is the same as from `/v1/completions`.
pub(crate) async fn refuse_chat(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> ApiError {
    match find_model(&state, &client, request).await {
        Ok(model) => no_chat(model.as_deref()),
        Err(error) => error,
    }
}

/// Returns the model of a request. If the request names none, returns the first that completes text, else the first.
async fn find_model(state: &ApiState, client: &ClientContext, request: Request) -> Result<Option<Lease>, ApiError> {
    let body = state.read_body(client, request, JSON).await?;
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
pub(super) fn no_chat(model: Option<&Handle>) -> ApiError {
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
