//! The wire: gRPC services over the engines, and the server's beginning and end. The only room that knows tonic.
//!
//! Reading order: `generation` (a call from request to answer), `convert` (request → job), `answer` (events → messages),
//! `status` (error → status), `connections` (from the listener to the server), `layers` (what happens to every call),
//! `access` and `tenant` (who calls), `shutdown`, `http` and `inference` (the same for clients of other servers: over JSON, and in
//! another protocol of gRPC); `client` and `streams` call
//! such a server, to run it and to measure it.

mod admin;
mod call;
pub mod client;
mod grpc;
mod in_process;
mod middleware;
mod oip;
mod openai;
mod registry;
mod status;
mod traces;
mod transport;

pub use admin::{Admin, Loader};
pub use call::REQUEST_ID;
pub use registry::{
    engines::{Engines, Fresh, Lease},
    health::Monitor,
};
pub use status::{DOMAIN, status};
pub use traces::Traces;
pub use transport::admin_port::watch_over;

use crate::{
    config::Wire,
    error::{Error, Result},
};
use grpc::{generation::Generation, latency::Latency, models::Models, summarization::Summarization};
use middleware::compression::compressing;
use registry::{calibration, drain::Gate};
use std::{
    future::Future,
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, sync::watch};
use tonic::{server::NamedService, service::Routes, transport::Server};
use tonic_health::{
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use weir_proto::v1::{
    admin_server::AdminServer, generation_server::GenerationServer, latency_server::LatencyServer,
    models_server::ModelsServer, summarization_server::SummarizationServer,
};

/// How long connections get at least to close once no call runs any more.
const LINGER: Duration = Duration::from_secs(1);

/// How long a round of a worker's loop may last before it counts as hanging, unless [`Monitor::new`] is told otherwise.
const HANG: Duration = Duration::from_secs(60);

/// The services that are always there.
const SERVICES: [&str; 5] = [
    <GenerationServer<Generation> as NamedService>::NAME,
    <SummarizationServer<Summarization> as NamedService>::NAME,
    <ModelsServer<Models> as NamedService>::NAME,
    <oip::Served as NamedService>::NAME,
    <LatencyServer<Latency> as NamedService>::NAME,
];
/// The service that gives orders.
const ADMIN: &str = <AdminServer<admin::Orders> as NamedService>::NAME;

/// What is served, and what is offered to those who run the server.
pub struct Offer {
    /// Looks after the engines that are served.
    pub monitor: Monitor,
    /// The service that loads and unloads models, if there is to be one.
    pub admin: Option<Admin>,
    /// Where spans of calls go, if anywhere.
    pub traces: Option<Traces>,
    /// Where completions are offered over HTTP, if anywhere.
    pub http: Option<TcpListener>,
}

impl From<Engines> for Offer {
    fn from(engines: Engines) -> Self {
        Self { monitor: Monitor::new(engines, HANG), admin: None, traces: None, http: None }
    }
}

/// Serves this on this listener until `shutdown`, then drains: health turns NOT_SERVING, new requests are
/// answered UNAVAILABLE, those that run get [`Wire::drain`] to finish and their clients to read, and are ended after that.
/// Returns when all is over.
///
/// # Errors
/// The listener fails.
pub async fn run(
    listener: TcpListener,
    offer: impl Into<Offer>,
    shutdown: impl Future<Output = ()>,
    wire: Wire,
) -> Result<()> {
    let Offer { monitor, admin, traces, http } = offer.into();
    let engines = monitor.engines().clone();
    let gate = Gate::open();
    // those whose readiness the health service tells
    let services: Vec<_> = SERVICES.into_iter().chain(admin.is_some().then_some(ADMIN)).collect();
    let (health, health_service) = tonic_health::server::health_reporter();
    monitor.serve();
    monitor.tell(&health, &services).await;
    let generation = Generation::new(engines.clone(), gate.clone(), wire.late_headers);
    let generation = compressing!(GenerationServer::new(generation), wire.message_bytes);
    let summarization = Summarization::new(engines.clone(), gate.clone(), wire.late_headers);
    let summarization = compressing!(SummarizationServer::new(summarization), wire.message_bytes);
    let models = Models::new(engines.clone(), wire.clone());
    let models = compressing!(ModelsServer::new(models), wire.message_bytes);
    let latency = compressing!(LatencyServer::new(Latency::new(engines.clone())), wire.message_bytes);
    let (v1, v1alpha) = (reflection(&services), reflection(&services));
    let admin = admin.map(|admin| admin::guarded(admin, engines.clone(), gate.clone(), wire.message_bytes));
    let (close, closing) = watch::channel(false);
    let (end, ending) = watch::channel(false);

    let mut routes = Routes::new(compressing!(health_service, wire.message_bytes))
        .add_service(compressing!(v1.build_v1().map_err(broken)?, wire.message_bytes))
        .add_service(compressing!(v1alpha.build_v1alpha().map_err(broken)?, wire.message_bytes))
        .add_service(generation)
        .add_service(summarization)
        .add_service(models)
        .add_service(latency);
    if let Some(admin) = admin {
        routes = routes.add_service(admin);
    }
    let around = |routes: Routes| middleware::stack(routes, &wire, engines.metrics(), traces.clone(), ending.clone());
    // What another protocol asks for goes through all layers again, as a call of our own services.
    let own = in_process::services(around(routes.clone().prepare()));
    let calls = around(routes.add_service(oip::served(own, monitor.clone(), &wire)).prepare());
    let incoming =
        transport::connections::incoming(listener, &wire, ending.clone(), transport::connections::Speech::Http2);
    let mut closed = closing.clone();
    let server = builder(&wire).serve_with_incoming_shutdown(calls.clone(), incoming, async move {
        // An error means that the other end is dropped, and then the server is too.
        let _ = closed.wait_for(|closed| *closed).await;
    });
    let told = async {
        if let Some(listener) = http {
            let requests =
                transport::connections::incoming(listener, &wire, ending, transport::connections::Speech::Http1);
            openai::serve(requests, in_process::services(calls), monitor.clone(), &wire, closing).await;
        }
    };
    let ending = async {
        tokio::select! {
            () = shutdown => {}
            () = monitor.report(&health, &services) => {}
        }
        drain((&health, &services), &monitor, &gate, wire.drain, End { begun: end, close }).await;
    };
    let served = tokio::select! {
        (served, ()) = async { tokio::join!(server, told) } => served.map_err(|error| Error::Internal(format!("the listener failed: {error}"))),
        () = ending => Ok(()),
        () = calibration::when_idle(engines.clone()) => Ok(()),
    };
    if let Some(traces) = traces {
        traces.close().await;
    }
    served
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

/// Whom to tell that the server ends.
struct End {
    /// That it begins to: those that wait for something of a client's.
    begun: watch::Sender<bool>,
    /// That no request runs any more: the connections.
    close: watch::Sender<bool>,
}

/// Takes no more requests, lets those that run finish within the limit, ends those that do not, and closes.
async fn drain(
    (health, services): (&HealthReporter, &[&str]),
    monitor: &Monitor,
    gate: &Gate,
    limit: Duration,
    end: End,
) {
    let began = Instant::now();
    tracing::info!(?limit, "draining");
    // First of all, so that balancers look elsewhere before anything is refused.
    monitor.drain();
    monitor.tell(health, services).await;
    let engines = monitor.engines();
    engines.all().iter().chain(&engines.leaving()).for_each(|engine| engine.drain());
    end.begun.send_replace(true);
    if !gate.close(limit).await {
        tracing::warn!("the limit for draining has passed: ending what still runs");
    }
    // Watchers of health would keep their connections open.
    let mut health = health.clone();
    for service in [&[""], services].concat() {
        health.clear_service_status(service).await;
    }
    end.close.send_replace(true);
    // A call is over for us once its answer is with the connection; a slow reader may have most of it still to come. The
    // server ends by itself when the last connection has nothing left to send.
    tokio::time::sleep(limit.saturating_sub(began.elapsed()).max(LINGER)).await;
    tracing::debug!("connections are still open");
}

/// Everything a client needs to call this server without a `.proto` file, error details included.
fn reflection(services: &[&'static str]) -> tonic_reflection::server::Builder<'static> {
    let health = <HealthServer<HealthService> as NamedService>::NAME;
    let services = services.iter().copied().chain([health]);
    let builder = tonic_reflection::server::Builder::configure();
    services
        .fold(builder, |builder, service| builder.with_service_name(service))
        .register_encoded_file_descriptor_set(weir_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(weir_proto::INFERENCE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
}

fn broken(error: impl std::error::Error) -> Error {
    Error::Internal(format!("the API's descriptors: {error}"))
}
