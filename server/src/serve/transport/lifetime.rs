//! How long a connection lives: until it is evicted, idle for too long, or too old, or until the server closes all connections.
//!
//! A connection that ends so gets a graceful shutdown first: HTTP/2 clients receive GOAWAY and connect again, and HTTP/1.1 clients
//! see the connection close between two requests.

use super::connection_table::{Admission, CallInProgress, ConnectionPlace};
use crate::config::TransportConfig;
use hyper_util::server::graceful::GracefulConnection;
use std::{pin::Pin, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// How long an evicted connection may take to close: its place has been given away.
const EVICTION_TIME: Duration = Duration::from_millis(100);
/// How long an idle connection may take to close.
const IDLE_CLOSE_TIME: Duration = Duration::from_secs(5);
/// How long a response that did not end in time may take to send an error.
const FAREWELL_TIME: Duration = Duration::from_millis(500);
/// A connection's age limit varies by up to 1/`JITTER` in both directions, so that clients do not all connect again at once.
const JITTER: u32 = 10;

/// Limits on the lifetime of connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LifetimeLimits {
    /// Maximum time without a call; none disables the limit.
    pub(crate) idle: Option<Duration>,
    /// Maximum age; none disables the limit.
    pub(crate) age: Option<Duration>,
    /// Time for calls in progress to finish after the maximum age.
    pub(crate) grace: Duration,
}

impl From<&TransportConfig> for LifetimeLimits {
    fn from(config: &TransportConfig) -> Self {
        Self { idle: config.connection_idle, age: config.connection_age, grace: config.connection_age_grace }
    }
}

/// An open connection: its place in the table and its calls in progress. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct OpenConnection {
    place: Arc<ConnectionPlace>,
    admission: Admission,
    /// Number of calls in progress.
    calls: watch::Sender<usize>,
    /// Cancelled when responses must end, because the connection closes soon.
    ending: CancellationToken,
    /// Cancelled to close the connection.
    close: CancellationToken,
}

/// A connection that can finish its calls and then close.
pub(crate) trait ClosingConnection: Future<Output = Result<(), hyper::Error>> + Send {
    /// Takes no more requests, and closes when the calls in progress have ended.
    fn close_gracefully(self: Pin<&mut Self>);
}

impl<C: GracefulConnection<Error = hyper::Error> + Send> ClosingConnection for C {
    fn close_gracefully(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// A connection of hyper's servers, for HTTP/1.1 or HTTP/2.
pub(crate) type HyperConnection = Pin<Box<dyn ClosingConnection>>;

/// Why a connection ends before its client closes it.
enum End {
    Evicted,
    Idle,
    Aged,
    ServerCloses,
}

impl OpenConnection {
    /// Opens a connection after its handshake. Returns `None` if it was evicted meanwhile.
    pub(crate) fn open(place: ConnectionPlace) -> Option<Self> {
        let admission = place.open()?;
        Some(Self {
            place: Arc::new(place),
            admission,
            calls: watch::Sender::new(0),
            ending: CancellationToken::new(),
            close: CancellationToken::new(),
        })
    }

    /// True if the connection may only check health.
    pub(crate) fn is_health_only(&self) -> bool {
        self.admission == Admission::HealthOnly
    }

    /// Is cancelled when responses must end, because the connection closes soon.
    pub(crate) fn ending(&self) -> &CancellationToken {
        &self.ending
    }

    /// Closes the connection once it is cancelled.
    pub(crate) fn close(&self) -> &CancellationToken {
        &self.close
    }

    /// Counts a call until the returned value is dropped.
    pub(crate) fn begin_call(&self) -> CallInProgress {
        self.place.begin_call(&self.calls)
    }

    /// Counts a call that needs no key until the returned value is dropped. Meanwhile the connection may be evicted.
    pub(crate) fn begin_keyless_call(&self) -> CallInProgress {
        self.place.begin_keyless_call(&self.calls)
    }

    /// Returns true if a call is in progress.
    #[cfg(feature = "http")]
    pub(crate) fn has_calls(&self) -> bool {
        *self.calls.borrow() > 0
    }

    /// Waits until no call is in progress.
    #[cfg(feature = "http")]
    pub(crate) async fn calls_ended(self) {
        // The sender is a field of `self`, so there is no error.
        let _ = self.calls.subscribe().wait_for(|calls| *calls == 0).await;
    }

    /// Waits until the connection has to close in favour of another.
    pub(crate) async fn evicted(&self) {
        self.place.evicted().await;
    }

    /// Runs hyper's connection until the client closes it or a limit ends it. An error means that the connection broke.
    pub(crate) async fn run(
        self,
        mut connection: HyperConnection,
        limits: LifetimeLimits,
        closing: CancellationToken,
    ) -> Result<(), hyper::Error> {
        let end = tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            () = self.evicted() => End::Evicted,
            () = self.close.cancelled() => End::Evicted,
            () = idle_for(self.calls.subscribe(), limits.idle) => End::Idle,
            () = aged(limits.age, self.place.number()) => End::Aged,
            () = closing.cancelled() => End::ServerCloses,
        };
        connection.as_mut().close_gracefully();
        let limit = match end {
            End::Evicted => EVICTION_TIME,
            End::Idle => IDLE_CLOSE_TIME,
            End::Aged => limits.grace,
            // The drain has its own limit.
            End::ServerCloses => return connection.await,
        };
        if let Ok(result) = timeout(limit, connection.as_mut()).await {
            return result;
        }
        self.ending.cancel();
        // A connection that does not close in time is dropped.
        timeout(FAREWELL_TIME, connection).await.unwrap_or(Ok(()))
    }
}

/// Waits until a connection with this number of calls has had none for as long as `limit`.
async fn idle_for(mut calls: watch::Receiver<usize>, limit: Option<Duration>) {
    let Some(limit) = limit else { return std::future::pending().await };
    loop {
        let is_idle = *calls.borrow_and_update() == 0;
        if !is_idle {
            // An error means that the connection is gone.
            let _ = calls.changed().await;
        } else if timeout(limit, calls.changed()).await.is_err() {
            return;
        }
    }
}

/// Waits until a connection that opens now has reached its maximum age. `number` is its number in the order of connections.
async fn aged(limit: Option<Duration>, number: u64) {
    match limit {
        Some(limit) => sleep(with_jitter(limit, scattered(number))).await,
        None => std::future::pending().await,
    }
}

/// Returns a number that is far from those of the connections before. Consecutive multiples of the golden ratio spread evenly over
/// all values (a Weyl sequence), and repeat in a simulation.
fn scattered(number: u64) -> u32 {
    (number as u32).wrapping_mul(0x9e37_79b9)
}

/// Returns `limit` changed by up to 1/[`JITTER`] in either direction. Any value of `random` is equally likely.
fn with_jitter(limit: Duration, random: u32) -> Duration {
    let spread = limit / JITTER;
    limit - spread + (2 * spread).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_vary_by_a_tenth() {
        let limit = Duration::from_secs(100);
        let ages = [0, u32::MAX / 2, u32::MAX].map(|random| with_jitter(limit, random).as_secs_f64().round());
        assert_eq!(ages, [90.0, 100.0, 110.0]);
    }

    #[test]
    fn connections_that_open_together_close_apart() {
        let limit = Duration::from_secs(1000);
        let mut ages: Vec<_> = (100..200).map(|number| with_jitter(limit, scattered(number))).collect();
        ages.sort_unstable();
        // even spacing would be two seconds
        assert!(ages.windows(2).all(|pair| (pair[1] - pair[0]).as_secs_f64() > 0.5), "{ages:?}");
    }
}
