//! Counts every call at its end, by method and status code, and traces it until then.
//!
//! A stream's status is in its trailers, so that the answer's body is watched; one that is dropped before its end was
//! cancelled by the client.

use super::{Call, Next, ResponseFuture};
use crate::{
    metrics::Metrics,
    serve::{
        status::code_name,
        traces::{Trace, Traces},
    },
};
use http_body::{Body as _, Frame, SizeHint};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tonic::{
    Code, Status,
    body::Body,
    codegen::{
        Bytes,
        http::{HeaderMap, Request},
    },
};
use tower::ServiceExt;

/// The services and methods that are counted by name; all others are `other`, or clients could make up series.
const METHODS: [(&str, &[&str]); 9] = [
    ("weir.v1.Generation", &["Generate", "Score", "Segment"]),
    ("weir.v1.Summarization", &["Summarize"]),
    ("weir.v1.Models", &["ListModels", "GetModel"]),
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
/// What the names of our own services begin with.
const OWN: &str = "weir.v1.";
const OTHER: (&str, &str) = ("other", "other");

/// Counts calls in these metrics, and traces those of our own services.
pub(in crate::serve) fn count(
    metrics: Arc<Metrics>,
    traces: Option<Traces>,
) -> impl Fn(Request<Body>, Next) -> ResponseFuture + Clone + Send + Sync + 'static {
    move |mut request, next| {
        let method = method(request.uri().path());
        let traces = traces.as_ref().filter(|_| method.0.starts_with(OWN));
        let trace = traces.map(|traces| traces.begin(method, request.headers()));
        if let Some(trace) = &trace {
            let mut call = Call::of_http(&request);
            trace.name(&call.id);
            call.trace = Some(trace.clone());
            request.extensions_mut().insert(call);
        }
        // Until something else is known it may be that the client goes away.
        let mut call = Open { metrics: Arc::clone(&metrics), trace, method, code: Code::Cancelled };
        Box::pin(async move {
            let answer = next.oneshot(request).await.inspect_err(|_| call.code = Code::Internal)?;
            // An answer without a body has its status here.
            if answer.body().is_end_stream() || answer.headers().contains_key(STATUS) {
                call.ended(Some(answer.headers()));
            }
            Ok(answer.map(|body| Body::new(Watched { body, call })))
        })
    }
}

/// A call that has not ended.
struct Open {
    metrics: Arc<Metrics>,
    trace: Option<Trace>,
    method: (&'static str, &'static str),
    /// Its status, once that is known.
    code: Code,
}

/// An answer's body on its way to the client.
struct Watched {
    body: Body,
    call: Open,
}

impl Open {
    /// The last that is sent is known.
    fn ended(&mut self, trailers: Option<&HeaderMap>) {
        let status = trailers.and_then(|trailers| trailers.get(STATUS));
        self.code = status.map_or(Code::Unknown, |status| Code::from_bytes(status.as_bytes()));
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let (service, method) = self.method;
        self.metrics.called(service, method, code_name(self.code));
        if let Some(trace) = &self.trace {
            trace.end(self.code, code_name(self.code));
        }
    }
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) if frame.is_trailers() => self.call.ended(frame.trailers_ref()),
            Some(Ok(_)) => {}
            Some(Err(_)) => self.call.code = Code::Internal,
            None if self.call.code == Code::Cancelled => self.call.ended(None),
            None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The service and method of a path, if they are known.
fn method(path: &str) -> (&'static str, &'static str) {
    let known = |(service, methods): &(&'static str, &[&'static str])| {
        let method = path.strip_prefix('/')?.strip_prefix(service)?.strip_prefix('/')?;
        methods.iter().find(|known| **known == method).map(|method| (*service, *method))
    };
    METHODS.iter().find_map(known).unwrap_or(OTHER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_methods_are_named() {
        assert_eq!(method("/weir.v1.Generation/Generate"), ("weir.v1.Generation", "Generate"));
        for path in ["", "/", "/weir.v1.Generation", "/weir.v1.Generation/", "/weir.v1.Generation/Made", "/a/b"] {
            assert_eq!(method(path), OTHER, "{path:?}");
        }
    }
}
