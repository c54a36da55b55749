//! Puts the server together, serves until the signal, and shuts down.
//!
//! Three surfaces share one set of engines and limits: `grpc` and `open_inference` behind the tower stack of
//! `middleware`, and `http` on a port of its own. Calls from `http` and `open_inference` reach the handlers of `grpc` through
//! `calls`. All calls pass the one admission in `middleware`.

use crate::calls::Calls;
use crate::config::TransportConfig;
use crate::grpc::admin::{self, AdminConfig};
use crate::grpc::generation::{EditingLimits, JobService};
use crate::grpc::health::HealthService;
use crate::grpc::latency::LatencyService;
use crate::grpc::models::ModelsService;
use crate::http;
use crate::middleware::auth::KEYLESS_MESSAGE_BYTES;
use crate::middleware::compression::compressing;
use crate::middleware::limits::{BodyMemory, CallTable, CollectedLimits};
use crate::middleware::observe::RefusalLog;
use crate::middleware::{self, Admission};
use crate::open_inference;
use crate::open_inference::service::InferenceService;
use crate::registry::{Engines, Gate, Monitor};
use crate::tokenization::TokenizationWorkers;
use crate::traces::Traces;
use crate::transport::connections::{self, Listener, Protocol};
use crate::transport::http2;
use std::{future::Future, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;
use tonic::{server::NamedService, service::Routes};
use tonic_health::pb::health_server::HealthServer;
use weir_engine::clock;
use weir_kernels::error::{Error, Result};
use weir_proto::v1::{
    admin_server::AdminServer, codec_server::CodecServer, editing_server::EditingServer,
    generation_server::GenerationServer, latency_server::LatencyServer, models_server::ModelsServer,
    summarization_server::SummarizationServer,
};

/// Minimum time for connections to close once no call runs any more.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// How long one round of a worker's loop may last before the worker counts as hanging, unless [`Monitor::new`] gets another limit.
const HANG: Duration = Duration::from_secs(60);

/// The services that always run.
const SERVICES: [&str; 7] = [
    <GenerationServer<JobService> as NamedService>::NAME,
    <SummarizationServer<JobService> as NamedService>::NAME,
    <CodecServer<JobService> as NamedService>::NAME,
    <EditingServer<JobService> as NamedService>::NAME,
    <ModelsServer<ModelsService> as NamedService>::NAME,
    <open_inference::InferenceServer as NamedService>::NAME,
    <LatencyServer<LatencyService> as NamedService>::NAME,
];

/// The service that loads and unloads models.
const ADMIN: &str = <AdminServer<admin::AdminService> as NamedService>::NAME;

/// The parts of a server.
pub struct ServerParts {
    /// Watches the engines that are served.
    pub monitor: Monitor,
    /// Settings of the service that loads and unloads models, if it is to run.
    pub admin: Option<AdminConfig>,
    /// The exporter of spans, if calls are traced.
    pub traces: Option<Traces>,
    /// The listener of the OpenAI API, if it is to run.
    pub http: Option<Listener>,
    /// Once it is cancelled, the shutdown ends running requests at once.
    pub force_shutdown: CancellationToken,
}

impl From<Monitor> for ServerParts {
    fn from(monitor: Monitor) -> Self {
        Self { monitor, admin: None, traces: None, http: None, force_shutdown: CancellationToken::new() }
    }
}

impl From<Engines> for ServerParts {
    fn from(engines: Engines) -> Self {
        Monitor::new(engines, HANG).into()
    }
}

/// Threads that convert requests with a constraint, and the share of one caller: as many parsers as an engine makes for a tenant.
const COMPILERS: usize = 16;
const CALLER_COMPILERS: usize = 4;

/// Serves on this listener until `signal`, then drains: health turns NOT_SERVING, new requests are answered
/// UNAVAILABLE, and running requests get [`TransportConfig::drain`] to finish and their clients to read before they are
/// ended. Returns after that. Fails only if the API's descriptors are broken.
pub async fn run(
    listener: impl Into<Listener>,
    parts: impl Into<ServerParts>,
    signal: impl Future<Output = ()>,
    config: TransportConfig,
) -> Result<()> {
    let ServerParts { monitor, admin, traces, http, force_shutdown } = parts.into();
    let engines = monitor.engines().clone();
    let gate = Gate::open();
    let services: Vec<_> = SERVICES.into_iter().chain(admin.is_some().then_some(ADMIN)).collect();
    monitor.set_serving();
    let workers = TokenizationWorkers::new(config.tokenization_workers);
    let memory = BodyMemory::new(&config);
    let jobs = JobService {
        engines: engines.clone(),
        gate: gate.clone(),
        workers: workers.clone(),
        compilers: TokenizationWorkers::with_share(COMPILERS, CALLER_COMPILERS),
        memory: Arc::clone(&memory),
        late_headers: config.late_headers,
        editing: EditingLimits::new(config.editing),
    };
    let models = Arc::new(ModelsService { engines: engines.clone(), config: config.clone() });
    let max_bytes = config.message_bytes;
    let health = HealthService::new(&monitor, &services);
    let mut routes = Routes::new(compressing!(HealthServer::new(health), KEYLESS_MESSAGE_BYTES))
        .add_service(compressing!(reflection(&services).build_v1().map_err(broken)?, KEYLESS_MESSAGE_BYTES))
        .add_service(compressing!(reflection(&services).build_v1alpha().map_err(broken)?, KEYLESS_MESSAGE_BYTES))
        .add_service(compressing!(GenerationServer::new(jobs.clone()), max_bytes))
        .add_service(compressing!(SummarizationServer::new(jobs.clone()), max_bytes))
        .add_service(compressing!(CodecServer::new(jobs.clone()), max_bytes))
        .add_service(compressing!(EditingServer::new(jobs.clone()), max_bytes))
        .add_service(compressing!(ModelsServer::from_arc(Arc::clone(&models)), max_bytes))
        .add_service(compressing!(LatencyServer::new(LatencyService(engines.clone())), max_bytes));
    if let Some(admin) = admin {
        routes = routes.add_service(admin::guarded(admin, engines.clone(), gate.clone(), max_bytes));
    }
    let closing = CancellationToken::new();
    let draining = CancellationToken::new();
    let collected = CollectedLimits::new(Arc::clone(&memory), &config);
    let refusals = RefusalLog::default();
    let admission = Admission {
        metrics: Some(Arc::clone(engines.metrics())),
        traces: traces.clone(),
        refusals: refusals.clone(),
        in_progress: CallTable::new("calls", config.calls),
    };
    let calls = Calls { jobs: jobs.clone(), admission: admission.clone() };
    // A request of this protocol is a call that is in progress and counted. The call that it makes is also in progress, but is not
    // counted again.
    let own = Admission { metrics: None, in_progress: CallTable::new("calls", config.calls), ..admission.clone() };
    let inference = InferenceService {
        calls: Calls { jobs, admission: own },
        monitor: monitor.clone(),
        collected: collected.clone(),
        max_concurrent: usize::try_from(config.concurrent_streams).unwrap_or(usize::MAX).max(1),
    };
    routes = routes.add_service(open_inference::server(inference.clone(), max_bytes));
    let parts = middleware::Parts {
        config: &config,
        memory: &memory,
        engines: &engines,
        workers: &workers,
        draining: &draining,
    };
    let stack = middleware::stack(routes.prepare(), admission, &parts);
    let incoming = connections::incoming(listener.into(), &config, draining.clone(), Protocol::Http2);
    let grpc = http2::serve(incoming, stack, engines.metrics(), &config, closing.clone());
    let openai = async {
        if let Some(listener) = http {
            let incoming = connections::incoming(listener, &config, draining.clone(), Protocol::Http1);
            let api = http::state::ApiState {
                calls,
                inference,
                models,
                monitor: monitor.clone(),
                collected,
                // two callers wait for none of each other's
                comparisons: TokenizationWorkers::new(2),
                max_body_bytes: config.message_bytes,
                upload_timeout: config.upload,
                draining: draining.clone(),
                started_at: http::state::unix_seconds(),
                metrics: config.http_metrics,
            };
            http::serve(incoming, api, &config, refusals.clone(), closing.clone()).await;
        }
    };
    let shutdown = Shutdown {
        monitor: &monitor,
        gate: &gate,
        draining: &draining,
        closing: &closing,
        force_shutdown: &force_shutdown,
    };
    let shutdown = shutdown.after(signal, config.drain);
    tokio::select! {
        biased;
        ((), ()) = async { tokio::join!(grpc, openai) } => {}
        () = shutdown => {}
        () = engines.clone().calibrate_when_idle() => {}
    }
    if let Some(traces) = traces {
        traces.close().await;
    }
    Ok(())
}

/// The parts of the server that take part in its shutdown.
struct Shutdown<'a> {
    monitor: &'a Monitor,
    gate: &'a Gate,
    /// Cancelled when the drain begins. Bodies that are still arriving watch it.
    draining: &'a CancellationToken,
    /// Cancelled when no request runs any more. Connections watch it.
    closing: &'a CancellationToken,
    /// Cancelled when running requests must end before the limit.
    force_shutdown: &'a CancellationToken,
}

