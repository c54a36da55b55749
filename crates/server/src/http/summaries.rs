//! `/v1/summaries`: one call of `Summarize`, collected or streamed. OpenAI has no such path, so field names are those of the gRPC
//! API.

use crate::{
    call::ClientContext,
    collected::CollectedSize,
    completion_request::{CompletionRequest, Prompt, Seed, Speculate, check_choices, own_name, parse_json},
    http::{
        error::ApiError,
        response::{self, Completion, CompletionHead, EventSource},
        state::{ApiState, Summarized},
    },
    middleware::limits::GuardedBody,
    registry::{Engines, Lease, continues_text, summarizes},
};
use axum::{
    Extension, Json,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use prost::Message;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio_stream::{Stream, StreamExt, StreamMap};
use weir_engine::{
    sampling::{StopMatcher, StopStrings},
    summary::LongDocuments,
};
use weir_kernels::error::{Error, Result, quoted};
use weir_models::{
    contract::{Card, DocumentLimits, EarlyStopping},
    text::{StreamDetokenizer, Vocabulary},
};
use weir_proto::v1::{self, SummarizeRequest, SummarizeResponse, summarize_request::Part, summarize_response::Event};

/// Maximum bytes of a document in one message of a call.
const CHUNK_BYTES: usize = 64 << 10;

/// Memory of formatted fields relative to their encoded length. Objects repeat the names of their fields.
pub(crate) const FORMATTED: usize = 16;

/// The fields of a summary request.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
pub(crate) struct SummaryRequest {
    model: Option<String>,
    document: Option<String>,
    document_id: Option<String>,
    #[serde(alias = "num_beams")]
    beam_size: Option<u32>,
    length_penalty: Option<f32>,
    #[serde(alias = "min_new_tokens")]
    min_tokens: Option<u32>,
    #[serde(alias = "max_new_tokens")]
    max_tokens: Option<u32>,
    #[serde(alias = "no_repeat_ngram_size")]
    no_repeat_ngram: Option<u32>,
    early_stopping: Option<EarlyStopping>,
    hypotheses: Option<u32>,
    cut: Option<bool>,
    long_documents: Option<LongDocuments>,
    hard_topk: Option<bool>,
    priority: Option<i32>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<Seed>,
    stream: Option<bool>,
}

impl SummaryRequest {
    /// Converts the request to the messages of the call: options, then the document in chunks.
    fn into_messages(self) -> Vec<SummarizeRequest> {
        let sampling = v1::Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: None,
            seed: self.seed.map(|Seed(seed)| seed),
            logit_bias: Vec::new(),
        };
        let options = v1::SummarizeOptions {
            model: self.model,
            beam_size: self.beam_size,
            length_penalty: self.length_penalty,
            min_tokens: self.min_tokens,
            max_tokens: self.max_tokens,
            no_repeat_ngram: self.no_repeat_ngram,
            hypotheses: self.hypotheses,
            // The summary is sampled only if the request has a sampling option; otherwise it is searched.
            sampling: (sampling != v1::Sampling::default()).then_some(sampling),
            cut: self.cut,
            document_id: self.document_id,
            priority: self.priority,
            hard_topk: self.hard_topk,
            early_stopping: self.early_stopping.map(|when| when.name().to_owned()),
            repetition_penalty: self.repetition_penalty,
            long_documents: self.long_documents.map(long_documents),
        };
        call_messages(options, &self.document.unwrap_or_default())
    }
}

/// Returns the value of the options for a choice.
pub(crate) fn long_documents(chosen: LongDocuments) -> i32 {
    let chosen = match chosen {
        LongDocuments::Refuse => v1::LongDocuments::Refuse,
        LongDocuments::Cut => v1::LongDocuments::Cut,
        LongDocuments::Chunk => v1::LongDocuments::Chunk,
    };
    chosen.into()
}

/// Returns the messages of a call: options, then the document in chunks.
pub(crate) fn call_messages(options: v1::SummarizeOptions, document: &str) -> Vec<SummarizeRequest> {
    let chunk = |text: &str| Part::Chunk(v1::DocumentChunk { text: text.to_owned() });
    let parts = std::iter::once(Part::Options(options)).chain(chunks(document).map(chunk));
    parts.map(|part| SummarizeRequest { part: Some(part) }).collect()
}

