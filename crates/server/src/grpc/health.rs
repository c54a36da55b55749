//! The service `grpc.health.v1.Health`: the server's health (`""`), that of its services, and that of its models by their names.

use crate::registry::{HealthState, Monitor};
use tokio::sync::watch;
use tokio_stream::{StreamExt, wrappers::WatchStream};
use tonic::{Request, Response, Status, codegen::BoxStream};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server::Health,
};

pub(crate) struct HealthService {
    services: Vec<&'static str>,
    /// `None` once the shutdown ends all calls.
    state: watch::Receiver<Option<HealthState>>,
}

impl HealthService {
    /// Reports what `monitor` publishes, for a server with these services.
    pub(crate) fn new(monitor: &Monitor, services: &[&'static str]) -> Self {
        Self { services: services.to_vec(), state: monitor.published() }
    }
}

fn status(state: &HealthState, services: &[&str], name: &str) -> ServingStatus {
    let serving = |serving| if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    if name.is_empty() {
        serving(state.alive)
    } else if services.contains(&name) || state.models.iter().any(|model| model == name) {
        serving(state.ready && !state.broken.iter().any(|model| model == name))
    } else {
        ServingStatus::ServiceUnknown
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let known = self.state.borrow();
        let status = known.as_ref().map(|state| status(state, &self.services, &request.get_ref().service));
        match status.unwrap_or(ServingStatus::NotServing) {
            ServingStatus::ServiceUnknown => Err(Status::not_found("neither a service nor a model has this name")),
            status => Ok(Response::new(response(status))),
        }
    }

    type WatchStream = BoxStream<HealthCheckResponse>;

    /// Reports each change. A name may become that of a model at any time.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let name = request.into_inner().service;
        let services = self.services.clone();
        let mut latest = None;
        let states = WatchStream::new(self.state.clone()).map_while(|state| state);
        let changes = states.filter_map(move |state| {
            let now = status(&state, &services, &name);
            (latest.replace(now) != Some(now)).then(|| Ok(response(now)))
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
