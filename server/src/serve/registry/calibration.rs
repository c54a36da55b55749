//! Chooses when engines are calibrated: at launch if no other engine has work, otherwise when all engines are idle. A busy engine
//! would be slowed down, and would distort the measurement.

use super::engines::{Engines, Lease};
use crate::engine::{Handle, Phase};
use std::{ops::ControlFlow, time::Duration};

/// Interval at which the server checks for idle engines.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

impl Engines {
    /// Measures an engine's step times until another engine has work. A failure only appears in the log and in reports, as the
    /// model can be served without a calibration.
    pub(crate) fn calibrate(&self, engine: &Handle) {
        let name = &engine.card().name;
        match engine.calibrate(engine.limits().calibration, || self.continue_if_idle()) {
            Ok(table) => match table.doubt() {
                None => tracing::info!(model = name, took = ?table.took, spread = table.spread(), "calibrated"),
                // The model serves as well as any other, and reports show the doubt. A busy machine is no fault.
                Some(doubt) => {
                    tracing::info!(model = name, took = ?table.took, doubt, "calibrated, but the result is unreliable")
                }
            },
            Err(missing) => tracing::debug!(model = name, why = missing.reason(), "not calibrated"),
        }
    }

    /// Continues a calibration while no engine has work.
    fn continue_if_idle(&self) -> ControlFlow<()> {
        let busy = |engine: &Lease| {
            let load = engine.load();
            load.running + load.queued > 0 || engine.phase() > Phase::Open
        };
        match self.all().iter().chain(&self.draining()).any(busy) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Calibrates uncalibrated engines while all are idle, and stops within a step when a request arrives. Never returns.
pub(crate) async fn when_idle(engines: Engines) {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let uncalibrated = |engine: &Lease| engine.calibration().is_none() && engine.phase() == Phase::Open;
        let Some(engine) = engines.all().into_iter().find(uncalibrated) else { continue };
        if engines.continue_if_idle().is_continue() {
            let engines = engines.clone();
            // An error or a panic is logged, and the engine stays uncalibrated.
            let _ = tokio::task::spawn_blocking(move || engines.calibrate(&engine)).await;
        }
    }
}
