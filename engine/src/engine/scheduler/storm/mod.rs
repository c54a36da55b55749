//! Seeded storms: the scheduler with simulated requests and memory, checked against what it guarantees.

mod guarantees;
mod job;
mod long_requests;

use super::*;
use job::{BLOCK_SYMBOLS, Die, LONG_ANSWER, MAX_BLOCKS, MAX_SYMBOLS, SimRequest, SimRun, bytes_for};
use std::collections::{BTreeMap, HashSet};

struct SchedulerStorm {
    scheduler: Scheduler<SimRequest>,
    rules: Rules,
    die: Die,
    runs: Vec<SimRun>,
    arrived: usize,
    rejected: usize,
    finished: HashSet<usize>,
    cancelled: HashSet<usize>,
    /// Work done, without recomputed symbols.
    clock: u64,
    /// The same by tenant.
    done: BTreeMap<Arc<str>, u64>,
    /// The longest wait of a request of a tenant, in work done.
    waited: BTreeMap<Arc<str>, u64>,
    preemptions: usize,
    /// Preemptions for another tenant.
    yielded: usize,
}

impl SchedulerStorm {
    fn new(rules: Rules, seed: u64) -> Self {
        Self {
            scheduler: Scheduler::new(rules),
            rules,
            die: Die(seed),
            runs: Vec::new(),
            arrived: 0,
            rejected: 0,
            finished: HashSet::new(),
            cancelled: HashSet::new(),
            clock: 0,
            done: BTreeMap::new(),
            waited: BTreeMap::new(),
            preemptions: 0,
            yielded: 0,
        }
    }

    fn random_request(&mut self) -> SimRequest {
        let tenant = ["", "a", "b", "c"][self.die.roll(4)];
        let prompt = 1 + self.die.roll(MAX_SYMBOLS);
        // some are far longer than others, as far as there is memory
        let longest = [MAX_SYMBOLS, MAX_SYMBOLS, MAX_SYMBOLS, LONG_ANSWER][self.die.roll(4)];
        let answer = 1 + self.die.roll(longest);
        let priority = [0, 0, 0, 7, -8][self.die.roll(5)];
        let request = self.request(tenant, priority, prompt, answer);
        if self.die.roll(3) > 0 {
            return request;
        }
        // a summary: a document, then a start mark, then several texts in parallel
        let blocks = 1 + self.die.roll(MAX_BLOCKS);
        SimRequest { prompt: 1, blocks, rows: 1 + self.die.roll(3), ..request }
    }

    fn request(&mut self, tenant: &str, priority: i32, prompt: usize, answer: usize) -> SimRequest {
        self.arrived += 1;
        SimRequest {
            number: self.arrived,
            tenant: tenant.into(),
            priority,
            blocks: 0,
            rows: 1,
            prompt,
            answer,
            sampled: 0,
            window: None,
            reached: 0,
            paused: false,
            cancelled: false,
            arrived: Some(self.clock),
        }
    }

    fn submit(&mut self, request: SimRequest) -> Result<(), Rejection> {
        let demand = request.demand();
        let symbols = demand.symbols;
        let total = self.scheduler.tenants.new;
        let own = self.scheduler.tenants.new_of(&request.tenant);
        let own_waiting = self.scheduler.tenants.waiting_of(&request.tenant);
        let priority = request.priority;
        let result = if request.max_bytes() > self.rules.bytes {
            Err(Rejection::NeverFits)
        } else {
            self.scheduler.submit(request, demand, priority)
        };
        match result {
            Ok(()) => assert!(self.scheduler.tenants.new.requests <= self.rules.queue),
            Err(Rejection::NeverFits) => {}
            Err(Rejection::Full { what: "requests", limit }) => {
                assert!(limit == self.rules.queue && total.requests >= limit);
            }
            Err(Rejection::Full { what: "prompt characters", limit }) => assert!(total.symbols + symbols > limit),
            Err(Rejection::Full { what: "requests of one tenant", limit }) => {
                assert!(own.requests >= limit.max(1) || own_waiting >= self.rules.queue);
            }
            Err(Rejection::Full { what: "prompt characters of one tenant", limit }) => {
                assert!(own.symbols + symbols > limit);
            }
            Err(other) => panic!("{other:?}"),
        }
        self.rejected += usize::from(result.is_err());
        result
    }

