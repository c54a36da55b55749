//! Options of loads, and checks of their size.

use super::{output::OutputArgs, server::ServerArgs, session::LoadLimits, workload::WorkloadArgs};
use crate::{
    error::{Error, Result},
    load::{
        arrivals::ArrivalProcess,
        schedule::{LoadPattern, RunLength},
    },
    units,
};
use std::time::Duration;

const MAX_REQUESTS: u64 = 100_000_000;
pub(super) const MAX_IN_FLIGHT: usize = 65_536;
const DEFAULT_BURST: usize = 8;

// options that all commands with loads share
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LoadArgs {
    #[command(flatten)]
    pub(super) server: ServerArgs,
    #[command(flatten)]
    pub(super) workload: WorkloadArgs,
    #[command(flatten)]
    pub(super) length: RunLengthArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

#[derive(Debug, Clone, clap::Args)]
pub(super) struct RunLengthArgs {
    /// Time during which requests are sent but not measured [default: 3s; in `report`, 1s].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = units::duration_or_zero)]
    warm_up: Option<Duration>,
    /// Time during which measured requests are started; requests in flight at its end are still awaited [default: 30s;
    /// in `report`, 5s; none if --requests is given].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = units::duration)]
    duration: Option<Duration>,
    /// Measured requests; with --duration, the load ends at whichever comes first.
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Maximum requests of an open loop in flight; others wait, and their wait is counted and reported.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_in_flight: usize,
    /// Share of requests that the client cancels midway, from 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(super) cancel_share: f64,
}

/// Length of a load whose options do not state it.
#[derive(Debug, Clone, Copy)]
pub(super) struct DefaultLength {
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
}

/// Length of a load of `run` and `sweep`.
pub(super) const LONG: DefaultLength =
    DefaultLength { warm_up: Duration::from_secs(3), duration: Duration::from_secs(30) };

impl RunLengthArgs {
    /// Checks the options and returns the limits of a load.
    pub(super) fn limits(&self, default: DefaultLength) -> Result<LoadLimits> {
        self.requests.map_or(Ok(()), |requests| Error::check_range("--requests", requests, 1..=MAX_REQUESTS))?;
        check_in_flight("--max-in-flight", self.max_in_flight)?;
        Error::check_range("--cancel-share", self.cancel_share, 0.0..=1.0)?;
        let fallback = self.requests.is_none().then_some(default.duration);
        let Self { requests, max_in_flight, .. } = *self;
        let warm_up = self.warm_up.unwrap_or(default.warm_up);
        let length = RunLength { warm_up, duration: self.duration.or(fallback), requests };
        Ok(LoadLimits { length, max_in_flight, min_requests: 0 })
    }
}

#[derive(Debug, Clone, clap::Args)]
pub(super) struct ArrivalArgs {
    /// How arrivals of open loops follow each other [default: poisson].
    #[arg(long, value_name = "SHAPE")]
    arrivals: Option<ArrivalProcess>,
    /// Requests that arrive together with --arrivals bursty [default: 8].
    #[arg(long, value_name = "N")]
    burst: Option<usize>,
}

impl ArrivalArgs {
    /// Checks the options. `has_open_loops` is true if the command runs open loops; `flags` would make it run one.
    pub(super) fn check(&self, has_open_loops: bool, flags: &str) -> Result<()> {
        let options = [("--arrivals", self.arrivals.is_some()), ("--burst", self.burst.is_some())];
        if let Some((field, _)) = options.into_iter().find(|(_, is_set)| *is_set && !has_open_loops) {
            let expected = format!("no value without an open loop (use {flags} without --concurrency)");
            return Err(Error::option(field, "one", expected));
        }
        let Some(burst) = self.burst else { return Ok(()) };
        if self.arrivals != Some(ArrivalProcess::Bursty) {
            return Err(Error::option("--burst", burst, "no value without --arrivals bursty"));
        }
        check_in_flight("--burst", burst)
    }

    pub(super) fn load(&self, rate: f64) -> LoadPattern {
        let arrivals = self.arrivals.unwrap_or(ArrivalProcess::Poisson);
        let burst = if arrivals == ArrivalProcess::Bursty { self.burst.unwrap_or(DEFAULT_BURST) } else { 1 };
        LoadPattern::Open { arrivals, rate, burst: burst as u64 }
    }
}

pub(super) fn check_in_flight(field: &str, count: usize) -> Result<()> {
    Error::check_range(field, count, 1..=MAX_IN_FLIGHT)
}

pub(super) fn check_rate(field: &str, rate: f64) -> Result<()> {
    match (0.001..=1e6).contains(&rate) {
        true => Ok(()),
        false => Err(Error::option(field, rate, "0.001 to 1000000 requests/s")),
    }
}
