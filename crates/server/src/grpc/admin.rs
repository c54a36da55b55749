//! The `Admin` service: operators with the token load and unload models while the server runs.

use crate::call::{Call, Reply};
use crate::config::AdminToken;
use crate::grpc::convert::count;
use crate::middleware::auth::bearer;
use crate::middleware::compression::compressing;
use crate::registry::{Engines, Gate, Lease, draining_error};
use crate::status::status;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use sysinfo::System;
use tokio::sync::Semaphore;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status};
use weir_engine::{Limits, Phase};
use weir_kernels::error::{Error, Result, clip};
use weir_models::contract::Model;
use weir_proto::v1;
use weir_proto::v1::admin_server::{self, AdminServer};
use weir_proto::v1::model_generation::State;

/// Loads checkpoints, so that the server does not depend on the model families.
pub trait ModelLoader: Send + Sync {
    /// Returns the maximum bytes of memory for loading and serving this checkpoint. Fails if it is invalid.
    fn memory_needed(&self, folder: &Path) -> Result<usize>;

    /// Loads a checkpoint under a name. Blocks. Fails if the checkpoint is invalid.
    fn load(&self, folder: &Path, name: &str) -> Result<Arc<dyn Model>>;
}

/// Settings of the `Admin` service.
#[derive(Clone)]
pub struct AdminConfig {
    /// The token that every call must carry.
    pub token: AdminToken,
    /// Loads the checkpoints.
    pub loader: Arc<dyn ModelLoader>,
    /// The folder that new checkpoints are loaded from. Without it, only models in service can be loaded again.
    pub models_folder: Option<PathBuf>,
    /// Maximum generations in memory, draining ones included.
    pub max_generations: usize,
    /// Limits of each engine.
    pub limits: Limits,
}

/// Maximum bytes of a name.
const NAME_BYTES: usize = 128;

/// Resolves `path` within the models folder, and follows links. Fails if the server has no models folder, if `path` does
/// not exist, or if it leads out of the folder.
fn resolve_folder(root: Option<&Path>, path: &str) -> Result<PathBuf> {
    let rejected = |bound: &str| Error::bad_option("path", format!("{path:?}"), bound);
    let root = root.ok_or_else(|| rejected("no path (this server has no models folder)"))?;
    let mut components = Path::new(path).components();
    if components.clone().count() == 0 || !components.all(|part| matches!(part, Component::Normal(_))) {
        return Err(rejected("a relative path within the models folder"));
    }
    let folder = canonical(&root.join(path))?;
    if !folder.starts_with(canonical(root)?) {
        return Err(rejected("a path that stays within the models folder after links are followed"));
    }
    Ok(folder)
}

fn canonical(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(Error::io(path))
}

/// What a name that is given to a model must be.
pub const MODEL_NAME: &str =
    "NAME or ORG/NAME of 1 to 128 letters, digits, or any of \"-_.\", the first a letter or digit";

/// Returns true for a name that can be given to a model, as [`MODEL_NAME`] says.
pub fn is_model_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_part = |part: &str| part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(plain);
    name.len() <= NAME_BYTES && name.split('/').count() <= 2 && name.split('/').all(is_part)
}

/// Returns the requested name, or the folder's if none is requested. Fails if no model can have the requested name.
fn model_name(requested: Option<&str>, folder: &Path) -> Result<String> {
    let Some(name) = requested.filter(|name| !name.is_empty()) else {
        return Ok(folder.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned()));
    };
    if !is_model_name(name) {
        return Err(Error::bad_option("name", format!("{:?}", clip(name, NAME_BYTES)), MODEL_NAME));
    }
    Ok(name.to_owned())
}

