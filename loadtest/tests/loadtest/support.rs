//! A stub server in memory on the test's own clock, and loads for it.

use hyper_util::rt::TokioIo;
use std::{future::pending, io, sync::Arc, sync::Mutex, time::Duration};
use tokio::{sync::mpsc, sync::watch, time::Instant};
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use weir_loadtest::{
    client::connection::{ConnectionPool, ServerConnection},
    load::{
        arrivals::{ArrivalProcess, ArrivalSchedule},
        driver::{LoadResult, LoadRun, LoadSetup, RequestSource, run_load},
        mix::WorkloadMix,
        schedule::{RunLength, ScheduledRequest},
        workload::{RequestTarget, WorkloadSpec},
    },
    measure::{
        objective::Objectives,
        stats::{RequestFigures, RequestStats},
    },
    stub::{Script, Stub},
};

/// Relative error that the documentation promises for known delays.
pub(super) const TOLERANCE: f64 = 0.02;

#[track_caller]
pub(super) fn near(actual: Option<f64>, expected: Duration, what: &str) {
    let actual = actual.unwrap_or_else(|| panic!("{what}: no value"));
    let expected = expected.as_nanos() as f64;
    assert!((actual / expected - 1.0).abs() <= TOLERANCE, "{what}: {actual} ns, not {expected}");
}

/// Time limit of requests in tests that do not test it.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
}

/// Connects to a stub in memory. With a paused clock, nothing but the stub's delays takes time.
pub(super) async fn connect(stub: &Stub) -> Channel {
    let (client, server) = tokio::io::duplex(1 << 20);
    // the server would close the connection when its listener ends
    let incoming = tokio_stream::once(Ok::<_, io::Error>(server)).chain(tokio_stream::pending());
    tokio::spawn(stub.clone().serve(incoming, pending()));
    let client = Arc::new(Mutex::new(Some(client)));
    let connector = tower::service_fn(move |_| {
        let client = client.lock().unwrap().take();
        async move { client.map(TokioIo::new).ok_or_else(|| io::Error::other("connected twice")) }
    });
    Endpoint::from_static("http://stub").connect_with_connector(connector).await.unwrap()
}

pub(super) async fn target(stub: &Stub, model: &str, boundaries: bool) -> RequestTarget {
    let pool = ConnectionPool::new(vec![ServerConnection::new(connect(stub).await, None).unwrap()]);
    RequestTarget { pool, model: model.into(), boundaries, timeout: TIMEOUT }
}

pub(super) fn spec(output: u64) -> WorkloadSpec {
    WorkloadSpec::fixed("test", 20, output)
}

/// Load on a stub: an open loop with constant arrivals on the test's clock, or a closed loop if `rate` is absent.
pub(super) struct Test {
    pub(super) stub: Stub,
    pub(super) output: u64,
    pub(super) rate: Option<f64>,
    pub(super) concurrency: usize,
    pub(super) extent: RunLength,
    pub(super) objectives: &'static str,
    pub(super) cancel_share: f64,
    pub(super) max_in_flight: usize,
    pub(super) timeout: Duration,
}

impl Test {
    pub(super) fn new(script: Script, output: u64) -> Self {
        Self {
            stub: Stub::new(vec![script]),
            output,
            rate: None,
            concurrency: 1,
            extent: RunLength { warm_up: Duration::ZERO, duration: Some(Duration::from_secs(10)), requests: None },
            objectives: "",
            cancel_share: 0.0,
            max_in_flight: 1 << 16,
            timeout: TIMEOUT,
        }
    }

    pub(super) async fn drive(self) -> (LoadResult, RequestFigures) {
        let target = RequestTarget { timeout: self.timeout, ..target(&self.stub, "", true).await };
        let mix = WorkloadMix::new(&[spec(self.output)], 1, self.cancel_share).unwrap();
        let objectives = match self.objectives {
            "" => Objectives::default(),
            some => some.parse().unwrap(),
        };
        let job = Arc::new(LoadSetup { target, mix, objectives });
        let begin = Instant::now();
        let source = match self.rate {
            None => RequestSource::Closed(self.concurrency),
            Some(rate) => {
                RequestSource::Open { requests: paced(rate, self.extent, begin), max_in_flight: self.max_in_flight }
            }
        };
        let (_never, stop) = watch::channel(false);
        let run = LoadRun { length: self.extent, begin, source, stop, probe_lag: false };
        let result = run_load(job, run, &mut |_| {}).await.unwrap();
        let mut all = RequestStats::new(true);
        result.stats.iter().for_each(|stats| all.merge(stats));
        (result, all.figures())
    }
}

/// Delivers the requests of a schedule by the runtime's timers, which stop with the clock.
fn paced(rate: f64, length: RunLength, begin: Instant) -> mpsc::Receiver<ScheduledRequest> {
    let (sender, receiver) = mpsc::channel(1 << 10);
    let schedule = ArrivalSchedule::new(ArrivalProcess::Constant, rate, 1, 1).unwrap();
    let requests: Vec<_> = length.requests_of(schedule, begin).collect();
    tokio::spawn(async move {
        for scheduled in requests {
            tokio::time::sleep_until(scheduled.intended).await;
            if sender.send(scheduled).await.is_err() {
                break;
            }
        }
    });
    receiver
}
