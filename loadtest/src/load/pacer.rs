//! A thread that delivers requests when they are due. The runtime's timers have millisecond resolution and are late under load.

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

/// Requests that may wait to be received. Each carries its intended send time, so that its wait is counted.
const WAITING: usize = 1024;

/// Handle of the thread, which ends when this handle or the receiver is dropped.
pub struct Pacer {
    stop: Option<SyncSender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Pacer {
    /// Starts a thread that delivers every request at its intended send time. Fails if the thread cannot be started.
    pub fn start(
        requests: impl Iterator<Item = ScheduledRequest> + Send + 'static,
    ) -> Result<(Self, Receiver<ScheduledRequest>)> {
        let (stop, stopped) = sync_channel::<()>(0);
        let (sender, receiver) = mpsc::channel(WAITING);
        let run = move || {
            for scheduled in requests {
                let left = scheduled.intended.saturating_duration_since(Instant::now());
                let ended = left > Duration::ZERO && stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout);
                if ended || sender.blocking_send(scheduled).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("pacer".into()).spawn(run);
        let thread = thread.map_err(|error| Error::Internal(format!("cannot start the pacer thread: {error}")))?;
        Ok((Self { stop: Some(stop), thread: Some(thread) }, receiver))
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // the receiver is dropped by now, so the thread ends at once; a panic was reported by its own hook
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_come_when_due_and_never_before() {
        let begin = Instant::now();
        let requests: Vec<_> = (0..20u64)
            .map(|number| ScheduledRequest {
                number,
                intended: begin + Duration::from_millis(number * 3),
                measured: true,
            })
            .collect();
        let (pacer, mut receiver) = Pacer::start(requests.into_iter()).unwrap();
        let mut count = 0;
        while let Some(scheduled) = receiver.recv().await {
            assert!(Instant::now() >= scheduled.intended);
            assert_eq!(scheduled.number, count);
            count += 1;
        }
        assert_eq!(count, 20);
        drop(pacer);
    }

    #[tokio::test]
    async fn the_thread_ends_when_its_handle_is_dropped() {
        let far = Instant::now() + Duration::from_secs(3600);
        let requests = (0..).map(move |number| ScheduledRequest { number, intended: far, measured: true });
        let (pacer, receiver) = Pacer::start(requests).unwrap();
        drop(receiver);
        drop(pacer);
    }
}
