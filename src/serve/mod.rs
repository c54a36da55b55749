//! The wire: gRPC services over the engines, and the server's beginning and end. The only room that knows tonic.
//!
//! Reading order: `generation` (a call from request to answer), `convert` (request → job), `answer` (events → messages),
//! `status` (error → status), `connections` (from the listener to the server), `layers` (what happens to every call),
//! `access` and `tenant` (who calls), `shutdown`.

mod access;
mod answer;
mod connections;
mod convert;
mod engines;
mod generated;
mod generation;
mod intake;
mod layers;
mod models;
mod pieces;
mod scored;
mod segments;
mod shutdown;
mod status;
mod tenant;
mod totals;

pub use engines::Engines;
pub use layers::REQUEST_ID;
pub use status::{DOMAIN, status};

use crate::{
    config::Wire,
    error::{Error, Result},
};
use access::admitted;
use generation::Generation;
use intake::metered;
use layers::{Around, guarded, named, timed, traced};
use models::Models;
use shutdown::Gate;
use std::{
    future::Future,
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, sync::oneshot};
use tonic::{server::NamedService, transport::Server};
use tonic_health::{ServingStatus, server::HealthReporter};
use weir_proto::v1::{generation_server::GenerationServer, models_server::ModelsServer};

/// How long connections get at least to close once no call runs any more.
const LINGER: Duration = Duration::from_secs(1);

/// What the health service tells about: the server as a whole, and each service.
const WATCHED: [&str; 3] = ["", SERVICES[0], SERVICES[1]];
/// The services, which are ready as long as every model is.
const SERVICES: [&str; 2] =
    [<GenerationServer<Generation> as NamedService>::NAME, <ModelsServer<Models> as NamedService>::NAME];

/// Serves these engines on this listener until `shutdown`, then drains: health turns NOT_SERVING, new requests are
/// answered UNAVAILABLE, those that run get [`Wire::drain`] to finish and their clients to read, and are ended after that.
/// Returns when all is over.
///
/// # Errors
/// The listener fails.
pub async fn run(
    listener: TcpListener,
    engines: Engines,
    shutdown: impl Future<Output = ()>,
    wire: Wire,
) -> Result<()> {
    let gate = Gate::open();
    let (health, health_service) = tonic_health::server::health_reporter();
    report(&health, &WATCHED, ServingStatus::Serving).await;
    let generation = Generation::new(engines.clone(), gate.clone());
    let generation = GenerationServer::new(generation).max_decoding_message_size(wire.message_bytes);
    let models =
        ModelsServer::new(Models::new(engines.clone(), wire.clone())).max_decoding_message_size(wire.message_bytes);
    let (close, closed) = oneshot::channel::<()>();

    let server = builder(&wire)
        // Outermost: whatever answers, a layer or a service, the answer has the call's name.
        .layer(Around(named))
        // Above all that can fail, so that every failure is logged within the call's span.
        .layer(Around(traced))
        // Within the span, which it tells who calls; above all that costs anything.
        .layer(Around(admitted(wire.access.keys.clone())))
        // Below those who need not let a request in; above the services, which read it.
        .layer(Around(metered(wire.request_memory)))
        // Above the services, whose answers it may have to give up waiting for.
        .layer(Around(timed))
        // Innermost: only a service's code can panic, and the layers above should see an ordinary failure.
        .layer(Around(guarded))
        .add_service(health_service)
        .add_service(reflection().build_v1().map_err(broken)?)
        .add_service(reflection().build_v1alpha().map_err(broken)?)
        .add_service(generation)
        .add_service(models)
        .serve_with_incoming_shutdown(connections::incoming(listener, &wire), async {
            // An error means that the other end is dropped, and then the server is too.
            let _ = closed.await;
        });
    let ending = async {
        shutdown.await;
        drain(&health, &engines, &gate, wire.drain, close).await;
    };
    tokio::select! {
        served = server => served.map_err(|error| Error::Internal(format!("the listener failed: {error}"))),
        () = ending => Ok(()),
        () = readiness(&health, &engines) => Ok(()),
    }
}

/// What each connection may do.
fn builder(wire: &Wire) -> Server {
    Server::builder()
        .max_concurrent_streams(wire.concurrent_streams)
        .http2_max_header_list_size(wire.header_bytes)
        .http2_max_pending_accept_reset_streams(Some(wire.pending_resets))
        .http2_max_local_error_reset_streams(Some(wire.error_resets))
        .http2_keepalive_interval(wire.keepalive_interval)
        .http2_keepalive_timeout(Some(wire.keepalive_timeout))
}

/// Takes no more requests, lets those that run finish within the limit, ends those that do not, and closes.
async fn drain(health: &HealthReporter, engines: &Engines, gate: &Gate, limit: Duration, close: oneshot::Sender<()>) {
    let began = Instant::now();
    tracing::info!(?limit, "draining");
    // First of all, so that balancers look elsewhere before anything is refused.
    report(health, &WATCHED, ServingStatus::NotServing).await;
    engines.all().for_each(|engine| engine.drain());
    if !gate.close(limit).await {
        tracing::warn!("the limit for draining has passed: ending what still runs");
    }
    // Watchers of health would keep their connections open.
    let mut health = health.clone();
    for service in WATCHED {
        health.clear_service_status(service).await;
    }
    let _ = close.send(());
    // A call is over for us once its answer is with the connection; a slow reader may have most of it still to come. The
    // server ends by itself when the last connection has nothing left to send.
    tokio::time::sleep(limit.saturating_sub(began.elapsed()).max(LINGER)).await;
    tracing::debug!("connections are still open");
}

/// Reports the services as not ready once a model's worker has broken. The process lives and serves its other models, so
/// `""` stays as it is; nothing but a restart brings the model back. Never returns.
async fn readiness(health: &HealthReporter, engines: &Engines) {
    engines.broken().await;
    tracing::error!(models = ?engines.names_of_broken(), "a model's worker has broken: restart the server");
    report(health, &SERVICES, ServingStatus::NotServing).await;
    std::future::pending().await
}

async fn report(health: &HealthReporter, services: &[&str], status: ServingStatus) {
    for service in services {
        health.set_service_status(service, status).await;
    }
}

/// Everything a client needs to call this server without a `.proto` file, error details included.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(weir_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
}

fn broken(error: impl std::error::Error) -> Error {
    Error::Internal(format!("the API's descriptors: {error}"))
}
