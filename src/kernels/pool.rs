//! A few threads that share one step's work: cheap to wake while decoding, asleep when nothing runs.
//!
//! A job is posted by one atomic store: its number and how many of its tasks nobody has taken yet, in one word. Whoever
//! takes a task counts that word down; the caller takes tasks too, then waits until all are done. A core that is busy
//! elsewhere thus delays nobody by more than the task it took. A worker that finds nothing to do spins for some dozens of
//! microseconds (the next product of the same step comes sooner than that) and then sleeps.

use super::disjoint::DisjointSlice;
use std::{
    any::Any,
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*},
    },
    thread::JoinHandle,
};

/// How often a worker looks for a new job before it sleeps.
const SPINS: usize = 4_000;
/// How often the caller looks whether all is done before it lets others have its core.
const PATIENCE: usize = 10_000;

/// Threads that run the tasks of one job together. Any thread may call [`run`](Self::run); jobs take turns.
pub struct ThreadPool {
    board: Arc<Board>,
    workers: Vec<JoinHandle<()>>,
    turn: Mutex<()>,
}

/// What a job does, behind a pointer that fits one word.
type Body<'a> = &'a (dyn Fn(usize) + Sync);

/// What is done with some rows' parts of one column.
type CellBody<'a> = dyn Fn(usize, usize, &mut [&mut [f32]]) + Sync + 'a;

/// What caller and workers share.
#[derive(Default)]
struct Board {
    /// The newest job's number in the upper half, its tasks that nobody has taken in the lower.
    open: Line<AtomicU64>,
    /// Tasks of the newest job that are done.
    done: Line<AtomicUsize>,
    /// How many tasks the newest job has, and what they do: valid while one of them is taken and not done.
    tasks: AtomicUsize,
    body: AtomicPtr<Body<'static>>,
    /// What the first task that panicked said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stopped: AtomicBool,
    /// Workers that sleep, or are about to: with none, a post costs no call to the system.
    asleep: AtomicUsize,
    bed: Mutex<()>,
    woken: Condvar,
}

/// On a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

thread_local! {
    /// Whether this thread is at work on a task.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

const TASKS: u64 = u32::MAX as u64;

impl ThreadPool {
    /// A pool of `threads`, the caller of [`run`](Self::run) included; at least one. Where the system refuses a thread, the
    /// pool works with those it got.
    pub fn new(threads: usize) -> Self {
        let board = Arc::new(Board::default());
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

    /// Calls `body(0)` … `body(tasks - 1)`, each once, on all threads; returns when all are done. From within a task, on the
    /// task's own thread alone: the others are at work already.
    ///
    /// # Panics
    /// If a task panics, after all have ended; if there are 2^32 tasks.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || tasks < 2 || IN_TASK.get() {
            (0..tasks).for_each(body);
            return;
        }
        assert!(tasks as u64 <= TASKS, "{tasks} tasks");
        let turn = lock(&self.turn);
        // SAFETY: only the lifetime changes. The body is called by who has taken a task, and `run` returns when all tasks,
        // each of which is taken once, are done.
        let mut body = unsafe { std::mem::transmute::<Body<'_>, Body<'static>>(body) };
        self.board.post(tasks, &raw mut body);
        while self.board.take() {}
        self.board.wait_until_done(tasks);
        let panic = lock(&self.board.panic).take();
        drop(turn);
        if let Some(panic) = panic {
            std::panic::resume_unwind(panic);
        }
    }

    /// Calls `body(i, part)` for the consecutive parts of `width` floats, on all threads if `share`.
    pub fn for_chunks(&self, floats: &mut [f32], width: usize, share: bool, body: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        assert!(floats.len().is_multiple_of(width));
        if !share {
            floats.chunks_exact_mut(width).enumerate().for_each(|(index, part)| body(index, part));
            return;
        }
        let (parts, shared) = (floats.len() / width, DisjointSlice::new(floats));
        // SAFETY: each part belongs to one task.
        self.run(parts, &|part| body(part, unsafe { shared.part(part * width, width) }));
    }

    /// Calls `body((row, column), parts)` for `floats`, (rows, columns, width), on all threads if `share`: with the parts of
    /// up to `T` rows from that one on, in one column. The rows of the first column come first.
    pub fn for_columns<const T: usize>(
        &self,
        floats: &mut [f32],
        rows: usize,
        columns: usize,
        share: bool,
        body: &CellBody<'_>,
    ) {
        let Some(width) = floats.len().checked_div(rows * columns) else { return };
        assert_eq!(floats.len(), width * rows * columns);
        let (shared, blocks) = (DisjointSlice::new(floats), rows.div_ceil(T));
        let task = |task: usize| {
            let (first, column) = (task % blocks * T, task / blocks);
            let mut parts: [&mut [f32]; T] = std::array::from_fn(|_| &mut [][..]);
            let parts = &mut parts[..T.min(rows - first)];
            for (row, part) in parts.iter_mut().enumerate() {
                // SAFETY: each part belongs to one task.
                *part = unsafe { shared.part(((first + row) * columns + column) * width, width) };
            }
            body(first, column, parts);
        };
        if share { self.run(blocks * columns, &task) } else { (0..blocks * columns).for_each(task) }
    }
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.board.stopped.store(true, SeqCst);
        self.board.wake();
        for worker in self.workers.drain(..) {
            // A worker cannot panic outside a task, whose panics are caught; there is nothing to report.
            let _ = worker.join();
        }
    }
}

