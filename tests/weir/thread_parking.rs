//! The threads of the kernels sleep without work and wake for the next job.

#![cfg(target_os = "linux")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{Barrier, Mutex},
    time::{Duration, Instant},
};
use weir::kernels::ThreadPool;

const THREADS: usize = 3;

/// Runs a job that needs every thread of the pool. Returns the `/proc` folder of each thread.
fn run_on_all(pool: &ThreadPool) -> BTreeSet<PathBuf> {
    let barrier = Barrier::new(THREADS);
    let threads = Mutex::new(BTreeSet::new());
    pool.run(THREADS, &|_| {
        threads.lock().unwrap().insert(PathBuf::from("/proc").join(fs::read_link("/proc/thread-self").unwrap()));
        barrier.wait();
    });
    threads.into_inner().unwrap()
}

/// Returns the processor time of a thread in nanoseconds.
fn busy_ns(thread: &Path) -> u64 {
    fs::read_to_string(thread.join("schedstat")).unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// Returns true if a thread sleeps, by the state letter after its name.
fn is_asleep(thread: &Path) -> bool {
    let stat = fs::read_to_string(thread.join("stat")).unwrap();
    stat.rsplit(')').next().unwrap().trim_start().starts_with('S')
}

#[test]
fn idle_threads_use_no_time_and_wake_for_the_next_job() {
    let pool = ThreadPool::new(THREADS);
    let own = PathBuf::from("/proc").join(fs::read_link("/proc/thread-self").unwrap());
    let all = run_on_all(&pool);
    let workers: Vec<_> = all.iter().filter(|thread| **thread != own).collect();
    assert_eq!((all.len(), workers.len()), (THREADS, THREADS - 1));
    for _ in 0..3 {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !workers.iter().all(|worker| is_asleep(worker)) {
            assert!(Instant::now() < deadline, "the workers never sleep");
            std::thread::sleep(Duration::from_millis(1));
        }
        let before: Vec<_> = workers.iter().map(|worker| busy_ns(worker)).collect();
        std::thread::sleep(Duration::from_millis(100));
        let after: Vec<_> = workers.iter().map(|worker| busy_ns(worker)).collect();
        assert_eq!(before, after, "a sleeping thread used processor time");
        assert_eq!(run_on_all(&pool), all, "other threads ran");
        assert!(workers.iter().zip(after).all(|(worker, idle)| busy_ns(worker) > idle));
    }
}
