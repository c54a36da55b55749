//! Who runs and who waits: first come, first served, within a number of rows and of bytes.
//!
//! A pure type, without clock, tensors or threads. It is always settled: whoever can run holds a [`Grant`] already, so the
//! jobs counted as waiting are those that really have to. Nobody overtakes: a small job behind a large one waits with it.

use std::collections::VecDeque;

/// What there is to share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Capacity {
    /// Jobs that may wait.
    pub(super) waiting: usize,
    /// Jobs that may run.
    pub(super) rows: usize,
    /// Bytes that running jobs may need together.
    pub(super) bytes: usize,
}

/// The right to run: a row, and bytes. To be given back, once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grant {
    bytes: usize,
}

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// As many jobs wait as may.
    Full,
    /// It needs more bytes than there are.
    NeverFits,
}

/// Jobs that wait, and jobs that may run and were not fetched yet.
#[derive(Debug)]
pub(super) struct Queue<T> {
    capacity: Capacity,
    waiting: VecDeque<(T, Grant)>,
    granted: VecDeque<(T, Grant)>,
    /// Grants that were handed out and not given back, those in `granted` included, and their bytes.
    rows: usize,
    bytes: usize,
}

impl<T> Queue<T> {
    pub(super) fn new(capacity: Capacity) -> Self {
        Self { capacity, waiting: VecDeque::new(), granted: VecDeque::new(), rows: 0, bytes: 0 }
    }

    /// Takes a job that needs at most so many bytes.
    pub(super) fn push(&mut self, job: T, bytes: usize) -> Result<(), Refused> {
        if bytes > self.capacity.bytes {
            return Err(Refused::NeverFits);
        }
        let runs = self.waiting.is_empty() && self.fits(bytes);
        if !runs && self.waiting.len() >= self.capacity.waiting {
            return Err(Refused::Full);
        }
        self.waiting.push_back((job, Grant { bytes }));
        self.settle();
        Ok(())
    }

    /// The next job that may run.
    pub(super) fn fetch(&mut self) -> Option<(T, Grant)> {
        self.granted.pop_front()
    }

    /// Takes back what a job that ran no longer needs.
    pub(super) fn give_back(&mut self, grant: Grant) {
        self.rows -= 1;
        self.bytes -= grant.bytes;
        self.settle();
    }

    /// Removes the waiting jobs that are not to be kept, and hands each to `removed`.
    pub(super) fn sweep(&mut self, keep: impl Fn(&T) -> bool, mut removed: impl FnMut(T)) {
        let mut index = 0;
        while let Some((job, _)) = self.waiting.get(index) {
            if keep(job) {
                index += 1;
            } else if let Some((job, _)) = self.waiting.remove(index) {
                removed(job);
            }
        }
        self.settle();
    }

    /// Removes everybody who was not fetched yet, and takes all grants for given back: whoever still held one is gone.
    pub(super) fn end(&mut self) -> impl Iterator<Item = T> {
        (self.rows, self.bytes) = (0, 0);
        let granted = std::mem::take(&mut self.granted);
        granted.into_iter().chain(std::mem::take(&mut self.waiting)).map(|(job, _)| job)
    }

