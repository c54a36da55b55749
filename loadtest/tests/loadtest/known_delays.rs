//! Known delays are measured on a paused clock, which advances only while all tasks wait: nothing but the stub's delays takes
//! time, and the tolerance holds on any machine. `sockets` does the same by the machine's clock.

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
    for actual in [spread.min, spread.mean, spread.p50, spread.max] {
        near(actual, expected, what);
    }
}

/// Returns a stub with 80 ms to the first character, 5 ms to the next, and 20 ms to every fifth, which ends a segment.
fn script() -> Script {
    Script { first: ms(80), plain: ms(5), boundary: ms(20), segment: 5, ..Script::instant("stub") }
}

/// Total of 20 characters, of which numbers 5, 10, 15 and 20 end segments: 15 plain and 4 boundary gaps.
const TOTAL: u64 = 80 + 15 * 5 + 4 * 20;

#[tokio::test(start_paused = true)]
async fn known_delays_are_measured() {
    let (result, figures) = Test { rate: Some(10.0), ..Test::new(script(), 20) }.drive().await;
    assert_eq!((figures.requests.measured, figures.requests.well), (100, 100), "{:?}", figures.requests);
    all_near(&figures.time_to_first_char_ns, ms(80), "first");
    all_near(&figures.time_to_first_char_from_send_ns, ms(80), "first from send");
    all_near(&figures.total_ns, ms(TOTAL), "total");
    let plain = figures.plain_gap_ns.unwrap();
    let boundary = figures.boundary_gap_ns.unwrap();
    all_near(&plain, ms(5), "plain gap");
    all_near(&boundary, ms(20), "boundary gap");
    assert_eq!((plain.count, boundary.count, figures.gap_ns.count), (1500, 400, 1900));
    // ends of segments are 4 plain gaps and one boundary gap apart
    all_near(&figures.segment_ns.unwrap(), ms(40), "segment");
    all_near(&figures.char_ns, Duration::from_nanos((TOTAL - 80) * 1_000_000 / 19), "a character");
    let speed = figures.chars_per_second.p50.unwrap();
    assert!((speed / (19_000.0 / (TOTAL - 80) as f64) - 1.0).abs() <= super::support::TOLERANCE, "{speed}");
    all_near(&figures.server.time_to_first_char_ns, ms(80), "first, reported by the server");
    // the prompt's 20 characters closed four segments, and so did the answer's
    assert_eq!((figures.characters, figures.shortening_factor), (2000, Some(5.0)));
    assert_eq!(result.window.span, Duration::from_secs(10));
}

/// One row, 235 ms per request, ten requests per second for ten seconds: the n-th waits for those before it.
#[tokio::test(start_paused = true)]
async fn waits_under_overload_count_from_the_intended_start() {
    let (_, figures) = Test { rate: Some(10.0), ..Test::new(Script { rows: 1, ..script() }, 20) }.drive().await;
    let wait = |n: u64| ms(n * (TOTAL - 100));
    assert_eq!(figures.requests.well, 100);
    near(figures.total_ns.max, wait(99) + ms(TOTAL), "total of the last request");
    near(figures.total_ns.p50, wait(49) + ms(TOTAL), "median total");
    near(figures.time_to_first_char_ns.max, wait(99) + ms(80), "first character of the last request");
    near(figures.server.queue_ns.max, wait(99), "queue of the last request, reported by the server");
    near(figures.time_to_first_char_ns.p90, wait(89) + ms(80), "p90");
}

/// The server hangs for two of ten seconds. The schedule continues, so a fifth of the requests wait for the rest of the pause.
#[tokio::test(start_paused = true)]
async fn requests_due_during_a_pause_wait_for_its_end() {
    let pause = Some((Duration::from_secs(4), Duration::from_secs(6)));
    let script = Script { first: ms(10), pause, ..Script::instant("stub") };
    let (result, figures) = Test { rate: Some(100.0), ..Test::new(script.clone(), 1) }.drive().await;
    let first = figures.time_to_first_char_ns;
    assert_eq!(first.count, 1000);
    near(first.max, ms(2000), "longest wait");
    near(first.p50, ms(10), "median, outside the pause");
    // the share of requests that waited for longer than t is (2 s − t) / 10 s: a tenth for 1 s, a hundredth for 1.9 s
    near(first.p90, ms(1000), "p90");
    near(first.p99, ms(1900), "p99");
    let timeline = result.timeline.samples();
    let hung = timeline.iter().filter(|sample| (4_250_000_000..5_750_000_000).contains(&sample.at_ns));
    assert!(hung.clone().count() >= 5 && hung.clone().all(|sample| sample.characters == 0 && sample.started > 0));

    // a closed loop's client waits for each answer, so it meets the pause only once
    let (_, figures) = Test { concurrency: 1, ..Test::new(script, 1) }.drive().await;
    assert!(figures.time_to_first_char_ns.count > 500);
    near(figures.time_to_first_char_ns.p99, ms(10), "p99 of a closed loop");
    assert!(figures.time_to_first_char_ns.max.unwrap() > 1.9e9);
}

