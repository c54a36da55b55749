//! Options that commands share: the server and its models, loads, and the contents of requests.

use crate::client::{self, MAX_CONNECTIONS, ModelInfo};
use crate::driver::{Objectives, WorkloadMix};
use crate::error::{Error, Result};
use crate::output::OutputArgs;
use crate::schedule::{ArrivalProcess, LoadPattern, RunLength};
use crate::workload::{EDIT, Length, PromptSource, PromptText, SUMMARIZE, TypingSpec, WorkloadSpec};
use std::{path::PathBuf, str::FromStr, time::Duration};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep};
use weir_client::connection::{Client, ConnectError, ServerEndpoint};
use weir_client::flags::{ApiKeyArgs, TlsArgs};
use weir_client::quoted;
use weir_measure::format;

const MAX_REQUESTS: u64 = 100_000_000;
pub(crate) const MAX_IN_FLIGHT: usize = 65_536;
const DEFAULT_BURST: usize = 8;

// options that all commands with loads share
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) length: RunLengthArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How long a load runs, and how many requests it may have in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadLimits {
    pub(crate) length: RunLength,
    /// Maximum requests of an open loop in flight.
    pub(crate) max_in_flight: usize,
    /// Requests for which an open loop's window is extended, unless their number is given.
    pub(crate) min_requests: usize,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RunLengthArgs {
    /// Time during which requests are sent but not measured [default: 3s; in `report`, 1s].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = format::duration_or_zero)]
    warm_up: Option<Duration>,
    /// Time during which measured requests are started; requests in flight at its end are still awaited [default: 30s;
    /// in `report`, 5s; none if --requests is given].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = format::duration)]
    duration: Option<Duration>,
    /// Measured requests; with --duration, the load ends at whichever comes first.
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Maximum requests of an open loop in flight; others wait, and their wait is counted and reported.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_in_flight: usize,
    /// Share of requests that the client cancels midway, from 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) cancel_share: f64,
}

/// Length of a load of `run` and `sweep` whose options do not state it.
pub(crate) const LONG: RunLength =
    RunLength { warm_up: Duration::from_secs(3), duration: Some(Duration::from_secs(30)), requests: None };

impl RunLengthArgs {
    /// Checks the options and returns the limits of a load.
    pub(crate) fn limits(&self, default: RunLength) -> Result<LoadLimits> {
        self.requests.map_or(Ok(()), |requests| Error::check_range("--requests", requests, 1..=MAX_REQUESTS))?;
        check_in_flight("--max-in-flight", self.max_in_flight)?;
        Error::check_range("--cancel-share", self.cancel_share, 0.0..=1.0)?;
        let Self { requests, max_in_flight, .. } = *self;
        let fallback = default.duration.filter(|_| requests.is_none());
        let warm_up = self.warm_up.unwrap_or(default.warm_up);
        let length = RunLength { warm_up, duration: self.duration.or(fallback), requests };
        Ok(LoadLimits { length, max_in_flight, min_requests: 0 })
    }
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ArrivalArgs {
    /// How arrivals of open loops follow each other [default: poisson].
    #[arg(long, value_name = "SHAPE")]
    arrivals: Option<ArrivalProcess>,
    /// Requests that arrive together with --arrivals bursty [default: 8].
    #[arg(long, value_name = "N")]
    burst: Option<usize>,
}

impl ArrivalArgs {
    /// Checks the options. `has_open_loops` is true if the command runs open loops; `flags` would make it run one.
    pub(crate) fn check(&self, has_open_loops: bool, flags: &str) -> Result<()> {
        let options = [("--arrivals", self.arrivals.is_some()), ("--burst", self.burst.is_some())];
        if let Some((field, _)) = options.into_iter().find(|(_, is_set)| *is_set && !has_open_loops) {
            let expected = format!("no value without an open loop (use {flags} without --concurrency)");
            return Err(Error::option(field, "one", expected));
        }
        let Some(burst) = self.burst else { return Ok(()) };
        if self.arrivals != Some(ArrivalProcess::Bursty) {
            return Err(Error::option("--burst", burst, "no value without --arrivals bursty"));
        }
        check_in_flight("--burst", burst)
    }

    pub(crate) fn load(&self, rate: f64) -> LoadPattern {
        let arrivals = self.arrivals.unwrap_or(ArrivalProcess::Poisson);
        let burst = if arrivals == ArrivalProcess::Bursty { self.burst.unwrap_or(DEFAULT_BURST) } else { 1 };
        LoadPattern::Open { arrivals, rate, burst: burst as u64 }
    }
}

pub(crate) fn check_in_flight(field: &str, count: usize) -> Result<()> {
    Error::check_range(field, count, 1..=MAX_IN_FLIGHT)
}

pub(crate) fn check_rate(field: &str, rate: f64) -> Result<()> {
    match (0.001..=1e6).contains(&rate) {
        true => Ok(()),
        false => Err(Error::option(field, rate, "0.001 to 1000000 requests/s")),
    }
}

/// Pause before connecting again to an unreachable server.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
const MAX_THREADS: usize = 256;
/// The address of a server that `weir serve` starts without settings.
const DEFAULT_ADDRESS: &str = "127.0.0.1:50051";

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ServerArgs {
    /// Server address: host:port, :port of this machine, or a URL; https:// for TLS.
    #[arg(value_name = "ADDRESS", default_value = DEFAULT_ADDRESS, env = "WEIR_SERVER")]
    address: String,
    #[command(flatten)]
    api_key: ApiKeyArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Longest time to wait for the server to become reachable, for example after its start.
    #[arg(long, value_name = "TIME", default_value = "0s", allow_hyphen_values = true, value_parser = format::duration_or_zero)]
    wait: Duration,
    /// Connections that requests use in turn [default: as many as the calls in flight need, by the server's limit of calls per
    /// connection].
    #[arg(long, value_name = "N")]
    connections: Option<usize>,
    /// Threads that read the answers.
    #[arg(long, value_name = "N", env = "WEIR_THREADS", default_value_t = 1)]
    pub(crate) threads: usize,
}

impl ServerArgs {
    /// Checks the options, and reads keys and certificates.
    pub(crate) fn endpoint(&self) -> Result<ServerEndpoint> {
        self.connections.map_or(Ok(()), |count| Error::check_range("--connections", count, 1..=MAX_CONNECTIONS))?;
        let endpoint = self.tls.endpoint("ADDRESS", &self.address).map_err(Error::Setting)?;
        Ok(ServerEndpoint { key: self.api_key.key().map_err(Error::Setting)?, ..endpoint })
    }

    /// Opens the first connection; retries for `--wait` while the server is unreachable. The error names what answers at the address.
    pub(crate) async fn first_connection(&self, server: &ServerEndpoint) -> Result<Client> {
        let begun = Instant::now();
        loop {
            match client::connect(server).await {
                Ok(client) => return Ok(client),
                Err(ConnectError::Failed(failed)) if !failed.has_hint() && begun.elapsed() < self.wait => {
                    sleep(RETRY_PAUSE).await;
                }
                Err(error) => return Err(Error::Server(server.explain(error).await.to_string())),
            }
        }
    }

    /// Returns how many connections `calls` calls at a time need if one carries `streams`.
    pub(crate) fn connections(&self, calls: usize, streams: usize) -> usize {
        self.connections.unwrap_or_else(|| calls.div_ceil(streams.max(1)).clamp(1, MAX_CONNECTIONS))
    }
}

pub(crate) fn runtime(threads: usize) -> Result<Runtime> {
    Error::check_range("--threads", threads, 1..=MAX_THREADS)?;
    let built = if threads == 1 {
        Builder::new_current_thread().enable_all().build()
    } else {
        Builder::new_multi_thread().worker_threads(threads).enable_all().build()
    };
    built.map_err(|error| Error::Internal(format!("cannot start the network threads: {error}")))
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WorkloadArgs {
    /// Text files from which prompts or documents are taken [default: 16 KB of bundled English].
    #[arg(long, value_name = "FILE", num_args = 1.., value_delimiter = ',')]
    prompts: Vec<PathBuf>,
    /// Length of prompts in characters: N, FROM..TO, normal:MEAN:DEVIATION, lognormal:MEDIAN:SIGMA, exponential:MEAN, `lines`
    /// or `documents`. With `lines` each line of the files is a prompt. With `documents` each file is a prompt; in a `.jsonl`
    /// file, each line's `text`, `document` or `article` is a prompt.
    #[arg(long, value_name = "LENGTH", default_value = "64..256")]
    prompt_chars: PromptSource,
    /// Characters that each request generates, or tokens of each summary: a length as in --prompt-chars.
    #[arg(long, value_name = "LENGTH", default_value = "128")]
    output_chars: Length,
    /// Characters of a common prefix before each prompt.
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_prefix: u64,
    /// Number of different common prefixes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    prefixes: u64,
    /// Sampling temperature [default: the server's].
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Characters of each message of a document upload.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    chunk_chars: u64,
    /// Beam size for summaries [default: the model's].
    #[arg(long, value_name = "N")]
    pub(crate) beam: Option<u32>,
    /// Workload of a mix, as comma-separated key=value pairs: name, kind (generate, summarize, edit), model, weight, prompts,
    /// prompt-chars, output-chars, shared-prefix, prefixes, temperature, chunk-chars, beam. Other options apply to keys not given.
    /// With kind=edit also: rate (keystrokes a second), pause, count, until (word, line, segment, max_chars). The flag can be
    /// repeated.
    #[arg(long = "workload", value_name = "SPEC")]
    workloads: Vec<String>,
    /// Seed of all random choices: contents, lengths, arrivals, and the server's sampling.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Time limit of a request, also sent to the server.
    #[arg(long, value_name = "TIME", env = "WEIR_TIMEOUT", default_value = "60s", allow_hyphen_values = true,
        value_parser = format::duration)]
    pub(crate) timeout: Duration,
    /// Objectives of a good request, such as ttfc=200ms,gap_p99=50ms. Names: ttfc, total, char, gap_p50, gap_p95, gap_p99, gap_max,
    /// key_p50, key_p99.
    #[arg(long, value_name = "LIST")]
    objective: Option<Objectives>,
    /// Whether to request segment boundaries. `ask` separates plain from boundary gaps, and delays characters by one step [default:
    /// `run`, `sweep` and `report` ask models that pool; `compare` asks none].
    #[arg(long, value_name = "WHETHER")]
    pub(crate) boundaries: Option<BoundaryChoice>,
    /// Note for the report with facts that a client cannot find out, such as the server's machine.
    #[arg(long, value_name = "TEXT", env = "WEIR_NOTE")]
    pub(crate) note: Option<String>,
}

/// Whether to request segment boundaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BoundaryChoice {
    /// Request them.
    Ask,
    /// Do not request them.
    Leave,
}

