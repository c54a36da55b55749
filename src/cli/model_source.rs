//! Where a command runs a model: on a server, which runs in this process unless a flag names another.

use super::{
    model::{LoadArgs, ModelArgument},
    network::runtime,
    notes,
};
use crate::{
    config::TransportConfig,
    decode::contract::Model,
    engine::{Handle, Limits},
    error::{Error, Result, printable, quoted},
    family::checkpoint::files::check_folder,
    serve::{self, Engines, Listener},
};
use std::{future::pending, io::Write, path::PathBuf, sync::Arc, time::Duration};
use tokio::runtime::Runtime;
use weir_client::{
    calls::MessageStream,
    connection::{Client, ServerEndpoint},
    flags::{ApiKeyArgs, TlsArgs},
};
use weir_proto::v1;

/// The address of the server in this process. Errors of its calls leave it out.
pub(super) const IN_PROCESS: &str = "this process";
/// A time limit that never ends a call.
const UNLIMITED: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// A limit in bytes or symbols that no call reaches.
const ANY_NUMBER: usize = usize::MAX >> 8;

/// Flags for a model in this process, by clap's ids. With a server they have no effect, because the server loaded the model or the
/// command sends text only.
pub(super) const IN_PROCESS_FLAGS: [&str; 10] =
    ["require_sha256", "dtype", "threads", "max_symbols", "device", "ids", "mode", "chunk", "logits", "target_ids"];

/// The model of a command, and the server that runs it.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ModelSourceArgs {
    /// Checkpoint folder, or name of a model in the user's models folder. Default: the model that is embedded in the program. With
    /// --server: name of the served model, which may be left out if exactly one model can answer the call.
    #[arg(long, value_name = "DIR|NAME", env = "WEIR_MODEL")]
    model: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    load: LoadArgs,
}

/// The server that runs the model.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Server")]
struct ServerArgs {
    /// Call the gRPC API of this server instead of running the model in this process: host:port, :port of this machine, or a URL;
    /// https:// for TLS.
    #[arg(long, value_name = "ADDRESS", env = "WEIR_SERVER")]
    server: Option<String>,
    #[command(flatten)]
    api_key: ApiKeyArgs,
    #[command(flatten)]
    tls: TlsArgs,
}

/// The model of a command.
pub(super) enum ModelSource {
    /// Loaded into this process.
    Process(Arc<dyn Model>),
    /// On another server.
    Server(ServedModel),
}

impl ModelSource {
    /// Returns the model as a server's. A loaded model is served to this process alone, with these limits.
    pub(super) fn served(self, limits: Limits) -> Result<ServedModel> {
        match self {
            Self::Process(model) => ServedModel::in_process(model, limits),
            Self::Server(served) => Ok(served),
        }
    }
}

/// Limits of a server that only this process calls, one request at a time: none refuses what the model can do.
pub(super) fn own_limits() -> Limits {
    Limits {
        rows: 1,
        queued_symbols: ANY_NUMBER,
        request_work: ANY_NUMBER,
        request_time: Duration::ZERO,
        stall: UNLIMITED,
        calibration: Duration::ZERO,
        ..Limits::default()
    }
}

/// A model of a server.
pub(super) struct ServedModel {
    runtime: Runtime,
    client: Client,
    /// Its name. May be `None` if exactly one model can answer the call.
    pub(super) name: Option<String>,
}

/// The parts of a served model.
pub(super) struct ServedParts {
    pub(super) runtime: Runtime,
    pub(super) client: Client,
    pub(super) name: Option<String>,
}

impl ModelSourceArgs {
    /// Connects to the server, or loads the checkpoint and prints where it runs. Fails if the server is unreachable, or if the
    /// checkpoint cannot be read or is invalid.
    pub(super) fn open(&self) -> Result<ModelSource> {
        let ServerArgs { server, api_key, tls } = &self.server;
        if let Some(address) = server {
            let name = self.model.as_ref().map(|name| match name.to_str() {
                Some(name) => Ok(name.to_owned()),
                None => Err(Error::bad_option("--model", quoted(&name.to_string_lossy()), "a name in UTF-8")),
            });
            let name = name.transpose()?;
            let runtime = runtime()?;
            let endpoint = tls.endpoint("--server", address).map_err(Error::Setting)?;
            let endpoint = ServerEndpoint { key: api_key.key().map_err(Error::Setting)?, ..endpoint };
            let client = runtime.block_on(endpoint.connect())?;
            return Ok(ModelSource::Server(ServedModel { runtime, client, name }));
        }
        if let Some(flag) = api_key.flag().or(tls.flag()) {
            return Err(Error::Setting(format!("{flag}: expected --server next to it, found none")));
        }
        let source = ModelArgument { name: "--model", value: self.model.as_deref() }.source()?;
        source.folder().map_or(Ok(()), check_folder)?;
        let shown = printable(&source.path().display().to_string());
        // `eprintln!` would panic if stderr is closed.
        let _ = writeln!(std::io::stderr(), "weir: running {shown} in this process; use --server to call a server");
        Ok(ModelSource::Process(self.load.load(&source, None)?))
    }
}

