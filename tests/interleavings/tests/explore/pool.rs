//! The thread pool: every task runs once, `run` returns after the last one, and no thread misses the end.

use crate::explore;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};
use weir_interleavings::{
    pool::ThreadPool,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        thread,
    },
};

/// Runs a job and checks that each of its tasks runs once, within the call.
fn run_job(pool: &ThreadPool, tasks: usize) {
    let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
    let is_running = AtomicBool::new(true);
    pool.run(tasks, &|task| {
        assert!(is_running.load(SeqCst), "the task began after its job");
        counts[task].fetch_add(1, SeqCst);
        assert!(is_running.load(SeqCst), "the task outlives its job");
    });
    is_running.store(false, SeqCst);
    let counts: Vec<_> = counts.iter().map(|count| count.load(SeqCst)).collect();
    assert_eq!(counts, vec![1; tasks]);
}

#[test]
fn every_task_runs_once_within_its_job() {
    explore(|| {
        let pool = ThreadPool::new(3);
        [3, 2, 4].into_iter().for_each(|tasks| run_job(&pool, tasks));
    });
}

#[test]
fn callers_take_turns() {
    explore(|| {
        let pool = Arc::new(ThreadPool::new(2));
        let callers: Vec<_> = (2..4)
            .map(|tasks| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || run_job(&pool, tasks))
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
}

#[test]
fn a_panic_ends_its_job_only() {
    explore(|| {
        let pool = ThreadPool::new(2);
        let count = AtomicUsize::new(0);
        let job = || {
            pool.run(3, &|task| {
                count.fetch_add(1, SeqCst);
                if task == 1 {
                    // without the panic hook, which would print each of thousands
                    std::panic::resume_unwind(Box::new("wanted"));
                }
            });
        };
        let panic = catch_unwind(AssertUnwindSafe(job)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"wanted"));
        assert_eq!(count.load(SeqCst), 3, "the other tasks ran");
        run_job(&pool, 2);
    });
}

#[test]
fn a_pool_ends_at_any_time() {
    explore(|| drop(ThreadPool::new(3)));
}
