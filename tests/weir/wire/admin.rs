//! The admin service, its port, and reloads.

use super::*;
use crate::certificates::{CLIENT_SERIAL, credentials};
use crate::wire::connections::tried;
use crate::wire::editing::{Session, closed, complete, many_splices};
use tonic::codegen::http::{self};
use weir::server::config::{CredentialFiles, LiveCredentials};
use weir::server::serve_admin_port;
use weir_proto::v1::model_generation::State;
use weir_proto::v1::{
    ListGenerationsRequest, LoadModelRequest, LoadModelResponse, ModelGeneration, UnloadModelRequest,
};

const TOKEN: &str = "a-token-for-the-tests";
const STEP: Duration = Duration::from_millis(2);

/// Loads fake models. The content of the folder's file selects success or the kind of failure.
#[derive(Default)]
struct Fakes {
    models: Mutex<Vec<Arc<Fake>>>,
    /// True while a slow model is loaded, which lasts until `released`.
    is_loading: AtomicBool,
    released: AtomicBool,
}

impl ModelLoader for Fakes {
    fn memory_needed(&self, folder: &Path) -> Result<usize> {
        Ok(if content(folder) == "huge" { usize::MAX } else { 1 })
    }

    fn load(&self, folder: &Path, name: &str) -> Result<Arc<dyn Model>> {
        match content(folder).as_str() {
            "broken" => Err(Error::checkpoint(folder, "config.json", "a model", "a broken one")),
            "panics" => panic!("requested panic"),
            "slow" => {
                self.is_loading.store(true, SeqCst);
                while !self.released.load(SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Error::Cancelled)
            }
            _ => {
                let mut all = self.models.lock().unwrap();
                let model = Fake::salted(name, Kind::Pooled, 1 + all.len() as u64);
                all.push(Arc::clone(&model));
                Ok(model)
            }
        }
    }
}

fn content(folder: &Path) -> String {
    fs::read_to_string(folder.join("config.json")).unwrap()
}

/// A server with an admin service.
struct Exchange {
    fakes: Arc<Fakes>,
    models: TempDir,
    running: Running,
}

impl Exchange {
    /// Starts a server with one model named `first`, from the folder of that name.
    async fn new() -> Self {
        Self::with_at_most(8).await
    }

    async fn with_at_most(max_generations: usize) -> Self {
        let fakes = Arc::new(Fakes::default());
        let models = TempDir::new().unwrap();
        let engines = Engines::default();
        for (folder, content) in [("first", "fine"), ("second", "fine"), ("broken", "broken"), ("huge", "huge")] {
            make(models.path(), folder, content);
        }
        make(models.path(), "panics", "panics");
        make(models.path(), "slow", "slow");
        let limits = Limits { rows: 64, cache_bytes: 1 << 20, ..Limits::default() };
        let folder = models.path().join("first");
        let into = engines.clone();
        let loader = Arc::clone(&fakes);
        let load = move || {
            let model = loader.load(&folder, "first").unwrap();
            into.add(into.launch(model, limits, Some(folder)).unwrap()).unwrap()
        };
        assert_eq!(tokio::task::spawn_blocking(load).await.unwrap(), 1);
        let token = AdminToken::new(TOKEN).unwrap();
        let loader = Arc::clone(&fakes) as Arc<dyn ModelLoader>;
        let models_folder = Some(models.path().to_path_buf());
        let admin = AdminConfig { token, loader, models_folder, max_generations, limits };
        let monitor = Monitor::new(engines, Duration::from_secs(60));
        let running =
            Running::offering(ServerParts { admin: Some(admin), ..monitor.into() }, TransportConfig::default()).await;
        Self { fakes, models, running }
    }

    fn admin(&self) -> AdminClient<Channel> {
        AdminClient::new(self.running.channel.clone())
    }

    fn fake(&self, index: usize) -> Arc<Fake> {
        Arc::clone(&self.fakes.models.lock().unwrap()[index])
    }

    async fn load(&self, path: Option<&str>, name: Option<&str>) -> Result<LoadModelResponse, Status> {
        let request = LoadModelRequest { path: path.map(Into::into), name: name.map(Into::into) };
        self.admin().load_model(with_token(request, TOKEN)).await.map(tonic::Response::into_inner)
    }

