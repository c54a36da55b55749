//! Completions in OpenAI's JSON, collected or as server-sent events.

use crate::{
    completion_request::{CompletionRequest, Names, StreamOptions, finish_reason},
    http::{
        error::{ApiError, Json, json_text},
        state::{ApiState, unix_seconds},
    },
    middleware::limits::GuardedBody,
    transport::http1::NORMALIZED_CHARS,
};
use axum::{
    body::{Body, BodyDataStream, Bytes},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::{
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use weir_engine::clock;
use weir_kernels::error::{Error, Result};
use weir_models::text::PlacedText;
use weir_proto::v1;

/// The fields that all messages of one completion share.
#[derive(Clone)]
pub(crate) struct CompletionHead {
    id: String,
    created: u64,
    model: String,
}

impl CompletionHead {
    /// Starts a completion; its id is made from the request's.
    pub(crate) fn new(request_id: &str) -> Self {
        Self { id: format!("cmpl-{request_id}"), created: unix_seconds(), model: String::new() }
    }

    /// Sets the model's name, once.
    pub(crate) fn set_model(&mut self, model: &str) {
        if self.model.is_empty() {
            model.clone_into(&mut self.model);
        }
    }

    /// Builds a message with these choices.
    fn message(&self, choices: Vec<SentChoice>, usage: Option<Value>) -> CompletionMessage<'_> {
        let Self { id, created, model } = self;
        CompletionMessage { id, object: "text_completion", created: *created, model, choices, usage, elapsed_ns: None }
    }
}

/// A message of a completion, in OpenAI's form. It is not a `Value`, because that would take half of the time of a streamed character
/// here.
#[derive(Serialize)]
struct CompletionMessage<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<SentChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    elapsed_ns: Option<u64>,
}

/// The output of a choice in a message.
#[derive(Serialize)]
pub(crate) struct SentChoice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<Value>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<String>,
    /// Fields that OpenAI's API does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) weir: Option<Value>,
}

/// The calls of one completion request, which run concurrently, and their output.
pub(crate) trait Completion: Unpin + Send + 'static {
    /// Waits for messages until there is output. Returns its index.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<usize>>>;

    /// Takes the output of this index since the last call, in OpenAI's form: its choices.
    fn take_choices(&mut self, index: usize) -> Vec<SentChoice>;

    /// Returns the number of indices.
    fn outputs(&self) -> usize;

    /// Returns the memory in bytes of the output so far.
    fn bytes(&self) -> usize;

    /// Returns true if all calls have sent their last message.
    fn is_complete(&self) -> bool;

    fn head(&self) -> &CompletionHead;

    fn usage(&self) -> Value;

    /// Returns the names that errors of the calls have.
    fn names(&self) -> &Names;
}

/// Answers a request, which arrived at `received_at` if messages report the time since then.
pub(crate) async fn complete<C: Completion>(
    mut completion: C,
    state: &ApiState,
    tenant: &Arc<str>,
    request: CompletionRequest,
    received_at: Option<Instant>,
) -> Result<Response, ApiError> {
    let jobs = &state.calls.jobs;
    if request.wants_stream() {
        let events = CompletionEvents { completion, options: request.stream_options(), received_at };
        return response(events, jobs.late_headers).await;
    }
    // Its texts need not wait for the output.
    drop(request);
    let mut size = state.collected.begin(tenant, "set stream to true");
    while let Some(index) = poll_fn(|cx| completion.poll_output(cx)).await {
        index.map_err(|error| ApiError::named(error, completion.names()))?;
        size.grow_to(completion.bytes())?;
    }
    if !completion.is_complete() {
        return Err(ended_early().into());
    }
    // A long response also takes long to format.
    let formatted = jobs.workers.run(tenant, completion.bytes(), move || {
        let choices = (0..completion.outputs()).flat_map(|index| completion.take_choices(index)).collect();
        Json(completion.head().message(choices, Some(completion.usage()))).into_response()
    });
    Ok(formatted.await?.map(|body| Body::new(GuardedBody::new(body, size))))
}

/// A completion as server-sent events.
struct CompletionEvents<C> {
    completion: C,
    options: StreamOptions,
    received_at: Option<Instant>,
}

impl<C: Completion> EventSource for CompletionEvents<C> {
    type Message = usize;

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<usize>>> {
        self.completion.poll_output(cx)
    }

