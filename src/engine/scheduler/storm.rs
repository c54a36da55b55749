//! Seeded storms over a model of rows and memory, against what the scheduler promises.

mod job;
mod promises;

use super::*;
use job::{DOCUMENT, Die, Job, LONGEST, Row, bytes_for};
use std::collections::{BTreeMap, HashSet};

struct Storm {
    scheduler: Scheduler<Job>,
    rules: Rules,
    die: Die,
    rows: Vec<Row>,
    came: usize,
    refused: usize,
    finished: HashSet<usize>,
    cancelled: HashSet<usize>,
    /// Work done, what was done again left out.
    clock: u64,
    /// The same, by tenant.
    done: BTreeMap<Arc<str>, u64>,
    /// The longest that a job of a tenant waited, in work done.
    waited: BTreeMap<Arc<str>, u64>,
    yielded: usize,
}

impl Storm {
    fn new(rules: Rules, seed: u64) -> Self {
        let (finished, cancelled) = (HashSet::new(), HashSet::new());
        let (came, refused, clock, done, waited, yielded) = (0, 0, 0, BTreeMap::new(), BTreeMap::new(), 0);
        let (scheduler, rows, die) = (Scheduler::new(rules), Vec::new(), Die(seed));
        Self { scheduler, rules, die, rows, came, refused, finished, cancelled, clock, done, waited, yielded }
    }

    fn job(&mut self) -> Job {
        let tenant = ["", "a", "b", "c"][self.die.roll(4)].into();
        let (given, answer) = (1 + self.die.roll(LONGEST), 1 + self.die.roll(LONGEST));
        let priority = [0, 0, 0, 7, -8][self.die.roll(5)];
        let job = self.one(tenant, priority, (given, answer));
        if self.die.roll(3) > 0 {
            return job;
        }
        // a summary: a document, then a mark, then several texts side by side
        let (blocks, rows) = (1 + self.die.roll(DOCUMENT.0), 1 + self.die.roll(3));
        Job { given: 1, blocks, rows, ..job }
    }

    fn one(&mut self, tenant: Arc<str>, priority: i32, (given, answer): (usize, usize)) -> Job {
        self.came += 1;
        let (number, came) = (self.came, Some(self.clock));
        let (sampled, reached, paused, cancelled) = (0, 0, false, false);
        let (blocks, rows) = (0, 1);
        Job { number, tenant, priority, blocks, rows, given, answer, sampled, reached, paused, cancelled, came }
    }

    fn submit(&mut self, job: Job) -> Result<(), Rejection> {
        let (ask, priority, tenant) = (job.ask(), job.priority, Arc::clone(&job.tenant));
        let (waiting, symbols) = (self.scheduler.waiting(), self.scheduler.tenants.size().symbols);
        let own = self.scheduler.tenants.size_of(&tenant);
        let asked = ask.symbols;
        let taken = if job.most_bytes() > self.rules.bytes {
            Err(Rejection::NeverFits)
        } else {
            self.scheduler.submit(job, ask, priority)
        };
        match taken {
            Ok(()) => assert!(self.scheduler.waiting() <= self.rules.queue.max(waiting)),
            Err(Rejection::NeverFits) => {}
            Err(Rejection::Full { what: "requests", limit }) => assert!(limit == self.rules.queue && waiting >= limit),
            Err(Rejection::Full { what: "prompt characters", limit }) => assert!(symbols + asked > limit),
            Err(Rejection::Full { what: "requests of one tenant", limit }) => assert!(own.requests >= limit.max(1)),
            Err(Rejection::Full { what: "prompt characters of one tenant", limit }) => {
                assert!(own.symbols + asked > limit)
            }
            Err(other) => panic!("{other:?}"),
        }
        self.refused += usize::from(taken.is_err());
        taken
    }

    /// One round, as the worker goes about it.
    fn round(&mut self) {
        self.sweep();
        for at in (0..self.rows.len()).rev() {
            if self.rows[at].job.cancelled {
                let row = self.rows.swap_remove(at);
                assert!(self.cancelled.insert(row.job.number), "ended twice");
                self.end(row.permit, row.work, &row.job.tenant);
            }
        }
        let mut standings = self.stand();
        self.let_in();
        if let Some(row) = self.scheduler.preemption_victim(&standings) {
            assert!(self.rows[row].job.paused);
            self.preempt(row);
            self.let_in();
        }
        let mut feeds = Vec::new();
        loop {
            standings = self.stand();
            // how much is brief is a matter of time, which has no say in what is promised
            let brief = 1 + self.die.roll(2 * self.rules.chunk);
            self.scheduler.plan(&standings, brief, &mut feeds);
            let needed: usize = feeds.iter().map(|feed| self.rows[feed.request].growth(feed.symbols)).sum();
            if self.held() + needed <= self.rules.bytes {
                break;
            }
            let row = self.scheduler.memory_victim(&standings).expect("the last one always fits");
            self.check_victim(row);
            self.preempt(row);
        }
        self.check_plan(&standings, &feeds);
        self.step(&feeds);
        assert!(self.held() <= self.rules.bytes, "more memory than there is");
    }

