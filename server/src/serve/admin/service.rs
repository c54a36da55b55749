//! Methods of the `Admin` service, and the check of its token.

use super::{AdminConfig, load_checks};
use crate::{
    config::AdminToken,
    engine::Phase,
    error::{Error, Result},
    serve::{
        call::{Call, Reply},
        middleware::{auth::bearer, compression::compressing},
        registry::{
            drain::{Gate, draining_error},
            engines::{Engines, Lease},
        },
        status::status,
    },
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{
    Request, Response, Status,
    service::{Interceptor, interceptor::InterceptedService},
};
use weir_proto::v1::{
    self,
    admin_server::{self, AdminServer},
    model_generation::State,
};

/// Rejects calls without the token. It runs before the service, so that no other part of such a call is read.
#[derive(Clone)]
pub(crate) struct TokenGuard(AdminToken);

/// The service behind the token check.
#[derive(Clone)]
pub(crate) struct AdminService {
    engines: Engines,
    gate: Gate,
    config: Arc<AdminConfig>,
    /// Lets one model load at a time.
    load_permits: Arc<Semaphore>,
}

/// A request to load a model, with the permit that it holds until it is done.
struct LoadTask {
    service: AdminService,
    request: v1::LoadModelRequest,
    _load_permit: OwnedSemaphorePermit,
}

/// Builds the service behind its token check, for messages of at most `message_bytes` bytes.
pub(crate) fn guarded(
    config: AdminConfig,
    engines: Engines,
    gate: Gate,
    message_bytes: usize,
) -> InterceptedService<AdminServer<AdminService>, TokenGuard> {
    let guard = TokenGuard(config.token.clone());
    let service = AdminService { engines, gate, config: Arc::new(config), load_permits: Arc::new(Semaphore::new(1)) };
    InterceptedService::new(compressing!(AdminServer::new(service), message_bytes), guard)
}

impl Interceptor for TokenGuard {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let call = Call::of(&request);
        let header = request.metadata().get("authorization").map(|value| value.as_bytes());
        let error = match header.and_then(|value| bearer(value)) {
            None => {
                Error::Unauthenticated { why: "send the header `authorization: Bearer TOKEN` with the admin token" }
            }
            Some(token) if self.0.matches(token) => return Ok(request),
            Some(_) => Error::PermissionDenied { what: "the admin token" },
        };
        Err(status(&error, &call.id))
    }
}

impl AdminService {
    /// Loads a model. Gives up once the server shuts down, because a model may take minutes to load.
    async fn load(&self, request: v1::LoadModelRequest) -> Result<v1::LoadModelResponse> {
        let _permit = self.gate.enter()?;
        tokio::select! {
            biased;
            loaded = self.load_when_permitted(request) => loaded,
            () = self.gate.closing() => Err(draining_error()),
        }
    }

    async fn load_when_permitted(&self, request: v1::LoadModelRequest) -> Result<v1::LoadModelResponse> {
        let load_permit = Arc::clone(&self.load_permits).acquire_owned().await;
        let load_permit =
            load_permit.map_err(|_| Error::Internal("the semaphore of model loading is closed".into()))?;
        let task = LoadTask { service: self.clone(), request, _load_permit: load_permit };
        let loaded = tokio::task::spawn_blocking(move || task.run()).await;
        loaded.unwrap_or_else(|_| Err(Error::Internal("loading the model panicked; the log has the location".into())))
    }

    fn unload(&self, request: &v1::UnloadModelRequest) -> Result<v1::UnloadModelResponse> {
        let _permit = self.gate.enter()?;
        Ok(v1::UnloadModelResponse { generation: self.engines.remove(&request.name)? })
    }

    fn list(&self) -> v1::ListGenerationsResponse {
        let serving = self.engines.all();
        let serving = serving.iter().map(|engine| match engine.phase() {
            Phase::Broken => generation_message(engine, State::Broken),
            _ => generation_message(engine, State::Serving),
        });
        let draining = self.engines.draining();
        let draining = draining.iter().map(|engine| generation_message(engine, State::Draining));
        v1::ListGenerationsResponse { generations: serving.chain(draining).collect() }
    }
}

