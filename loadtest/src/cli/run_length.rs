//! For how long each load is measured.

use crate::{
    error::{Error, Result},
    load::schedule::RunLength,
    units,
};
use std::time::Duration;

/// The most requests of a load.
const MAX_REQUESTS: u64 = 100_000_000;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct RunLengthArgs {
    /// How long requests are made before those that are measured.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::span)]
    warm_up: Duration,
    /// How long requests that are measured are started for; those that run then are waited for. 30s if --requests is not given
    /// either.
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// How many requests are measured; with --duration, whichever comes first.
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Requests of an open loop that may be in flight; more wait, which is counted and said.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(super) max_in_flight: usize,
    /// The share of requests that this client gives up in the midst, from 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(super) cancel_share: f64,
}

impl RunLengthArgs {
    pub(super) fn extent(&self) -> Result<RunLength> {
        if let Some(most) = self.requests.filter(|most| !(1..=MAX_REQUESTS).contains(most)) {
            return Err(Error::option("--requests", most, format!("from 1 to {MAX_REQUESTS}")));
        }
        in_flight("--max-in-flight", self.max_in_flight)?;
        let fallback = self.requests.is_none().then_some(Duration::from_secs(30));
        Ok(RunLength { warm_up: self.warm_up, duration: self.duration.or(fallback), requests: self.requests })
    }
}

/// The most requests at a time.
pub(super) const MAX_IN_FLIGHT: usize = 65_536;

/// Checks a number of requests at a time.
pub(super) fn in_flight(field: &str, count: usize) -> Result<()> {
    if (1..=MAX_IN_FLIGHT).contains(&count) {
        return Ok(());
    }
    Err(Error::option(field, count, format!("from 1 to {MAX_IN_FLIGHT}")))
}

/// Checks a rate.
pub(super) fn rate(field: &str, rate: f64) -> Result<()> {
    if (0.001..=1e6).contains(&rate) {
        Ok(())
    } else {
        Err(Error::option(field, rate, "from 0.001 to 1000000 requests/s"))
    }
}
