//! The wire: gRPC services over the engines, and the server's beginning and end. The only room that knows tonic.
//!
//! Reading order: `generation` (a call from request to answer), `convert` (request → job), `answer` (events → messages),
//! `status` (error → status), `connections` (from the listener to the server), `layers` (what happens to every call),
//! `access` and `tenant` (who calls), `shutdown`, `http` and `inference` (the same for clients of other servers: over JSON, and in
//! another protocol of gRPC); `client` and `streams` call
//! such a server, to run it and to measure it.

mod access;
mod acks;
mod admin;
mod answer;
mod asked;
mod calibrating;
mod calls;
pub mod client;
mod compression;
mod connections;
mod convert;
mod engines;
mod generated;
mod generation;
mod http;
mod inference;
mod intake;
mod latency;
mod layers;
mod library;
mod models;
mod monitor;
mod pieces;
mod port;
mod scored;
mod seed;
mod segments;
mod shutdown;
mod status;
pub mod streams;
mod summarization;
mod summarized;
mod tenant;
mod totals;
mod traces;
mod warm;
mod within;

pub use admin::{Admin, Loader};
pub use engines::{Engines, Fresh, Lease};
pub use layers::REQUEST_ID;
pub use monitor::Monitor;
pub use port::watch_over;
pub use status::{DOMAIN, status};
pub use traces::Traces;

use crate::{
    config::Wire,
    error::{Error, Result},
    metrics::Metrics,
};
use access::admitted;
use calls::counted;
use compression::{compressing, mirrored};
use connections::Speech;
use generation::Generation;
use intake::metered;
use latency::Latency;
use layers::{Around, Next, guarded, named, said_in_http, timed, traced};
use library::worded;
use models::Models;
use shutdown::Gate;
use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};
use summarization::Summarization;
use tokio::{net::TcpListener, sync::watch};
use tonic::{server::NamedService, service::Routes, transport::Server};
use tonic_health::{
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use tower::Layer;
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
    <inference::Served as NamedService>::NAME,
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
    let around = |routes: Routes| layered(routes, &wire, (engines.metrics(), traces.clone()), ending.clone());
    // What another protocol asks for goes through all layers again, as a call of our own services.
    let own = within::services(around(routes.clone().prepare()));
    let calls = around(routes.add_service(inference::served(own, monitor.clone(), &wire)).prepare());
    let incoming = connections::incoming(listener, &wire, ending.clone(), Speech::Http2);
    let mut closed = closing.clone();
    let server = builder(&wire).serve_with_incoming_shutdown(calls.clone(), incoming, async move {
        // An error means that the other end is dropped, and then the server is too.
        let _ = closed.wait_for(|closed| *closed).await;
    });
    let told = async {
        if let Some(listener) = http {
            let requests = connections::incoming(listener, &wire, ending, Speech::Http1);
            http::serve(requests, within::services(calls), monitor.clone(), &wire, closing).await;
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
        () = calibrating::when_idle(engines.clone()) => Ok(()),
    };
    if let Some(traces) = traces {
        traces.close().await;
    }
    served
}

/// What happens to every call before its service sees it, however it came.
fn layered(
    routes: Routes,
    wire: &Wire,
    (metrics, traces): (&Arc<Metrics>, Option<Traces>),
    ending: watch::Receiver<bool>,
) -> Next {
    // Innermost: nobody but the services asks how an answer may be compressed.
    let calls = Around(mirrored).layer(routes);
    // Around the services: only their code can panic, and the layers above should see an ordinary failure.
    let calls = Around(guarded).layer(calls);
    // Right above the library, whose words it replaces before anyone counts or logs them.
    let calls = Around(worded).layer(calls);
    // Above the services, whose answers it may have to give up waiting for.
    let calls = Around(timed).layer(calls);
    // Below those who need not let a request in; above the services, which read it.
    let calls = Around(metered(wire, ending)).layer(calls);
    // Within the span, which it tells who calls; above all that costs anything.
    let calls = Around(admitted(wire.access.keys.clone())).layer(calls);
    // Above all that can fail, so that every failure is logged within the call's span.
    let calls = Around(traced).layer(calls);
    // Above all that may say that the server is unavailable.
    let calls = Around(said_in_http(wire.late_headers)).layer(calls);
    // Above all that answers, so that every call is counted with the status that the client sees.
    let calls = Around(counted(Arc::clone(metrics), traces)).layer(calls);
    // Outermost: whatever answers, a layer or a service, the answer has the call's name.
    Next::new(Around(named).layer(calls))
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
