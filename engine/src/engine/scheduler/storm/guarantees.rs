//! The guarantees: every request is served once, budgets are kept, tenants share fairly, and order follows seniority.

use super::*;

#[test]
fn guarantees_hold_in_storms() {
    let mut totals = [0; 5];
    for seed in 0..30 {
        let mut die = Die(seed);
        // from one request at a time to memory for little more than the longest request
        let rows = 1 + die.roll(8);
        let queue = die.roll(16);
        let bytes = bytes_for(40 + die.roll(200));
        let chunk = 1 + die.roll(32);
        let mut storm = SchedulerStorm::new(rules(rows, queue, bytes, chunk), seed << 32);
        (0..4000).for_each(|_| storm.operate());
        storm.drain();
        assert!(storm.waited.values().all(|&waited| waited <= storm.longest_wait()), "{:?}", storm.waited);
        let counts = [storm.finished.len(), storm.cancelled.len(), storm.rejected, storm.preemptions, storm.yielded];
        totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
    }
    assert!(totals.iter().all(|&total| total > 1000), "a storm without events: {totals:?}");
}

/// Runs `rounds` rounds with a full queue: before each, submits requests until three in a row are rejected.
fn flood(storm: &mut SchedulerStorm, rounds: usize, mut next: impl FnMut(&mut SchedulerStorm) -> SimRequest) {
    for _ in 0..rounds {
        let mut rejected = 0;
        while rejected < 3 {
            let request = next(storm);
            rejected = if storm.submit(request).is_ok() { 0 } else { rejected + 1 };
        }
        storm.round();
        storm.check();
    }
}

#[test]
fn tenants_do_the_same_work_with_any_requests() {
    // a preempted request stays until it did as much new work as it repeated: at most its length
    let short = (MAX_SYMBOLS, 4 * 98 + 2 * 32);
    let long = (50 * MAX_SYMBOLS, 4 * 50 * MAX_SYMBOLS as u64);
    for (longest, max_difference) in [short, long] {
        let rules = Rules { queued_symbols: usize::MAX, ..rules(4, 64, bytes_for(8 * longest), 16) };
        let mut storm = SchedulerStorm::new(rules, 1);
        let mut count = 0;
        flood(&mut storm, 8000, |storm| {
            count += 1;
            match count % 3 {
                0 => storm.request("short answers", 0, 2, 3),
                1 => storm.request("long answers", 0, 2, longest),
                _ => storm.request("long prompts", 0, longest, 1),
            }
        });
        let min_work = *storm.done.values().min().unwrap();
        let max_work = *storm.done.values().max().unwrap();
        assert!(storm.done.len() == 3 && min_work > 10_000, "{:?}", storm.done);
        assert!(max_work - min_work <= max_difference, "{longest}: {:?}", storm.done);
        storm.drain();
    }
}

#[test]
fn no_request_starves_under_a_flood_of_higher_priority() {
    let mut storm = SchedulerStorm::new(rules(2, 12, bytes_for(200), 16), 2);
    for _ in 0..3 {
        storm.accept("", 7, 4, 4);
    }
    let number = storm.accept("", -8, 4, 4);
    let began = storm.clock;
    while !storm.finished.contains(&number) {
        flood(&mut storm, 1, |storm| storm.request("", 7, 4, 4));
        // requests that arrive within the age of fifteen levels go before it, later ones do not
        assert!(storm.clock - began <= 15 * 40 + 14 * 20 + 2 * 20, "{}", storm.clock - began);
    }
    assert!(storm.clock - began > 10 * 40, "priorities count");
    storm.drain();
}

#[test]
fn a_flood_by_one_tenant_leaves_room_and_turns_to_others() {
    let mut storm = SchedulerStorm::new(rules(2, 64, bytes_for(400), 16), 3);
    flood(&mut storm, 20, |storm| storm.request("flood", 7, 1, 24));
    assert_eq!(storm.scheduler.waiting(), 32, "half is reserved");
    let number = storm.accept("other", -8, 1, 24);
    let began = storm.clock;
    while !storm.finished.contains(&number) {
        flood(&mut storm, 1, |storm| storm.request("flood", 7, 1, 24));
        assert!(storm.clock - began <= 4 * 97, "it waited for more than the running requests");
    }
    storm.drain();
}

/// Requests that lost their rows to another tenant keep no new ones out of the queue.
#[test]
fn floods_by_two_tenants_leave_room_to_a_third() {
    let rules = Rules { queued_symbols: 160, ..rules(16, 256, bytes_for(2000), 16) };
    let mut storm = SchedulerStorm::new(rules, 3);
    let tenants = ["first", "second"];
    for tenant in tenants {
        // Prompts of 20 symbols: sixteen run, and as many wait as may.
        flood(&mut storm, 40, |storm| storm.request(tenant, 7, 20, 200));
    }
    for turn in 0..200 {
        let number = storm.accept("third", -8, 20, 4);
        let began = storm.clock;
        while !storm.finished.contains(&number) {
            for tenant in tenants {
                flood(&mut storm, 2, |storm| storm.request(tenant, 7, 20, 200));
            }
            assert!(storm.clock - began <= 20_000, "turn {turn}");
        }
    }
    assert!(storm.preemptions > 0, "no tenant lost a row");
    storm.drain();
}

