//! `/v1/edit`: a WebSocket that carries one call of `Edit`. Each message of the call is a text message in JSON.
//!
//! The call begins before the handshake is answered. So the server checks the key and counts the session while it can still
//! answer with an HTTP status.

use crate::call::ClientContext;
use crate::completion_request::parse_json;
use crate::grpc::editing::{EditMessage, MAX_SPLICES, check_splice_count, failed, request_id as action_id};
use crate::http::error::ApiError;
use crate::http::state::ApiState;
use crate::middleware::limits::{BodyMemory, RequestMemory, Reservation};
use crate::tokenization::TokenizationWorkers;
use crate::transport::http1::{ReceivedBytes, UpgradeContext};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::ws::{CloseCode, CloseFrame, Message, Utf8Bytes, WebSocket, close_code};
use axum::extract::{FromRequestParts, Request, State, WebSocketUpgrade};
use axum::http::header::{AUTHORIZATION, CONNECTION, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use prost::Message as _;
use serde::de::{Error as _, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};
use tokio::sync::mpsc::{self, OwnedPermit, Sender};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::Code;
use weir_kernels::error::{Error, Result};
use weir_proto::v1::{
    self, EditRequest, EditResponse, TextSplice, constraint::Form, document_closed::Reason, edit_request::Action,
    edit_response::Event,
};

/// The path of the handshake.
pub(crate) const PATH: &str = "/v1/edit";

/// The subprotocol of these messages.
const PROTOCOL: &str = "weir.v1.edit";

/// The beginning of a subprotocol that carries an API key, in the alphabet of base64 for URLs. A page cannot set headers of a
/// WebSocket, and a key in the URL would be written to the logs of proxies.
const KEY_PROTOCOL: &str = "weir.v1.bearer.";

/// The header of the subprotocols.
const KEY_HEADER: &str = "Sec-WebSocket-Protocol";

/// Size in bytes of the buffer of received data. A longer message takes more.
const READ_BUFFER: usize = 8 << 10;

/// The mark of a handshake whose API key cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MalformedKey;

impl From<MalformedKey> for ApiError {
    fn from(_: MalformedKey) -> Self {
        let message = format!(
            "{KEY_HEADER}: expected an API key in base64url without padding after {KEY_PROTOCOL}, found other text"
        );
        Self::new(StatusCode::UNAUTHORIZED, "malformed_key", message)
            .with_param(KEY_HEADER)
            .logged_as(Code::InvalidArgument)
    }
}

/// Moves the API key of a handshake to `authorization`. Only marks a request with a malformed key: [`edit`] refuses it, so that the
/// layer in between logs the refusal.
pub(crate) async fn read_key(mut request: Request, next: Next) -> Response {
    if request.uri().path() == PATH
        && let Err(malformed) = add_key(request.headers_mut())
    {
        request.extensions_mut().insert(malformed);
    }
    next.run(request).await
}

/// Begins the call, answers the handshake of a WebSocket, and edits a document over it.
pub(crate) async fn edit(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Result<Response, ApiError> {
    if let Some(malformed) = request.extensions().get::<MalformedKey>() {
        return Err((*malformed).into());
    }
    let tenant = client.principal()?.tenant();
    let (mut parts, _) = request.into_parts();
    let context: Option<UpgradeContext> = parts.extensions.get().cloned();
    let Ok(socket) = WebSocketUpgrade::from_request_parts(&mut parts, &()).await else { return Ok(not_a_handshake()) };
    let UpgradeContext { open, received } = context.ok_or_else(|| {
        let message = "the request has no connection to upgrade";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    })?;
    let (requests, receiver) = mpsc::channel(1);
    let memory = Arc::clone(&state.calls.jobs.memory);
    let reservation = || Reservation::new(Arc::clone(&memory), Arc::clone(&tenant));
    let sent = RequestMemory::new(reservation());
    let responses = state.calls.edit(&client, receiver, sent.clone()).await?;
    let socket = socket
        .protocols([PROTOCOL])
        .max_frame_size(state.max_body_bytes)
        .max_message_size(state.max_body_bytes)
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0);
    let call = open.begin_call();
    let reserved = reservation();
    let queue = MessageQueue::new(reservation(), sent, READ_AHEAD);
    let workers = state.calls.jobs.workers;
    let max_message = state.max_body_bytes;
    Ok(socket.on_upgrade(async move |socket| {
        received.begin(reserved);
        let ending = open.ending().clone();
        EditSocket { socket, requests, queue, received, tenant, memory, workers, max_message }
            .run(responses, ending)
            .await;
        drop(call);
    }))
}

/// Moves an API key from the subprotocols to `authorization`, where the server expects it.
fn add_key(headers: &mut HeaderMap) -> Result<(), MalformedKey> {
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let offered = offered.flat_map(|value| value.split(',')).map(str::trim);
    let keys: Vec<String> =
        offered.filter_map(|protocol| protocol.strip_prefix(KEY_PROTOCOL)).map(str::to_owned).collect();
    for key in keys {
        let decoded = URL_SAFE_NO_PAD.decode(key).map_err(|_| MalformedKey)?;
        let value = [b"Bearer ", decoded.as_slice()].concat();
        let mut value = HeaderValue::from_bytes(&value).map_err(|_| MalformedKey)?;
        value.set_sensitive(true);
        headers.append(AUTHORIZATION, value);
    }
    Ok(())
}

/// Refuses a request that is not a handshake.
fn not_a_handshake() -> Response {
    let message = "/v1/edit: expected the handshake of a WebSocket, with the headers `upgrade: websocket`, `connection: upgrade`, \
                   `sec-websocket-version: 13` and `sec-websocket-key`; a proxy in between must pass them on";
    let mut response = ApiError::new(StatusCode::UPGRADE_REQUIRED, "not_a_websocket", message).into_response();
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    // `upgrade` is a header of this connection only.
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response
}

// The server reads ahead, so that it answers a client's pings while `--max-edit-rate` holds its session back.

/// Bytes of messages after which the server reads no further.
const READ_AHEAD: usize = 256 << 10;

/// Bytes that a message takes in addition to its length and its splices.
const OVERHEAD: usize = size_of::<QueuedMessage>();

/// A message that waits.
struct QueuedMessage {
    message: EditMessage,
    /// Bytes that it takes.
    bytes: usize,
    /// Bytes that are reserved for it.
    reserved: usize,
}

/// Messages that wait for the call.
struct MessageQueue {
    messages: VecDeque<QueuedMessage>,
    /// Bytes of the messages.
    bytes: usize,
    /// Bytes after which the queue is full. The last message may exceed them.
    limit: usize,
    /// The memory of the messages.
    reserved: Reservation,
    /// The memory of messages that are sent to the call, which releases it.
    sent: RequestMemory,
}

impl MessageQueue {
    /// Creates an empty queue that is full after `limit` bytes. `reserved` counts waiting messages, and `sent` those that the call
    /// converts.
    fn new(reserved: Reservation, sent: RequestMemory, limit: usize) -> Self {
        Self { messages: VecDeque::new(), bytes: 0, limit, reserved, sent }
    }

    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns true if another message may be read.
    fn has_room(&self) -> bool {
        self.bytes < self.limit
    }

    /// Adds a message. Fails if there is no memory for it.
    fn push(&mut self, message: EditRequest) -> Result<()> {
        let splices = match &message.action {
            Some(Action::Splice(splice)) => splice.splices.len(),
            _ => 0,
        };
        let bytes = message.encoded_len() + OVERHEAD + splices * size_of::<TextSplice>();
        self.reserved.add(bytes)?;
        self.add(QueuedMessage { message: Ok(message), bytes, reserved: bytes });
        Ok(())
    }

    /// Adds the answer to a message that was refused. It is short, and is queued even if there is no memory for it: its client
    /// could not continue without it.
    fn push_refusal(&mut self, answer: EditResponse) {
        let bytes = answer.encoded_len() + OVERHEAD + size_of::<EditResponse>();
        let reserved = if self.reserved.add(bytes).is_ok() { bytes } else { 0 };
        self.add(QueuedMessage { message: Err(answer), bytes, reserved });
    }

    fn add(&mut self, message: QueuedMessage) {
        self.bytes += message.bytes;
        self.messages.push_back(message);
    }

    /// Sends the first message to the call.
    fn send_next(&mut self, permit: OwnedPermit<EditMessage>) {
        let Some(QueuedMessage { message, bytes, reserved }) = self.messages.pop_front() else { return };
        self.bytes -= bytes;
        self.reserved.release(reserved);
        // Fails only if others took the memory in between.
        let _ = self.sent.add(reserved);
        permit.send(message);
    }
}

/// Waits until the call takes another request. Waits forever once the call has ended: its last responses follow. Cancel safe.
async fn permit(requests: Sender<EditMessage>) -> OwnedPermit<EditMessage> {
    match requests.reserve_owned().await {
        Ok(permit) => permit,
        Err(_) => std::future::pending().await,
    }
}

/// A message that cannot be read.
#[derive(Debug)]
struct RefusedMessage {
    /// The id of its `complete` or `score`, if that can be read.
    id: Option<u64>,
    error: Box<Error>,
}

impl From<Error> for RefusedMessage {
    fn from(error: Error) -> Self {
        Self { id: None, error: error.into() }
    }
}

fn read_message(text: &[u8]) -> Result<v1::EditRequest, RefusedMessage> {
    let read = parse_json(text, "the message").and_then(RequestMessage::into_request);
    read.map_err(|error| RefusedMessage { id: read_id(text), error: error.into() })
}

/// Returns the id of a message whose other fields may be wrong.
fn read_id(text: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Identified {
        Complete(Id),
        Score(Id),
    }
    #[derive(Deserialize)]
    struct Id {
        id: u64,
    }
    match serde_json::from_slice(text).ok()? {
        Identified::Complete(Id { id }) | Identified::Score(Id { id }) => Some(id),
    }
}

/// A message of a client.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", expecting = "an object with one field: open, splice, complete, score or close")]
enum RequestMessage {
    Open(#[serde(with = "OpenFields")] v1::OpenDocument),
    Splice(SpliceMessage),
    Complete(#[serde(with = "CompleteFields")] v1::CompleteDocument),
    Score(#[serde(with = "ScoreFields")] v1::ScoreDocument),
    Close(#[serde(with = "CloseFields")] v1::CloseDocument),
}

#[derive(Deserialize)]
#[serde(remote = "v1::OpenDocument", deny_unknown_fields, expecting = "an object")]
struct OpenFields {
    model: Option<String>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    revision: u64,
    priority: Option<i32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct SpliceMessage {
    revision: u64,
    splices: Replacements,
}

/// The first replacements of a splice, at most [`MAX_SPLICES`], and the count of all.
#[derive(Debug)]
struct Replacements {
    first: Vec<Replacement>,
    count: usize,
}

impl<'de> Deserialize<'de> for Replacements {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Replacements;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Replacements, A::Error> {
                let mut first = Vec::new();
                while first.len() < MAX_SPLICES
                    && let Some(replacement) = list.next_element()?
                {
                    first.push(replacement);
                }
                let mut count = first.len();
                // A list that goes on is too long. The rest is counted without memory for it.
                if count == MAX_SPLICES {
                    while list.next_element::<IgnoredAny>()?.is_some() {
                        count += 1;
                    }
                }
                Ok(Replacements { first, count })
            }
        }
        deserializer.deserialize_seq(List)
    }
}

/// One replacement of a splice.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Replacement {
    start_byte: u64,
    end_byte: u64,
    #[serde(default)]
    text: String,
}

#[derive(Deserialize)]
#[serde(remote = "v1::CompleteDocument", deny_unknown_fields, expecting = "an object")]
struct CompleteFields {
    id: u64,
    cursor_byte: u64,
    count: Option<u32>,
    #[serde(default, deserialize_with = "until")]
    until: Option<i32>,
    max_chars: Option<u32>,
    #[serde(default, deserialize_with = "constraint")]
    constraint: Option<v1::Constraint>,
}

/// Reads the form of a completion: an object with one field.
fn constraint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<v1::Constraint>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum FormField {
        Regex(String),
        Choice(Vec<String>),
        JsonSchema(Value),
        JsonObject(bool),
        Grammar(String),
    }
    let Some(fields) = Option::<Map<String, Value>>::deserialize(deserializer)? else { return Ok(None) };
    if fields.len() != 1 {
        let known = "regex, choice, json_schema, json_object or grammar";
        return Err(D::Error::custom(format_args!("expected one field ({known}), found {}", fields.len())));
    }
    let form = match serde_json::from_value(Value::Object(fields)).map_err(D::Error::custom)? {
        FormField::Regex(source) => Form::Regex(source),
        FormField::Choice(texts) => Form::Choice(v1::Choice { texts }),
        FormField::JsonSchema(Value::String(source)) => Form::JsonSchema(source),
        FormField::JsonSchema(schema) => Form::JsonSchema(schema.to_string()),
        FormField::JsonObject(wanted) => Form::JsonObject(wanted),
        FormField::Grammar(source) => Form::Grammar(source),
    };
    Ok(Some(v1::Constraint { form: Some(form), end_when_complete: None }))
}

/// Reads the end of a completion.
fn until<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum UntilName {
        Word,
        Line,
        Segment,
        MaxChars,
    }
    let until = Option::deserialize(deserializer)?.map(|name| match name {
        UntilName::Word => v1::Until::Word,
        UntilName::Line => v1::Until::Line,
        UntilName::Segment => v1::Until::Segment,
        UntilName::MaxChars => v1::Until::MaxChars,
    });
    Ok(until.map(Into::into))
}

#[derive(Deserialize)]
#[serde(remote = "v1::ScoreDocument", deny_unknown_fields, expecting = "an object")]
struct ScoreFields {
    id: u64,
    start_byte: u64,
    end_byte: u64,
}

#[derive(Deserialize)]
#[serde(remote = "v1::CloseDocument", deny_unknown_fields, expecting = "an empty object")]
struct CloseFields {}

impl RequestMessage {
    /// Converts the message to one of the call. Fails if it has too many splices.
    fn into_request(self) -> Result<v1::EditRequest> {
        let action = match self {
            Self::Open(open) => Action::Open(open),
            Self::Splice(SpliceMessage { revision, splices: Replacements { first, count } }) => {
                check_splice_count(count)?;
                let splice = |Replacement { start_byte, end_byte, text }| v1::TextSplice { start_byte, end_byte, text };
                Action::Splice(v1::SpliceDocument { revision, splices: first.into_iter().map(splice).collect() })
            }
            Self::Complete(complete) => Action::Complete(complete),
            Self::Score(score) => Action::Score(score),
            Self::Close(close) => Action::Close(close),
        };
        Ok(v1::EditRequest { action: Some(action) })
    }
}

// The messages of the server in JSON are written in one pass: a tree of values would take many times the memory of the text.

/// Length of a formatted response relative to its encoded length, at most. Objects repeat the names of their fields.
const FORMATTED: usize = 8;

/// An event of a response, under its name.
#[derive(Serialize)]
#[serde(remote = "Event", rename_all = "snake_case")]
enum EventFields {
    Applied(v1::DocumentApplied),
    Completions(v1::DocumentCompletions),
    Scores(#[serde(with = "ScoresFields")] v1::DocumentScores),
    Stale(v1::StaleRequest),
    Failed(#[serde(with = "FailureFields")] v1::EditFailure),
    Closed(#[serde(with = "ClosedFields")] v1::DocumentClosed),
}

#[derive(Serialize)]
#[serde(remote = "v1::DocumentScores")]
struct ScoresFields {
    id: u64,
    revision: u64,
    #[serde(serialize_with = "characters")]
    characters: Vec<v1::Character>,
    start_bytes: Vec<u64>,
    recomputed_chars: u64,
    duration_ns: u64,
}

/// A scored character, without the fields that it does not have.
#[derive(Serialize)]
#[serde(remote = "v1::Character")]
struct CharacterFields {
    text: String,
    id: u32,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "widened")]
    logprob: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "widened")]
    boundary_probability: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "widened")]
    nxt_logprob: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    boundary: Option<bool>,
    #[serde(skip_serializing_if = "is_outermost")]
    chunk_depth: u32,
}

