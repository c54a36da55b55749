//! What the worker sleeps on: it is woken by new jobs, by readers that made room, and at the end.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    task::Wake,
    time::Duration,
};

/// A flag that stays up until the worker has seen it, so that no call is lost between a look and a sleep.
#[derive(Debug, Default)]
pub(super) struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    pub(super) fn raise(&self) {
        *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Sleeps until the flag is up or the time is over, and takes the flag down.
    pub(super) fn wait(&self, limit: Option<Duration>) {
        let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
        let mut raised = match limit {
            None => self.changed.wait_while(raised, |raised| !*raised).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let woken = self.changed.wait_timeout_while(raised, limit, |raised| !*raised);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        *raised = false;
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.raise();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.raise();
    }
}
