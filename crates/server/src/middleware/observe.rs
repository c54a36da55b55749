//! What operators see of each call: its id, log span, metrics and trace, lines about refusals, and failures of tonic and panics as
//! errors of ours. HTTP requests are also counted here.

use crate::{
    call::Call,
    completion_request::{CompletionRequest, field_names},
    metrics::Metrics,
    middleware::{
        auth::KEYLESS_MESSAGE_BYTES,
        compression::HEADER,
        layer::{HttpRequest, MiddlewareFuture, Next, NextFrame},
        limits::WatchedBody,
    },
    status::{CODE_NAMES, rule_and_field, status},
    traces::{CallSpan, Method, Traces},
};
use axum::extract::{self, MatchedPath, State};
use http_body::Body as _;
use prost::Message;
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    task::Poll,
    time::{Duration, Instant},
};
use tonic::{
    Code, Status,
    body::Body,
    codegen::http::{self, HeaderMap, Response},
};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_types::StatusExt;
use tower::ServiceExt;
use tracing::Span;
use weir_engine::clock;
use weir_kernels::error::{Error, Result, clip};
use weir_proto::codec::{TOO_LARGE_DECODED, TOO_MANY_FIELDS};

/// The services and methods that are counted by name. All others count as `other`, or clients could create series at will.
const METHODS: [(&str, &[&str]); 12] = [
    ("weir.v1.Generation", &["Generate", "Score", "Segment", "Check"]),
    ("weir.v1.Summarization", &["Summarize"]),
    ("weir.v1.Codec", &["Compress", "Decompress"]),
    ("weir.v1.Editing", &["Edit"]),
    ("weir.v1.Models", &["ListModels", "GetModel"]),
    // Over HTTP only.
    ("weir.v1.Tokenization", &["Render", "Tokenize", "Detokenize"]),
    ("weir.v1.Admin", &["LoadModel", "UnloadModel", "ListGenerations", "ResetReport"]),
    ("weir.v1.Latency", &["GetReport"]),
    (
        "inference.GRPCInferenceService",
        &[
            "ServerLive",
            "ServerReady",
            "ModelReady",
            "ServerMetadata",
            "ModelMetadata",
            "ModelInfer",
            "ModelStreamInfer",
            "ModelConfig",
            "ModelStatistics",
            "RepositoryIndex",
        ],
    ),
    ("grpc.health.v1.Health", &["Check", "Watch", "List"]),
    ("grpc.reflection.v1.ServerReflection", &["ServerReflectionInfo"]),
    ("grpc.reflection.v1alpha.ServerReflection", &["ServerReflectionInfo"]),
];

/// The header or trailer with the status.
const STATUS: &str = "grpc-status";

/// The prefix of our own services' names.
const OWN: &str = "weir.v1.";

const OTHER: Method = Method { service: "other", name: "other" };

/// Counts a request that its connection refuses, so that it reaches no middleware.
pub(crate) fn count_refused(metrics: &Metrics, path: &str, code: Code) {
    let Method { service, name } = method(path);
    metrics.count_call(service, name, CODE_NAMES[code as usize]);
}

/// A call that has not ended. It is counted when this is dropped.
pub(crate) struct OpenCall {
    /// `None` if the call is part of another one, which is counted.
    metrics: Option<Arc<Metrics>>,
    span: Option<CallSpan>,
    method: Method,
    /// The status of the call. Until it is known, the call counts as cancelled by the client.
    pub(crate) code: Code,
}

impl OpenCall {
    /// Begins to count a call of the method at `path`, and its span if calls of the method are traced.
    pub(crate) fn begin(
        metrics: Option<Arc<Metrics>>,
        traces: Option<&Traces>,
        path: &str,
        headers: &HeaderMap,
        call: &mut Call,
    ) -> Self {
        let method = method(path);
        let traces = traces.filter(|_| method.service.starts_with(OWN) || method.name == "ModelInfer");
        call.span = traces.map(|traces| traces.begin(method, headers, &call.id));
        Self { metrics, span: call.span.clone(), method, code: Code::Cancelled }
    }

    /// Watches a gRPC response for its status, which a stream has in its trailers. A body that is dropped before its end means that
    /// the client cancelled the call.
    pub(super) fn watch(mut self, response: Response<Body>) -> Response<Body> {
        // A response without a body has its status in the headers.
        if response.body().is_end_stream() || response.headers().contains_key(STATUS) {
            self.set_code(Some(response.headers()));
        }
        response.map(|body| WatchedBody::wrap(body, move |frame| self.observe(frame)))
    }

