//! Priorities, the limit of queued prompts, long requests of one tenant, and clients that do not read.

use super::{
    tls_and_keys::{ALICE, BOB, bearing, with_keys},
    *,
};
use tokio::task::JoinSet;
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
    let stall = Duration::from_secs(2);
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

/// Lets one tenant fill all rows and the queue with `request`, a long one, and checks that a short request of another tenant
/// ends before any of them. The model is slow, so that each long one takes at least nine seconds.
async fn long_requests_of_one_tenant_delay_no_other<R>(long_call: impl Fn(GenerationClient<Channel>) -> R)
where
    R: Future<Output = Result<(), Status>> + Send + 'static,
{
    const ROWS: usize = 2;
    let limits = Limits { rows: ROWS, cache_bytes: 1 << 20, ..Limits::default() };
    let server = with_keys(limits).await;
    server.model.slow(Duration::from_millis(5));
    let mut long_calls = JoinSet::new();
    for _ in 0..8 {
        long_calls.spawn(long_call(server.generation()));
    }
    eventually("alice has all rows and waits", || server.engine.load().queued == 6).await;
    for _ in 0..3 {
        let request = bearing(long("b", 4), &[BOB]);
        let stream = server.generation().generate(request).await.unwrap().into_inner();
        assert_eq!(read(stream).await.unwrap().text().len(), 4);
        assert!(long_calls.try_join_next().is_none(), "bob's requests wait for alice's");
    }
    eventually("alice has all rows again", || {
        let load = server.engine.load();
        (load.running, load.queued) == (ROWS, 6)
    })
    .await;
    long_calls.shutdown().await;
    server.at_rest().await;
}

#[tokio::test]
async fn long_generations_of_one_tenant_delay_no_other() {
    long_requests_of_one_tenant_delay_no_other(|mut client| async move {
        read(client.generate(bearing(long("a", 1900), &[ALICE])).await?.into_inner()).await.map(drop)
    })
    .await;
}

#[tokio::test]
async fn long_scores_of_one_tenant_delay_no_other() {
    long_requests_of_one_tenant_delay_no_other(|mut client| async move {
        let windows = Some(v1::Windows { length: 500, stride: 1 });
        let request = v1::ScoreRequest { text: "ab ".repeat(3000), windows, ..Default::default() };
        let mut stream = client.score(bearing(request, &[ALICE])).await?.into_inner();
        while stream.message().await?.is_some() {}
        Ok(())
    })
    .await;
}
