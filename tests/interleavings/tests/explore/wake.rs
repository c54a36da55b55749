//! The wake signal: no wake-up is lost, for a thread and for a task. `shuttle` reports a lost one as a deadlock.

use crate::explore;
#[cfg(not(miri))]
use shuttle::future::block_on;
#[cfg(not(miri))]
use std::future::poll_fn;
use std::sync::Arc;
use weir_interleavings::{
    WakeSignal,
    sync::{
        atomic::{AtomicUsize, Ordering::SeqCst},
        thread,
    },
};

/// Threads that raise the signal.
const RAISERS: usize = 3;

/// Takes an event after each wake-up, until all have been seen. `wait` waits for the signal.
fn wait_for_events(wait: impl Fn(&WakeSignal) + Send + Sync + Copy + 'static) {
    explore(move || {
        let signal = WakeSignal::default();
        let events = Arc::new(AtomicUsize::new(0));
        let raisers: Vec<_> = (0..RAISERS)
            .map(|index| {
                let signal = signal.clone();
                let events = Arc::clone(&events);
                thread::spawn(move || {
                    events.fetch_add(1, SeqCst);
                    // some raise it as a client's channel does
                    if index == 0 { signal.waker().wake() } else { signal.raise() }
                })
            })
            .collect();
        let mut seen = 0;
        while seen < RAISERS {
            seen += events.swap(0, SeqCst);
            if seen < RAISERS {
                wait(&signal);
            }
        }
        raisers.into_iter().for_each(|raiser| raiser.join().unwrap());
    });
}

#[test]
fn a_thread_misses_no_wake_up() {
    wait_for_events(|signal| signal.wait(None));
}

/// Miri runs without an executor.
#[cfg(not(miri))]
#[test]
fn a_task_misses_no_wake_up() {
    wait_for_events(|signal| block_on(poll_fn(|cx| signal.poll_wait(cx))));
}
