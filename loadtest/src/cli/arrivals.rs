//! Options for the arrivals of open loops.

use super::run_length::MAX_IN_FLIGHT;
use crate::{
    error::{Error, Result},
    load::{arrivals::ArrivalProcess, schedule::LoadPattern},
};

/// Default of --burst.
const DEFAULT_BURST: u64 = 8;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct ArrivalArgs {
    /// How arrivals of open loops follow each other [default: poisson].
    #[arg(long, value_name = "SHAPE")]
    arrivals: Option<ArrivalProcess>,
    /// Requests that arrive together with --arrivals bursty [default: 8].
    #[arg(long, value_name = "N")]
    burst: Option<u64>,
}

impl ArrivalArgs {
    /// Checks the options. `has_open_loops` is true if the command runs open loops; `flags` would make it run one.
    pub(super) fn check(&self, has_open_loops: bool, flags: &str) -> Result<()> {
        let given = [("--arrivals", self.arrivals.is_some()), ("--burst", self.burst.is_some())];
        if let Some((field, _)) = given.into_iter().find(|(_, is_given)| *is_given && !has_open_loops) {
            return Err(Error::Setting(format!(
                "{field} applies to open loops only: use {flags} without --concurrency"
            )));
        }
        let Some(burst) = self.burst else { return Ok(()) };
        if self.arrivals != Some(ArrivalProcess::Bursty) {
            return Err(Error::option("--burst", burst, "used with --arrivals bursty"));
        }
        if !(1..=MAX_IN_FLIGHT as u64).contains(&burst) {
            return Err(Error::option("--burst", burst, format!("from 1 to {MAX_IN_FLIGHT}")));
        }
        Ok(())
    }

    /// Returns an open loop of `rate` requests per second.
    pub(super) fn load(&self, rate: f64) -> LoadPattern {
        let arrivals = self.arrivals.unwrap_or(ArrivalProcess::Poisson);
        let burst = if arrivals == ArrivalProcess::Bursty { self.burst.unwrap_or(DEFAULT_BURST) } else { 1 };
        LoadPattern::Open { arrivals, rate, burst }
    }
}
