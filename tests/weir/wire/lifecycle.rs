//! Ends of requests and of the server: deadlines, cancellation, full queues, panics, shutdown.

use super::{Server, details, eventually, fake_model::Kind, long, prompt, read, reason};
use std::time::{Duration, Instant};
use tokio_stream::StreamExt;
use tonic::{Code, Request};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use weir::{
    config::TransportConfig,
    engine::{Limits, Load, Phase},
    serve::Engines,
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
    request.set_timeout(Duration::from_secs(1));
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

fn request_for(model: &str, text: &str, max_chars: u32) -> v1::GenerateRequest {
    v1::GenerateRequest { model: Some(model.into()), ..long(text, max_chars) }
}

async fn two_models(limits: Limits) -> Server {
    Server::with(limits, TransportConfig::default(), &[("fake", Kind::Pooled), ("other", Kind::Pooled)]).await
}

/// A panic ends the requests that take part in its step. Requests in the queue and those of other models are served.
#[tokio::test]
async fn a_panic_fails_the_requests_of_its_step_only() {
    let server = two_models(Limits { rows: 2, ..Limits::default() }).await;
    let queued_alone = server.answer(request_for("fake", "b c", 30)).await.unwrap().text();
    let other_alone = server.answer(request_for("other", "b c", 900)).await.unwrap().text();
    let steps = server.model.steps();
    server.model.hold();
    let partner = server.generate(request_for("fake", "a", 30)).await.unwrap();
    eventually("its first step runs", || server.model.steps() > steps).await;
    let failing = server.generate(request_for("fake", "ab!", 30)).await.unwrap();
    let queued = server.generate(request_for("fake", "b c", 30)).await.unwrap();
    let other = server.generate(request_for("other", "b c", 900)).await.unwrap();
    server.model.release();
    for failed in [failing, partner] {
        let status = read(failed).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (Code::Internal, "INTERNAL"));
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
        server.model.hold();
        let mut failing = Vec::new();
        for _ in 0..4 {
            failing.push(server.generate(request_for("fake", "a", 900)).await.unwrap());
        }
        eventually("two run, two wait", || server.model.steps() > steps && loaded(&server, 2, 2)).await;
        server.model.panic_while_planning(1);
        server.model.release();
        for failed in failing {
            let status = read(failed).await.unwrap_err();
            assert_eq!((status.code(), reason(&status).as_str()), (Code::Internal, "INTERNAL"));
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
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "BROKEN"));
    server.at_rest().await;
    // Other models continue until the server is restarted.
    assert_eq!(server.answer(request_for("other", "a", 5)).await.unwrap().text().chars().count(), 5);
}

/// The drain does not wait for a worker that hangs, and stopping the engines reports it.
#[tokio::test]
async fn a_worker_that_hangs_does_not_keep_the_server() {
    let mut server = draining_within(Duration::from_millis(100)).await;
    let engines = Engines::new(vec![server.engine.clone()]).unwrap();
    server.model.hold();
    let stuck = server.generate(long("a", 5)).await.unwrap();
    eventually("its step hangs", || server.model.steps() > 0).await;
    server.running.shut_down();
    let status = read(stuck).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "DRAINING"));
    tokio::time::timeout(Duration::from_secs(10), &mut server.running.task).await.unwrap().unwrap().unwrap();
    let error = engines.stop(Duration::from_millis(100)).await.unwrap_err();
    assert!(error.to_string().contains("the worker of \"fake\""), "{error}");
    server.model.release();
    engines.stop(Duration::from_secs(10)).await.unwrap();
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
    server.model.hold();
    server.running.shut_down();
    for watched in &mut watched {
        assert_eq!(watched.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    }
    let request = HealthCheckRequest { service: "weir.v1.Models".into() };
    assert_eq!(health.check(request).await.unwrap().into_inner().status(), ServingStatus::NotServing);
    let status = server.generate(prompt("a")).await.map(drop).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "DRAINING"));
    assert!(details(&status).retry_info().is_some());

    server.model.release();
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
