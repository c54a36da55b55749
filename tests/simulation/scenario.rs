//! One scenario: a server, its clients, what goes wrong, and what must hold at the end.

use crate::calls::{Client, End};
use crate::plan::{MAX_SYMBOLS, PAGE_SYMBOLS, ScenarioPlan, credentials};
use crate::toy_model::{RequestCounts, Toy};
use crate::*;
use std::sync::atomic::Ordering::SeqCst;
use tokio::runtime::{Builder, Handle as Runtime};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use weir::engine::observer::Observer;
use weir::engine::{Handle, Load, Phase, WorkerTask};
use weir::server::run::{self, ServerParts};
use weir::server::{Engines, Listener};

/// Longest time that a scenario may last. No limit of the server or its clients adds up to this.
const HORIZON: Duration = Duration::from_secs(3600);

/// Time after which everything that the clients left behind is gone: longer than the keepalive of the plans.
const SETTLED: Duration = Duration::from_secs(20);

/// Longest time of a shutdown after its drain limit.
const CLOSE: Duration = Duration::from_secs(5);

/// Maximum steps of a tenant's turn: far more than have begun within its time, 5 ms, and until a request may lose its row.
const TURN_STEPS: usize = 512;

/// Messages on the way before a call's first and after its last symbol, each of which takes up to the latency.
const MESSAGES: usize = 20;

/// The state that a scenario's clients share.
pub(crate) struct Scenario {
    pub(crate) plan: ScenarioPlan,
    pub(crate) log: Log,
    pub(crate) listener: mpsc::Sender<Accepted>,
    /// The listener for HTTP/1.1.
    pub(crate) http: mpsc::Sender<Accepted>,
    /// The model that summarizes.
    pub(crate) reader: Arc<DocumentModel>,
    /// Cancelled once all clients are served, except those that flood the server.
    pub(crate) served: CancellationToken,
    /// True once the server has the signal to shut down.
    ending: AtomicBool,
    /// When the API keys were replaced.
    reloaded: Mutex<Option<Instant>>,
}

/// Faults of the model and its worker.
#[derive(Default)]
struct Faults {
    /// True if no memory is refused and no step stalls any more.
    calm: AtomicBool,
    /// Number of steps in which memory was refused.
    refusals: AtomicUsize,
}

/// Runs the scenario of a seed in virtual time.
pub(crate) fn run(seed: u64) -> Contents {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut random = Random(seed);
        let plan = ScenarioPlan::draw(&mut random);
        let reader = DocumentModel::with("reader", plan.reader_memory);
        let (listener, accepted) = mpsc::channel(4);
        let (http, accepted_http) = mpsc::channel(4);
        let scenario = Arc::new(Scenario {
            plan,
            log: Log::begin(),
            listener,
            http,
            reader,
            served: CancellationToken::new(),
            ending: AtomicBool::new(false),
            reloaded: Mutex::new(None),
        });
        if timeout(HORIZON, live(&scenario, [accepted, accepted_http], random)).await.is_err() {
            scenario.log.violation("the scenario never ends");
        }
        scenario.log.take()
    })
}

async fn live(scenario: &Arc<Scenario>, accepted: [mpsc::Receiver<Accepted>; 2], mut random: Random) {
    let Scenario { plan, log, .. } = &**scenario;
    let faults = Arc::new(Faults::default());
    let refuses = refuses(plan.refusals, Mutex::new(random.split()), Arc::clone(&faults));
    let model = Toy::paged("sim", MAX_SYMBOLS, plan.memory, PAGE_SYMBOLS, refuses);
    let audit = Arc::<RequestCounts>::default();
    let models = [Arc::clone(&model) as Arc<dyn Model>, Arc::clone(&scenario.reader) as Arc<dyn Model>];
    let mut workers = JoinSet::new();
    let engines = models.map(|model| {
        let (engine, worker) = Handle::with_task(model, plan.limits, Arc::clone(&audit) as Arc<dyn Observer>);
        // calibration is disabled; deciding it now keeps the server from starting a thread for it
        let _ = engine.calibrate(Duration::ZERO, || std::ops::ControlFlow::Continue(()));
        workers.spawn(work(worker, plan.step, plan.stalls, Arc::clone(&faults), random.split()));
        engine
    });
    let (stop, stopped) = oneshot::channel();
    let shutdown = async {
        let _ = stopped.await;
    };
    let served = Engines::new(engines.to_vec()).unwrap();
    let [grpc, http] = accepted.map(Listener::InProcess);
    let force_shutdown = CancellationToken::new();
    let parts = ServerParts { http: Some(http), force_shutdown: force_shutdown.clone(), ..served.into() };
    let server = run::run(grpc, parts, shutdown, plan.transport.clone());
    let server = tokio::spawn(server);
    let signal = tokio::spawn(signal(Arc::clone(scenario), stop, force_shutdown));
    if let Some(after) = plan.reload {
        tokio::spawn(reload(Arc::clone(scenario), after));
    }
    if let Some(after) = plan.breaks {
        let model = Arc::clone(&model);
        tokio::spawn(async move {
            sleep(after).await;
            model.break_worker(true);
        });
    }
    run_clients(scenario, &mut random).await;
    sleep(SETTLED).await;
    model.break_worker(false);
    faults.calm.store(true, Relaxed);
    check_gauges(scenario, &engines, &audit);
    if engines.iter().any(|engine| engine.phase() == Phase::Broken) {
        log.violation("a worker has not recovered from its panics");
    }
    if plan.shutdown.is_none() {
        probe(scenario, random.split()).await;
        sleep(SETTLED).await;
        check_gauges(scenario, &engines, &audit);
    }
    scenario.served.cancel();
    log.line("the clients are gone");
    scenario.ending.store(true, SeqCst);
    // an error means that the signal was sent before
    if plan.shutdown.is_none() {
        signal.abort();
    }
    match timeout(plan.transport.drain + CLOSE, server).await {
        Ok(Ok(Ok(()))) => log.line("the server has ended"),
        other => log.violation(format_args!("the server does not end: {other:?}")),
    }
    drop(engines);
    while let Some(ended) = workers.join_next().await {
        if ended.is_err() {
            log.violation(format_args!("a worker ended with {ended:?}"));
        }
    }
    check_leaks(scenario, &model, &faults).await;
}

