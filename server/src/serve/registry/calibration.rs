//! Chooses when engines are calibrated: at launch if no other engine has work, otherwise when all engines are idle. A busy engine
//! would be slowed down, and would distort the measurement. A doubtful calibration is repeated a few times when the server is
//! quiet.

use super::engines::{Engines, Lease};
use crate::engine::{
    Handle, Phase,
    calibration::{Calibrated, NotCalibrated},
    clock,
};
use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    time::{Duration, Instant},
};

/// Interval at which the server checks for idle engines.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// How long all engines must have been idle before each repetition of a doubtful calibration. The waits grow, because other
/// programs that disturb a calibration may run for seconds or for hours.
const REPEAT_AFTER: [Duration; 4] =
    [Duration::from_secs(30), Duration::from_secs(2 * 60), Duration::from_secs(10 * 60), Duration::from_secs(60 * 60)];

impl Engines {
    /// Measures an engine's step times until another engine has work. A failure only appears in the log and in reports, as the
    /// model can be served without a calibration.
    pub(crate) fn calibrate(&self, engine: &Handle) -> Calibrated {
        let name = &engine.card().name;
        let is_repetition = engine.calibration().is_some();
        let calibrated = engine.calibrate(engine.limits().calibration, || self.continue_if_idle());
        match &calibrated {
            Ok(table) => match table.doubt() {
                None => tracing::info!(model = name, took = ?table.took, spread = table.spread(), "calibrated"),
                // The model serves as well as any other, and reports show the doubt. A busy machine is no fault.
                Some(doubt) if !is_repetition => {
                    tracing::info!(model = name, took = ?table.took, doubt, "calibrated, but the result is unreliable")
                }
                Some(doubt) => {
                    tracing::debug!(model = name, took = ?table.took, doubt, "calibrated again, still unreliable")
                }
            },
            Err(missing) => tracing::debug!(model = name, why = missing.reason(), "not calibrated"),
        }
        calibrated
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

    /// Calibrates uncalibrated engines while all are idle, repeats doubtful calibrations after longer idle times, and stops within
    /// a step when a request arrives. Never returns. [`run`](crate::serve::run) does this for its engines.
    pub async fn calibrate_when_idle(self) {
        let mut repetitions = Repetitions::new(clock::now());
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let Some(engine) = self.next_to_calibrate(&mut repetitions) else { continue };
            let engines = self.clone();
            let generation = engine.generation();
            // An error or a panic is logged, and the engine keeps the calibration that it has.
            let calibrated = tokio::task::spawn_blocking(move || engines.calibrate(&engine)).await;
            repetitions.record(generation, !matches!(calibrated, Ok(Err(NotCalibrated::Stopped))));
        }
    }

    /// Returns an engine without a calibration, or one whose doubtful calibration is due to be repeated; `None` while any has work.
    fn next_to_calibrate(&self, repetitions: &mut Repetitions) -> Option<Lease> {
        let open: Vec<Lease> = self.all().into_iter().filter(|engine| engine.phase() == Phase::Open).collect();
        let steps = open.iter().map(|engine| engine.counters().steps).sum();
        let is_idle = self.continue_if_idle().is_continue();
        repetitions.observe(clock::now(), is_idle, steps);
        if !is_idle {
            return None;
        }
        let uncalibrated = open.iter().find(|engine| engine.calibration().is_none());
        uncalibrated.or_else(|| repetitions.next_due(&open)).cloned()
    }
}

/// Decides when doubtful calibrations are repeated.
struct Repetitions {
    /// Idle time of the engines at the latest observation.
    idle: Duration,
    /// Time at which the engines became idle.
    idle_since: Instant,
    /// Steps of all engines at the latest observation. A larger number shows that requests came and ended since.
    steps: u64,
    /// Completed repetitions, by the number of the generation.
    completed: BTreeMap<u64, usize>,
}

impl Repetitions {
    fn new(now: Instant) -> Self {
        Self { idle: Duration::ZERO, idle_since: now, steps: 0, completed: BTreeMap::new() }
    }

    /// Records whether all engines are idle `now`, and how many steps they have run.
    fn observe(&mut self, now: Instant, is_idle: bool, steps: u64) {
        if !is_idle || steps != self.steps {
            self.idle_since = now;
        }
        self.steps = steps;
        self.idle = now.saturating_duration_since(self.idle_since);
    }

    /// Returns an engine whose calibration is doubtful and due to be repeated.
    fn next_due<'a>(&mut self, engines: &'a [Lease]) -> Option<&'a Lease> {
        self.completed.retain(|number, _| engines.iter().any(|engine| engine.generation() == *number));
        engines.iter().find(|engine| {
            let is_doubtful = matches!(engine.calibration(), Some(Ok(table)) if table.doubt().is_some());
            is_doubtful && self.is_due(engine.generation())
        })
    }

    /// Returns true if generation `number` is due for a repetition.
    fn is_due(&self, number: u64) -> bool {
        let completed = self.completed.get(&number).copied().unwrap_or(0);
        REPEAT_AFTER.get(completed).is_some_and(|wait| self.idle >= *wait)
    }

    /// Counts a calibration of generation `number` if it is complete. The idle time begins anew after one that a request stopped.
    fn record(&mut self, number: u64, is_complete: bool) {
        if is_complete {
            *self.completed.entry(number).or_default() += 1;
        } else {
            self.idle_since = clock::now();
        }
    }
}