impl LoadTask {
    /// Loads the model and puts it into service. A failure changes nothing. Blocks.
    fn run(self) -> Result<v1::LoadModelResponse> {
        let AdminConfig { loader, max_generations, limits, .. } = &*self.service.config;
        let engines = &self.service.engines;
        let (folder, name) = self.folder_and_name()?;
        if engines.all().len() + engines.draining().len() >= *max_generations {
            return Err(Error::TooManyModels { limit: *max_generations });
        }
        load_checks::check_memory(loader.memory_needed(&folder)?, engines.reserved_bytes())?;
        tracing::info!(model = name, folder = %folder.display(), "loading");
        let model = loader.load(&folder, &name)?;
        // Without this permit, a shutdown could miss an engine that is launched during it.
        let _permit = self.service.gate.enter()?;
        let launched = engines.launch(model, *limits, Some(folder))?;
        let (lease, before) = engines.replace(launched);
        tracing::info!(model = name, generation = lease.generation(), "in service");
        Ok(v1::LoadModelResponse { generation: Some(generation_message(&lease, State::Serving)), draining: before })
    }

    /// Returns the folder to load from, and the name to serve under.
    fn folder_and_name(&self) -> Result<(PathBuf, String)> {
        let v1::LoadModelRequest { path, name } = &self.request;
        let folder = match path {
            Some(path) => load_checks::resolve_folder(self.service.config.models_folder.as_deref(), path)?,
            None => {
                let engine = self.service.engines.find("name", name.as_deref())?;
                let bound = "a path, as that model was not loaded from a folder";
                let missing = || Error::bad_option("path", "absent", bound);
                let folder = engine.folder().map(Path::to_path_buf).ok_or_else(missing)?;
                return Ok((folder, engine.card().name.clone()));
            }
        };
        let name = load_checks::model_name(name.as_deref(), &folder)?;
        Ok((folder, name))
    }
}

fn generation_message(engine: &Lease, state: State) -> v1::ModelGeneration {
    let card = engine.card();
    let load = engine.load();
    let count = |count| u32::try_from(count).unwrap_or(u32::MAX);
    v1::ModelGeneration {
        name: card.name.clone(),
        number: engine.generation(),
        state: state.into(),
        path: engine.folder().map(|folder| folder.display().to_string()).unwrap_or_default(),
        sha256: card.sha256.clone(),
        running: count(load.running),
        waiting: count(load.queued),
        kv_bytes: load.bytes as u64,
    }
}

#[tonic::async_trait]
impl admin_server::Admin for AdminService {
    async fn load_model(&self, request: Request<v1::LoadModelRequest>) -> Reply<v1::LoadModelResponse> {
        let call = Call::of(&request);
        let loaded = self.load(request.into_inner()).await;
        loaded.map(Response::new).map_err(|error| rejected(&error, &call))
    }

    async fn unload_model(&self, request: Request<v1::UnloadModelRequest>) -> Reply<v1::UnloadModelResponse> {
        let call = Call::of(&request);
        self.unload(request.get_ref()).map(Response::new).map_err(|error| rejected(&error, &call))
    }

    async fn list_generations(&self, _: Request<v1::ListGenerationsRequest>) -> Reply<v1::ListGenerationsResponse> {
        Ok(Response::new(self.list()))
    }

    async fn reset_report(&self, request: Request<v1::ResetReportRequest>) -> Reply<v1::ResetReportResponse> {
        let call = Call::of(&request);
        let models = self.engines.reset_reports(request.get_ref().model.as_deref());
        let models = models.map_err(|error| rejected(&error, &call))?;
        Ok(Response::new(v1::ResetReportResponse { models }))
    }
}

fn rejected(error: &Error, call: &Call) -> Status {
    tracing::warn!(%error, "an admin request failed");
    status(error, &call.id)
}