/// Decides in which symbol steps memory is refused: in `refusals` of 1,000.
fn refuses(refusals: usize, random: Mutex<Random>, faults: Arc<Faults>) -> impl Fn() -> bool {
    move || {
        let is_refused = random.lock().unwrap().between(1, 1000) <= refusals && !faults.calm.load(Relaxed);
        faults.refusals.fetch_add(usize::from(is_refused), Relaxed);
        is_refused
    }
}

/// Runs the worker. Its steps take up to `step` milliseconds, and stall for seconds in `stalls` of 1,000 cases.
async fn work(worker: WorkerTask, step: usize, stalls: usize, faults: Arc<Faults>, mut random: Random) {
    let took = move || {
        let is_stalled = random.between(1, 1000) <= stalls && !faults.calm.load(Relaxed);
        Duration::from_millis(if is_stalled { random.between(1000, 5000) } else { random.between(1, step) } as u64)
    };
    worker.run(took).await;
}

/// Sends the shutdown signal when it is planned, and the second one. Without a time, keeps the signal until this task is aborted,
/// which sends it.
async fn signal(scenario: Arc<Scenario>, stop: oneshot::Sender<()>, force: CancellationToken) {
    match scenario.plan.shutdown {
        Some(after) => sleep(after).await,
        None => std::future::pending().await,
    }
    scenario.ending.store(true, SeqCst);
    scenario.log.line("the server gets a signal");
    scenario.log.count("signal", 1);
    let _ = stop.send(());
    if let Some(after) = scenario.plan.second_signal {
        sleep(after).await;
        scenario.log.line("the server gets a second signal");
        scenario.log.count("second signal", 1);
        force.cancel();
    }
}

/// Replaces the API keys of all tenants after the given time.
async fn reload(scenario: Arc<Scenario>, after: Duration) {
    sleep(after).await;
    let ScenarioPlan { tenants, transport, .. } = &scenario.plan;
    transport.access.credentials.replace(credentials(*tenants, KeySet::Second));
    *scenario.reloaded.lock().unwrap() = Some(Instant::now());
    scenario.log.line("the keys are replaced");
    scenario.log.count("reload", 1);
}

/// Runs all clients. Those that flood the server end after the others.
async fn run_clients(scenario: &Arc<Scenario>, random: &mut Random) {
    let mut others = JoinSet::new();
    let mut floods = JoinSet::new();
    for (number, plan) in scenario.plan.clients.iter().enumerate() {
        let group = if plan.floods { &mut floods } else { &mut others };
        group.spawn(crate::calls::run(Arc::clone(scenario), plan.clone(), number, random.split()));
    }
    let check = |ended: Result<(), JoinError>| {
        if let Err(panic) = ended {
            scenario.log.violation(format_args!("a client failed: {panic}"));
        }
    };
    while let Some(ended) = others.join_next().await {
        check(ended);
    }
    scenario.served.cancel();
    while let Some(ended) = floods.join_next().await {
        check(ended);
    }
}

/// Uses all calls, and all memory of requests, that the server allows a caller, to see that nothing was kept from before.
async fn probe(scenario: &Arc<Scenario>, mut random: Random) {
    let plan = &scenario.plan;
    let calls = plan.transport.calls.div_ceil(2).min(plan.transport.concurrent_streams as usize);
    let calls = calls.min(plan.limits.queue / 2);
    let probe = ClientPlan::parallel(vec![CallPlan::plain(); calls]);
    let Some((client, link)) = Client::connect(scenario, &probe, plan.clients.len(), random.split()).await else {
        return scenario.log.violation("no client can connect any more");
    };
    let mut probes = JoinSet::new();
    for (index, call) in probe.calls.into_iter().enumerate() {
        let client = client.clone();
        probes.spawn(async move { client.call(&call, index).await });
    }
    while let Some(end) = probes.join_next().await {
        if !matches!(end, Ok(End::Complete)) {
            scenario.log.violation(format_args!("a call on the idle server ended with {end:?}"));
        }
    }
    // Where the memory holds just one such message, a byte that was kept would show.
    if plan.transport.request_memory == plan.transport.message_bytes {
        scenario.log.count("full request memory", 1);
        let refusal = client.longest_message().await;
        if refusal.as_deref() != Some("TOO_LONG") {
            scenario.log.violation(format_args!("the memory of requests is not free: {refusal:?}"));
        }
    }
    drop(client);
    sleep(Duration::from_millis(100)).await;
    drop(link);
}