fn characters<S: Serializer>(characters: &[v1::Character], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Character<'a>(#[serde(with = "CharacterFields")] &'a v1::Character);
    serializer.collect_seq(characters.iter().map(Character))
}

/// Writes a number as `f64`, as in the other responses.
fn widened<S: Serializer>(number: &Option<f32>, serializer: S) -> Result<S::Ok, S::Error> {
    number.map(f64::from).serialize(serializer)
}

fn is_outermost(depth: &u32) -> bool {
    *depth == 0
}

/// A failure, without the fields that it does not have.
#[derive(Serialize)]
#[serde(remote = "v1::EditFailure")]
struct FailureFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    code: String,
    reason: String,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

#[derive(Serialize)]
#[serde(remote = "v1::DocumentClosed")]
struct ClosedFields {
    #[serde(serialize_with = "reason_name")]
    reason: i32,
}

fn reason_name<S: Serializer>(reason: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match Reason::try_from(*reason).unwrap_or_default() {
        Reason::Unspecified => "unspecified",
        Reason::Client => "client",
        Reason::Idle => "idle",
        Reason::Draining => "draining",
        Reason::ModelChanged => "model_changed",
    })
}

/// Formats a response under its name.
fn response_text(response: &v1::EditResponse) -> Result<String> {
    let Some(event) = &response.event else { return Ok("{}".into()) };
    // Growing would double the memory.
    let mut text = Vec::with_capacity(response.encoded_len().saturating_mul(FORMATTED));
    let broken = |error: &dyn fmt::Display| Error::Internal(format!("a response that is not JSON: {error}"));
    EventFields::serialize(event, &mut serde_json::Serializer::new(&mut text)).map_err(|error| broken(&error))?;
    String::from_utf8(text).map_err(|error| broken(&error))
}