/// Reads the body of a request, and converts it to the messages of a call.
#[cfg(any(test, fuzzing))]
pub(crate) fn messages(body: &[u8]) -> Vec<SummarizeRequest> {
    parse_json::<SummaryRequest>(body, "the body").map(SummaryRequest::into_messages).unwrap_or_default()
}

/// Splits a text into chunks that end at a character boundary.
fn chunks(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let mut end = text.len().min(CHUNK_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let (chunk, rest) = text.split_at(end);
        text = rest;
        (!chunk.is_empty()).then_some(chunk)
    })
}

pub(crate) async fn summarize(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Response {
    client.with_request_id(handle(state, &client, request).await.into_response())
}

async fn handle(state: ApiState, client: &ClientContext, request: Request) -> Result<Response, ApiError> {
    let body = state.read_body(client, request).await?;
    let tenant = Arc::clone(&body.tenant);
    let request = state.parse(body, |bytes| parse_json::<SummaryRequest>(bytes, "the body")).await?;
    if request.document.is_some() && request.document_id.is_some() {
        return Err(Error::Exclusive { first: "document", second: "document_id" }.into());
    }
    let wants_stream = request.stream.unwrap_or(false);
    let response = state.calls.summarize(client, request.into_messages()).await?;
    if wants_stream {
        return response::response(
            SummaryEvents { messages: response, is_complete: false },
            state.calls.jobs.late_headers,
        )
        .await;
    }
    let size = state.collected.begin(&tenant, "set stream to true");
    collect(response, size).await
}

/// Returns the summary in one message, once it is complete.
async fn collect(mut response: Summarized, mut size: CollectedSize) -> Result<Response, ApiError> {
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
        return Err(response::ended_early().into());
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
        Event::Progress(progress) => json!({ "progress": progress_json(progress) }),
        Event::Selected(kept) => json!({ "selected": selected_json(kept) }),
        Event::Part(part) => json!({ "part": part_json(part) }),
        Event::Piece(v1::SummaryPiece { text }) => json!({ "piece": { "text": text } }),
        Event::Finished(end) => json!({ "finished": finished_fields(end) }),
    }
}

fn progress_json(progress: &v1::Progress) -> Value {
    json!({
        "stage": progress.stage,
        "layer": progress.layer,
        "tokens_read": progress.tokens_read,
        "blocks_encoded": progress.blocks_encoded,
        "blocks_total": progress.blocks_total,
        "document_bytes": progress.document_bytes,
        "cut": progress.cut,
    })
}

fn selected_json(v1::Selected { layer, spans, tokens }: &v1::Selected) -> Value {
    let span = |v1::Span { byte_start, byte_end, score }: &v1::Span| json!({ "byte_start": byte_start, "byte_end": byte_end, "score": score });
    json!({ "layer": layer, "tokens": tokens, "spans": spans.iter().map(span).collect::<Vec<_>>() })
}

fn part_json(part: &v1::SummaryPart) -> Value {
    let mut fields = json!({
        "round": part.round,
        "part": part.part,
        "byte_start": part.byte_start,
        "byte_end": part.byte_end,
        "round_bytes": part.round_bytes,
        "document_tokens": part.document_tokens,
        "summary_tokens": part.summary_tokens,
        "summary": part.summary,
    });
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
    let usage = finished.usage.unwrap_or_default();
    let timing = finished.timing.clone().unwrap_or_default();
    let hypothesis = |v1::Hypothesis { text, ids, score, logprobs }: &v1::Hypothesis| json!({ "text": text, "ids": ids, "score": score, "logprobs": logprobs });
    let layer = |layer: &v1::EncoderLayer| json!({ "length": layer.length, "ns": layer.ns });
    let mut fields = Map::new();
    fields.insert("reason".into(), reason.into());
    fields.insert("document_id".into(), finished.document_id.clone().into());
    fields.insert("hypotheses".into(), finished.hypotheses.iter().map(hypothesis).collect());
    let counts = json!({
        "document_tokens": usage.document_tokens,
        "cached_tokens": usage.cached_tokens,
        "cut": usage.cut,
        "summary_tokens": usage.summary_tokens,
        "vectors": usage.vectors,
        "cross_attention_bytes": usage.cross_attention_bytes,
        "unpooled_cross_attention_bytes": usage.unpooled_cross_attention_bytes,
        "document_bytes": usage.document_bytes,
    });
    fields.insert("usage".into(), counts);
    let times = json!({
        "queue_ns": timing.queue_ns,
        "upload_ns": timing.upload_ns,
        "encode_rest_ns": timing.encode_rest_ns,
        "blocks_at_end": timing.blocks_at_end,
        "blocks": timing.blocks,
        "layers": timing.layers.iter().map(layer).collect::<Vec<_>>(),
        "memory_ns": timing.memory_ns,
        "time_to_first_token_ns": timing.time_to_first_token_ns,
        "decode_ns": timing.decode_ns,
        "decode_ns_per_token": timing.decode_ns_per_token,
        "total_ns": timing.total_ns,
        "encode_ns": timing.encode_ns,
        "kept_share": timing.kept_share,
        "cross_attention_bytes": timing.cross_attention_bytes,
        "unpooled_cross_attention_bytes": timing.unpooled_cross_attention_bytes,
    });
    fields.insert("timing".into(), times);
    fields.insert("parts".into(), finished.parts.iter().map(part_json).collect());
    fields
}

