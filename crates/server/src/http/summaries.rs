//! `/v1/summaries`: one call of `Summarize`, collected or streamed. OpenAI has no such path, so field names are those of the gRPC
//! API.

use crate::{
    call::ClientContext,
    completion_request::{CompletionRequest, Names, Path, Surface},
    http::{
        error::{ApiError, Json},
        response::{self, Completion, CompletionHead, EventSource, SentChoice, event_line},
        state::{ApiState, JSON, Summarized},
    },
    middleware::limits::{CollectedSize, GuardedBody},
    registry::{Engines, Lease, continues_text, summarizes},
};
use axum::{
    Extension,
    body::{Body, Bytes},
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use prost::Message;
use serde_json::{Map, Value, json};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio_stream::{Stream, StreamExt, StreamMap};
use weir_engine::{
    sampling::{StopMatcher, StopStrings},
    summary::SummaryMode,
};
use weir_kernels::error::{Error, Result, floor_boundary};
use weir_models::{
    contract::{Card, DocumentLimits},
    text::{StreamDetokenizer, Vocabulary},
};
use weir_proto::v1::{self, SummarizeResponse, summarize_response::Event};

/// Memory of formatted fields relative to their encoded length. Objects repeat the names of their fields.
pub(crate) const FORMATTED: usize = 16;

pub(crate) async fn summarize(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = state.read_body(&client, request, JSON).await?;
    let tenant = Arc::clone(&body.tenant);
    let request = state.parse(body, |json| CompletionRequest::parse(json, Path::Summaries)).await?;
    if request.document.is_some() && request.document_id.is_some() {
        return Err(Error::Exclusive { first: "document", second: "document_id" }.into());
    }
    let names = request.names(Surface::Summaries);
    let in_own_words = |error| ApiError::named(error, &names);
    let engine = state.monitor.engines().find_able("model", request.model.as_deref(), summarizes);
    let stops = engine.and_then(|engine| SummaryStops::new(&request, engine.card())).map_err(in_own_words)?;
    let messages = request.summary_messages().map_err(in_own_words)?;
    let wants_stream = request.wants_stream();
    // The document is in the messages.
    drop(request);
    let messages = state.calls.summarize(&client, messages).await.map_err(in_own_words)?;
    let messages = StoppedSummary::new(messages, stops);
    let late_headers = state.calls.jobs.late_headers;
    if wants_stream {
        return response::response(SummaryEvents { messages, is_complete: false, names }, late_headers).await;
    }
    let size = state.collected.begin(&tenant, "set stream to true");
    collect(messages, size).await.map_err(in_own_words)
}

/// Returns the summary in one message, once it is complete.
async fn collect(mut response: StoppedSummary, mut size: CollectedSize) -> Result<Response> {
    let mut bytes = 0_usize;
    let mut summary = Map::new();
    let mut text = String::new();
    let mut selected = Vec::new();
    let mut parts = Vec::new();
    while let Some(message) = response.next().await.transpose()? {
        bytes = bytes.saturating_add(message.encoded_len().saturating_mul(FORMATTED));
        size.grow_to(bytes)?;
        match message.event {
            Some(Event::Started(started)) => {
                summary.insert("object".into(), "summary".into());
                summary.insert("model".into(), started.model.into());
            }
            Some(Event::Piece(piece)) => text.push_str(&piece.text),
            Some(Event::Selected(kept)) => selected.push(selected_json(&kept)),
            Some(Event::Part(part)) => parts.push(part_json(&part)),
            Some(Event::Finished(finished)) => {
                summary.insert("text".into(), std::mem::take(&mut text).into());
                summary.insert("selected".into(), std::mem::take(&mut selected).into());
                summary.extend(finished_fields(&finished));
                summary.insert("parts".into(), std::mem::take(&mut parts).into());
            }
            Some(Event::Progress(_)) | None => {}
        }
    }
    if !summary.contains_key("timing") {
        return Err(response::ended_early());
    }
    let response = Json(Value::from(summary)).into_response();
    Ok(response.map(|body| Body::new(GuardedBody::new(body, size))))
}

/// Converts an event to JSON under its name.
fn event_json(event: &Event) -> Value {
    match event {
        Event::Started(v1::SummaryStarted { request_id, model, cached_tokens }) => {
            json!({ "started": { "request_id": request_id, "model": model, "cached_tokens": cached_tokens } })
        }
        Event::Progress(progress) => json!({ "progress": progress }),
        Event::Selected(kept) => json!({ "selected": selected_json(kept) }),
        Event::Part(part) => json!({ "part": part_json(part) }),
        Event::Piece(v1::SummaryPiece { text }) => json!({ "piece": { "text": text } }),
        Event::Finished(end) => json!({ "finished": finished_fields(end) }),
    }
}

fn selected_json(v1::Selected { layer, spans, tokens, .. }: &v1::Selected) -> Value {
    json!({ "layer": layer, "tokens": tokens, "spans": spans })
}

fn part_json(part: &v1::SummaryPart) -> Value {
    let mut fields = json!(part);
    // The last event does not repeat the spans.
    if !part.selected.is_empty() {
        fields["selected"] = part.selected.iter().map(selected_json).collect();
    }
    fields
}

pub(crate) fn finished_fields(finished: &v1::SummaryFinished) -> Map<String, Value> {
    let reason = match finished.reason() {
        v1::SummaryFinishReason::EndOfText => "end_of_text",
        _ => "max_tokens",
    };
    let mut fields = Map::new();
    fields.insert("reason".into(), reason.into());
    fields.insert("document_id".into(), finished.document_id.clone().into());
    fields.insert("hypotheses".into(), json!(finished.hypotheses));
    fields.insert("usage".into(), json!(finished.usage.unwrap_or_default()));
    fields.insert("timing".into(), json!(finished.timing.clone().unwrap_or_default()));
    fields.insert("parts".into(), finished.parts.iter().map(part_json).collect());
    fields.insert("sentences".into(), json!(finished.sentences));
    fields
}

/// A summary as server-sent events.
struct SummaryEvents {
    messages: StoppedSummary,
    /// True after the last event.
    is_complete: bool,
    names: Names,
}

impl EventSource for SummaryEvents {
    type Message = SummarizeResponse;

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<SummarizeResponse>>> {
        Pin::new(&mut self.messages).poll_next(cx)
    }

    fn event(&mut self, message: SummarizeResponse) -> Option<Bytes> {
        self.is_complete |= matches!(message.event, Some(Event::Finished(_)));
        message.event.as_ref().map(|event| event_line(&event_json(event)))
    }

    fn names(&self) -> Names {
        self.names.clone()
    }

    fn is_output(&self, message: &SummarizeResponse) -> bool {
        !matches!(message.event, Some(Event::Started(_)))
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }
}

/// Returns the summarizer that a request is for, or none if the request is for a model that completes text, or for an unknown one.
/// Fails if the request names no model, none completes text, and several summarize.
pub(crate) fn summarizer(engines: &Engines, name: Option<&str>) -> Result<Option<Lease>> {
    match name.filter(|name| !name.is_empty()) {
        Some(name) => Ok(engines.find("model", Some(name)).ok().filter(|engine| summarizes(engine))),
        None if engines.all().iter().any(|engine| continues_text(engine)) => Ok(None),
        None => engines.find_able("model", None, summarizes).map(Some),
    }
}

/// Answers a completion request to a model that summarizes: each prompt is a document, and one call of `Summarize` answers it.
pub(crate) async fn complete_by_summaries(
    state: &ApiState,
    client: &ClientContext,
    request: CompletionRequest,
    engine: &Lease,
    tenant: &Arc<str>,
) -> Result<Response, ApiError> {
    let names = request.names(Surface::SummarizedPrompts);
    let completion = SummaryCompletion::start(state, client, &request, engine).await;
    let completion = completion.map_err(|error| ApiError::named(error, &names))?;
    response::complete(completion, state, tenant, request, None).await
}

#[derive(Default)]
struct PromptSummary {
    /// Text that was not sent yet.
    text: String,
    /// Text that may become part of a stop string.
    held: String,
    /// Bytes of the text that were taken to be sent.
    released: usize,
    /// Finds stop strings in the text; `None` after one, and if the text is not sent before its end.
    matcher: Option<StopMatcher>,
    finished: Option<v1::SummaryFinished>,
    is_complete: bool,
}

impl PromptSummary {
    /// Adds text that the model has written. Releases what can no longer become part of a stop string.
    fn push(&mut self, text: &str) {
        let Some(matcher) = &mut self.matcher else { return };
        self.held.push_str(text);
        if matcher.push_text(text).is_some() {
            // the last message has the tokens, and so the place
            self.matcher = None;
            return;
        }
        let free = floor_boundary(&self.held, self.held.len().saturating_sub(matcher.withheld()));
        self.text.extend(self.held.drain(..free));
        self.released += free;
    }
}

/// The stop strings of a request to a model that summarizes. Each ends a text where the model has written it.
struct SummaryStops {
    texts: Vec<String>,
    is_included: bool,
    /// A stop string that is complete before this many tokens does not count.
    min_tokens: usize,
    vocabulary: Arc<Vocabulary>,
}

/// The end of a text at a stop string.
struct StoppedText<'a> {
    /// Bytes of the text before the end.
    bytes: usize,
    /// Tokens up to the stop string's end.
    tokens: usize,
    stop: &'a str,
}