    fn event(&mut self, index: usize) -> Option<Bytes> {
        let choices = self.completion.take_choices(index);
        let usage = match self.options {
            StreamOptions { continuous_usage_stats: true, .. } => Some(self.completion.usage()),
            StreamOptions { include_usage: true, .. } => Some(Value::Null),
            _ => None,
        };
        let mut message = self.completion.head().message(choices, usage);
        if let Some(received_at) = self.received_at {
            let elapsed_ns = u64::try_from(clock::since(received_at).as_nanos()).unwrap_or(u64::MAX);
            message.elapsed_ns = Some(elapsed_ns);
        }
        Some(event_line(&message))
    }

    fn names(&self) -> Names {
        self.completion.names().clone()
    }

    fn is_complete(&self) -> bool {
        self.completion.is_complete()
    }

    fn last_event(&self) -> Option<Bytes> {
        let message = || self.completion.head().message(Vec::new(), Some(self.completion.usage()));
        self.options.include_usage.then(|| event_line(&message()))
    }
}

/// Memory of a character in the lists of a choice, besides the texts.
const CHARACTER_BYTES: usize = 512;

/// Memory of one of its alternatives, besides the texts.
const ALTERNATIVE_BYTES: usize = 160;

/// The output of one choice of a completion.
#[derive(Default)]
pub(crate) struct Choice {
    index: usize,
    text: String,
    characters: Option<CharacterLists>,
    /// Offsets of the characters in the choice's text.
    offsets: TextOffsets,
    /// The prompt that the text begins with, if it was a text.
    echoed: Option<Arc<PlacedText>>,
    /// Symbols of it that were added.
    echoed_symbols: usize,
    pub(crate) counts: TokenCounts,
    finished: Option<v1::Finished>,
    /// True after the last event.
    complete: bool,
    /// Bytes of memory, estimated, by which the output has grown since this was last taken.
    growth: usize,
}

/// Numbers of symbols, which this API calls tokens, and of Unicode characters.
#[derive(Default, Clone, Copy)]
pub(crate) struct TokenCounts {
    prompt: u64,
    cached: u64,
    generated: u64,
    prompt_text_chars: u64,
    normalized_chars: u64,
    generated_text_chars: u64,
}

impl TokenCounts {
    /// Adds the counts of another choice.
    pub(crate) fn add(self, other: Self) -> Self {
        Self {
            prompt: self.prompt + other.prompt,
            cached: self.cached + other.cached,
            generated: self.generated + other.generated,
            prompt_text_chars: self.prompt_text_chars + other.prompt_text_chars,
            normalized_chars: self.normalized_chars + other.normalized_chars,
            generated_text_chars: self.generated_text_chars + other.generated_text_chars,
        }
    }

    /// Leaves out the prompt, which another choice has counted.
    pub(crate) fn without_prompt(self) -> Self {
        Self { prompt: 0, cached: 0, prompt_text_chars: 0, normalized_chars: 0, ..self }
    }

    /// Adds the header with the characters that normalising changed, if it changed any.
    pub(crate) fn add_header(self, mut response: Response) -> Response {
        if self.normalized_chars > 0 {
            response.headers_mut().insert(NORMALIZED_CHARS, self.normalized_chars.into());
        }
        response
    }

    /// Returns the counts in OpenAI's form, with three keys more for characters.
    pub(crate) fn usage(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": { "cached_tokens": self.cached },
            "prompt_text_chars": self.prompt_text_chars,
            "completion_text_chars": self.generated_text_chars,
            "normalized_chars": self.normalized_chars,
        })
    }
}

/// Properties of characters, one list for each.
#[derive(Default)]
struct CharacterLists {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
    boundaries: Vec<Value>,
    boundary_probabilities: Vec<Value>,
    chunk_depths: Vec<Value>,
    /// Null unless the text must have a form.
    constraint_masses: Vec<Value>,
}

impl Choice {
    /// Starts the choice at this index, whose text begins with `echoed`. Normalising changed `normalized_chars` characters of its
    /// prompt.
    pub(crate) fn new(
        index: usize,
        with_characters: bool,
        normalized_chars: u64,
        echoed: Option<Arc<PlacedText>>,
    ) -> Self {
        let counts = TokenCounts { normalized_chars, ..TokenCounts::default() };
        Self { index, characters: with_characters.then(CharacterLists::default), counts, echoed, ..Self::default() }
    }

