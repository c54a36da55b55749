//! Known delays are measured over real sockets by the machine's own clock, also under overload and during a pause. Delays are so
//! long that what a busy machine adds is far below the tolerance; of many values, medians and high percentiles are checked.

use super::{
    program::{command, json, run, words},
    support::{ms, near, spec},
};
use serde_json::Value;
use std::{
    future::pending,
    io::{BufRead, BufReader},
    panic::{AssertUnwindSafe, catch_unwind},
    process::Child,
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpListener, runtime::Builder, sync::watch, time::Instant};
use tonic::{
    Status,
    transport::{Channel, Endpoint, server::TcpIncoming},
};
use weir_loadtest::{
    client::connection::{ConnectOptions, TESTER_CODE, code_name},
    load::{
        arrivals::ArrivalProcess,
        driver::{LoadResult, LoadRun, LoadSetup, RequestSource, run_load},
        mix::WorkloadMix,
        schedule::{LoadPattern, Pacer, RunLength},
        workload::RequestTarget,
    },
    measure::objective::Objectives,
    stub::{Script, SentTimes, Stub},
};
use weir_proto::v1::{GenerateRequest, Stopping, generate_response::Event, generation_client::GenerationClient};

/// Runs of which one must agree.
const ATTEMPTS: usize = 5;

/// Runs a measurement until one run agrees. Other users of the machine may delay any run, but cannot make a wrong tester agree.
pub(super) fn undisturbed(run: impl Fn()) {
    assert!((0..ATTEMPTS).any(|_| catch_unwind(AssertUnwindSafe(&run)).is_ok()), "none of {ATTEMPTS} runs agrees");
}

/// Runs an asynchronous measurement until one run agrees.
fn undisturbed_async(run: impl AsyncFn()) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    undisturbed(|| runtime.block_on(run()));
}

/// Stub process on a free port, killed when dropped.
struct StubCommand {
    child: Child,
    address: String,
}

