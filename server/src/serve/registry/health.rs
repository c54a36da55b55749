//! Liveness and readiness of the server, for gRPC's health service and for the admin port alike.
//!
//! The server is alive while no worker is broken or has spent too long in one round of its loop. Only a restart of the process,
//! or of the model, repairs such a worker. The server is ready from the end of all warm-ups until the shutdown, while it is
//! alive and at least one model is loaded.

use super::engines::Engines;
use std::{pin::Pin, sync::Arc, task::Poll, time::Duration};
use tokio::sync::watch;
use tonic_health::{ServingStatus, server::HealthReporter};

/// Interval at which the monitor checks the workers.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Watches the engines. Clones share the state.
#[derive(Clone)]
pub struct Monitor(Arc<MonitorState>);

struct MonitorState {
    engines: Engines,
    /// Maximum duration of one round of a worker's loop.
    hang: Duration,
    stage: watch::Sender<ServerStage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerStage {
    Starting,
    Serving,
    Draining,
}

/// The states that the health service reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HealthState {
    /// Reported for `""`, the server as a whole.
    alive: bool,
    /// Reported for each service.
    ready: bool,
}

impl Monitor {
    /// Watches these engines. An engine hangs if a round of its worker's loop lasts longer than `hang`.
    pub fn new(engines: Engines, hang: Duration) -> Self {
        Self(Arc::new(MonitorState { engines, hang, stage: watch::Sender::new(ServerStage::Starting) }))
    }

    pub(crate) fn engines(&self) -> &Engines {
        &self.0.engines
    }

    /// Records that every model has been loaded.
    pub(crate) fn set_serving(&self) {
        self.0.stage.send_replace(ServerStage::Serving);
    }

    /// Records that the server is shutting down.
    pub(crate) fn set_draining(&self) {
        self.0.stage.send_replace(ServerStage::Draining);
    }

    /// Checks that no worker is broken or hangs. The error is the reason, as text.
    pub fn alive(&self) -> Result<(), String> {
        let engines = &self.0.engines;
        let broken = engines.broken_names();
        if !broken.is_empty() {
            return Err(format!("the workers of these models have broken: {}", broken.join(", ")));
        }
        for engine in engines.all().into_iter().chain(engines.draining()) {
            if let Some(busy) = engine.busy_for().filter(|busy| *busy > self.0.hang) {
                let name = &engine.card().name;
                let limit = self.0.hang;
                return Err(format!(
                    "the worker of {name:?} has been in one step for {busy:.1?}, the limit is {limit:?}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the server can take requests. The error is the reason, as text.
    pub fn ready(&self) -> Result<(), String> {
        match *self.0.stage.borrow() {
            ServerStage::Starting => return Err("models are being loaded".into()),
            ServerStage::Draining => return Err("the server is shutting down".into()),
            ServerStage::Serving => {}
        }
        if self.0.engines.names().is_empty() {
            return Err("no model is loaded".into());
        }
        self.alive()
    }

    /// Records the current state in the metrics.
    pub(crate) fn record(&self) {
        self.0.engines.metrics().record_health(self.alive().is_ok(), self.ready().is_ok());
    }

    /// Publishes every change to the health service; never returns.
    pub(crate) async fn publish_changes(&self, health: &HealthReporter, services: &[&str]) {
        let mut changes = self.0.engines.changes();
        let mut before = None;
        loop {
            changes.mark_unchanged();
            let now = self.state();
            if before != Some(now) {
                self.log(before, now);
                self.publish(health, services).await;
                before = Some(now);
            }
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                () = self.wait_for_broken_worker(now) => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Publishes the current state to the health service.
    pub(crate) async fn publish(&self, health: &HealthReporter, services: &[&str]) {
        let state = self.state();
        let status = |serving| if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        health.set_service_status("", status(state.alive)).await;
        for service in services {
            health.set_service_status(service, status(state.ready)).await;
        }
    }

    fn state(&self) -> HealthState {
        let draining = *self.0.stage.borrow() == ServerStage::Draining;
        HealthState { alive: !draining && self.alive().is_ok(), ready: self.ready().is_ok() }
    }

    fn log(&self, before: Option<HealthState>, now: HealthState) {
        match (before, self.alive().and_then(|()| self.ready())) {
            (_, Err(why)) => tracing::error!(live = now.alive, ready = now.ready, why, "health"),
            (Some(_), Ok(())) => tracing::info!("ready again"),
            (None, Ok(())) => {}
        }
    }

    /// Waits until a worker breaks. Never returns if the server is not ready anyway.
    async fn wait_for_broken_worker(&self, now: HealthState) {
        if !now.ready {
            return std::future::pending().await;
        }
        let engines = self.0.engines.all();
        let mut waits: Vec<Pin<Box<_>>> = engines.iter().map(|engine| Box::pin(engine.wait_until_broken())).collect();
        // The waits hold no lease, which would keep an unloaded engine in memory.
        drop(engines);
        std::future::poll_fn(|cx| match waits.iter_mut().any(|wait| wait.as_mut().poll(cx).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}
