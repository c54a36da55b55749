//! The kernels' threads sleep when there is nothing to do, and wake for the next job.

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

/// Runs a job that every thread of the pool has to take part in: where the system tells about each.
fn meet(pool: &ThreadPool) -> BTreeSet<PathBuf> {
    let (barrier, met) = (Barrier::new(THREADS), Mutex::new(BTreeSet::new()));
    pool.run(THREADS, &|_| {
        met.lock().unwrap().insert(PathBuf::from("/proc").join(fs::read_link("/proc/thread-self").unwrap()));
        barrier.wait();
    });
    met.into_inner().unwrap()
}

/// Nanoseconds that a thread has had a core for.
fn busy(thread: &Path) -> u64 {
    fs::read_to_string(thread.join("schedstat")).unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// Whether a thread sleeps: the letter behind its name.
fn sleeps(thread: &Path) -> bool {
    let stat = fs::read_to_string(thread.join("stat")).unwrap();
    stat.rsplit(')').next().unwrap().trim_start().starts_with('S')
}

#[test]
fn threads_without_a_job_take_no_time_and_wake_for_the_next() {
    let pool = ThreadPool::new(THREADS);
    let own = PathBuf::from("/proc").join(fs::read_link("/proc/thread-self").unwrap());
    let all = meet(&pool);
    let workers: Vec<_> = all.iter().filter(|thread| **thread != own).collect();
    assert_eq!((all.len(), workers.len()), (THREADS, THREADS - 1));
    for _ in 0..3 {
        let end = Instant::now() + Duration::from_secs(20);
        while !workers.iter().all(|worker| sleeps(worker)) {
            assert!(Instant::now() < end, "the workers never sleep");
            std::thread::sleep(Duration::from_millis(1));
        }
        let before: Vec<_> = workers.iter().map(|worker| busy(worker)).collect();
        std::thread::sleep(Duration::from_millis(100));
        let after: Vec<_> = workers.iter().map(|worker| busy(worker)).collect();
        assert_eq!(before, after, "sleeping takes no time");
        assert_eq!(meet(&pool), all, "the same threads wake");
        assert!(workers.iter().zip(after).all(|(worker, idle)| busy(worker) > idle));
    }
}
