//! Prints to stderr which step of a command runs, and how long the command is expected to take.

use crate::load::schedule::RunLength;
use std::{
    fmt::Display,
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Loads that a search for the knee is expected to measure before it bisects.
const SEARCHED_RATES: u32 = 4;

/// Steps of a command; all its sessions share them.
#[derive(Clone, Default)]
pub(super) struct Steps {
    total: Arc<AtomicUsize>,
    begun: Arc<AtomicUsize>,
}

/// Planned steps of a command and their expected time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Plan {
    /// Steps.
    pub(super) steps: usize,
    /// Expected time in which loads of a known duration send requests.
    pub(super) time: Duration,
    /// Loads that end after a number of requests, which may take any time.
    pub(super) loads_of_unknown_time: usize,
    /// Rounds of comparisons, which may take any time.
    pub(super) rounds: u64,
}

impl Plan {
    /// Adds `count` loads of this length, as a step each.
    pub(super) fn add_loads(&mut self, count: usize, length: &RunLength) {
        self.steps += count;
        match time_of(length) {
            Some(time) => self.time += time * u32::try_from(count).unwrap_or(u32::MAX),
            None => self.loads_of_unknown_time += count,
        }
    }

    /// Adds a search for the knee, as one step.
    pub(super) fn add_search(&mut self, refinements: usize, length: &RunLength) {
        self.steps += 1;
        match time_of(length) {
            Some(time) => self.time += time * (SEARCHED_RATES + u32::try_from(refinements).unwrap_or(0)),
            None => self.loads_of_unknown_time += 1,
        }
    }

    /// Adds a comparison, as one step.
    pub(super) fn add_rounds(&mut self, rounds: u64) {
        self.steps += 1;
        self.rounds += rounds;
    }

    fn describe(&self) -> String {
        let mut parts = Vec::new();
        if !self.time.is_zero() {
            parts.push(format!(
                "about {} of sending, plus the wait for each load's last answers",
                rounded_time(self.time)
            ));
        }
        if self.loads_of_unknown_time > 0 {
            let count = self.loads_of_unknown_time;
            parts.push(format!("{count} loads that end after a number of requests"));
        }
        if self.rounds > 0 {
            parts.push(format!("{} rounds, each as long as its requests", self.rounds));
        }
        parts.join(", plus ")
    }
}

impl Steps {
    /// Prints how much the command is going to do, and how long that is expected to take.
    pub(super) fn begin(&self, plan: &Plan) {
        self.total.store(plan.steps, Relaxed);
        let steps = if plan.steps == 1 { "1 step".to_owned() } else { format!("{} steps", plan.steps) };
        print(format_args!("{steps}: {}", plan.describe()));
    }

    /// Prints the next step.
    pub(super) fn next(&self, what: impl Display) {
        self.begun.fetch_add(1, Relaxed);
        self.go_on(what);
    }

    /// Prints what the current step does next.
    pub(super) fn go_on(&self, what: impl Display) {
        let total = self.total.load(Relaxed);
        let step = self.begun.load(Relaxed);
        if total > 0 {
            print(format_args!("step {step} of {total}: {what}"));
        }
    }
}

/// Prints a line to stderr.
pub(super) fn print(line: impl Display) {
    // `eprintln!` would panic if stderr is closed
    let _ = writeln!(std::io::stderr(), "weir-loadtest: {line}");
}

/// Returns the time of a load; `None` if only a number of requests ends it.
fn time_of(length: &RunLength) -> Option<Duration> {
    length.duration.map(|duration| length.warm_up + duration)
}

/// Formats a time in whole minutes and seconds.
pub(super) fn rounded_time(span: Duration) -> String {
    let seconds = span.as_secs_f64().round().max(1.0) as u64;
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(seconds: Option<u64>, requests: Option<u64>) -> RunLength {
        RunLength { warm_up: Duration::from_secs(3), duration: seconds.map(Duration::from_secs), requests }
    }

    #[test]
    fn a_plan_adds_up() {
        let mut plan = Plan::default();
        plan.add_loads(5, &length(Some(10), None));
        plan.add_search(3, &length(Some(10), None));
        assert_eq!(
            (plan.steps, plan.describe()),
            (6, "about 2 min 36 s of sending, plus the wait for each load's last answers".into())
        );
        plan.add_rounds(50);
        let sending = "about 2 min 36 s of sending, plus the wait for each load's last answers";
        assert_eq!(plan.describe(), format!("{sending}, plus 50 rounds, each as long as its requests"));
        let mut plan = Plan::default();
        plan.add_loads(2, &length(None, Some(40)));
        assert_eq!((plan.steps, plan.describe()), (2, "2 loads that end after a number of requests".into()));
    }

    #[test]
    fn times_are_in_minutes_and_seconds() {
        let shown = [1, 59, 60, 61, 3600].map(|seconds| rounded_time(Duration::from_secs(seconds)));
        assert_eq!(shown, ["1 s", "59 s", "1 min", "1 min 1 s", "60 min"]);
        assert_eq!(rounded_time(Duration::from_millis(200)), "1 s");
    }
}
