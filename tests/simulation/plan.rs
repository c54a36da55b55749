//! The plan of a scenario: its limits, its clients, and its faults.

use crate::toy_model::{BYTES, SAMPLED, SYMBOLS};
use crate::*;
use weir::engine::Limits;
use weir::server::config::{Access, Credentials, Keys, TransportConfig};

/// Maximum symbols of a sequence.
pub(crate) const MAX_SYMBOLS: usize = 400;

/// Symbols of a page of keys and values.
pub(crate) const PAGE_SYMBOLS: usize = 8;

const PAGE_BYTES: usize = PAGE_SYMBOLS * BYTES;

/// The short one of two limits on idle connections. A slow reader can reach it.
const SHORT_IDLE: Duration = Duration::from_secs(1);

/// Maximum bytes of a message in some scenarios.
const MESSAGE_BYTES: usize = 1 << 10;

/// The scenario of a seed.
pub(crate) struct ScenarioPlan {
    pub(crate) limits: Limits,
    pub(crate) transport: TransportConfig,
    /// Bytes of key-value memory.
    pub(crate) memory: usize,
    /// Bytes of key-value memory of the model that summarizes. The longest document fits.
    pub(crate) reader_memory: usize,
    /// Steps of 1,000 in which memory is refused.
    pub(crate) refusals: usize,
    /// Maximum milliseconds of a step.
    pub(crate) step: usize,
    /// Steps of 1,000 in which the worker stalls for seconds.
    pub(crate) stalls: usize,
    /// Number of tenants, each with an API key. Without any, every client is anonymous.
    pub(crate) tenants: usize,
    pub(crate) clients: Vec<ClientPlan>,
    /// When the server gets the signal to shut down. Without it, the signal comes after all clients have left.
    pub(crate) shutdown: Option<Duration>,
    /// When the server gets a second signal, which ends running requests at once: this long after the first one.
    pub(crate) second_signal: Option<Duration>,
    /// When other API keys replace all tenants' keys.
    pub(crate) reload: Option<Duration>,
    /// When a panic outside of a step hits the worker.
    pub(crate) breaks: Option<Duration>,
    /// A tenant sends long requests until all others are served.
    pub(crate) has_flood: bool,
    /// Some prompt makes a step panic.
    pub(crate) has_panics: bool,
}

/// A client with one connection.
#[derive(Clone)]
pub(crate) struct ClientPlan {
    pub(crate) tenant: usize,
    pub(crate) start: Duration,
    pub(crate) quality: LinkQuality,
    /// Changes of the connection, each with the time since the change before it.
    pub(crate) link: Vec<(Duration, LinkState)>,
    /// Bytes of a response that the client takes before it reads them.
    pub(crate) window: u32,
    /// Sends all calls at once instead of one after the other.
    pub(crate) parallel: bool,
    /// Repeats its calls until all other clients are served.
    pub(crate) floods: bool,
    pub(crate) calls: Vec<CallPlan>,
}

#[derive(Debug, Clone)]
pub(crate) struct CallPlan {
    pub(crate) kind: CallKind,
    pub(crate) prompt: String,
    /// Number of characters to generate, or of a block to compress.
    pub(crate) count: usize,
    pub(crate) priority: i32,
    pub(crate) deadline: Option<Duration>,
    pub(crate) reading: Reading,
    pub(crate) per_segment: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    Generate,
    Score,
    Segment,
    Models,
    Health,
    Summarize,
    /// Over HTTP.
    Completion,
    /// A text that is compressed and comes back.
    RoundTrip,
    /// A generation over the Open Inference Protocol.
    Inference,
}

/// How a client reads its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    Eager,
    /// Waits before each message.
    Slow(Duration),
    /// Cancels the call after this many messages.
    Cancel(usize),
    /// Cancels the call after this time.
    Leave(Duration),
    /// Reads nothing for this time, and then everything.
    Late(Duration),
}

impl Reading {
    /// Waits as long as the client does before it reads another message after `messages` ones. Returns true if it cancels the call
    /// instead.
    pub(crate) async fn pause(self, messages: usize) -> bool {
        match self {
            Self::Slow(pause) => sleep(pause).await,
            Self::Late(pause) if messages == 0 => sleep(pause).await,
            Self::Cancel(limit) => return messages >= limit,
            _ => {}
        }
        false
    }
}