    /// Submits a request that must be accepted. Returns its number.
    fn accept(&mut self, tenant: &str, priority: i32, prompt: usize, answer: usize) -> usize {
        let request = self.request(tenant, priority, prompt, answer);
        let number = request.number;
        self.submit(request).unwrap();
        number
    }

    /// Runs one round as the worker does.
    fn round(&mut self) {
        self.poll_queue();
        for index in (0..self.runs.len()).rev() {
            if self.runs[index].request.cancelled {
                let run = self.runs.swap_remove(index);
                assert!(self.cancelled.insert(run.request.number), "ended twice");
                self.finish(run);
            }
        }
        let mut statuses = self.update_rows();
        self.admit();
        while let Some(index) = self.scheduler.preemption_victim(&statuses) {
            self.check_yielding(index);
            self.preempt(index, PreemptionCause::Queue);
            statuses = self.update_rows();
            self.admit();
        }
        let mut feeds = Vec::new();
        loop {
            statuses = self.update_rows();
            // the limit depends on measured time, which the guarantees do not
            let decoding = 1 + self.die.roll(2 * self.rules.chunk);
            let searching = 1 + self.die.roll(2 * self.rules.chunk);
            self.scheduler.plan(&statuses, PromptLimits { decoding, searching }, &mut feeds);
            let needed: usize = feeds.iter().map(|feed| self.runs[feed.request].growth(feed.symbols)).sum();
            if self.held() + needed <= self.rules.bytes {
                break;
            }
            let index = self.scheduler.memory_victim(&statuses).expect("the last request always fits");
            self.check_victim(index);
            self.preempt(index, PreemptionCause::Memory);
        }
        self.check_plan(&statuses, &feeds);
        self.step(&feeds);
        assert!(self.held() <= self.rules.bytes, "more memory than there is");
    }

    fn poll_queue(&mut self) {
        let poll = |request: &mut SimRequest| match () {
            () if request.cancelled => QueuedStatus::Ended,
            () if request.paused && request.arrived.is_none() => QueuedStatus::OnHold,
            () => QueuedStatus::Ready,
        };
        let mut ended = Vec::new();
        self.scheduler.poll_queue(poll, |request| ended.push(request.number));
        assert!(ended.into_iter().all(|number| self.cancelled.insert(number)), "ended twice");
    }

    fn update_rows(&mut self) -> Vec<RowStatus> {
        let statuses: Vec<_> = self.runs.iter_mut().map(SimRun::status).collect();
        for (index, status) in statuses.iter().enumerate() {
            let tenant = Arc::clone(&self.runs[index].request.tenant);
            self.count(status.fed, &tenant);
        }
        self.scheduler.update_rows(&statuses, usize::MAX);
        statuses
    }

    fn admit(&mut self) {
        while let Some((mut request, permit)) = self.scheduler.admitted.pop_front() {
            if let Some(arrived) = request.arrived.take() {
                let longest = self.waited.entry(Arc::clone(&request.tenant)).or_default();
                *longest = (self.clock - arrived).max(*longest);
            }
            let fed = request.kept();
            self.runs.push(SimRun { request, permit, encoded: 0, fed, busy: 0, work: FedSymbols::default() });
        }
    }

    /// Returns the work that may be done while a request waits. Before it in its tenant's queue are at most the requests
    /// that were there and those of higher priority that arrived soon enough. For each of them every tenant may do its share
    /// and overdraw it once.
    fn longest_wait(&self) -> u64 {
        let Rules { rows, queue, age, quantum, .. } = self.rules;
        let request = MAX_SYMBOLS as u64 + 3 * DECODE_WORK * LONG_ANSWER as u64;
        let before = (queue + rows) as u64 * (request + quantum) + 15 * age;
        4 * (before + rows as u64 * request)
    }

