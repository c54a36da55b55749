//! Spans of calls, sent to a collector by OTLP: one for each call of `weir.v1`, and within it the phases of its job, queue,
//! prefill and decode, as the engine measured them. No part of a text is ever in them.
//!
//! A call that comes with `traceparent` (W3C Trace Context) is a part of that trace. Spans wait in a queue of the SDK's, which
//! is bounded: a collector that is not there loses spans and nothing else.

use crate::{
    decode::usage::{Timing, Usage},
    error::{Error, Result},
};
use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, TextMapPropagator},
    trace::{Span as _, SpanKind, Status, TraceContextExt, Tracer as _, TracerProvider as _},
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracer, SdkTracerProvider},
};
use std::time::{Duration, SystemTime};
use tonic::codegen::http::{HeaderMap, HeaderName};

/// What the spans' names and attributes call this program.
const NAME: &str = "weir";
/// How long the last spans may take to be sent when the server ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// Where spans go.
#[derive(Debug, Clone)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// The span of a call that has not ended. Clones are the same span.
#[derive(Clone)]
pub(super) struct Trace {
    tracer: SdkTracer,
    context: Context,
    began: SystemTime,
}

impl Traces {
    /// To a collector's gRPC endpoint, of so large a part of the traces that begin here; a caller's own are sampled as the
    /// caller says. The collector need not be there yet. To be called within a runtime.
    ///
    /// # Errors
    /// It is no endpoint.
    pub fn to(endpoint: &str, part: f64) -> Result<Self> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build();
        let exporter = exporter.map_err(|error| Error::Setting(format!("--otlp {endpoint}: {error}")))?;
        let resource = Resource::builder().with_service_name(NAME);
        let resource = resource.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))).build();
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(part)));
        let provider = SdkTracerProvider::builder().with_sampler(sampler).with_resource(resource);
        let provider = provider.with_batch_exporter(exporter).build();
        let tracer = provider.tracer(NAME);
        Ok(Self { provider, tracer })
    }

    /// Sends what is left, for two seconds at most.
    pub(super) async fn close(self) {
        let closed = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(FAREWELL)).await;
        if let Ok(Err(error)) = closed {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }

    /// The span of a call with these headers.
    pub(super) fn begin(&self, (service, method): (&'static str, &'static str), headers: &HeaderMap) -> Trace {
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        let began = SystemTime::now();
        let span = self.tracer.span_builder(format!("{service}/{method}")).with_kind(SpanKind::Server);
        let attributes = [("rpc.system", "grpc"), ("rpc.service", service), ("rpc.method", method)];
        let span =
            span.with_start_time(began).with_attributes(attributes.map(|(key, value)| KeyValue::new(key, value)));
        let span = span.start_with_context(&self.tracer, &parent);
        Trace { tracer: self.tracer.clone(), context: parent.with_span(span), began }
    }
}

impl Trace {
    /// Which request it is.
    pub(super) fn name(&self, id: &str) {
        self.context.span().set_attribute(KeyValue::new("weir.request_id", id.to_owned()));
    }

    /// The call's job is done: its phases, and what was processed.
    pub(super) fn done(&self, model: &str, usage: &Usage, timing: &Timing) {
        let count = |key: &'static str, value: usize| KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX));
        let steps = |key: &'static str, value: u64| KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX));
        self.context.span().set_attributes([
            KeyValue::new("gen_ai.request.model", model.to_owned()),
            count("gen_ai.usage.input_tokens", usage.prompt_chars),
            count("gen_ai.usage.output_tokens", usage.generated_chars),
            count("weir.cached_chars", usage.cached_chars),
            steps("weir.steps", timing.steps),
            steps("weir.middle_steps", timing.middle_steps),
        ]);
        let at = |nanoseconds: u64| self.began + Duration::from_nanos(nanoseconds);
        let (admitted, prefilled) = (timing.queue_ns, timing.queue_ns.saturating_add(timing.prefill_ns));
        let phases = [("queue", 0, admitted), ("prefill", admitted, prefilled), ("decode", prefilled, timing.total_ns)];
        for (name, from, to) in phases {
            let span = self.tracer.span_builder(name).with_start_time(at(from));
            span.start_with_context(&self.tracer, &self.context).end_with_timestamp(at(to));
        }
    }

    /// The call is over, with this status.
    pub(super) fn end(&self, code: tonic::Code, name: &'static str) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(i32::from(code))));
        if code != tonic::Code::Ok {
            span.set_status(Status::error(name));
        }
        span.end();
    }
}

/// A call's headers, for whoever looks for a parent in them.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}