/// Time between two pings. It is shorter than the time after which common proxies close a silent connection.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Maximum pings that a client may leave unanswered.
const MAX_PINGS: u32 = 2;

/// Maximum time for the client to answer the close frame.
const CLOSE_TIME: Duration = Duration::from_millis(400);

/// Copies of a formatted response at a time: its text, and the frame that is sent.
const COPIES: usize = 2;

/// A WebSocket, and the call that it carries.
struct EditSocket {
    socket: WebSocket,
    /// The call's requests.
    requests: Sender<EditMessage>,
    /// Messages that the call has not taken yet.
    queue: MessageQueue,
    /// The memory of received messages.
    received: ReceivedBytes,
    tenant: Arc<str>,
    memory: Arc<BodyMemory>,
    /// Parse and format long messages.
    workers: TokenizationWorkers,
    /// Maximum bytes of a message.
    max_message: usize,
}

/// The reason for the end of the WebSocket.
enum End {
    /// The client has closed it, or is gone.
    Client,
    /// The server closes it, with a code and a reason of at most 123 bytes.
    Server(CloseCode, &'static str),
}

impl EditSocket {
    /// Passes messages on until the session ends or `ending` is cancelled.
    async fn run(mut self, mut responses: impl Stream<Item = Result<EditResponse>> + Unpin, ending: CancellationToken) {
        // Also while a client reads nothing, so that a response cannot be sent.
        let ended = ending.run_until_cancelled(self.exchange(&mut responses)).await;
        let end =
            ended.unwrap_or(End::Server(close_code::AWAY, "the server closes the connection; open the document again"));
        // Ends the call.
        drop(responses);
        if let End::Server(code, reason) = end {
            let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
            let socket = &mut self.socket;
            let close = async move {
                socket.send(Message::Close(Some(frame))).await?;
                // Closing a connection with unread data would discard what the client has not read yet.
                while socket.recv().await.transpose()?.is_some() {}
                Ok::<_, axum::Error>(())
            };
            // A client that is gone needs no answer.
            let _ = timeout(CLOSE_TIME, close).await;
        }
    }

