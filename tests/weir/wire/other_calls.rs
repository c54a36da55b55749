//! Tokenization, scores, calibration, reflection, golden messages, and the shipped models.

use super::*;
use crate::wire::fake_model::HELD_SYMBOLS;
use std::ops::ControlFlow;
use tokio::time::Instant;
use tonic::codec::CompressionEncoding;
use weir::engine::{
    self,
    calibration::{self, NotCalibrated},
    score::{score_window, windows},
};

/// Time in which a request that is not held would be answered.
const A_WHILE: Duration = Duration::from_millis(200);

async fn with_workers(tokenization_workers: usize) -> Server {
    let config = TransportConfig { tokenization_workers, ..TransportConfig::default() };
    Server::of(&[("fake", Kind::Text8)], Limits::default(), config).await
}

/// Returns a text of many bytes whose symbols fit the model: accents are dropped.
fn accented() -> String {
    format!("{}{}", "a".repeat(HELD_SYMBOLS), "\u{301}".repeat(10_000))
}

fn stopping() -> Option<v1::Stopping> {
    Some(v1::Stopping { max_chars: Some(1), ..Default::default() })
}

/// Sends `Generate` with a long prompt.
fn generate(channel: Channel) -> JoinHandle<Result<(), Status>> {
    send(channel, v1::GenerateRequest { prompt: accented(), stopping: stopping(), ..Default::default() })
}

fn send(channel: Channel, request: v1::GenerateRequest) -> JoinHandle<Result<(), Status>> {
    tokio::spawn(async move {
        let stream = GenerationClient::new(channel).generate(request).await?.into_inner();
        read(stream).await.map(drop)
    })
}

/// Sends `ModelInfer` with a long prompt.
fn infer(channel: Channel) -> JoinHandle<Result<(), Status>> {
    let request = open_inference::continuation(&accented(), 1);
    tokio::spawn(async move { GrpcInferenceServiceClient::new(channel).model_infer(request).await.map(drop) })
}

#[tokio::test]
async fn a_long_request_that_is_converted_delays_no_other() {
    let server = with_workers(4).await;
    let mut requests = Vec::new();
    server.model.hold_submissions();
    let score = v1::ScoreRequest { text: accented(), ..Default::default() };
    let segments = v1::SegmentRequest { text: accented(), ..Default::default() };
    let body = json!({ "prompt": accented(), "max_tokens": 1 }).to_string();
    let port = server.port;
    // Each caller has an address of its own, and half of the workers.
    let channel = channel_from(2, server.address).await;
    requests.push(generate(channel.clone()));
    requests.push(tokio::spawn(async move {
        let mut stream = GenerationClient::new(channel).score(score).await?.into_inner();
        while stream.message().await?.is_some() {}
        Ok(())
    }));
    let channel = channel_from(3, server.address).await;
    requests.push(tokio::spawn(async move { GenerationClient::new(channel).segment(segments).await.map(drop) }));
    eventually("three requests are converted", || server.model.held_submissions() == 3).await;
    assert!(is_healthy(&plain(server.address)).await);
    segment(server.channel.clone()).await.unwrap();
    // The fourth worker.
    let completion = tokio::spawn(async move { exchange(port, "POST", "/v1/completions", &[], &body).await.0 });
    eventually("four requests are converted", || server.model.held_submissions() == 4).await;
    requests.push(infer(server.channel.clone()));
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(server.model.held_submissions(), 4, "no more than the workers");
    segment(server.channel.clone()).await.unwrap();
    server.model.release_submissions();
    assert_eq!(completion.await.unwrap(), 200);
    for request in requests {
        request.await.unwrap().unwrap();
    }
    server.at_rest().await;
}

