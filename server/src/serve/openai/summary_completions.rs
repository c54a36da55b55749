//! `/v1/completions` with a model that summarizes: each prompt is a document, and one call of `Summarize` answers it.

use super::{
    error::ApiError,
    response::CompletionHead,
    sse::{self, EventSource},
    state::{ApiState, Summarized},
    summaries::{FORMATTED, finished_fields},
};
use crate::{
    decode::document::DocumentLimits,
    error::{Error, Result},
    serve::{
        calls::ClientContext,
        completion_request::{CompletionRequest, StreamOptions},
        middleware::guarded_body::GuardedBody,
        registry::{
            abilities::{continues_text, summarizes},
            engines::{Engines, Lease},
        },
    },
};
use axum::{
    Json,
    body::Body,
    response::{IntoResponse, Response},
};
use prost::Message;
use serde_json::{Value, json};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio_stream::{Stream, StreamMap};
use tonic::Status;
use weir_proto::v1::{self, summarize_response::Event};

/// Fields of a summary request whose names in a completion request differ.
const FIELDS: [(&str, &str); 3] = [("document", "prompt"), ("hypotheses", "n"), ("beam_size", "best_of")];

/// Returns the summarizer that a request is for, or none if the request is for a model that completes text, or for an unknown one.
/// Fails if the request names no model, none completes text, and several summarize.
pub(super) fn summarizer(engines: &Engines, name: Option<&str>) -> Result<Option<Lease>> {
    match name.filter(|name| !name.is_empty()) {
        Some(name) => Ok(engines.find("model", Some(name)).ok().filter(|engine| summarizes(engine))),
        None if engines.all().iter().any(|engine| continues_text(engine)) => Ok(None),
        None => engines.find_able("model", None, summarizes).map(Some),
    }
}

/// Answers a completion request by summaries.
pub(super) async fn handle(
    state: &ApiState,
    client: &ClientContext,
    request: CompletionRequest,
    engine: &Lease,
    tenant: &Arc<str>,
) -> Result<Response, ApiError> {
    let completion = SummaryCompletion::start(state, client, &request, engine).await;
    let completion = completion.map_err(|error| error.renamed(&FIELDS))?;
    if request.wants_stream() {
        let events = SummaryCompletionEvents { completion, options: request.stream_options() };
        return sse::response(events, state.calls.jobs.late_headers).await;
    }
    // Its texts need not wait for the summaries.
    drop(request);
    completion.collect(state, tenant).await.map_err(|error| error.renamed(&FIELDS))
}

/// The summary of one prompt.
#[derive(Default)]
struct PromptSummary {
    /// Text that was not sent yet.
    text: String,
    finished: Option<v1::SummaryFinished>,
    is_complete: bool,
}

/// Counts of tokens.
#[derive(Default, Clone, Copy)]
struct SummaryCounts {
    prompt: u64,
    cached: u64,
    generated: u64,
}

/// The calls of one request.
struct SummaryCompletion {
    head: CompletionHead,
    /// Choices of each prompt.
    n: usize,
    /// Maximum tokens, end mark included, of a text that the model ended. In a longer text, the search forced the end mark.
    longest: usize,
    end: u32,
    prompts: Vec<PromptSummary>,
    counts: SummaryCounts,
    /// Bytes of the messages, as formatted.
    bytes: usize,
    /// The running calls by the index of their prompt.
    streams: StreamMap<usize, Summarized>,
}

impl SummaryCompletion {
    async fn start(
        state: &ApiState,
        client: &ClientContext,
        request: &CompletionRequest,
        engine: &Lease,
    ) -> Result<Self, ApiError> {
        let name = &engine.card().name;
        let missing = || Error::Internal(format!("{name}: a summarizer without limits"));
        let limits: &DocumentLimits = engine.document_limits().ok_or_else(missing)?;
        let mut streams = StreamMap::new();
        for (index, messages) in request.summarize_requests(name)?.into_iter().enumerate() {
            streams.insert(index, state.calls.summarize(client, messages).await?);
        }
        // By fairseq's rules, the search forces an end mark after this many tokens.
        let longest =
            request.max_tokens.or(request.min_tokens.filter(|min| *min as usize > limits.generation.max_tokens));
        let longest = longest.map_or(limits.generation.max_tokens, |max| max as usize);
        Ok(Self {
            head: CompletionHead::new(&client.request_id),
            n: request.choices_per_prompt(),
            longest,
            end: limits.marks.end,
            prompts: (0..streams.len()).map(|_| PromptSummary::default()).collect(),
            counts: SummaryCounts::default(),
            bytes: 0,
            streams,
        })
    }

