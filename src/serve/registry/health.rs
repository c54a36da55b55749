//! Whether the server lives, and whether it is ready: one answer for gRPC's health service and for the admin port.
//!
//! It lives as long as no worker has been at one round of its loop for too long. It is ready from the moment when every
//! model has run its first steps until it shuts down, as long as there is a model and no model's worker has broken.

use super::engines::Engines;
use std::{pin::Pin, sync::Arc, task::Poll, time::Duration};
use tokio::sync::watch;
use tonic_health::{ServingStatus, server::HealthReporter};

/// How often the workers are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Looks after the engines. Clones share what they know.
#[derive(Clone)]
pub struct Monitor(Arc<Shared>);

struct Shared {
    engines: Engines,
    /// How long a round may last.
    hang: Duration,
    stage: watch::Sender<Stage>,
}

/// How far the server has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Starting,
    Serving,
    Draining,
}

/// What the health service tells: of `""`, the server as a whole, and of each service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    whole: bool,
    services: bool,
}

impl Monitor {
    /// Of these engines, which hang if a round of their loops lasts longer than `hang`.
    pub fn new(engines: Engines, hang: Duration) -> Self {
        Self(Arc::new(Shared { engines, hang, stage: watch::Sender::new(Stage::Starting) }))
    }

    /// The engines.
    pub(in crate::serve) fn engines(&self) -> &Engines {
        &self.0.engines
    }

    /// Every model has been loaded.
    pub(in crate::serve) fn serve(&self) {
        self.0.stage.send_replace(Stage::Serving);
    }

    /// The server is shutting down.
    pub(in crate::serve) fn drain(&self) {
        self.0.stage.send_replace(Stage::Draining);
    }

    /// Whether it lives.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn alive(&self) -> Result<(), String> {
        let engines = &self.0.engines;
        for engine in engines.all().into_iter().chain(engines.leaving()) {
            if let Some(busy) = engine.busy_for().filter(|busy| *busy > self.0.hang) {
                let (name, hang) = (&engine.card().name, self.0.hang);
                return Err(format!(
                    "the worker of {name:?} has been at one step for {busy:.1?}, the limit is {hang:?}"
                ));
            }
        }
        Ok(())
    }

    /// Whether requests should come.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn ready(&self) -> Result<(), String> {
        match *self.0.stage.borrow() {
            Stage::Starting => return Err("models are being loaded".into()),
            Stage::Draining => return Err("the server is shutting down".into()),
            Stage::Serving => {}
        }
        let broken = self.0.engines.names_of_broken();
        if !broken.is_empty() {
            return Err(format!("the workers of these models have broken: {}", broken.join(", ")));
        }
        if self.0.engines.names().is_empty() {
            return Err("no model is loaded".into());
        }
        self.alive()
    }

    /// Keeps the health service in step; never returns.
    pub(in crate::serve) async fn report(&self, health: &HealthReporter, services: &[&str]) {
        let mut changes = self.0.engines.changes();
        let mut before = None;
        loop {
            changes.mark_unchanged();
            let now = self.told();
            if before != Some(now) {
                self.log(before, now);
                self.tell(health, services).await;
                before = Some(now);
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = self.broken(now) => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Tells the health service how things are now. It is told to look elsewhere first of all when the server shuts down.
    pub(in crate::serve) async fn tell(&self, health: &HealthReporter, services: &[&str]) {
        let told = self.told();
        let status = |serving| if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        health.set_service_status("", status(told.whole)).await;
        for service in services {
            health.set_service_status(service, status(told.services)).await;
        }
    }

    fn told(&self) -> Told {
        let draining = *self.0.stage.borrow() == Stage::Draining;
        Told { whole: !draining && self.alive().is_ok(), services: self.ready().is_ok() }
    }

    fn log(&self, before: Option<Told>, now: Told) {
        match (before, self.alive().and_then(|()| self.ready())) {
            (_, Err(why)) => tracing::error!(live = now.whole, ready = now.services, why, "health"),
            (Some(_), Ok(())) => tracing::info!("ready again"),
            (None, Ok(())) => {}
        }
    }

    /// Waits until a worker has broken; for ever if that is what is told already.
    async fn broken(&self, now: Told) {
        if !now.services {
            return std::future::pending().await;
        }
        let engines = self.0.engines.all();
        let mut waits: Vec<Pin<Box<_>>> = engines.iter().map(|engine| Box::pin(engine.wait_until_broken())).collect();
        // It holds no engine while it waits.
        drop(engines);
        std::future::poll_fn(|cx| match waits.iter_mut().any(|wait| wait.as_mut().poll(cx).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}
