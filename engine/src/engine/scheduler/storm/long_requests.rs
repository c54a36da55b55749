//! Long requests of one tenant: others must not wait for their end.

use super::*;

/// Symbols that no request reaches in a test.
const ENDLESS: usize = 1 << 30;

/// Fills rows and queue with endless requests of the tenant "flood", and lets them run.
fn flooded(rules: Rules, seed: u64) -> SchedulerStorm {
    let mut storm = SchedulerStorm::new(rules, seed);
    for number in 0..48 {
        // alternately long prompts, as of texts in windows, and long answers
        let long = if number % 2 == 0 { (ENDLESS, 0) } else { (1, ENDLESS) };
        let request = storm.request("flood", 0, long.0, long.1);
        assert!(storm.submit(SimRequest { window: Some(MAX_SYMBOLS), ..request }).is_ok());
    }
    (0..50).for_each(|_| storm.round());
    assert!(storm.scheduler.rows == rules.rows && storm.scheduler.waiting() >= 16);
    storm
}

/// Cancels all requests of the flood, and lets the others finish.
fn end(mut storm: SchedulerStorm) {
    storm.admit();
    let is_flood = |request: &SimRequest| &*request.tenant == "flood";
    storm.runs.iter_mut().for_each(|run| run.request.cancelled |= is_flood(&run.request));
    let cancel = |request: &mut SimRequest| {
        request.cancelled |= is_flood(request);
        QueuedStatus::Ready
    };
    storm.scheduler.poll_queue(cancel, |_| ());
    storm.drain();
}

fn long_rules(rows: usize, chunk: usize) -> Rules {
    Rules { queued_symbols: usize::MAX, ..rules(rows, 128, usize::MAX, chunk) }
}

#[test]
fn endless_requests_of_one_tenant_do_not_delay_another() {
    for rows in [1, 2, 4, 32] {
        let mut storm = flooded(long_rules(rows, 16), rows as u64);
        for _ in 0..20 {
            let number = storm.accept("other", -8, 8, 8);
            let mut rounds = 0;
            while !storm.finished.contains(&number) {
                storm.round();
                storm.check();
                rounds += 1;
                assert!(rounds < 400, "{rows} rows: a request of 9 steps waits");
            }
        }
        assert!(storm.yielded > 0);
        end(storm);
    }
}

#[test]
fn tenants_with_endless_requests_do_the_same_work() {
    for rows in [1, 3, 8] {
        let mut storm = flooded(long_rules(rows, 16), rows as u64);
        for tenant in ["a", "b", "c"] {
            (0..4).for_each(|_| _ = storm.accept(tenant, 0, 1, ENDLESS));
        }
        let mut before = storm.done.clone();
        for _ in 0..20_000 {
            storm.round();
            storm.check();
        }
        let work = ["flood", "a", "b", "c"].map(|tenant| storm.done[tenant] - before.remove(tenant).unwrap_or(0));
        let total: u64 = work.iter().sum();
        assert!(work.iter().all(|work| 8 * work > total), "{rows} rows: {work:?}");
        for tenant in ["a", "b", "c"] {
            storm.runs.iter_mut().for_each(|run| run.request.cancelled |= &*run.request.tenant == tenant);
        }
        let all = |request: &mut SimRequest| {
            request.cancelled = true;
            QueuedStatus::Ready
        };
        storm.scheduler.poll_queue(all, |_| ());
        end(storm);
    }
}

#[test]
fn short_requests_wait_a_bounded_time_in_storms_of_endless_ones() {
    for seed in 0..30 {
        let mut die = Die(seed);
        let rows = 1 + die.roll(16);
        let chunk = 1 + die.roll(32);
        let mut storm = flooded(long_rules(rows, chunk), seed);
        for _ in 0..2000 {
            if storm.die.roll(40) == 0 {
                let tenant = ["a", "b", "c"][storm.die.roll(3)];
                let prompt = 1 + storm.die.roll(MAX_SYMBOLS);
                let answer = 1 + storm.die.roll(MAX_SYMBOLS);
                let request = storm.request(tenant, 0, prompt, answer);
                let _ = storm.submit(request);
            }
            storm.round();
            storm.check();
        }
        for tenant in ["a", "b", "c"] {
            assert!(storm.waited[tenant] <= storm.longest_wait(), "seed {seed}: {:?}", storm.waited);
        }
        end(storm);
    }
}
