//! Options that commands share: the server and its models, loads, and the contents of requests.

use crate::client::{self, ModelInfo};
use crate::driver::{Objectives, WorkloadMix};
use crate::error::{Error, Result};
use crate::output::OutputArgs;
use crate::schedule::RunLength;
use crate::workload::{Length, PromptText, WorkloadKind, WorkloadSpec};
use std::{path::PathBuf, time::Duration};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep};
use weir_client::connection::{Client, ConnectError, ServerEndpoint};
use weir_client::flags::{AddressArgs, ApiKeyArgs, TlsArgs};
use weir_measure::format;

const MAX_REQUESTS: u64 = 100_000_000;
pub(crate) const MAX_IN_FLIGHT: usize = 65_536;

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
}

/// Length of a load of `run` and `sweep` whose options do not state it.
pub(crate) const LONG: RunLength =
    RunLength { warm_up: Duration::from_secs(3), duration: Some(Duration::from_secs(30)), requests: None };

impl RunLengthArgs {
    /// Checks the options and returns the limits of a load.
    pub(crate) fn limits(&self, default: RunLength) -> Result<LoadLimits> {
        self.requests.map_or(Ok(()), |requests| Error::check_range("--requests", requests, 1..=MAX_REQUESTS))?;
        check_in_flight("--max-in-flight", self.max_in_flight)?;
        let Self { requests, max_in_flight, .. } = *self;
        let fallback = default.duration.filter(|_| requests.is_none());
        let warm_up = self.warm_up.unwrap_or(default.warm_up);
        let length = RunLength { warm_up, duration: self.duration.or(fallback), requests };
        Ok(LoadLimits { length, max_in_flight, min_requests: 0 })
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

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    address: AddressArgs,
    #[command(flatten)]
    api_key: ApiKeyArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Longest time to wait for the server to become reachable, for example after its start.
    #[arg(long, value_name = "TIME", default_value = "0s", allow_hyphen_values = true, value_parser = format::duration_or_zero)]
    wait: Duration,
    /// Threads that read the answers.
    #[arg(long, value_name = "N", env = "WEIR_THREADS", default_value_t = 1)]
    pub(crate) threads: usize,
}

impl ServerArgs {
    /// Checks the options, and reads keys and certificates.
    pub(crate) fn endpoint(&self) -> Result<ServerEndpoint> {
        let (name, address) = self.address.or_default().map_err(Error::Setting)?;
        let endpoint = self.tls.endpoint(name, address).map_err(Error::Setting)?;
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
    /// Text files from which prompts and documents are taken [default: 16 KB of bundled English].
    #[arg(long, value_name = "FILE", num_args = 1.., value_delimiter = ',')]
    prompts: Vec<PathBuf>,
    /// Length of prompts in characters: N, FROM..TO or lognormal:MEDIAN:SIGMA.
    #[arg(long, value_name = "LENGTH", default_value = "64..256")]
    prompt_chars: Length,
    /// Symbols that each request generates, or tokens of each summary: a length as in --prompt-chars.
    #[arg(long, value_name = "LENGTH", default_value = "128")]
    output_chars: Length,
    /// Workload of a mix, as comma-separated key=value pairs: name, kind (generate, summarize, edit), weight, prompts, prompt-chars,
    /// output-chars. Other options apply to keys not given. With kind=edit also: rate (keystrokes a second), pause. The flag can be
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
    /// Note for the report with facts that a client cannot find out, such as the server's machine.
    #[arg(long, value_name = "TEXT", env = "WEIR_NOTE")]
    pub(crate) note: Option<String>,
}

impl WorkloadArgs {
    pub(crate) fn objectives(&self) -> Objectives {
        self.objective.clone().unwrap_or_default()
    }

    /// Returns the options for models of one kind: without workloads of the other kind.
    pub(crate) fn only(&self, summarizes: bool) -> Result<Self> {
        let mut workloads = Vec::new();
        for text in &self.workloads {
            let spec = parse_spec(self.base_spec(kind(summarizes), 0), text).map_err(|why| invalid(text, why))?;
            if (spec.kind == WorkloadKind::Summarize) == summarizes {
                workloads.push(text.clone());
            }
        }
        Ok(Self { workloads, ..self.clone() })
    }

