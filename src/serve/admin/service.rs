//! The calls.

use super::{Admin, place};
use crate::{
    config::AdminToken,
    engine::Phase,
    error::{Error, Result},
    serve::{
        call::Call,
        middleware::{auth::bearer, compression::compressing},
        registry::{
            drain::{Gate, Pass},
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

/// Lets only calls through that have the token. It stands before the service, so that nothing else of a call is looked at.
#[derive(Clone)]
pub(in crate::serve) struct Guard(AdminToken);

/// The service.
#[derive(Clone)]
pub(in crate::serve) struct Orders {
    engines: Engines,
    gate: Gate,
    admin: Arc<Admin>,
    /// One model is loaded at a time.
    turn: Arc<Semaphore>,
}

/// One order to load, and what it holds until it is done.
struct Order {
    orders: Orders,
    request: v1::LoadModelRequest,
    _turn: OwnedSemaphorePermit,
    _pass: Pass,
}

/// The service behind its guard, for messages of so many bytes.
pub(in crate::serve) fn guarded(
    admin: Admin,
    engines: Engines,
    gate: Gate,
    message_bytes: usize,
) -> InterceptedService<AdminServer<Orders>, Guard> {
    let guard = Guard(admin.token.clone());
    let orders = Orders { engines, gate, admin: Arc::new(admin), turn: Arc::new(Semaphore::new(1)) };
    InterceptedService::new(compressing!(AdminServer::new(orders), message_bytes), guard)
}

impl Interceptor for Guard {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let call = Call::of(&request);
        let given = request.metadata().get("authorization").map(|value| value.as_bytes());
        let refusal = match given.and_then(|value| bearer(value)) {
            None => {
                Error::Unauthenticated { why: "send the header `authorization: Bearer TOKEN` with the admin token" }
            }
            Some(token) if self.0.matches(token) => return Ok(request),
            Some(_) => Error::PermissionDenied { what: "the admin token" },
        };
        tracing::warn!(id = &*call.id, error = %refusal, "a call to the admin service was refused");
        Err(status(&refusal, &call.id))
    }
}

impl Orders {
    async fn load(&self, request: v1::LoadModelRequest) -> Result<v1::LoadModelResponse> {
        let pass = self.gate.enter()?;
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        let turn = turn.map_err(|_| Error::Internal("nobody's turn will come".into()))?;
        let order = Order { orders: self.clone(), request, _turn: turn, _pass: pass };
        let loaded = tokio::task::spawn_blocking(move || order.carry_out()).await;
        loaded.unwrap_or_else(|_| Err(Error::Internal("a panic while loading a model; the log tells where".into())))
    }

    fn unload(&self, request: &v1::UnloadModelRequest) -> Result<v1::UnloadModelResponse> {
        let _pass = self.gate.enter()?;
        Ok(v1::UnloadModelResponse { generation: self.engines.remove(&request.name)? })
    }

    fn list(&self) -> v1::ListGenerationsResponse {
        let serving = self.engines.all();
        let serving = serving.iter().map(|engine| match engine.phase() {
            Phase::Broken => described(engine, State::Broken),
            _ => described(engine, State::Serving),
        });
        let leaving = self.engines.leaving();
        let leaving = leaving.iter().map(|engine| described(engine, State::Draining));
        v1::ListGenerationsResponse { generations: serving.chain(leaving).collect() }
    }
}

impl Order {
    /// Loads the model and lets it serve; if anything goes wrong before it does, nothing has changed. Blocks.
    fn carry_out(self) -> Result<v1::LoadModelResponse> {
        let Admin { loader, most, limits, .. } = &*self.orders.admin;
        let engines = &self.orders.engines;
        let (folder, name) = self.place()?;
        if engines.all().len() + engines.leaving().len() >= *most {
            return Err(Error::TooManyModels { limit: *most });
        }
        place::room(loader.needs(&folder)?, engines.promised())?;
        tracing::info!(model = name, folder = %folder.display(), "loading");
        let model = loader.load(&folder, &name)?;
        let fresh = engines.launch(model, *limits, Some(folder))?;
        let (lease, before) = engines.replace(fresh);
        tracing::info!(model = name, generation = lease.generation(), "serves");
        Ok(v1::LoadModelResponse { generation: Some(described(&lease, State::Serving)), draining: before })
    }

    /// From where to load, and under which name.
    fn place(&self) -> Result<(PathBuf, String)> {
        let v1::LoadModelRequest { path, name } = &self.request;
        let folder = match path {
            Some(path) => place::folder(self.orders.admin.folder.as_deref(), path)?,
            None => {
                let engine = self.orders.engines.find("name", name.as_deref())?;
                let bound = "given: that model was not loaded from a folder".into();
                let nowhere = || Error::BadOption { field: "path", found: "absent".into(), bound };
                let folder = engine.folder().map(Path::to_path_buf).ok_or_else(nowhere)?;
                return Ok((folder, engine.card().name.clone()));
            }
        };
        let name = place::name(name.as_deref(), &folder)?;
        Ok((folder, name))
    }
}

fn described(engine: &Lease, state: State) -> v1::ModelGeneration {
    let (card, load) = (engine.card(), engine.load());
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
impl admin_server::Admin for Orders {
    async fn load_model(
        &self,
        request: Request<v1::LoadModelRequest>,
    ) -> Result<Response<v1::LoadModelResponse>, Status> {
        let call = Call::of(&request);
        let loaded = self.load(request.into_inner()).await;
        loaded.map(Response::new).map_err(|error| refused(&error, &call))
    }

    async fn unload_model(
        &self,
        request: Request<v1::UnloadModelRequest>,
    ) -> Result<Response<v1::UnloadModelResponse>, Status> {
        let call = Call::of(&request);
        self.unload(request.get_ref()).map(Response::new).map_err(|error| refused(&error, &call))
    }

    async fn list_generations(
        &self,
        _: Request<v1::ListGenerationsRequest>,
    ) -> Result<Response<v1::ListGenerationsResponse>, Status> {
        Ok(Response::new(self.list()))
    }

    async fn reset_report(
        &self,
        request: Request<v1::ResetReportRequest>,
    ) -> Result<Response<v1::ResetReportResponse>, Status> {
        let call = Call::of(&request);
        let models = self.engines.reset_reports(request.get_ref().model.as_deref());
        let models = models.map_err(|error| refused(&error, &call))?;
        Ok(Response::new(v1::ResetReportResponse { models }))
    }
}

fn refused(error: &Error, call: &Call) -> Status {
    tracing::warn!(%error, "not done");
    status(error, &call.id)
}