/// Compiling may take long.
#[tokio::test]
async fn requests_with_a_constraint_take_no_worker() {
    let server = with_workers(1).await;
    server.model.hold_submissions();
    let mut requests = Vec::new();
    for host in [2, 2, 2, 2, 2, 3] {
        let form = Some(v1::constraint::Form::Regex("a+".into()));
        let request = v1::GenerateRequest {
            prompt: "a".repeat(HELD_SYMBOLS),
            stopping: stopping(),
            constraint: Some(v1::Constraint { form, end_when_complete: None }),
            ..Default::default()
        };
        requests.push(send(channel_from(host, server.address).await, request));
    }
    eventually("four requests of one caller and one of another", || server.model.held_submissions() == 5).await;
    let text = format!("a{}", "\u{301}".repeat(10_000));
    server.generation().segment(v1::SegmentRequest { text, ..Default::default() }).await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(server.model.held_submissions(), 5, "no more than a caller's share");
    server.model.release_submissions();
    for request in requests {
        request.await.unwrap().unwrap();
    }
    server.at_rest().await;
}

#[tokio::test]
async fn long_bodies_are_parsed_by_workers() {
    let server = with_workers(1).await;
    server.model.hold_submissions();
    let held = generate(channel_from(2, server.address).await);
    eventually("the worker is busy", || server.model.held_submissions() == 1).await;
    let malformed = format!("{{\"prompt\": 7}}{}", " ".repeat(20_000));
    let port = server.port;
    let post = tokio::spawn(async move { exchange(port, "POST", "/v1/completions", &[], &malformed).await.0 });
    let unknown = InferInputTensor { name: "x".repeat(20_000), ..Default::default() };
    let mut client = server.inference();
    let request = ModelInferRequest { inputs: vec![unknown], ..Default::default() };
    let streamed = request.clone();
    let infer = tokio::spawn(async move { client.model_infer(request).await.map(drop) });
    let mut client = server.inference();
    let stream = tokio::spawn(async move {
        let mut stream = client.model_stream_infer(tokio_stream::once(streamed)).await?.into_inner();
        stream.message().await
    });
    tokio::time::sleep(A_WHILE).await;
    assert!(!post.is_finished() && !infer.is_finished() && !stream.is_finished(), "parsed without a worker");
    assert!(is_healthy(&plain(server.address)).await);
    assert_eq!(exchange(port, "POST", "/v1/completions", &[], "{}x").await.0, 400);
    server.model.release_submissions();
    assert_eq!(post.await.unwrap(), 400);
    assert_eq!(infer.await.unwrap().unwrap_err().code(), Code::InvalidArgument);
    assert!(stream.await.unwrap().unwrap().unwrap().error_message.contains("inputs"));
    held.await.unwrap().unwrap();
    server.at_rest().await;
}

/// Some kilobytes can decompress to megabytes.
#[tokio::test]
async fn long_messages_are_decompressed_by_workers() {
    let server = with_workers(1).await;
    server.model.hold_submissions();
    let held = generate(channel_from(2, server.address).await);
    eventually("the worker is busy", || server.model.held_submissions() == 1).await;
    let mut waiting = Vec::new();
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let mut client = server.generation().send_compressed(encoding);
        let short = v1::SegmentRequest { text: "a".into(), ..Default::default() };
        assert_eq!(client.segment(short).await.unwrap().into_inner().segments.len(), 1);
        let long = v1::SegmentRequest { model: Some("a".repeat(1 << 20)), ..Default::default() };
        let refused = tokio::spawn(async move { client.segment(long).await.map(drop) });
        tokio::time::sleep(A_WHILE).await;
        assert!(!refused.is_finished(), "decompressed without a worker");
        assert!(is_healthy(&plain(server.address)).await);
        segment(server.channel.clone()).await.unwrap();
        waiting.push(refused);
    }
    server.model.release_submissions();
    for refused in waiting {
        assert_eq!(refused.await.unwrap().unwrap_err().code(), Code::NotFound);
    }
    held.await.unwrap().unwrap();
    server.at_rest().await;
}

