//! Ends of requests and of the server: deadlines, cancellation, full queues, panics, shutdown.

use super::{Server, details, eventually, fake_model::Kind, long, prompt, read, reason};
use std::time::{Duration, Instant};
use tokio_stream::StreamExt;
use tonic::{Code, Request};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use weir::{
    config::TransportConfig,
    engine::{Limits, Load, Phase},
};
use weir_proto::v1::{self, generate_response::Event};

const STEP: Duration = Duration::from_millis(2);

async fn with_limits(limits: Limits) -> Server {
    Server::with(limits, TransportConfig::default(), &[("fake", Kind::Pooled)]).await
}

async fn draining_within(drain: Duration) -> Server {
    Server::with(Limits::default(), TransportConfig { drain, ..TransportConfig::default() }, &[("fake", Kind::Pooled)])
        .await
}

fn loaded(server: &Server, queued: usize, running: usize) -> bool {
    let Load { queued: q, running: r, .. } = server.engine.load();
    (q, r) == (queued, running)
}

#[tokio::test]
async fn a_full_queue_sends_a_retry_delay() {
    let server = with_limits(Limits { rows: 1, queue: 1, ..Limits::default() }).await;
    server.model.hold();
    let running = server.generate(long("a", 5)).await.unwrap();
    eventually("the first runs", || loaded(&server, 0, 1)).await;
    let waiting = server.generate(long("a", 5)).await.unwrap();
    let status = server.generate(long("a", 5)).await.map(drop).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "QUEUE_FULL"));
    assert!(details(&status).retry_info().unwrap().retry_delay.unwrap() > Duration::ZERO);
    server.model.release();
    assert_eq!(read(running).await.unwrap().text(), read(waiting).await.unwrap().text());
    server.at_rest().await;
    server.answer(long("a", 5)).await.unwrap();
}

#[tokio::test]
async fn a_deadline_passes_in_the_queue() {
    let server = with_limits(Limits { rows: 1, ..Limits::default() }).await;
    server.model.slow(STEP);
    let running = server.generate(long("a", 1500)).await.unwrap();
    eventually("the first runs", || loaded(&server, 0, 1)).await;
    let mut request = Request::new(prompt("a"));
    request.set_timeout(Duration::from_millis(50));
    let mut waiting = server.generation().generate(request).await.unwrap().into_inner();
    let status = waiting.next().await.unwrap().unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::DeadlineExceeded, "DEADLINE"));
    drop(running);
    server.at_rest().await;
}

#[tokio::test]
async fn text_before_the_deadline_is_sent() {
    let server = Server::new().await;
    server.model.slow(STEP);
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
async fn a_cancelled_request_frees_its_row() {
    let server = Server::new().await;
    server.model.slow(STEP);
    let mut stream = server.generate(long("a", 1900)).await.unwrap();
    for _ in 0..3 {
        stream.next().await.unwrap().unwrap();
    }
    assert!(loaded(&server, 0, 1));
    drop(stream);
    // The request ends far sooner than after the requested 1900 steps.
    let started = Instant::now();
    server.at_rest().await;
    assert!(started.elapsed() < STEP * 950, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_cancelled_unary_call_frees_its_row() {
    let server = Server::new().await;
    server.model.slow(Duration::from_millis(50));
    let mut client = server.generation();
    let request = v1::SegmentRequest { text: "a ".repeat(900), ..Default::default() };
    let call = tokio::spawn(async move { client.segment(request).await });
    eventually("the call runs", || loaded(&server, 0, 1)).await;
    call.abort();
    server.at_rest().await;
}

#[tokio::test]
async fn a_panic_fails_its_request_only() {
    let server = Server::new().await;
    let status = server.answer(prompt("ab!")).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Internal, "INTERNAL"));
    assert!(!details(&status).request_info().unwrap().request_id.is_empty());
    server.answer(prompt("ab")).await.unwrap();
    server.at_rest().await;
}

#[tokio::test]
async fn a_broken_worker_is_not_ready() {
    let kinds = [("fake", Kind::Pooled), ("other", Kind::Pooled)];
    let server = Server::with(Limits::default(), TransportConfig::default(), &kinds).await;
    let request_for = |model: &str| v1::GenerateRequest { model: Some(model.into()), ..long("a", 5) };
    let mut health = HealthClient::new(server.channel.clone());
    let request = HealthCheckRequest { service: "weir.v1.Generation".into() };
    let mut watched = health.watch(request).await.unwrap().into_inner();
    assert_eq!(watched.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.model.break_soon();
    assert_eq!(server.answer(request_for("fake")).await.unwrap_err().code(), Code::Internal);
    assert_eq!(watched.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    let request = HealthCheckRequest { service: String::new() };
    assert_eq!(
        health.check(request).await.unwrap().into_inner().status(),
        ServingStatus::Serving,
        "the server is alive"
    );
    assert_eq!(server.engine.phase(), Phase::Broken);
    let status = server.answer(request_for("fake")).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Internal, "INTERNAL"));
    server.at_rest().await;
    // Other models continue.
    assert_eq!(server.answer(request_for("other")).await.unwrap().text().chars().count(), 5);
}

#[tokio::test]
async fn concurrent_requests_get_the_same_texts_as_alone() {
    let server = Server::new().await;
    let request = |seed: u64| super::seeded(["a", "ab c", "é", "dd"][seed as usize % 4], seed);
    let mut alone = Vec::new();
    for seed in 0..40 {
        alone.push(server.answer(request(seed)).await.unwrap().text());
    }
    let mut streams = Vec::new();
    for seed in 0..40 {
        streams.push(server.generate(request(seed)).await.unwrap());
    }
    for (stream, alone) in streams.into_iter().zip(alone) {
        assert_eq!(read(stream).await.unwrap().text(), alone);
    }
    server.at_rest().await;
}

#[tokio::test]
async fn streams_finish_while_the_server_drains() {
    let mut server = draining_within(Duration::from_secs(30)).await;
    server.model.slow(STEP);
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
    server.running.shut_down();
    for watched in &mut watched {
        assert_eq!(watched.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    }
    let request = HealthCheckRequest { service: "weir.v1.Models".into() };
    assert_eq!(health.check(request).await.unwrap().into_inner().status(), ServingStatus::NotServing);
    let status = server.generate(prompt("a")).await.map(drop).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "DRAINING"));
    assert!(details(&status).retry_info().is_some());

    let mut last = None;
    while let Some(message) = stream.next().await {
        last = message.unwrap().event;
    }
    let Some(Event::Finished(finished)) = last else { panic!("cut off: {last:?}") };
    assert_eq!(finished.usage.unwrap().generated_chars, 100);
    // Watchers do not delay the shutdown.
    tokio::time::timeout(Duration::from_secs(10), &mut server.running.task).await.unwrap().unwrap().unwrap();
    server.at_rest().await;
}

#[tokio::test]
async fn streams_that_outlast_the_drain_are_ended() {
    let mut server = draining_within(Duration::from_millis(100)).await;
    server.model.slow(STEP);
    let mut stream = server.generate(long("a", 1900)).await.unwrap();
    stream.next().await.unwrap().unwrap();
    server.running.shut_down();
    let status = loop {
        match stream.next().await.expect("a status ends it") {
            Ok(message) => assert!(!matches!(message.event, Some(Event::Finished(_)))),
            Err(status) => break status,
        }
    };
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "DRAINING"));
    tokio::time::timeout(Duration::from_secs(10), &mut server.running.task).await.unwrap().unwrap().unwrap();
    server.at_rest().await;
}
