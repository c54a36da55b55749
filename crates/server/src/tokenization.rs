//! Decompresses, parses and tokenizes large requests on threads of their own, so that the threads that serve connections stay free.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::{sync::Semaphore, task::spawn_blocking};
use tracing::Span;
use weir_kernels::error::{Error, Result};

/// Requests of fewer bytes are converted at once, which takes less than a millisecond.
pub(crate) const INLINE_BYTES: usize = 16 << 10;

/// Converts requests on blocking threads, a limited number at a time, of which one caller uses a part.
#[derive(Clone)]
pub(crate) struct TokenizationWorkers(Arc<Workers>);

struct Workers {
    /// Workers without a request. Waiting requests get them in the order of their arrival.
    free: Arc<Semaphore>,
    /// Workers that one caller may use at the same time.
    caller_share: usize,
    /// The shares of the callers that have large requests.
    callers: Mutex<HashMap<Arc<str>, Weak<Semaphore>>>,
}

impl TokenizationWorkers {
    /// Creates `count` workers, at least one. One caller uses at most half of them, rounded up.
    pub(crate) fn new(count: usize) -> Self {
        let count = count.clamp(1, Semaphore::MAX_PERMITS);
        Self::with_share(count, count.div_ceil(2))
    }

    /// Creates `count` workers, of which one caller uses at most `caller_share`.
    pub(crate) fn with_share(count: usize, caller_share: usize) -> Self {
        let free = Arc::new(Semaphore::new(count));
        Self(Arc::new(Workers { free, caller_share, callers: Mutex::default() }))
    }

    /// Runs `work`, which converts `bytes` bytes of a request of `caller`, here if they are few, else as [`run_on_worker`] does.
    ///
    /// [`run_on_worker`]: Self::run_on_worker
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        caller: &Arc<str>,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        if bytes < INLINE_BYTES {
            return Ok(work());
        }
        self.run_on_worker(caller, work).await
    }

    /// Runs `work` of `caller` on a worker. Dropping the future before `work` has begun cancels it. Fails with [`Error::Internal`] if
    /// `work` panics.
    pub(crate) async fn run_on_worker<T: Send + 'static>(
        &self,
        caller: &Arc<str>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let closed = |_| Error::Internal("the tokenization workers are closed".into());
        // First, so that each caller waits for a worker at most as often as its share.
        let share = self.share(caller).acquire_owned().await.map_err(closed)?;
        let worker = Arc::clone(&self.0.free).acquire_owned().await.map_err(closed)?;
        let span = Span::current();
        let converted = spawn_blocking(move || {
            // Held until the work ends, also if the caller leaves earlier.
            let _held = (worker, share);
            span.in_scope(work)
        });
        converted.await.map_err(|_| Error::Internal("a panic; the log shows where".into()))
    }

    fn share(&self, caller: &Arc<str>) -> Arc<Semaphore> {
        let mut callers = self.0.callers.lock().unwrap_or_else(PoisonError::into_inner);
        callers.retain(|_, share| share.strong_count() > 0);
        if let Some(share) = callers.get(caller).and_then(Weak::upgrade) {
            return share;
        }
        let share = Arc::new(Semaphore::new(self.0.caller_share));
        callers.insert(Arc::clone(caller), Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Condvar;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;
    use std::thread;
    use tokio::task::{JoinHandle, yield_now};

    /// Work that waits until it is released.
    #[derive(Default)]
    struct Held {
        running: AtomicUsize,
        released: Mutex<bool>,
        change: Condvar,
    }

    impl Held {
        fn begin(self: &Arc<Self>, workers: &TokenizationWorkers, caller: &str) -> JoinHandle<()> {
            let held = Arc::clone(self);
            let workers = workers.clone();
            let caller = caller.into();
            tokio::spawn(async move {
                let work = move || {
                    held.running.fetch_add(1, SeqCst);
                    drop(held.change.wait_while(held.released.lock().unwrap(), |released| !*released).unwrap());
                };
                workers.run(&caller, INLINE_BYTES, work).await.unwrap();
            })
        }

        async fn running(&self, count: usize) {
            while self.running.load(SeqCst) < count {
                yield_now().await;
            }
        }

        fn release(&self) {
            *self.released.lock().unwrap() = true;
            self.change.notify_all();
        }
    }

    #[tokio::test]
    async fn a_caller_leaves_half_of_the_workers_to_others() {
        let workers = TokenizationWorkers::new(4);
        let held = Arc::<Held>::default();
        let mut calls: Vec<_> = (0..8).map(|_| held.begin(&workers, "a")).collect();
        held.running(2).await;
        calls.push(held.begin(&workers, "b"));
        held.running(3).await;
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!((held.running.load(SeqCst), workers.0.free.available_permits()), (3, 1));
        held.release();
        for call in calls {
            call.await.unwrap();
        }
        workers.run(&"c".into(), INLINE_BYTES, || ()).await.unwrap();
        assert_eq!(workers.0.free.available_permits(), 4);
        assert_eq!(workers.0.callers.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn only_large_work_leaves_the_thread() {
        let workers = TokenizationWorkers::new(1);
        let here = thread::current().id();
        let at = async |bytes| workers.run(&"a".into(), bytes, || thread::current().id()).await.unwrap();
        assert_eq!(at(INLINE_BYTES - 1).await, here);
        assert_ne!(at(INLINE_BYTES).await, here);
        let panicked = workers.run(&"a".into(), INLINE_BYTES, || panic!("requested panic")).await;
        assert!(matches!(panicked, Err::<(), _>(Error::Internal(_))));
        assert_ne!(at(INLINE_BYTES).await, here, "the panic returned its worker");
    }

    #[tokio::test]
    async fn a_caller_that_leaves_waits_no_more() {
        let workers = TokenizationWorkers::new(1);
        let held = Arc::<Held>::default();
        let first = held.begin(&workers, "a");
        held.running(1).await;
        let second = held.begin(&workers, "b");
        yield_now().await;
        second.abort();
        held.release();
        first.await.unwrap();
        assert!(second.await.unwrap_err().is_cancelled());
        assert_eq!(held.running.load(SeqCst), 1);
    }
}
