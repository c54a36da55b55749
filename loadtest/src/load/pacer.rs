//! A thread that keeps the schedule: timers of the runtime are a millisecond coarse, and late when it is busy.

use super::schedule::ScheduledRequest;
use crate::error::{Error, Result};
use std::{
    sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::Duration,
};
use tokio::{
    sync::mpsc::{self, Receiver},
    time::Instant,
};

/// Tickets that may wait to be taken. Their intended starts are in them, so that waiting is not lost.
const WAITING: usize = 1024;

/// The thread; it ends when this is dropped or the tickets have no taker.
pub struct Pacer {
    stop: Option<SyncSender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Pacer {
    /// Hands out every ticket at its intended start.
    ///
    /// # Errors
    /// No thread for it.
    pub fn start(
        tickets: impl Iterator<Item = ScheduledRequest> + Send + 'static,
    ) -> Result<(Self, Receiver<ScheduledRequest>)> {
        let (stop, stopped) = sync_channel::<()>(0);
        let (hand, taken) = mpsc::channel(WAITING);
        let run = move || {
            for ticket in tickets {
                let left = ticket.intended.saturating_duration_since(Instant::now());
                let ended = left > Duration::ZERO && stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout);
                if ended || hand.blocking_send(ticket).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("pacer".into()).spawn(run);
        let thread = thread.map_err(|error| Error::Internal(format!("no thread for the pacer: {error}")))?;
        Ok((Self { stop: Some(stop), thread: Some(thread) }, taken))
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // whoever drops it has dropped the tickets' receiver, so the thread ends at once; a panic was told by itself
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tickets_come_at_their_moments_and_never_before() {
        let begin = Instant::now();
        let tickets: Vec<_> = (0..20u64)
            .map(|number| ScheduledRequest {
                number,
                intended: begin + Duration::from_millis(number * 3),
                measured: true,
            })
            .collect();
        let (pacer, mut taken) = Pacer::start(tickets.into_iter()).unwrap();
        let mut count = 0;
        while let Some(ticket) = taken.recv().await {
            assert!(Instant::now() >= ticket.intended);
            assert_eq!(ticket.number, count);
            count += 1;
        }
        assert_eq!(count, 20);
        drop(pacer);
    }

    #[tokio::test]
    async fn it_ends_when_it_is_dropped_in_the_midst() {
        let far = Instant::now() + Duration::from_secs(3600);
        let tickets = (0..).map(move |number| ScheduledRequest { number, intended: far, measured: true });
        let (pacer, taken) = Pacer::start(tickets).unwrap();
        drop(taken);
        drop(pacer);
    }
}
