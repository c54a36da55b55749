//! Seeded randomized tests: the scheduler with simulated requests and memory, checked against what it guarantees. Every request is
//! served once, budgets are kept, tenants share fairly, and order follows seniority.

use crate::scheduler::tenants::{Beginning, Demand};
use crate::scheduler::{RowActivity, RowStatus, RunPermit, WorkDone, *};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

struct Simulation {
    scheduler: Scheduler<SimRequest>,
    rules: Rules,
    random: Random,
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

impl Simulation {
    fn new(rules: Rules, seed: u64) -> Self {
        Self {
            scheduler: Scheduler::new(rules),
            rules,
            random: Random(seed),
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
        let tenant = ["", "a", "b", "c"][self.random.below(4)];
        let prompt = 1 + self.random.below(MAX_SYMBOLS);
        // some are far longer than others, as far as there is memory
        let longest = [MAX_SYMBOLS, MAX_SYMBOLS, MAX_SYMBOLS, LONG_ANSWER][self.random.below(4)];
        let answer = 1 + self.random.below(longest);
        let priority = [0, 0, 0, 7, -8][self.random.below(5)];
        let request = self.request(tenant, priority, prompt, answer);
        if self.random.below(3) > 0 {
            return request;
        }
        // a summary: a document, then a start mark, then several texts in parallel
        let blocks = 1 + self.random.below(MAX_BLOCKS);
        SimRequest { prompt: 1, blocks, rows: 1 + self.random.below(MAX_ROWS), ..request }
    }

    fn request(&mut self, tenant: &str, priority: i32, prompt: usize, answer: usize) -> SimRequest {
        self.arrived += 1;
        SimRequest {
            number: self.arrived,
            tenant: tenant.into(),
            priority,
            rows: 1,
            prompt,
            answer,
            arrived: Some(self.clock),
            ..SimRequest::default()
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
            Err(Rejection::Full { what: "prompt symbols", limit }) => assert!(total.symbols + symbols > limit),
            Err(Rejection::Full { what: "requests of one tenant", limit }) => {
                assert!(own.requests >= limit.max(1) || own_waiting >= self.rules.queue);
            }
            Err(Rejection::Full { what: "prompt symbols of one tenant", limit }) => {
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
            let mut limit = || 1 + self.random.below(2 * self.rules.chunk);
            let limits = StepLimits {
                decoding: limit(),
                searching: limit(),
                shared: limit(),
                ahead: AHEAD,
                decoded: DECODE_WORK as usize,
            };
            self.scheduler.plan(&statuses, limits, &mut feeds);
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
            self.runs.push(SimRun { request, permit, encoded: 0, fed, busy: 0, work: WorkDone::default() });
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
            let own = self.runs.iter().map(|run| self.slot(run)).filter(|slot| slot.demand.tenant == *tenant);
            own.map(|slot| slot.bytes()).sum::<usize>()
        };
        if held(&run.request.tenant) * self.scheduler.tenants.competing <= self.rules.bytes {
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
        let rows = share.rows * tenants.competing > self.rules.rows;
        let bytes = share.bytes * tenants.competing > self.rules.bytes;
        assert!((rows || bytes) && share.balance <= 0, "{share:?}");
    }

    fn check_plan(&self, statuses: &[RowStatus], feeds: &[Feed]) {
        let balance = |request: usize| self.scheduler.tenants.share_of(&self.runs[request].request.tenant).balance;
        let in_step =
            (0..statuses.len()).filter(|&request| !matches!(statuses[request].activity, RowActivity::Paused { .. }));
        let largest = in_step.map(balance).max().unwrap_or(0);
        let is_ahead =
            |request| self.scheduler.tenants.competing > 1 && balance(request) <= largest - self.rules.quantum as i64;
        let mut ahead = 0;
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
                RowActivity::Encoding { blocks: left, .. } => {
                    assert!(at_most(left));
                    blocks += fed.iter().sum::<usize>();
                }
                activity if is_ahead(request) => {
                    let is_decoding = matches!(activity, RowActivity::Decoding(_));
                    ahead += fed.iter().sum::<usize>() * if is_decoding { DECODE_WORK as usize } else { 1 };
                }
                RowActivity::Decoding(rows) => {
                    assert_eq!(fed, [rows], "a stream is fed in every step");
                    decoding += rows;
                }
                RowActivity::Searching(left) if fed == [left] && searching + left <= chunk / 2 => searching += left,
                RowActivity::Prefilling(left) | RowActivity::Searching(left) | RowActivity::Forced(left) => {
                    assert!(at_most(left));
                    prompts += fed.iter().sum::<usize>();
                }
            }
        }
        let budget = chunk.saturating_sub(decoding + searching).max(chunk.div_ceil(2));
        assert!(prompts <= budget);
        assert!(ahead < AHEAD + MAX_ROWS * DECODE_WORK as usize, "{ahead}: more than the part of all that are ahead");
        // the unused credit of earlier steps is less than a step
        assert!(blocks * BLOCK_SYMBOLS < budget + chunk + AHEAD + BLOCK_SYMBOLS, "{blocks} blocks");
    }

    fn step(&mut self, feeds: &[Feed]) {
        self.runs.iter_mut().for_each(|run| run.busy = run.busy.saturating_sub(1));
        let mut ended = Vec::new();
        for feed in feeds {
            let busy = self.random.below(6).saturating_sub(3);
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

    /// Counts new work, which takes as much time.
    fn count(&mut self, fed: WorkDone, tenant: &Arc<str>) {
        let work = fed.time;
        self.clock += work;
        *self.done.entry(Arc::clone(tenant)).or_default() += work;
    }

    fn check(&mut self) {
        let scheduler = &mut self.scheduler;
        let running: usize = self.runs.iter().map(|run| run.request.rows).sum();
        let admitted: usize = scheduler.admitted.iter().map(|(request, _)| request.rows).sum();
        assert!(running + admitted <= self.rules.rows && running + admitted == scheduler.rows);
        assert!(scheduler.tenants.new.requests <= self.rules.queue, "too many new requests wait");
        let longest = scheduler.tenants.all.values().map(|tenant| tenant.waiting.len()).max().unwrap_or(0);
        assert!(longest <= self.rules.queue + self.rules.rows, "{longest} requests of a tenant wait");
        assert_eq!(scheduler.running, self.runs.len() + scheduler.admitted.len());
        let ended = self.finished.len() + self.cancelled.len() + self.rejected;
        assert_eq!(self.arrived, ended + scheduler.running + scheduler.waiting(), "a request is lost");
        assert!(scheduler.tenants.present <= scheduler.running + scheduler.waiting());
        let slots: usize = scheduler.slots.iter().flatten().map(|slot| slot.bytes()).sum();
        assert_eq!(slots, scheduler.bytes);
        let next = scheduler.tenants.next().cloned();
        assert!(next.is_none_or(|next| !scheduler.fits(next.bytes, next.rows)), "a request that can run waits");
    }

    /// Changes a random request that runs or waits.
    fn change(&mut self, change: impl Fn(&mut SimRequest)) {
        let all = self.runs.len() + self.scheduler.waiting();
        let pick = self.random.below(all.max(1));
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
        match self.random.below(12) {
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
        assert!(is_empty(tenants) && *bytes == 0 && slots.iter().all(Option::is_none) && free.len() == slots.len());
    }
}

fn is_empty<T>(Tenants { all, ring, waiting, new, .. }: &Tenants<T>) -> bool {
    all.is_empty() && ring.is_empty() && (*waiting, new.requests, new.symbols) == (0, 0, 0)
}

fn rules(rows: usize, queue: usize, bytes: usize, chunk: usize) -> Rules {
    Rules { age: 40, quantum: 32, min_new_work: 8, ..Rules::new(rows, queue, 200, bytes, chunk) }
}

/// Symbols of a page.
const PAGE_SYMBOLS: usize = 4;

const PAGE_BYTES: usize = 8;

/// Symbols beyond its current ones for which a request is admitted.
const MARGIN: usize = 6;

/// Maximum symbols of a prompt and of an answer.
const MAX_SYMBOLS: usize = 24;

/// Maximum symbols of a long answer.
const LONG_ANSWER: usize = 10 * MAX_SYMBOLS;

/// Maximum blocks of a document.
const MAX_BLOCKS: usize = 5;

/// Symbols that a block counts as: more than the chunk of some simulations.
const BLOCK_SYMBOLS: usize = 12;

/// Maximum rows of a request.
const MAX_ROWS: usize = 3;

/// Part of a step for the requests of tenants that are ahead.
const AHEAD: usize = 16;

fn bytes_for(symbols: usize) -> usize {
    symbols.div_ceil(PAGE_SYMBOLS) * PAGE_BYTES
}

struct Random(u64);

impl Random {
    fn below(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % sides as u64) as usize
    }
}

#[derive(Debug, Clone, Default)]
struct SimRequest {
    number: usize,
    tenant: Arc<str>,
    priority: i32,
    /// Blocks of its document; 0: it has none.
    blocks: usize,
    rows: usize,
    prompt: usize,
    /// Symbols to sample on each row.
    answer: usize,
    /// Symbols that were sampled.
    sampled: usize,
    /// Symbols of a window, if the text is fed in windows, of which only the last is fed again after a preemption.
    window: Option<usize>,
    /// Symbols that were fed at least once. After a preemption they are fed again.
    reached: usize,
    /// True if its client is behind.
    paused: bool,
    cancelled: bool,
    /// The simulation's work clock when it arrived; `None` once it was admitted.
    arrived: Option<u64>,
}

impl SimRequest {
    fn symbols(&self) -> usize {
        self.prompt + self.sampled
    }

    fn max_symbols(&self) -> usize {
        self.prompt + self.answer
    }

    /// Returns the bytes with `blocks` encoded blocks and `symbols` symbols on each row.
    fn bytes(&self, blocks: usize, symbols: usize) -> usize {
        bytes_for(blocks) + self.rows * bytes_for(symbols)
    }

    fn max_bytes(&self) -> usize {
        self.bytes(self.blocks, self.max_symbols())
    }

    /// Returns the symbols that need not be fed again when it gets its rows.
    fn kept(&self) -> usize {
        self.window.map_or(0, |window| self.reached.saturating_sub(window))
    }

    fn demand(&self) -> Demand {
        let symbols = self.symbols();
        let bytes = self.bytes(self.blocks, (symbols + MARGIN).min(self.max_symbols()));
        Demand {
            tenant: Arc::clone(&self.tenant),
            symbols,
            uncached: symbols,
            beginning: Beginning::default(),
            bytes,
            rows: self.rows,
        }
    }
}

/// A simulated request that runs.
struct SimRun {
    request: SimRequest,
    permit: RunPermit,
    /// Blocks of its document that have run.
    encoded: usize,
    /// Symbols that each row was fed.
    fed: usize,
    /// Rounds until its outcome is ready.
    busy: usize,
    work: WorkDone,
}

impl SimRun {
    fn activity(&self) -> RowActivity {
        match self.request.symbols() - self.fed {
            _ if self.busy > 0 => RowActivity::Busy,
            _ if self.request.paused => RowActivity::Paused { preemptible: self.request.number.is_multiple_of(2) },
            _ if self.encoded < self.request.blocks => {
                RowActivity::Encoding { blocks: self.request.blocks - self.encoded, block_symbols: BLOCK_SYMBOLS }
            }
            1 if self.fed >= self.request.prompt => RowActivity::Decoding(self.request.rows),
            left @ 1..=3 if self.request.number.is_multiple_of(5) => RowActivity::Searching(left),
            left => RowActivity::Prefilling(left),
        }
    }

    fn bytes(&self) -> usize {
        self.request.bytes(self.encoded, self.fed)
    }

    /// Returns the bytes that a feed allocates.
    fn growth(&self, feed: usize) -> usize {
        let after = match self.activity() {
            RowActivity::Encoding { .. } => self.request.bytes(self.encoded + feed, self.fed),
            RowActivity::Decoding(_) => self.request.bytes(self.encoded, self.fed + 1),
            _ => self.request.bytes(self.encoded, self.fed + feed),
        };
        after - self.bytes()
    }

    fn status(&mut self) -> RowStatus {
        let symbols = (self.request.symbols() + MARGIN).min(self.request.max_symbols());
        let soon = self.request.bytes(self.request.blocks, symbols) - self.bytes();
        RowStatus::new(&self.permit, self.activity(), self.bytes(), soon, std::mem::take(&mut self.work))
    }

    /// Takes a feed. Returns true if the request is finished.
    fn feed(&mut self, symbols: usize) -> bool {
        let decoding = matches!(self.activity(), RowActivity::Decoding(_));
        if matches!(self.activity(), RowActivity::Encoding { .. }) {
            self.encoded += symbols;
            self.work.prompt += symbols;
            self.work.time += symbols as u64;
            return false;
        }
        let symbols = if decoding { 1 } else { symbols };
        let recomputed = self.request.reached.saturating_sub(self.fed).min(symbols);
        self.fed += symbols;
        self.request.reached = self.request.reached.max(self.fed);
        self.work.recomputed += recomputed;
        let new = (symbols - recomputed) * self.request.rows;
        let (count, time) = if decoding { (&mut self.work.sampled, DECODE_WORK) } else { (&mut self.work.prompt, 1) };
        *count += new;
        self.work.time += time * new as u64;
        assert!(self.fed <= self.request.symbols());
        if self.fed < self.request.symbols() {
            return false;
        }
        if self.request.sampled == self.request.answer {
            return true;
        }
        // symbols sampled before a preemption are fed again, not sampled again
        self.request.sampled += 1;
        false
    }
}

#[test]
fn guarantees_hold_for_random_requests() {
    let mut totals = [0; 5];
    for seed in 0..40 {
        let mut random = Random(seed);
        // from one request at a time to memory for little more than the longest request
        let rows = 1 + random.below(8);
        let queue = random.below(16);
        let bytes = bytes_for(40 + random.below(200));
        let chunk = 1 + random.below(32);
        let mut sim = Simulation::new(rules(rows, queue, bytes, chunk), seed << 32);
        (0..4000).for_each(|_| sim.operate());
        sim.drain();
        assert!(sim.waited.values().all(|&waited| waited <= sim.longest_wait()), "{:?}", sim.waited);
        let counts = [sim.finished.len(), sim.cancelled.len(), sim.rejected, sim.preemptions, sim.yielded];
        totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
    }
    assert!(totals.iter().all(|&total| total > 1000), "a simulation without events: {totals:?}");
}

/// Runs `rounds` rounds with a full queue: before each, submits requests until three in a row are rejected.
fn flood(sim: &mut Simulation, rounds: usize, mut next: impl FnMut(&mut Simulation) -> SimRequest) {
    for _ in 0..rounds {
        let mut rejected = 0;
        while rejected < 3 {
            let request = next(sim);
            rejected = if sim.submit(request).is_ok() { 0 } else { rejected + 1 };
        }
        sim.round();
        sim.check();
    }
}

#[test]
fn tenants_do_the_same_work_with_any_requests() {
    // a preempted request runs until it did as much new work as it repeated: at most its length
    let short = (MAX_SYMBOLS, 4 * 98 + 2 * 32);
    let long = (50 * MAX_SYMBOLS, 4 * 50 * MAX_SYMBOLS as u64);
    for (longest, max_difference) in [short, long] {
        let rules = Rules { queued_symbols: usize::MAX, ..rules(4, 64, bytes_for(8 * longest), 16) };
        let mut sim = Simulation::new(rules, 1);
        let mut count = 0;
        flood(&mut sim, 8000, |sim| {
            count += 1;
            match count % 3 {
                0 => sim.request("short answers", 0, 2, 3),
                1 => sim.request("long answers", 0, 2, longest),
                _ => sim.request("long prompts", 0, longest, 1),
            }
        });
        let min_work = *sim.done.values().min().unwrap();
        let max_work = *sim.done.values().max().unwrap();
        assert!(sim.done.len() == 3 && min_work > 10_000, "{:?}", sim.done);
        assert!(max_work - min_work <= max_difference, "{longest}: {:?}", sim.done);
        sim.drain();
    }
}

#[test]
fn no_request_starves_under_a_flood_of_higher_priority() {
    let mut sim = Simulation::new(rules(2, 12, bytes_for(200), 16), 2);
    for _ in 0..3 {
        sim.accept("", 7, 4, 4);
    }
    let number = sim.accept("", -8, 4, 4);
    let began = sim.clock;
    while !sim.finished.contains(&number) {
        flood(&mut sim, 1, |sim| sim.request("", 7, 4, 4));
        // requests that arrive within the age of fifteen levels go before it, later ones do not
        assert!(sim.clock - began <= 15 * 40 + 14 * 20 + 2 * 20, "{}", sim.clock - began);
    }
    assert!(sim.clock - began > 10 * 40, "priorities count");
    sim.drain();
}

#[test]
fn a_flood_by_one_tenant_leaves_room_and_turns_to_others() {
    let mut sim = Simulation::new(rules(2, 64, bytes_for(400), 16), 3);
    flood(&mut sim, 20, |sim| sim.request("flood", 7, 1, 24));
    assert_eq!(sim.scheduler.waiting(), 32, "half is reserved");
    let number = sim.accept("other", -8, 1, 24);
    let began = sim.clock;
    while !sim.finished.contains(&number) {
        flood(&mut sim, 1, |sim| sim.request("flood", 7, 1, 24));
        assert!(sim.clock - began <= 4 * 97, "it waited for more than the running requests");
    }
    sim.drain();
}

/// Requests that lost their rows to another tenant keep no new ones out of the queue.
#[test]
fn floods_by_two_tenants_leave_room_to_a_third() {
    let rules = Rules { queued_symbols: 160, ..rules(16, 256, bytes_for(2000), 16) };
    let mut sim = Simulation::new(rules, 3);
    let tenants = ["first", "second"];
    for tenant in tenants {
        // Prompts of 20 symbols: sixteen run, and as many wait as may.
        flood(&mut sim, 40, |sim| sim.request(tenant, 7, 20, 200));
    }
    for turn in 0..200 {
        let number = sim.accept("third", -8, 20, 4);
        let began = sim.clock;
        while !sim.finished.contains(&number) {
            for tenant in tenants {
                flood(&mut sim, 2, |sim| sim.request(tenant, 7, 20, 200));
            }
            assert!(sim.clock - began <= 20_000, "turn {turn}");
        }
    }
    assert!(sim.preemptions > 0, "no tenant lost a row");
    sim.drain();
}

#[test]
fn equal_requests_are_admitted_in_order_of_arrival() {
    let rules = Rules { queued_symbols: 400, ..rules(3, 60, bytes_for(120), 16) };
    let mut sim = Simulation::new(rules, 4);
    for index in 0..30 {
        sim.accept("", index % 2, 5, 5);
    }
    let mut order: Vec<(usize, i32)> = Vec::new();
    while sim.scheduler.running > 0 {
        sim.round();
        let mut running: Vec<_> = sim.runs.iter().map(|run| (run.request.number, run.request.priority)).collect();
        running.sort_unstable();
        running.retain(|run| !order.contains(run));
        order.extend(running);
    }
    for priority in 0..2 {
        let numbers: Vec<_> = order.iter().filter(|run| run.1 == priority).map(|run| run.0).collect();
        assert!(numbers.len() == 15 && numbers.is_sorted(), "{numbers:?}");
    }
}

#[test]
fn clearing_leaves_no_request() {
    let mut sim = Simulation::new(rules(2, 8, bytes_for(200), 16), 5);
    for _ in 0..6 {
        sim.accept("", 0, 4, 4);
    }
    let (first, _) = sim.scheduler.admitted.pop_front().unwrap();
    let left: Vec<_> = sim.scheduler.clear().map(|request| request.number).collect();
    assert_eq!((first.number, left), (1, vec![2, 3, 4, 5, 6]));
    assert_eq!((sim.scheduler.waiting(), sim.scheduler.running, sim.scheduler.bytes), (0, 0, 0));
    assert!(is_empty(&sim.scheduler.tenants));
}

#[test]
fn work_before_a_request_is_a_lower_bound() {
    let mut sim = Simulation::new(rules(2, 8, bytes_for(200), 16), 6);
    let own = SimRequest { blocks: 0, ..sim.request("", 0, 10, 4) }.demand();
    sim.arrived = 0;
    // a row is free: only its own symbols
    assert_eq!(sim.scheduler.work_before(&own, 0), 10);
    sim.accept("", 0, 5, 4);
    sim.accept("", 0, 7, 4);
    // one of the two running requests must end
    assert_eq!(sim.scheduler.work_before(&own, 0), 5 + 10);
    sim.accept("", 0, 3, 4);
    sim.accept("", 0, 20, 4);
    // three of the four before it must end; a higher priority goes before the waiting ones
    assert_eq!(sim.scheduler.work_before(&own, 0), 3 + 5 + 7 + 10);
    assert_eq!(sim.scheduler.work_before(&own, 1), 5 + 10);
    sim.drain();
}

/// The cache may hold a text by the time that a request with the same beginning runs.
#[test]
fn a_shared_beginning_is_not_certain_work() {
    let rules = Rules { queued_symbols: 2000, ..rules(1, 8, bytes_for(2000), 16) };
    let mut sim = Simulation::new(rules, 6);
    let of_text = |sim: &mut Simulation, key: u32, text: &[u32]| {
        let request = sim.request("a", 0, text.len(), 4);
        let beginning = Beginning::new(&key, text.iter().copied());
        (Demand { beginning, ..SimRequest { blocks: 0, ..request.clone() }.demand() }, request)
    };
    // one runs, and one waits
    for symbol in [1, 2] {
        let (demand, request) = of_text(&mut sim, 0, &[symbol; 300]);
        assert!(sim.scheduler.submit(request, demand, 0).is_ok());
    }
    // 100 equal symbols have the same first 64, and other first 256
    let forked = [[1; 100].as_slice(), &[3; 200]].concat();
    for (tenant, key, text, expected) in [
        ("a", 0, vec![1; 300], 0),
        ("a", 0, vec![2; 400], 0),
        ("a", 0, forked.clone(), 300 - 255),
        ("a", 0, vec![3; 300], 300),
        ("a", 0, vec![1; 15], 15),
        ("a", 1, vec![1; 300], 300),
        ("b", 0, vec![1; 300], 300),
    ] {
        let mut demand = Demand { tenant: tenant.into(), ..of_text(&mut sim, key, &text).0 };
        sim.scheduler.discount(&mut demand, 0);
        assert_eq!(demand.uncached, expected, "{tenant} {key} {} of {}", text[0], text.len());
    }
    // the one that waits is discounted too, once a request with the same beginning goes before it
    let waiting = |sim: &mut Simulation| sim.scheduler.tenants.demands_of("a").next().unwrap().1.uncached;
    assert_eq!(waiting(&mut sim), 300);
    let (mut senior, _) = of_text(&mut sim, 0, &[2; 300]);
    sim.scheduler.discount(&mut senior, 1);
    assert_eq!((waiting(&mut sim), senior.uncached), (0, 0));
}

#[test]
fn requests_of_a_single_step_count_as_work() {
    let mut sim = Simulation::new(rules(2, 64, bytes_for(400), 32), 7);
    let brief = |sim: &mut Simulation| sim.request("brief", 0, 8, 0);
    flood(&mut sim, 20, brief);
    let numbers: Vec<_> = (0..8).map(|_| sim.accept("other", 0, 4, 20)).collect();
    flood(&mut sim, 600, brief);
    // although each does more work than one that ends with its first step
    assert!(numbers.iter().all(|number| sim.finished.contains(number)), "{:?}", sim.done);
    sim.drain();
}

#[test]
fn a_tenant_does_not_owe_for_work_without_competition() {
    let mut sim = Simulation::new(rules(4, 64, bytes_for(4000), 16), 8);
    sim.accept("light", 0, 1, 1200);
    let heavy = |sim: &mut Simulation| sim.request("flood", 0, MAX_SYMBOLS, MAX_SYMBOLS);
    flood(&mut sim, 300, heavy);
    let light = sim.done["light"];
    assert!(light > 10 * 32 && sim.done["flood"] > light, "{:?}", sim.done);
    sim.accept("light", 0, 1, 1);
    flood(&mut sim, 100, heavy);
    // it waits only until a row is free
    assert!(sim.waited["light"] <= 3 * 125 + 32, "{:?}", sim.waited);
    sim.drain();
}

#[test]
fn a_debtor_is_admitted_while_new_tenants_keep_arriving() {
    let mut sim = Simulation::new(rules(4, 64, bytes_for(4000), 16), 9);
    // one tenant does nearly all of the work, in competition
    for _ in 0..3 {
        sim.accept("debtor", 0, 1, 100);
    }
    let mut strangers = 0;
    let mut rounds = |sim: &mut Simulation, rounds: usize| {
        for _ in 0..rounds {
            while sim.scheduler.waiting() < 8 {
                strangers += 1;
                sim.accept(&format!("stranger {strangers}"), 0, 2, 3);
            }
            sim.round();
            sim.check();
        }
    };
    rounds(&mut sim, 100);
    let number = sim.accept("debtor", 0, 1, 1);
    rounds(&mut sim, 3000);
    assert!(sim.finished.contains(&number), "it still waits");
    sim.drain();
}

/// Symbols that no request reaches in a test.
const ENDLESS: usize = 1 << 30;

/// Fills rows and queue with endless requests of the tenant "flood", and lets them run.
fn flooded(rules: Rules, seed: u64) -> Simulation {
    let mut sim = Simulation::new(rules, seed);
    for number in 0..48 {
        // alternately long prompts, as of texts in windows, and long answers
        let long = if number % 2 == 0 { (ENDLESS, 0) } else { (1, ENDLESS) };
        let request = sim.request("flood", 0, long.0, long.1);
        assert!(sim.submit(SimRequest { window: Some(MAX_SYMBOLS), ..request }).is_ok());
    }
    (0..50).for_each(|_| sim.round());
    assert!(sim.scheduler.rows == rules.rows && sim.scheduler.waiting() >= 16);
    sim
}

/// Cancels all endless requests, and runs the others to their end.
fn end(mut sim: Simulation) {
    let cancel = |request: &mut SimRequest| {
        request.cancelled |= request.prompt.max(request.answer) >= ENDLESS;
        QueuedStatus::Ready
    };
    sim.admit();
    sim.runs.iter_mut().for_each(|run| _ = cancel(&mut run.request));
    sim.scheduler.poll_queue(cancel, |_| ());
    sim.drain();
}

fn long_rules(rows: usize, chunk: usize) -> Rules {
    Rules { queued_symbols: usize::MAX, ..rules(rows, 128, usize::MAX, chunk) }
}

/// A request of 9 steps is done after few steps, which others make a few times longer at most, whatever a flood consists of.
#[test]
fn a_flood_of_one_tenant_makes_the_requests_of_another_a_few_times_longer() {
    let floods =
        [("mixed", 0, 0, 0), ("prompts", ENDLESS, 0, 0), ("answers", 1, ENDLESS, 0), ("documents", 1, 24, 100)];
    for rows in [1, 2, 4, 32] {
        for (kind, prompt, answer, blocks) in floods {
            let rules = long_rules(rows, 64);
            let mut sim = if kind == "mixed" { flooded(rules, rows as u64) } else { Simulation::new(rules, 1) };
            let refill = |sim: &mut Simulation| {
                while kind != "mixed" && sim.scheduler.waiting() < 16 {
                    let request =
                        SimRequest { blocks, window: Some(MAX_SYMBOLS), ..sim.request("flood", 7, prompt, answer) };
                    assert!(sim.submit(request).is_ok());
                }
                sim.round();
                sim.check();
            };
            let mut longest = (0, 0);
            // during the first one, the flood is not ahead yet
            for turn in 0..20 {
                (0..20).for_each(|_| refill(&mut sim));
                let number = sim.accept("other", -8, 8, 8);
                let began = sim.clock;
                let mut rounds = 0;
                while !sim.finished.contains(&number) {
                    refill(&mut sim);
                    rounds += 1;
                    assert!(rounds < 200, "{kind}, {rows} rows: a request of 9 steps waits");
                }
                if turn > 0 {
                    longest = (longest.0.max(rounds), longest.1.max(sim.clock - began));
                }
            }
            // if any request of the flood could fill a step, a request would wait for five times as much work
            assert!(longest.0 <= 80 && longest.1 <= 600, "{kind}, {rows} rows: {longest:?}");
            end(sim);
        }
    }
}

#[test]
fn tenants_with_endless_requests_do_the_same_work() {
    for rows in [1, 3, 8] {
        let mut sim = flooded(long_rules(rows, 16), rows as u64);
        for tenant in ["a", "b", "c"] {
            (0..4).for_each(|_| _ = sim.accept(tenant, 0, 1, ENDLESS));
        }
        let mut before = sim.done.clone();
        for _ in 0..20_000 {
            sim.round();
            sim.check();
        }
        let work = ["flood", "a", "b", "c"].map(|tenant| sim.done[tenant] - before.remove(tenant).unwrap_or(0));
        let total: u64 = work.iter().sum();
        assert!(work.iter().all(|work| 8 * work > total), "{rows} rows: {work:?}");
        end(sim);
    }
}

#[test]
fn short_requests_wait_a_bounded_time_among_endless_ones() {
    for seed in 0..5 {
        let mut random = Random(seed);
        let rows = 1 + random.below(16);
        let chunk = 1 + random.below(32);
        let mut sim = flooded(long_rules(rows, chunk), seed);
        for _ in 0..2000 {
            if sim.random.below(40) == 0 {
                let tenant = ["a", "b", "c"][sim.random.below(3)];
                let prompt = 1 + sim.random.below(MAX_SYMBOLS);
                let answer = 1 + sim.random.below(MAX_SYMBOLS);
                let request = sim.request(tenant, 0, prompt, answer);
                let _ = sim.submit(request);
            }
            sim.round();
            sim.check();
        }
        for tenant in ["a", "b", "c"] {
            assert!(sim.waited[tenant] <= sim.longest_wait(), "seed {seed}: {:?}", sim.waited);
        }
        end(sim);
    }
}
