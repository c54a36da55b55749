//! Overload and clients that cancel at random moments. Afterwards all resources are released.

use super::{Server, admin_port::Watched, details, eventually, fake_model::Kind, long, read, reason};
use crate::support::Dice;
use std::{collections::HashMap, time::Duration};
use tokio::task::JoinSet;
use tonic::Code;
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::v1::{GenerateRequest, generation_client::GenerationClient};

const ROWS: usize = 4;
const QUEUE: usize = 16;

/// Returns a request whose prompt and length depend on `number`.
fn request(number: u64) -> GenerateRequest {
    let mut request = super::seeded(["a", "ab c", "é", "dd ab a"][number as usize % 4], number);
    request.stopping = long("", 5 + 7 * (number % 20) as u32).stopping;
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_recovers_from_ten_times_the_queue() {
    let limits = Limits { rows: ROWS, queue: QUEUE, ..Limits::default() };
    let server = Server::with(limits, TransportConfig::default(), &[("fake", Kind::Pooled)]).await;
    let mut alone = HashMap::new();
    for number in 0..10 * QUEUE as u64 {
        alone.insert(number, server.answer(request(number)).await.unwrap().text());
    }
    server.at_rest().await;
    server.model.hold();
    let mut calls = JoinSet::new();
    for number in 0..10 * QUEUE as u64 {
        let mut client = server.generation();
        calls.spawn(async move {
            match client.generate(request(number)).await {
                Ok(answer) => (number, read(answer.into_inner()).await),
                Err(status) => (number, Err(status)),
            }
        });
    }
    // A single tenant may fill half of the queue.
    let capacity = ROWS + QUEUE / 2;
    let mut refused = 0;
    while refused < 10 * QUEUE - capacity {
        let (number, answer) = calls.join_next().await.unwrap().unwrap();
        let status = answer.expect_err("nothing can be answered yet");
        assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "QUEUE_FULL"), "{number}");
        assert!(details(&status).retry_info().unwrap().retry_delay.unwrap() > Duration::ZERO);
        refused += 1;
    }
    server.model.release();
    while let Some(call) = calls.join_next().await {
        let (number, answer) = call.unwrap();
        assert_eq!(answer.unwrap().text(), alone[&number], "{number}");
    }
    server.at_rest().await;
    for number in 0..10 {
        assert_eq!(server.answer(request(number)).await.unwrap().text(), alone[&number], "{number}");
    }
}

/// Reads a random number of messages for a random time, then cancels.
async fn cancel_soon(mut client: GenerationClient<tonic::transport::Channel>, number: u64, dice: &mut Dice) {
    let messages = dice.below(30);
    let time = Duration::from_micros(dice.below(4000) as u64);
    let reading = async {
        let mut stream = client.generate(request(number)).await?.into_inner();
        for _ in 0..messages {
            stream.message().await?;
        }
        Ok::<(), tonic::Status>(())
    };
    if let Ok(Err(status)) = tokio::time::timeout(time, reading).await {
        panic!("{number}: {status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_cancelled_requests_leave_every_gauge_at_zero() {
    const AT_ONCE: u64 = 20;
    let server = Watched::new(Duration::from_secs(60)).await;
    server.fake.slow(Duration::from_micros(200));
    let text = async |number| read(server.generation().generate(request(number)).await.unwrap().into_inner()).await;
    let before = text(3).await.unwrap().text();
    let mut clients = JoinSet::new();
    for client in 0..AT_ONCE {
        let generation = server.generation();
        clients.spawn(async move {
            let mut dice = Dice::new(client + 1);
            for number in 0..1000 / AT_ONCE {
                cancel_soon(generation.clone(), number * AT_ONCE + client, &mut dice).await;
            }
        });
    }
    clients.join_all().await;
    eventually("all requests have ended", || {
        let load = server.engines.all()[0].load();
        (load.queued, load.running) == (0, 0)
    })
    .await;
    for gauge in ["num_requests_running", "num_requests_waiting", "kv_cache_used_bytes", "kv_cache_usage_ratio"] {
        server.until(&format!("weir_{gauge}{{model_name=\"fake\"}}"), 0.0).await;
    }
    assert_eq!(text(3).await.unwrap().text(), before);
}
