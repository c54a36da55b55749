//! Counts every call at its end, by method and status code, and ends its span.
//!
//! A stream's status is in its trailers, so this middleware watches the body of the response. A body that is dropped before its
//! end means that the client cancelled the call.

use super::{
    guarded_body::{NextFrame, WatchedBody},
    layer::{HttpRequest, Middleware, Next},
};
use crate::{
    metrics::Metrics,
    serve::{
        call::Call,
        status::code_name,
        traces::{CallSpan, Method, Traces},
    },
};
use http_body::Body as _;
use std::sync::Arc;
use tonic::{Code, codegen::http::HeaderMap};
use tower::ServiceExt;

/// The services and methods that are counted by name. All others count as `other`, or clients could create series at will.
const METHODS: [(&str, &[&str]); 11] = [
    ("weir.v1.Generation", &["Generate", "Score", "Segment"]),
    ("weir.v1.Summarization", &["Summarize"]),
    ("weir.v1.Codec", &["Compress", "Decompress"]),
    ("weir.v1.Editing", &["Edit"]),
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
/// The prefix of our own services' names.
const OWN: &str = "weir.v1.";
const OTHER: Method = Method { service: "other", name: "other" };

/// Counts calls in `metrics`, and traces those of our own services.
pub(super) fn count(metrics: Arc<Metrics>, traces: Option<Traces>) -> impl Middleware {
    move |mut request: HttpRequest, next: Next| {
        let mut context = Call::of_http(&request);
        let mut call =
            OpenCall::begin(&metrics, traces.as_ref(), request.uri().path(), request.headers(), &mut context);
        request.extensions_mut().insert(context);
        Box::pin(async move {
            let response = next.oneshot(request).await.inspect_err(|_| call.code = Code::Internal)?;
            // A response without a body has its status in the headers.
            if response.body().is_end_stream() || response.headers().contains_key(STATUS) {
                call.set_code(Some(response.headers()));
            }
            Ok(response.map(|body| WatchedBody::wrap(body, move |frame| call.observe(frame))))
        })
    }
}

/// Counts a request that its connection refuses, so that it reaches no middleware.
pub(in crate::serve) fn count_refused(metrics: &Metrics, path: &str, code: Code) {
    let Method { service, name } = method(path);
    metrics.count_call(service, name, code_name(code));
}

/// A call that has not ended. It is counted when this is dropped.
pub(in crate::serve) struct OpenCall {
    metrics: Arc<Metrics>,
    span: Option<CallSpan>,
    method: Method,
    /// The status of the call. Until it is known, the call counts as cancelled by the client.
    pub(in crate::serve) code: Code,
}

impl OpenCall {
    /// Begins to count a call of the method at `path`, and its span if calls of the method are traced.
    pub(in crate::serve) fn begin(
        metrics: &Arc<Metrics>,
        traces: Option<&Traces>,
        path: &str,
        headers: &HeaderMap,
        call: &mut Call,
    ) -> Self {
        let method = method(path);
        let traces = traces.filter(|_| method.service.starts_with(OWN));
        call.span = traces.map(|traces| traces.begin(method, headers));
        if let Some(span) = &call.span {
            span.set_request_id(&call.id);
        }
        Self { metrics: Arc::clone(metrics), span: call.span.clone(), method, code: Code::Cancelled }
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
        self.metrics.count_call(self.method.service, self.method.name, code_name(self.code));
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

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn every_method_of_our_services_is_named() {
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
    }

    #[test]
    fn only_known_methods_are_named() {
        let generate = Method { service: "weir.v1.Generation", name: "Generate" };
        assert_eq!(method("/weir.v1.Generation/Generate"), generate);
        for path in ["", "/", "/weir.v1.Generation", "/weir.v1.Generation/", "/weir.v1.Generation/Made", "/a/b"] {
            assert_eq!(method(path), OTHER, "{path:?}");
        }
    }
}