    /// Records that the engine has started the request.
    pub(crate) fn start(&mut self, started: &v1::Started) {
        self.counts.prompt = started.prompt_chars;
        self.counts.cached = started.cached_chars;
        self.counts.prompt_text_chars = started.prompt_text_chars();
        self.counts.generated = started.resumed_chars;
    }

    /// Adds text.
    pub(crate) fn push(&mut self, piece: v1::Piece) {
        self.text.push_str(&piece.text);
        self.growth += piece.text.len();
        if !piece.prompt {
            // Pieces without character details are counted at the end.
            self.counts.generated += piece.characters.iter().filter(|character| !character.ends_text).count() as u64;
            self.counts.generated_text_chars += piece.text.chars().count() as u64;
        }
        let echoed = self.echoed.as_ref().filter(|_| piece.prompt);
        if let Some(characters) = &mut self.characters {
            for character in piece.characters {
                self.growth += CHARACTER_BYTES + character.top.len() * ALTERNATIVE_BYTES;
                let bytes = character.raw_bytes.as_deref().unwrap_or(character.text.as_bytes());
                let offset = match echoed {
                    Some(echoed) => echoed.character_of(self.echoed_symbols),
                    None => self.offsets.push(bytes),
                };
                self.echoed_symbols += 1;
                characters.push(character, offset);
            }
        }
        if echoed.is_some() {
            self.offsets.characters += piece.text.chars().count();
        }
    }

    /// Records the end.
    pub(crate) fn finish(&mut self, finished: v1::Finished) {
        if let Some(usage) = &finished.usage {
            self.counts.generated = usage.generated_chars;
            if let Some(chars) = usage.generated_text_chars {
                self.counts.generated_text_chars = chars;
            }
        }
        self.finished = Some(finished);
        self.complete = true;
    }

    /// Returns true after the last event.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the bytes of memory by which the output has grown since the last call.
    pub(crate) fn take_growth(&mut self) -> usize {
        std::mem::take(&mut self.growth)
    }

    /// Returns true if there is output to send.
    pub(crate) fn has_output(&self) -> bool {
        self.finished.is_some()
            || !self.text.is_empty()
            || self.characters.as_ref().is_some_and(|lists| !lists.tokens.is_empty())
    }

    /// Takes the output since the last call, in OpenAI's form.
    pub(crate) fn take_output(&mut self) -> SentChoice {
        let text = std::mem::take(&mut self.text);
        let characters = self.characters.as_mut().map(|characters| std::mem::take(characters).json());
        let finished = self.finished.take();
        let reason = finished.as_ref().map(|finished| finish_reason(finished.reason()));
        let stop = finished.as_ref().and_then(|finished| finished.matched_stop.clone());
        SentChoice {
            index: self.index,
            text,
            logprobs: characters,
            finish_reason: reason,
            stop_reason: stop,
            weir: finished.as_ref().map(measurements),
        }
    }
}

impl CharacterLists {
    fn push(&mut self, character: v1::Character, offset: usize) {
        self.token_logprobs.push(character.logprob.into());
        let token = token(character.text, character.raw_bytes);
        let mut top = Map::new();
        for other in character.top {
            let mut name = self::token(other.text, other.raw_bytes);
            // of several tokens with one text, such as marks, only the sampled or the likeliest one is named by it
            if top.contains_key(&name) || (name == token && other.id != character.id) {
                name = format!("token_id:{}", other.id);
            }
            top.insert(name, other.logprob.into());
        }
        // The sampled character is always in the list, as in OpenAI's API.
        if let Some(logprob) = character.logprob {
            top.entry(token.clone()).or_insert_with(|| logprob.into());
        }
        self.top_logprobs.push(if top.is_empty() { Value::Null } else { top.into() });
        self.text_offset.push(offset.into());
        self.boundaries.push(character.boundary.into());
        self.boundary_probabilities.push(character.boundary_probability.into());
        self.chunk_depths.push(character.chunk_depth.into());
        self.constraint_masses.push(character.constraint_mass.into());
        self.tokens.push(token.into());
    }

    fn json(self) -> Value {
        let mut lists = json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
            "boundaries": self.boundaries,
            "boundary_probabilities": self.boundary_probabilities,
            "chunk_depths": self.chunk_depths,
        });
        if !self.constraint_masses.iter().all(Value::is_null) {
            lists["constraint_mass"] = self.constraint_masses.into();
        }
        lists
    }
}

