//! A server gives the memory of large requests back when they end. The built program, since the allocator is the process's.

use super::process::Server;
use std::{
    path::Path,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;
use tonic::transport::Channel;
use weir_proto::v1::{ScoreRequest, Windows, generation_client::GenerationClient};

const SOON: Duration = Duration::from_secs(60);
/// Calls at the same time, each with 4 MiB of text.
const CALLS: usize = 24;
/// Calls that run at least, each with 16 MiB of symbols.
const SCORES: usize = 4;
/// What may stay: the heaps, the buffers of the connection, and the keys and values of the rows.
const MAX_GROWTH: f64 = 60.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_large_requests_is_returned() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-english");
    let server = Server::start(&["--model", model.to_str().unwrap(), "--threads", "1"]);
    let Some(before) = server.resident_mib() else { return eprintln!("skipped: /proc does not report the memory") };
    let channel = Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    let windows = Some(Windows { length: 64, stride: 64 });
    let text = "the city ".repeat((4 << 20) / 9 - 100);
    let mut starting = JoinSet::new();
    for _ in 0..CALLS {
        let request = ScoreRequest { text: text.clone(), windows, ..Default::default() };
        let mut client = GenerationClient::new(channel.clone());
        starting.spawn(async move {
            let mut response = client.score(request).await?.into_inner();
            response.message().await.map(|_| response)
        });
    }
    // The limit of the memory of requests refuses the others.
    let running: Vec<_> = starting.join_all().await.into_iter().filter_map(Result::ok).collect();
    assert!(running.len() >= SCORES, "{} scores run", running.len());
    let during = server.resident_mib().unwrap();
    assert!(during > before + 16.0 * SCORES as f64, "{before} MiB, then {during}: the scores hold their symbols");
    drop(running);
    let deadline = Instant::now() + SOON;
    while server.metric("num_requests_running") != 0.0 {
        assert!(Instant::now() < deadline, "the scores go on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut after = server.resident_mib().unwrap();
    while after > before + MAX_GROWTH {
        assert!(Instant::now() < deadline, "{before} MiB before, {during} during, {after} after the requests");
        tokio::time::sleep(Duration::from_millis(50)).await;
        after = server.resident_mib().unwrap();
    }
    eprintln!("{before} MiB before, {during} during, {after} after");
}
