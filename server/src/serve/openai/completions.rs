//! `/v1/completions`: one call of `Generate` for each choice, collected or streamed. A model that summarizes answers in
//! `summary_completions`.

use super::{
    error::ApiError,
    response::{Choice, CompletionHead, TokenCounts},
    sse::{self, EventSource},
    state::ApiState,
    summary_completions,
};
use crate::{
    engine::clock,
    serve::{
        calls::{ClientContext, Generated},
        completion_request::{CompletionRequest, StreamOptions},
        middleware::guarded_body::GuardedBody,
        registry::abilities::continues_text,
    },
};
use axum::{
    Extension, Json,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use serde_json::Value;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};
use tokio_stream::{Stream, StreamMap};
use tonic::Status;
use weir_proto::v1::generate_response::Event;

pub(super) async fn complete(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Response {
    client.with_request_id(handle(state, &client, request).await.into_response())
}

async fn handle(state: ApiState, client: &ClientContext, request: Request) -> Result<Response, ApiError> {
    let received_at = clock::now();
    let body = state.read_body(client, request).await?;
    let tenant = Arc::clone(&body.tenant);
    let mut request = state.parse(body, |bytes| CompletionRequest::parse(bytes, "the body")).await?;
    let engines = state.monitor.engines();
    let model = request.model.as_deref();
    if let Some(engine) = summary_completions::summarizer(engines, model)? {
        request.drop_biases_without_symbol(engine.card().vocabulary.len());
        return summary_completions::handle(&state, client, request, &engine, &tenant).await;
    }
    // `Generate` refuses an unknown model.
    if let Ok(engine) = engines.find_able("model", model, continues_text) {
        request.drop_biases_without_symbol(engine.card().vocabulary.len());
        // Only a model with a start mark continues an empty text.
        if engine.card().first_logits.is_none() {
            request.prompt.list()?;
        }
    }
    let completion = Completion::start(&state, client, &request).await?;
    let counts = completion.counts();
    if !request.wants_stream() {
        drop(request);
        return Ok(counts.add_header(completion.collect(&state, &tenant).await?));
    }
    let received_at = request.wants_boundaries().then_some(received_at);
    let events = CompletionEvents { completion, options: request.stream_options(), received_at };
    Ok(counts.add_header(sse::response(events, state.calls.jobs.late_headers).await?))
}

/// The calls of one request, and the output collected from them.
struct Completion {
    head: CompletionHead,
    choices: Vec<Choice>,
    choices_per_prompt: usize,
    /// The running calls by the index of their choice.
    streams: StreamMap<usize, Generated>,
}

impl Completion {
    async fn start(state: &ApiState, client: &ClientContext, request: &CompletionRequest) -> Result<Self, ApiError> {
        let mut choices = Vec::new();
        let mut streams = StreamMap::new();
        for (index, message) in request.generate_requests()?.enumerate() {
            let generated = state.calls.generate(client, message).await?;
            let changed = generated.response.encoder().normalized_chars();
            choices.push(Choice::new(index, request.wants_characters(), changed));
            streams.insert(index, generated);
        }
        let head = CompletionHead::new(&client.request_id);
        Ok(Self { head, choices, choices_per_prompt: request.choices_per_prompt(), streams })
    }

    /// Waits for messages until a choice has output. Returns the index of that choice.
    fn poll_choice(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<usize, Status>>> {
        loop {
            let Some((index, message)) = ready!(Pin::new(&mut self.streams).poll_next(cx)) else {
                return Poll::Ready(None);
            };
            let event = match message {
                Ok(message) => message.event,
                Err(status) => return Poll::Ready(Some(Err(status))),
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
                return Poll::Ready(Some(Ok(index)));
            }
        }
    }

    /// Returns all choices in one message, once they are complete.
    async fn collect(mut self, state: &ApiState, tenant: &Arc<str>) -> Result<Response, ApiError> {
        let mut size = state.collected.begin(tenant, "set stream to true");
        let mut bytes = 0_usize;
        while let Some(index) = std::future::poll_fn(|cx| self.poll_choice(cx)).await {
            let choice = self.choices.get_mut(index?);
            bytes = bytes.saturating_add(choice.map_or(0, Choice::take_growth));
            size.grow_to(bytes)?;
        }
        if !self.is_complete() {
            return Err(sse::ended_early().into());
        }
        // A long response also takes long to format.
        let formatted = state.calls.jobs.workers.run(tenant, bytes, move || {
            let usage = self.counts().usage();
            let choices = self.choices.iter_mut().map(Choice::take_output).collect();
            Json(self.head.message(choices, Some(usage))).into_response()
        });
        Ok(formatted.await?.map(|body| Body::new(GuardedBody::new(body, size))))
    }

    /// Returns true if all choices have ended.
    fn is_complete(&self) -> bool {
        self.choices.iter().all(Choice::is_complete)
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

/// A completion as server-sent events.
struct CompletionEvents {
    completion: Completion,
    options: StreamOptions,
    /// When the request arrived, if messages report the time since then.
    received_at: Option<Instant>,
}

impl EventSource for CompletionEvents {
    type Message = usize;

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<usize, Status>>> {
        self.completion.poll_choice(cx)
    }

    fn event(&mut self, index: usize) -> Option<Value> {
        let choice = self.completion.choices.get_mut(index)?.take_output();
        let usage = match self.options {
            StreamOptions { continuous_usage_stats: true, .. } => Some(self.completion.counts().usage()),
            StreamOptions { include_usage: true, .. } => Some(Value::Null),
            _ => None,
        };
        let mut message = self.completion.head.message(vec![choice], usage);
        if let (Some(received_at), Some(message)) = (self.received_at, message.as_object_mut()) {
            let elapsed_ns = u64::try_from(clock::since(received_at).as_nanos()).unwrap_or(u64::MAX);
            message.insert("elapsed_ns".into(), elapsed_ns.into());
        }
        Some(message)
    }

    fn is_complete(&self) -> bool {
        self.completion.is_complete()
    }

    fn last_event(&self) -> Option<Value> {
        let usage = || self.completion.counts().usage();
        self.options.include_usage.then(|| self.completion.head.message(Vec::new(), Some(usage())))
    }
}