/// A summary as server-sent events.
struct SummaryEvents {
    messages: Summarized,
    /// True after the last event.
    is_complete: bool,
}

impl EventSource for SummaryEvents {
    type Message = SummarizeResponse;

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<SummarizeResponse>>> {
        Pin::new(&mut self.messages).poll_next(cx)
    }

    fn event(&mut self, message: SummarizeResponse) -> Option<Value> {
        self.is_complete |= matches!(message.event, Some(Event::Finished(_)));
        message.event.as_ref().map(event_json)
    }

    fn is_output(&self, message: &SummarizeResponse) -> bool {
        !matches!(message.event, Some(Event::Started(_)))
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }
}

/// Returns the name in a completion request of a field or a method of the gRPC API.
fn completion_name(name: &str) -> &str {
    match own_name(name) {
        "document" => "prompt",
        "hypotheses" => "n",
        "beam_size" => "best_of",
        other => other,
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
    let completion = SummaryCompletion::start(state, client, &request, engine).await;
    let completion = completion.map_err(|error| ApiError::named(error, completion_name))?;
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
        let free = self.held.len().saturating_sub(matcher.withheld());
        let free = (0..=free).rev().find(|&end| self.held.is_char_boundary(end)).unwrap_or(0);
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
        let texts = StopStrings::new(request.stop.0.clone(), card)?.texts;
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
                    let tokens = |text: &v1::Hypothesis| {
                        self.stops.find(&text.ids).map_or(text.ids.len(), |stopped| stopped.tokens) as u64
                    };
                    self.counts.generated += finished.hypotheses.iter().map(tokens).sum::<u64>();
                    self.counts.generated += finished.parts.iter().map(|part| part.summary_tokens).sum::<u64>();
                    prompt.finished = Some(finished);
                    prompt.is_complete = true;
                    return Poll::Ready(Some(Ok(index)));
                }
                Some(Event::Progress(_) | Event::Selected(_) | Event::Part(_)) | None => {}
            }
        }
    }

    fn take_choices(&mut self, index: usize) -> Vec<Value> {
        let first = index * self.n;
        let Some(prompt) = self.prompts.get_mut(index) else { return Vec::new() };
        let mut text = std::mem::take(&mut prompt.text);
        let choice = |index: usize, text: &str, reason: Option<&str>, stop: Option<&str>| json!({ "index": index, "text": text, "logprobs": null, "finish_reason": reason, "stop_reason": stop });
        let Some(finished) = prompt.finished.take() else { return vec![choice(first, &text, None, None)] };
        let mut choices = Vec::new();
        for (rank, hypothesis) in finished.hypotheses.iter().enumerate() {
            let stopped = self.stops.find(&hypothesis.ids);
            let ended = hypothesis.ids.last() == Some(&self.end) && hypothesis.ids.len() <= self.longest;
            let reason = if stopped.is_some() || ended { "stop" } else { "length" };
            let end = stopped.as_ref().map_or(hypothesis.text.len(), |stopped| stopped.bytes);
            // of the best text, a part was sent
            let sent = if rank == 0 { prompt.released } else { 0 };
            let rest = hypothesis.text.get(sent..end).unwrap_or_default();
            let own = if rank == 0 { std::mem::take(&mut text) + rest } else { rest.to_owned() };
            choices.push(choice(first + rank, &own, Some(reason), stopped.map(|stopped| stopped.stop)));
        }
        if choices.is_empty() {
            choices.push(choice(first, &text, Some("length"), None));
        }
        let mut fields = finished_fields(&finished);
        ["reason", "hypotheses"].iter().for_each(|name| drop(fields.remove(*name)));
        for (rank, (choice, hypothesis)) in choices.iter_mut().zip(&finished.hypotheses).enumerate() {
            let mut weir = if rank == 0 { std::mem::take(&mut fields) } else { Default::default() };
            weir.insert("score".into(), hypothesis.score.into());
            choice["weir"] = weir.into();
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

    fn error(&self, error: Error) -> ApiError {
        ApiError::named(error, completion_name)
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

impl CompletionRequest {
    /// Returns the requests of `Summarize`, one for each prompt. Fails if an option is unsupported; `Summarize` checks the others.
    pub(crate) fn summarize_requests(&self, model: &str) -> Result<Vec<Vec<SummarizeRequest>>> {
        self.reject_unsupported()?;
        self.reject_unsummarized()?;
        let n = self.choices_per_prompt();
        let prompts = self.prompt.list()?;
        check_choices(n, prompts.len())?;
        if let Some(best_of) = self.best_of.filter(|best_of| *best_of < n) {
            return Err(Error::bad_option("best_of", best_of.to_string(), format!("at least {n} (the value of n)")));
        }
        let width = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let options = v1::SummarizeOptions {
            model: Some(model.to_owned()),
            beam_size: self.best_of.map(width),
            length_penalty: self.length_penalty,
            min_tokens: self.min_tokens,
            max_tokens: self.max_tokens,
            no_repeat_ngram: self.no_repeat_ngram,
            hypotheses: Some(width(n)),
            sampling: self.summary_sampling()?,
            cut: self.cut,
            document_id: None,
            priority: self.priority,
            hard_topk: None,
            early_stopping: self.early_stopping.map(|when| when.name().to_owned()),
            repetition_penalty: self.repetition_penalty,
            long_documents: self.long_documents.map(long_documents),
        };
        let messages = |prompt: &Prompt| match prompt {
            Prompt::Text(text) => Ok(call_messages(options.clone(), text)),
            Prompt::Ids(_) => Err(Error::bad_option("prompt", "token ids", "a text (this model summarizes texts)")),
        };
        prompts.iter().map(messages).collect()
    }

    /// Returns the options of sampling, if the request has a temperature above 0. Beams are searched otherwise, and options of
    /// sampling that would change a text are refused.
    fn summary_sampling(&self) -> Result<Option<v1::Sampling>> {
        let top_k = self.top_k()?;
        if self.temperature.is_none_or(|temperature| temperature == 0.0) {
            let biases = self.logit_bias.0.len();
            for (field, found) in [
                ("logit_bias", (biases > 0).then(|| format!("{biases} biases"))),
                ("top_p", self.top_p.filter(|p| *p != 1.0).map(|p| p.to_string())),
                ("top_k", top_k.filter(|k| *k != 0).map(|k| k.to_string())),
                ("min_p", self.min_p.filter(|p| *p != 0.0).map(|p| p.to_string())),
            ] {
                if let Some(found) = found {
                    return Err(Error::bad_option(field, found, "no value without a temperature above 0"));
                }
            }
            return Ok(None);
        }
        let seed = self.seed.map(|Seed(seed)| seed);
        Ok(Some(v1::Sampling { repetition_penalty: None, ..self.sampling(top_k, seed) }))
    }

    /// Fails if an option is set that summaries do not have.
    fn reject_unsummarized(&self) -> Result<()> {
        let is_true = |flag: Option<bool>| flag.filter(|flag| *flag).map(|flag| flag.to_string());
        for (field, found) in [
            ("echo", is_true(self.echo)),
            ("ignore_eos", is_true(self.ignore_eos)),
            ("boundaries", is_true(self.boundaries)),
            ("boundary_mode", self.boundary_mode.as_deref().map(quoted)),
            ("logprobs", self.logprobs.map(|count| count.to_string())),
            ("max_segments", self.max_segments.map(|count| count.to_string())),
            ("speculate", self.speculate.as_ref().map(|Speculate(setting)| quoted(setting))),
            ("resume_text", self.resume_text.as_deref().filter(|text| !text.is_empty()).map(quoted)),
        ] {
            if let Some(found) = found {
                return Err(Error::bad_option(field, found, "no value (this model summarizes the prompt)"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::v1::summarize_request::Part;

    #[test]
    fn documents_are_split_at_character_boundaries() {
        let text = format!("a{}", "é".repeat(CHUNK_BYTES));
        let parts: Vec<_> = chunks(&text).collect();
        assert!(parts.len() > 2 && parts.iter().all(|part| part.len() <= CHUNK_BYTES));
        assert_eq!(parts.concat(), text);
        assert_eq!(chunks("").count(), 0);
    }

    #[test]
    fn summaries_are_sampled_only_on_request() {
        let options = |body: &str| {
            let mut messages = parse_json::<SummaryRequest>(body.as_bytes(), "the body").unwrap().into_messages();
            assert_eq!(messages.len(), 2);
            match messages.swap_remove(0).part {
                Some(Part::Options(options)) => options,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(options(r#"{"document": "a", "beam_size": 3}"#).sampling, None);
        assert!(options(r#"{"document": "a", "seed": 3}"#).sampling.is_some());
        let search = options(r#"{"document": "a", "repetition_penalty": 1.5, "early_stopping": true}"#);
        assert_eq!((search.sampling, search.repetition_penalty), (None, Some(1.5)));
        assert_eq!(search.early_stopping.as_deref(), Some("true"));
        let names = r#"{"document": "a", "num_beams": 2, "min_new_tokens": 3, "max_new_tokens": 4,
            "no_repeat_ngram_size": 5, "early_stopping": "never"}"#;
        let names = options(names);
        assert_eq!((names.beam_size, names.min_tokens, names.max_tokens), (Some(2), Some(3), Some(4)));
        assert_eq!((names.no_repeat_ngram, names.early_stopping.as_deref()), (Some(5), Some("never")));
        assert!(parse_json::<SummaryRequest>(br#"{"document": "a", "beam": 3}"#, "the body").is_err());
    }

    /// Returns the options and the text of each call.
    fn calls(body: &str) -> Result<Vec<(v1::SummarizeOptions, String)>> {
        let request = parse_json::<CompletionRequest>(body.as_bytes(), "the body")?;
        let call = |messages: Vec<SummarizeRequest>| {
            let mut options = None;
            let mut text = String::new();
            for message in messages {
                match message.part.unwrap() {
                    Part::Options(own) => options = Some(own),
                    Part::Chunk(chunk) => text.push_str(&chunk.text),
                }
            }
            (options.unwrap(), text)
        };
        Ok(request.summarize_requests("flan")?.into_iter().map(call).collect())
    }

    #[test]
    fn a_prompt_is_a_document() {
        let all = calls(r#"{"prompt": ["a", "b"], "n": 2, "max_tokens": 9, "temperature": 0, "seed": 3}"#).unwrap();
        let [(options, first), (_, second)] = &all[..] else { panic!("{all:?}") };
        assert_eq!((first.as_str(), second.as_str()), ("a", "b"));
        assert_eq!((options.model.as_deref(), options.beam_size, options.hypotheses), (Some("flan"), None, Some(2)));
        assert_eq!((options.max_tokens, &options.sampling), (Some(9), &None));
        let (options, _) = &calls(r#"{"prompt": "a", "best_of": 6, "early_stopping": "never"}"#).unwrap()[0];
        assert_eq!((options.beam_size, options.hypotheses, options.max_tokens), (Some(6), Some(1), None));
        assert_eq!(options.early_stopping.as_deref(), Some("never"));
        let (options, _) = &calls(r#"{"prompt": "a", "temperature": 0.7, "repetition_penalty": 2}"#).unwrap()[0];
        assert_eq!(options.sampling.as_ref().unwrap().temperature, Some(0.7));
        assert_eq!((options.beam_size, options.repetition_penalty), (None, Some(2.0)));
        for (name, choice) in [("refuse", v1::LongDocuments::Refuse), ("cut", v1::LongDocuments::Cut)] {
            let body = format!(r#"{{"prompt": "a", "long_documents": "{name}"}}"#);
            assert_eq!(calls(&body).unwrap()[0].0.long_documents(), choice);
        }
    }
}
