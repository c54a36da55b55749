//! Mixed load on the built program with the shipped model: 64 clients at a time, texts of mixed lengths, one in ten
//! cancelled. Runs for three seconds, a minute with `WEIR_LONG_RUNS=1`, or as long as `WEIR_SOAK=SECONDS` sets.

use super::process::Server;
use super::support::{Random, long_runs};
use crate::*;
use std::sync::atomic::Ordering::Relaxed;
use weir_proto::v1::{Sampling, Stopping};

const CLIENTS: usize = 64;
/// Number of different requests. Each is sent many times.
const REQUESTS: usize = 48;
const GAUGES: [&str; 4] =
    ["num_requests_running", "num_requests_waiting", "kv_cache_used_bytes", "kv_cache_usage_ratio"];

/// Counts how requests ended.
#[derive(Default)]
struct Outcomes {
    finished: AtomicUsize,
    cancelled: AtomicUsize,
}

fn duration() -> Duration {
    let soak = std::env::var("WEIR_SOAK").ok().map(|seconds| seconds.parse().expect("WEIR_SOAK is in seconds"));
    Duration::from_secs(soak.unwrap_or(if long_runs() { 60 } else { 3 }))
}

/// Returns a request whose lengths and settings are derived from `number`.
fn request(number: usize) -> GenerateRequest {
    const TEXT: &str = "the city was founded by settlers from the north who had come down the river in search of land and \
                        timber and it grew quickly after the railway reached it in the following century ";
    let mut rng = Random::new(number as u64 + 1);
    let start = rng.below(TEXT.len() / 2);
    let prompt = TEXT[start..].repeat(1 + rng.below(8));
    let len = 1 + rng.below(prompt.len());
    let sampling = Sampling {
        seed: Some(number as u64),
        temperature: Some([0.0, 0.7, 1.0][rng.below(3)]),
        top_p: Some([1.0, 0.9][rng.below(2)]),
        ..Default::default()
    };
    let stopping = Stopping { max_chars: Some(1 + rng.below(240) as u32), ..Default::default() };
    GenerateRequest {
        prompt: prompt[..len].into(),
        sampling: Some(sampling),
        stopping: Some(stopping),
        ..Default::default()
    }
}

/// Reads at most `messages` messages of an answer. Returns the text if the answer is complete.
async fn ask(channel: &Channel, number: usize, messages: usize) -> Result<Option<String>, Status> {
    let mut stream = GenerationClient::new(channel.clone()).generate(request(number)).await?.into_inner();
    let mut text = String::new();
    for _ in 0..messages {
        match stream.message().await?.and_then(|message| message.event) {
            Some(Event::Piece(piece)) => text.push_str(&piece.text),
            Some(Event::Finished(_)) => return Ok(Some(text)),
            Some(Event::Started(_)) => {}
            None => return Err(Status::unknown("the answer ended without a status")),
        }
    }
    Ok(None)
}