fn request(text: &str, of: WindowOptions) -> v1::ScoreRequest {
    let windows = v1::Windows { length: of.length as u32, stride: of.stride as u32 };
    v1::ScoreRequest { text: text.into(), windows: Some(windows), ..Default::default() }
}

/// The score of a text.
#[derive(Default)]
struct TextScore {
    /// Sum of −ln p over the scored symbols.
    nats: f64,
    scored: usize,
    segments: u64,
}

/// Runs the evaluation of the command line.
fn evaluated(model: &dyn Model, symbols: &[u32], of: WindowOptions, boundaries: &BoundaryOptions) -> TextScore {
    let mut sum = TextScore::default();
    for window in windows(symbols.len(), of) {
        score_window(model, symbols, window, boundaries, &mut |position, logits, mark| {
            sum.nats -= log_probability(logits, symbols[position + 1]);
            sum.scored += 1;
            sum.segments += u64::from(mark.boundary);
            Ok(())
        })
        .unwrap();
    }
    sum
}

fn check_summary(name: &str, summary: &v1::ScoreSummary, sum: &TextScore, symbols: usize) {
    let bits = sum.nats / sum.scored as f64 / LN_2;
    assert_eq!(summary.scored_chars, sum.scored as u64, "{name}");
    // Each log-probability is rounded to f32.
    assert!((summary.bits_per_char.unwrap() - bits).abs() < 1e-6, "{name}: {bits}");
    let usage = summary.usage.unwrap();
    assert_eq!((usage.prompt_chars, usage.prompt_segments), (symbols as u64, sum.segments), "{name}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_text_is_scored_in_the_memory_of_a_window() {
    let server = Server::new().await;
    let text: String = {
        let mut rng = Random::new(3);
        let length = if long_runs() { 2 << 20 } else { 1 << 18 };
        (0..length).map(|_| [' ', 'a', 'b', 'c', 'd', 'e'][rng.below(6)]).collect()
    };
    let options = WindowOptions { length: 300, stride: 250 };
    let mut scored_text = String::new();
    let mut max_bytes = 0;
    let mut nats = 0.0;
    let summary = server
        .score_in_chunks(request(&text, options), |characters| {
            scored_text.extend(characters.iter().map(|character| character.text.as_str()));
            nats -= characters.iter().filter_map(|character| character.logprob).map(f64::from).sum::<f64>();
            max_bytes = max_bytes.max(server.engine.load().bytes);
        })
        .await
        .unwrap();
    assert!(scored_text == text, "the characters are those of the text, in its order");
    assert!((1..=options.length).contains(&max_bytes), "{max_bytes} bytes, one per character");
    let symbols = server.engine.card().vocabulary.encode("text", &text, usize::MAX).unwrap();
    assert!(symbols.len() > 100 * MAX_SYMBOLS);
    let sum = evaluated(&*server.model, &symbols, options, &BoundaryOptions::default());
    assert!((nats - sum.nats).abs() < 1e-6 * nats);
    check_summary("fake", &summary, &sum, symbols.len());
    server.at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_of_every_kind_of_model_equal_the_evaluation() {
    for (case, of) in [
        ("vanilla", WindowOptions { length: 64, stride: 64 }),
        ("fixed_sf3", WindowOptions { length: 70, stride: 16 }),
        ("whitespaces", WindowOptions { length: 90, stride: 40 }),
        ("entropy", WindowOptions { length: 33, stride: 5 }),
        ("gumbel", WindowOptions { length: 50, stride: 49 }),
    ] {
        let unlimited = fixture(case);
        // The sum covers the memory of the model and of one window; an entropy model's pool is as large.
        let memory_bytes = settings().memory_bytes - unlimited.memory().limit + unlimited.bytes_for(of.length);
        let model = load(&converted(case), &Settings { memory_bytes, ..settings() }).unwrap();
        let engine = Handle::start(Arc::clone(&model), Limits::default()).unwrap();
        let running = Running::start(vec![engine], TransportConfig::default()).await;
        let vocabulary = &model.card().vocabulary;
        let length = if long_runs() { 1 << 16 } else { 3000 };
        let text = vocabulary.decode(&Random::new(7).text(length, vocabulary.len()));
        let symbols = vocabulary.encode("text", &text, usize::MAX).unwrap();
        for &mode in &model.card().boundary_modes {
            let boundaries = BoundaryOptions { mode: Some(mode), noise: Noise::Seeded(9), offset: 0, threshold: None };
            let mode = Some(mode.name().to_owned());
            let request = v1::ScoreRequest { boundary_mode: mode, seed: Some(9), ..request(&text, of) };
            let mut marks = Vec::new();
            let summary = running
                .score_in_chunks(request, |characters| {
                    marks.extend(characters.iter().map(|character| character.boundary));
                })
                .await
                .unwrap();
            assert!(
                marks.pop() == Some(None) && marks.iter().all(Option::is_some),
                "all boundaries except the last are reported"
            );
            let name = format!("{case}, {:?}", boundaries.mode.unwrap_or(BoundaryMode::Given));
            let sum = evaluated(&*unlimited, &symbols, of, &boundaries);
            check_summary(&name, &summary, &sum, symbols.len());
        }
        // The row's memory is released after its last event.
        eventually("all memory is released", || model.memory().in_use == 0).await;
    }
}

/// A calibration may hold memory that a request needs. The request waits until it has stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_a_calibration() {
    let of = WindowOptions { length: 70, stride: 16 };
    let unlimited = fixture("fixed_sf3");
    let memory_bytes = settings().memory_bytes - unlimited.memory().limit + unlimited.bytes_for(of.length);
    let model = load(&converted("fixed_sf3"), &Settings { memory_bytes, ..settings() }).unwrap();
    let handle = Handle::start(Arc::clone(&model), Limits::default()).unwrap();
    let symbols = Random::new(7).text(300, model.card().vocabulary.len());
    let mut events = None;
    let mut held = 0;
    let asking = handle.clone();
    // the engine ends with its last handle
    let _kept = handle.clone();
    let calibrating = tokio::task::spawn_blocking(move || {
        let _ = handle.calibrate(Duration::from_secs(60), || {
            held = held.max(model.memory().in_use);
            if held == 0 {
                return ControlFlow::Continue(());
            }
            let score = Score { symbols: symbols.clone(), windows: Some(of), ..Default::default() };
            events = Some(asking.submit(Job::Score(score), None).unwrap());
            // a worker that did not wait would run out of memory now
            std::thread::sleep(Duration::from_millis(100));
            ControlFlow::Break(())
        });
        events
    });
    let mut events = calibrating.await.unwrap().expect("the timed steps hold memory");
    while !matches!(events.recv().await.unwrap().unwrap(), engine::Event::Finished { .. }) {}
}

#[tokio::test]
async fn a_window_may_be_as_long_as_a_text() {
    let server = Server::new().await;
    let single_window = WindowOptions { length: MAX_SYMBOLS, stride: MAX_SYMBOLS };
    for text in ["a", "ab"] {
        let (_, summary) = server.score(request(text, single_window)).await.unwrap();
        assert_eq!(summary.scored_chars, text.len() as u64 - 1);
    }
    let status = server.generation().score(request("", single_window)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

/// The default limits reject a stride that multiplies the work, and accept the longest text that a message holds.
#[tokio::test]
async fn windows_have_bounded_work() {
    let server = Server::new().await;
    let limit = Limits::default().request_work;
    let text = "ab ".repeat(100_000);
    let overlapping = WindowOptions { length: MAX_SYMBOLS, stride: 1 };
    let status = server.generation().score(request(&text, overlapping)).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "TOO_MUCH_WORK");
    assert_eq!(field(&status), "windows.stride");
    let metadata = details(&status).error_info().unwrap().metadata.clone();
    let work = (text.len() - 1) * MAX_SYMBOLS;
    assert_eq!((&metadata["work"], &metadata["limit"]), (&work.to_string(), &limit.to_string()));
    assert_eq!(server.engine.counters().steps, 0, "nothing ran");

    let text = "ab ".repeat(((4 << 20) - 64) / 3);
    let single = WindowOptions { length: MAX_SYMBOLS, stride: MAX_SYMBOLS };
    let mut stream = server.generation().score(request(&text, single)).await.unwrap().into_inner();
    assert!(matches!(stream.message().await.unwrap().unwrap().event, Some(ScoreEvent::Chunk(_))));
    drop(stream);
    server.at_rest().await;
}

/// A request waits for one step at most: the caller can stop a calibration before each step.
#[test]
fn a_calibration_asks_before_each_step_whether_it_may_go_on() {
    let model = Fake::new("fake", Kind::Pooled);
    for allowed in [0, 1, 5, 50, 500] {
        let steps = model.steps();
        let mut left = allowed;
        let mut go_on = || {
            if left == 0 {
                return ControlFlow::Break(());
            }
            left -= 1;
            ControlFlow::Continue(())
        };
        let stopped = calibration::measure(&*model, 8, Duration::from_secs(600), &mut go_on);
        assert_eq!(stopped.unwrap_err(), NotCalibrated::Stopped);
        assert_eq!(model.steps() - steps, allowed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_doubtful_calibration_is_repeated_after_growing_idle_times() {
    let engines = Engines::default();
    // There is time for one sample, too few for a reliable calibration.
    let limits = Limits { calibration: Duration::from_nanos(1), ..Limits::default() };
    let into = engines.clone();
    let launch = move || into.add(into.launch(Fake::new("fake", Kind::Pooled), limits, None).unwrap()).unwrap();
    tokio::task::spawn_blocking(launch).await.unwrap();
    let engine = engines.find("model", None).unwrap();
    let began = Instant::now();
    let calibrating = tokio::spawn(engines.calibrate_when_idle());
    // This time lies between the server's polls, which are at even seconds.
    sleep(Duration::from_millis(20_500)).await;
    let busy = engine.clone();
    let answer = move || {
        let request = Generate::from_text("ab cd", busy.card()).unwrap();
        let mut events = busy.submit(Job::Generate(request), None).unwrap();
        while events.blocking_recv().is_some() {}
    };
    // While a blocking task runs, the virtual clock stands still.
    tokio::task::spawn_blocking(answer).await.unwrap();
    let mut known = engine.calibration().unwrap().unwrap();
    let mut repeated = Vec::new();
    while began.elapsed() < Duration::from_secs(5 * 3600) {
        sleep(Duration::from_secs(1)).await;
        let table = engine.calibration().unwrap().unwrap();
        assert!(table.doubt().is_some());
        if !Arc::ptr_eq(&table, &known) {
            repeated.push(began.elapsed().as_secs());
            known = table;
        }
    }
    // The server saw at 22 seconds that a request had come. It has been idle since.
    assert_eq!(repeated, [30, 2 * 60, 10 * 60, 60 * 60].map(|idle| 22 + idle));
    calibrating.abort();
}

const SERVICES: [&str; 7] = [
    "grpc.health.v1.Health",
    "inference.GRPCInferenceService",
    "weir.v1.Codec",
    "weir.v1.Generation",
    "weir.v1.Latency",
    "weir.v1.Models",
    "weir.v1.Summarization",
];

/// The part of a file descriptor that the test reads.
#[derive(Message)]
struct File {
    #[prost(string, tag = "1")]
    name: String,
}

/// Generates the same test for each version of the protocol, whose types differ.
macro_rules! reflects {
    ($test:ident, $version:ident) => {
        #[tokio::test]
        async fn $test() {
            use tonic_reflection::pb::$version::{
                ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
                server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
            };
            let server = Server::new().await;
            let symbol = |symbol: &str| MessageRequest::FileContainingSymbol(symbol.into());
            let questions = [
                MessageRequest::ListServices(String::new()),
                symbol("weir.v1.Generation"),
                symbol("weir.v1.Model"),
                symbol("weir.v1.SummarizeRequest"),
                symbol("inference.ModelInferRequest"),
                symbol("grpc.health.v1.HealthCheckRequest"),
                symbol("google.rpc.BadRequest"),
                symbol("weir.v1.Nothing"),
            ];
            let ask = |question| ServerReflectionRequest { host: String::new(), message_request: Some(question) };
            let mut client = ServerReflectionClient::new(server.channel.clone());
            let questions = tokio_stream::iter(questions.map(ask));
            let mut answers = client.server_reflection_info(questions).await.unwrap().into_inner();
            let mut next = async || answers.next().await.unwrap().map(|answer| answer.message_response.unwrap());
            let MessageResponse::ListServicesResponse(list) = next().await.unwrap() else { panic!("no list") };
            let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
            for service in SERVICES {
                assert!(names.iter().any(|name| name == service), "{service} is not in {names:?}");
            }
            let files = [
                "generation.proto",
                "models.proto",
                "summarization.proto",
                "inference.proto",
                "health.proto",
                "error_details.proto",
            ];
            for file in files {
                let MessageResponse::FileDescriptorResponse(response) = next().await.unwrap() else {
                    panic!("no {file}")
                };
                let descriptor = File::decode(&response.file_descriptor_proto[0][..]).unwrap();
                assert!(descriptor.name.ends_with(file), "{}", descriptor.name);
            }
            assert!(next().await.is_err(), "the symbol does not exist");
            let long = tokio_stream::iter([ask(symbol(&"x".repeat(5000)))]);
            let mut answers = client.server_reflection_info(long).await.unwrap().into_inner();
            let refused = answers.next().await.unwrap().unwrap_err();
            assert_eq!(refused.code(), tonic::Code::OutOfRange);
        }
    };
}

reflects!(reflection_v1_lists_services_and_files, v1);

reflects!(reflection_v1alpha_lists_services_and_files, v1alpha);

/// Maximum distance of a log-probability from the f64 reference, in steps between adjacent f32.
const ULPS: u32 = 1;

/// Tolerance in bits of a sum of log-probabilities, each rounded to f32.
const BITS: f64 = 1e-6;

/// The fixture's first text, shortened.
fn text(case: &str) -> String {
    let file = std::fs::read_to_string(golden_data("dynamic-pooling").join(case).join("text.json")).unwrap();
    let file: serde_json::Value = serde_json::from_str(&file).unwrap();
    file["rows"][0].as_str().unwrap().chars().take(60).collect()
}

fn log_probability(logits: &[f32], symbol: u32) -> f64 {
    let max_logit = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = logits.iter().map(|&logit| (f64::from(logit) - max_logit).exp()).sum();
    f64::from(logits[symbol as usize]) - max_logit - total.ln()
}

/// Starts one server of all fixtures.
async fn all() -> (Vec<Arc<dyn Model>>, Running) {
    let models: Vec<_> = CASES.iter().map(|case| fixture(case)).collect();
    let start = |model: &Arc<dyn Model>| Handle::start(Arc::clone(model), Limits::default()).unwrap();
    let running = Running::start(models.iter().map(start).collect(), TransportConfig::default()).await;
    (models, running)
}

#[tokio::test]
async fn scores_equal_the_forward_pass() {
    let (models, running) = all().await;
    for (case, model) in CASES.iter().zip(&models) {
        let text = text(case);
        let vocabulary = &model.card().vocabulary;
        let symbols = vocabulary.encode("text", &text, usize::MAX).unwrap();
        for &mode in &model.card().boundary_modes {
            let boundaries = BoundaryOptions { mode: Some(mode), noise: Noise::Seeded(9), ..Default::default() };
            let (logits, marks) = full(&**model, &symbols, &boundaries);
            let request = v1::ScoreRequest {
                model: Some((*case).to_owned()),
                text: text.clone(),
                boundary_mode: Some(mode.name().to_owned()),
                seed: Some(9),
                ..Default::default()
            };
            let (characters, summary) = running.score(request).await.unwrap();
            assert_eq!(characters.iter().map(|c| c.id).collect::<Vec<_>>(), symbols, "{case}");
            let marked = marks.iter().map(|mark| Some(mark.boundary));
            assert!(characters.iter().map(|c| c.boundary).eq(marked), "{case}");
            let mut total = 0.0;
            for (index, character) in characters.iter().enumerate().skip(1) {
                let expected =
                    log_probability(&logits[(index - 1) * vocabulary.len()..][..vocabulary.len()], symbols[index]);
                let actual = character.logprob.unwrap();
                let ulps = actual.to_bits().abs_diff((expected as f32).to_bits());
                assert!(ulps <= ULPS, "{case}, {index}: {actual}, not {expected}");
                total -= expected / LN_2;
            }
            let bits = total / (symbols.len() - 1) as f64;
            assert!((summary.bits_per_char.unwrap() - bits).abs() < BITS, "{case}");
            assert_eq!(summary.usage.unwrap().shortening_factor.is_some(), model.card().pooled, "{case}");
        }
    }
}

#[tokio::test]
async fn generated_text_equals_the_forward_pass() {
    let (models, running) = all().await;
    let mut client = running.generation();
    for (case, model) in CASES.iter().zip(&models) {
        let request = v1::GenerateRequest {
            model: Some((*case).to_owned()),
            prompt: text(case),
            sampling: Some(v1::Sampling { temperature: Some(0.0), ..Default::default() }),
            stopping: Some(v1::Stopping { max_chars: Some(40), ..Default::default() }),
            ..Default::default()
        };
        let answer = read(client.generate(request.clone()).await.unwrap().into_inner()).await.unwrap();
        let vocabulary = &model.card().vocabulary;
        let prompt = vocabulary.encode("prompt", &request.prompt, usize::MAX).unwrap();
        let generated = vocabulary.encode("text", &answer.text(), usize::MAX).unwrap();
        assert_eq!(generated.len(), 40, "{case}");
        let complete = [&prompt[..], &generated].concat();
        let (logits, _) = full(&**model, &complete, &BoundaryOptions::default());
        for (row, &symbol) in logits.chunks(vocabulary.len()).skip(prompt.len() - 1).zip(&generated) {
            let max_logit = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(row[symbol as usize], max_logit, "{case}");
        }
    }
}

#[tokio::test]
async fn segments_equal_the_forward_pass() {
    let (models, running) = all().await;
    let mut client = running.generation();
    for (case, model) in CASES.iter().zip(&models).filter(|(_, model)| model.card().pooled) {
        let text = text(case);
        let request = v1::SegmentRequest { model: Some((*case).to_owned()), text: text.clone(), ..Default::default() };
        let answer = client.segment(request).await.unwrap().into_inner();
        let symbols = model.card().vocabulary.encode("text", &text, usize::MAX).unwrap();
        let (_, marks) = full(&**model, &symbols, &BoundaryOptions::default());
        assert_eq!(answer.segments.iter().map(|segment| segment.text.as_str()).collect::<String>(), text, "{case}");
        let closed = answer.segments.iter().filter(|segment| !segment.open).map(|segment| segment.char_end as usize);
        let marked = marks.iter().enumerate().filter(|(_, mark)| mark.boundary).map(|(position, _)| position + 1);
        assert!(closed.eq(marked), "{case}");
        let learned = model.card().boundary_modes.contains(&BoundaryMode::Threshold);
        assert!(answer.segments.iter().all(|segment| segment.boundary_probability.is_some() == learned), "{case}");
    }
}

/// Tolerance of bits per character, compared with the card.
const SHIPPED_BITS: f64 = 0.002;

/// Maximum bytes of the weights of all shipped models.
const BYTES: u64 = 120_000_000;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folders of shipped models with their cards. Fails if a model has no card.
fn shipped() -> Vec<(PathBuf, Value)> {
    let folders = ["models", "models/compared"].map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let folders = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let models = folders.filter(|folder| folder.join("model.safetensors").exists());
    let cards: Vec<_> = models
        .map(|folder| {
            let card = fs::read_to_string(folder.join("card.json")).expect("a shipped model has a card.json");
            (folder, serde_json::from_str(&card).unwrap())
        })
        .collect();
    let page = fs::read_to_string(root().join("docs/models.md")).unwrap();
    let listed = page.lines().filter_map(|line| Some(line.strip_prefix("| [`")?.split_once("`](")?.0));
    let names = cards.iter().map(|(folder, _)| folder.file_name().unwrap().to_str().unwrap());
    assert_eq!(names.collect::<BTreeSet<_>>(), listed.collect(), "models, and those that docs/models.md lists");
    cards
}

async fn served(folder: &Path) -> Running {
    let engine = Handle::start(load(folder, &settings()).unwrap(), Limits::default()).unwrap();
    Running::start(vec![engine], TransportConfig::default()).await
}

/// Reads a file that a card names.
fn named(entry: &Value, key: &str) -> String {
    fs::read_to_string(root().join(entry[key].as_str().unwrap())).unwrap()
}

/// Returns the bits per character of a text, scored in the windows that the card names.
async fn bits(running: &Running, entry: &Value) -> f64 {
    let number = |key: &str| u32::try_from(entry[key].as_u64().unwrap()).unwrap();
    let windows = Some(v1::Windows { length: number("length"), stride: number("stride") });
    let request = v1::ScoreRequest { text: named(entry, "text"), windows, ..Default::default() };
    running.score(request).await.unwrap().1.bits_per_char.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn shipped_models_answer_as_in_their_cards() {
    let answers = |(folder, card): (PathBuf, Value)| async move {
        let name = card["name"].as_str().unwrap();
        assert!(folder.ends_with(name), "{name} lies in {}", folder.display());
        let running = served(&folder).await;
        let model = running.model().await;
        assert_eq!(
            (card["sha256"].as_str(), card["family"].as_str()),
            (Some(&*model.sha256), Some(&*model.family)),
            "{name}"
        );
        assert_eq!(card["scope"], *model.scope, "{name}");
        let entries = card["served"].as_array().unwrap();
        assert!(!entries.is_empty(), "{name}");
        for entry in entries {
            if entry["document"].is_string() {
                let answer =
                    running.summarize(SummarizeOptions::default(), &[&named(entry, "document")]).await.unwrap();
                let actual = &answer.finished.hypotheses[0];
                let expected: Vec<_> = entry["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
                let ids: Vec<_> = actual.ids.iter().map(|&id| u64::from(id)).collect();
                assert_eq!((ids, actual.text.as_str()), (expected, entry["text"].as_str().unwrap()), "{name}");
            } else {
                let actual = bits(&running, entry).await;
                let expected = entry["bpc"].as_f64().unwrap();
                assert!((actual - expected).abs() <= SHIPPED_BITS, "{name}: {actual}, not {expected}, in {entry}");
            }
        }
    };
    shipped().into_iter().map(answers).collect::<JoinSet<_>>().join_all().await;
}

/// Each model's README names the checksum of its weights.
#[test]
fn shipped_weights_match_their_cards_and_are_small() {
    let mut bytes = 0;
    for (folder, card) in shipped() {
        let length = fs::metadata(folder.join("model.safetensors")).unwrap().len();
        assert_eq!(card["bytes"].as_u64(), Some(length), "{}", folder.display());
        let text = fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(text.contains(card["sha256"].as_str().unwrap()), "{}", folder.display());
        bytes += length;
    }
    assert!(bytes <= BYTES, "{bytes} bytes");
}
