//! Answers whose headers wait for their first characters.

use super::{Server, eventually, long, model::Kind, prompt, read, reason};
use std::time::Duration;
use tonic::{Code, Request};
use weir::{config::Wire, engine::handle::Limits};
use weir_proto::v1;

async fn late(limits: Limits) -> Server {
    let wire = Wire { late_headers: true, ..Wire::default() };
    Server::with(limits, wire, &[("fake", Kind::Pooled)]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_come_with_the_first_characters() {
    let server = late(Limits::default()).await;
    server.model.hold();
    let mut client = server.generation();
    let call = tokio::spawn(async move { client.generate(long("a", 20)).await });
    eventually("it runs", || server.engine.load().running == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!call.is_finished());
    server.model.release();
    let answer = read(call.await.unwrap().unwrap().into_inner()).await.unwrap();
    assert_eq!(answer.text(), Server::new().await.answer(long("a", 20)).await.unwrap().text());
    let request = v1::ScoreRequest { text: "ab c".into(), ..Default::default() };
    let mut scored = server.generation().score(request).await.unwrap().into_inner();
    let mut summary = None;
    while let Some(message) = scored.message().await.unwrap() {
        summary = message.event;
    }
    assert!(matches!(summary, Some(v1::score_response::Event::Summary(_))), "{summary:?}");
}

#[tokio::test]
async fn what_ends_a_call_before_that_is_its_status() {
    let server = late(Limits { rows: 1, ..Limits::default() }).await;
    let status = server.generate(prompt("ab!")).await.map(drop).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Internal, "INTERNAL"));
    server.model.hold();
    let mut request = Request::new(prompt("a"));
    // By hand, so that the client itself sets no timer.
    request.metadata_mut().insert("grpc-timeout", "50m".parse().unwrap());
    let status = server.generation().generate(request).await.map(drop).unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    server.model.release();
    server.at_rest().await;
}