#[test]
fn equal_requests_are_admitted_in_order_of_arrival() {
    let rules = Rules { queued_symbols: 400, ..rules(3, 60, bytes_for(120), 16) };
    let mut storm = SchedulerStorm::new(rules, 4);
    for index in 0..30 {
        storm.accept("", index % 2, 5, 5);
    }
    let mut order: Vec<(usize, i32)> = Vec::new();
    while storm.scheduler.running > 0 {
        storm.round();
        let mut running: Vec<_> = storm.runs.iter().map(|run| (run.request.number, run.request.priority)).collect();
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
    let mut storm = SchedulerStorm::new(rules(2, 8, bytes_for(200), 16), 5);
    for _ in 0..6 {
        storm.accept("", 0, 4, 4);
    }
    let (first, _) = storm.scheduler.admitted.pop_front().unwrap();
    let left: Vec<_> = storm.scheduler.clear().map(|request| request.number).collect();
    assert_eq!((first.number, left), (1, vec![2, 3, 4, 5, 6]));
    assert_eq!((storm.scheduler.waiting(), storm.scheduler.running, storm.scheduler.bytes), (0, 0, 0));
    assert!(storm.scheduler.tenants.is_empty());
}

#[test]
fn work_before_a_request_is_a_lower_bound() {
    let mut storm = SchedulerStorm::new(rules(2, 8, bytes_for(200), 16), 6);
    let own = SimRequest { blocks: 0, ..storm.request("", 0, 10, 4) }.demand();
    storm.arrived = 0;
    // a row is free: only its own symbols
    assert_eq!(storm.scheduler.work_before(&own, 0), 10);
    storm.accept("", 0, 5, 4);
    storm.accept("", 0, 7, 4);
    // one of the two running requests must end
    assert_eq!(storm.scheduler.work_before(&own, 0), 5 + 10);
    storm.accept("", 0, 3, 4);
    storm.accept("", 0, 20, 4);
    // three of the four before it must end; a higher priority goes before the waiting ones
    assert_eq!(storm.scheduler.work_before(&own, 0), 3 + 5 + 7 + 10);
    assert_eq!(storm.scheduler.work_before(&own, 1), 5 + 10);
    storm.drain();
}

/// The cache may hold a text by the time that a request with the same beginning runs.
#[test]
fn a_shared_beginning_is_not_certain_work() {
    let rules = Rules { queued_symbols: 2000, ..rules(1, 8, bytes_for(2000), 16) };
    let mut storm = SchedulerStorm::new(rules, 6);
    let of_text = |storm: &mut SchedulerStorm, key: u32, text: &[u32]| {
        let request = storm.request("a", 0, text.len(), 4);
        let beginning = Beginning::new(&key, text.iter().copied());
        (Demand { beginning, ..SimRequest { blocks: 0, ..request.clone() }.demand() }, request)
    };
    // one runs, and one waits
    for symbol in [1, 2] {
        let (demand, request) = of_text(&mut storm, 0, &[symbol; 300]);
        assert!(storm.scheduler.submit(request, demand, 0).is_ok());
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
        let mut demand = Demand { tenant: tenant.into(), ..of_text(&mut storm, key, &text).0 };
        storm.scheduler.discount(&mut demand, 0);
        assert_eq!(demand.uncached, expected, "{tenant} {key} {} of {}", text[0], text.len());
    }
    // the one that waits is discounted too, once a request with the same beginning goes before it
    let waiting = |storm: &mut SchedulerStorm| storm.scheduler.tenants.demands_of("a").next().unwrap().1.uncached;
    assert_eq!(waiting(&mut storm), 300);
    let (mut senior, _) = of_text(&mut storm, 0, &[2; 300]);
    storm.scheduler.discount(&mut senior, 1);
    assert_eq!((waiting(&mut storm), senior.uncached), (0, 0));
}

#[test]
fn requests_of_a_single_step_count_as_work() {
    let mut storm = SchedulerStorm::new(rules(2, 64, bytes_for(400), 32), 7);
    let brief = |storm: &mut SchedulerStorm| storm.request("brief", 0, 8, 0);
    flood(&mut storm, 20, brief);
    let numbers: Vec<_> = (0..8).map(|_| storm.accept("other", 0, 4, 20)).collect();
    flood(&mut storm, 600, brief);
    // although each does more work than one that ends with its first step
    assert!(numbers.iter().all(|number| storm.finished.contains(number)), "{:?}", storm.done);
    storm.drain();
}

#[test]
fn a_tenant_does_not_owe_for_work_without_competition() {
    let mut storm = SchedulerStorm::new(rules(4, 64, bytes_for(4000), 16), 8);
    storm.accept("light", 0, 1, 1200);
    let heavy = |storm: &mut SchedulerStorm| storm.request("flood", 0, MAX_SYMBOLS, MAX_SYMBOLS);
    flood(&mut storm, 300, heavy);
    let light = storm.done["light"];
    assert!(light > 10 * 32 && storm.done["flood"] > light, "{:?}", storm.done);
    storm.accept("light", 0, 1, 1);
    flood(&mut storm, 100, heavy);
    // it waits only until a row is free
    assert!(storm.waited["light"] <= 3 * 125 + 32, "{:?}", storm.waited);
    storm.drain();
}

#[test]
fn a_debtor_is_admitted_while_new_tenants_keep_arriving() {
    let mut storm = SchedulerStorm::new(rules(4, 64, bytes_for(4000), 16), 9);
    // one tenant does nearly all of the work, in competition
    for _ in 0..3 {
        storm.accept("debtor", 0, 1, 100);
    }
    let mut strangers = 0;
    let mut rounds = |storm: &mut SchedulerStorm, rounds: usize| {
        for _ in 0..rounds {
            while storm.scheduler.waiting() < 8 {
                strangers += 1;
                storm.accept(&format!("stranger {strangers}"), 0, 2, 3);
            }
            storm.round();
            storm.check();
        }
    };
    rounds(&mut storm, 100);
    let number = storm.accept("debtor", 0, 1, 1);
    rounds(&mut storm, 3000);
    assert!(storm.finished.contains(&number), "it still waits");
    storm.drain();
}
