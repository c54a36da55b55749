//! Known delays are measured on a paused clock, which advances only while all tasks wait: nothing but the stub's delays takes
//! time, and the tolerance holds on any machine. The last tests use sockets and the machine's clock.

use crate::support::{TIMEOUT, TOLERANCE, Test, ms, near};
use crate::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::runtime::Builder;
use weir_client::connection::ServerEndpoint;
use weir_loadtest::client::{self, code_name};
use weir_loadtest::schedule::ArrivalSchedule;
use weir_measure::{histogram::Percentiles, stats::nearest_rank};
use weir_proto::v1::{Stopping, generate_response::Event, generation_client::GenerationClient};

#[track_caller]
fn all_near(spread: &Percentiles, expected: Duration, what: &str) {
    for actual in [spread.min, spread.mean, spread.p50, spread.max] {
        near(actual, expected, what);
    }
}

/// Returns a stub with 80 ms to the first character, 5 ms to the next, and 20 ms to every fifth, which ends a segment.
pub(crate) fn script() -> Script {
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
    assert!((speed / (19_000.0 / (TOTAL - 80) as f64) - 1.0).abs() <= TOLERANCE, "{speed}");
    all_near(&figures.server.time_to_first_char_ns, ms(80), "first, reported by the server");
    // the prompt's 20 characters closed four segments, and so did the answer's
    assert_eq!((figures.characters, figures.shortening_factor), (2000, Some(5.0)));
    assert_eq!(result.window.span, Duration::from_secs(10));
}

/// The server hangs for two of ten seconds. The schedule continues, so a fifth of the requests wait for the rest of the pause.
#[tokio::test(start_paused = true)]
async fn requests_due_during_a_pause_wait_for_its_end() {
    let pause = Some((Duration::from_secs(4), Duration::from_secs(6)));
    let script = Script { first: ms(10), pause, ..Script::instant("stub") };
    let (_, figures) = Test { rate: Some(100.0), ..Test::new(script.clone(), 1) }.drive().await;
    let first = figures.time_to_first_char_ns;
    assert_eq!(first.count, 1000);
    near(first.max, ms(2000), "longest wait");
    near(first.p50, ms(10), "median, outside the pause");
    // the share of requests that waited for longer than t is (2 s − t) / 10 s: a tenth for 1 s, a hundredth for 1.9 s
    near(first.p90, ms(1000), "p90");
    near(first.p99, ms(1900), "p99");

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
    let load = LoadPattern::Open { rate: 4.0 };
    let extent = RunLength { warm_up: Duration::ZERO, duration: Some(Duration::from_secs(10)), requests: None };
    let point = LoadPoint::new(load, extent, result, 1, 1);
    assert!(point.tester.limits.iter().any(|limit| limit.contains("--max-in-flight")), "{:?}", point.tester.limits);
}

