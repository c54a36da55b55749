//! A few threads that share one step's work: cheap to wake while decoding, asleep when nothing runs.
//!
//! A worker that finds nothing to do spins for a few dozen microseconds (the next product of the same step comes sooner
//! than that) and then parks. Tasks are handed out one by one from a shared counter, so a core that is busy elsewhere delays
//! nobody by more than one task.

use super::shared::Shared;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::*},
    },
    thread::JoinHandle,
};

/// How often a worker looks for a new job before it parks.
const SPINS: usize = 4_000;

/// Threads that run the tasks of one job together. Any thread may call [`run`](Self::run); jobs take turns.
pub struct Pool {
    board: Arc<Board>,
    workers: Vec<JoinHandle<()>>,
    turn: Mutex<()>,
}

/// What caller and workers share.
struct Board {
    slot: Mutex<Slot>,
    changed: Condvar,
    /// The number of the newest job; workers spin on it. `STOP` ends them.
    number: AtomicUsize,
    /// The next task to take.
    next: AtomicUsize,
    /// Workers that have taken the current job up and not finished with it.
    busy: AtomicUsize,
    panicked: AtomicBool,
}

/// What is posted, and who must be woken to see it.
#[derive(Default)]
struct Slot {
    job: Option<Job>,
    /// Workers that wait on `changed`: with none, a post costs no call to the system.
    asleep: usize,
}

const STOP: usize = usize::MAX;

#[derive(Clone, Copy)]
struct Job {
    tasks: usize,
    /// Lives until `run` returns, which it does only when no worker is busy with it.
    body: *const (dyn Fn(usize) + Sync),
}

// SAFETY: `body` points to a `Sync` closure, which `run` keeps alive while any worker may call it.
unsafe impl Send for Job {}

impl Pool {
    /// A pool of `threads`, the caller of [`run`](Self::run) included; at least one. Where the system refuses a thread, the
    /// pool works with those it got.
    pub fn new(threads: usize) -> Self {
        let board = Arc::new(Board {
            slot: Mutex::default(),
            changed: Condvar::new(),
            number: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
        });
        let spawn = |index: usize| {
            let board = board.clone();
            std::thread::Builder::new().name(format!("weir-pool-{index}")).spawn(move || board.work()).ok()
        };
        let workers = (1..threads.max(1)).map_while(spawn).collect();
        Self { board, workers, turn: Mutex::new(()) }
    }

    /// Threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body(0)` … `body(tasks - 1)`, each once, on all threads; returns when all are done.
    ///
    /// # Panics
    /// If a task panics, after all have ended.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || tasks < 2 {
            (0..tasks).for_each(body);
            return;
        }
        let turn = lock(&self.turn);
        // SAFETY: only the lifetime changes. No worker calls the closure after `run` returns: the job is withdrawn, and those
        // that had taken it up are waited for, below.
        let body_for_ever: *const (dyn Fn(usize) + Sync) =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(body) };
        self.board.post(Job { tasks, body: body_for_ever });
        let own = catch_unwind(AssertUnwindSafe(|| self.board.take_tasks(tasks, body)));
        // A worker that has not come by now is not waited for: it may be asleep, or its core busy elsewhere.
        lock(&self.board.slot).job = None;
        while self.board.busy.load(Acquire) > 0 {
            std::hint::spin_loop();
            std::thread::yield_now();
        }
        let panicked = self.board.panicked.swap(false, AcqRel);
        drop(turn);
        match own {
            Err(payload) => std::panic::resume_unwind(payload),
            Ok(()) => assert!(!panicked, "a task of the thread pool panicked"),
        }
    }

    /// Calls `body(i, part)` for the consecutive parts of `width` floats, on all threads if `share`.
    pub fn chunks(&self, floats: &mut [f32], width: usize, share: bool, body: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        if !share {
            floats.chunks_exact_mut(width).enumerate().for_each(|(index, part)| body(index, part));
            return;
        }
        let parts = floats.len() / width;
        let shared = Shared::new(floats);
        self.run(parts, &|index| {
            // SAFETY: each part belongs to one task.
            let part = unsafe { shared.part(index * width, width) };
            body(index, part);
        });
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut slot = lock(&self.board.slot);
        slot.job = None;
        self.board.number.store(STOP, Release);
        drop(slot);
        self.board.changed.notify_all();
        for worker in self.workers.drain(..) {
            // A worker cannot panic outside a task, whose panics are caught; there is nothing to report.
            let _ = worker.join();
        }
    }
}

impl Board {
    fn post(&self, job: Job) {
        let mut slot = lock(&self.slot);
        self.next.store(0, Relaxed);
        slot.job = Some(job);
        let number = self.number.load(Relaxed).wrapping_add(1) % STOP;
        self.number.store(number, Release);
        let asleep = slot.asleep;
        drop(slot);
        if asleep > 0 {
            self.changed.notify_all();
        }
    }

    fn take_tasks(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        loop {
            let task = self.next.fetch_add(1, Relaxed);
            if task >= tasks {
                return;
            }
            body(task);
        }
    }

    fn work(&self) {
        let mut seen = 0;
        while let Some((number, job)) = self.wait(seen) {
            seen = number;
            // SAFETY: `run` keeps the closure alive until `busy` is zero, which this worker has raised and lowers below.
            let body = unsafe { &*job.body };
            if catch_unwind(AssertUnwindSafe(|| self.take_tasks(job.tasks, body))).is_err() {
                self.panicked.store(true, Release);
            }
            self.busy.fetch_sub(1, AcqRel);
        }
    }

    /// The next job after number `seen`, counted in `busy`; none at the end.
    fn wait(&self, mut seen: usize) -> Option<(usize, Job)> {
        loop {
            for _ in 0..SPINS {
                if self.number.load(Acquire) != seen {
                    break;
                }
                std::hint::spin_loop();
            }
            let mut slot = lock(&self.slot);
            while self.number.load(Acquire) == seen {
                slot.asleep += 1;
                slot = self.changed.wait(slot).unwrap_or_else(PoisonError::into_inner);
                slot.asleep -= 1;
            }
            seen = self.number.load(Acquire);
            if seen == STOP {
                return None;
            }
            // none if the job was done before this worker came
            if let Some(job) = slot.job {
                self.busy.fetch_add(1, Relaxed);
                return Some((seen, job));
            }
        }
    }
}

/// Locks; a panic elsewhere leaves no broken data behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        let pool = Pool::new(3);
        for tasks in [0, 1, 2, 7, 500] {
            let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, &|task| {
                counts[task].fetch_add(1, Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Relaxed) == 1));
        }
    }

    #[test]
    fn many_callers_take_turns() {
        let pool = Pool::new(2);
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(5, &|task| {
                            total.fetch_add(task, Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(total.load(Relaxed), 4 * 200 * 10);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(2);
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|task| assert_ne!(task, 5))));
        assert!(result.is_err());
        let count = AtomicUsize::new(0);
        pool.run(8, &|_| {
            count.fetch_add(1, Relaxed);
        });
        assert_eq!(count.load(Relaxed), 8);
    }
}