    /// The jobs that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().map(|(job, _)| job)
    }

    /// How many wait.
    pub(super) fn queued(&self) -> usize {
        self.waiting.len()
    }

    /// How many run, or may.
    pub(super) fn running(&self) -> usize {
        self.rows
    }

    fn fits(&self, bytes: usize) -> bool {
        self.rows < self.capacity.rows && bytes <= self.capacity.bytes - self.bytes
    }

    /// Grants what can be granted, in order.
    fn settle(&mut self) {
        while self.waiting.front().is_some_and(|(_, grant)| self.fits(grant.bytes)) {
            if let Some((job, grant)) = self.waiting.pop_front() {
                self.rows += 1;
                self.bytes += grant.bytes;
                self.granted.push_back((job, grant));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    #[derive(Debug, Clone)]
    enum Operation {
        Push(usize),
        Fetch,
        GiveBack(usize),
        Sweep(usize),
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            4 => (0usize..12).prop_map(Operation::Push),
            3 => Just(Operation::Fetch),
            3 => any::<usize>().prop_map(Operation::GiveBack),
            1 => (2usize..5).prop_map(Operation::Sweep),
        ]
    }

    /// Every job gets a number; the invariants are stated over numbers.
    struct Storm {
        queue: Queue<(usize, usize)>,
        capacity: Capacity,
        next: usize,
        /// Numbers taken in and not fetched, in order.
        expected: VecDeque<(usize, usize)>,
        running: Vec<(usize, Grant)>,
    }

    impl Storm {
        fn apply(&mut self, operation: Operation) {
            match operation {
                Operation::Push(bytes) => self.push(bytes),
                Operation::Fetch => {
                    if let Some(((number, bytes), grant)) = self.queue.fetch() {
                        assert_eq!(self.expected.pop_front(), Some((number, bytes)), "first come, first served");
                        self.running.push((bytes, grant));
                    }
                }
                Operation::GiveBack(index) => {
                    if !self.running.is_empty() {
                        let (_, grant) = self.running.swap_remove(index % self.running.len());
                        self.queue.give_back(grant);
                    }
                }
                Operation::Sweep(divisor) => {
                    let queued = self.queue.queued();
                    let mut removed = Vec::new();
                    self.queue.sweep(|job| job.0 % divisor != 0, |job| removed.push(job));
                    assert!(removed.iter().all(|job| job.0 % divisor == 0) && removed.len() <= queued);
                    self.expected.retain(|job| !removed.contains(job));
                }
            }
            self.check();
        }

        fn push(&mut self, bytes: usize) {
            let (queued, running) = (self.queue.queued(), self.queue.running());
            let job = (self.next, bytes);
            self.next += 1;
            match self.queue.push(job, bytes) {
                Ok(()) => self.expected.push_back(job),
                Err(Refused::NeverFits) => assert!(bytes > self.capacity.bytes),
                Err(Refused::Full) => {
                    assert_eq!(queued, self.capacity.waiting);
                    assert_eq!((self.queue.queued(), self.queue.running()), (queued, running));
                }
            }
        }

        fn check(&self) {
            let queue = &self.queue;
            assert!(queue.queued() <= self.capacity.waiting);
            assert!(queue.running() <= self.capacity.rows && queue.bytes <= self.capacity.bytes);
            assert_eq!(queue.running(), self.running.len() + queue.granted.len());
            assert_eq!(queue.queued() + queue.granted.len(), self.expected.len(), "nobody is lost");
            let granted: usize = queue.granted.iter().map(|(_, grant)| grant.bytes).sum();
            assert_eq!(queue.bytes, granted + self.running.iter().map(|(bytes, _)| bytes).sum::<usize>());
            if let Some((_, grant)) = queue.waiting.front() {
                assert!(!queue.fits(grant.bytes), "whoever can run does");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn keeps_its_promises_in_a_storm(
            waiting in 0usize..5, rows in 1usize..5, bytes in 5usize..15, operations in vec(operation(), 1000),
        ) {
            let capacity = Capacity { waiting, rows, bytes };
            let (queue, expected) = (Queue::new(capacity), VecDeque::new());
            let mut storm = Storm { queue, capacity, next: 0, expected, running: Vec::new() };
            operations.into_iter().for_each(|operation| storm.apply(operation));
            // Everything that was taken in gets its turn and everything is given back.
            while !(storm.expected.is_empty() && storm.running.is_empty()) {
                storm.apply(Operation::Fetch);
                storm.apply(Operation::GiveBack(0));
            }
            prop_assert_eq!((storm.queue.rows, storm.queue.bytes), (0, 0));
        }
    }

    #[test]
    fn the_end_leaves_nothing() {
        let mut queue = Queue::new(Capacity { waiting: 2, rows: 2, bytes: 10 });
        (0..4).for_each(|job| queue.push(job, 4).unwrap());
        assert_eq!(queue.push(4, 4), Err(Refused::Full));
        // One runs, and its grant will never come back.
        assert_eq!(queue.fetch().map(|(job, _)| job), Some(0));
        assert_eq!(queue.end().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((queue.queued(), queue.running(), queue.bytes), (0, 0, 0));
    }
}
