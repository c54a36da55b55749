//! Start, reload, shutdown, resumed streams and traces.

use super::*;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use tonic::Response;
use tonic::transport;
use tonic::transport::server::TcpIncoming;
use weir::server::Traces;

const STEP: Duration = Duration::from_millis(2);

async fn draining_within(drain: Duration) -> Server {
    Server::within(TransportConfig { drain, ..TransportConfig::default() }).await
}

#[tokio::test]
async fn a_deadline_passes_in_the_queue() {
    let server = Server::limited(Limits { rows: 1, ..Limits::default() }).await;
    server.model.gate.slow(STEP);
    let running = server.generate(long("a", 1500)).await.unwrap();
    server.until_running(1).await;
    let mut request = Request::new(prompt("a"));
    request.set_timeout(Duration::from_secs(1));
    let mut waiting = server.generation().generate(request).await.unwrap().into_inner();
    let status = waiting.next().await.unwrap().unwrap_err();
    assert_refused(&status, Code::DeadlineExceeded, "DEADLINE");
    drop(running);
    server.at_rest().await;
}

#[tokio::test]
async fn text_before_the_deadline_is_sent() {
    let server = Server::new().await;
    server.model.gate.slow(STEP);
    let stream = Some(v1::Streaming { coalesce_chars: Some(4096), ..Default::default() });
    let mut request = Request::new(v1::GenerateRequest { stream, ..long("a", 1500) });
    request.set_timeout(Duration::from_millis(200));
    let started = Instant::now();
    let mut stream = server.generation().generate(request).await.unwrap().into_inner();
    assert!(matches!(stream.message().await.unwrap().unwrap().event, Some(Event::Started(_))));
    let Some(Event::Piece(piece)) = stream.message().await.unwrap().unwrap().event else { panic!("no piece") };
    assert!(!piece.text.is_empty());
    let status = stream.message().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert!(started.elapsed() >= Duration::from_millis(200));
    server.at_rest().await;
}

#[tokio::test]
async fn a_cancelled_unary_call_frees_its_row() {
    let server = Server::new().await;
    server.model.gate.slow(Duration::from_millis(50));
    let mut client = server.generation();
    let request = v1::SegmentRequest { text: "a ".repeat(900), ..Default::default() };
    let call = tokio::spawn(async move { client.segment(request).await });
    server.until_running(1).await;
    call.abort();
    server.at_rest().await;
}

fn request_for(model: &str, text: &str, max_chars: u32) -> v1::GenerateRequest {
    v1::GenerateRequest { model: Some(model.into()), ..long(text, max_chars) }
}

async fn two_models(limits: Limits) -> Server {
    Server::of(&[("fake", Kind::Pooled), ("other", Kind::Pooled)], limits, TransportConfig::default()).await
}

/// A panic ends the requests that take part in its step. Requests in the queue, and of other models, are served.
#[tokio::test]
async fn a_panic_fails_the_requests_of_its_step_only() {
    let server = two_models(Limits { rows: 2, ..Limits::default() }).await;
    let queued_alone = server.answer(request_for("fake", "b c", 30)).await.unwrap().text();
    let other_alone = server.answer(request_for("other", "b c", 900)).await.unwrap().text();
    let steps = server.model.steps();
    server.model.gate.hold(0);
    let partner = server.generate(request_for("fake", "a", 30)).await.unwrap();
    eventually("its first step runs", || server.model.steps() > steps).await;
    let failing = server.generate(request_for("fake", "ab!", 30)).await.unwrap();
    let queued = server.generate(request_for("fake", "b c", 30)).await.unwrap();
    let other = server.generate(request_for("other", "b c", 900)).await.unwrap();
    server.model.gate.release();
    for failed in [failing, partner] {
        let status = read(failed).await.unwrap_err();
        assert_refused(&status, Code::Internal, "INTERNAL");
        assert!(!details(&status).request_info().unwrap().request_id.is_empty());
    }
    assert_eq!(read(queued).await.unwrap().text(), queued_alone);
    assert_eq!(read(other).await.unwrap().text(), other_alone);
    server.at_rest().await;
    assert_eq!(server.engine.counters().restarts, 0);
}