impl SummaryStops {
    fn new(request: &CompletionRequest, card: &Card) -> Result<Self> {
        let mut texts = StopStrings::new(request.stop.0.clone(), card)?.texts;
        if request.mode == Some(SummaryMode::Extract) {
            // sentences stay as the document has them
            texts.clear();
        }
        let min_tokens = request.min_tokens.map_or(0, |min| min as usize);
        let is_included = request.include_stop_str_in_output.unwrap_or_default();
        Ok(Self { texts, is_included, min_tokens, vocabulary: Arc::clone(&card.vocabulary) })
    }

    fn matcher(&self) -> StopMatcher {
        let bytes = |text: &String| text.bytes().map(u32::from).collect();
        StopMatcher::new(self.texts.iter().map(bytes).collect(), self.min_tokens)
    }

    /// Returns the matcher of a text that is sent while it is written. A minimum counts tokens, which only the last message has.
    fn stream_matcher(&self) -> Option<StopMatcher> {
        (self.texts.is_empty() || self.min_tokens == 0).then(|| self.matcher())
    }

    /// Returns where the text of these tokens ends, if a stop string ends it.
    fn find(&self, ids: &[u32]) -> Option<StoppedText<'_>> {
        if self.texts.is_empty() {
            return None;
        }
        let mut matcher = self.matcher();
        let mut stream = StreamDetokenizer::new(Arc::clone(&self.vocabulary));
        let mut before = 0;
        ids.iter().enumerate().find_map(|(index, &id)| {
            let text = stream.push(id);
            let Some((found, end)) = matcher.push_text(text) else {
                before += text.len();
                return None;
            };
            let bytes = before + end - if self.is_included { 0 } else { found.length };
            Some(StoppedText { bytes, tokens: index + 1, stop: &self.texts[found.index] })
        })
    }
}