impl Board {
    /// Opens a job. `body` must stay where it is until all tasks are done.
    fn post(&self, tasks: usize, body: *mut Body<'static>) {
        // nobody reads these three now: all tasks of the job before are done
        self.tasks.store(tasks, Relaxed);
        self.body.store(body, Relaxed);
        self.done.0.store(0, Relaxed);
        let number = (self.open.0.load(Relaxed) >> 32).wrapping_add(1) & TASKS;
        // whoever sees the new word sees what was stored before it; ordered against `asleep`, so that either the poster sees
        // the sleeper or the sleeper the job
        self.open.0.store(number << 32 | tasks as u64, SeqCst);
        if self.asleep.load(SeqCst) > 0 {
            self.wake();
        }
    }

    fn wake(&self) {
        // behind the lock, no sleeper is between its last look and its sleep
        drop(lock(&self.bed));
        self.woken.notify_all();
    }

    /// Takes a task of the newest job and does it. Tells whether there was one.
    fn take(&self) -> bool {
        let left = |open: u64| (open & TASKS > 0).then(|| open - 1);
        let Ok(open) = self.open.0.fetch_update(AcqRel, Relaxed, left) else { return false };
        // The task that was taken keeps its job alive, so these are its own.
        let task = self.tasks.load(Relaxed) - (open & TASKS) as usize;
        let body = self.body.load(Relaxed);
        IN_TASK.set(true);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: `run` keeps the body where it is until this task, too, is done.
            let body = unsafe { *body };
            body(task);
        }));
        IN_TASK.set(false);
        if let Err(panic) = outcome {
            // Nothing of a panic may run before the task counts as done: dropping what it said could panic again.
            let mut first = lock(&self.panic);
            if first.is_none() { *first = Some(panic) } else { std::mem::forget(panic) }
        }
        self.done.0.fetch_add(1, Release);
        true
    }

    fn wait_until_done(&self, tasks: usize) {
        let mut looks = 0;
        while self.done.0.load(Acquire) < tasks {
            std::hint::spin_loop();
            looks += 1;
            if looks > PATIENCE {
                std::thread::yield_now();
            }
        }
    }

    fn work(&self) {
        let mut idle = 0;
        while !self.stopped.load(Relaxed) {
            if self.take() {
                idle = 0;
            } else if idle < SPINS {
                idle += 1;
                std::hint::spin_loop();
            } else {
                self.sleep();
                idle = 0;
            }
        }
    }

    fn sleep(&self) {
        let mut bed = lock(&self.bed);
        self.asleep.fetch_add(1, SeqCst);
        while self.open.0.load(SeqCst) & TASKS == 0 && !self.stopped.load(SeqCst) {
            bed = self.woken.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_sub(1, SeqCst);
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
        let pool = ThreadPool::new(3);
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
        let pool = ThreadPool::new(2);
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
    fn a_job_within_a_task_runs_where_it_is() {
        let (pool, count) = (ThreadPool::new(2), AtomicUsize::new(0));
        pool.run(8, &|_| {
            pool.run(8, &|_| {
                count.fetch_add(1, Relaxed);
            });
        });
        assert_eq!(count.load(Relaxed), 64);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = ThreadPool::new(2);
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|task| assert_ne!(task, 5))));
        let message = result.unwrap_err();
        assert!(message.downcast_ref::<String>().is_some_and(|said| said.contains("left != right")));
        let count = AtomicUsize::new(0);
        pool.run(8, &|_| {
            count.fetch_add(1, Relaxed);
        });
        assert_eq!(count.load(Relaxed), 8);
    }
}
