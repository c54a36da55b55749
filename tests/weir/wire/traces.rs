//! Spans of calls, as a collector receives them.

use super::{
    Running,
    fake_model::{Fake, Kind},
    long, prompt, read,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::any_value::Value,
    trace::v1::{Span, status::StatusCode},
};
use std::{sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::mpsc};
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};
use weir::{
    config::TransportConfig,
    decode::contract::Model,
    engine::{Handle, Limits},
    serve::{Engines, Monitor, ServerParts, Traces},
};
use weir_proto::v1::generation_client::GenerationClient;

/// Trace and span of the caller.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const PROMPT: &str = "ab c";

struct Collector(mpsc::Sender<Span>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            let service =
                resource.resource.unwrap().attributes.into_iter().find(|attribute| attribute.key == "service.name");
            assert_eq!(service.unwrap().value.unwrap().value, Some(Value::StringValue("weir".into())));
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let _ = self.0.send(span).await;
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Starts a server that sends its spans to `endpoint`.
async fn traced(endpoint: &str) -> Running {
    let engine = Handle::start(Fake::new("fake", Kind::Pooled) as Arc<dyn Model>, Limits::default()).unwrap();
    let monitor = Monitor::new(Engines::new(vec![engine]).unwrap(), Duration::from_secs(60));
    let traces = Some(Traces::to(endpoint, 1.0).unwrap());
    Running::offering(ServerParts { traces, ..monitor.into() }, TransportConfig::default()).await
}

fn attribute(span: &Span, key: &str) -> Option<Value> {
    span.attributes.iter().find(|attribute| attribute.key == key).and_then(|found| found.value.clone()?.value)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_and_its_phases_reach_the_collector() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (sender, mut spans) = mpsc::channel(64);
    let collector = Server::builder().add_service(TraceServiceServer::new(Collector(sender)));
    let collector = tokio::spawn(collector.serve_with_incoming(TcpIncoming::from(listener)));
    let mut server = traced(&endpoint).await;
    let mut client = GenerationClient::new(server.channel.clone());
    let mut request = Request::new(long(PROMPT, 20));
    request.metadata_mut().insert("traceparent", format!("00-{TRACE}-{PARENT}-01").parse().unwrap());
    request.metadata_mut().insert("x-request-id", "mine".parse().unwrap());
    let answer = read(client.generate(request).await.unwrap().into_inner()).await.unwrap();
    let status = client.generate(prompt("ab?")).await.unwrap_err();
    server.shut_down();
    tokio::time::timeout(Duration::from_secs(20), &mut server.task).await.unwrap().unwrap().unwrap();
    collector.abort();

    let mut all = Vec::new();
    while let Ok(Some(span)) = tokio::time::timeout(Duration::from_secs(5), spans.recv()).await {
        all.push(span);
    }
    let named = |name: &str| -> Vec<&Span> { all.iter().filter(|span| span.name == name).collect() };
    let calls = named("weir.v1.Generation/Generate");
    let [good, bad] = calls[..] else { panic!("{all:?}") };
    assert_eq!((hex(&good.trace_id), hex(&good.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!(attribute(good, "weir.request_id"), Some(Value::StringValue("mine".into())));
    assert_eq!(attribute(good, "gen_ai.request.model"), Some(Value::StringValue("fake".into())));
    assert_eq!(attribute(good, "gen_ai.usage.input_tokens"), Some(Value::IntValue(4)));
    assert_eq!(attribute(good, "gen_ai.usage.output_tokens"), Some(Value::IntValue(20)));
    assert_eq!(attribute(good, "rpc.grpc.status_code"), Some(Value::IntValue(0)));
    assert_eq!(attribute(bad, "rpc.grpc.status_code"), Some(Value::IntValue(i32::from(status.code()).into())));
    assert_eq!(bad.status.as_ref().unwrap().code(), StatusCode::Error);
    assert_ne!(hex(&bad.trace_id), TRACE);

    let timing = answer.finished.timing.unwrap();
    let lengths = [("queue", timing.queue_ns), ("prefill", timing.prefill_ns)];
    let mut from = good.start_time_unix_nano;
    for (name, length) in lengths {
        let phases = named(name);
        let [phase] = phases[..] else { panic!("{name}: {phases:?}") };
        assert_eq!((&phase.trace_id, &phase.parent_span_id), (&good.trace_id, &good.span_id));
        assert_eq!((phase.start_time_unix_nano, phase.end_time_unix_nano), (from, from + length), "{name}");
        from += length;
    }
    let [decode] = named("decode")[..] else { panic!("{all:?}") };
    assert_eq!(decode.end_time_unix_nano, good.start_time_unix_nano + timing.total_ns);
    let spans = format!("{all:?}");
    assert!(!spans.contains(PROMPT) && !spans.contains(&answer.text()), "text in a span: {spans}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_collector_does_not_affect_the_server() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", unused.local_addr().unwrap());
    drop(unused);
    let mut server = traced(&endpoint).await;
    let mut client = GenerationClient::new(server.channel.clone());
    let answer = read(client.generate(long(PROMPT, 20)).await.unwrap().into_inner()).await.unwrap();
    assert_eq!(answer.text().chars().count(), 20);
    server.shut_down();
    tokio::time::timeout(Duration::from_secs(20), &mut server.task).await.unwrap().unwrap().unwrap();
}