impl WorkloadArgs {
    pub(crate) fn objectives(&self) -> Objectives {
        self.objective.clone().unwrap_or_default()
    }

    /// Returns the options for models of one kind: without workloads of the other kind, unless they name a model.
    pub(crate) fn only(&self, summarizes: bool) -> Result<Self> {
        let own = kind(summarizes);
        let mut workloads = Vec::new();
        for text in &self.workloads {
            let spec = parse_spec(self.base_spec(own, 0, self.seed), text).map_err(|why| invalid(text, why))?;
            if (spec.kind == SUMMARIZE) == summarizes || spec.model.is_some() {
                workloads.push(text.clone());
            }
        }
        Ok(Self { workloads, ..self.clone() })
    }

    /// Builds the mix for `models`, of which the smallest limit counts. The client cancels a share of `cancel_share` of the
    /// requests. Workloads may name other models of `known`.
    pub(crate) fn mix(
        &self,
        models: &[ModelInfo],
        known: &[ModelInfo],
        cancel_share: f64,
        seed: u64,
    ) -> Result<WorkloadMix> {
        let max_symbols = models.iter().map(|model| model.max_symbols).min().unwrap_or(0);
        // models that summarize do nothing else
        let summarizes = !models.is_empty() && models.iter().all(|model| model.summarizes);
        let base = self.base_spec(kind(summarizes), max_symbols, seed);
        let specs = if self.workloads.is_empty() {
            vec![base]
        } else {
            let parse = |(index, text): (usize, &String)| {
                let base = WorkloadSpec { name: format!("workload {}", index + 1), ..base.clone() };
                parse_spec(base, text)
                    .and_then(|spec| with_model_limits(spec, known))
                    .and_then(|spec| check_kind(spec, models, known))
                    .and_then(|spec| check_session(spec, self.timeout))
                    .map_err(|why| invalid(text, why))
            };
            self.workloads.iter().enumerate().map(parse).collect::<Result<_>>()?
        };
        if let Some(temperature) = self.temperature.filter(|_| specs.iter().all(|spec| spec.kind == EDIT)) {
            return Err(Error::option("--temperature", temperature, format!("no value ({RANKED})")));
        }
        if self.prefixes > 1 && specs.iter().all(|spec| spec.shared_prefix == 0) {
            return Err(Error::option(
                "--prefixes",
                self.prefixes,
                "1 unless --shared-prefix gives the length of a prefix",
            ));
        }
        WorkloadMix::new(&specs, seed, cancel_share)
    }

