//! `weir serve`: checkpoints, engines, a listener, and signals that end it. The flags are in files of their own, by what
//! they are about.

mod engine;
mod log;
mod models;
mod signals;
mod wire;

use crate::{
    config::{Checks, Serve},
    engine::handle::Handle,
    error::{Error, Result},
    family::load,
    serve::{Engines, run as serve},
};
use std::{path::PathBuf, time::Duration};
use tokio::net::TcpListener;

/// The most that a count may be: nothing that fits a machine is refused.
const MANY: usize = 1 << 24;
/// How long the runtime may take to stop after a second signal.
const STOP: Duration = Duration::from_millis(100);

/// Serves models over gRPC. A signal (SIGTERM, Ctrl-C) drains; a second one ends as soon as the step in progress is
/// over.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    models: models::ModelsArgs,
    #[command(flatten)]
    engine: engine::EngineArgs,
    #[command(flatten)]
    wire: wire::WireArgs,
    #[command(flatten)]
    log: log::LogArgs,
}

impl Args {
    fn validate(&self) -> Result<Serve> {
        let mut checks = Checks::default();
        self.log.start(&mut checks);
        let listen = self.wire.listen(&mut checks);
        let checkpoints = self.models.checkpoints(&mut checks);
        let model = self.models.settings(&mut checks);
        let engine = self.engine.limits(&mut checks);
        let wire = self.wire.limits(&mut checks);
        checks.finish()?;
        let listen = listen.ok_or_else(|| Error::Internal("an address that is neither right nor wrong".into()))?;
        Ok(Serve { listen, checkpoints, model, engine, wire })
    }
}

/// Runs the command until a signal ends it.
///
/// # Errors
/// Settings that cannot be used, a broken checkpoint, an address that is taken.
pub fn run(args: Args) -> Result<()> {
    let settings = args.validate()?;
    let engines = engines(&settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Internal(format!("no threads for the server: {error}")))?;
    let result = runtime.block_on(listen(settings, engines));
    runtime.shutdown_timeout(STOP);
    result
}

/// Loads every model and starts its engine.
fn engines(settings: &Serve) -> Result<Engines> {
    // one set of threads for all: two models that step at once take turns on it, rather than on the cores
    let shared = settings.model.clone().with_threads();
    let start = |folder: &PathBuf| {
        tracing::debug!(folder = %folder.display(), "loading");
        Handle::start(load::load(folder, &shared)?, settings.engine)
    };
    Engines::new(settings.checkpoints.iter().map(start).collect::<Result<_>>()?)
}

async fn listen(settings: Serve, engines: Engines) -> Result<()> {
    let wrong = |error| Error::Setting(format!("--listen {}: {error}", settings.listen));
    let listener = TcpListener::bind(settings.listen).await.map_err(wrong)?;
    let address = listener.local_addr().map_err(wrong)?;
    // Before anyone is told where to connect: a signal from then on drains.
    let signals = signals::signals().map_err(|error| Error::Internal(format!("no signals: {error}")))?;
    eprintln!("listening on {address} with {}", engines.names().join(", "));
    tokio::select! {
        served = serve(listener, engines, signals::reached(signals.clone(), 1), settings.wire) => served,
        () = signals::reached(signals, 2) => {
            tracing::warn!("a second signal: ending after the step in progress");
            Ok(())
        }
    }
}