    fn preempt(&mut self, index: usize, cause: PreemptionCause) {
        let SimRun { request, permit, .. } = self.runs.swap_remove(index);
        let demand = request.demand();
        let on_hold = request.paused;
        assert!(self.scheduler.preempt(permit, request, demand, on_hold, cause).is_ok());
        self.preemptions += 1;
        self.yielded += usize::from(cause == PreemptionCause::Queue && !on_hold);
    }

    fn held(&self) -> usize {
        self.runs.iter().map(SimRun::bytes).sum()
    }

    fn slot(&self, run: &SimRun) -> &RunSlot {
        self.scheduler.slots[run.permit.0].as_ref().unwrap()
    }

    /// Checks that a request is preempted for memory only if no paused one runs, and only the least senior one: of all, or
    /// of a tenant that holds more than an equal part of the memory.
    fn check_victim(&self, victim: usize) {
        let run = &self.runs[victim];
        if run.request.paused {
            return;
        }
        assert!(self.runs.iter().all(|other| !other.request.paused || other.busy > 0));
        let held = |tenant: &Arc<str>| {
            let own = self.runs.iter().map(|run| self.slot(run)).filter(|slot| slot.tenant == *tenant);
            own.map(|slot| slot.held + slot.soon).sum::<usize>()
        };
        if held(&run.request.tenant) * self.scheduler.tenants.competing() <= self.rules.bytes {
            assert!(self.runs.iter().all(|other| self.slot(other).rank <= self.slot(run).rank));
        }
    }

    /// Checks that a request yields its place only if its client is behind, or if its tenant has more than its part and
    /// another one waits.
    fn check_yielding(&self, victim: usize) {
        let request = &self.runs[victim].request;
        if request.paused {
            return;
        }
        let tenants = &self.scheduler.tenants;
        let share = tenants.share_of(&request.tenant);
        let rows = share.rows * tenants.competing() > self.rules.rows;
        let bytes = share.bytes * tenants.competing() > self.rules.bytes;
        assert!((rows || bytes) && share.balance <= 0, "{share:?}");
    }

    fn check_plan(&self, statuses: &[RowStatus], feeds: &[Feed]) {
        let mut decoding = 0;
        let mut searching = 0;
        let mut prompts = 0;
        let mut blocks = 0;
        let chunk = self.rules.chunk;
        for (request, status) in statuses.iter().enumerate() {
            let own = feeds.iter().filter(|feed| feed.request == request);
            let fed: Vec<usize> = own.map(|feed| feed.symbols).collect();
            let at_most = |max: usize| fed.is_empty() || fed.len() == 1 && (1..=max).contains(&fed[0]);
            match status.activity {
                RowActivity::Busy | RowActivity::Paused { .. } => assert!(fed.is_empty()),
                RowActivity::Decoding(rows) => {
                    assert_eq!(fed, [rows], "a stream is fed in every step");
                    decoding += rows;
                }
                RowActivity::Encoding { blocks: left, .. } => {
                    assert!(at_most(left));
                    blocks += fed.iter().sum::<usize>();
                }
                RowActivity::Searching(left) if fed == [left] && searching + left <= chunk / 2 => searching += left,
                RowActivity::Prefilling(left) | RowActivity::Searching(left) => {
                    assert!(at_most(left));
                    prompts += fed.iter().sum::<usize>();
                }
            }
        }
        let budget = chunk.saturating_sub(decoding + searching).max(chunk.div_ceil(2));
        assert!(prompts <= budget);
        // the unused credit of earlier steps is less than a step
        assert!(blocks * BLOCK_SYMBOLS < budget + chunk + BLOCK_SYMBOLS, "{blocks} blocks");
    }

    fn step(&mut self, feeds: &[Feed]) {
        self.runs.iter_mut().for_each(|run| run.busy = run.busy.saturating_sub(1));
        let mut ended = Vec::new();
        for feed in feeds {
            let busy = self.die.roll(6).saturating_sub(3);
            let run = &mut self.runs[feed.request];
            let finished = run.feed(feed.symbols);
            run.busy = busy;
            if finished {
                ended.push(feed.request);
            }
        }
        ended.sort_unstable();
        for index in ended.into_iter().rev() {
            let run = self.runs.swap_remove(index);
            let request = &run.request;
            assert!(request.sampled == request.answer && self.finished.insert(request.number), "served twice");
            self.finish(run);
        }
    }