/// A panic outside of steps and of the handling of single requests ends all requests of its model. The worker starts over.
#[tokio::test]
async fn a_worker_that_panics_starts_over() {
    let server = two_models(Limits { rows: 2, ..Limits::default() }).await;
    let alone = server.answer(request_for("fake", "b c", 30)).await.unwrap().text();
    let mut health = HealthClient::new(server.channel.clone());
    for restarts in 1..=2 {
        let steps = server.model.steps();
        server.model.gate.hold(0);
        let mut failing = Vec::new();
        for _ in 0..4 {
            failing.push(server.generate(request_for("fake", "a", 900)).await.unwrap());
        }
        eventually("two run, two wait", || server.model.steps() > steps && server.load() == (2, 2)).await;
        server.model.panic_while_planning(1);
        server.model.gate.release();
        for failed in failing {
            let status = read(failed).await.unwrap_err();
            assert_refused(&status, Code::Internal, "INTERNAL");
        }
        server.at_rest().await;
        assert_eq!((server.engine.phase(), server.engine.counters().restarts), (Phase::Open, restarts));
        assert_eq!(server.answer(request_for("fake", "b c", 30)).await.unwrap().text(), alone);
        for service in ["", "weir.v1.Generation"] {
            let request = HealthCheckRequest { service: service.into() };
            assert_eq!(health.check(request).await.unwrap().into_inner().status(), ServingStatus::Serving);
        }
    }
    server.at_rest().await;
}