    async fn unload(&self, name: &str) -> Result<u64, Status> {
        let answer = self.admin().unload_model(with_token(UnloadModelRequest { name: name.into() }, TOKEN)).await;
        answer.map(|answer| answer.into_inner().generation)
    }

    async fn list(&self) -> Vec<ModelGeneration> {
        let answer = self.admin().list_generations(with_token(ListGenerationsRequest {}, TOKEN)).await;
        answer.unwrap().into_inner().generations
    }

    /// Returns name, number and state of each generation.
    async fn states(&self) -> Vec<(String, u64, State)> {
        self.list()
            .await
            .into_iter()
            .map(|generation| (generation.name.clone(), generation.number, generation.state()))
            .collect()
    }

    /// Waits until no generation drains.
    async fn drained(&self) {
        let serves = async || self.states().await.iter().all(|(_, _, state)| *state == State::Serving);
        eventually_async("no generation drains", serves).await;
    }

    async fn text(&self, model: &str, seed: u64) -> Result<String, Status> {
        text(self.generation(), model, seed).await
    }
}

impl Deref for Exchange {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.fakes.released.store(true, SeqCst);
        self.fakes.models.lock().unwrap().iter().for_each(|fake| fake.gate.release());
    }
}

async fn text(mut client: GenerationClient<Channel>, model: &str, seed: u64) -> Result<String, Status> {
    Ok(read(client.generate(of(model, seeded("ab c", seed))).await?.into_inner()).await?.text())
}

fn make(models: &Path, folder: &str, content: &str) {
    fs::create_dir(models.join(folder)).unwrap();
    fs::write(models.join(folder).join("config.json"), content).unwrap();
}

fn of(model: &str, request: v1::GenerateRequest) -> v1::GenerateRequest {
    v1::GenerateRequest { model: Some(model.into()), ..request }
}

/// Returns a request with an admin token.
fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