    fn sweep(&mut self) {
        let look = |job: &mut Job| match () {
            () if job.cancelled => QueuedStatus::Ended,
            () if job.paused && job.came.is_none() => QueuedStatus::OnHold,
            () => QueuedStatus::Ready,
        };
        let mut left = Vec::new();
        self.scheduler.poll_queue(look, |job| left.push(job.number));
        assert!(left.into_iter().all(|number| self.cancelled.insert(number)), "ended twice");
    }

    fn stand(&mut self) -> Vec<RowStatus> {
        let standings: Vec<_> = self.rows.iter_mut().map(Row::standing).collect();
        let works: Vec<_> = standings.iter().map(|standing| standing.fed).collect();
        for (at, work) in works.into_iter().enumerate() {
            let tenant = Arc::clone(&self.rows[at].job.tenant);
            self.count(work, &tenant);
        }
        self.scheduler.update_rows(&standings, usize::MAX);
        standings
    }

    fn let_in(&mut self) {
        while let Some((mut job, permit)) = self.scheduler.next_admitted() {
            if let Some(came) = job.came.take() {
                let waited = self.clock - came;
                let longest = self.waited.entry(Arc::clone(&job.tenant)).or_default();
                *longest = waited.max(*longest);
            }
            self.rows.push(Row { job, permit, encoded: 0, fed: 0, busy: 0, work: FedSymbols::default() });
        }
    }

    /// Work that may be done while somebody waits: before it in its tenant's queue are at most all that were there and those
    /// of higher priority that came soon enough; for each of them every tenant may do its share and overdraw it once.
    fn longest_wait(&self) -> u64 {
        let Rules { rows, queue, age, quantum, .. } = self.rules;
        let job = (1 + 3 * DECODE_WORK) * LONGEST as u64;
        let before = (queue + rows) as u64 * (job + quantum) + 15 * age;
        4 * (before + rows as u64 * job)
    }

    fn preempt(&mut self, row: usize) {
        let Row { job, permit, .. } = self.rows.swap_remove(row);
        let (ask, paused) = (job.ask(), job.paused);
        assert!(self.scheduler.preempt(permit, job, ask, paused).is_ok());
        self.yielded += 1;
    }

    fn held(&self) -> usize {
        self.rows.iter().map(Row::bytes).sum()
    }

    /// The most senior of those that go on stays, and nobody goes while one whose reader is behind stays.
    fn check_victim(&self, victim: usize) {
        let rank = |row: &Row| self.scheduler.slots[row.permit.0].as_ref().unwrap().rank;
        let row = &self.rows[victim];
        if !row.job.paused {
            assert!(self.rows.iter().all(|other| !other.job.paused || other.busy > 0));
            assert!(self.rows.iter().all(|other| rank(other) <= rank(row)));
        }
    }

    fn check_plan(&self, standings: &[RowStatus], feeds: &[Feed]) {
        let of =
            |row: usize| feeds.iter().filter(|feed| feed.request == row).map(|feed| feed.symbols).collect::<Vec<_>>();
        let (mut decoding, mut given, mut blocks) = (0, 0, 0);
        for (row, standing) in standings.iter().enumerate() {
            let fed = of(row);
            match standing.activity {
                RowActivity::Busy | RowActivity::Paused { .. } => assert!(fed.is_empty()),
                RowActivity::Decoding(rows) => {
                    assert_eq!(fed, [rows], "a stream is fed in every step");
                    decoding += rows;
                }
                RowActivity::Encoding { blocks: left, .. } => {
                    assert!(fed.is_empty() || fed.len() == 1 && (1..=left).contains(&fed[0]));
                    blocks += fed.iter().sum::<usize>();
                }
                RowActivity::Prefilling(left) => {
                    assert!(fed.is_empty() || fed.len() == 1 && (1..=left).contains(&fed[0]));
                    given += fed.iter().sum::<usize>();
                }
            }
        }
        let chunk = self.rules.chunk;
        let budget = chunk.saturating_sub(decoding).max(chunk.div_ceil(2));
        assert!(given <= budget);
        // and what they have not used of earlier steps, which is less than a step
        assert!(blocks * DOCUMENT.1 < budget + chunk + DOCUMENT.1, "{blocks} blocks");
    }