/// A worker that cannot start over makes the server unready, and not alive, so that an orchestrator restarts it.
#[tokio::test]
async fn a_broken_worker_is_neither_ready_nor_alive() {
    let server = two_models(Limits::default()).await;
    let health = HealthClient::new(server.channel.clone());
    let mut watched = Vec::new();
    for service in ["", "weir.v1.Generation"] {
        let request = HealthCheckRequest { service: service.into() };
        let mut stream = health.clone().watch(request).await.unwrap().into_inner();
        assert_eq!(stream.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
        watched.push(stream);
    }
    server.model.break_for_good();
    assert_eq!(server.answer(request_for("fake", "a", 5)).await.unwrap_err().code(), Code::Internal);
    for mut watched in watched {
        assert_eq!(watched.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    }
    eventually("the engine is broken", || server.engine.phase() == Phase::Broken).await;
    let status = server.answer(request_for("fake", "a", 5)).await.unwrap_err();
    assert_refused(&status, Code::Unavailable, "BROKEN");
    server.at_rest().await;
    // Other models continue until the server is restarted.
    assert_eq!(server.answer(request_for("other", "a", 5)).await.unwrap().text().chars().count(), 5);
}

/// The drain does not wait for a worker that hangs, and stopping the engines reports it.
#[tokio::test]
async fn a_worker_that_hangs_does_not_keep_the_server() {
    let mut server = draining_within(Duration::from_millis(100)).await;
    let engines = Engines::new(vec![server.engine.clone()]).unwrap();
    server.model.gate.hold(0);
    let stuck = server.generate(long("a", 5)).await.unwrap();
    eventually("its step hangs", || server.model.steps() > 0).await;
    server.shut_down();
    let status = read(stuck).await.unwrap_err();
    assert_refused(&status, Code::Unavailable, "DRAINING");
    server.ended().await;
    let error = engines.stop(Duration::from_millis(100)).await.unwrap_err();
    assert!(error.to_string().contains("the worker of \"fake\""), "{error}");
    server.model.gate.release();
    engines.stop(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn streams_finish_while_the_server_drains() {
    let mut server = draining_within(Duration::from_secs(30)).await;
    server.model.gate.slow(STEP);
    let mut health = HealthClient::new(server.channel.clone());
    let watch = |service: &str| {
        let mut health = health.clone();
        let request = HealthCheckRequest { service: service.into() };
        async move { health.watch(request).await.unwrap().into_inner() }
    };
    let mut watched = [watch("").await, watch("weir.v1.Generation").await];
    for watched in &mut watched {
        assert_eq!(watched.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
    }
    let mut stream = server.generate(long("a", 100)).await.unwrap();
    stream.next().await.unwrap().unwrap();
    server.model.gate.hold(0);
    server.shut_down();
    for watched in &mut watched {
        assert_eq!(watched.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    }
    let request = HealthCheckRequest { service: "weir.v1.Models".into() };
    assert_eq!(health.check(request).await.unwrap().into_inner().status(), ServingStatus::NotServing);
    let status = server.generate(prompt("a")).await.map(drop).unwrap_err();
    assert_refused(&status, Code::Unavailable, "DRAINING");
    assert!(details(&status).retry_info().is_some());

    server.model.gate.release();
    assert_eq!(rest(stream).await.usage.unwrap().generated_chars, 100);
    // Watchers do not delay the shutdown.
    server.ended().await;
    server.at_rest().await;
}

#[tokio::test]
async fn streams_that_outlast_the_drain_are_ended() {
    let mut server = draining_within(Duration::from_millis(100)).await;
    server.model.gate.slow(STEP);
    let mut stream = server.generate(long("a", 1900)).await.unwrap();
    stream.next().await.unwrap().unwrap();
    server.shut_down();
    let status = loop {
        match stream.next().await.expect("a status ends it") {
            Ok(message) => assert!(!matches!(message.event, Some(Event::Finished(_)))),
            Err(status) => break status,
        }
    };
    assert_refused(&status, Code::Unavailable, "DRAINING");
    server.ended().await;
    server.at_rest().await;
}

/// Reads a stream until it has sent at least `ids` ids, and breaks it. Returns the ids and the text.
async fn broken(client: &mut GenerationClient<Channel>, request: GenerateRequest, ids: usize) -> (Vec<u32>, String) {
    let mut stream = client.generate(request).await.unwrap().into_inner();
    let mut sent = (Vec::new(), String::new());
    while sent.0.len() < ids
        && let Some(message) = stream.message().await.unwrap()
    {
        if let Some(Event::Piece(piece)) = message.event {
            sent.0.extend(piece.ids);
            sent.1 += &piece.text;
        }
    }
    sent
}

fn characters(answer: &GeneratedResponse) -> Vec<v1::Character> {
    answer.pieces.iter().flat_map(|piece| piece.characters.clone()).collect()
}

/// Returns the usage without what a resumed stream states differently.
fn usage(answer: &GeneratedResponse) -> v1::Usage {
    v1::Usage { cached_chars: 0, resumed_chars: 0, ..answer.finished.usage.unwrap() }
}

#[tokio::test]
async fn a_stream_of_any_family_goes_on_where_it_broke() {
    let f32 = Dtype::F32;
    let models: Vec<(Arc<dyn Model>, &str)> = vec![
        (fixture_in("whitespaces", Dtype::Int8), ""),
        (fixture_in("gumbel", f32), "sampled"),
        (model_of("lslm", "dp", f32), "nxt"),
        (model_of("lslm", "byte_vocab", f32), "predictor"),
        (model_of("hnet", "two_stage", f32), ""),
        (model_of("torchscale", "alibi_bca", f32), ""),
    ];
    let mut rng = Random::new(31);
    for (model, mode) in models {
        let name = format!("{}, {mode}", model.card().name);
        let engine = Handle::start(Arc::clone(&model), Limits { chunk: 16, ..Limits::default() }).unwrap();
        let running = Running::start(vec![engine], TransportConfig::default()).await;
        let mut client = running.generation();
        let details = v1::Details {
            logprobs: Some(true),
            boundaries: Some(true),
            ids: Some(true),
            echo: Some(true),
            ..Default::default()
        };
        let sampling = v1::Sampling { seed: Some(5), repetition_penalty: Some(1.1), ..Default::default() };
        let text: Vec<u32> = model.card().vocabulary.text_ids().take(26).collect();
        let request = GenerateRequest {
            prompt_ids: (0..40).map(|_| text[rng.below(text.len())]).collect(),
            sampling: Some(sampling),
            stopping: Some(v1::Stopping { max_chars: Some(60), ..Default::default() }),
            details: Some(details),
            boundary_mode: Some(mode.into()),
            ..Default::default()
        };
        let whole = read(client.generate(request.clone()).await.unwrap().into_inner()).await.unwrap();
        let all: Vec<u32> =
            whole.pieces.iter().filter(|piece| !piece.prompt).flat_map(|piece| piece.ids.clone()).collect();
        for _ in 0..3 {
            let wanted = 40 + 1 + rng.below(all.len());
            let (sent, text) = broken(&mut client, request.clone(), wanted).await;
            let (prompt, resume_ids) = sent.split_at(40);
            assert_eq!((prompt, resume_ids), (&request.prompt_ids[..], &all[..resume_ids.len()]), "{name}");
            let count = resume_ids.len();
            let resumed = GenerateRequest { resume_ids: resume_ids.to_vec(), ..request.clone() };
            let rest = read(client.generate(resumed).await.unwrap().into_inner()).await.unwrap();
            let whole_text: String = whole.pieces.iter().map(|piece| piece.text.as_str()).collect();
            assert_eq!(text + &rest.text(), whole_text, "{name}, after {count}");
            assert!(rest.pieces.iter().all(|piece| !piece.prompt), "{name}");
            assert_eq!(characters(&rest), characters(&whole)[40 + count..], "{name}, after {count}");
            assert_eq!(rest.finished.reason(), whole.finished.reason(), "{name}");
            assert_eq!(usage(&rest), usage(&whole), "{name}, after {count}");
            // an id that ends the text is no character
            let has_end = resume_ids.last().is_some_and(|&id| model.card().vocabulary.ends_text(id));
            let resumed_chars = (count - usize::from(has_end)) as u64;
            assert_eq!((rest.started.resumed_chars, rest.started.seed), (resumed_chars, Some(5)), "{name}");
        }
    }
}

#[tokio::test]
async fn limits_and_stop_strings_count_the_resumed_text() {
    let server = Server::new().await;
    let mut client = server.generation();
    let free = server.answer(long("ab", 80)).await.unwrap().text();
    // a stop string of three characters that the text has in its middle
    let stop: String = free.chars().skip(40).take(3).collect();
    let cut = free.find(&stop).unwrap();
    let stopping = |include| v1::Stopping {
        max_chars: Some(80),
        stop: vec![stop.clone()],
        include_stop: Some(include),
        ..Default::default()
    };
    for include in [false, true] {
        let request = GenerateRequest { stopping: Some(stopping(include)), ..long("ab", 80) };
        let whole = server.answer(request.clone()).await.unwrap();
        assert!(whole.text().chars().count() >= 1 && whole.finished.matched_stop.as_ref() == Some(&stop));
        let ends: Vec<usize> = whole.text().char_indices().map(|(start, _)| start).skip(1).collect();
        for end in ends.into_iter().chain([whole.text().len()]) {
            let resume_text = whole.text()[..end].to_owned();
            let rest = server.answer(GenerateRequest { resume_text, ..request.clone() }).await.unwrap();
            assert_eq!(rest.text(), whole.text()[end..], "{end} of {cut}");
            assert_eq!(rest.finished.matched_stop, whole.finished.matched_stop);
            assert_eq!(usage(&rest), usage(&whole));
        }
    }
    // a text that was complete needs no other character
    let (_, text) = broken(&mut client, long("ab", 80), usize::MAX).await;
    let rest = server.answer(GenerateRequest { resume_text: text, ..long("ab", 80) }).await.unwrap();
    assert_eq!((rest.text().as_str(), rest.finished.reason()), ("", v1::FinishReason::MaxChars));
    server.at_rest().await;
}

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
    let collector = transport::Server::builder().add_service(TraceServiceServer::new(Collector(sender)));
    let collector = tokio::spawn(collector.serve_with_incoming(TcpIncoming::from(listener)));
    let mut server = traced(&endpoint).await;
    let mut client = server.generation();
    let mut request = Request::new(long(PROMPT, 20));
    request.metadata_mut().insert("traceparent", format!("00-{TRACE}-{PARENT}-01").parse().unwrap());
    request.metadata_mut().insert("x-request-id", "mine".parse().unwrap());
    let answer = read(client.generate(request).await.unwrap().into_inner()).await.unwrap();
    let status = client.generate(prompt("ab?")).await.unwrap_err();
    server.shut_down();
    server.ended().await;
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
    let mut client = server.generation();
    let answer = read(client.generate(long(PROMPT, 20)).await.unwrap().into_inner()).await.unwrap();
    assert_eq!(answer.text().chars().count(), 20);
    server.shut_down();
    server.ended().await;
}