impl ScenarioPlan {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let has_flood = random.chance(20);
        let has_panics = !has_flood && random.chance(25);
        let tenants = if has_flood { random.between(2, 3) } else { random.pick(&[0, 1, 2, 3]) };
        let limits = limits(random, has_flood);
        let memory = PAGE_BYTES * if random.chance(50) { random.between(8, 40) } else { 1000 };
        let mut clients: Vec<_> = (0..random.between(1, 4))
            .map(|index| {
                let mut random = random.split();
                let tenant = if has_flood { index % (tenants - 1) + 1 } else { index % tenants.max(1) };
                ClientPlan::draw(&mut random, tenant, has_flood, has_panics)
            })
            .collect();
        if has_flood {
            clients.push(ClientPlan::flood(random));
        }
        let within = |random: &mut Random| Duration::from_millis(random.between(0, 1500) as u64);
        Self {
            limits,
            transport: transport(random, tenants, has_flood),
            memory: if has_flood { 1000 * PAGE_BYTES } else { memory },
            reader_memory: random.pick(&[10_000, 40_000]),
            refusals: if !has_flood && random.chance(10) { 20 } else { 0 },
            step: random.between(1, 8),
            stalls: if !has_flood && random.chance(15) { 10 } else { 0 },
            tenants,
            clients,
            shutdown: (!has_flood && random.chance(25)).then(|| within(random)),
            second_signal: random.chance(40).then(|| within(random)),
            // while the clients still call
            reload: (!has_flood && tenants > 0 && random.chance(30))
                .then(|| Duration::from_millis(random.between(20, 200) as u64)),
            breaks: (!has_flood && random.chance(4)).then(|| within(random)),
            has_flood,
            has_panics,
        }
    }

    /// Returns true if the server may close or refuse connections because of its limits.
    pub(crate) fn breaks_connections(&self) -> bool {
        self.transport.connection_age.is_some()
    }

    /// Returns true if the server soon closes connections without calls.
    pub(crate) fn closes_idle_connections(&self) -> bool {
        self.transport.connection_idle.is_some_and(|limit| limit <= SHORT_IDLE)
    }

    /// Returns true if the model can never hold the call's text.
    pub(crate) fn never_fits(&self, call: &CallPlan) -> bool {
        let generates = matches!(call.kind, CallKind::Generate | CallKind::Completion | CallKind::Inference);
        let count = if generates { call.count } else { 0 };
        (call.prompt.len() + count).div_ceil(PAGE_SYMBOLS) * PAGE_BYTES > self.memory
    }
}

fn limits(random: &mut Random, has_flood: bool) -> Limits {
    Limits {
        rows: random.between(1, 4),
        queue: if has_flood { 16 } else { random.between(4, 10) },
        queued_symbols: 2000,
        chunk: random.pick(&[1, 4, 16, 256]),
        events: random.pick(&[1, 2, 8, 256]),
        boundary_wait: random.between(0, 3),
        stall: Duration::from_millis(random.pick(&[300, 2000, 30_000])),
        request_time: Duration::from_secs(if !has_flood && random.chance(10) { 1 } else { 3600 }),
        cache_bytes: random.pick(&[0, 4 * PAGE_BYTES, 100 * PAGE_BYTES]),
        document_bytes: random.pick(&[0, 600, 4000]),
        calibration: Duration::ZERO,
        ..Limits::default()
    }
}

fn transport(random: &mut Random, tenants: usize, has_flood: bool) -> TransportConfig {
    let config = TransportConfig {
        drain: Duration::from_millis(random.pick(&[0, 100, 5000])),
        calls: if has_flood { 64 } else { random.between(4, 20) },
        connection_idle: Some(random.pick(&[SHORT_IDLE, Duration::from_secs(300)])),
        keepalive_interval: Some(Duration::from_secs(5)),
        keepalive_timeout: Duration::from_secs(2),
        late_headers: random.chance(20),
        access: Access::from(credentials(tenants, KeySet::First)),
        ..TransportConfig::default()
    };
    if has_flood || random.chance(60) {
        return config;
    }
    TransportConfig {
        connections: random.between(1, 4),
        concurrent_streams: random.between(1, 4) as u32,
        connection_age: Some(Duration::from_millis(random.between(500, 1500) as u64)),
        connection_age_grace: Duration::from_millis(random.pick(&[50, 5000])),
        message_bytes: MESSAGE_BYTES,
        request_memory: random.pick(&[MESSAGE_BYTES, 16 << 10, 64 << 20]),
        ..config
    }
}

/// The API keys of all tenants before a reload, or after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeySet {
    First,
    Second,
}

/// Returns the API key of a tenant.
pub(crate) fn key(tenant: usize, set: KeySet) -> String {
    format!("the-key-of-tenant-{tenant:08}-{set:?}")
}

/// Returns the credentials of a server with this number of tenants.
pub(crate) fn credentials(tenants: usize, set: KeySet) -> Credentials {
    let lines: Vec<_> = (0..tenants).map(|tenant| format!("tenant-{tenant}:{}", key(tenant, set))).collect();
    let keys = (tenants > 0).then(|| Keys::parse(&lines.join("\n")).unwrap());
    Credentials { keys, ..Credentials::default() }
}