    fn base_spec(&self, kind: &str, max_symbols: u64, seed: u64) -> WorkloadSpec {
        WorkloadSpec {
            name: kind.into(),
            kind: kind.into(),
            model: None,
            pools: false,
            weight: 1.0,
            files: self.prompts.clone(),
            prompts: self.prompt_chars,
            output: self.output_chars,
            shared_prefix: self.shared_prefix,
            prefixes: self.prefixes,
            temperature: self.temperature,
            chunk_chars: self.chunk_chars,
            beam: self.beam,
            typing: TypingSpec::default(),
            max_symbols,
            seed,
        }
    }

    /// Returns the text to score, and its description.
    pub(crate) fn scored_text(&self, chars: usize, models: &[ModelInfo]) -> Result<(String, String)> {
        let text = match self.prompt_chars {
            PromptSource::Documents => PromptText::joined_documents(&self.prompts)?,
            _ => PromptText::read(&self.prompts)?,
        };
        let max = models.iter().map(|model| model.max_symbols).min().unwrap_or(0);
        let scored = text.head(chars.min(usize::try_from(max).unwrap_or(usize::MAX)));
        let description = format!("the first {} characters of {}", scored.chars().count(), text.name);
        Ok((scored, description))
    }
}

/// Returns the kind of workload for models that summarize, or do not.
fn kind(summarizes: bool) -> &'static str {
    if summarizes { SUMMARIZE } else { "generate" }
}