    /// Waits for messages until a prompt has output. Returns the index of that prompt.
    fn poll_prompt(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<usize, Status>>> {
        loop {
            let Some((index, message)) = ready!(Pin::new(&mut self.streams).poll_next(cx)) else {
                return Poll::Ready(None);
            };
            let message = match message {
                Ok(message) => message,
                Err(status) => return Poll::Ready(Some(Err(status))),
            };
            self.bytes = self.bytes.saturating_add(message.encoded_len().saturating_mul(FORMATTED));
            let Some(prompt) = self.prompts.get_mut(index) else { continue };
            match message.event {
                Some(Event::Started(started)) => self.head.set_model(&started.model),
                Some(Event::Piece(piece)) => {
                    prompt.text.push_str(&piece.text);
                    return Poll::Ready(Some(Ok(index)));
                }
                Some(Event::Finished(finished)) => {
                    let usage = finished.usage.unwrap_or_default();
                    self.counts.prompt += usage.document_tokens;
                    self.counts.cached += usage.cached_tokens;
                    self.counts.generated += finished.hypotheses.iter().map(|text| text.ids.len() as u64).sum::<u64>();
                    self.counts.generated += finished.parts.iter().map(|part| part.summary_tokens).sum::<u64>();
                    prompt.finished = Some(finished);
                    prompt.is_complete = true;
                    return Poll::Ready(Some(Ok(index)));
                }
                Some(Event::Progress(_) | Event::Selected(_) | Event::Part(_)) | None => {}
            }
        }
    }

    /// Takes the output of a prompt since the last call, in OpenAI's form: its choices.
    fn take_choices(&mut self, index: usize) -> Vec<Value> {
        let first = index * self.n;
        let Some(prompt) = self.prompts.get_mut(index) else { return Vec::new() };
        let text = std::mem::take(&mut prompt.text);
        let choice = |index: usize, text: &str, reason: Option<&str>| json!({ "index": index, "text": text, "logprobs": null, "finish_reason": reason, "stop_reason": null });
        let Some(finished) = prompt.finished.take() else { return vec![choice(first, &text, None)] };
        let reason = |hypothesis: &v1::Hypothesis| {
            let ended = hypothesis.ids.last() == Some(&self.end) && hypothesis.ids.len() <= self.longest;
            Some(if ended { "stop" } else { "length" })
        };
        let best_reason = finished.hypotheses.first().map_or(Some("length"), &reason);
        let mut choices = vec![choice(first, &text, best_reason)];
        let others = finished.hypotheses.iter().enumerate().skip(1);
        choices.extend(others.map(|(rank, other)| choice(first + rank, &other.text, reason(other))));
        let mut fields = finished_fields(&finished);
        ["reason", "hypotheses"].iter().for_each(|name| drop(fields.remove(*name)));
        for (rank, (choice, hypothesis)) in choices.iter_mut().zip(&finished.hypotheses).enumerate() {
            let mut weir = if rank == 0 { std::mem::take(&mut fields) } else { Default::default() };
            weir.insert("score".into(), hypothesis.score.into());
            choice["weir"] = weir.into();
        }
        choices
    }

    fn usage(&self) -> Value {
        let SummaryCounts { prompt, cached, generated } = self.counts;
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": { "cached_tokens": cached },
        })
    }

    fn is_complete(&self) -> bool {
        self.prompts.iter().all(|prompt| prompt.is_complete)
    }

    /// Returns all choices in one message, once they are complete.
    async fn collect(mut self, state: &ApiState, tenant: &Arc<str>) -> Result<Response, ApiError> {
        let mut size = state.collected.begin(tenant, "set stream to true");
        while let Some(index) = std::future::poll_fn(|cx| self.poll_prompt(cx)).await {
            index?;
            size.grow_to(self.bytes)?;
        }
        if !self.is_complete() {
            return Err(sse::ended_early().into());
        }
        let choices = (0..self.prompts.len()).flat_map(|index| self.take_choices(index)).collect();
        let response = Json(self.head.message(choices, Some(self.usage()))).into_response();
        Ok(response.map(|body| Body::new(GuardedBody::new(body, size))))
    }
}

/// A completion by summaries as server-sent events.
struct SummaryCompletionEvents {
    completion: SummaryCompletion,
    options: StreamOptions,
}

impl EventSource for SummaryCompletionEvents {
    type Message = usize;

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<usize, Status>>> {
        self.completion.poll_prompt(cx)
    }

    fn event(&mut self, index: usize) -> Option<Value> {
        let choices = self.completion.take_choices(index);
        let usage = match self.options {
            // Counts of a prompt are known once its summary is complete.
            StreamOptions { continuous_usage_stats: true, .. } => Some(self.completion.usage()),
            StreamOptions { include_usage: true, .. } => Some(Value::Null),
            _ => None,
        };
        Some(self.completion.head.message(choices, usage))
    }

    fn error(&self, status: Status) -> ApiError {
        ApiError::from(status).renamed(&FIELDS)
    }

    fn is_complete(&self) -> bool {
        self.completion.is_complete()
    }

    fn last_event(&self) -> Option<Value> {
        self.options.include_usage.then(|| self.completion.head.message(Vec::new(), Some(self.completion.usage())))
    }
}
