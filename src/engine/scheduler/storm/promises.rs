//! What is promised: nobody lost, nobody served twice, budgets kept, and who goes first.

use super::*;

#[test]
fn keeps_its_promises_in_storms() {
    let mut sum = [0; 4];
    for seed in 0..30 {
        let mut die = Die(seed);
        // from one job at a time to memory for hardly more than the longest
        let (rows, queue) = (1 + die.roll(8), die.roll(16));
        let (bytes, chunk) = (bytes_for(40 + die.roll(200)), 1 + die.roll(32));
        let mut storm = Storm::new(rules(rows, queue, bytes, chunk), seed << 32);
        (0..4000).for_each(|_| storm.operate());
        storm.calm();
        assert!(storm.waited.values().all(|&waited| waited <= storm.longest_wait()), "{:?}", storm.waited);
        let Storm { finished, cancelled, refused, yielded, .. } = storm;
        for (sum, more) in sum.iter_mut().zip([finished.len(), cancelled.len(), refused, yielded]) {
            *sum += more;
        }
    }
    // the storms were storms
    assert!(sum.iter().all(|&sum| sum > 1000), "{sum:?}");
}

/// Keeps the queue full of such jobs for so many rounds: until three in a row are refused.
fn flood(storm: &mut Storm, rounds: usize, mut next: impl FnMut(&mut Storm) -> Job) {
    for _ in 0..rounds {
        let mut refused = 0;
        while refused < 3 {
            let job = next(storm);
            refused = if storm.submit(job).is_ok() { 0 } else { refused + 1 };
        }
        storm.round();
        storm.check();
    }
}

#[test]
fn tenants_do_the_same_work_whatever_they_ask_for() {
    let rules = Rules { queued_symbols: 5000, ..rules(4, 64, bytes_for(1000), 16) };
    let mut storm = Storm::new(rules, 1);
    // one asks for many short answers, one for long ones, one for long prompts
    let kinds: [(&str, (usize, usize)); 3] = [("short", (2, 3)), ("long", (2, 24)), ("prompts", (24, 1))];
    let mut at = 0;
    flood(&mut storm, 4000, |storm| {
        at += 1;
        let (tenant, size) = kinds[at % 3];
        storm.one(tenant.into(), 0, size)
    });
    let done: Vec<_> = storm.done.values().copied().collect();
    let (least, most) = (*done.iter().min().unwrap(), *done.iter().max().unwrap());
    assert!(done.len() == 3 && least > 5000, "{:?}", storm.done);
    // no more apart than by what runs at a time
    assert!(most - least <= 4 * 98 + 2 * 32, "{:?}", storm.done);
    storm.calm();
}

#[test]
fn nobody_starves_under_a_flood_of_higher_priority() {
    let mut storm = Storm::new(rules(2, 12, bytes_for(200), 16), 2);
    for _ in 0..3 {
        let urgent = storm.one("".into(), 7, (4, 4));
        storm.submit(urgent).unwrap();
    }
    let humble = storm.one("".into(), -8, (4, 4));
    let number = humble.number;
    storm.submit(humble).unwrap();
    let began = storm.clock;
    while !storm.finished.contains(&number) {
        flood(&mut storm, 1, |storm| storm.one("".into(), 7, (4, 4)));
        // all that came within the age of fifteen levels goes before it, and nothing that comes later
        assert!(storm.clock - began <= 15 * 40 + 14 * 20 + 2 * 20, "{}", storm.clock - began);
    }
    assert!(storm.clock - began > 10 * 40, "priorities count");
    storm.calm();
}

#[test]
fn a_flood_by_one_tenant_leaves_room_and_turns_to_others() {
    let mut storm = Storm::new(rules(2, 64, bytes_for(400), 16), 3);
    flood(&mut storm, 20, |storm| storm.one("many".into(), 7, (1, 24)));
    assert_eq!(storm.scheduler.waiting(), 56, "the last eighth is kept");
    let other = storm.one("one".into(), -8, (1, 24));
    let number = other.number;
    storm.submit(other).unwrap();
    let began = storm.clock;
    while !storm.finished.contains(&number) {
        flood(&mut storm, 1, |storm| storm.one("many".into(), 7, (1, 24)));
        assert!(storm.clock - began <= 4 * 97, "it waited for more than those that ran");
    }
    storm.calm();
}

#[test]
fn those_of_one_kind_are_let_in_as_they_came() {
    let mut storm = Storm::new(rules(3, 40, bytes_for(120), 16), 4);
    let jobs: Vec<Job> = (0..30).map(|at| storm.one("".into(), at % 2, (5, 5))).collect();
    jobs.into_iter().for_each(|job| storm.submit(job).unwrap());
    let mut order = Vec::new();
    while storm.scheduler.running() > 0 {
        storm.round();
        let mut rows: Vec<_> = storm.rows.iter().map(|row| (row.job.number, row.job.priority)).collect();
        rows.sort_unstable();
        rows.into_iter().for_each(|row| {
            if !order.contains(&row) {
                order.push(row)
            }
        });
    }
    for priority in 0..2 {
        let of: Vec<_> = order.iter().filter(|row| row.1 == priority).map(|row| row.0).collect();
        assert!(of.len() == 15 && of.is_sorted(), "{of:?}");
    }
}