    async fn exchange(&mut self, responses: &mut (impl Stream<Item = Result<EditResponse>> + Unpin)) -> End {
        let mut pings = interval(PING_INTERVAL);
        // A response that the client reads slowly delays the pings, and the answers to them.
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.tick().await;
        // Intervals since the last message in which the server has read. The first one may begin without a ping.
        let mut silent = 0;
        // True once the server has read since the last ping or message. While the queue is full, it does not.
        let mut has_read = false;
        let mut end = End::Server(close_code::ERROR, "the call ended early");
        loop {
            tokio::select! {
                biased;
                response = responses.next() => match response {
                    Some(Ok(response)) => {
                        if let Some(Event::Closed(closed)) = &response.event {
                            end = end_of(closed.reason());
                        }
                        if self.send(response).await.is_err() {
                            return End::Client;
                        }
                    }
                    None => return end,
                    Some(Err(error)) => return self.fail(error).await,
                },
                _ = pings.tick() => {
                    silent += u32::from(std::mem::take(&mut has_read));
                    if silent > MAX_PINGS || self.socket.send(Message::Ping(Bytes::new())).await.is_err() {
                        return End::Client;
                    }
                }
                permit = permit(self.requests.clone()), if !self.queue.is_empty() => self.queue.send_next(permit),
                received = async {
                    has_read = true;
                    self.socket.recv().await
                }, if self.queue.has_room() => {
                    silent = 0;
                    has_read = false;
                    match received {
                        None => return End::Client,
                        Some(Err(error)) => return self.end_of_broken(error),
                        Some(Ok(message)) => self.take(message).await,
                    }
                }
            }
        }
    }

    /// Queues a message for the call, or `failed` if it is refused.
    async fn take(&mut self, message: Message) {
        // A control frame may come between the parts of a message, which are not read yet.
        let control = control_bytes(&message);
        let taken = parse(&self.workers, &self.tenant, message).await;
        match control {
            Some(payload) => self.received.release_control(payload),
            None => self.received.release_message(),
        }
        let queued = match taken {
            Ok(None) => return,
            Ok(Some(request)) => {
                let id = action_id(&request);
                self.queue.push(request).map_err(|error| RefusedMessage { id, error: error.into() })
            }
            Err(refused) => Err(refused),
        };
        if let Err(RefusedMessage { id, error }) = queued {
            self.queue.push_refusal(failed(id, &error));
        }
    }

