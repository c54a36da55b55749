//! Options for the length of loads, and checks of their size.

use crate::{
    error::{Error, Result},
    load::schedule::RunLength,
    units,
};
use std::time::Duration;

/// Maximum requests of a load.
const MAX_REQUESTS: u64 = 100_000_000;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct RunLengthArgs {
    /// Time during which requests are sent but not measured.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::span)]
    warm_up: Duration,
    /// Time during which measured requests are started; requests in flight at its end are still awaited [default: 30s, unless
    /// --requests is given].
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Measured requests; with --duration, the load ends at whichever comes first.
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Maximum requests of an open loop in flight; others wait, and their wait is counted and reported.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(super) max_in_flight: usize,
    /// Share of requests that the client cancels midway, from 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(super) cancel_share: f64,
}

impl RunLengthArgs {
    pub(super) fn length(&self) -> Result<RunLength> {
        if let Some(requests) = self.requests.filter(|requests| !(1..=MAX_REQUESTS).contains(requests)) {
            return Err(Error::option("--requests", requests, format!("from 1 to {MAX_REQUESTS}")));
        }
        check_in_flight("--max-in-flight", self.max_in_flight)?;
        let fallback = self.requests.is_none().then_some(Duration::from_secs(30));
        Ok(RunLength { warm_up: self.warm_up, duration: self.duration.or(fallback), requests: self.requests })
    }
}

/// Maximum requests in flight.
pub(super) const MAX_IN_FLIGHT: usize = 65_536;

/// Checks a number of requests in flight.
pub(super) fn check_in_flight(field: &str, count: usize) -> Result<()> {
    if (1..=MAX_IN_FLIGHT).contains(&count) {
        return Ok(());
    }
    Err(Error::option(field, count, format!("from 1 to {MAX_IN_FLIGHT}")))
}

/// Checks a rate.
pub(super) fn check_rate(field: &str, rate: f64) -> Result<()> {
    if (0.001..=1e6).contains(&rate) {
        Ok(())
    } else {
        Err(Error::option(field, rate, "from 0.001 to 1000000 requests/s"))
    }
}
