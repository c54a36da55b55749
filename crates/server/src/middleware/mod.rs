//! The middleware around all services. [`Admission`] is what every call meets, whichever surface it comes from. [`stack`] lists the
//! layers that a gRPC call meets before and after it, because it arrives in bytes. Both stand in the order in which a call meets
//! them, with the reason for each position.

pub(crate) mod auth;
pub(crate) mod compression;
pub(crate) mod deadlines;
pub(crate) mod layer;
pub(crate) mod limits;
pub(crate) mod observe;

use crate::call::{Call, ClientContext, REQUEST_ID, request_id};
use crate::config::{LiveCredentials, TransportConfig};
use crate::metrics::Metrics;
use crate::middleware::auth::{needs_no_key, take_principal};
use crate::middleware::deadlines::begin_by;
use crate::middleware::layer::{Around, HttpRequest, Middleware, MiddlewareFuture, Next};
use crate::middleware::limits::{BodyMemory, CallPlace, CallTable, GuardedBody};
use crate::middleware::observe::{OpenCall, RefusalLog, catch_panic, log_span};
use crate::registry::Engines;
use crate::status::{self, status};
use crate::tokenization::TokenizationWorkers;
use crate::traces::Traces;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::http::{HeaderValue, Response, StatusCode};
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::{ServiceBuilder, ServiceExt};
use tracing::{Instrument, Span};
use weir_engine::clock;
use weir_kernels::error::{Error, Result};

/// Admits calls: checks, counts and logs every call before its handler runs.
#[derive(Clone)]
pub(crate) struct Admission {
    /// `None` for calls that are part of another one, which is counted.
    pub(crate) metrics: Option<Arc<Metrics>>,
    pub(crate) traces: Option<Traces>,
    pub(crate) refusals: RefusalLog,
    /// The calls in progress.
    pub(crate) in_progress: Arc<CallTable>,
}

/// The failure of a call: an error, or over gRPC a status.
pub(crate) trait CallError {
    fn new(error: Error, request_id: &str) -> Self;

    fn status(&self, request_id: &str) -> Status;
}

impl CallError for Error {
    fn new(error: Error, _: &str) -> Self {
        error
    }

    fn status(&self, request_id: &str) -> Status {
        status(self, request_id)
    }
}

impl CallError for Status {
    fn new(error: Error, request_id: &str) -> Self {
        status(&error, request_id)
    }

    fn status(&self, _: &str) -> Status {
        self.clone()
    }
}

impl Admission {
    /// Runs `handler` as a call of the method at `path` that came in at `arrived`. The call is in progress until its response is
    /// dropped.
    pub(crate) async fn begin<R, E: CallError>(
        &self,
        path: &str,
        arrived: Instant,
        client: &ClientContext,
        handler: impl AsyncFnOnce(Call) -> Result<R, E>,
    ) -> Result<CallResponse<R>, E> {
        let id = &*client.request_id;
        let mut call = Call { deadline: client.deadline, ..Call::new(Arc::clone(&client.request_id), arrived) };
        // Outside everything that answers, so that every call is counted with the status that the client sees.
        let mut open = OpenCall::begin(self.metrics.clone(), self.traces.as_ref(), path, &client.headers, &mut call);
        let admitted = async {
            // Inside the log span, in which it records the principal; outside everything that uses memory or time.
            match client.principal() {
                Ok(principal) => {
                    Span::current().record("principal", tracing::field::display(principal));
                    call.principal = principal.clone();
                }
                Err(_) if needs_no_key(path) => {}
                Err(refused) => return Err(refused),
            }
            // Inside authentication, which sets the tenant. The limit that costs neither memory nor time. The connections count the
            // calls of health and reflection.
            let place = if needs_no_key(path) { None } else { Some(self.in_progress.begin(call.tenant())?) };
            // Outside the handler, because it may stop waiting for the response. Inside everything else, which should see a panic of
            // the handler as an ordinary failure.
            let response = begin_by(call.deadline, catch_panic(handler(call))).await.flatten()?;
            Ok(response.map(|response| (place, response)))
        };
        // Outside everything that can fail, so that every failure is logged within the call's span.
        let begun = async {
            let begun = admitted.await.unwrap_or_else(|error| Err(E::new(error, id)));
            let refused = begun.as_ref().err().map(|error| error.status(id));
            let code = refused.as_ref().map_or(Code::Ok, Status::code);
            tracing::debug!(?code, elapsed = ?clock::since(arrived), "response begins");
            if let Some(refused) = refused {
                open.code = code;
                if client.logs_calls {
                    self.refusals.record_status(&refused);
                }
            }
            begun
        };
        let (place, response) = begun.instrument(log_span(path, id)).await?;
        Ok(CallResponse { response, open, place })
    }
}

/// The response to a call, which is in progress until this is dropped.
pub(crate) struct CallResponse<R> {
    pub(crate) response: R,
    open: OpenCall,
    place: Option<CallPlace>,
}