impl ClientPlan {
    fn draw(random: &mut Random, tenant: usize, has_flood: bool, has_panics: bool) -> Self {
        let mut link = Vec::new();
        if !has_flood && random.chance(30) {
            let pause = |random: &mut Random| Duration::from_millis(random.between(1, 800) as u64);
            if random.chance(50) {
                link.push((pause(random), LinkState::Stalled));
                if random.chance(50) {
                    link.push((pause(random), LinkState::Open));
                }
            }
            if random.chance(60) {
                link.push((pause(random), LinkState::Cut));
            }
        }
        let calls = (0..random.between(1, 4)).map(|_| CallPlan::draw(random, has_flood, has_panics)).collect();
        Self {
            tenant,
            start: Duration::from_millis(if has_flood { 500 } else { random.between(0, 300) as u64 }),
            quality: quality(random),
            link,
            window: random.pick(&[200, 4096, 65_535]),
            parallel: !has_flood && random.chance(50),
            floods: false,
            calls,
        }
    }

    /// A client whose tenant wants more than the whole engine.
    fn flood(random: &mut Random) -> Self {
        let calls = (0..random.between(4, 8)).map(|_| CallPlan {
            prompt: text(random, 1, 60),
            count: random.between(50, 300),
            priority: 7,
            per_segment: true,
            ..CallPlan::plain()
        });
        Self { calls: calls.collect(), quality: quality(random), floods: true, ..Self::parallel(Vec::new()) }
    }

    /// A client that makes all calls at once, over a connection without delays and faults.
    pub(crate) fn parallel(calls: Vec<CallPlan>) -> Self {
        Self {
            tenant: 0,
            start: Duration::ZERO,
            quality: LinkQuality { latency: 0, buffer: 65_536 },
            link: Vec::new(),
            window: 65_535,
            parallel: true,
            floods: false,
            calls,
        }
    }
}

fn quality(random: &mut Random) -> LinkQuality {
    LinkQuality { latency: random.pick(&[0, 1, MAX_LATENCY]), buffer: random.pick(&[256, 4096, 65_536]) }
}

/// Returns a text of `low` to `high` characters.
fn text(random: &mut Random, low: usize, high: usize) -> String {
    (0..random.between(low, high)).map(|_| SYMBOLS[random.between(0, SAMPLED as usize - 1)]).collect()
}

impl CallPlan {
    fn draw(random: &mut Random, has_flood: bool, has_panics: bool) -> Self {
        let kinds = [
            CallKind::Score,
            CallKind::Segment,
            CallKind::Models,
            CallKind::Health,
            CallKind::Completion,
            CallKind::Completion,
            CallKind::RoundTrip,
            CallKind::RoundTrip,
            CallKind::Inference,
            CallKind::Summarize,
            CallKind::Summarize,
        ];
        let kind = if random.chance(60) { CallKind::Generate } else { random.pick(&kinds) };
        // texts that begin alike share cached pages
        let common = if random.chance(50) { "a bc ca a b " } else { "" };
        let mut prompt = format!("{common}{}", text(random, 1, 40));
        if has_panics && random.chance(20) {
            prompt.push('!');
        }
        let ms = |ms: usize| Duration::from_millis(ms as u64);
        let reading = match random.between(0, 9) {
            _ if has_flood => Reading::Eager,
            0 | 1 => Reading::Slow(ms(random.between(1, 100))),
            2 => Reading::Cancel(random.between(0, 5)),
            3 => Reading::Leave(ms(random.between(0, 300))),
            4 => Reading::Late(ms(random.between(100, 5000))),
            _ => Reading::Eager,
        };
        let count = if random.chance(10) { MAX_SYMBOLS - prompt.len() } else { random.between(1, 40) };
        let count = if has_flood { random.between(1, 20) } else { count };
        Self {
            kind,
            // during a flood, each block would wait for a turn
            count: if has_flood && kind == CallKind::RoundTrip { prompt.len() } else { count },
            prompt,
            priority: random.pick(&[-8, 0, 0, 7]),
            deadline: (!has_flood && random.chance(15)).then(|| ms(random.between(1, 400))),
            reading,
            per_segment: random.chance(30),
        }
    }

    /// A short call without faults.
    pub(crate) fn plain() -> Self {
        Self {
            kind: CallKind::Generate,
            prompt: "abc".into(),
            count: 4,
            priority: 0,
            deadline: None,
            reading: Reading::Eager,
            per_segment: false,
        }
    }
}

/// A random number generator (SplitMix64). Equal seeds give equal sequences.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    /// Returns true in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.between(0, 99) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.between(0, choices.len() - 1)]
    }

    /// Returns an independent generator, so that one part of the scenario can draw more often without changing the others.
    pub(crate) fn split(&mut self) -> Self {
        Self(self.next())
    }
}
