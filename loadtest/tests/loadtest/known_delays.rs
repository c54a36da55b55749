//! Known delays are found: on a clock that stands still unless everybody waits, so that nothing but the stub's delays takes time
//! and two per cent are two per cent on any machine. `sockets` does the same by the machine's clock.

use super::support::{Test, ms, near};
use std::time::Duration;
use weir_loadtest::{
    load::{
        arrivals::ArrivalProcess,
        schedule::{LoadPattern, RunLength},
    },
    measure::histogram::Percentiles,
    report::data::LoadPoint,
    stub::Script,
};

#[track_caller]
fn all_near(spread: &Percentiles, expected: Duration, what: &str) {
    for found in [spread.min, spread.mean, spread.p50, spread.max] {
        near(found, expected, what);
    }
}

/// 80 ms to the first character, 5 ms to the next, 20 ms where every fifth ends a segment.
fn script() -> Script {
    Script { first: ms(80), plain: ms(5), boundary: ms(20), segment: 5, ..Script::instant("stub") }
}

/// Of 20 characters, numbers 5, 10, 15 and 20 end segments: 15 plain gaps, 4 boundary gaps.
const TOTAL: u64 = 80 + 15 * 5 + 4 * 20;

#[tokio::test(start_paused = true)]
async fn known_delays_are_found() {
    let (driven, figures) = Test { rate: Some(10.0), ..Test::new(script(), 20) }.drive().await;
    assert_eq!((figures.requests.measured, figures.requests.well), (100, 100), "{:?}", figures.requests);
    all_near(&figures.time_to_first_char_ns, ms(80), "first");
    all_near(&figures.time_to_first_char_from_send_ns, ms(80), "first from send");
    all_near(&figures.total_ns, ms(TOTAL), "total");
    let (plain, boundary) = (figures.plain_gap_ns.unwrap(), figures.boundary_gap_ns.unwrap());
    all_near(&plain, ms(5), "plain gap");
    all_near(&boundary, ms(20), "boundary gap");
    assert_eq!((plain.count, boundary.count, figures.gap_ns.count), (1500, 400, 1900));
    // ends of segments are 4 plain gaps and one of a boundary apart
    all_near(&figures.segment_ns.unwrap(), ms(40), "segment");
    all_near(&figures.char_ns, Duration::from_nanos((TOTAL - 80) * 1_000_000 / 19), "a character");
    let speed = figures.chars_per_second.p50.unwrap();
    assert!((speed / (19_000.0 / (TOTAL - 80) as f64) - 1.0).abs() <= super::support::TOLERANCE, "{speed}");
    all_near(&figures.server.time_to_first_char_ns, ms(80), "the server's first");
    // the prompt's 20 characters closed four segments, the answer's as many
    assert_eq!((figures.characters, figures.shortening_factor), (2000, Some(5.0)));
    assert_eq!(driven.window.span, Duration::from_secs(10));
}

/// One row, 235 ms a request, ten requests a second for ten seconds: the n-th waits for those before it.
#[tokio::test(start_paused = true)]
async fn overload_is_told_from_the_intended_start_on() {
    let script = Script { rows: 1, ..script() };
    let (_, figures) = Test { rate: Some(10.0), ..Test::new(script, 20) }.drive().await;
    let wait = |n: u64| ms(n * (TOTAL - 100));
    assert_eq!(figures.requests.well, 100);
    near(figures.total_ns.max, wait(99) + ms(TOTAL), "the last one's total");
    near(figures.total_ns.p50, wait(49) + ms(TOTAL), "the median total");
    near(figures.time_to_first_char_ns.max, wait(99) + ms(80), "the last one's first character");
    near(figures.server.queue_ns.max, wait(99), "the last one's wait, by the server");
    near(figures.time_to_first_char_ns.p90, wait(89) + ms(80), "p90");
}

/// The server hangs for two of ten seconds. A schedule goes on meanwhile, so a fifth of the requests meet the pause, and wait for
/// what is left of it.
#[tokio::test(start_paused = true)]
async fn a_pause_of_the_server_is_seen_by_those_who_would_have_come_in_it() {
    let pause = Some((Duration::from_secs(4), Duration::from_secs(6)));
    let script = Script { first: ms(10), pause, ..Script::instant("stub") };
    let open = Test { rate: Some(100.0), ..Test::new(script.clone(), 1) };
    let (driven, figures) = open.drive().await;
    let first = figures.time_to_first_char_ns;
    assert_eq!(first.count, 1000);
    near(first.max, ms(2000), "the longest wait");
    near(first.p50, ms(10), "the median is out of the pause");
    // the share of requests that waited for longer than t is (2 s − t) / 10 s: a tenth for 1 s, a hundredth for 1.9 s
    near(first.p90, ms(1000), "p90");
    near(first.p99, ms(1900), "p99");
    let course = driven.course.told();
    let hung = course.iter().filter(|sample| (4_250_000_000..5_750_000_000).contains(&sample.at_ns));
    assert!(hung.clone().count() >= 5 && hung.clone().all(|sample| sample.characters == 0 && sample.started > 0));

    // one client that waits for each answer meets it once: what a closed loop cannot show
    let (_, figures) = Test { concurrency: 1, ..Test::new(script, 1) }.drive().await;
    assert!(figures.time_to_first_char_ns.count > 500);
    near(figures.time_to_first_char_ns.p99, ms(10), "p99 of a closed loop");
    assert!(figures.time_to_first_char_ns.max.unwrap() > 1.9e9);
}

