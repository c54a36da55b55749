//! Thread pool that shares the work of one step: cheap to wake while decoding, asleep when idle.
//!
//! The caller posts a job with one atomic store of one word, the job's number and its open tasks, which threads decrement to
//! take a task. The caller also takes tasks. A waiting thread polls, because the next product of a step usually comes within
//! microseconds, then offers its core to other processes between polls, and an idle worker then sleeps.

use crate::sync::atomic::Ordering::*;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, PoisonError, hint, limit_polls, lock, thread_local};
use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which a waiting thread offers its core to others between polls.
const SPIN: Duration = Duration::from_micros(40);

/// Time after which an idle worker sleeps.
const IDLE: Duration = Duration::from_micros(150);

/// Polls between two looks at the clock.
const POLLS: usize = 32;

/// Maximum polls of a worker before it sleeps, and of any thread before it offers its core.
const MAX_POLLS: usize = limit_polls(usize::MAX);

/// A pool of threads that run the tasks of one job at a time. Any thread may call [`run`](Self::run).
pub struct ThreadPool {
    job: Arc<JobState>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the caller whose job runs.
    caller: Mutex<()>,
}

/// Function of a job, behind a pointer that fits one word.
type Body<'a> = &'a (dyn Fn(usize) + Sync);

/// Function of the index of a chunk and its floats.
pub(crate) type ChunkBody<'a> = dyn Fn(usize, &mut [f32]) + Sync + 'a;

/// Function of first row, column, and the parts of the rows in that column.
type CellBody<'a> = dyn Fn(usize, usize, &mut [&mut [f32]]) + Sync + 'a;

/// State that the caller and the workers share.
#[derive(Default)]
struct JobState {
    /// Number of the newest job in the upper half, number of its open tasks in the lower half.
    open: CacheLine<AtomicU64>,
    /// Finished tasks of the newest job.
    done: CacheLine<AtomicUsize>,
    /// Tasks of the newest job. This and `body` are valid while a taken task is not done.
    tasks: AtomicUsize,
    body: AtomicPtr<Body<'static>>,
    /// Payload of the first task that panicked.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stopped: AtomicBool,
    /// Workers that sleep or are about to. If there are none, posting a job needs no system call.
    asleep: AtomicUsize,
    sleep_lock: Mutex<()>,
    wakeup: Condvar,
}

#[derive(Default)]
#[repr(align(128))]
struct CacheLine<T>(T);

thread_local! {
    /// True while this thread runs a task.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

/// Mask of the lower half of [`JobState::open`].
const TASK_MASK: u64 = u32::MAX as u64;

impl ThreadPool {
    /// Creates a pool of `threads` threads, the caller of [`run`](Self::run) included; of fewer if the system starts no more.
    pub fn new(threads: usize) -> Self {
        let job = Arc::new(JobState::default());
        let spawn = |index: usize| {
            let job = job.clone();
            thread::Builder::new().name(format!("weir-pool-{index}")).spawn(move || job.work()).ok()
        };
        let workers = (1..threads.max(1)).map_while(spawn).collect();
        Self { job, workers, caller: Mutex::new(()) }
    }

    /// Returns the number of threads, including the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body(0)` … `body(tasks - 1)` once each on all threads, and returns when all are done. A call from within a
    /// task runs on the thread of that task alone. Panics after all tasks if one panicked, or for 2^32 tasks or more.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || tasks < 2 || IN_TASK.with(Cell::get) {
            (0..tasks).for_each(body);
            return;
        }
        assert!(tasks as u64 <= TASK_MASK, "{tasks} tasks");
        let caller = lock(&self.caller);
        // SAFETY: only the lifetime changes. A thread calls the body only for a task that it has taken, and `run` returns
        // after all tasks, each of which is taken once, are done.
        let mut body = unsafe { std::mem::transmute::<Body<'_>, Body<'static>>(body) };
        self.job.post(tasks, &raw mut body);
        while self.job.run_next_task() {}
        self.job.wait_until_done(tasks);
        let panic = lock(&self.job.panic).take();
        drop(caller);
        if let Some(panic) = panic {
            std::panic::resume_unwind(panic);
        }
    }

    /// Calls `body(index, part)` for consecutive parts of `width` floats, on all threads if `share`.
    pub fn for_chunks(&self, floats: &mut [f32], width: usize, share: bool, body: &ChunkBody<'_>) {
        assert!(floats.len().is_multiple_of(width));
        if !share {
            floats.chunks_exact_mut(width).enumerate().for_each(|(index, part)| body(index, part));
            return;
        }
        let parts = floats.len() / width;
        let shared = DisjointSlice::new(floats);
        // SAFETY: each part belongs to one task.
        self.run(parts, &|part| body(part, unsafe { shared.part(part * width, width) }));
    }

    /// Calls `body(first_row, column, parts)` for `floats`, (rows, columns, width), on all threads if `share`. `parts` are those
    /// of up to `T` rows from `first_row` on, in one column. If there are few columns, threads share the rows of a column.
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
        let min_blocks = if share { (2 * self.threads()).div_ceil(columns) } else { 1 };
        let tile = T.min(rows.div_ceil(min_blocks));
        let blocks = rows.div_ceil(tile);
        let shared = DisjointSlice::new(floats);
        let task = |task: usize| {
            let first = task % blocks * tile;
            let column = task / blocks;
            let mut parts: [&mut [f32]; T] = std::array::from_fn(|_| &mut [][..]);
            let parts = &mut parts[..tile.min(rows - first)];
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
        self.job.stopped.store(true, SeqCst);
        self.job.wake();
        for worker in self.workers.drain(..) {
            // panics of tasks are caught, so a worker cannot panic
            let _ = worker.join();
        }
    }
}

