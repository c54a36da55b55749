//! Progress bars on stderr, if stderr is a terminal.

use crate::{load::schedule::RunLength, measure::counters::LiveCounters};
use indicatif::{ProgressBar, ProgressStyle};
use std::{sync::atomic::Ordering::Relaxed, time::Duration};
use tokio::time::Instant;

pub(super) struct LoadProgress {
    bar: ProgressBar,
    /// Requests of the load, if the bar counts them instead of time.
    requests: Option<u64>,
}

pub(super) fn counting(title: &str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} {wide_bar} {elapsed} {msg}");
    let bar = ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.with_prefix(title.to_owned())
}

impl LoadProgress {
    pub(super) fn new(title: &str, length: &RunLength) -> Self {
        let millis = length.duration.map(|duration| (duration + length.warm_up).as_millis() as u64);
        Self { bar: counting(title, length.requests.or(millis).unwrap_or(0)), requests: length.requests }
    }

    pub(super) fn update(&self, counters: &LiveCounters, begin: Instant) {
        let [finished, failed] = [&counters.totals.finished, &counters.totals.failed].map(|count| count.load(Relaxed));
        let elapsed = begin.elapsed().max(Duration::from_millis(1));
        let speed = counters.totals.characters.load(Relaxed) as f64 / elapsed.as_secs_f64();
        let in_flight = counters.read().in_flight();
        self.bar.set_position(self.requests.map_or(elapsed.as_millis() as u64, |_| finished + failed));
        let message = format!("{finished} succeeded, {failed} failed, {in_flight} in flight, {speed:.0} characters/s");
        self.bar.set_message(message);
    }
}

impl Drop for LoadProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
