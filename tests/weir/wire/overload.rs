//! Overload: refusals, fairness between tenants, latency classes, and responses that no client reads.

use super::*;
use crate::wire::{admin::Watched, connections, generation::inference};
use std::future::Future;
use std::ops::ControlFlow;
use weir_proto::v1::latency_client::LatencyClient;
use weir_proto::v1::{GetReportRequest, ModelReport, ReportWindow, ResetReportRequest, ScoreRequest};

const ROWS: usize = 4;
const QUEUE: usize = 16;

/// Returns a request whose prompt and length depend on `number`.
fn request(number: u64) -> GenerateRequest {
    let mut request = crate::wire::seeded(["a", "ab c", "é", "dd ab a"][number as usize % 4], number);
    request.stopping = long("", 5 + 7 * (number % 20) as u32).stopping;
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_recovers_from_ten_times_the_queue() {
    let limits = Limits { rows: ROWS, queue: QUEUE, ..Limits::default() };
    let server = Server::limited(limits).await;
    let mut alone = HashMap::new();
    for number in 0..10 * QUEUE as u64 {
        alone.insert(number, server.answer(request(number)).await.unwrap().text());
    }
    server.at_rest().await;
    server.model.gate.hold(0);
    let mut calls = JoinSet::new();
    for number in 0..10 * QUEUE as u64 {
        let mut client = server.generation();
        calls.spawn(async move {
            match client.generate(request(number)).await {
                Ok(answer) => (number, crate::wire::read(answer.into_inner()).await),
                Err(status) => (number, Err(status)),
            }
        });
    }
    // A single tenant may fill half of the queue.
    let capacity = ROWS + QUEUE / 2;
    let mut refused = 0;
    while refused < 10 * QUEUE - capacity {
        let (_, answer) = calls.join_next().await.unwrap().unwrap();
        let status = answer.expect_err("nothing can be answered yet");
        assert_refused(&status, Code::ResourceExhausted, "QUEUE_FULL");
        assert!(details(&status).retry_info().unwrap().retry_delay.unwrap() > Duration::ZERO);
        refused += 1;
    }
    server.model.gate.release();
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
async fn cancel_soon(mut client: GenerationClient<tonic::transport::Channel>, number: u64, rng: &mut Random) {
    let messages = rng.below(30);
    let time = Duration::from_micros(rng.below(4000) as u64);
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
    server.fake.gate.slow(Duration::from_micros(200));
    let before = server.answer(request(3)).await.unwrap().text();
    let mut clients = JoinSet::new();
    for client in 0..AT_ONCE {
        let generation = server.generation();
        clients.spawn(async move {
            let mut rng = Random::new(client + 1);
            for number in 0..1000 / AT_ONCE {
                cancel_soon(generation.clone(), number * AT_ONCE + client, &mut rng).await;
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
    assert_eq!(server.answer(request(3)).await.unwrap().text(), before);
}

#[tokio::test]
async fn queued_prompts_are_limited_and_refusals_have_a_retry_delay() {
    let limits = Limits { rows: 1, queued_symbols: 20, ..Limits::default() };
    let server = Server::limited(limits).await;
    server.model.gate.hold(0);
    let first = server.generate(long("a", 5)).await.unwrap();
    server.until_running(1).await;
    let second = server.generate(prompt("a b c d e")).await.unwrap();
    let status = server.generate(prompt("a b c d e f")).await.map(drop);
    // An unknown symbol is reported before the full queue.
    assert_eq!(status.unwrap_err().code(), Code::InvalidArgument);
    let status = server.generate(prompt("a b c d e a b c d e")).await.map(drop).unwrap_err();
    assert_refused(&status, Code::ResourceExhausted, "QUEUE_FULL");
    let details = details(&status);
    assert_eq!(details.error_info().unwrap().metadata["what"], "prompt symbols");
    assert!(details.retry_info().unwrap().retry_delay.is_some());
    server.model.gate.release();
    crate::wire::read(first).await.unwrap();
    crate::wire::read(second).await.unwrap();
    server.at_rest().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let stall = Duration::from_secs(2);
    let limits = Limits { rows: 1, events: 4, stall, ..Limits::default() };
    let server = Server::limited(limits).await;
    // The client has a window of one kilobyte.
    let address = format!("http://{}", server.address);
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
    assert_refused(&status, Code::ResourceExhausted, "STALLED");
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
    server.model.gate.slow(Duration::from_millis(5));
    let mut long_calls = JoinSet::new();
    for _ in 0..8 {
        long_calls.spawn(long_call(server.generation()));
    }
    eventually("alice has all rows and waits", || server.engine.load().queued == 6).await;
    for _ in 0..3 {
        let request = bearing(long("b", 4), &[BOB]);
        let stream = server.generation().generate(request).await.unwrap().into_inner();
        assert_eq!(crate::wire::read(stream).await.unwrap().text().len(), 4);
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
        crate::wire::read(client.generate(bearing(long("a", 1900), &[ALICE])).await?.into_inner()).await.map(drop)
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

const TOKEN: &str = "a-token-for-the-tests";

/// A loader that always fails.
struct Nothing;

impl ModelLoader for Nothing {
    fn memory_needed(&self, _: &Path) -> Result<usize> {
        Ok(0)
    }

    fn load(&self, folder: &Path, _: &str) -> Result<Arc<dyn Model>> {
        Err(Error::checkpoint(folder, "config.json", "a model", "none"))
    }
}

struct Served {
    engines: Engines,
    running: Running,
}

impl Served {
    /// Starts a server of these models, which have been calibrated.
    async fn new(models: &[Arc<Fake>]) -> Self {
        let engines = Engines::default();
        for model in models {
            launch(&engines, Arc::clone(model) as _).await;
            let engine = engines.find("model", Some(&model.card().name)).unwrap();
            let time = engine.limits().calibration;
            let calibrate = move || engine.calibrate(time, || ControlFlow::Continue(())).is_ok();
            tokio::task::spawn_blocking(calibrate).await.unwrap();
        }
        let token = AdminToken::new(TOKEN).unwrap();
        let loader = Arc::new(Nothing);
        let admin = AdminConfig { token, loader, models_folder: None, max_generations: 8, limits: Limits::default() };
        let monitor = Monitor::new(engines.clone(), Duration::from_secs(60));
        let offer = ServerParts { admin: Some(admin), ..monitor.into() };
        Self { engines, running: Running::offering(offer, TransportConfig::default()).await }
    }

    fn channel(&self) -> Channel {
        self.running.channel.clone()
    }

    async fn answer(&self, model: &str, text: &str, chars: u32) -> GeneratedResponse {
        let request = GenerateRequest { model: Some(model.into()), ..long(text, chars) };
        let stream = GenerationClient::new(self.channel()).generate(request).await.unwrap().into_inner();
        crate::wire::read(stream).await.unwrap()
    }

    async fn reports(&self, model: Option<&str>, window: Option<i32>) -> Result<Vec<ModelReport>, Status> {
        let request = GetReportRequest { model: model.map(Into::into), window };
        Ok(LatencyClient::new(self.channel()).get_report(request).await?.into_inner().models)
    }

    async fn report(&self, model: &str, window: ReportWindow) -> ModelReport {
        self.reports(Some(model), Some(window.into())).await.unwrap().remove(0)
    }

    async fn reset(&self, model: Option<&str>, token: Option<&str>) -> Result<Vec<String>, Status> {
        let mut request = tonic::Request::new(ResetReportRequest { model: model.map(Into::into) });
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        Ok(AdminClient::new(self.channel()).reset_report(request).await?.into_inner().models)
    }
}

pub(super) async fn launch(engines: &Engines, model: Arc<dyn Model>) {
    let into = engines.clone();
    let limits = Limits { cache_bytes: 1 << 16, document_bytes: 1 << 20, ..Limits::default() };
    tokio::task::spawn_blocking(move || into.add(into.launch(model, limits, None).unwrap()).unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_report_sums_the_usage_of_requests() {
    let served = Served::new(&[Fake::new("fake", Kind::Pooled)]).await;
    let mut usages = Vec::new();
    for text in ["ab cd e", "ab cd e", "abc ", "d de ea"] {
        usages.push(served.answer("fake", text, 40).await.finished.usage.unwrap());
    }
    let report = served.report("fake", ReportWindow::SinceLoad).await;
    assert_eq!((report.model.as_str(), report.generation, report.pooled), ("fake", 1, true));
    assert!(report.window_ns > 0 && report.window() == ReportWindow::SinceLoad && report.summaries.is_none());
    let texts = report.texts.unwrap();
    assert_eq!((texts.requests, texts.failed), (4, 0));
    assert_eq!(texts.prompt_chars, usages.iter().map(|usage| usage.prompt_chars).sum::<u64>());
    assert_eq!(texts.cached_chars, usages.iter().map(|usage| usage.cached_chars).sum::<u64>());
    assert!(texts.cached_chars > 0, "the second text was cached");
    assert_eq!(texts.generated_chars, usages.iter().map(|usage| usage.generated_chars).sum::<u64>());
    let all = texts.middle_steps_run + texts.middle_steps_skipped;
    assert_eq!(texts.shortening_factor, Some(all as f64 / texts.middle_steps_run as f64));
    let first = texts.time_to_first_char.unwrap();
    let plain = texts.plain_gap.unwrap();
    let boundary = texts.boundary_gap.unwrap();
    assert_eq!((first.count, texts.total.unwrap().count, texts.queue.unwrap().count), (4, 4, 4));
    assert_eq!(plain.count + boundary.count + 4, texts.generated_chars);
    assert!(boundary.count > 0 && texts.segment.unwrap().count < boundary.count);
    for histogram in [&first, &plain, &boundary] {
        assert_eq!(histogram.bars.iter().map(|bar| bar.count).sum::<u64>(), histogram.count);
        assert!([histogram.min_ns, histogram.p50_ns, histogram.p99_ns, histogram.max_ns].is_sorted());
        assert!(histogram.bars.windows(2).all(|pair| pair[0].below_ns <= pair[1].from_ns));
    }
    let cache = report.cache.unwrap();
    assert_eq!((cache.hits + cache.misses, cache.found_chars), (4, texts.cached_chars));
}

#[tokio::test]
async fn the_estimate_sums_those_of_the_requests_and_names_its_calibration() {
    let served = Served::new(&[Fake::new("fake", Kind::Pooled), Fake::new("plain", Kind::Vanilla)]).await;
    let mut sums = [0; 4];
    for text in ["ab cd e", "bcd", "a b c"] {
        let timing = served.answer("fake", text, 30).await.finished.timing.unwrap();
        let prefill = timing.unpooled_prefill_estimate_ns.unwrap();
        let decode = timing.unpooled_decode_estimate_ns.unwrap();
        assert_eq!(timing.unpooled_estimate_ns, Some(prefill + decode));
        let took = timing.prefill_ns + timing.decode_ns;
        assert_eq!(timing.gain_estimate, Some((prefill + decode) as f64 / took as f64));
        let figures = [timing.prefill_ns, prefill, timing.decode_ns, decode];
        sums.iter_mut().zip(figures).for_each(|(sum, more)| *sum += more);
    }
    let report = served.report("fake", ReportWindow::SinceLoad).await;
    let gain = report.estimated_gain.unwrap();
    assert_eq!((gain.requests, report.estimate_missing), (3, None));
    let prefill = [gain.measured_prefill_ns, gain.unpooled_prefill_estimate_ns];
    let decode = [gain.measured_decode_ns, gain.unpooled_decode_estimate_ns];
    assert_eq!([prefill, decode].concat(), sums);
    assert_eq!(gain.gain_estimate, Some((sums[1] + sums[3]) as f64 / (sums[0] + sums[2]) as f64));
    let calibration = gain.calibration.unwrap();
    let steps = calibration.steps.iter().filter(|step| step.chars == 1 && step.context < 100);
    let rows: Vec<_> = steps.map(|step| step.rows).collect();
    assert!(calibration.took_ns > 0 && rows == [1, 2, 4, 8, 16, 32], "{rows:?}");
    assert!(calibration.steps.iter().all(|step| step.samples > 0 && step.segments > 0));
    let fewest = calibration.steps.iter().map(|step| step.samples).min();
    assert_eq!(Some(calibration.fewest_samples), fewest);
    let mut spreads: Vec<_> = calibration.steps.iter().map(|step| step.spread).collect();
    spreads.sort_by(f64::total_cmp);
    assert_eq!(calibration.spread, spreads[spreads.len() / 2]);
    let is_doubtful = calibration.spread > 0.2 || calibration.fewest_samples < 5;
    assert_eq!(calibration.doubt.is_some(), is_doubtful, "{calibration:?}");
    // A model that does not pool has no estimate, and the report gives the reason.
    let timing = served.answer("plain", "abc", 10).await.finished.timing.unwrap();
    assert_eq!((timing.unpooled_estimate_ns, timing.gain_estimate), (None, None));
    let plain = served.report("plain", ReportWindow::SinceLoad).await;
    assert!(plain.estimated_gain.is_none() && plain.estimate_missing.unwrap().contains("does not pool"));
}

#[tokio::test]
async fn a_reset_needs_the_admin_token_and_changes_one_window() {
    let served = Served::new(&[Fake::new("a", Kind::Pooled), Fake::new("b", Kind::Pooled)]).await;
    for model in ["a", "b"] {
        served.answer(model, "abc ab", 5).await;
    }
    for (token, code) in [(None, Code::Unauthenticated), (Some("another-token-for-it"), Code::PermissionDenied)] {
        assert_eq!(served.reset(None, token).await.unwrap_err().code(), code);
    }
    assert_eq!(served.reset(Some("a"), Some(TOKEN)).await.unwrap(), ["a"]);
    assert_eq!(served.reset(Some("c"), Some(TOKEN)).await.unwrap_err().code(), Code::NotFound);
    let requests = async |model: &str, window| served.report(model, window).await.texts.unwrap().requests;
    assert_eq!(requests("a", ReportWindow::SinceReset).await, 0);
    for (model, window) in [
        ("a", ReportWindow::SinceLoad),
        ("a", ReportWindow::LastMinute),
        ("b", ReportWindow::SinceReset),
        ("b", ReportWindow::Unspecified),
    ] {
        assert_eq!(requests(model, window).await, 1, "{model} {window:?}");
    }
    served.answer("a", "abc", 5).await;
    assert_eq!(requests("a", ReportWindow::SinceReset).await, 1);
    assert_eq!(served.reset(None, Some(TOKEN)).await.unwrap(), ["a", "b"]);
}

/// Calibration does not disturb running streams: it waits until no request runs.
#[tokio::test]
async fn a_model_loaded_under_load_is_calibrated_later() {
    let busy = Fake::new("busy", Kind::Pooled);
    let served = Served::new(&[Arc::clone(&busy)]).await;
    busy.gate.slow(Duration::from_millis(2));
    let streaming = GenerationClient::new(served.channel()).generate(long("abc", 1500)).await.unwrap();
    let late = Fake::new("late", Kind::Pooled);
    launch(&served.engines, Arc::clone(&late) as _).await;
    let report = served.report("late", ReportWindow::SinceLoad).await;
    assert!(report.estimated_gain.is_none() && report.calibration_pending);
    let early = served.answer("late", "abc", 4).await.finished.timing.unwrap();
    assert_eq!(early.unpooled_estimate_ns, None);
    drop(streaming);
    busy.gate.release();
    eventually("the model is calibrated", || {
        let engine = served.engines.find("model", Some("late")).unwrap();
        engine.calibration().is_some_and(|calibrated| calibrated.is_ok())
    })
    .await;
    let report = served.report("late", ReportWindow::SinceLoad).await;
    assert!(report.estimated_gain.is_some() && !report.calibration_pending);
    assert!(report.estimate_missing.unwrap().contains("1 of 1 requests"));
    assert!(served.answer("late", "abc", 4).await.finished.timing.unwrap().gain_estimate.is_some());
}

/// The report and the metrics have the sums of the requests' levels.
#[tokio::test]
async fn levels_are_reported_and_counted() {
    for case in ["one_stage", "two_stage"] {
        let model = load(&checkpoint("hnet", case), &settings()).unwrap();
        let engines = Engines::default();
        launch(&engines, model).await;
        let running = Running::offering(ServerParts::from(engines.clone()), TransportConfig::default()).await;
        let mut sums = [[0, 0]; 2];
        let mut symbols = 0;
        for seed in [1, 2] {
            let sampling = Some(v1::Sampling { seed: Some(seed), ..Default::default() });
            let request = GenerateRequest { sampling, ..long("Chunks of bytes", 40) };
            let stream = running.generation().generate(request).await.unwrap().into_inner();
            let answer = crate::wire::read(stream).await.unwrap();
            let usage = answer.finished.usage.unwrap();
            symbols += usage.prompt_chars + usage.generated_chars;
            for (sum, level) in sums.iter_mut().zip(&answer.finished.levels) {
                *sum = [sum[0] + level.chunks, sum[1] + level.middle_steps];
            }
        }
        let report = GetReportRequest::default();
        let mut client = LatencyClient::new(running.channel.clone());
        let report = client.get_report(report).await.unwrap().into_inner().models.remove(0);
        let levels = report.texts.unwrap().levels;
        let metrics = engines.metrics().render(&[]).unwrap();
        if case == "one_stage" {
            assert!(levels.is_empty() && !metrics.contains("level=\"1\""), "{levels:?}");
            continue;
        }
        assert_eq!(levels.len(), 2);
        let mut around = symbols;
        for (index, (level, [chunks, middle_steps])) in levels.iter().zip(sums).enumerate() {
            assert_eq!((level.chunks, level.middle_steps), (chunks, middle_steps));
            assert_eq!(level.shortening_factor, around as f64 / chunks as f64);
            around = chunks;
            let labels = format!("{{model_name=\"{}\",level=\"{}\"}}", report.model, index + 1);
            let factor = metrics.split(&format!("weir_level_shortening_factor{labels} ")).nth(1).unwrap();
            let factor: f64 = factor.lines().next().unwrap().parse().unwrap();
            assert!((factor - level.shortening_factor).abs() < 1e-9, "{factor}");
            for sample in [
                format!("weir_level_chunks_total{labels} {chunks}\n"),
                format!("weir_level_middle_steps_total{labels} {middle_steps}\n"),
            ] {
                assert!(metrics.contains(&sample), "{sample}");
            }
        }
    }
}

const STREAM_INFER: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// Number of segments of the test text, which has a character in each.
const SEGMENTS: usize = 1900;

fn unread_request() -> SegmentRequest {
    SegmentRequest { text: " ".repeat(SEGMENTS), ..Default::default() }
}

async fn with_stall(stall: Duration) -> Server {
    let config = TransportConfig { message_bytes: 16 << 10, request_memory: 896 << 10, ..TransportConfig::default() };
    Server::with(Limits { stall, ..Limits::default() }, config).await
}

/// Calls `Segment`. The client reads the headers only, until it releases capacity.
async fn unread(sender: &SendRequest<Bytes>) -> Response<RecvStream> {
    call(sender, "/weir.v1.Generation/Segment", &unread_request()).await
}

async fn call(sender: &SendRequest<Bytes>, path: &str, request: &impl Message) -> Response<RecvStream> {
    let message = connections::framed(&request.encode_to_vec());
    connections::called(sender.clone(), path, message, &[]).await.unwrap()
}

fn refusal(response: &Response<RecvStream>) -> Option<Status> {
    Status::from_header_map(response.headers()).filter(|status| status.code() != Code::Ok)
}

async fn segments(channel: &Channel) -> Result<usize, Status> {
    let response = GenerationClient::new(channel.clone()).segment(unread_request()).await?;
    Ok(response.into_inner().segments.len())
}

/// Waits until there is memory for a response.
async fn memory_is_free(channel: &Channel) {
    let is_free = async || match segments(channel).await {
        Err(status) if status.code() == Code::ResourceExhausted => false,
        answered => answered.unwrap() == SEGMENTS,
    };
    eventually_async("the memory is released", is_free).await;
}

/// Leaves responses unread until the server has no memory for another one. Returns them, and the refusal.
async fn fill_with_segments(sender: &SendRequest<Bytes>) -> (Vec<Response<RecvStream>>, Status) {
    let mut held = Vec::new();
    loop {
        let response = unread(sender).await;
        if let Some(refused) = refusal(&response) {
            return (held, refused);
        }
        held.push(response);
        assert!(held.len() < 50, "unread responses take no memory");
    }
}

/// Leaves inferences on streams of requests unread until the server has no memory for another one.
async fn fill_with_inferences(server: &Server, sender: &SendRequest<Bytes>) -> Vec<Response<RecvStream>> {
    let mut held = Vec::new();
    loop {
        held.push(call(sender, STREAM_INFER, &inference(1900)).await);
        server.until_taken(0).await;
        if let Err(refused) = server.inference().model_infer(inference(1900)).await {
            assert_refused(&refused, Code::ResourceExhausted, "QUEUE_FULL");
            return held;
        }
        assert!(held.len() < 50, "unread responses take no memory");
    }
}

#[tokio::test]
async fn responses_that_are_not_read_leave_memory_to_others() {
    let server = with_stall(Duration::from_secs(600)).await;
    for window in [0, 256] {
        let sender = connections::connect(server.address, window).await;
        let (held, refused) = fill_with_segments(&sender).await;
        assert_refused(&refused, Code::ResourceExhausted, "QUEUE_FULL");
        assert!(details(&refused).retry_info().is_some());
        assert!(held.len() > 4, "only {} fit", held.len());
        // Small responses to this caller, and large ones to another, have room.
        segment(server.channel.clone()).await.unwrap();
        let other = channel_from(2, server.address).await;
        assert_eq!(segments(&other).await.unwrap(), SEGMENTS);
        drop((held, sender));
        memory_is_free(&server.channel).await;
    }
}

#[tokio::test]
async fn a_response_that_is_not_read_ends_after_the_stall_limit() {
    let server = with_stall(Duration::from_secs(2)).await;
    let (whole, status) = to_end(unread(&connections::connect(server.address, 1 << 16).await).await).await;
    assert_eq!(status.code(), Code::Ok);
    let sender = connections::connect(server.address, 256).await;
    let (mut held, _) = fill_with_segments(&sender).await;
    memory_is_free(&server.channel).await;
    // What the connection had taken arrives, and then the reason.
    let (bytes, status) = to_end(held.remove(0)).await;
    assert!(bytes.len() < whole.len(), "{} bytes of a response that was dropped", bytes.len());
    assert_refused(&status, Code::ResourceExhausted, "STALLED");
}

/// A score that its client does not read holds little: the engine pauses it, and ends it after the stall limit.
#[tokio::test]
async fn a_score_that_is_not_read_does_not_finish() {
    let server = with_stall(Duration::from_secs(2)).await;
    let sender = connections::connect(server.address, 256).await;
    let detailed = ScoreRequest { text: "a ".repeat(900), top_logprobs: Some(4), ..Default::default() };
    let response = call(&sender, "/weir.v1.Generation/Score", &detailed).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.engine.load().running, 1, "the response waits in memory as a whole");
    server.until_running(0).await;
    let (_, status) = to_end(response).await;
    assert_refused(&status, Code::ResourceExhausted, "STALLED");
}

/// Complete responses on streams of requests.
#[tokio::test]
async fn inferences_that_are_not_read_leave_memory_to_others() {
    let server = with_stall(Duration::from_secs(600)).await;
    let sender = connections::connect(server.address, 0).await;
    let held = fill_with_inferences(&server, &sender).await;
    let other = channel_from(2, server.address).await;
    assert_eq!(segments(&other).await.unwrap(), SEGMENTS);
    drop((held, sender));
    memory_is_free(&server.channel).await;
}

#[tokio::test]
async fn inferences_that_are_not_read_end_after_the_stall_limit() {
    let server = with_stall(Duration::from_secs(6)).await;
    let sender = connections::connect(server.address, 256).await;
    let mut held = fill_with_inferences(&server, &sender).await;
    let mut client = server.inference();
    let answered = async { while client.model_infer(inference(1900)).await.is_err() {} };
    timeout(Duration::from_secs(40), answered).await.expect("the memory is released");
    let (_, status) = to_end(held.remove(0)).await;
    assert_refused(&status, Code::ResourceExhausted, "STALLED");
}

/// Any time may pass between two requests.
#[tokio::test]
async fn a_stream_without_requests_does_not_stall() {
    let server = with_stall(Duration::from_millis(200)).await;
    let (requests, incoming) = tokio::sync::mpsc::channel(1);
    let mut client = server.inference();
    let answers = client.model_stream_infer(tokio_stream::wrappers::ReceiverStream::new(incoming));
    let mut answers = answers.await.unwrap().into_inner();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(600)).await;
        requests.send(inference(3)).await.unwrap();
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!(answer.error_message, "");
    }
}

/// The client reads more slowly than the stall limit in all, and never pauses for as long as the limit.
#[tokio::test]
async fn a_slow_client_gets_its_whole_response() {
    let limits = Limits { stall: Duration::from_secs(2), ..Limits::default() };
    let server = Server::limited(limits).await;
    let sender = connections::connect(server.address, 8 << 10).await;
    let read_slowly = async |path: &str| {
        let began = Instant::now();
        let mut response = call(&sender, path, &inference(1900)).await;
        let mut bytes = Vec::new();
        while let Some(part) = response.body_mut().data().await {
            let part = part.unwrap();
            tokio::time::sleep(Duration::from_millis(250)).await;
            response.body_mut().flow_control().release_capacity(part.len()).unwrap();
            bytes.extend_from_slice(&part);
        }
        assert_eq!(response.body_mut().trailers().await.unwrap().unwrap()["grpc-status"], "0");
        let elapsed = began.elapsed();
        assert!(elapsed > Duration::from_secs(3), "{path}: {elapsed:?} and {} bytes show nothing", bytes.len());
        bytes
    };
    let (complete, streamed) =
        tokio::join!(read_slowly("/inference.GRPCInferenceService/ModelInfer"), read_slowly(STREAM_INFER));
    assert_eq!(ModelInferResponse::decode(&complete[5..]).unwrap().outputs.len(), 2);
    let streamed = ModelStreamInferResponse::decode(&streamed[5..]).unwrap();
    assert_eq!(streamed.infer_response.unwrap().outputs.len(), 2);
}