fn check_gauges(scenario: &Scenario, engines: &[Handle], audit: &RequestCounts) {
    let log = &scenario.log;
    let accepted = audit.accepted.load(Relaxed);
    let finished = audit.finished.load(Relaxed);
    if accepted != finished {
        log.violation(format_args!("{accepted} requests were accepted, {finished} ended"));
    }
    // texts are cached for the first, documents for the second
    let limits = &scenario.plan.limits;
    for (engine, limit) in engines.iter().zip([limits.cache_bytes, limits.document_bytes]) {
        let load = engine.load();
        if load != (Load { queued: 0, running: 0, bytes: 0 }) {
            log.violation(format_args!("without clients, the engine has {load:?}"));
        }
        let cached = engine.memory().in_use;
        if cached > limit {
            log.violation(format_args!("the cache holds {cached} bytes"));
        }
        log.line(format_args!("{:?} {finished} ended, {cached} bytes cached", engine.counters()));
        log.count("preemption", engine.counters().preemptions as usize);
    }
}

/// Checks that nothing is left of the server and the engine.
async fn check_leaks(scenario: &Scenario, model: &Toy, faults: &Faults) {
    let log = &scenario.log;
    sleep(Duration::from_secs(1)).await;
    let leaked = model.memory().in_use;
    if leaked > 0 {
        log.violation(format_args!("{leaked} bytes of pages leaked"));
    }
    if scenario.reader.alive() > 0 {
        log.violation(format_args!("{} documents or rows leaked", scenario.reader.alive()));
    }
    if scenario.reader.peak() > scenario.plan.reader_memory {
        log.violation(format_args!("documents and rows took {} bytes", scenario.reader.peak()));
    }
    let tasks = Runtime::current().metrics().num_alive_tasks();
    if tasks > 0 {
        log.violation(format_args!("{tasks} tasks are left"));
    }
    let overruns = model.overruns();
    if overruns > 0 {
        log.violation(format_args!("the engine needed more memory than there is {overruns} times"));
    }
    log.count("refused memory", faults.refusals.load(Relaxed));
    log.line("the end");
}

impl Scenario {
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(SeqCst)
    }

    /// Returns the API keys that the server has now.
    pub(crate) fn keys(&self) -> KeySet {
        if self.reloaded.lock().unwrap().is_some() { KeySet::Second } else { KeySet::First }
    }

    /// Returns true if the API keys were replaced less than a second ago.
    pub(crate) fn has_just_reloaded(&self) -> bool {
        self.reloaded.lock().unwrap().is_some_and(|at| at.elapsed() < Duration::from_secs(1))
    }

    /// Checks that another tenant's flood did not delay or displace a call of the client with this number.
    pub(crate) fn check_fairness(&self, call: &CallPlan, client: usize, took: Duration, end: &End, name: &str) {
        let clients = &self.plan.clients;
        // the last call, on the idle server, is of no planned client
        let Some(&ClientPlan { tenant, .. }) =
            clients.get(client).filter(|client| self.plan.has_flood && client.tenant > 0)
        else {
            return;
        };
        self.log.count("call during a flood", 1);
        // Every other tenant has a turn before this one, and every other client of this tenant a call, or all its calls of a higher
        // priority. Before each of those, every other tenant has another turn.
        let work = |call: &CallPlan| call.prompt.len() + call.count;
        let mut turns = self.plan.tenants - 1;
        let mut own = 0;
        for (number, other) in clients.iter().enumerate().filter(|(_, other)| other.tenant == tenant) {
            let first = other.calls.iter().filter(|first| number != client && first.priority > call.priority);
            turns += first.clone().count() * (self.plan.tenants - 1);
            own += first.map(work).sum::<usize>().max(other.calls.iter().map(work).max().unwrap_or_default());
        }
        // a text that comes back is two requests
        let requests = if call.kind == CallKind::RoundTrip { 2 } else { 1 };
        let steps = requests * (turns * TURN_STEPS + own);
        let latency = requests * (call.count + MESSAGES) * MAX_LATENCY;
        let limit = Duration::from_millis((steps * self.plan.step + latency) as u64);
        if took > limit {
            self.log.violation(format_args!("{name} took {took:?} during a flood, the limit is {limit:?}"));
        }
        if *end != End::Complete {
            self.log.violation(format_args!("{name} ({call:?}) ended with {end:?} during a flood"));
        }
    }
}