impl Shutdown<'_> {
    /// Publishes changes of health until `signal`, and then drains.
    async fn after(self, signal: impl Future<Output = ()>, limit: Duration) {
        tokio::select! {
            biased;
            () = signal => {}
            () = self.monitor.publish_changes() => {}
        }
        self.drain(limit).await;
    }

    /// Rejects new requests, lets running ones finish within the limit, ends the rest, and closes connections.
    async fn drain(self, limit: Duration) {
        let began = clock::now();
        tracing::info!(?limit, "draining");
        // Before anything is rejected, so that load balancers look elsewhere.
        self.monitor.set_draining();
        let engines = self.monitor.engines();
        engines.all().iter().chain(&engines.draining()).for_each(|engine| engine.drain());
        self.draining.cancel();
        tokio::select! {
            biased;
            finished = self.gate.close(limit) => {
                if !finished {
                    tracing::warn!("the limit for draining has passed: ending what still runs");
                }
            }
            () = self.force_shutdown.cancelled() => {}
        }
        self.gate.end();
        // Streams that watch health would keep their connections open.
        self.monitor.end_health();
        self.closing.cancel();
        // A call counts as finished when the connection has its response, of which a slow client may have read little.
        // The server ends by itself when the last connection has sent everything.
        let reading = limit.saturating_sub(clock::since(began)).saturating_sub(CLOSE_TIME);
        let _forced = self.force_shutdown.run_until_cancelled(tokio::time::sleep(reading)).await;
        tokio::time::sleep(CLOSE_TIME).await;
        tracing::debug!("connections are still open");
    }
}

/// Describes all services and error details, so that clients need no `.proto` file.
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
