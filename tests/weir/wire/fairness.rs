//! Priorities, the limit of queued prompts, and clients that do not read.

use super::*;
use tonic::Code;

fn of_priority(priority: i32) -> GenerateRequest {
    GenerateRequest { priority: Some(priority), ..prompt("a") }
}

#[tokio::test]
async fn a_priority_outside_its_bounds_is_refused_by_every_call() {
    let server = Server::new().await;
    let text = String::from("a b");
    let priority = Some(8);
    let score = v1::ScoreRequest { text: text.clone(), priority, ..Default::default() };
    let segment = v1::SegmentRequest { text, priority, ..Default::default() };
    let refused = [
        server.answer(of_priority(8)).await.map(drop),
        server.generation().score(score.clone()).await.map(drop),
        server.generation().segment(segment.clone()).await.map(drop),
    ];
    for status in refused.map(Result::unwrap_err) {
        assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, "BAD_OPTION"));
        let violations = details(&status).bad_request().unwrap().field_violations.clone();
        assert_eq!(violations[0].field, "priority");
        assert!(violations[0].description.contains("-8 to 7"), "{violations:?}");
    }
    for priority in [-8, 7] {
        server.answer(of_priority(priority)).await.unwrap();
        let priority = Some(priority);
        server.generation().score(v1::ScoreRequest { priority, ..score.clone() }).await.unwrap();
        server.generation().segment(v1::SegmentRequest { priority, ..segment.clone() }).await.unwrap();
    }
    server.at_rest().await;
}

#[tokio::test]
async fn queued_prompts_are_limited_and_refusals_have_a_retry_delay() {
    let limits = Limits { rows: 1, queued_symbols: 20, ..Limits::default() };
    let server = Server::with(limits, TransportConfig::default(), &[("fake", Kind::Pooled)]).await;
    server.model.hold();
    let first = server.generate(long("a", 5)).await.unwrap();
    eventually("it runs", || server.engine.load().running == 1).await;
    let second = server.generate(prompt("a b c d e")).await.unwrap();
    let status = server.generate(prompt("a b c d e f")).await.map(drop);
    // An unknown symbol is reported before the full queue.
    assert_eq!(status.unwrap_err().code(), Code::InvalidArgument);
    let status = server.generate(prompt("a b c d e a b c d e")).await.map(drop).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "QUEUE_FULL"));
    let details = details(&status);
    assert_eq!(details.error_info().unwrap().metadata["what"], "prompt characters");
    assert!(details.retry_info().unwrap().retry_delay.is_some());
    server.model.release();
    read(first).await.unwrap();
    read(second).await.unwrap();
    server.at_rest().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let stall = Duration::from_millis(300);
    let limits = Limits { rows: 1, events: 4, stall, ..Limits::default() };
    let server = Server::with(limits, TransportConfig::default(), &[("fake", Kind::Pooled)]).await;
    // The client has a window of one kilobyte.
    let address = format!("http://{}", server.running.address);
    let narrow = Channel::from_shared(address).unwrap().initial_stream_window_size(1024).connect().await.unwrap();
    let mut request = long("a", 1900);
    request.details = Some(v1::Details { top_logprobs: Some(7), ..Default::default() });
    let mut slow = GenerationClient::new(narrow).generate(request).await.unwrap().into_inner();
    // The only row is preempted for these requests.
    for _ in 0..3 {
        server.answer(long("b", 50)).await.unwrap();
    }
    server.at_rest().await;
    let status = loop {
        match slow.next().await.unwrap() {
            Ok(message) => assert!(!matches!(message.event, Some(Event::Finished(_)))),
            Err(status) => break status,
        }
    };
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "STALLED"));
}