    /// Takes the status from the end of the response.
    fn observe(&mut self, frame: NextFrame) -> NextFrame {
        match &frame {
            Some(Ok(frame)) if frame.is_trailers() => self.set_code(frame.trailers_ref()),
            Some(Ok(_)) => {}
            Some(Err(_)) => self.code = Code::Internal,
            None if self.code == Code::Cancelled => self.set_code(None),
            None => {}
        }
        frame
    }

    /// Reads the status code from the last headers or trailers of the response.
    fn set_code(&mut self, trailers: Option<&HeaderMap>) {
        let status = trailers.and_then(|trailers| trailers.get(STATUS));
        self.code = status.map_or(Code::Unknown, |status| Code::from_bytes(status.as_bytes()));
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if let Some(metrics) = &self.metrics {
            metrics.count_call(self.method.service, self.method.name, CODE_NAMES[self.code as usize]);
        }
        if let Some(span) = &self.span {
            span.end(self.code);
        }
    }
}

/// Returns the method that a path names, or [`OTHER`].
fn method(path: &str) -> Method {
    let known = |(service, methods): &(&'static str, &[&'static str])| {
        let method = path.strip_prefix('/')?.strip_prefix(service)?.strip_prefix('/')?;
        methods.iter().find(|known| **known == method).map(|name| Method { service, name })
    };
    METHODS.iter().find_map(known).unwrap_or(OTHER)
}

// Counts every HTTP request when the head of its response is known, by path, method and status code.

/// The HTTP methods that are counted by name, as paths are that the API has.
const HTTP_METHODS: [http::Method; 4] =
    [http::Method::GET, http::Method::HEAD, http::Method::OPTIONS, http::Method::POST];

/// nginx's status code for a request whose connection closed before the response.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// The status code of a request whose handler panics. Its connection ends without a response.
const PANIC: u16 = 500;

/// Counts a request. The router sets [`MatchedPath`] before it calls its layers.
pub(crate) async fn count_http(
    State(metrics): State<Arc<Metrics>>,
    request: extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    let method = HTTP_METHODS
        .iter()
        .find(|known| *known == request.method())
        .map_or(OTHER.name, http::Method::as_str)
        .to_owned();
    let mut open = OpenRequest {
        metrics,
        handler: request.extensions().get::<MatchedPath>().cloned(),
        method,
        status: CLIENT_CLOSED_REQUEST,
    };
    let response = next.run(request).await;
    open.status = response.status().as_u16();
    response
}

/// A request that has no response yet. It is counted when this is dropped.
struct OpenRequest {
    metrics: Arc<Metrics>,
    handler: Option<MatchedPath>,
    method: String,
    status: u16,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let handler = self.handler.as_ref().map_or(OTHER.name, MatchedPath::as_str);
        let status = if std::thread::panicking() { PANIC } else { self.status };
        self.metrics.count_http_request(handler, &self.method, status);
    }
}

/// Waits for the beginning of a response. Fails with [`Error::Internal`] if a panic prevents it.
pub(crate) async fn catch_panic<T>(response: impl Future<Output = T>) -> Result<T> {
    let mut response = pin!(response);
    std::future::poll_fn(|cx| match caught(|| response.as_mut().poll(cx)) {
        Ok(polled) => polled.map(Ok),
        Err(error) => {
            tracing::error!(%error, "failed");
            Poll::Ready(Err(error))
        }
    })
    .await
}

/// Runs `work` on a response that has begun, so that [`catch_panic`] no longer sees its panics. Fails with
/// [`Error::Internal`] if `work` panics. The caller must then drop all data that `work` was changing.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Error::Internal("a panic; the log shows where".into()))
}

/// How the paths of reflection begin, in both versions.
const REFLECTION: &str = "/grpc.reflection.";