impl JobState {
    /// Posts a job. `body` must stay valid until all tasks are done.
    fn post(&self, tasks: usize, body: *mut Body<'static>) {
        // no thread reads these three now, because all tasks of the previous job are done
        self.tasks.store(tasks, Relaxed);
        self.body.store(body, Relaxed);
        self.done.0.store(0, Relaxed);
        let number = (self.open.0.load(Relaxed) >> 32).wrapping_add(1) & TASK_MASK;
        // a thread that reads the new word also sees the stores above; ordered with `asleep`, so that either this thread sees
        // the sleeper or the sleeper sees the job
        self.open.0.store(number << 32 | tasks as u64, SeqCst);
        if self.asleep.load(SeqCst) > 0 {
            self.wake();
        }
    }

    fn wake(&self) {
        // while the lock is held, no worker is between its last check and its sleep
        drop(lock(&self.sleep_lock));
        self.wakeup.notify_all();
    }

    /// Takes a task of the newest job and runs it. Returns false if there is none.
    fn run_next_task(&self) -> bool {
        let decremented = |open: u64| (open & TASK_MASK > 0).then(|| open - 1);
        let Ok(open) = self.open.0.fetch_update(AcqRel, Relaxed, decremented) else { return false };
        // the taken task keeps its job alive, so these belong to it
        let task = self.tasks.load(Relaxed) - (open & TASK_MASK) as usize;
        let body = self.body.load(Relaxed);
        IN_TASK.with(|in_task| in_task.set(true));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: `run` keeps the body valid until this task is done.
            let body = unsafe { *body };
            body(task);
        }));
        IN_TASK.with(|in_task| in_task.set(false));
        if let Err(panic) = outcome {
            // dropping a payload could panic again, so further ones are forgotten
            let mut first = lock(&self.panic);
            if first.is_none() { *first = Some(panic) } else { std::mem::forget(panic) }
        }
        self.done.0.fetch_add(1, Release);
        true
    }

    fn wait_until_done(&self, tasks: usize) {
        let mut wait = Wait::default();
        while self.done.0.load(Acquire) < tasks {
            wait.pause();
        }
    }

    fn work(&self) {
        let mut idle = Wait::default();
        while !self.stopped.load(Relaxed) {
            if self.run_next_task() {
                idle = Wait::default();
            } else if idle.time < IDLE && idle.polls < MAX_POLLS {
                idle.pause();
            } else {
                self.sleep();
                idle = Wait::default();
            }
        }
    }

    fn sleep(&self) {
        let mut guard = lock(&self.sleep_lock);
        self.asleep.fetch_add(1, SeqCst);
        while self.open.0.load(SeqCst) & TASK_MASK == 0 && !self.stopped.load(SeqCst) {
            guard = self.wakeup.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_sub(1, SeqCst);
    }
}