/// Checks that the system has `needed` bytes available, in addition to `reserved` bytes that running engines may still
/// take. Fails with [`Error::NoMemory`] otherwise.
fn check_memory(needed: usize, reserved: usize) -> Result<()> {
    let mut system = System::new();
    system.refresh_memory();
    // A container's limit may be lower than the machine's memory. Cached files count as used there, but the system frees them when
    // a program needs memory.
    let cgroup = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory.saturating_sub(limits.rss));
    let available = usize::try_from(system.available_memory().min(cgroup)).unwrap_or(usize::MAX);
    let available = available.saturating_sub(reserved);
    if needed > available { Err(Error::NoMemory { needed, available }) } else { Ok(()) }
}

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
        let service = self.clone();
        let loaded = tokio::task::spawn_blocking(move || {
            // Held until the model is loaded, even if the client is gone.
            let _load_permit = load_permit;
            service.load_now(&request)
        });
        let loaded = loaded.await;
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

    /// Loads the model and puts it into service. A failure changes nothing. Blocks.
    fn load_now(&self, request: &v1::LoadModelRequest) -> Result<v1::LoadModelResponse> {
        let AdminConfig { loader, max_generations, limits, .. } = &*self.config;
        let engines = &self.engines;
        let (folder, name) = self.folder_and_name(request)?;
        if engines.all().len() + engines.draining().len() >= *max_generations {
            return Err(Error::TooManyModels { limit: *max_generations });
        }
        check_memory(loader.memory_needed(&folder)?, engines.reserved_bytes())?;
        tracing::info!(model = name, folder = %folder.display(), "loading");
        let model = loader.load(&folder, &name)?;
        // Without this permit, a shutdown could miss an engine that is launched during it.
        let _permit = self.gate.enter()?;
        let launched = engines.launch(model, *limits, Some(folder))?;
        let (lease, before) = engines.replace(launched);
        tracing::info!(model = name, generation = lease.generation(), "in service");
        Ok(v1::LoadModelResponse { generation: Some(generation_message(&lease, State::Serving)), draining: before })
    }

    /// Returns the folder to load from, and the name to serve under.
    fn folder_and_name(&self, v1::LoadModelRequest { path, name }: &v1::LoadModelRequest) -> Result<(PathBuf, String)> {
        let folder = match path {
            Some(path) => resolve_folder(self.config.models_folder.as_deref(), path)?,
            None => {
                let engine = self.engines.find("name", name.as_deref())?;
                let bound = "a path, as that model was not loaded from a folder";
                let missing = || Error::bad_option("path", "absent", bound);
                let folder = engine.folder().map(Path::to_path_buf).ok_or_else(missing)?;
                return Ok((folder, engine.card().name.clone()));
            }
        };
        let name = model_name(name.as_deref(), &folder)?;
        Ok((folder, name))
    }
}

fn generation_message(engine: &Lease, state: State) -> v1::ModelGeneration {
    let card = engine.card();
    let load = engine.load();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_within_the_models_folder() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("models");
        for folder in ["models/a/b", "other"] {
            std::fs::create_dir_all(outer.path().join(folder)).unwrap();
        }
        let real_root = root.canonicalize().unwrap();
        let resolve = |path| resolve_folder(Some(&root), path);
        assert_eq!(resolve("a").unwrap(), real_root.join("a"));
        assert_eq!(resolve("a/b/").unwrap(), real_root.join("a/b"));
        for wrong in ["", ".", "..", "../other", "a/../../other", "/", "./a", outer.path().to_str().unwrap()] {
            assert!(matches!(resolve(wrong), Err(Error::BadOption { field: "path", .. })), "{wrong}");
        }
        assert!(matches!(resolve("nothing"), Err(Error::Io { .. })));
        assert!(matches!(resolve_folder(None, "a"), Err(Error::BadOption { field: "path", .. })));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(root.join("a"), root.join("within")).unwrap();
            std::os::unix::fs::symlink(outer.path().join("other"), root.join("out")).unwrap();
            assert_eq!(resolve("within").unwrap(), real_root.join("a"));
            assert!(matches!(resolve("out"), Err(Error::BadOption { field: "path", .. })));
        }
    }

    #[test]
    fn names_have_only_allowed_characters() {
        let name = |requested| model_name(requested, Path::new("/models/big"));
        assert_eq!(name(None).unwrap(), "big");
        assert_eq!(name(Some("")).unwrap(), "big");
        assert_eq!(name(Some("v1.2_b-c")).unwrap(), "v1.2_b-c");
        assert_eq!(name(Some("google/flan-t5")).unwrap(), "google/flan-t5");
        for wrong in [" ", "a b", "a\n", "é", ".a", "-a", "a/", "/a", "a/../b", "a/b/c", &"a".repeat(129)] {
            assert!(matches!(name(Some(wrong)), Err(Error::BadOption { field: "name", .. })), "{wrong:?}");
        }
    }

    #[test]
    fn more_memory_than_available_is_rejected() {
        check_memory(1, 0).unwrap();
        let Err(Error::NoMemory { needed, available }) = check_memory(usize::MAX, 0) else { panic!("accepted") };
        assert!(needed == usize::MAX && available > 0);
        assert!(
            matches!(check_memory(1, usize::MAX), Err(Error::NoMemory { needed: 1, available: 0 })),
            "everything is reserved"
        );
    }
}