    /// Builds the mix for `models`, of which the smallest limit counts.
    pub(crate) fn mix(&self, models: &[ModelInfo], seed: u64) -> Result<WorkloadMix> {
        let max_symbols = models.iter().map(|model| model.max_symbols).min().unwrap_or(0);
        // models that summarize do nothing else
        let summarizes = !models.is_empty() && models.iter().all(|model| model.summarizes);
        let base = self.base_spec(kind(summarizes), max_symbols);
        let specs = if self.workloads.is_empty() {
            vec![base]
        } else {
            let parse = |(index, text): (usize, &String)| {
                let base = WorkloadSpec { name: format!("workload {}", index + 1), ..base.clone() };
                parse_spec(base, text)
                    .and_then(|spec| check_kind(spec, models))
                    .and_then(|spec| check_session(spec, self.timeout))
                    .map_err(|why| invalid(text, why))
            };
            self.workloads.iter().enumerate().map(parse).collect::<Result<_>>()?
        };
        WorkloadMix::new(specs, seed)
    }

    fn base_spec(&self, kind: WorkloadKind, max_symbols: u64) -> WorkloadSpec {
        WorkloadSpec {
            name: kind.name().into(),
            kind,
            weight: 1.0,
            files: self.prompts.clone(),
            prompt: self.prompt_chars,
            output: self.output_chars,
            rate: TYPING_RATE,
            pause: Duration::ZERO,
            max_symbols,
        }
    }

    /// Returns the text to score, and its description.
    pub(crate) fn scored_text(&self, chars: usize, models: &[ModelInfo]) -> Result<(String, String)> {
        let text = PromptText::read(&self.prompts)?;
        let max = models.iter().map(|model| model.max_symbols).min().unwrap_or(0);
        let scored = text.head(chars.min(usize::try_from(max).unwrap_or(usize::MAX)));
        let description = format!("the first {} characters of {}", scored.chars().count(), text.name);
        Ok((scored, description))
    }
}

/// Keystrokes a second, unless a workload states them.
const TYPING_RATE: f64 = 10.0;

/// Returns the kind of workload for models that summarize, or do not.
fn kind(summarizes: bool) -> WorkloadKind {
    if summarizes { WorkloadKind::Summarize } else { WorkloadKind::Generate }
}

fn invalid(text: &str, why: String) -> Error {
    Error::Setting(format!("--workload {text}: {why}"))
}

/// Checks that the models can do the kind of a workload.
fn check_kind(spec: WorkloadSpec, models: &[ModelInfo]) -> Result<WorkloadSpec, String> {
    let unfit = models.iter().find(|model| model.summarizes != (spec.kind == WorkloadKind::Summarize));
    let Some(ModelInfo { name, summarizes, .. }) = unfit else { return Ok(spec) };
    let expected = kind(*summarizes).name();
    Err(format!("kind: expected {expected} (what {name} does), found {:?}", spec.kind.name()))
}

/// Checks that a session that edits a document can end before the time limit of a request.
fn check_session(spec: WorkloadSpec, timeout: Duration) -> Result<WorkloadSpec, String> {
    let keystrokes = spec.output.longest().filter(|_| spec.kind == WorkloadKind::Edit).unwrap_or(0) as f64;
    let seconds = spec.pause.as_secs_f64() + keystrokes / spec.rate;
    // The mix reports a wrong rate.
    if seconds < timeout.as_secs_f64() || spec.rate.is_nan() || spec.rate <= 0.0 {
        return Ok(spec);
    }
    Err(format!(
        "--timeout: expected more than {seconds} s for a session of {keystrokes} keystrokes, found {timeout:?}"
    ))
}

/// Parses a workload; `spec` has the values of keys not given.
fn parse_spec(mut spec: WorkloadSpec, text: &str) -> Result<WorkloadSpec, String> {
    let mut typing = None;
    for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("expected KEY=VALUE, found {pair:?}"))?;
        let key = key.trim();
        let value = value.trim();
        let within = |why: String| format!("{key}: {why}, found {value:?}");
        let number = || value.parse().map_err(|_| within("expected a number".into()));
        match key {
            "name" => spec.name = value.into(),
            "kind" => spec.kind = value.parse().map_err(within)?,
            "weight" => spec.weight = number()?,
            "prompts" => spec.files = vec![value.into()],
            "prompt-chars" => spec.prompt = value.parse().map_err(within)?,
            "output-chars" => spec.output = value.parse().map_err(within)?,
            "rate" => spec.rate = number()?,
            "pause" => spec.pause = format::duration_or_zero(value).map_err(within)?,
            other => return Err(format!("expected a key of a workload, found {other:?}")),
        }
        typing = typing.or(Some(key).filter(|key| ["rate", "pause"].contains(key)));
    }
    match typing.filter(|_| spec.kind != WorkloadKind::Edit) {
        Some(key) => Err(format!("{key}: expected no value without kind=edit")),
        None => Ok(spec),
    }
}