/// The messages of one summary, whose texts stop strings end.
struct StoppedSummary {
    messages: Summarized,
    summary: PromptSummary,
    stops: SummaryStops,
    /// The last message, after the rest of the text.
    last: Option<SummarizeResponse>,
}

impl StoppedSummary {
    fn new(messages: Summarized, stops: SummaryStops) -> Self {
        let summary = PromptSummary { matcher: stops.stream_matcher(), ..PromptSummary::default() };
        Self { messages, summary, stops, last: None }
    }
}

impl Stream for StoppedSummary {
    type Item = Result<SummarizeResponse>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(last) = this.last.take() {
            return Poll::Ready(Some(Ok(last)));
        }
        loop {
            let mut message = match ready!(Pin::new(&mut this.messages).poll_next(cx)) {
                Some(Ok(message)) => message,
                ended => return Poll::Ready(ended),
            };
            let text = match &mut message.event {
                Some(Event::Piece(piece)) => {
                    this.summary.push(&piece.text);
                    std::mem::take(&mut this.summary.text)
                }
                Some(Event::Finished(finished)) => {
                    for (rank, text) in finished.hypotheses.iter_mut().enumerate() {
                        let Some(stopped) = this.stops.find(&text.ids) else { continue };
                        text.text.truncate(floor_boundary(&text.text, stopped.bytes));
                        text.ids.truncate(stopped.tokens);
                        text.logprobs.truncate(stopped.tokens);
                        if rank == 0 {
                            finished.reason = v1::SummaryFinishReason::EndOfText.into();
                        }
                    }
                    let best = finished.hypotheses.first();
                    let rest =
                        best.and_then(|best| best.text.get(this.summary.released..)).unwrap_or_default().to_owned();
                    if rest.is_empty() {
                        return Poll::Ready(Some(Ok(message)));
                    }
                    this.last = Some(message);
                    rest
                }
                _ => return Poll::Ready(Some(Ok(message))),
            };
            if !text.is_empty() {
                let event = Some(Event::Piece(v1::SummaryPiece { text }));
                return Poll::Ready(Some(Ok(SummarizeResponse { event })));
            }
        }
    }
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
    names: Names,
    /// Choices of each prompt.
    n: usize,
    /// Maximum tokens, end mark included, of a text that the model ended. In a longer text, the search forced the end mark.
    longest: usize,
    end: u32,
    stops: SummaryStops,
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
    ) -> Result<Self> {
        let name = &engine.card().name;
        let missing = || Error::Internal(format!("{name}: a summarizer without limits"));
        let limits: &DocumentLimits = engine.document_limits().ok_or_else(missing)?;
        let stops = SummaryStops::new(request, engine.card())?;
        let mut streams = StreamMap::new();
        for (index, messages) in
            request.summarize_requests(name, limits.marks.end, limits.generation.rules)?.into_iter().enumerate()
        {
            streams.insert(index, state.calls.summarize(client, messages).await?);
        }
        // By fairseq's rules, the search forces an end mark after this many tokens.
        let longest =
            request.max_tokens.or(request.min_tokens.filter(|min| *min as usize > limits.generation.max_tokens));
        let longest = longest.map_or(limits.generation.max_tokens, |max| max as usize);
        Ok(Self {
            head: CompletionHead::new(&client.request_id),
            names: request.names(Surface::SummarizedPrompts),
            n: request.choices_per_prompt(),
            longest,
            end: limits.marks.end,
            prompts: streams
                .iter()
                .map(|_| PromptSummary { matcher: stops.stream_matcher(), ..PromptSummary::default() })
                .collect(),
            stops,
            counts: SummaryCounts::default(),
            bytes: 0,
            streams,
        })
    }
}