    /// Sends a response. Fails if the client is gone.
    async fn send(&mut self, mut response: EditResponse) -> Result<(), axum::Error> {
        let reserved = Reservation::new(Arc::clone(&self.memory), Arc::clone(&self.tenant));
        let id = request_id(&response);
        // The other responses are short. Their client could not continue without them.
        if id.is_some()
            && let Err(full) = reserved.add(response.encoded_len().saturating_mul(FORMATTED * COPIES))
        {
            response = failed(id, &full);
        }
        let bytes = response.encoded_len().saturating_mul(FORMATTED);
        let formatted = self.workers.run(&self.tenant, bytes, move || response_text(&response)).await.flatten();
        let text = match formatted.or_else(|error| response_text(&failed(id, &error))) {
            Ok(text) => text,
            Err(error) => ApiError::from(error).body().to_string(),
        };
        self.socket.send(Message::Text(text.into())).await
    }

    /// Sends the error of a call that failed.
    async fn fail(&mut self, error: Error) -> End {
        let text = ApiError::from(error).body().to_string();
        // A client that is gone needs no answer.
        let _ = self.socket.send(Message::Text(text.into())).await;
        End::Server(close_code::ERROR, "the call failed; the last message has the error")
    }

    /// Returns the end of a WebSocket from which no message could be read.
    fn end_of_broken(&self, error: axum::Error) -> End {
        use tungstenite::Error as Broken;
        match error.into_inner().downcast_ref() {
            Some(Broken::Capacity(_)) => {
                tracing::info!(limit = self.max_message, "rejected a message that is too long");
                End::Server(close_code::SIZE, "a message is longer than --max-message-bytes")
            }
            Some(Broken::Utf8(_)) => End::Server(close_code::INVALID, "a text message is not UTF-8"),
            Some(Broken::Protocol(_)) => End::Server(close_code::PROTOCOL, "a frame breaks RFC 6455"),
            // The only error of this crate is about the memory of received messages.
            Some(Broken::Io(error)) if error.get_ref().is_some_and(|source| source.is::<Error>()) => {
                End::Server(close_code::AGAIN, "no memory for the message now; try again later")
            }
            // The connection broke.
            _ => End::Client,
        }
    }
}

/// Returns the end of a WebSocket whose session has ended.
fn end_of(reason: Reason) -> End {
    match reason {
        Reason::Client => End::Server(close_code::NORMAL, "closed by the client"),
        Reason::Idle => End::Server(close_code::AWAY, "idle; open the document again"),
        Reason::Draining => End::Server(close_code::AWAY, "the server shuts down; open the document on another one"),
        Reason::ModelChanged => End::Server(close_code::AWAY, "the model has changed; open the document again"),
        Reason::Unspecified => End::Server(close_code::ERROR, "closed for no known reason"),
    }
}

/// Returns the id of the request that a response answers.
fn request_id(response: &EditResponse) -> Option<u64> {
    match &response.event {
        Some(Event::Completions(completions)) => Some(completions.id),
        Some(Event::Scores(scores)) => Some(scores.id),
        _ => None,
    }
}

/// Returns the length of a control frame's payload, or `None` for a whole message.
fn control_bytes(message: &Message) -> Option<usize> {
    match message {
        Message::Text(_) | Message::Binary(_) => None,
        Message::Ping(payload) | Message::Pong(payload) => Some(payload.len()),
        // Nothing follows it.
        Message::Close(_) => Some(0),
    }
}

/// Parses a message, on a worker if it is long. Returns `None` for a control frame, such as a pong.
async fn parse(
    workers: &TokenizationWorkers,
    tenant: &Arc<str>,
    message: Message,
) -> Result<Option<EditRequest>, RefusedMessage> {
    let text = match message {
        Message::Text(text) => text,
        Message::Binary(_) => {
            let why = "the message: expected a text message in JSON, not a binary one".to_owned();
            return Err(Error::Unreadable { field: None, why }.into());
        }
        Message::Ping(_) | Message::Pong(_) | Message::Close(_) => return Ok(None),
    };
    let bytes = text.len();
    workers.run(tenant, bytes, move || read_message(text.as_bytes())).await?.map(Some)
}

/// Reads a message for a fuzz target. The answer to one that cannot be read must be JSON.
#[cfg(any(test, fuzzing))]
pub(crate) fn check_request(text: &[u8]) -> Option<v1::EditRequest> {
    read_message(text).inspect_err(|refused| check_response(&failed(refused.id, &refused.error))).ok()
}

/// Formats a response, which must be JSON, for a fuzz target.
#[cfg(any(test, fuzzing))]
pub(crate) fn check_response(response: &v1::EditResponse) {
    let text = response_text(response).unwrap_or_default();
    assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "not JSON: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TransportConfig;
    use crate::http::editing::{read_message, response_text};
    use crate::middleware::limits::{BodyMemory, RequestMemory};
    use axum::{Router, extract::WebSocketUpgrade, routing::get};
    use hyper::server::conn::http1;
    use hyper_util::{rt::TokioIo, service::TowerToHyperService};
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::sync::mpsc::{self, Receiver};
    use tokio::task::JoinHandle;
    use tokio_stream::wrappers::ReceiverStream;
    use weir_proto::v1::{
        DocumentApplied, DocumentScores, EditFailure, EditRequest, EditResponse, OpenDocument, SpliceDocument,
        edit_response::Event,
    };

    fn authorization(protocols: &[&str]) -> Result<Vec<String>, MalformedKey> {
        let mut headers = HeaderMap::new();
        for protocol in protocols {
            headers.append(SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
        }
        add_key(&mut headers)?;
        Ok(headers.get_all(AUTHORIZATION).iter().map(|value| value.to_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn a_subprotocol_carries_the_key() {
        let key = |key: &str| format!("{KEY_PROTOCOL}{}", URL_SAFE_NO_PAD.encode(key));
        assert_eq!(authorization(&[PROTOCOL]).unwrap(), [""; 0]);
        let both = format!("{PROTOCOL},  {}", key("a-key?>~"));
        assert_eq!(authorization(&[&both]).unwrap(), ["Bearer a-key?>~"]);
        assert_eq!(authorization(&[PROTOCOL, &key("b")]).unwrap(), ["Bearer b"]);
        // Authentication refuses several.
        assert_eq!(authorization(&[&key("a"), &key("b")]).unwrap().len(), 2);
        for malformed in ["weir.v1.bearer.=", "weir.v1.bearer.CgA"] {
            assert_eq!(authorization(&[malformed]), Err(MalformedKey), "{malformed}");
        }
    }

    fn open(bytes: usize) -> EditRequest {
        let open = OpenDocument { text: "a".repeat(bytes), ..OpenDocument::default() };
        EditRequest { action: Some(Action::Open(open)) }
    }

    fn failed(id: Option<u64>, message: &str) -> EditResponse {
        let failure = EditFailure { id, message: message.into(), ..EditFailure::default() };
        EditResponse { event: Some(Event::Failed(failure)) }
    }

    fn memory(bytes: usize) -> impl Fn() -> Reservation {
        let config = TransportConfig { message_bytes: 100, request_memory: bytes, ..TransportConfig::default() };
        let memory = BodyMemory::new(&config);
        move || Reservation::new(Arc::clone(&memory), "a".into())
    }

    /// Returns the bytes that can be reserved now.
    fn free(reserved: Reservation) -> usize {
        (0..).take_while(|_| reserved.add(1).is_ok()).count()
    }

    #[tokio::test]
    async fn messages_count_until_the_call_has_converted_them() {
        let memory = memory(8000);
        let all = free(memory());
        let sent = RequestMemory::new(memory());
        let mut queue = MessageQueue::new(memory(), sent.clone(), 700 + 2 * OVERHEAD);
        queue.push(open(700)).unwrap();
        assert!(queue.has_room() && !queue.is_empty());
        queue.push(open(701)).unwrap();
        assert!(!queue.has_room());
        let held = all - free(memory());
        assert!((1401 + 2 * OVERHEAD..1420 + 2 * OVERHEAD).contains(&held), "{held}");
        assert!(queue.push(open(all - held)).is_err());
        let (sender, mut receiver) = mpsc::channel(1);
        for bytes in [700, 701] {
            queue.send_next(permit(sender.clone()).await);
            assert_eq!(receiver.recv().await, Some(Ok(open(bytes))));
        }
        assert!(queue.has_room() && queue.is_empty());
        assert_eq!(all - free(memory()), held);
        sent.release();
        assert_eq!(free(memory()), all);
    }

    #[test]
    fn splices_count_with_the_memory_that_they_take() {
        let memory = memory(40_000);
        let all = free(memory());
        let mut queue = MessageQueue::new(memory(), RequestMemory::new(memory()), usize::MAX);
        let splices = vec![TextSplice::default(); 256];
        queue.push(EditRequest { action: Some(Action::Splice(SpliceDocument { revision: 1, splices })) }).unwrap();
        let held = all - free(memory());
        assert!(held >= 256 * size_of::<TextSplice>(), "{held}");
    }

    #[tokio::test]
    async fn refusals_wait_in_their_place() {
        let memory = memory(4000);
        let full = memory();
        while full.add(1).is_ok() {}
        let mut queue = MessageQueue::new(memory(), RequestMemory::new(memory()), 1);
        queue.push_refusal(failed(Some(7), "first"));
        assert!(!queue.has_room(), "it counts even without memory");
        drop(full);
        let all = free(memory());
        queue.push(open(1)).unwrap();
        queue.push_refusal(failed(None, "second"));
        let (sender, mut receiver) = mpsc::channel(1);
        for expected in [Err(failed(Some(7), "first")), Ok(open(1)), Err(failed(None, "second"))] {
            queue.send_next(permit(sender.clone()).await);
            assert_eq!(receiver.recv().await, Some(expected));
        }
        queue.sent.release();
        assert!(queue.is_empty() && free(memory()) == all);
    }

    fn action(text: &str) -> Result<Action, String> {
        let message = read_message(text.as_bytes()).map_err(|refused| refused.error.to_string())?;
        Ok(message.action.unwrap())
    }

    #[test]
    fn optional_fields_and_names_are_read() {
        let open = v1::OpenDocument { model: Some("m".into()), text: "é".into(), revision: 3, priority: Some(-1) };
        assert_eq!(
            action(r#"{"open": {"model": "m", "text": "é", "revision": 3, "priority": -1}}"#),
            Ok(Action::Open(open))
        );
        assert_eq!(action(r#"{"open": {}}"#), Ok(Action::Open(v1::OpenDocument::default())));
        for (name, until) in [
            ("word", v1::Until::Word),
            ("line", v1::Until::Line),
            ("segment", v1::Until::Segment),
            ("max_chars", v1::Until::MaxChars),
        ] {
            let complete = v1::CompleteDocument {
                id: 1,
                cursor_byte: 2,
                count: Some(3),
                until: Some(until.into()),
                max_chars: Some(4),
                constraint: None,
            };
            let text = format!(
                r#"{{"complete": {{"id": 1, "cursor_byte": 2, "count": 3, "until": "{name}", "max_chars": 4}}}}"#
            );
            assert_eq!(action(&text), Ok(Action::Complete(complete)));
        }
        for (form, expected) in [
            (r#"{"regex": "a+"}"#, Form::Regex("a+".into())),
            (r#"{"choice": ["a"]}"#, Form::Choice(v1::Choice { texts: vec!["a".into()] })),
            (r#"{"json_schema": {"a":1}}"#, Form::JsonSchema(r#"{"a":1}"#.into())),
            (r#"{"json_schema": "{}"}"#, Form::JsonSchema("{}".into())),
            (r#"{"json_object": true}"#, Form::JsonObject(true)),
        ] {
            let text = format!(r#"{{"complete": {{"id": 1, "cursor_byte": 2, "constraint": {form}}}}}"#);
            let Ok(Action::Complete(complete)) = action(&text) else { panic!("{form}") };
            assert_eq!(complete.constraint.and_then(|constraint| constraint.form), Some(expected));
        }
    }

    fn text(event: Event) -> String {
        response_text(&v1::EditResponse { event: Some(event) }).unwrap()
    }

    #[test]
    fn responses_have_the_fields_that_are_set() {
        let failure = v1::EditFailure { id: Some(7), code: "C".into(), field: Some("f".into()), ..Default::default() };
        assert_eq!(
            text(Event::Failed(failure)),
            r#"{"failed":{"id":7,"code":"C","reason":"","message":"","field":"f"}}"#
        );
        let failure = v1::EditFailure::default();
        assert_eq!(text(Event::Failed(failure)), r#"{"failed":{"code":"","reason":"","message":""}}"#);
        let characters = vec![
            v1::Character { text: "\"".into(), id: 1, nxt_logprob: Some(f32::NAN), ..Default::default() },
            v1::Character { logprob: Some(-0.4), boundary: Some(false), chunk_depth: 2, ..Default::default() },
        ];
        let scores = v1::DocumentScores { id: 3, characters, start_bytes: vec![0, 1], ..Default::default() };
        assert_eq!(
            text(Event::Scores(scores)),
            r#"{"scores":{"id":3,"revision":0,"characters":[{"text":"\"","id":1,"nxt_logprob":null},"#.to_owned()
                + r#"{"text":"","id":0,"logprob":-0.4000000059604645,"boundary":false,"chunk_depth":2}],"#
                + r#""start_bytes":[0,1],"recomputed_chars":0,"duration_ns":0}}"#
        );
        let closed = v1::DocumentClosed { reason: Reason::ModelChanged.into() };
        assert_eq!(text(Event::Closed(closed)), r#"{"closed":{"reason":"model_changed"}}"#);
        assert_eq!(response_text(&v1::EditResponse::default()).unwrap(), "{}");
    }

    #[test]
    fn long_responses_fit_in_their_estimate() {
        let is_within = |event| {
            let response = v1::EditResponse { event: Some(event) };
            let length = response_text(&response).unwrap().len();
            assert!(length <= response.encoded_len() * FORMATTED, "{length} of {}", response.encoded_len());
        };
        // Control characters and long numbers take the most characters of JSON.
        let number = Some(-1.234_567_8e-30);
        let character = v1::Character {
            text: "\u{1}".into(),
            id: 1,
            logprob: number,
            boundary: Some(false),
            boundary_probability: number,
            nxt_logprob: number,
            chunk_depth: 2,
            ..Default::default()
        };
        for character in [
            character.clone(),
            v1::Character { boundary_probability: None, nxt_logprob: None, chunk_depth: 0, ..character },
        ] {
            let characters = vec![character; 500];
            is_within(Event::Scores(v1::DocumentScores {
                characters,
                start_bytes: (0..500).collect(),
                ..Default::default()
            }));
        }
        let item = v1::CompletionItem {
            text: "\u{1}".repeat(9),
            logprob: -1.234_567_891e-30,
            chars: 9,
            boundaries: vec![1; 9],
        };
        is_within(Event::Completions(v1::DocumentCompletions { items: vec![item; 50], ..Default::default() }));
    }

    /// Buffer of a connection, in bytes.
    const BUFFER: usize = 256;

    const HANDSHAKE: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

    /// The shortest message.
    const CLOSE: &str = r#"{"close": {}}"#;

    /// The answer to a ping, masked with zeros.
    const PONG: [u8; 6] = [0x8a, 0x80, 0, 0, 0, 0];

    /// A client, and the call of its session.
    struct Session {
        client: DuplexStream,
        requests: Receiver<EditMessage>,
        responses: Sender<Result<EditResponse>>,
        memory: Arc<BodyMemory>,
        ending: CancellationToken,
        task: JoinHandle<()>,
    }

    impl Session {
        async fn begin() -> Self {
            Self::reading_ahead(100).await
        }

        /// Begins a session that reads no further once it has read `limit` bytes ahead.
        async fn reading_ahead(limit: usize) -> Self {
            let (server, mut client) = tokio::io::duplex(BUFFER);
            let received = ReceivedBytes::default();
            let (sender, mut upgraded) = mpsc::channel(1);
            let take = move |upgrade: WebSocketUpgrade| {
                let sender = sender.clone();
                let taken = async move |socket| drop(sender.send(socket).await);
                std::future::ready(upgrade.write_buffer_size(0).on_upgrade(taken))
            };
            let service = TowerToHyperService::new(Router::new().route("/", get(take)));
            let server = TokioIo::new(ReceivedBytes::wrap(server, received.clone()));
            tokio::spawn(http1::Builder::new().serve_connection(server, service).with_upgrades());
            client.write_all(HANDSHAKE).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(client.read_u8().await.unwrap());
            }
            let config = TransportConfig { message_bytes: 200, request_memory: 200, ..TransportConfig::default() };
            let memory = BodyMemory::new(&config);
            let tenant = Arc::<str>::from("a");
            let reservation = || Reservation::new(Arc::clone(&memory), Arc::clone(&tenant));
            received.begin(reservation());
            let (requests, receiver) = mpsc::channel(1);
            let (responses, answers) = mpsc::channel(1);
            let ending = CancellationToken::new();
            let socket = EditSocket {
                socket: upgraded.recv().await.unwrap(),
                requests,
                queue: MessageQueue::new(reservation(), RequestMemory::new(reservation()), limit),
                received,
                tenant,
                memory: Arc::clone(&memory),
                workers: TokenizationWorkers::new(1),
                max_message: config.message_bytes,
            };
            let task = tokio::spawn(socket.run(ReceiverStream::new(answers), ending.clone()));
            Self { client, requests: receiver, responses, memory, ending, task }
        }

        /// Sends a text message, masked with zeros.
        async fn send(&mut self, text: &str) {
            let frame = [&[0x81, 0x80 | text.len() as u8, 0, 0, 0, 0][..], text.as_bytes()].concat();
            self.client.write_all(&frame).await.unwrap();
        }

        /// Returns the first byte and the payload of the next frame, or `None` at the end of the connection.
        async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
            let first = self.client.read_u8().await.ok()?;
            let length = match self.client.read_u8().await.unwrap() {
                126 => self.client.read_u16().await.unwrap().into(),
                length => usize::from(length),
            };
            let mut payload = vec![0; length];
            self.client.read_exact(&mut payload).await.unwrap();
            Some((first, payload))
        }

        /// Counts the pings until the end of the connection, at most `limit`. Sends `answer` to each.
        async fn pings(&mut self, limit: usize, answer: &[u8]) -> usize {
            for count in 0..limit {
                let Some((first, _)) = self.frame().await else { return count };
                assert_eq!(first, 0x89);
                self.client.write_all(answer).await.unwrap();
            }
            limit
        }

        async fn answer(&self, event: Event) {
            self.responses.send(Ok(EditResponse { event: Some(event) })).await.unwrap();
        }

        async fn text(&mut self) -> String {
            let (first, payload) = self.frame().await.unwrap();
            assert_eq!(first, 0x81);
            String::from_utf8(payload).unwrap()
        }

        /// Returns the code of the close frame.
        async fn closed(&mut self) -> u16 {
            let (first, payload) = self.frame().await.unwrap();
            assert_eq!(first, 0x88);
            u16::from_be_bytes([payload[0], payload[1]])
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_answer_no_pings_are_left() {
        let mut session = Session::begin().await;
        assert_eq!(session.pings(10, &[]).await, 2);
        let mut session = Session::begin().await;
        assert_eq!(session.pings(10, &PONG).await, 10);
        assert_eq!(session.pings(10, &[]).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_the_server_does_not_read_are_not_missed() {
        let mut session = Session::reading_ahead(1).await;
        // The call does not take the first request. The second one fills the queue, so the server reads nothing more.
        session.send(CLOSE).await;
        session.send(CLOSE).await;
        assert_eq!(session.pings(10, &[]).await, 10);
        session.requests.recv().await.unwrap().unwrap();
        assert_eq!(session.pings(10, &[]).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_does_not_delay_the_end() {
        for reads in [false, true] {
            let mut session = Session::begin().await;
            let message = "m".repeat(3 * BUFFER);
            session.answer(Event::Failed(EditFailure { message, ..EditFailure::default() })).await;
            tokio::time::sleep(PING_INTERVAL * 5).await;
            assert!(!session.task.is_finished());
            session.ending.cancel();
            if reads {
                assert!(session.text().await.contains("mmm"));
                assert_eq!(session.closed().await, close_code::AWAY);
            }
            timeout(CLOSE_TIME * 2, &mut session.task).await.expect("the session goes on").unwrap();
        }
    }

    #[tokio::test]
    async fn only_long_responses_need_free_memory() {
        let mut session = Session::begin().await;
        let all = Reservation::new(Arc::clone(&session.memory), "a".into());
        while all.add(1).is_ok() {}
        session.answer(Event::Applied(DocumentApplied::default())).await;
        assert!(session.text().await.starts_with(r#"{"applied":"#));
        session.answer(Event::Scores(DocumentScores { id: 7, ..DocumentScores::default() })).await;
        let failed = session.text().await;
        assert!(failed.starts_with(r#"{"failed":{"id":7,"code":"RESOURCE_EXHAUSTED""#), "{failed}");
        drop(all);
        session.answer(Event::Scores(DocumentScores { id: 8, ..DocumentScores::default() })).await;
        assert!(session.text().await.starts_with(r#"{"scores":{"id":8"#));
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_message_closes_with_the_code_of_its_fault() {
        let not_utf8 = [0x81, 0x81, 0, 0, 0, 0, 0xff];
        let without_mask = [0x81, 1, b'a'];
        // A part of a message, longer than the memory of requests.
        let part = [&[0x01, 0xfe, 1, 0, 0, 0, 0, 0][..], &[b' '; 220]].concat();
        for (sent, code) in
            [(&without_mask[..], close_code::PROTOCOL), (&not_utf8, close_code::INVALID), (&part, close_code::AGAIN)]
        {
            let mut session = Session::begin().await;
            session.client.write_all(sent).await.unwrap();
            assert_eq!(session.closed().await, code);
        }
        // Nothing is sent to a client that is gone.
        let Session { client, task, .. } = Session::begin().await;
        drop(client);
        task.await.unwrap();
    }
}
