//! Loading and unloading models while the server runs.

mod reloads;

use super::{
    Running, details, eventually,
    fake_model::{Fake, Kind},
    long, read, reason, seeded,
};
use std::{
    fs,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};
use tempfile::TempDir;
use tokio_stream::StreamExt;
use tonic::{Code, Request, Status, transport::Channel};
use weir::{
    config::{AdminToken, TransportConfig},
    decode::contract::Model,
    engine::Limits,
    error::{Error, Result},
    serve::{AdminConfig, Engines, ModelLoader, Monitor, ServerParts},
};
use weir_proto::v1::{
    self, ListGenerationsRequest, LoadModelRequest, LoadModelResponse, ModelGeneration, UnloadModelRequest,
    admin_client::AdminClient, document_closed::Reason, edit_request::Action, edit_response::Event,
    editing_client::EditingClient, generation_client::GenerationClient, model_generation::State,
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
        for _ in 0..10_000 {
            if self.states().await.iter().all(|(_, _, state)| *state == State::Serving) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("it drains for ever");
    }

    fn generation(&self) -> GenerationClient<Channel> {
        GenerationClient::new(self.running.channel.clone())
    }

    async fn text(&self, model: &str, seed: u64) -> Result<String, Status> {
        text(self.generation(), model, seed).await
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.fakes.released.store(true, SeqCst);
        self.fakes.models.lock().unwrap().iter().for_each(|fake| fake.release());
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_is_loaded_while_another_streams() {
    let server = Exchange::new().await;
    server.fake(0).slow(STEP);
    let mut stream = server.generation().generate(of("first", long("a", 300))).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();
    assert_eq!(server.text("other", 1).await.unwrap_err().code(), Code::NotFound);
    let loaded = server.load(Some("second"), Some("other")).await.unwrap();
    let generation = loaded.generation.unwrap();
    assert_eq!((generation.name.as_str(), generation.number, loaded.draining), ("other", 2, None));
    assert_eq!(generation.path, server.models.path().canonicalize().unwrap().join("second").to_str().unwrap());
    assert!(!server.text("other", 1).await.unwrap().is_empty());
    let mut last = None;
    while let Some(message) = stream.next().await {
        last = message.unwrap().event;
    }
    let Some(v1::generate_response::Event::Finished(finished)) = last else { panic!("cut off: {last:?}") };
    assert_eq!(finished.usage.unwrap().generated_chars, 300);
    let states = [("first".into(), 1, State::Serving), ("other".into(), 2, State::Serving)];
    assert_eq!(server.states().await, states);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unloaded_model_serves_its_last_request() {
    let server = Exchange::new().await;
    server.load(Some("second"), None).await.unwrap();
    let fake = server.fake(1);
    fake.slow(STEP);
    let stream = server.generation().generate(of("second", long("a", 200))).await.unwrap().into_inner();
    fake.hold();
    assert_eq!(server.unload("second").await.unwrap(), 2);
    let status = server.text("second", 1).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::NotFound, "UNKNOWN_MODEL"));
    assert_eq!(server.unload("second").await.unwrap_err().code(), Code::NotFound);
    let draining = server.list().await.pop().unwrap();
    assert_eq!((draining.number, draining.state()), (2, State::Draining));
    assert_eq!(draining.running + draining.waiting, 1);
    fake.release();
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
    fake.slow(STEP);
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
    let (requests, receiver) = tokio::sync::mpsc::channel(1);
    let mut client = EditingClient::new(server.running.channel.clone());
    let call = client.edit(tokio_stream::wrappers::ReceiverStream::new(receiver)).await.unwrap();
    let mut responses = call.into_inner();
    let action = Some(Action::Open(v1::OpenDocument::default()));
    requests.send(v1::EditRequest { action }).await.unwrap();
    let mut next = async || responses.message().await.unwrap().and_then(|response| response.event);
    assert!(matches!(next().await, Some(Event::Applied(_))));
    // another model changes nothing
    server.load(Some("second"), None).await.unwrap();
    server.load(Some("first"), None).await.unwrap();
    let reason = Reason::ModelChanged.into();
    assert_eq!(next().await, Some(Event::Closed(v1::DocumentClosed { reason })));
    assert_eq!(next().await, None);
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

#[tokio::test]
async fn admin_calls_need_the_token() {
    let server = Exchange::new().await;
    let request = || LoadModelRequest { path: Some("second".into()), name: None };
    let status = server.admin().load_model(request()).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unauthenticated, "UNAUTHENTICATED"));
    for token in ["another-token-for-tests", "", &TOKEN[..TOKEN.len() - 1], &format!("{TOKEN}x")] {
        let status = server.admin().load_model(with_token(request(), token)).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (Code::PermissionDenied, "PERMISSION_DENIED"));
        let status = server.admin().unload_model(with_token(UnloadModelRequest { name: "first".into() }, token)).await;
        assert_eq!(status.unwrap_err().code(), Code::PermissionDenied);
        let status = server.admin().list_generations(with_token(ListGenerationsRequest {}, token)).await;
        assert_eq!(status.unwrap_err().code(), Code::PermissionDenied);
    }
    let mut basic = Request::new(request());
    basic.metadata_mut().insert("authorization", format!("Basic {TOKEN}").parse().unwrap());
    assert_eq!(server.admin().load_model(basic).await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(server.states().await, [("first".into(), 1, State::Serving)]);
}

#[tokio::test]
async fn without_a_token_there_is_no_admin_service() {
    let server = super::Server::new().await;
    let mut admin = AdminClient::new(server.channel.clone());
    let status = admin.list_generations(with_token(ListGenerationsRequest {}, TOKEN)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
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
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "DRAINING"));
    (&mut server.running.task).await.unwrap().unwrap();
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
        (Some("second"), Some("a/b"), Code::InvalidArgument, "BAD_OPTION"),
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
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "TOO_MANY_MODELS"));
    assert_eq!(details(&status).error_info().unwrap().metadata["limit"], "2");
    let states = [("first".into(), 1, State::Serving), ("second".into(), 2, State::Serving)];
    assert_eq!(server.states().await, states);
    assert_eq!(server.text("first", 1).await.unwrap(), before);
}