#[test]
fn the_end_leaves_nothing() {
    let mut storm = Storm::new(rules(2, 8, bytes_for(200), 16), 5);
    (0..6).for_each(|_| {
        let job = storm.one("".into(), 0, (4, 4));
        storm.submit(job).unwrap();
    });
    let (first, _) = storm.scheduler.next_admitted().unwrap();
    let left: Vec<_> = storm.scheduler.clear().map(|job| job.number).collect();
    assert_eq!((first.number, left), (1, vec![2, 3, 4, 5, 6]));
    assert_eq!((storm.scheduler.waiting(), storm.scheduler.running(), storm.scheduler.bytes), (0, 0, 0));
    assert!(storm.scheduler.tenants.is_empty());
}

#[test]
fn what_surely_comes_first_is_a_lower_bound() {
    let mut storm = Storm::new(rules(2, 8, bytes_for(200), 16), 6);
    let own = Job { given: 10, ..storm.job() };
    let own = Demand { tenant: "".into(), ..own.ask() };
    storm.came = 0;
    // with a row to spare: its own symbols
    assert_eq!(storm.scheduler.work_before(&own, 0), 10);
    for given in [5, 7] {
        let job = storm.one("".into(), 0, (given, 4));
        storm.submit(job).unwrap();
    }
    // one of those that run must end
    assert_eq!(storm.scheduler.work_before(&own, 0), 5 + 10);
    for given in [3, 20] {
        let job = storm.one("".into(), 0, (given, 4));
        storm.submit(job).unwrap();
    }
    // three of those before it must; a higher priority goes before those that wait
    assert_eq!(storm.scheduler.work_before(&own, 0), 3 + 5 + 7 + 10);
    assert_eq!(storm.scheduler.work_before(&own, 1), 5 + 10);
    storm.calm();
}

#[test]
fn jobs_of_a_single_step_count_too() {
    let mut storm = Storm::new(rules(2, 64, bytes_for(400), 32), 7);
    let brief = |storm: &mut Storm| storm.one("brief".into(), 0, (8, 0));
    flood(&mut storm, 20, brief);
    let others: Vec<_> = (0..8).map(|_| storm.one("other".into(), 0, (4, 20))).collect();
    let numbers: Vec<_> = others.iter().map(|job| job.number).collect();
    others.into_iter().for_each(|job| storm.submit(job).unwrap());
    flood(&mut storm, 600, brief);
    // though each does more than one that ends with its first step
    assert!(numbers.iter().all(|number| storm.finished.contains(number)), "{:?}", storm.done);
    storm.calm();
}

#[test]
fn a_tenant_that_runs_alone_in_its_queue_is_not_punished() {
    let mut storm = Storm::new(rules(4, 64, bytes_for(4000), 16), 8);
    let long = storm.one("light".into(), 0, (1, 1200));
    storm.submit(long).unwrap();
    flood(&mut storm, 300, |storm| storm.one("flood".into(), 0, (LONGEST, LONGEST)));
    let (light, flooded) = (storm.done["light"], storm.done["flood"]);
    assert!(light > 10 * 32 && flooded > light, "{:?}", storm.done);
    let next = storm.one("light".into(), 0, (1, 1));
    storm.submit(next).unwrap();
    flood(&mut storm, 100, |storm| storm.one("flood".into(), 0, (LONGEST, LONGEST)));
    // until a row comes free, and no longer
    assert!(storm.waited["light"] <= 3 * 125 + 32, "{:?}", storm.waited);
    storm.calm();
}

#[test]
fn who_owes_comes_in_whoever_keeps_coming() {
    let mut storm = Storm::new(rules(4, 64, bytes_for(4000), 16), 9);
    let mut came = 0;
    let mut stranger = |storm: &mut Storm| {
        came += 1;
        storm.one(format!("stranger {came}").into(), 0, (2, 3))
    };
    // one tenant does nearly all of the work, in competition
    for _ in 0..3 {
        let long = storm.one("debtor".into(), 0, (1, 100));
        storm.submit(long).unwrap();
    }
    let mut rounds = |storm: &mut Storm, rounds: usize| {
        for _ in 0..rounds {
            while storm.scheduler.waiting() < 8 {
                let job = stranger(storm);
                storm.submit(job).unwrap();
            }
            storm.round();
            storm.check();
        }
    };
    rounds(&mut storm, 100);
    let next = storm.one("debtor".into(), 0, (1, 1));
    let number = next.number;
    storm.submit(next).unwrap();
    rounds(&mut storm, 3000);
    assert!(storm.finished.contains(&number), "it is still waiting");
    storm.calm();
}