/// Gives the response of reflection the status of a request that could not be read. tonic-reflection would end it with the status OK,
/// so this checks the requests first, and replaces the status in the trailers after a failure.
pub(super) fn report(request: HttpRequest, next: Next) -> MiddlewareFuture {
    if !request.uri().path().starts_with(REFLECTION) {
        return Box::pin(next.oneshot(request));
    }
    let request_id = Call::of_http(&request).id;
    // Why a request could not be read, once that is known.
    let failure = Arc::<OnceLock<Status>>::default();
    let found = Arc::clone(&failure);
    // The body passes on whole messages that are not compressed.
    let check_requests = move |frame: NextFrame| {
        let frame = frame?.and_then(|frame| {
            let checked = frame.data_ref().map_or(Ok(()), |messages| check(messages));
            checked.map(|()| frame).map_err(|error| status(&error, &request_id))
        });
        if let Err(failure) = &frame {
            // An earlier failure is the cause of this one.
            let _ = found.set(failure.clone());
        }
        Some(frame)
    };
    let replace_status = move |mut frame: NextFrame| {
        let trailers = frame.as_mut().and_then(|frame| frame.as_mut().ok()?.trailers_mut());
        if let (Some(trailers), Some(failure)) = (trailers, failure.get())
            && let Err(error) = failure.add_header(trailers)
        {
            return Some(Err(error));
        }
        frame
    };
    let request = request.map(|body| WatchedBody::wrap(body, check_requests));
    Box::pin(async move {
        let response = next.oneshot(request).await?;
        Ok(response.map(|body| WatchedBody::wrap(body, replace_status)))
    })
}

/// Checks that each of these messages is a request of at most [`KEYLESS_MESSAGE_BYTES`].
fn check(mut messages: &[u8]) -> Result<()> {
    while !messages.is_empty() {
        let early = || Error::Unreadable { field: None, why: "the message ends early".into() };
        let (header, rest) = messages.split_at_checked(HEADER).ok_or_else(early)?;
        let length = header[1..].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if length > KEYLESS_MESSAGE_BYTES {
            return Err(Error::Oversized { what: "the message", limit: KEYLESS_MESSAGE_BYTES });
        }
        let (message, later) = rest.split_at_checked(length).ok_or_else(early)?;
        // Both versions have the same fields.
        ServerReflectionRequest::decode(message).map_err(|error| undecodable(&error.to_string()))?;
        messages = later;
    }
    Ok(())
}

// Log lines about refused calls. A client can cause refusals at will, so each code and rule has at most one line in [`INTERVAL`], which
// counts those before it. A line has no value: that may be a client's text.

/// Minimum time between two lines about the same code and rule.
const INTERVAL: Duration = Duration::from_secs(10);

/// The codes of refusals that no other part of the server logs.
const CODES: [Code; 7] = [
    Code::InvalidArgument,
    Code::NotFound,
    Code::FailedPrecondition,
    Code::ResourceExhausted,
    Code::OutOfRange,
    Code::Unauthenticated,
    Code::PermissionDenied,
];

/// The reason of an error whose field may be a key that the client chose.
const UNREADABLE: &str = "UNREADABLE";

/// The fields of requests in JSON that a [`CompletionRequest`] lacks, on all paths. A test compares them with the requests.
const OTHER_JSON_FIELDS: [&str; 8] = [
    "id",
    "inputs",
    "messages",
    "outputs",
    "parameters",
    "sampling_parameters",
    "timeout",
    "triton_enable_empty_final_response",
];

/// The state of the lines. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusalLog {
    /// The lines by code and rule, of which there are few.
    lines: Arc<Mutex<BTreeMap<(i32, String), LogLine>>>,
}

/// A log line about events that may come at any rate: at most one in an interval, with the number of events before it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogLine {
    /// Time of the last logged line.
    latest: Option<Instant>,
    /// Events since then.
    unlogged: u64,
}

/// A refused call, as the log describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    /// The name of the violated rule, in upper case.
    pub(crate) rule: String,
    /// The field of the request that is wrong.
    pub(crate) field: Option<String>,
    /// The error's message. The log has it only if a limit is reached or credentials are refused.
    pub(crate) message: String,
}

impl Refusal {
    /// Describes the status of a gRPC call.
    fn of(status: &Status) -> Self {
        let details = status.get_error_details();
        let (rule, field) = rule_and_field(&details);
        let is_of_schema = rule != UNREADABLE || status.message().starts_with(DECODING);
        let field = if is_of_schema { field.map(str::to_owned) } else { field.and_then(json_field) };
        Self { code: status.code(), rule: rule.to_owned(), field, message: status.message().to_owned() }
    }

    /// Describes a refused request in JSON.
    pub(crate) fn of_json(code: Code, rule: String, field: Option<&str>, message: &str) -> Self {
        let field = if rule == UNREADABLE { field.and_then(json_field) } else { field.map(str::to_owned) };
        Self { code, rule, field, message: message.to_owned() }
    }