#[tokio::test(start_paused = true)]
async fn rejections_and_missed_objectives_are_counted_separately() {
    let script = Script { refuse: 4, ..script() };
    let (_, figures) = Test { rate: Some(10.0), ..Test::new(script, 20) }.drive().await;
    let outcomes = &figures.requests;
    assert_eq!((outcomes.measured, outcomes.well, outcomes.errors["RESOURCE_EXHAUSTED"]), (100, 75, 25));
    assert_eq!((figures.good, figures.total_ns.count), (75, 75));

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

/// Runs of which one must agree.
const ATTEMPTS: usize = 5;

/// Runs a measurement until one run agrees. Other users of the machine may delay any run, but cannot make a wrong tester agree.
pub(crate) fn undisturbed(run: impl Fn()) {
    assert!((0..ATTEMPTS).any(|_| catch_unwind(AssertUnwindSafe(&run)).is_ok()), "none of {ATTEMPTS} runs agrees");
}

/// Returns the waits of requests that arrive at these times at `rows` servers and take `service` each. The n-th begins once it has
/// arrived and the one `rows` before it has ended.
fn waits(arrivals: &[Duration], rows: usize, service: Duration) -> Vec<Duration> {
    let mut begun: Vec<Duration> = Vec::new();
    for (n, &arrived) in arrivals.iter().enumerate() {
        let free = n.checked_sub(rows).map_or(arrived, |before| begun[before] + service);
        begun.push(arrived.max(free));
    }
    begun.into_iter().zip(arrivals).map(|(begun, arrived)| begun - *arrived).collect()
}

/// Requests of the overloaded server.
const OVERLOAD: u64 = 50;

/// Returns a server that answers thirteen requests per second: 50 ms to the first character and 25 ms for each of four more, in two
/// rows.
fn overloaded() -> Script {
    Script { first: ms(50), plain: ms(25), boundary: ms(25), rows: 2, ..Script::instant("stub") }
}

#[tokio::test(start_paused = true)]
async fn overload_is_what_queueing_theory_says() {
    let extent = RunLength { warm_up: Duration::ZERO, duration: None, requests: Some(OVERLOAD) };
    let (_, figures) = Test { rate: Some(20.0), extent, ..Test::new(overloaded(), 5) }.drive().await;
    assert_eq!(figures.requests.well, OVERLOAD);
    let arrivals: Vec<_> = (0..OVERLOAD as u32).map(|index| ms(50) * index).collect();
    let waits = waits(&arrivals, 2, ms(150));
    assert_eq!(waits[49], ms(24 * 50), "each pair of requests waits 50 ms longer than the one before");
    let check = |actual: &Percentiles, offset: Duration, name: &str| {
        let quantiles = [(actual.p50, 0.5), (actual.p90, 0.9), (actual.p95, 0.95), (actual.max, 1.0)];
        for (actual, share) in quantiles {
            near(actual, nearest_rank(waits.iter().copied(), share).unwrap() + offset, &format!("{name}, {share}"));
        }
        near(actual.mean, waits.iter().sum::<Duration>() / OVERLOAD as u32 + offset, &format!("{name}, mean"));
    };
    check(&figures.total_ns, ms(150), "total");
    check(&figures.time_to_first_char_ns, ms(50), "first character");
    check(&figures.server.queue_ns, ms(0), "queue, reported by the server");
    near(figures.gap_ns.p50, ms(25), "gap");
}

/// A busy machine makes answers later than in [`overload_is_what_queueing_theory_says`], and never earlier.
#[test]
fn overload_over_a_socket_takes_as_long_at_least() {
    let stub = serve(vec![overloaded()]);
    let load = format!("--rate 20 --seed 7 --requests {OVERLOAD} --warm-up 0 --output-chars 5");
    let report = stub.report(&format!("run @ {load}"));
    let point = &report[0]["parts"][0]["point"];
    assert_eq!(point["figures"]["requests"]["well"], OVERLOAD);
    let arrivals: Vec<_> = ArrivalSchedule::new(20.0, 7).unwrap().take(OVERLOAD as usize).collect();
    let waits = waits(&arrivals, 2, ms(150));
    for (key, offset) in [("total_ns", ms(150)), ("time_to_first_char_ns", ms(50))] {
        for (rank, share) in [("p50", 0.5), ("p90", 0.9), ("max", 1.0)] {
            let expected = (nearest_rank(waits.iter().copied(), share).unwrap() + offset).as_nanos() as f64;
            let actual = &point["figures"][key][rank];
            assert!(actual.as_f64().unwrap() >= (1.0 - TOLERANCE) * expected, "{key}, {rank}: {actual}, {expected}");
        }
    }
    let lags = &point["tester"]["event_lag_ns"];
    assert!(lags["count"].as_u64().is_some_and(|count| count > 100), "{lags}");
}

/// Streams of a connection whose client does not read.
const STREAMS: usize = 32;

/// Opens [`STREAMS`] streams and reads them once the server has sent all it could. Returns for each the characters received, or the
/// code of its error.
async fn read_late(channel: Channel, stub: &Stub, chars: u32) -> Vec<Result<u32, &'static str>> {
    let ended = stub.ended();
    let begun = Instant::now();
    let stopping = Stopping { max_chars: Some(chars), min_chars: Some(chars), ..Stopping::default() };
    let request = GenerateRequest { model: Some("stub".into()), stopping: Some(stopping), ..Default::default() };
    let mut answers = Vec::new();
    for _ in 0..STREAMS {
        answers.push(GenerationClient::new(channel.clone()).generate(request.clone()).await);
    }
    while stub.ended() < ended + STREAMS as u64 {
        assert!(begun.elapsed() < TIMEOUT, "the server still sends");
        tokio::time::sleep(ms(10)).await;
    }
    let mut all = Vec::new();
    for answer in answers {
        let mut received = 0;
        let read = async {
            let mut answer = answer?.into_inner();
            while let Some(message) = answer.message().await? {
                received += u32::from(matches!(message.event, Some(Event::Piece(_))));
            }
            Ok(received)
        };
        all.push(read.await.map_err(|status: Status| code_name(&status)));
    }
    all
}

/// Unread messages are many small frames, for which an HTTP/2 library closes its connection. This program's settings allow them.
#[test]
fn a_client_that_reads_late_causes_no_errors_of_the_server() {
    const CHARS: u32 = 500;
    // no messages while streams are opened, then more than the library allows with its default window of 5 MiB: some ten thousand
    let serving = serve(vec![Script { first: ms(500), plain: ms(1), boundary: ms(1), ..Script::instant("stub") }]);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let ours = client::connect(&ServerEndpoint { address: serving.address.clone(), ..ServerEndpoint::default() })
            .await
            .unwrap();
        assert_eq!(read_late(ours.channel(), &serving.stub, CHARS).await, vec![Ok(CHARS); STREAMS]);
    });
}
