//! When engines are calibrated: as they are launched, if no other works then, who would be disturbed and would disturb; else in
//! moments in which none has anything to do.

use super::engines::{Engines, Lease};
use crate::engine::{Handle, Phase};
use std::{ops::ControlFlow, time::Duration};

/// How often it is looked whether there is such a moment.
const LOOK: Duration = Duration::from_secs(2);

impl Engines {
    /// Times an engine's steps, unless and until others work. That it cannot be done is for the log and for reports to tell:
    /// the model can be served without.
    pub(in crate::serve) fn calibrate(&self, engine: &Handle) {
        let name = &engine.card().name;
        match engine.calibrate(engine.limits().calibration, || self.go_on()) {
            Ok(table) => match table.doubt() {
                None => tracing::info!(model = name, took = ?table.took, spread = table.spread(), "calibrated"),
                Some(doubt) => {
                    tracing::warn!(model = name, took = ?table.took, doubt, "calibrated, but not to be trusted")
                }
            },
            Err(missing) => tracing::debug!(model = name, why = missing.reason(), "not calibrated"),
        }
    }

    /// Whether no engine that is served has anything to do.
    fn go_on(&self) -> ControlFlow<()> {
        let busy = |engine: &Lease| {
            let load = engine.load();
            load.running + load.queued > 0 || engine.phase() > Phase::Open
        };
        match self.all().iter().chain(&self.leaving()).any(busy) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Calibrates the engines that are not, whenever none has anything to do; stops within a step when a request comes. Never returns.
pub(in crate::serve) async fn when_idle(engines: Engines) {
    loop {
        tokio::time::sleep(LOOK).await;
        let open = |engine: &Lease| engine.calibration().is_none() && engine.phase() == Phase::Open;
        let Some(engine) = engines.all().into_iter().find(open) else { continue };
        if engines.go_on().is_continue() {
            let engines = engines.clone();
            // a panic in a step is the log's, as is an error
            let _ = tokio::task::spawn_blocking(move || engines.calibrate(&engine)).await;
        }
    }
}