/// Sends requests until `end` and compares each text with the one from an idle server.
async fn client(channel: Channel, seed: u64, alone: Arc<Vec<String>>, outcomes: Arc<Outcomes>, end: Instant) {
    let mut rng = Random::new(seed);
    while Instant::now() < end {
        let number = rng.below(REQUESTS);
        let messages = if rng.below(10) == 0 { rng.below(40) } else { usize::MAX };
        let text = ask(&channel, number, messages).await.unwrap_or_else(|status| panic!("request {number}: {status}"));
        match text {
            Some(text) => {
                assert_eq!(text, alone[number], "request {number}");
                outcomes.finished.fetch_add(1, Relaxed);
            }
            None => {
                outcomes.cancelled.fetch_add(1, Relaxed);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_load_changes_no_text_and_releases_everything() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-english");
    let flags = ["--model", model.to_str().unwrap(), "--rows", "64", "--kv-memory", "1GiB"];
    let server = Server::start(&flags);
    let channel = Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    let mut alone = Vec::new();
    for number in 0..REQUESTS {
        alone.push(ask(&channel, number, usize::MAX).await.unwrap().expect("the answer is complete"));
    }
    let alone = Arc::new(alone);
    let outcomes = Arc::new(Outcomes::default());
    let duration = duration();
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let seed = 1000 + number as u64;
        clients.spawn(client(channel.clone(), seed, Arc::clone(&alone), Arc::clone(&outcomes), start + duration));
    }
    tokio::time::sleep(duration / 2).await;
    let memory_halfway = server.resident_mib();
    clients.join_all().await;
    let end = server.resident_mib();

    let finished = outcomes.finished.load(Relaxed);
    let cancelled = outcomes.cancelled.load(Relaxed);
    eprintln!("{finished} texts, {cancelled} cancelled, {:?}, {memory_halfway:?} MiB, then {end:?}", start.elapsed());
    assert!(finished >= CLIENTS && cancelled > 0, "{finished}, {cancelled}");
    let deadline = Instant::now() + Duration::from_secs(10);
    for gauge in GAUGES {
        while server.metric(gauge) != 0.0 {
            assert!(Instant::now() < deadline, "{gauge} stays at {}", server.metric(gauge));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert!(server.metric("prefix_cache_hits_total") > 0.0, "repeated prompts must hit the cache");
    let (_, metrics) = server.get("/metrics");
    let failures = metrics.lines().filter(|line| line.starts_with("weir_request_failure_total{"));
    failures.for_each(|line| assert!(line.contains("code=\"CANCELLED\"") || line.ends_with(" 0"), "{line}"));
    // After 30 seconds every request has run many times, so the cache and the pools are full.
    if duration >= Duration::from_secs(60)
        && let Some(memory_halfway) = memory_halfway
        && let Some(end) = end
    {
        assert!(end < memory_halfway * 1.05 + 4.0, "memory grows: {memory_halfway} MiB, then {end}");
    }
}

const KEYS: [&str; 2] = ["key-of-the-flood-0123456789", "key-of-the-other-0123456789"];

fn with_key<M>(message: M, key: &str) -> Request<M> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    request
}

/// Sends long requests of a kind, one after another, until it is aborted.
async fn flood(channel: Channel, kind: &'static str) {
    let text = "the city was founded by settlers from the north ".repeat(1200);
    loop {
        let channel = channel.clone();
        let _refused = match kind {
            "edit" => {
                let open = v1::OpenDocument { text: text[..3000].into(), ..Default::default() };
                let complete = |id: u64| v1::CompleteDocument {
                    id,
                    cursor_byte: 97 * id % 3000,
                    count: Some(16),
                    max_chars: Some(256),
                    ..Default::default()
                };
                let completes = (1..=16).map(|id| v1::edit_request::Action::Complete(complete(id)));
                let actions = std::iter::once(v1::edit_request::Action::Open(open)).chain(completes);
                let messages = actions.map(|action| v1::EditRequest { action: Some(action) });
                let stream = with_key(tokio_stream::iter(messages.collect::<Vec<_>>()), KEYS[0]);
                end(v1::editing_client::EditingClient::new(channel).edit(stream).await).await
            }
            _ => {
                let options = v1::CompressOptions { block_chars: Some(1000), ..Default::default() };
                let parts = [
                    v1::compress_request::Part::Options(options),
                    v1::compress_request::Part::Text(text.clone().into()),
                ];
                let messages = parts.map(|part| v1::CompressRequest { part: Some(part) });
                let stream = with_key(tokio_stream::iter(messages), KEYS[0]);
                end(v1::codec_client::CodecClient::new(channel).compress(stream).await).await
            }
        };
    }
}

/// Reads a response to its end.
async fn end<M>(response: Result<tonic::Response<Streaming<M>>, Status>) -> Result<(), Status> {
    let mut messages = response?.into_inner();
    while messages.message().await?.is_some() {}
    Ok(())
}

/// Short requests of one tenant succeed while another floods the server with long ones. How long they take is not checked here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_one_tenant_fails_no_request_of_another() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-english");
    let folder = TempDir::new().unwrap();
    let keys = folder.path().join("keys");
    fs::write(&keys, format!("flood:{}\nother:{}\n", KEYS[0], KEYS[1])).unwrap();
    let model = model.to_str().unwrap();
    let flags = ["--model", model, "--api-keys", keys.to_str().unwrap(), "--calibration-milliseconds", "0"];
    let kinds = ["compress", "edit"];
    for &kind in &kinds[..if long_runs() { kinds.len() } else { 1 }] {
        let server = Server::start(&flags);
        let channel = server.endpoint().connect().await.unwrap();
        let mut floods = JoinSet::new();
        for _ in 0..32 {
            floods.spawn(flood(channel.clone(), kind));
        }
        tokio::time::sleep(duration() / 6).await;
        let start = Instant::now();
        while start.elapsed() < duration() / 3 {
            let stopping = Some(Stopping { max_chars: Some(8), ..Default::default() });
            let message = GenerateRequest { prompt: "the ".into(), stopping, ..Default::default() };
            end(GenerationClient::new(channel.clone()).generate(with_key(message, KEYS[1])).await).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        floods.shutdown().await;
    }
}