/// The tester's own limit on requests in flight makes requests wait. The wait is counted, and the report names the limit.
#[tokio::test(start_paused = true)]
async fn waits_for_the_testers_own_limit_count_and_are_reported() {
    let script = Script { first: ms(500), ..Script::instant("stub") };
    let (result, figures) = Test { rate: Some(4.0), max_in_flight: 1, ..Test::new(script, 1) }.drive().await;
    // 250 ms apart, 500 ms each: the n-th waits for n quarters of a second
    near(figures.total_ns.max, ms(39 * 250 + 500), "total of the last request");
    near(figures.total_from_send_ns.max, ms(500), "total from sending, without the wait");
    near(figures.start_lag_ns.max, ms(39 * 250), "start lag");
    assert!(result.held >= 38, "{}", result.held);
    let load = LoadPattern::Open { arrivals: ArrivalProcess::Constant, rate: 4.0, burst: 1 };
    let extent = RunLength { warm_up: Duration::ZERO, duration: Some(Duration::from_secs(10)), requests: None };
    let point = LoadPoint::new(load, extent, result, 1, 1);
    assert!(point.tester.limits.iter().any(|limit| limit.contains("--max-in-flight")), "{:?}", point.tester.limits);
}

#[tokio::test(start_paused = true)]
async fn rejections_cancellations_and_missed_objectives_are_counted_separately() {
    let script = Script { refuse: 4, ..script() };
    let (_, figures) = Test { rate: Some(10.0), ..Test::new(script, 20) }.drive().await;
    let outcomes = &figures.requests;
    assert_eq!((outcomes.measured, outcomes.well, outcomes.errors["RESOURCE_EXHAUSTED"]), (100, 75, 25));
    assert_eq!((figures.good, figures.total_ns.count), (75, 75));

    let (_, figures) = Test { rate: Some(10.0), cancel_share: 1.0, ..Test::new(self::script(), 20) }.drive().await;
    assert_eq!((figures.requests.cancelled, figures.requests.well, figures.total_ns.count), (100, 0, 0));

    // the server hangs for two seconds: requests that wait longer than one are not good
    let pause = Some((Duration::from_secs(2), Duration::from_secs(4)));
    let script = Script { first: ms(10), pause, ..Script::instant("stub") };
    let (_, figures) = Test { rate: Some(100.0), objectives: "ttfc=1000ms", ..Test::new(script, 1) }.drive().await;
    // of the 200 requests due in the pause, those with at most one second left are good
    assert!((898..=902).contains(&figures.good), "{}", figures.good);
}

/// The third of three requests of 200 ms each waits for one of two rows. It exceeds its time limit and fails then, not later,
/// although its answer would come soon after.
#[tokio::test(start_paused = true)]
async fn no_request_outlasts_its_time_limit() {
    let script = Script { first: ms(200), rows: 2, ..Script::instant("stub") };
    let extent = RunLength { warm_up: Duration::ZERO, duration: None, requests: Some(3) };
    let (result, figures) = Test { concurrency: 3, extent, timeout: ms(300), ..Test::new(script, 1) }.drive().await;
    assert_eq!((figures.requests.well, figures.requests.errors["DEADLINE_EXCEEDED"]), (2, 1));
    assert_eq!(result.window.span, ms(300), "not the 400 ms after which the third would have been answered");
    let exact = Script { first: ms(300), ..Script::instant("stub") };
    let (_, figures) = Test { concurrency: 3, extent, timeout: ms(301), ..Test::new(exact, 1) }.drive().await;
    assert_eq!(figures.requests.well, 3, "answers within the limit succeed");
}

#[tokio::test(start_paused = true)]
async fn warm_up_requests_are_not_measured_and_a_number_of_requests_ends_a_load() {
    let extent = RunLength { warm_up: Duration::from_secs(3), duration: None, requests: Some(40) };
    let (result, figures) = Test { concurrency: 4, extent, ..Test::new(script(), 20) }.drive().await;
    assert_eq!(figures.requests.well, 40);
    // four at a time: ten rounds, and the requests in flight when the warm-up ended
    let rounds = result.window.span.as_secs_f64() / ms(TOTAL).as_secs_f64();
    assert!((10.0..=11.0).contains(&rounds), "{rounds}");
    all_near(&figures.total_ns, ms(TOTAL), "total");
}