    /// Logs this refusal, and the number of earlier ones that had no line.
    fn log(&self, unlogged: u64) {
        let Self { code, rule, field, message } = self;
        match code {
            // These messages have only names and numbers of limits.
            Code::ResourceExhausted => {
                tracing::warn!(?code, rule, limit = message, unlogged, "refused a call: a limit is reached");
            }
            // These messages never contain credentials.
            Code::Unauthenticated => tracing::info!(?code, rule, why = message, unlogged, "refused credentials"),
            Code::PermissionDenied => tracing::warn!(?code, rule, why = message, unlogged, "refused credentials"),
            _ => tracing::info!(?code, rule, field, unlogged, "refused a call"),
        }
    }
}

/// Returns the first name of a path in JSON if it is a known field. Drops the keys and indices below it, and other names: they may
/// be a client's text.
fn json_field(path: &str) -> Option<String> {
    let first = path.split(['.', '[']).next()?;
    let is_known = OTHER_JSON_FIELDS.contains(&first) || field_names::<CompletionRequest>().contains(&first);
    is_known.then(|| first.to_owned())
}

impl RefusalLog {
    /// Logs the status of a gRPC call, in the current span, if its code and rule had no line in [`INTERVAL`].
    pub(crate) fn record_status(&self, status: &Status) {
        if CODES.contains(&status.code()) {
            self.record(&Refusal::of(status));
        }
    }

    /// Logs a refusal, in the current span, if its code and rule had no line in [`INTERVAL`].
    pub(crate) fn record(&self, refusal: &Refusal) {
        if let Some(unlogged) = self.count(refusal, clock::now()) {
            refusal.log(unlogged);
        }
    }

    /// Counts a refusal. Returns the number of earlier refusals without a line if this one gets a line.
    pub(crate) fn count(&self, refusal: &Refusal, now: Instant) -> Option<u64> {
        if !CODES.contains(&refusal.code) {
            return None;
        }
        // Before the lock: a flood of refusals waits for it.
        let key = (refusal.code as i32, refusal.rule.clone());
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.entry(key).or_default().count(INTERVAL, now)
    }
}