/// A wait between polls.
#[derive(Default)]
struct Wait {
    polls: usize,
    begun: Option<Instant>,
    time: Duration,
}

impl Wait {
    fn pause(&mut self) {
        self.polls = self.polls.saturating_add(1);
        if self.polls.is_multiple_of(POLLS) {
            self.time = self.begun.get_or_insert_with(Instant::now).elapsed();
        }
        if self.spins() { hint::spin_loop() } else { thread::yield_now() }
    }

    /// Returns true as long as the thread spins. After that, it offers its core to others.
    fn spins(&self) -> bool {
        self.time < SPIN && self.polls < MAX_POLLS
    }
}

// A buffer that several threads write at disjoint ranges.

/// A mutable slice that tasks of one [`ThreadPool::run`] write to, each at its own range.
pub(crate) struct DisjointSlice<'a, T = f32> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer comes from an exclusive borrow that `owner` keeps alive; the contract of `part` forbids overlap.
unsafe impl<T: Send> Sync for DisjointSlice<'_, T> {}

impl<'a, T> DisjointSlice<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// Returns the elements `offset..offset + len` for writing.
    ///
    /// # Safety
    /// No two parts that are alive at the same time overlap.
    #[allow(clippy::mut_from_ref, reason = "the purpose of the type; its contract forbids overlap")]
    pub(crate) unsafe fn part(&self, offset: usize, len: usize) -> &mut [T] {
        assert!(offset <= self.len && len <= self.len - offset, "part {offset}+{len} of {}", self.len);
        // SAFETY: in bounds, as just checked.
        let start = unsafe { self.start.add(offset) };
        // SAFETY: in bounds; exclusive, as the caller guarantees; the borrow of `owner` keeps the slice alive.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
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
    fn each_row_of_each_column_is_visited_once() {
        const ROWS: usize = 16;
        for threads in [1, 2, 7] {
            let pool = ThreadPool::new(threads);
            for (rows, columns, share) in [(1, 1, true), (5, 3, false), (16, 8, true), (33, 1, true), (50, 20, true)] {
                let mut floats = vec![0f32; rows * columns * 2];
                pool.for_columns::<ROWS>(&mut floats, rows, columns, share, &|first, column, parts| {
                    assert!(!parts.is_empty() && parts.len() <= ROWS);
                    for (row, part) in (first..).zip(parts) {
                        part[0] += 1.0;
                        part[1] = (row * columns + column) as f32;
                    }
                });
                for (cell, part) in floats.chunks_exact(2).enumerate() {
                    assert_eq!(part, [1.0, cell as f32], "{threads} threads, {rows} rows, {columns} columns");
                }
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_keeps_working() {
        let pool = ThreadPool::new(2);
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|task| assert_ne!(task, 5))));
        let message = result.unwrap_err();
        assert!(message.downcast_ref::<String>().is_some_and(|message| message.contains("left != right")));
        let count = AtomicUsize::new(0);
        pool.run(8, &|_| {
            count.fetch_add(1, Relaxed);
        });
        assert_eq!(count.load(Relaxed), 8);
    }

    /// Other processes that need the core get it after 50 µs.
    #[test]
    fn a_waiting_thread_soon_offers_its_core() {
        let spun = || {
            let begun = Instant::now();
            let mut wait = Wait::default();
            while wait.spins() {
                wait.pause();
            }
            begun.elapsed()
        };
        // the system may interrupt some of them
        let shortest = (0..1000).map(|_| spun()).min().unwrap();
        assert!(shortest <= Duration::from_micros(50), "{shortest:?}");
    }

    #[test]
    fn a_job_within_a_task_runs_on_its_thread() {
        let pool = ThreadPool::new(2);
        let count = AtomicUsize::new(0);
        pool.run(8, &|_| {
            pool.run(8, &|_| {
                count.fetch_add(1, Relaxed);
            });
        });
        assert_eq!(count.load(Relaxed), 64);
    }
}