impl StubCommand {
    fn start(arguments: &[&str]) -> Self {
        let mut child = command(&[&["stub", "--listen", "127.0.0.1:0"][..], arguments].concat()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { child, address }
    }
}

impl Drop for StubCommand {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns the waits of `count` requests that arrive `interval` apart at `rows` servers and take `service` each. The n-th begins
/// once it has arrived and the one `rows` before it has ended.
fn waits(count: usize, interval: Duration, rows: usize, service: Duration) -> Vec<Duration> {
    let mut begun: Vec<Duration> = Vec::new();
    for n in 0..count {
        let arrived = interval * n as u32;
        let free = n.checked_sub(rows).map_or(arrived, |before| begun[before] + service);
        begun.push(arrived.max(free));
    }
    begun.into_iter().enumerate().map(|(n, begun)| begun - interval * n as u32).collect()
}

/// Returns the smallest value that a share of `share` of the values does not exceed.
fn percentile(values: &[Duration], share: f64) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort();
    sorted[(share * sorted.len() as f64).ceil() as usize - 1]
}

/// Runs the commands of docs/loadtest.md: twenty requests per second for a server that can answer thirteen.
#[test]
fn overload_over_a_socket_is_what_queueing_theory_says() {
    undisturbed(|| {
        let stub = StubCommand::start(&["--first", "50ms", "--gap", "25ms", "--rows", "2"]);
        let load = words("--rate 20 --arrivals constant --requests 50 --warm-up 0 --output-chars 5");
        let report = json(&run(&[&["run", &stub.address][..], &load, &["--json", "-"]].concat()));
        let figures = &report[0]["parts"][0]["point"]["figures"];
        assert_eq!(figures["requests"]["well"], 50);
        let waits = waits(50, ms(50), 2, ms(150));
        assert_eq!(waits[49], ms(24 * 50), "each pair of requests waits 50 ms longer than the one before");
        let check = |actual: &Value, offset: Duration, name: &str| {
            for (key, share) in [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("max", 1.0)] {
                near(actual[key].as_f64(), percentile(&waits, share) + offset, &format!("{name}, {key}"));
            }
            near(actual["mean"].as_f64(), waits.iter().sum::<Duration>() / 50 + offset, &format!("{name}, mean"));
        };
        check(&figures["total_ns"], ms(150), "total");
        check(&figures["time_to_first_char_ns"], ms(50), "first character");
        check(&figures["server"]["queue_ns"], ms(0), "queue, reported by the server");
    });
}

/// Runs the tester over a socket to a stub in this process.
async fn measure(stub: &Stub, load: LoadPattern, length: RunLength, output: u64) -> LoadResult {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(stub.clone().serve(TcpIncoming::from(listener).with_nodelay(Some(true)), pending()));
    let pool = ConnectOptions { address, ..ConnectOptions::default() }.pool(2).await.unwrap();
    let target = RequestTarget { pool, model: String::new(), boundaries: true, timeout: Duration::from_secs(60) };
    let mix = WorkloadMix::new(&[spec(output)], 1, 0.0).unwrap();
    let job = Arc::new(LoadSetup { target, mix, objectives: Objectives::default() });
    let begin = Instant::now();
    let schedule = load.schedule(3).unwrap().unwrap();
    let (pacer, requests) = Pacer::start(length.requests_of(schedule, begin)).unwrap();
    let (_never, stop) = watch::channel(false);
    let source = RequestSource::Open { requests, max_in_flight: 1000 };
    let run = LoadRun { length, begin, source, stop, probe_lag: true };
    let result = run_load(job, run, &mut |_| {}).await.unwrap();
    drop(pacer);
    result
}

/// The stub hangs for two of three seconds. Requests due meanwhile wait for the rest: a share of (2 s − t) / 3 s waits longer
/// than t. Afterwards all are answered at once, which takes this machine some milliseconds, so only long waits are checked.
#[test]
fn requests_due_during_a_pause_wait_for_its_end_over_a_socket() {
    undisturbed_async(async || {
        let stub = Stub::new(vec![Script { pause: Some((ms(600), ms(2600))), ..Script::instant("stub") }]);
        let load = LoadPattern::Open { arrivals: ArrivalProcess::Constant, rate: 100.0, burst: 1 };
        let extent = RunLength { warm_up: Duration::ZERO, duration: Some(ms(3000)), requests: None };
        let figures = measure(&stub, load, extent, 1).await.stats[0].figures();
        assert_eq!(figures.requests.well, 300);
        let first = figures.time_to_first_char_ns;
        near(first.p90, ms(1700), "p90");
        near(first.p95, ms(1850), "p95");
        near(first.p99, ms(1970), "p99");
        near(first.max, ms(2000), "the longest wait");
    });
}

/// Compares the tester's figures with the stub's send times, request by request of the same run.
#[test]
fn figures_over_a_socket_agree_with_the_stubs_send_times() {
    undisturbed_async(async || {
        let script = Script { first: ms(600), plain: ms(30), boundary: ms(90), segment: 4, ..Script::instant("s") };
        let stub = Stub::new(vec![script]);
        let extent = RunLength { warm_up: Duration::ZERO, duration: None, requests: Some(60) };
        let load = LoadPattern::Open { arrivals: ArrivalProcess::Poisson, rate: 20.0, burst: 1 };
        let result = measure(&stub, load, extent, 9).await;
        let figures = result.stats[0].figures();
        assert_eq!(figures.requests.well, 60);
        let sent = stub.sent();
        let median = |times: &dyn Fn(&SentTimes) -> Vec<Duration>| {
            let mut all: Vec<_> = sent.iter().flat_map(times).collect();
            all.sort();
            all[all.len() / 2]
        };
        let gaps = |sent: &SentTimes, ends_segment: bool| -> Vec<Duration> {
            let all = sent.chars.windows(2).enumerate();
            all.filter(|(index, _)| ((index + 2) % 4 == 0) == ends_segment).map(|(_, pair)| pair[1] - pair[0]).collect()
        };
        near(figures.plain_gap_ns.unwrap().p50, median(&|sent| gaps(sent, false)), "plain gap");
        near(figures.boundary_gap_ns.unwrap().p50, median(&|sent| gaps(sent, true)), "boundary gap");
        near(figures.time_to_first_char_from_send_ns.p50, median(&|sent| vec![sent.chars[0] - sent.arrived]), "first");
        near(figures.total_ns.p50, median(&|sent| vec![sent.chars[8] - sent.arrived]), "total");
        assert!(result.lags.percentiles(1.0).count > 100);
    });
}

/// Streams of a connection whose client does not read.
const STREAMS: usize = 32;

/// Opens [`STREAMS`] streams and reads them only after a pause. Returns for each the characters received, or the code of its error.
async fn read_late(channel: Channel, chars: u32) -> Vec<Result<u32, &'static str>> {
    let stopping = Stopping { max_chars: Some(chars), min_chars: Some(chars), ..Stopping::default() };
    let request = GenerateRequest { model: Some("stub".into()), stopping: Some(stopping), ..Default::default() };
    let mut answers = Vec::new();
    for _ in 0..STREAMS {
        answers.push(GenerationClient::new(channel.clone()).generate(request.clone()).await);
    }
    tokio::time::sleep(ms(500 + 2 * u64::from(chars))).await;
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

/// Unread messages are many small frames, for which an HTTP/2 library closes its connection. This program's settings allow them;
/// with other settings the error is reported as the tester's own, not as the server's.
#[test]
fn a_client_that_reads_late_causes_no_errors_of_the_server() {
    const CHARS: u32 = 500;
    // no messages while streams are opened, then more than the library allows with its default window of 5 MiB: some ten thousand
    let serving = StubCommand::start(&["--first", "500ms", "--gap", "1ms"]);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let ours =
            ConnectOptions { address: serving.address.clone(), ..ConnectOptions::default() }.connect().await.unwrap();
        assert_eq!(read_late(ours.channel(), CHARS).await, vec![Ok(CHARS); STREAMS]);
        let other = Endpoint::from_shared(format!("http://{}", serving.address)).unwrap();
        let other = other.initial_stream_window_size(1 << 20).initial_connection_window_size(1 << 18);
        let ended = read_late(other.connect().await.unwrap(), CHARS).await;
        assert!(
            ended.contains(&Err(TESTER_CODE)) && ended.iter().all(|end| [Ok(CHARS), Err(TESTER_CODE)].contains(end)),
            "{ended:?}"
        );
    });
}