impl<R> CallResponse<R> {
    /// Ends the call, whose response is complete.
    pub(crate) fn into_complete(mut self) -> R {
        self.open.code = Code::Ok;
        self.response
    }
}

impl CallResponse<Response<Body>> {
    /// Returns the response of a gRPC call, which is in progress until the body is dropped.
    fn into_http(self) -> Response<Body> {
        let Self { response, open, place } = self;
        open.watch(response).map(|body| Body::new(GuardedBody::new(body, place)))
    }
}

impl<T, R: Stream<Item = Result<T>> + Unpin> Stream for CallResponse<R> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let message = ready!(Pin::new(&mut self.response).poll_next(cx));
        match &message {
            Some(Ok(_)) => {}
            Some(Err(failure)) => self.open.code = status::code(failure),
            None if self.open.code == Code::Cancelled => self.open.code = Code::Ok,
            None => {}
        }
        Poll::Ready(message)
    }
}

/// The parts of the server that only gRPC calls meet.
pub(crate) struct Parts<'a> {
    pub(crate) config: &'a TransportConfig,
    /// The memory of requests and of responses that are not read.
    pub(crate) memory: &'a Arc<BodyMemory>,
    pub(crate) engines: &'a Engines,
    /// Decompress requests.
    pub(crate) workers: &'a TokenizationWorkers,
    /// Cancelled when the drain begins.
    pub(crate) draining: &'a CancellationToken,
}

/// Puts the middleware around the services. A call meets the layers from the first to the last.
pub(crate) fn stack(routes: Routes, admission: Admission, parts: &Parts<'_>) -> Next {
    let &Parts { config, memory, engines, workers, draining } = parts;
    let engines = engines.clone();
    let stall = move || engines.stall();
    let services = ServiceBuilder::new()
        // Outside everything that may answer UNAVAILABLE.
        .layer(Around(http_status(config.late_headers)))
        // Outside everything that uses memory or time.
        .layer(Around(admit(admission, config.access.credentials.clone())))
        // From here on inside authentication, which sets the tenant; and inside the admission, which counts calls that are ended.
        .layer(Around(limits::end_keyless_calls))
        // Outside the services, which encode the responses.
        .layer(Around(deadlines::limit_unread_streams(stall.clone())))
        .layer(Around(deadlines::limit_unread_responses(Arc::clone(memory), stall)))
        // Outside the services, which read the bodies.
        .layer(Around(limits::limit_bodies(Arc::clone(memory), config, workers.clone(), draining.clone())))
        // Inside the admission, which counts and logs failures, because it adds code and details to tonic's.
        .layer(Around(observe::add_details))
        // Inside the limits on bodies, which pass on whole messages; outside the services, which swallow the errors.
        .layer(Around(observe::report))
        // Last, because only the services look at how a response may be compressed.
        .layer(Around(compression::mirror))
        .service(routes);
    Next::new(services)
}

/// Admits a gRPC call, whose handler is the rest of the stack. Every response carries the request's id.
fn admit(admission: Admission, credentials: LiveCredentials) -> impl Middleware {
    move |mut request: HttpRequest, next: Next| {
        // Read before the call waits for anything: its deadline counts from here.
        let arrived = clock::now();
        let id = request_id(request.headers());
        let principal = take_principal(&credentials.current(), &mut request);
        let deadline = deadlines::deadline(request.headers(), arrived);
        let client = ClientContext::new(id, request.headers(), principal).logging_calls();
        let client = client.until(deadline.as_ref().copied().unwrap_or_default());
        let admission = admission.clone();
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let handler = async move |call: Call| {
                // Only an admitted client learns that its deadline is malformed.
                deadline.map_err(|error| status(&error, &call.id))?;
                request.extensions_mut().insert(call);
                let response = next.oneshot(request).await.map_err(Status::from_error)?;
                match Status::from_header_map(response.headers()).filter(|status| status.code() != Code::Ok) {
                    Some(refused) => Err(refused),
                    None => Ok(response),
                }
            };
            let begun = admission.begin(&path, arrived, &client, handler).await;
            let mut response = begun.map_or_else(Status::into_http, CallResponse::into_http);
            if let Ok(value) = HeaderValue::from_str(&client.request_id) {
                response.headers_mut().insert(REQUEST_ID, value);
            }
            Ok(response)
        })
    }
}

/// If `enabled`, gives an UNAVAILABLE answer the HTTP status 503, because proxies read no gRPC status.
fn http_status(enabled: bool) -> impl Middleware {
    move |request: HttpRequest, next: Next| {
        Box::pin(async move {
            let mut response = next.oneshot(request).await?;
            let code = response.headers().get("grpc-status").map(|status| Code::from_bytes(status.as_bytes()));
            if enabled && code == Some(Code::Unavailable) {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            Ok(response)
        })
    }
}

impl<F: Fn(HttpRequest, Next) -> MiddlewareFuture + Clone + Send + Sync + 'static> Middleware for F {}