    fn finish(&mut self, run: SimRun) {
        self.count(run.work, &run.request.tenant);
        self.scheduler.finish(run.permit, run.work);
    }

    fn count(&mut self, fed: FedSymbols, tenant: &Arc<str>) {
        let work = fed.prompt as u64 + DECODE_WORK * fed.sampled as u64;
        self.clock += work;
        *self.done.entry(Arc::clone(tenant)).or_default() += work;
    }

    fn check(&mut self) {
        let scheduler = &mut self.scheduler;
        let running: usize = self.runs.iter().map(|run| run.request.rows).sum();
        let admitted: usize = scheduler.admitted.iter().map(|(request, _)| request.rows).sum();
        assert!(running + admitted <= self.rules.rows && running + admitted == scheduler.rows);
        assert!(scheduler.tenants.new.requests <= self.rules.queue, "too many new requests wait");
        let longest = scheduler.tenants.longest_queue();
        assert!(longest <= self.rules.queue + self.rules.rows, "{longest} requests of a tenant wait");
        assert_eq!(scheduler.running, self.runs.len() + scheduler.admitted.len());
        let ended = self.finished.len() + self.cancelled.len() + self.rejected;
        assert_eq!(self.arrived, ended + scheduler.running + scheduler.waiting(), "a request is lost");
        assert!(scheduler.tenants.present() <= scheduler.running + scheduler.waiting());
        let slots: usize = scheduler.slots.iter().flatten().map(|slot| slot.held + slot.soon).sum();
        assert_eq!(slots, scheduler.bytes);
        let next = scheduler.tenants.next().cloned();
        assert!(next.is_none_or(|next| !scheduler.fits(next.bytes, next.rows)), "a request that can run waits");
    }

    /// Changes a random request that runs or waits.
    fn change(&mut self, change: impl Fn(&mut SimRequest)) {
        let all = self.runs.len() + self.scheduler.waiting();
        let pick = self.die.roll(all.max(1));
        if let Some(run) = self.runs.get_mut(pick) {
            return change(&mut run.request);
        }
        let mut index = self.runs.len();
        let poll = |request: &mut SimRequest| {
            if index == pick {
                change(request);
            }
            index += 1;
            if request.paused && request.arrived.is_none() { QueuedStatus::OnHold } else { QueuedStatus::Ready }
        };
        self.scheduler.poll_queue(poll, |_| ());
    }

    fn operate(&mut self) {
        match self.die.roll(12) {
            0..=3 => {
                let request = self.random_request();
                let _ = self.submit(request);
            }
            4 => self.change(|request| request.cancelled = true),
            5 => self.change(|request| request.paused = true),
            6 => self.change(|request| request.paused = false),
            _ => self.round(),
        }
        self.check();
    }

    /// Lets all requests finish.
    fn drain(&mut self) {
        let mut rounds = 0;
        while self.scheduler.running + self.scheduler.waiting() > 0 {
            self.runs.iter_mut().for_each(|run| run.request.paused = false);
            let resume = |request: &mut SimRequest| {
                request.paused = false;
                QueuedStatus::Ready
            };
            self.scheduler.poll_queue(resume, |_| ());
            self.round();
            self.check();
            rounds += 1;
            assert!(rounds < 100_000, "no progress");
        }
        assert_eq!(self.arrived, self.finished.len() + self.cancelled.len() + self.rejected);
        let Scheduler { tenants, slots, free, bytes, .. } = &self.scheduler;
        assert!(tenants.is_empty() && *bytes == 0 && slots.iter().all(Option::is_none) && free.len() == slots.len());
    }
}

fn rules(rows: usize, queue: usize, bytes: usize, chunk: usize) -> Rules {
    Rules { age: 40, quantum: 32, ..Rules::new(rows, queue, 200, bytes, chunk) }
}
