//! Runs long work without delaying the other connections of its thread.

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task,
};

/// Runs `work` on this thread. In a multi-threaded runtime, another thread takes over this thread's other tasks meanwhile. The number
/// of such threads has no limit here: weir's server limits the bytes of all messages that it holds, and `work` takes milliseconds.
///
/// # Panics
/// In a task of a `LocalSet` of a multi-threaded runtime.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => task::block_in_place(work),
        // A runtime with one thread has no other thread.
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, time::Duration};
    use tokio::runtime::Builder;

    #[test]
    fn other_tasks_of_the_only_thread_run_meanwhile() {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (sender, receiver) = mpsc::sync_channel(1);
        let received = runtime.block_on(async {
            let waiting = task::spawn(async move {
                task::spawn(async move { sender.send(()).unwrap() });
                blocking(|| receiver.recv_timeout(Duration::from_secs(60)))
            });
            waiting.await.unwrap()
        });
        assert_eq!(received, Ok(()));
    }

    #[test]
    fn a_thread_that_runs_no_other_tasks_does_the_work() {
        assert_eq!(blocking(|| 1), 1);
        let runtime = Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(async { blocking(|| 2) }), 2);
    }
}
