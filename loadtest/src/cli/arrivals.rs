//! How requests of open loops come.

use super::run_length::MAX_IN_FLIGHT;
use crate::{
    error::{Error, Result},
    load::{arrivals::ArrivalProcess, schedule::LoadPattern},
};

/// Requests that come together, if it is not said how many.
const BURST: u64 = 8;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct ArrivalArgs {
    /// How arrivals of open loops follow each other; poisson if not given.
    #[arg(long, value_name = "SHAPE")]
    arrivals: Option<ArrivalProcess>,
    /// Requests that come together with --arrivals bursty; 8 if not given.
    #[arg(long, value_name = "N")]
    burst: Option<u64>,
}

impl ArrivalArgs {
    /// Before anything is measured; `open` is whether there are open loops at all, which `flags` would ask for.
    pub(super) fn check(&self, open: bool, flags: &str) -> Result<()> {
        let given = [("--arrivals", self.arrivals.is_some()), ("--burst", self.burst.is_some())];
        if let Some((field, _)) = given.into_iter().find(|(_, given)| *given && !open) {
            return Err(Error::Setting(format!(
                "{field} is about open loops: give {flags} with it, and no --concurrency"
            )));
        }
        let Some(burst) = self.burst else { return Ok(()) };
        if self.arrivals != Some(ArrivalProcess::Bursty) {
            return Err(Error::option("--burst", burst, "given with --arrivals bursty alone"));
        }
        if !(1..=MAX_IN_FLIGHT as u64).contains(&burst) {
            return Err(Error::option("--burst", burst, format!("from 1 to {MAX_IN_FLIGHT}")));
        }
        Ok(())
    }

    /// An open loop of so many requests a second.
    pub(super) fn load(&self, rate: f64) -> LoadPattern {
        let arrivals = self.arrivals.unwrap_or(ArrivalProcess::Poisson);
        let burst = if arrivals == ArrivalProcess::Bursty { self.burst.unwrap_or(BURST) } else { 1 };
        LoadPattern::Open { arrivals, rate, burst }
    }
}
