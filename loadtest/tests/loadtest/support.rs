//! A stub server in memory, on the test's own clock, and loads for it.

use hyper_util::rt::TokioIo;
use std::{future::pending, io, sync::Arc, sync::Mutex, time::Duration};
use tokio::{sync::mpsc, sync::watch, time::Instant};
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use weir_loadtest::{
    client::connection::{ConnectionPool, ServerConnection},
    load::{
        arrivals::{ArrivalProcess, ArrivalSchedule},
        driver::{LoadResult, LoadSetup, RequestSource, run_load},
        length::Length,
        schedule::RunLength,
        workload::{PromptSource, RequestTarget, WorkloadMix, WorkloadSpec},
    },
    measure::{
        objective::Objectives,
        stats::{RequestFigures, RequestStats},
    },
    stub::{Script, Stub},
};

/// What the documents promise of known delays.
pub(super) const TOLERANCE: f64 = 0.02;

#[track_caller]
pub(super) fn near(found: Option<f64>, expected: Duration, what: &str) {
    let (found, expected) = (found.unwrap_or_else(|| panic!("{what}: nothing")), expected.as_nanos() as f64);
    assert!((found / expected - 1.0).abs() <= TOLERANCE, "{what}: {found} ns, not {expected}");
}

/// How long requests may take where it is not about that.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
}

/// A connection in memory to a stub. With the clock standing still, nothing but the stub's delays takes time.
pub(super) async fn connect(stub: &Stub) -> Channel {
    let (client, server) = tokio::io::duplex(1 << 20);
    // a server whose listener ends hangs up
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
    let pool = ConnectionPool::of(vec![ServerConnection::over(connect(stub).await, None).unwrap()]);
    RequestTarget { pool, model: model.into(), boundaries, timeout: TIMEOUT }
}

pub(super) fn spec(output: u64) -> WorkloadSpec {
    WorkloadSpec {
        name: "test".into(),
        kind: "generate".into(),
        model: None,
        pools: false,
        weight: 1.0,
        files: Vec::new(),
        prompts: PromptSource::Parts(Length::Fixed(20)),
        output: Length::Fixed(output),
        shared_prefix: 0,
        prefixes: 1,
        temperature: None,
        chunk_chars: 7,
        beam: None,
        max_symbols: 1 << 20,
        seed: 1,
    }
}

/// A load on a stub: arrivals at constant rate on the test's clock, or a closed loop where the rate is none.
pub(super) struct Test {
    pub(super) stub: Stub,
    pub(super) output: u64,
    pub(super) rate: Option<f64>,
    pub(super) concurrency: usize,
    pub(super) extent: RunLength,
    pub(super) objectives: &'static str,
    pub(super) cancel: f64,
    pub(super) max_in_flight: usize,
    pub(super) timeout: Duration,
}

impl Test {
    pub(super) fn new(script: Script, output: u64) -> Self {
        let extent = RunLength { warm_up: Duration::ZERO, duration: Some(Duration::from_secs(10)), requests: None };
        let stub = Stub::new(vec![script]);
        Self {
            stub,
            output,
            rate: None,
            concurrency: 1,
            extent,
            objectives: "",
            cancel: 0.0,
            max_in_flight: 1 << 16,
            timeout: TIMEOUT,
        }
    }

    pub(super) async fn drive(self) -> (LoadResult, RequestFigures) {
        let target = RequestTarget { timeout: self.timeout, ..target(&self.stub, "", true).await };
        let mix = WorkloadMix::new(&[spec(self.output)], 1, self.cancel).unwrap();
        let objectives = match self.objectives {
            "" => Objectives::default(),
            some => some.parse().unwrap(),
        };
        let job = Arc::new(LoadSetup { target, mix, objectives });
        let begin = Instant::now();
        let source = match self.rate {
            None => RequestSource::Closed(self.concurrency),
            Some(rate) => RequestSource::Open(paced(rate, self.extent, begin), self.max_in_flight),
        };
        let (_never, stop) = watch::channel(false);
        let driven = run_load(job, (self.extent, begin), source, (stop, false), &mut |_| {}).await.unwrap();
        let mut all = RequestStats::new(true).unwrap();
        driven.tallies.iter().for_each(|tally| all.add(tally).unwrap());
        let figures = all.figures().unwrap();
        (driven, figures)
    }
}

/// Tickets of a schedule, paced by the runtime's timers: they stand still with the clock.
fn paced(
    rate: f64,
    extent: RunLength,
    begin: Instant,
) -> mpsc::Receiver<weir_loadtest::load::schedule::ScheduledRequest> {
    let (hand, taken) = mpsc::channel(1 << 10);
    let tickets = extent.tickets(ArrivalSchedule::new(ArrivalProcess::Constant, rate, 1, 1).unwrap(), begin);
    let tickets: Vec<_> = tickets.collect();
    tokio::spawn(async move {
        for ticket in tickets {
            tokio::time::sleep_until(ticket.intended).await;
            if hand.send(ticket).await.is_err() {
                break;
            }
        }
    });
    taken
}