/// Returns a token as OpenAI's API writes it: its text, or `bytes:\xc3` if its bytes are not text on their own.
fn token(text: String, raw_bytes: Option<Vec<u8>>) -> String {
    match raw_bytes {
        Some(bytes) => bytes.iter().fold("bytes:".to_owned(), |token, byte| format!("{token}\\x{byte:02x}")),
        None => text,
    }
}

/// Returns the fields that OpenAI's API does not have: segments and times.
fn measurements(finished: &v1::Finished) -> Value {
    let usage = finished.usage.unwrap_or_default();
    let timing = finished.timing.unwrap_or_default();
    let mut object = json!({
        "seed": finished.seed.to_string(),
        "prompt_segments": usage.prompt_segments,
        "generated_segments": usage.generated_segments,
        "shortening_factor": usage.shortening_factor,
        "nxt_steps": usage.nxt_steps,
        "resumed_chars": usage.resumed_chars,
        "drafted_chars": usage.drafted_chars,
        "accepted_chars": usage.accepted_chars,
        "forced_chars": usage.forced_chars,
        "prompt_text_chars": usage.prompt_text_chars,
        "generated_text_chars": usage.generated_text_chars,
        "queue_ns": timing.queue_ns,
        "prefill_ns": timing.prefill_ns,
        "time_to_first_char_ns": timing.time_to_first_char_ns,
        "decode_ns": timing.decode_ns,
        "total_ns": timing.total_ns,
        "steps": timing.steps,
        "middle_steps": timing.middle_steps,
        "middle_ns": timing.middle_ns,
    });
    if !finished.levels.is_empty() {
        object["levels"] = json!(finished.levels);
    }
    object
}

// Responses as server-sent events (`text/event-stream`): each event is a line of JSON. The last one of a complete response is
// `[DONE]`, and any other stream's an error.

/// The content type of streams of events.
const EVENT_STREAM: &str = "text/event-stream";

/// The messages of a call, and their form as events.
pub(crate) trait EventSource: Unpin + Send + 'static {
    /// A message of the call.
    type Message;

    /// Returns the next message, or `None` at the end of the call.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Self::Message>>>;

    /// Converts a message to an event, if clients get one.
    fn event(&mut self, message: Self::Message) -> Option<Bytes>;

    /// Returns true if a message has output of the model.
    fn is_output(&self, _: &Self::Message) -> bool {
        true
    }

    /// Returns true if the last message has arrived.
    fn is_complete(&self) -> bool;

    /// Returns the names that errors of the call have.
    fn names(&self) -> Names {
        Names::default()
    }

    /// Returns the event after the last message, if there is one.
    fn last_event(&self) -> Option<Bytes> {
        None
    }
}

/// Streams the events of a call. With `late_headers`, waits for the first output. Fails if the call fails before that.
pub(crate) async fn response(mut source: impl EventSource, late_headers: bool) -> Result<Response, ApiError> {
    let mut queue = VecDeque::new();
    let mut waits = late_headers;
    while waits {
        match poll_fn(|cx| source.poll_message(cx)).await {
            Some(Ok(message)) => {
                waits = !source.is_output(&message);
                queue.extend(source.event(message));
            }
            Some(Err(error)) => return Err(ApiError::named(error, &source.names())),
            None => waits = false,
        }
    }
    let events = Body::from_stream(EventStream { source: Some(source), queue });
    Ok(([(header::CONTENT_TYPE, EVENT_STREAM), (header::CACHE_CONTROL, "no-cache")], events).into_response())
}

/// Returns the error of a call that ended before its last message.
pub(crate) fn ended_early() -> Error {
    Error::Internal("the response ended early".into())
}

/// Ends a stream of events with an error when its connection closes. Leaves other responses as they are.
pub(crate) fn end_with_connection(response: Response, ending: CancellationToken) -> Response {
    let is_stream = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == EVENT_STREAM);
    if !is_stream {
        return response;
    }
    let ending = Box::pin(ending.cancelled_owned());
    response.map(|body| Body::from_stream(UntilEnd { body: Some(body.into_data_stream()), ending }))
}

/// A stream of events that ends with an error when its connection closes.
struct UntilEnd {
    /// Dropped when the connection closes, which cancels the call.
    body: Option<BodyDataStream>,
    ending: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Stream for UntilEnd {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        if let Poll::Ready(event) = Pin::new(body).poll_next(cx) {
            return Poll::Ready(event);
        }
        ready!(self.ending.as_mut().poll(cx));
        self.body = None;
        let message = "the connection has reached its maximum age; send the request again";
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "connection_age", message);
        Poll::Ready(Some(Ok(event_line(&error.body()))))
    }
}