impl ServedModel {
    /// Serves a model to this process alone, in memory, without a warm-up. Fails if the operating system refuses a thread.
    fn in_process(model: Arc<dyn Model>, limits: Limits) -> Result<Self> {
        let runtime = runtime()?;
        let engines = Engines::new(vec![Handle::start(model, limits)?])?;
        let config = TransportConfig {
            message_bytes: u32::MAX as usize,
            request_memory: ANY_NUMBER,
            response_bytes: ANY_NUMBER,
            upload: UNLIMITED,
            connection_idle: None,
            keepalive_interval: None,
            ..TransportConfig::default()
        };
        let (listener, channel) = {
            let _guard = runtime.enter();
            Listener::in_process()
        };
        runtime.spawn(serve::run(listener, engines, pending(), config));
        let client = Client::of_channel(channel, IN_PROCESS);
        Ok(Self { runtime, client, name: None })
    }

    /// Returns the parts, for concurrent calls.
    pub(super) fn into_parts(self) -> ServedParts {
        let Self { runtime, client, name } = self;
        ServedParts { runtime, client, name }
    }

    /// Returns the server's description of a model that continues and scores texts. `None` if no name is given and not exactly one
    /// model can answer the call, which then fails with the server's reason.
    fn describe(&self) -> Result<Option<v1::Model>> {
        self.runtime.block_on(self.client.text_model(self.name.clone()))
    }

    /// Returns the error of a call that succeeded although [`describe`](Self::describe) found no model for it.
    fn changed(&self) -> Error {
        self.client.rejected("its models changed during the call; name one with --model".into())
    }

    /// Returns the error of a response that ended without a part that every complete response has.
    pub(super) fn incomplete(&self, missing: &str) -> Error {
        self.client.incomplete(missing)
    }

    /// Waits for a call of the server.
    pub(super) fn call<T>(&self, call: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
        self.runtime.block_on(call(&self.client))
    }

    /// Passes the messages of a response to `visit`, up to the end or the first error.
    pub(super) fn each<M>(&self, mut messages: MessageStream<M>, mut visit: impl FnMut(M) -> Result<()>) -> Result<()> {
        while let Some(message) = self.runtime.block_on(messages.next())? {
            visit(message)?;
        }
        Ok(())
    }
}

/// A served model, and its description before the call.
pub(super) struct DescribedModel<'a> {
    pub(super) model: &'a ServedModel,
    /// `None` if no name is given and not exactly one model can answer the call.
    pub(super) description: Option<v1::Model>,
}

impl<'a> DescribedModel<'a> {
    /// Asks the server for the description.
    pub(super) fn new(model: &'a ServedModel) -> Result<Self> {
        Ok(Self { model, description: model.describe()? })
    }

    /// Returns the name for the call, so that the described model answers it.
    pub(super) fn name(&self) -> Option<String> {
        self.model.name.clone().or_else(|| self.description.as_ref().map(|description| description.name.clone()))
    }

    /// Returns the description after a successful call.
    pub(super) fn description(&self) -> Result<&v1::Model> {
        self.description.as_ref().ok_or_else(|| self.model.changed())
    }

    /// Reports that the model's normaliser changed this many characters of the text of `flag`, if it did.
    pub(super) fn report_normalised(&self, flag: &str, text: &str, changed: usize) {
        let vocabulary = self.description.as_ref().and_then(|model| model.vocabulary.as_ref());
        notes::characters_changed(flag, text, changed, vocabulary.map(|known| known.normaliser.as_str()));
    }
}

/// Narrows an option to the width that it has on the wire. Fails if it does not fit.
pub(super) fn narrow(flag: &'static str, value: usize) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::bad_option(flag, value.to_string(), format!("at most {}", u32::MAX)))
}