/// The reason why a workload that edits documents has no temperature.
const RANKED: &str = "kind=edit asks for the most probable completions, and the server draws nothing";

fn invalid(text: &str, why: String) -> Error {
    Error::Setting(format!("--workload {text}: {why}"))
}

/// Applies the limits of the model that a workload names, if it names one.
fn with_model_limits(mut spec: WorkloadSpec, known: &[ModelInfo]) -> Result<WorkloadSpec, String> {
    let Some(name) = &spec.model else { return Ok(spec) };
    let Some(model) = known.iter().find(|model| model.name == *name) else {
        let names: Vec<_> = known.iter().map(|model| model.name.as_str()).collect();
        return Err(format!("model: expected one of {}, found {}", names.join(", "), quoted(name)));
    };
    spec.max_symbols = model.max_symbols;
    spec.pools = model.pooled;
    Ok(spec)
}

/// Checks that the models of a workload can do its kind.
fn check_kind(spec: WorkloadSpec, models: &[ModelInfo], known: &[ModelInfo]) -> Result<WorkloadSpec, String> {
    let is_other = |model: &&ModelInfo| spec.kind == kind(!model.summarizes) || (model.summarizes && spec.kind == EDIT);
    let unfit = match &spec.model {
        Some(name) => known.iter().filter(|model| model.name == *name).find(is_other),
        None => models.iter().find(is_other),
    };
    let Some(ModelInfo { name, summarizes, .. }) = unfit else { return Ok(spec) };
    if spec.kind == EDIT {
        return Err(format!(
            "model: expected one that continues text for kind={EDIT}, found {name:?}, which summarizes"
        ));
    }
    let expected = kind(*summarizes);
    Err(format!("kind: expected {expected} (what {name} does), found {}", quoted(&spec.kind)))
}