/// Returns an event as a line of JSON.
pub(super) fn event_line(event: &impl Serialize) -> Bytes {
    Bytes::from(format!("data: {}\n\n", json_text(event)))
}

struct EventStream<S> {
    /// Dropped at the end or after a failure, which cancels running calls.
    source: Option<S>,
    queue: VecDeque<Bytes>,
}

impl<S: EventSource> Stream for EventStream<S> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { source, queue } = self.get_mut();
        loop {
            if let Some(line) = queue.pop_front() {
                return Poll::Ready(Some(Ok(line)));
            }
            let Some(open) = source else { return Poll::Ready(None) };
            let message = ready!(open.poll_message(cx));
            let goes_on = matches!(message, Some(Ok(_)));
            let is_done = message.is_none() && open.is_complete();
            let event = match message {
                Some(Ok(message)) => open.event(message),
                Some(Err(error)) => Some(event_line(&ApiError::named(error, &open.names()).body())),
                None if is_done => open.last_event(),
                None => Some(event_line(&ApiError::from(ended_early()).body())),
            };
            queue.extend(event);
            if is_done {
                queue.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
            }
            if !goes_on {
                *source = None;
            }
        }
    }
}

/// Computes the offset in Unicode characters of each token of a text. Tokens may be single bytes of a character.
#[derive(Default)]
pub(crate) struct TextOffsets {
    /// Number of complete characters, including U+FFFD for invalid bytes.
    characters: usize,
    /// Bytes of an unfinished character: at most three between calls.
    unfinished: Vec<u8>,
}

impl TextOffsets {
    /// Appends a token. Returns the offset of the character in which its first byte is: the bytes of a character share one offset.
    /// A token without bytes stands before the next one, and ends an unfinished character.
    pub(crate) fn push(&mut self, token: &[u8]) -> usize {
        let Some((first, rest)) = token.split_first() else {
            self.characters += usize::from(!self.unfinished.is_empty());
            self.unfinished.clear();
            return self.characters;
        };
        self.push_byte(*first);
        // a complete character is already counted
        let offset = self.characters - usize::from(self.unfinished.is_empty());
        rest.iter().for_each(|byte| self.push_byte(*byte));
        offset
    }