/// grpc/grpc-swift#1987, grpc/grpc-rust#304: a client that watches an unknown service learns when it appears.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_an_unknown_service_follows_later_loads() {
    use tonic_health::pb::health_check_response::ServingStatus::{NotServing, ServiceUnknown, Serving};
    let mut server = Exchange::new().await;
    let mut health = HealthClient::new(server.running.channel.clone());
    let request = |service: &str| HealthCheckRequest { service: service.into() };
    let mut watched = Vec::new();
    for (service, status) in [
        ("foo.Bar", ServiceUnknown),
        ("org/other", ServiceUnknown),
        ("first", Serving),
        ("weir.v1.Generation", Serving),
        ("", Serving),
    ] {
        let mut stream = health.watch(request(service)).await.unwrap().into_inner();
        assert_eq!(stream.next().await.unwrap().unwrap().status(), status, "{service}");
        watched.push(stream);
    }
    let [unknown, other, first, generation, all] = &mut watched[..] else { unreachable!() };
    assert_eq!(health.check(request("org/other")).await.unwrap_err().code(), Code::NotFound);
    server.load(Some("second"), Some("org/other")).await.unwrap();
    assert_eq!(other.next().await.unwrap().unwrap().status(), Serving);
    assert_eq!(health.check(request("org/other")).await.unwrap().into_inner().status(), Serving);
    server.unload("org/other").await.unwrap();
    assert_eq!(other.next().await.unwrap().unwrap().status(), ServiceUnknown);
    // without models, the server is alive and not ready
    server.unload("first").await.unwrap();
    assert_eq!(first.next().await.unwrap().unwrap().status(), ServiceUnknown);
    assert_eq!(generation.next().await.unwrap().unwrap().status(), NotServing);
    for silent in [unknown, all] {
        assert!(timeout(Duration::from_millis(50), silent.next()).await.is_err());
    }
    server.running.shut_down();
    for mut stream in watched {
        while timeout(Duration::from_secs(10), stream.next()).await.unwrap().is_some() {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_is_loaded_while_another_streams() {
    let server = Exchange::new().await;
    server.fake(0).gate.slow(STEP);
    let mut stream = server.generation().generate(of("first", long("a", 300))).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();
    assert_eq!(server.text("other", 1).await.unwrap_err().code(), Code::NotFound);
    let loaded = server.load(Some("second"), Some("other")).await.unwrap();
    let generation = loaded.generation.unwrap();
    assert_eq!((generation.name.as_str(), generation.number, loaded.draining), ("other", 2, None));
    assert_eq!(generation.path, server.models.path().canonicalize().unwrap().join("second").to_str().unwrap());
    assert!(!server.text("other", 1).await.unwrap().is_empty());
    assert_eq!(rest(stream).await.usage.unwrap().generated_chars, 300);
    let states = [("first".into(), 1, State::Serving), ("other".into(), 2, State::Serving)];
    assert_eq!(server.states().await, states);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unloaded_model_serves_its_last_request() {
    let server = Exchange::new().await;
    server.load(Some("second"), None).await.unwrap();
    let fake = server.fake(1);
    fake.gate.slow(STEP);
    let stream = server.generation().generate(of("second", long("a", 200))).await.unwrap().into_inner();
    fake.gate.hold(0);
    assert_eq!(server.unload("second").await.unwrap(), 2);
    let status = server.text("second", 1).await.unwrap_err();
    assert_refused(&status, Code::NotFound, "UNKNOWN_MODEL");
    assert_eq!(server.unload("second").await.unwrap_err().code(), Code::NotFound);
    let draining = server.list().await.pop().unwrap();
    assert_eq!((draining.number, draining.state()), (2, State::Draining));
    assert_eq!(draining.running + draining.waiting, 1);
    fake.gate.release();
    assert_eq!(read(stream).await.unwrap().finished.usage.unwrap().generated_chars, 200);
    server.drained().await;
    assert_eq!(server.states().await, [("first".into(), 1, State::Serving)]);
    // The test and the loader hold the remaining references: the engine and its worker are gone.
    eventually("the engine is dropped", || Arc::strong_count(&fake) == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_request_does_not_keep_an_unloaded_model() {
    let server = Exchange::new().await;
    let fake = server.fake(0);
    fake.gate.slow(STEP);
    let mut stream = server.generation().generate(of("first", long("a", 1900))).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();
    server.unload("first").await.unwrap();
    assert_eq!(server.states().await, [("first".into(), 1, State::Draining)]);
    drop(stream);
    server.drained().await;
    eventually("the engine is dropped", || Arc::strong_count(&fake) == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_editing_session_does_not_keep_a_model_that_was_loaded_again() {
    let server = Exchange::new().await;
    let fake = server.fake(0);
    let mut session = Session::open(&server, "").await;
    // another model changes nothing
    server.load(Some("second"), None).await.unwrap();
    server.load(Some("first"), None).await.unwrap();
    assert_eq!(session.next().await, closed(Reason::ModelChanged));
    assert!(session.responses.message().await.unwrap().is_none());
    server.drained().await;
    eventually("the engine is dropped", || Arc::strong_count(&fake) == 2).await;
}

/// The old generation is dropped before the new one serves; its metrics series continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reloaded_model_keeps_its_metrics() {
    let engines = Engines::default();
    let launch = |fake: &Arc<Fake>| {
        let into = engines.clone();
        let model = Arc::clone(fake) as Arc<dyn Model>;
        tokio::task::spawn_blocking(move || into.launch(model, Limits::default(), None).unwrap())
    };
    let is_measured = || engines.metrics().render(&[]).unwrap().contains("weir_num_requests_running{model_name=\"m\"}");
    let first = launch(&Fake::new("m", Kind::Pooled)).await.unwrap();
    let second = launch(&Fake::new("m", Kind::Pooled)).await.unwrap();
    drop(first);
    assert!(is_measured(), "it is about to serve");
    engines.add(second).unwrap();
    assert!(is_measured());
    drop(launch(&Fake::new("elsewhere", Kind::Pooled)).await.unwrap());
    assert!(!engines.metrics().render(&[]).unwrap().contains("elsewhere"), "it never served");
}

/// A load in progress ends at once.
#[tokio::test]
async fn a_load_does_not_delay_the_shutdown() {
    let mut server = Exchange::new().await;
    let mut admin = server.admin();
    let request = LoadModelRequest { path: Some("slow".into()), name: None };
    let load = tokio::spawn(async move { admin.load_model(with_token(request, TOKEN)).await });
    eventually("the model is being loaded", || server.fakes.is_loading.load(SeqCst)).await;
    server.running.shut_down();
    let status = load.await.unwrap().unwrap_err();
    assert_refused(&status, Code::Unavailable, "DRAINING");
    server.running.ended().await;
    assert!(!server.fakes.released.load(SeqCst), "the model is still being loaded");
    server.fakes.released.store(true, SeqCst);
}

#[tokio::test]
async fn a_failed_load_changes_nothing() {
    let server = Exchange::with_at_most(2).await;
    let before = server.text("first", 1).await.unwrap();
    let refused = [
        (Some("broken"), None, Code::FailedPrecondition, "CHECKPOINT"),
        (Some("broken"), Some("first"), Code::FailedPrecondition, "CHECKPOINT"),
        (Some("nothing"), None, Code::FailedPrecondition, "FILE"),
        (Some("../models"), None, Code::InvalidArgument, "BAD_OPTION"),
        (Some("/etc"), None, Code::InvalidArgument, "BAD_OPTION"),
        (Some("second"), Some("a/b/c"), Code::InvalidArgument, "BAD_OPTION"),
        (Some("huge"), None, Code::ResourceExhausted, "NO_MEMORY"),
        (Some("panics"), None, Code::Internal, "INTERNAL"),
        (None, Some("second"), Code::NotFound, "UNKNOWN_MODEL"),
    ];
    for (path, name, code, why) in refused {
        let status = server.load(path, name).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (code, why), "{path:?} {name:?}: {status:?}");
    }
    server.load(Some("second"), None).await.unwrap();
    let status = server.load(None, Some("first")).await.unwrap_err();
    assert_refused(&status, Code::ResourceExhausted, "TOO_MANY_MODELS");
    assert_eq!(details(&status).error_info().unwrap().metadata["limit"], "2");
    let states = [("first".into(), 1, State::Serving), ("second".into(), 2, State::Serving)];
    assert_eq!(server.states().await, states);
    assert_eq!(server.text("first", 1).await.unwrap(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_lose_nothing() {
    const CLIENTS: u64 = 8;
    const RELOADS: u64 = 5;
    let server = Exchange::new().await;
    // Collects the texts of all generations, per seed.
    let mut texts_by_seed: Vec<BTreeSet<String>> = vec![BTreeSet::new(); CLIENTS as usize];
    let clients: Vec<_> = (0..CLIENTS)
        .map(|seed| {
            let client = server.generation();
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let task = tokio::spawn(async move {
                let mut texts = Vec::new();
                while stopped.is_empty() && !stopped.is_terminated() {
                    texts.push(text(client.clone(), "first", seed).await.unwrap());
                }
                texts
            });
            (stop, task)
        })
        .collect();
    for reload in 0..=RELOADS {
        if reload > 0 {
            let loaded = server.load(None, Some("first")).await.unwrap();
            assert_eq!((loaded.generation.unwrap().number, loaded.draining), (reload + 1, Some(reload)));
        }
        for seed in 0..CLIENTS {
            texts_by_seed[seed as usize].insert(server.text("first", seed).await.unwrap());
        }
    }
    let mut seen = 0;
    for (seed, (stop, task)) in clients.into_iter().enumerate() {
        let _ = stop.send(());
        for text in task.await.unwrap() {
            assert!(texts_by_seed[seed].contains(&text), "text of no generation: {text:?}");
            seen += 1;
        }
    }
    assert!(seen > 0 && texts_by_seed.iter().all(|texts| texts.len() == RELOADS as usize + 1), "{texts_by_seed:?}");
    server.drained().await;
    assert_eq!(server.states().await, [("first".into(), RELOADS + 1, State::Serving)]);
    for reload in 0..RELOADS as usize {
        let fake = server.fake(reload);
        eventually("old engines are dropped", || Arc::strong_count(&fake) == 2).await;
    }
}

/// A server with an admin port and one model named `fake`.
pub(super) struct Watched {
    pub(super) fake: Arc<Fake>,
    pub(super) engines: Engines,
    port: SocketAddr,
    running: Running,
}

impl Watched {
    pub(super) async fn new(hang: Duration) -> Self {
        let fake = Fake::new("fake", Kind::Pooled);
        let engines = Engines::default();
        let model = Arc::clone(&fake) as Arc<dyn Model>;
        let into = engines.clone();
        let limits = Limits { cache_bytes: 1 << 20, ..Limits::default() };
        let load = move || into.add(into.launch(model, limits, None).unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap();
        let monitor = Monitor::new(engines.clone(), hang);
        tokio::spawn(serve_admin_port(listener, monitor.clone(), Arc::default()));
        assert_eq!(get(port, "/health/live", &[]).await.0, 200);
        let (status, why) = get(port, "/health/ready", &[]).await;
        assert_eq!((status, why.as_str()), (503, "models are being loaded\n"));
        tokio::task::spawn_blocking(load).await.unwrap();
        let running = Running::offering(
            ServerParts::from(monitor),
            // Tests cancel many calls at once; a busy machine may see them all before the server accepts one.
            TransportConfig { pending_resets: 1000, ..TransportConfig::default() },
        )
        .await;
        Self { fake, engines, port, running }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        get(self.port, path, &[]).await
    }

    /// Returns the value of a series, given its name and labels as printed.
    async fn value(&self, series: &str) -> f64 {
        self.find(series).await.unwrap_or_else(|| panic!("no {series}"))
    }

    async fn find(&self, series: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics").await;
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// Waits until a series has `value`: some metrics are updated after the client receives the end.
    pub(super) async fn until(&self, series: &str, value: f64) {
        eventually_async(&format!("{series} is {value}"), async || self.find(series).await == Some(value)).await;
    }

    async fn of_model(&self, name: &str) -> f64 {
        self.value(&format!("weir_{name}{{model_name=\"fake\"}}")).await
    }

    async fn health(&self, service: &str) -> ServingStatus {
        let mut client = HealthClient::new(self.running.channel.clone());
        client.check(HealthCheckRequest { service: service.into() }).await.unwrap().into_inner().status()
    }

    async fn until_health(&self, service: &str, status: ServingStatus) {
        let reported = async || self.health(service).await == status;
        eventually_async(&format!("{service:?} is {status:?}"), reported).await;
    }
}

impl Deref for Watched {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.fake.gate.release();
    }
}

/// Sends an HTTP request, and returns status and body.
async fn get(port: SocketAddr, path: &str, headers: &[&str]) -> (u16, String) {
    let reply = exchange(port, "GET", path, headers, "").await;
    (reply.0, reply.body().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_counted_and_the_warm_up_is_not() {
    let server = Watched::new(Duration::from_secs(60)).await;
    assert!(server.fake.steps() > 0, "the model was not warmed up");
    for counter in ["prompt_tokens_total", "generation_tokens_total"] {
        assert_eq!(server.of_model(counter).await, 0.0, "{counter}");
    }
    assert_eq!(server.find("weir_rows_per_step_count{model_name=\"fake\"}").await, None);
    // The counts cover the boundaries before the last character, and all boundaries. The prompt closes no segment, so
    // it is not cached.
    let mut before_last = 0;
    let mut all = 0;
    for seed in 0..3 {
        let mut request = crate::wire::seeded("abcd", seed);
        request.stopping = long("", 40).stopping;
        let answer = server.answer(request).await.unwrap();
        let text = answer.text();
        assert_eq!(text.chars().count(), 40);
        before_last += text.chars().take(39).filter(|c| *c == ' ').count();
        all += text.chars().filter(|c| *c == ' ').count();
    }
    let status = server.generation().generate(prompt("ab?")).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let status = server.answer(prompt("ab!")).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    server.until("weir_request_failure_total{model_name=\"fake\",code=\"INTERNAL\"}", 1.0).await;

    let model = "model_name=\"fake\"";
    assert_eq!(server.of_model("resumed_requests_total").await, 0.0);
    assert_eq!(server.of_model("prompt_tokens_total").await, 12.0);
    assert_eq!(server.of_model("generation_tokens_total").await, 120.0);
    assert_eq!(server.of_model("time_to_first_token_seconds_count").await, 3.0);
    let after = async |after: &str| {
        server.value(&format!("weir_inter_token_latency_seconds_count{{{model},after=\"{after}\"}}")).await
    };
    assert_eq!((after("char").await, after("boundary").await), ((117 - before_last) as f64, before_last as f64));
    assert_eq!(server.of_model("middle_steps_run_total").await, all as f64);
    assert_eq!(server.of_model("middle_steps_skipped_total").await, (132 - all) as f64);
    let factor = server.of_model("shortening_factor").await;
    assert!((factor - 132.0 / all as f64).abs() < 1e-9, "{factor}");
    assert!((server.of_model("boundary_rate").await - 1.0 / factor).abs() < 1e-9);
    let labelled = async |name: &str, label: &str| server.value(&format!("weir_{name}{{{model},{label}}}")).await;
    assert_eq!(labelled("request_success_total", "finished_reason=\"max_chars\"").await, 3.0);
    for (code, count) in [("OK", 3.0), ("INVALID_ARGUMENT", 1.0), ("INTERNAL", 1.0)] {
        let labels = format!("service=\"weir.v1.Generation\",method=\"Generate\",code=\"{code}\"");
        assert_eq!(server.value(&format!("weir_grpc_calls_total{{{labels}}}")).await, count, "{code}");
    }
    assert_eq!(labelled("segment_cache_lookups_total", "result=\"hit\"").await, 0.0);
    for gauge in ["num_requests_running", "num_requests_waiting", "kv_cache_used_bytes", "kv_cache_usage_ratio"] {
        assert_eq!(server.of_model(gauge).await, 0.0, "{gauge}");
    }
    assert_eq!(server.of_model("model_generations").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_characters_are_counted() {
    let server = Watched::new(Duration::from_secs(60)).await;
    for _ in 0..2 {
        server.answer(long("ab cd ee", 3)).await.unwrap();
    }
    let hits = server.value("weir_segment_cache_lookups_total{model_name=\"fake\",result=\"hit\"}").await;
    assert_eq!(hits, 1.0);
    // The last character of a prompt is always fed.
    server.until("weir_prefix_cache_queries_total{model_name=\"fake\"}", 14.0).await;
    let spared = server.of_model("prefix_cache_hits_total").await;
    assert!(spared > 0.0, "nothing was cached");
    assert_eq!(server.of_model("prompt_tokens_total").await, 16.0 - spared);
    assert!(server.of_model("segment_cache_hit_bytes_total").await > 0.0);
    assert!(server.of_model("segment_cache_entries").await > 0.0);
    assert!(server.of_model("segment_cache_bytes").await > 0.0);
    server.until("weir_kv_cache_used_bytes{model_name=\"fake\"}", 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_and_cancelled_requests_are_counted() {
    let server = Watched::new(Duration::from_secs(60)).await;
    server.fake.gate.slow(Duration::from_millis(2));
    let stream = server.generation().generate(long("a", 1900)).await.unwrap();
    eventually("the request runs", || server.engines.all()[0].load().running == 1).await;
    assert_eq!(server.of_model("num_requests_running").await, 1.0);
    drop(stream);
    eventually("the request has ended", || server.engines.all()[0].load().running == 0).await;
    assert_eq!(server.of_model("num_requests_running").await, 0.0);
    server.until("weir_request_failure_total{model_name=\"fake\",code=\"CANCELLED\"}", 1.0).await;
    let labels = "service=\"weir.v1.Generation\",method=\"Generate\",code=\"CANCELLED\"";
    server.until(&format!("weir_grpc_calls_total{{{labels}}}"), 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_hangs_is_not_alive() {
    let server = Watched::new(Duration::from_millis(200)).await;
    assert_eq!((server.get("/health/live").await.0, server.get("/health/ready").await.0), (200, 200));
    assert_eq!(server.health("").await, ServingStatus::Serving);
    server.fake.gate.hold(0);
    let stream = server.generation().generate(long("a", 5)).await.unwrap();
    server.until_health("", ServingStatus::NotServing).await;
    server.until_health("weir.v1.Generation", ServingStatus::NotServing).await;
    let (status, why) = server.get("/health/live").await;
    assert_eq!(status, 503);
    assert!(why.contains("\"fake\"") && why.contains("200ms"), "{why}");
    server.fake.gate.release();
    read(stream.into_inner()).await.unwrap();
    server.until_health("", ServingStatus::Serving).await;
    server.until_health("weir.v1.Generation", ServingStatus::Serving).await;
    assert_eq!(server.get("/health/live").await, (200, "ok\n".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_server_is_alive_and_not_ready() {
    let mut server = Watched::new(Duration::from_secs(60)).await;
    server.fake.gate.hold(0);
    let _stream = server.generation().generate(long("a", 5)).await.unwrap();
    server.running.shut_down();
    server.until_health("weir.v1.Generation", ServingStatus::NotServing).await;
    let (status, why) = server.get("/health/ready").await;
    assert_eq!((status, why.as_str()), (503, "the server is shutting down\n"));
    assert_eq!(server.get("/health/live").await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_serves_both_metric_formats() {
    let server = Watched::new(Duration::from_secs(60)).await;
    let (_, old) = server.get("/metrics").await;
    assert!(old.contains("# TYPE weir_prompt_tokens_total counter\n") && !old.contains("# EOF"), "{old}");
    let accept = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let (_, open) = get(server.port, "/metrics", &[accept]).await;
    assert!(open.contains("# TYPE weir_prompt_tokens counter\n") && open.ends_with("# EOF\n"), "{open}");
}

/// Requests that their connection refuses reach no service, and are counted all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_reach_no_service_are_counted() {
    let server = Watched::new(Duration::from_secs(60)).await;
    for path in ["/v1/completions", "/weir.v1.Generation/Generate"] {
        let request = http::Request::builder().method("GET").uri(format!("http://weir{path}")).version(Version::HTTP_2);
        let mut sender = connect(server.address, 1 << 16).await.ready().await.unwrap();
        let (response, _) = sender.send_request(request.body(()).unwrap(), true).unwrap();
        assert_eq!(response.await.unwrap().status(), 415);
    }
    let labels = "service=\"other\",method=\"other\",code=\"INVALID_ARGUMENT\"";
    server.until(&format!("weir_grpc_calls_total{{{labels}}}"), 2.0).await;
    let names: Vec<_> = (0..101).map(|index| format!("x-{index}")).collect();
    let headers: Vec<_> = names.iter().map(|name| (name.as_str(), "a")).collect();
    let sender = connect(server.address, 1 << 16).await;
    called(sender, "/weir.v1.Generation/Generate", Vec::new(), &headers).await.unwrap();
    let labels = "service=\"weir.v1.Generation\",method=\"Generate\",code=\"INVALID_ARGUMENT\"";
    server.until(&format!("weir_grpc_calls_total{{{labels}}}"), 1.0).await;
    // As many headers, but no content type of gRPC.
    let mut request = http::Request::get("http://weir/weir.v1.Generation/Generate").version(Version::HTTP_2);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let mut sender = connect(server.address, 1 << 16).await.ready().await.unwrap();
    sender.send_request(request.body(()).unwrap(), true).unwrap().0.await.unwrap();
    let labels = "service=\"other\",method=\"other\",code=\"INVALID_ARGUMENT\"";
    server.until(&format!("weir_grpc_calls_total{{{labels}}}"), 3.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn editing_sessions_are_counted() {
    let server = Watched::new(Duration::from_secs(60)).await;
    let mut session = Session::open(&server, "ab ").await;
    session.ask(many_splices(1, 0)).await;
    session.completed(complete(1, 3, 1)).await;
    assert_eq!(server.of_model("edit_sessions").await, 1.0);
    for (event, count) in [("splice", 1.0), ("completion", 1.0), ("score", 0.0), ("stale", 0.0)] {
        let series = format!("weir_edit_events_total{{model_name=\"fake\",event=\"{event}\"}}");
        assert_eq!(server.value(&series).await, count, "{event}");
    }
    let Session { requests, mut responses } = session;
    drop(requests);
    assert!(responses.message().await.unwrap().is_none());
    server.until("weir_edit_sessions{model_name=\"fake\"}", 0.0).await;
    let labels = "service=\"weir.v1.Editing\",method=\"Edit\",code=\"OK\"";
    server.until(&format!("weir_grpc_calls_total{{{labels}}}"), 1.0).await;
}

/// A year that has passed, and one that has not.
const PAST: i32 = 2025;

const FUTURE: i32 = 2500;

fn keys(lines: &str) -> Credentials {
    Credentials { keys: Some(Keys::parse(lines).unwrap()), ..Credentials::default() }
}

/// Returns settings that use these credentials.
fn using(live: &LiveCredentials) -> TransportConfig {
    let access = Access { credentials: live.clone(), ..Access::default() };
    TransportConfig { access, ..TransportConfig::default() }
}

#[tokio::test]
async fn a_removed_key_works_only_where_it_was_used() {
    let live: LiveCredentials = keys("alice:a-key-that-alice-has").into();
    let server = Server::within(using(&live)).await;
    let ask = async |key: &str| {
        let request = bearing(v1::ListModelsRequest {}, &[key]);
        server.models().list_models(request).await.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    assert_eq!([ask(ALICE).await, ask(BOB).await], [Code::Ok, Code::Unauthenticated]);
    server.model.gate.hold(0);
    let stream = server.generation().generate(bearing(long("a", 9), &[ALICE])).await.unwrap().into_inner();
    let other = plain(server.address).connect().await.unwrap();
    let elsewhere = async |key: &str| {
        let request = bearing(v1::ListModelsRequest {}, &[key]);
        ModelsClient::new(other.clone()).list_models(request).await.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    live.replace(keys("bob:another-key-that-bob-has"));
    assert_eq!([ask(ALICE).await, ask(BOB).await], [Code::Ok, Code::Ok]);
    assert_eq!([elsewhere(ALICE).await, elsewhere(BOB).await], [Code::Unauthenticated, Code::Ok]);
    server.model.gate.release();
    assert_eq!(read(stream).await.unwrap().text().chars().count(), 9);
    server.at_rest().await;
}

#[tokio::test]
async fn reloaded_keys_count_over_http_too() {
    let live: LiveCredentials = keys("alice:a-key-that-alice-has").into();
    let server = Server::within(using(&live)).await;
    let post = async |key: &str| {
        let header = format!("authorization: {key}");
        crate::wire::http::exchange(server.port, "POST", "/v1/completions", &[&header], "{\"prompt\":\"a\"}").await.0
    };
    assert_eq!([post(ALICE).await, post(BOB).await], [200, 401]);
    live.replace(keys("bob:another-key-that-bob-has"));
    assert_eq!([post(ALICE).await, post(BOB).await], [401, 200]);
}

#[tokio::test]
async fn a_replaced_certificate_serves_new_connections() {
    let before = Certificates::new();
    let after = Certificates::new();
    let live = LiveCredentials::from(credentials(&before.files(false)));
    let reach = |address| before.reach(address, None);
    let server = Server::reached_by(using(&live), reach).await;
    let address = server.address;
    tried(after.reach(address, None)).await.expect_err("the certificate is not replaced yet");
    server.model.gate.hold(0);
    let stream = server.generate(long("a", 9)).await.unwrap();
    live.replace(credentials(&after.files(false)));
    tried(after.reach(address, None)).await.unwrap();
    tried(before.reach(address, None)).await.expect_err("the certificate is replaced");
    server.model.gate.release();
    // The connection from before the reload keeps its stream and takes further calls.
    assert_eq!(read(stream).await.unwrap().text().chars().count(), 9);
    server.answer(long("a", 3)).await.unwrap();
    server.at_rest().await;
}

/// The client resumes no session from before the reload, in which the server would not check its certificate again.
#[tokio::test]
async fn a_certificate_revoked_by_a_reload_is_refused() {
    let certificates = Certificates::new();
    let stranger = Certificates::new();
    let reload = |list: &str| {
        let mut files: CredentialFiles = certificates.files(true);
        files.tls.client_crl = Some(certificates.write("revoked.pem", list));
        credentials(&files)
    };
    let live = LiveCredentials::from(reload(&certificates.revocation_list(&[], FUTURE)));
    let reach = |address| certificates.reach(address, Some(&certificates));
    let server = Server::reached_by(using(&live), reach).await;
    let endpoint = reach(server.address);
    tried(endpoint.clone()).await.unwrap();
    live.replace(reload(&certificates.revocation_list(&[CLIENT_SERIAL], FUTURE)));
    tried(endpoint.clone()).await.expect_err("the certificate is revoked");
    server.answer(long("a", 3)).await.expect("an established connection stays");
    live.replace(reload(&certificates.revocation_list(&[CLIENT_SERIAL + 1], FUTURE)));
    tried(endpoint.clone()).await.expect("another certificate is revoked");
    live.replace(reload(&certificates.revocation_list(&[], PAST)));
    tried(endpoint.clone()).await.expect_err("the list has expired");
    live.replace(reload(&stranger.revocation_list(&[], FUTURE)));
    tried(endpoint.clone()).await.expect_err("no list of the certificate's authority");
    let both = certificates.revocation_list(&[], FUTURE) + &stranger.revocation_list(&[], FUTURE);
    live.replace(reload(&both));
    tried(endpoint).await.expect("one list for each authority");
}