impl LogLine {
    /// Counts an event. Returns the number of earlier ones without a line if this one gets a line.
    pub(crate) fn count(&mut self, interval: Duration, now: Instant) -> Option<u64> {
        if self.latest.is_some_and(|latest| now.saturating_duration_since(latest) < interval) {
            self.unlogged += 1;
            return None;
        }
        self.latest = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

// Id and log span of a call. The log never contains text of a request. tower-http's request-id layer does not suffice: it takes a
// client's id without validating it.

/// Maximum bytes of a path that the log and errors repeat.
pub(crate) const PATH_BYTES: usize = 128;

/// Creates the log span of a call. Authentication records its principal.
pub(crate) fn log_span(path: &str, id: &str) -> Span {
    tracing::info_span!("call", path = clip(path, PATH_BYTES), id, principal = tracing::field::Empty)
}

// tonic's own failures get our codes and details. Its code is not enough: it is INTERNAL for a message that is not protobuf, and for one
// that ends early. The first is known by how tonic's error text begins; the second keeps its code. A test pins these texts to the
// version of tonic. Clients get tonic's text unchanged.

/// How prost's error text begins for bytes that are not protobuf.
pub(super) const DECODING: &str = "failed to decode Protobuf message: ";

/// How tonic's error text begins for a message that is longer than the limit as sent.
const TOO_LONG: &str = "Error, decoded message length too large: ";

/// Type of the message in the oneof `part`, and the name of its field. prost calls each of these fields `part`.
const PARTS: [(&str, &str); 2] = [("SummarizeOptions", "options"), ("DocumentChunk", "chunk")];

/// Adds our code and details to a response that tonic itself created.
pub(super) fn add_details(request: HttpRequest, next: Next) -> MiddlewareFuture {
    let call = Call::of_http(&request);
    let uri = request.uri().clone();
    Box::pin(async move {
        let response = next.oneshot(request).await?;
        let Some(answer) = Status::from_header_map(response.headers()) else { return Ok(response) };
        let error = if answer.code() == Code::Unimplemented && answer.message().is_empty() {
            Some(Error::UnknownMethod { path: clip(uri.path(), PATH_BYTES) })
        } else {
            unreadable(&answer)
        };
        Ok(error.map_or(response, |error| status(&error, &call.id).into_http()))
    })
}

/// Returns the error that tonic's status stands for, if it is about a message that tonic cannot read.
pub(crate) fn unreadable(answer: &Status) -> Option<Error> {
    let message = answer.message();
    // Our own statuses have details.
    if !answer.details().is_empty() {
        None
    } else if message.starts_with(TOO_LARGE_DECODED) {
        Some(Error::Oversized { what: "the decoded message", limit: last_number(message)? })
    } else if message.starts_with(TOO_MANY_FIELDS) {
        Some(Error::LongerThan { field: "message", limit: last_number(message)?, unit: "fields", why: None })
    } else if message.starts_with(TOO_LONG) {
        Some(Error::Oversized { what: "the message", limit: last_number(message)? })
    } else {
        message.starts_with(DECODING).then(|| undecodable(message))
    }
}

/// Returns the error for a message that prost cannot decode, with the field that prost names.
pub(crate) fn undecodable(message: &str) -> Error {
    let path = message.strip_prefix(DECODING).unwrap_or_default();
    Error::Unreadable { field: field(path), why: message.to_owned() }
}

/// Returns the last number in `message`: the limit.
fn last_number(message: &str) -> Option<usize> {
    message.split(|c: char| !c.is_ascii_digit()).rfind(|digits| !digits.is_empty())?.parse().ok()
}

/// Returns the path of the field in `Inner.field: Outer.field: reason`, outermost first.
fn field(mut path: &str) -> Option<String> {
    let mut field = None::<String>;
    let mut inner = "";
    while let Some((step, rest)) = path.split_once(": ") {
        let Some((message, name)) = step.split_once('.').filter(|_| !step.contains(' ')) else { break };
        let part = PARTS.iter().find(|(kind, _)| name == "part" && *kind == inner);
        let name = part.map_or(name, |(_, name)| *name);
        field = Some(field.map_or_else(|| name.to_owned(), |inner| format!("{name}.{inner}")));
        inner = message;
        path = rest;
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::status;
    use prost::Message;
    use std::collections::BTreeSet;
    use tonic::{body::Body, codegen::http::Request};
    use weir_kernels::error::Error;

    #[test]
    fn only_methods_of_our_services_are_named() {
        let set = prost_types::FileDescriptorSet::decode(weir_proto::FILE_DESCRIPTOR_SET).unwrap();
        let mut methods = 0;
        for file in &set.file {
            for service in &file.service {
                for found in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), found.name());
                    assert_ne!(method(&path), OTHER, "{path}");
                    methods += 1;
                }
            }
        }
        assert!(methods > 10, "{methods}");
        let generate = Method { service: "weir.v1.Generation", name: "Generate" };
        assert_eq!(method("/weir.v1.Generation/Generate"), generate);
        for path in ["", "/", "/weir.v1.Generation", "/weir.v1.Generation/", "/weir.v1.Generation/Made", "/a/b"] {
            assert_eq!(method(path), OTHER, "{path:?}");
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let panics = async {
            tokio::task::yield_now().await;
            panic!("no")
        };
        assert!(matches!(catch_panic::<()>(panics).await, Err(Error::Internal(_))));
        assert!(matches!(caught(|| panic!("no")), Err::<(), _>(Error::Internal(_))));
        assert_eq!(caught(|| 1).unwrap(), 1);
    }

    /// Returns the frame of a message.
    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    #[test]
    fn all_messages_of_a_frame_are_checked() {
        let request = framed(&ServerReflectionRequest::default().encode_to_vec());
        assert!(check(&[]).is_ok());
        assert!(check(&request).is_ok());
        for bad in [framed(&[0, 0]), framed(&[0; KEYLESS_MESSAGE_BYTES + 1]), vec![0; 3], vec![0, 0, 0, 0, 9, 1]] {
            assert!(check(&bad).is_err(), "{bad:?}");
            assert!(check(&[&request[..], &bad].concat()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_refusal_names_its_field_and_no_key_of_the_client() {
        let unreadable = |path: &str, why: &str| Error::Unreadable { field: Some(path.into()), why: why.into() };
        let decoding = format!("{DECODING}Sampling.top_p: GenerateRequest.sampling: invalid wire type");
        for (error, field) in [
            (Error::UnknownModel { field: "name", name: "x".into(), known: vec![] }, Some("name")),
            (Error::UnknownDocument { id: "x".into() }, Some("document_id")),
            (Error::bad_option("n", "0", "1"), Some("n")),
            (Error::only_continues_text("m", "f"), Some("model")),
            (Error::wrong_kind("stopping.max_segments", "m", "w", "f"), Some("stopping.max_segments")),
            (Error::Oversized { what: "the body", limit: 1 }, None),
            (unreadable("top_p", "top_p: expected a number"), Some("top_p")),
            (unreadable("logit_bias.secret", "x"), Some("logit_bias")),
            (unreadable("prompt[3]", "x"), Some("prompt")),
            (unreadable("secret", "x"), None),
            (unreadable("sampling.top_p", &decoding), Some("sampling.top_p")),
        ] {
            assert_eq!(Refusal::of(&status(&error, "")).field.as_deref(), field, "{error}");
        }
    }

    #[test]
    fn each_code_and_rule_has_one_line_in_the_interval() {
        let log = RefusalLog::default();
        let start = Instant::now();
        let count = |code, rule: &str, seconds| {
            let refusal = Refusal { code, rule: rule.into(), field: None, message: String::new() };
            log.count(&refusal, start + Duration::from_secs(seconds))
        };
        assert_eq!(count(Code::InvalidArgument, "BAD_OPTION", 0), Some(0));
        assert_eq!(count(Code::InvalidArgument, "BAD_OPTION", 1), None);
        assert_eq!(count(Code::InvalidArgument, "TOO_LONG", 1), Some(0), "another rule");
        assert_eq!(count(Code::InvalidArgument, "BAD_OPTION", 9), None);
        assert_eq!(count(Code::ResourceExhausted, "BAD_OPTION", 9), Some(0), "another code");
        assert_eq!(count(Code::InvalidArgument, "BAD_OPTION", 10), Some(2));
        assert_eq!(count(Code::InvalidArgument, "BAD_OPTION", 20), Some(0));
        for quiet in [Code::Ok, Code::Cancelled, Code::Unavailable, Code::Internal] {
            assert_eq!(count(quiet, "BAD_OPTION", 30), None, "{quiet:?}");
        }
    }

    #[test]
    fn json_fields_that_a_completion_lacks_are_those_of_the_other_requests() {
        use crate::http::open_inference::InferenceRequest;
        use crate::open_inference::request::EMPTY_FINAL;
        use crate::open_inference::request::TIMEOUT;
        use crate::open_inference::tensors::SAMPLING_PARAMETERS;
        let mut fields = BTreeSet::from([SAMPLING_PARAMETERS, EMPTY_FINAL, TIMEOUT]);
        fields.extend(field_names::<InferenceRequest>());
        // Refused before they are parsed: the field of chats that errors name.
        fields.insert("messages");
        let completion = BTreeSet::from_iter(field_names::<CompletionRequest>().iter().copied());
        assert_eq!(fields.difference(&completion).collect::<Vec<_>>(), OTHER_JSON_FIELDS.iter().collect::<Vec<_>>());
        assert!(completion.is_superset(&BTreeSet::from(["logit_bias", "no_repeat_ngram_size"])), "{completion:?}");
    }

    /// Sends one message to a service from tonic that accepts up to 8 bytes, and returns the status.
    async fn answer(message: &[u8]) -> (Code, String) {
        let (_, service) = tonic_health::server::health_reporter();
        let body = Body::new(axum::body::Body::from(framed(message)));
        let request = Request::post("/grpc.health.v1.Health/Check").body(body).unwrap();
        let response = service.max_decoding_message_size(8).oneshot(request).await.unwrap();
        let status = Status::from_header_map(response.headers()).unwrap();
        (status.code(), status.message().to_owned())
    }

    /// If this test fails with a new version, check [`unreadable`] and adapt the constants and this test.
    #[tokio::test]
    async fn tonic_0_14_9_and_prost_0_14_4_word_their_messages_like_this() {
        let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
        for pinned in ["\"tonic\"\nversion = \"0.14.9\"\n", "\"prost\"\nversion = \"0.14.4\"\n"] {
            assert!(lock.contains(pinned), "{pinned}");
        }
        let long = "Error, decoded message length too large: found 9 bytes, the limit is: 8 bytes";
        assert_eq!(answer(&[0; 9]).await, (Code::OutOfRange, long.into()));
        let text = "failed to decode Protobuf message: HealthCheckRequest.service: invalid string value: data is not UTF-8 encoded";
        assert_eq!(answer(b"\x0a\x01\xff").await, (Code::Internal, text.into()));
        let oversized = unreadable(&Status::out_of_range(long)).unwrap();
        assert_eq!(oversized.to_string(), "the message: expected at most 8 bytes, found more");
    }

    #[test]
    fn only_statuses_of_tonic_are_changed() {
        let ours = status(&Error::Internal(format!("{DECODING}x")), "r");
        assert!(unreadable(&ours).is_none());
        assert!(unreadable(&Status::internal("something else")).is_none());
    }
}