/// Checks that a session that edits a document can end before the time limit of a request.
fn check_session(spec: WorkloadSpec, timeout: Duration) -> Result<WorkloadSpec, String> {
    // The mix reports a wrong rate.
    if spec.typing.check().is_err() {
        return Ok(spec);
    }
    let keystrokes = spec.output.longest().filter(|_| spec.kind == EDIT).unwrap_or(0) as f64;
    let TypingSpec { rate, pause, .. } = spec.typing;
    let seconds = pause.as_secs_f64() + keystrokes / rate;
    if seconds < timeout.as_secs_f64() {
        return Ok(spec);
    }
    Err(format!(
        "--timeout: expected more than {seconds} s for a session of {keystrokes} keystrokes, found {timeout:?}"
    ))
}

/// Parses a workload; `spec` has the values of keys not given.
fn parse_spec(mut spec: WorkloadSpec, text: &str) -> Result<WorkloadSpec, String> {
    fn number<T: FromStr>(key: &str, value: &str) -> Result<T, String> {
        value.parse().map_err(|_| format!("{key}: expected a number, found {value:?}"))
    }
    let mut keys = Vec::new();
    for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("expected KEY=VALUE, found {pair:?}"))?;
        let key = key.trim();
        let value = value.trim();
        keys.push(key);
        let within = |why: String| format!("{key}: {why}, found {value:?}");
        match key {
            "name" => spec.name = value.into(),
            "kind" => spec.kind = value.into(),
            "model" => spec.model = Some(value.into()),
            "chunk-chars" => spec.chunk_chars = number(key, value)?,
            "beam" => spec.beam = Some(number(key, value)?),
            "weight" => spec.weight = number(key, value)?,
            "prompts" => spec.files = vec![value.into()],
            "prompt-chars" => spec.prompts = value.parse().map_err(within)?,
            "output-chars" => spec.output = value.parse().map_err(within)?,
            "shared-prefix" => spec.shared_prefix = number(key, value)?,
            "prefixes" => spec.prefixes = number(key, value)?,
            "temperature" => spec.temperature = Some(number(key, value)?),
            "rate" => spec.typing.rate = number(key, value)?,
            "pause" => spec.typing.pause = format::duration_or_zero(value).map_err(within)?,
            "count" => spec.typing.count = number(key, value)?,
            "until" => spec.typing.until = TypingSpec::end(value).map_err(within)?,
            other => return Err(format!("expected a key of a workload, found {other:?}")),
        }
    }
    if keys.contains(&"prefixes") && spec.shared_prefix == 0 {
        return Err("prefixes: expected no value unless shared-prefix gives the length of a prefix".into());
    }
    if keys.contains(&"temperature") && spec.kind == EDIT {
        return Err(format!("temperature: expected no value ({RANKED})"));
    }
    if keys.contains(&"beam") && spec.kind != SUMMARIZE {
        return Err("beam: expected no value without kind=summarize".into());
    }
    let typing = keys.iter().find(|key| ["rate", "pause", "count", "until"].contains(key));
    if let Some(key) = typing.filter(|_| spec.kind != EDIT) {
        return Err(format!("{key}: expected no value without kind={EDIT}"));
    }
    Ok(spec)
}