impl Completion for SummaryCompletion {
    /// The output of index `n` belongs to prompt `n`.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<usize>>> {
        loop {
            let Some((index, message)) = ready!(Pin::new(&mut self.streams).poll_next(cx)) else {
                return Poll::Ready(None);
            };
            let message = match message {
                Ok(message) => message,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            self.bytes = self.bytes.saturating_add(message.encoded_len().saturating_mul(FORMATTED));
            let Some(prompt) = self.prompts.get_mut(index) else { continue };
            match message.event {
                Some(Event::Started(started)) => self.head.set_model(&started.model),
                Some(Event::Piece(piece)) => {
                    prompt.push(&piece.text);
                    return Poll::Ready(Some(Ok(index)));
                }
                Some(Event::Finished(finished)) => {
                    let usage = finished.usage.unwrap_or_default();
                    self.counts.prompt += usage.document_tokens;
                    self.counts.cached += usage.cached_tokens;
                    self.counts.generated += finished.parts.iter().map(|part| part.summary_tokens).sum::<u64>();
                    prompt.finished = Some(finished);
                    prompt.is_complete = true;
                    return Poll::Ready(Some(Ok(index)));
                }
                Some(Event::Progress(_) | Event::Selected(_) | Event::Part(_)) | None => {}
            }
        }
    }

    fn take_choices(&mut self, index: usize) -> Vec<SentChoice> {
        let first = index * self.n;
        let Some(prompt) = self.prompts.get_mut(index) else { return Vec::new() };
        let mut text = std::mem::take(&mut prompt.text);
        let choice = |index: usize, text: String, finish_reason: Option<&'static str>, stop: Option<&str>| SentChoice {
            index,
            text,
            logprobs: None,
            finish_reason,
            stop_reason: stop.map(str::to_owned),
            weir: None,
        };
        let Some(finished) = prompt.finished.take() else { return vec![choice(first, text, None, None)] };
        let mut choices = Vec::new();
        for (rank, hypothesis) in finished.hypotheses.iter().enumerate() {
            let stopped = self.stops.find(&hypothesis.ids);
            let tokens = stopped.as_ref().map_or(hypothesis.ids.len(), |stopped| stopped.tokens);
            self.counts.generated += tokens as u64;
            let ended = hypothesis.ids.last() == Some(&self.end) && hypothesis.ids.len() <= self.longest;
            let reason = if stopped.is_some() || ended { "stop" } else { "length" };
            let end = stopped.as_ref().map_or(hypothesis.text.len(), |stopped| stopped.bytes);
            // of the best text, a part was sent
            let sent = if rank == 0 { prompt.released } else { 0 };
            let rest = hypothesis.text.get(sent..end).unwrap_or_default();
            let own = if rank == 0 { std::mem::take(&mut text) + rest } else { rest.to_owned() };
            choices.push(choice(first + rank, own, Some(reason), stopped.map(|stopped| stopped.stop)));
        }
        if choices.is_empty() {
            choices.push(choice(first, text, Some("length"), None));
        }
        let mut fields = finished_fields(&finished);
        ["reason", "hypotheses"].iter().for_each(|name| drop(fields.remove(*name)));
        for (rank, (choice, hypothesis)) in choices.iter_mut().zip(&finished.hypotheses).enumerate() {
            let mut weir = if rank == 0 { std::mem::take(&mut fields) } else { Default::default() };
            weir.insert("score".into(), hypothesis.score.into());
            choice.weir = Some(weir.into());
        }
        choices
    }

    fn outputs(&self) -> usize {
        self.prompts.len()
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

    /// Counts of a prompt are known once its summary is complete.
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
}