    fn step(&mut self, feeds: &[Feed]) {
        self.rows.iter_mut().for_each(|row| row.busy = row.busy.saturating_sub(1));
        let mut ended = Vec::new();
        for feed in feeds {
            let busy = self.die.roll(6).saturating_sub(3);
            let row = &mut self.rows[feed.request];
            let over = row.feed(feed.symbols);
            row.busy = busy;
            if over {
                ended.push(feed.request);
            }
        }
        ended.sort_unstable();
        for row in ended.into_iter().rev() {
            let Row { job, permit, work, .. } = self.rows.swap_remove(row);
            assert!(job.sampled == job.answer && self.finished.insert(job.number), "served twice");
            self.end(permit, work, &job.tenant);
        }
    }

    fn end(&mut self, permit: RunPermit, work: FedSymbols, tenant: &Arc<str>) {
        self.count(work, tenant);
        self.scheduler.finish(permit, work);
    }

    fn count(&mut self, work: FedSymbols, tenant: &Arc<str>) {
        let work = work.prompt as u64 + DECODE_WORK * work.sampled as u64;
        self.clock += work;
        *self.done.entry(Arc::clone(tenant)).or_default() += work;
    }

    fn check(&mut self) {
        let scheduler = &mut self.scheduler;
        let rows = |job: &Job| job.rows;
        let taken: usize = self.rows.iter().map(|row| rows(&row.job)).sum();
        let granted: usize = scheduler.admitted.iter().map(|(job, _)| rows(job)).sum();
        assert!(taken + granted <= self.rules.rows && taken + granted == scheduler.rows);
        assert!(scheduler.waiting() <= self.rules.queue + self.rules.rows, "too many wait");
        assert_eq!(scheduler.running(), self.rows.len() + scheduler.admitted.len());
        let over = self.finished.len() + self.cancelled.len() + self.refused;
        assert_eq!(self.came, over + scheduler.running() + scheduler.waiting(), "somebody is lost");
        assert!(scheduler.tenants.count_with("") <= scheduler.running() + scheduler.waiting() + 1);
        let slots: usize = scheduler.slots.iter().flatten().map(|slot| slot.held + slot.soon).sum();
        assert_eq!(slots, scheduler.bytes);
        let next = scheduler.tenants.next().map(|ask| (ask.bytes, ask.rows));
        assert!(next.is_none_or(|(bytes, rows)| !scheduler.fits(bytes, rows)), "whoever can run does");
    }

    /// Picks a job, wherever it is.
    fn touch(&mut self, change: impl Fn(&mut Job)) {
        let all = self.rows.len() + self.scheduler.waiting();
        let mut pick = self.die.roll(all.max(1));
        if let Some(row) = self.rows.get_mut(pick) {
            return change(&mut row.job);
        }
        pick -= self.rows.len();
        let mut at = 0;
        let look = |job: &mut Job| {
            if at == pick {
                change(job);
            }
            at += 1;
            if job.paused && job.came.is_none() { QueuedStatus::OnHold } else { QueuedStatus::Ready }
        };
        self.scheduler.poll_queue(look, |_| ());
    }

    fn operate(&mut self) {
        match self.die.roll(12) {
            0..=3 => {
                let job = self.job();
                let _ = self.submit(job);
            }
            4 => self.touch(|job| job.cancelled = true),
            5 => self.touch(|job| job.paused = true),
            6 => self.touch(|job| job.paused = false),
            _ => self.round(),
        }
        self.check();
    }

    /// Lets everybody finish who is there.
    fn calm(&mut self) {
        let mut rounds = 0;
        while self.scheduler.running() + self.scheduler.waiting() > 0 {
            self.rows.iter_mut().for_each(|row| row.job.paused = false);
            self.scheduler.poll_queue(
                |job| {
                    job.paused = false;
                    QueuedStatus::Ready
                },
                |_| (),
            );
            self.round();
            self.check();
            rounds += 1;
            assert!(rounds < 100_000, "nothing goes on");
        }
        assert_eq!(self.came, self.finished.len() + self.cancelled.len() + self.refused);
        let Scheduler { tenants, slots, free, bytes, .. } = &self.scheduler;
        assert!(tenants.is_empty() && *bytes == 0 && slots.iter().all(Option::is_none) && free.len() == slots.len());
    }
}

fn rules(rows: usize, queue: usize, bytes: usize, chunk: usize) -> Rules {
    Rules { age: 40, quantum: 32, ..Rules::new(rows, queue, 200, bytes, chunk) }
}