    fn push_byte(&mut self, byte: u8) {
        self.unfinished.push(byte);
        loop {
            let (complete, invalid) = match std::str::from_utf8(&self.unfinished) {
                Ok(text) => (text.len(), None),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            let valid = self.unfinished.get(..complete).unwrap_or_default();
            // each character has one byte that does not continue another
            self.characters += valid.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
            self.unfinished.drain(..complete + invalid.unwrap_or(0));
            if invalid.is_none() {
                return;
            }
            self.characters += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn character(text: &str, logprob: f32) -> v1::Character {
        let top = vec![v1::Alternative { text: "x".into(), logprob: -0.5, id: 3, raw_bytes: None }];
        let boundary = Some(text == " ");
        v1::Character { text: text.into(), logprob: Some(logprob), boundary, top, ..Default::default() }
    }

    #[test]
    fn a_choice_is_sent_in_parts() {
        let mut choice = Choice::new(1, true, 2, None);
        assert!(!choice.has_output());
        choice.start(&v1::Started { prompt_chars: 7, cached_chars: 4, ..Default::default() });
        let characters = vec![character("a", -1.0), character(" ", -2.0)];
        choice.push(v1::Piece { text: "a ".into(), characters, ..Default::default() });
        let output = json!(choice.take_output());
        assert_eq!(output["logprobs"]["top_logprobs"][0], json!({ "x": -0.5, "a": -1.0 }));
        assert!(!choice.has_output());
        choice.push(v1::Piece { text: "b".into(), characters: vec![character("b", -1.0)], ..Default::default() });
        choice.finish(v1::Finished { seed: 9, ..Default::default() });
        let output = json!(choice.take_output());
        assert_eq!((&output["logprobs"]["text_offset"], &output["weir"]["seed"]), (&json!([2]), &json!("9")));
        let usage = choice.counts.add(choice.counts).usage();
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 8);
    }

    #[test]
    fn the_end_of_a_text_has_an_empty_token_and_is_not_counted() {
        let mut choice = Choice::new(0, true, 0, None);
        let end = v1::Character { ends_text: true, ..character("", -3.0) };
        choice.push(v1::Piece { text: "a".into(), characters: vec![character("a", -1.0), end], ..Default::default() });
        assert_eq!(choice.counts.usage()["completion_tokens"], 1);
        let output = json!(choice.take_output());
        assert_eq!(output["logprobs"]["tokens"], json!(["a", ""]));
        assert_eq!(output["logprobs"]["top_logprobs"][1], json!({ "x": -0.5, "": -3.0 }));
    }

    #[test]
    fn bytes_have_the_place_of_their_character() {
        let byte = |byte: u8| {
            let raw_bytes = Some(vec![byte]);
            let top = vec![v1::Alternative { raw_bytes: Some(vec![0xe2]), logprob: -0.5, id: 3, ..Default::default() }];
            v1::Character { text: format!("\\x{byte:02x}"), logprob: Some(-1.0), raw_bytes, top, ..Default::default() }
        };
        let mut choice = Choice::new(0, true, 0, None);
        choice.push(v1::Piece { characters: vec![byte(0xc3)], ..Default::default() });
        let output = json!(choice.take_output());
        assert_eq!((&output["text"], &output["logprobs"]["tokens"]), (&json!(""), &json!(["bytes:\\xc3"])));
        let top = json!([{ "bytes:\\xc3": -1.0, "bytes:\\xe2": -0.5 }]);
        assert_eq!((&output["logprobs"]["text_offset"], &output["logprobs"]["top_logprobs"]), (&json!([0]), &top));
        let characters = vec![byte(0xa9), character("x", -1.0)];
        choice.push(v1::Piece { text: "éx".into(), characters, ..Default::default() });
        assert_eq!(json!(choice.take_output())["logprobs"]["text_offset"], json!([0, 1]));
    }

    /// A call with these messages.
    struct Call {
        messages: VecDeque<Result<u32>>,
        is_complete: bool,
    }

    impl EventSource for Call {
        type Message = u32;

        fn poll_message(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<u32>>> {
            Poll::Ready(self.messages.pop_front())
        }

        fn event(&mut self, message: u32) -> Option<Bytes> {
            Some(event_line(&message))
        }

        fn is_complete(&self) -> bool {
            self.is_complete
        }
    }

    async fn sent(messages: impl IntoIterator<Item = Result<u32>>, is_complete: bool) -> Vec<String> {
        let messages = messages.into_iter().collect();
        let call = Call { messages, is_complete };
        let response = response(call, false).await.unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let text = std::str::from_utf8(&bytes).unwrap().to_owned();
        text.split_terminator("\n\n").map(|line| line.strip_prefix("data: ").unwrap().to_owned()).collect()
    }

    #[tokio::test]
    async fn only_a_complete_response_is_done() {
        assert_eq!(sent([Ok(1), Ok(2)], true).await, ["1", "2", "[DONE]"]);
        for messages in [vec![Ok(1)], vec![Ok(1), Err(Error::Broken)]] {
            let sent = sent(messages, false).await;
            let [first, error] = &sent[..] else { panic!("{sent:?}") };
            assert_eq!(first, "1");
            let error: Value = serde_json::from_str(error).unwrap();
            assert_eq!(error["error"]["type"], "server_error");
        }
    }

    fn offsets(tokens: &[&[u8]]) -> Vec<usize> {
        let mut all = TextOffsets::default();
        tokens.iter().map(|token| all.push(token)).collect()
    }

    #[test]
    fn a_mark_has_the_offset_of_the_text_after_it() {
        assert_eq!(offsets(&[b"", b"a", b"\xe2", b"", b"b"]), [0, 0, 1, 2, 2]);
    }

    proptest! {
        #[test]
        fn offsets_are_places_in_the_decoded_text(
            bytes in prop_oneof![prop::collection::vec(any::<u8>(), 0..64), any::<String>().prop_map(String::into_bytes)],
            cut in 1_usize..4,
        ) {
            let text = String::from_utf8_lossy(&bytes);
            let tokens: Vec<&[u8]> = bytes.chunks(cut).collect();
            let offsets = offsets(&tokens);
            let places: Vec<usize> = (0..tokens.len())
                .map(|index| {
                    // the text up to and with the token's first byte; what follows may complete its last character
                    let read = String::from_utf8_lossy(&bytes[..=index * cut]).chars().count();
                    read - 1
                })
                .collect();
            prop_assert_eq!(&offsets, &places);
            prop_assert!(offsets.iter().all(|&offset| offset < text.chars().count()));
        }
    }
}
