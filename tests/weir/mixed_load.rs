//! A crowd at the shipped model, through the built program: texts of mixed lengths, 64 at a time, one in ten of which is not
//! read to its end. A few seconds by default, a minute with `WEIR_STORMS=1`, and as long as `WEIR_SOAK=SECONDS` says.

use super::{
    process::Server,
    support::{Dice, storms},
};
use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinSet;
use tonic::{Status, transport::Channel};
use weir_proto::v1::{
    GenerateRequest, Sampling, Stopping, generate_response::Event, generation_client::GenerationClient,
};

const CLIENTS: usize = 64;
/// Different requests; each is asked many times.
const WISHES: usize = 48;
const GAUGES: [&str; 4] =
    ["num_requests_running", "num_requests_waiting", "kv_cache_used_bytes", "kv_cache_usage_perc"];

/// What happened.
#[derive(Default)]
struct Tally {
    finished: AtomicUsize,
    cancelled: AtomicUsize,
}

fn lasts() -> Duration {
    let soak = std::env::var("WEIR_SOAK").ok().map(|seconds| seconds.parse().expect("WEIR_SOAK is in seconds"));
    Duration::from_secs(soak.unwrap_or(if storms() { 60 } else { 3 }))
}

/// A request of mixed lengths and settings, the same for the same number.
fn wish(number: usize) -> GenerateRequest {
    const TEXT: &str = "the city was founded by settlers from the north who had come down the river in search of land and \
                        timber and it grew quickly after the railway reached it in the following century ";
    let mut dice = Dice::new(number as u64 + 1);
    let (from, times) = (dice.below(TEXT.len() / 2), 1 + dice.below(8));
    let prompt = TEXT[from..].repeat(times);
    let keep = 1 + dice.below(prompt.len());
    let sampling = Sampling {
        seed: Some(number as u64),
        temperature: Some([0.0, 0.7, 1.0][dice.below(3)]),
        top_p: Some([1.0, 0.9][dice.below(2)]),
        ..Default::default()
    };
    let stopping = Stopping { max_chars: Some(1 + dice.below(240) as u32), ..Default::default() };
    let (sampling, stopping) = (Some(sampling), Some(stopping));
    GenerateRequest { prompt: prompt[..keep].into(), sampling, stopping, ..Default::default() }
}

/// Reads the answer, or as many messages of it; tells the text if it came to its end.
async fn ask(channel: &Channel, number: usize, messages: usize) -> Result<Option<String>, Status> {
    let mut stream = GenerationClient::new(channel.clone()).generate(wish(number)).await?.into_inner();
    let mut text = String::new();
    for _ in 0..messages {
        match stream.message().await?.and_then(|message| message.event) {
            Some(Event::Piece(piece)) => text.push_str(&piece.text),
            Some(Event::Finished(_)) => return Ok(Some(text)),
            Some(Event::Started(_)) => {}
            None => return Err(Status::unknown("the answer broke off without a status")),
        }
    }
    Ok(None)
}

/// One of the crowd: asks until the end, and finds each text to be the one that was given alone.
async fn client(channel: Channel, number: usize, alone: Arc<Vec<String>>, tally: Arc<Tally>, end: Instant) {
    let mut dice = Dice::new(1000 + number as u64);
    while Instant::now() < end {
        let which = dice.below(WISHES);
        let messages = if dice.below(10) == 0 { dice.below(40) } else { usize::MAX };
        let text = ask(&channel, which, messages).await.unwrap_or_else(|status| panic!("request {which}: {status}"));
        match text {
            Some(text) => {
                assert_eq!(text, alone[which], "request {which}");
                tally.finished.fetch_add(1, Relaxed);
            }
            None => {
                tally.cancelled.fetch_add(1, Relaxed);
            }
        }
    }
}

/// MiB of memory that a process holds, where the system tells.
fn resident(server: &Server) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", server.program.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib / 1024.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_a_crowd_gets_what_it_gets_alone_and_nothing_is_left() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-whitespace-english");
    let flags = ["--model", model.to_str().unwrap(), "--rows", "64", "--kv-memory", "1GiB"];
    let server = Server::start(&flags);
    let channel = Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    let mut alone = Vec::new();
    for number in 0..WISHES {
        alone.push(ask(&channel, number, usize::MAX).await.unwrap().expect("it comes to its end"));
    }
    let (alone, tally, lasts) = (Arc::new(alone), Arc::new(Tally::default()), lasts());
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (alone, tally) = (Arc::clone(&alone), Arc::clone(&tally));
        clients.spawn(client(channel.clone(), number, alone, tally, begun + lasts));
    }
    tokio::time::sleep(lasts / 2).await;
    let halfway = resident(&server);
    clients.join_all().await;
    let end = resident(&server);

    let (finished, cancelled) = (tally.finished.load(Relaxed), tally.cancelled.load(Relaxed));
    eprintln!("{finished} texts, {cancelled} cancelled, {:?}, {halfway:?} MiB, then {end:?}", begun.elapsed());
    assert!(finished >= CLIENTS && cancelled > 0, "{finished}, {cancelled}");
    let soon = Instant::now() + Duration::from_secs(10);
    for gauge in GAUGES {
        while server.metric(gauge) != 0.0 {
            assert!(Instant::now() < soon, "{gauge} stays at {}", server.metric(gauge));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert!(server.metric("prefix_cache_hits_total") > 0.0, "much of what is asked is known");
    let (_, metrics) = server.get("/metrics");
    let failures = metrics.lines().filter(|line| line.starts_with("weir:request_failure_total{"));
    failures.for_each(|line| assert!(line.contains("code=\"CANCELLED\"") || line.ends_with(" 0"), "{line}"));
    // by then every request has been made many times, and what the cache and the pools may hold they hold
    if let (true, Some(halfway), Some(end)) = (lasts >= Duration::from_secs(60), halfway, end) {
        assert!(end < halfway * 1.05 + 4.0, "memory grows: {halfway} MiB, then {end}");
    }
}
