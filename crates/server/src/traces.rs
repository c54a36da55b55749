//! OpenTelemetry spans, sent to a collector over OTLP: one for each call of `weir.v1`, and within it the phases of its job (queue,
//! prefill, decode) as the engine measured them. No part of a text is ever in them.
//!
//! A call with the header `traceparent` (W3C Trace Context) is a part of that trace. Spans wait in a bounded queue of the SDK:
//! without a collector spans are lost, and nothing else. tower-http's `TraceLayer` does not suffice: it would not end a span with
//! the gRPC status of the trailers.

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use std::time::{Duration, SystemTime};
use tonic::codegen::http::{HeaderMap, HeaderName};
use weir_client::status::CODE_NAMES;
use weir_kernels::error::{Error, Result};
use weir_models::usage::{Timing, Usage};

/// The name of this program in spans and attributes.
const NAME: &str = "weir";

/// Maximum time for sending the last spans at shutdown.
const FLUSH: Duration = Duration::from_secs(2);

/// The exporter of spans.
#[derive(Debug, Clone)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// A gRPC method, by the full name of its service and its name within the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Method {
    pub(crate) service: &'static str,
    pub(crate) name: &'static str,
}

/// The span of a call that has not ended. Clones are the same span.
#[derive(Clone)]
pub(crate) struct CallSpan {
    tracer: SdkTracer,
    context: Context,
    began: SystemTime,
}

impl Traces {
    /// Sends spans to a collector's gRPC endpoint, for this `share` of the traces that begin here. A client's own
    /// traces are sampled as the client decides. The collector may start later. Must be called within a runtime. Fails
    /// with [`Error::Setting`] if `endpoint` is invalid.
    pub fn to(endpoint: &str, share: f64) -> Result<Self> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build();
        let exporter = exporter.map_err(|error| Error::Setting(format!("--otlp {endpoint}: {error}")))?;
        let resource = Resource::builder().with_service_name(NAME);
        let resource = resource.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))).build();
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(share)));
        let provider = SdkTracerProvider::builder().with_sampler(sampler).with_resource(resource);
        let provider = provider.with_batch_exporter(exporter).build();
        let tracer = provider.tracer(NAME);
        Ok(Self { provider, tracer })
    }

    /// Sends the remaining spans, for at most [`FLUSH`].
    pub(crate) async fn close(self) {
        let closed = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(FLUSH)).await;
        if let Ok(Err(error)) = closed {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }

    pub(crate) fn begin(&self, method: Method, headers: &HeaderMap, request_id: &str) -> CallSpan {
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        let began = SystemTime::now();
        let Method { service, name } = method;
        let attributes =
            [("rpc.system", "grpc"), ("rpc.service", service), ("rpc.method", name), ("weir.request_id", request_id)];
        let span = self.tracer.span_builder(format!("{service}/{name}")).with_kind(SpanKind::Server);
        let span = span
            .with_start_time(began)
            .with_attributes(attributes.map(|(key, value)| KeyValue::new(key, value.to_owned())));
        let span = span.start_with_context(&self.tracer, &parent);
        CallSpan { tracer: self.tracer.clone(), context: parent.with_span(span), began }
    }
}

impl CallSpan {
    /// Records the finished job: its phases as child spans, and its counts.
    pub(crate) fn record_job(&self, model: &str, usage: &Usage, timing: &Timing) {
        let count = |key: &'static str, value: u64| KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX));
        self.context.span().set_attributes([
            KeyValue::new("gen_ai.request.model", model.to_owned()),
            count("gen_ai.usage.input_tokens", usage.prompt_chars as u64),
            count("gen_ai.usage.output_tokens", usage.generated_chars as u64),
            count("weir.cached_chars", usage.cached_chars as u64),
            count("weir.steps", timing.steps),
            count("weir.middle_steps", timing.middle_steps),
        ]);
        let time = |nanoseconds: u64| self.began + Duration::from_nanos(nanoseconds);
        let prefilled = timing.queue_ns.saturating_add(timing.prefill_ns);
        let phases = [
            ("queue", 0, timing.queue_ns),
            ("prefill", timing.queue_ns, prefilled),
            ("decode", prefilled, timing.total_ns),
        ];
        for (name, start, end) in phases {
            let span = self.tracer.span_builder(name).with_start_time(time(start));
            span.start_with_context(&self.tracer, &self.context).end_with_timestamp(time(end));
        }
    }

    /// Ends the span with the call's status code.
    pub(crate) fn end(&self, code: tonic::Code) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(i32::from(code))));
        if code != tonic::Code::Ok {
            span.set_status(Status::error(CODE_NAMES[code as usize]));
        }
        span.end();
    }
}

/// Lets the propagator look up the parent trace in a call's headers.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}