/// The tester's own limit on requests in flight makes requests wait: that is counted as theirs, and the tester says so.
#[tokio::test(start_paused = true)]
async fn what_the_tester_holds_back_counts_and_is_said() {
    let script = Script { first: ms(500), ..Script::instant("stub") };
    let test = Test { rate: Some(4.0), max_in_flight: 1, ..Test::new(script, 1) };
    let (driven, figures) = test.drive().await;
    // 250 ms apart, 500 ms each: the n-th waits for n quarters of a second
    near(figures.total_ns.max, ms(39 * 250 + 500), "the last one's total");
    near(figures.total_from_send_ns.max, ms(500), "from sending it looks well");
    near(figures.start_lag_ns.max, ms(39 * 250), "the lag is told apart");
    assert!(driven.held >= 38, "{}", driven.held);
    let load = LoadPattern::Open { arrivals: ArrivalProcess::Constant, rate: 4.0, burst: 1 };
    let extent = RunLength { warm_up: Duration::ZERO, duration: Some(Duration::from_secs(10)), requests: None };
    let point = LoadPoint::new(load, extent, driven, 1, 1).unwrap();
    assert!(point.tester.limits.iter().any(|limit| limit.contains("--max-in-flight")), "{:?}", point.tester.limits);
}

#[tokio::test(start_paused = true)]
async fn refusals_cancellations_and_missed_objectives_are_counted_apart() {
    let script = Script { refuse: 4, ..script() };
    let (_, figures) = Test { rate: Some(10.0), ..Test::new(script, 20) }.drive().await;
    let ends = &figures.requests;
    assert_eq!((ends.measured, ends.well, ends.errors["RESOURCE_EXHAUSTED"]), (100, 75, 25));
    assert_eq!((figures.good, figures.total_ns.count), (75, 75));

    let cancelled = Test { rate: Some(10.0), cancel: 1.0, ..Test::new(self::script(), 20) };
    let (_, figures) = cancelled.drive().await;
    assert_eq!((figures.requests.cancelled, figures.requests.well, figures.total_ns.count), (100, 0, 0));

    // the server hangs for two seconds: those that wait for longer than one are not good
    let pause = Some((Duration::from_secs(2), Duration::from_secs(4)));
    let script = Script { first: ms(10), pause, ..Script::instant("stub") };
    let test = Test { rate: Some(100.0), objectives: "ttfc=1000ms", ..Test::new(script, 1) };
    let (_, figures) = test.drive().await;
    // of the 200 that met the pause, those with at most one second left
    assert!((898..=902).contains(&figures.good), "{}", figures.good);
}

/// Of three requests, 200 ms each, the third waits for one of two rows. What is not there in time has failed, and took as long as it
/// may and no longer, though its answer would have come soon after.
#[tokio::test(start_paused = true)]
async fn no_request_outlasts_its_time_limit() {
    let script = Script { first: ms(200), rows: 2, ..Script::instant("stub") };
    let extent = RunLength { warm_up: Duration::ZERO, duration: None, requests: Some(3) };
    let test = Test { concurrency: 3, extent, timeout: ms(300), ..Test::new(script, 1) };
    let (driven, figures) = test.drive().await;
    assert_eq!((figures.requests.well, figures.requests.errors["DEADLINE_EXCEEDED"]), (2, 1));
    assert_eq!(driven.window.span, ms(300), "not the 400 ms after which the third would have been answered");
    let exact = Script { first: ms(300), ..Script::instant("stub") };
    let (_, figures) = Test { concurrency: 3, extent, timeout: ms(301), ..Test::new(exact, 1) }.drive().await;
    assert_eq!(figures.requests.well, 3, "what comes in time is well");
}

#[tokio::test(start_paused = true)]
async fn the_warm_up_is_not_measured_and_a_count_ends_a_measurement() {
    let extent = RunLength { warm_up: Duration::from_secs(3), duration: None, requests: Some(40) };
    let (driven, figures) = Test { concurrency: 4, extent, ..Test::new(script(), 20) }.drive().await;
    assert_eq!(figures.requests.well, 40);
    // four at a time: ten rounds, and those in flight when the warm-up ended
    let rounds = driven.window.span.as_secs_f64() / ms(TOTAL).as_secs_f64();
    assert!((10.0..=11.0).contains(&rounds), "{rounds}");
    all_near(&figures.total_ns, ms(TOTAL), "total");
}
