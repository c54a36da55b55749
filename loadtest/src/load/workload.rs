//! What requests ask for: the kinds of workloads there are, and mixes of several.
//!
//! What a request asks for is a function of the seed and its number alone.

use super::{
    generate,
    length::{Length, MAX_LENGTH},
    settings::SentSettings,
    summarize,
};
use crate::{
    client::connection::ConnectionPool,
    error::{Error, Result},
    measure::request_timer::RequestTimer,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, weighted::WeightedIndex};
use serde::{Deserialize, Serialize};
use std::{collections::HashSet, future::Future, path::PathBuf, pin::Pin, time::Duration};
use tonic::Status;

/// The most workloads of a mix.
pub const MAX_WORKLOADS: usize = 16;

/// The kinds there are: a line for each.
const KINDS: [WorkloadKind; 2] = [
    WorkloadKind { name: "generate", build: generate::build },
    WorkloadKind { name: "summarize", build: summarize::build },
];
/// The kind of workloads for models that read documents.
pub const SUMMARIZE: &str = "summarize";

struct WorkloadKind {
    name: &'static str,
    build: fn(&WorkloadSpec) -> Result<Box<dyn Workload>>,
}

/// Where prompts are from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PromptSource {
    /// Parts of the text, as long as this.
    Parts(Length),
    /// Its lines.
    Lines,
    /// Each file, or each line of a file of JSON lines.
    Documents,
}

impl std::fmt::Display for PromptSource {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Parts(length) => length.fmt(out),
            Self::Lines => out.write_str("lines"),
            Self::Documents => out.write_str("documents"),
        }
    }
}

/// A workload, as it is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadSpec {
    /// What it is called.
    pub name: String,
    /// One of the kinds.
    pub kind: String,
    /// The model, where it is not the one that is measured.
    pub model: Option<String>,
    /// Whether that model pools; nothing is known of none.
    pub pools: bool,
    /// Its share of the requests, in units of all weights together.
    pub weight: f64,
    /// Files of text.
    pub files: Vec<PathBuf>,
    /// What of them.
    pub prompts: PromptSource,
    /// Characters to generate.
    pub output: Length,
    /// Characters that prompts begin with and have in common, beside their own.
    pub shared_prefix: u64,
    /// How many different such beginnings there are.
    pub prefixes: u64,
    /// Of sampling.
    pub temperature: Option<f32>,
    /// Characters of a message in which a document is sent.
    pub chunk_chars: u64,
    /// Hypotheses of a summary; the model's default if none.
    pub beam: Option<u32>,
    /// The most characters of prompt and answer that the model takes.
    pub max_symbols: u64,
    /// Of all draws.
    pub seed: u64,
}

/// A workload, as it is reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadInfo {
    /// What it is called.
    pub name: String,
    /// One of the kinds.
    pub kind: String,
    /// The model, where it is not the one that is measured.
    pub model: Option<String>,
    /// Its share of the requests, in units of all weights together.
    pub weight: f64,
    /// Where its text is from.
    pub text: String,
    /// Lengths of prompts in characters, or `lines`.
    pub prompt_chars: String,
    /// Characters that they begin with beside that.
    pub shared_prefix_chars: u64,
    /// How many different such beginnings there are.
    pub prefixes: u64,
    /// Characters asked for.
    pub output_chars: String,
    /// Of sampling; absent: the server's default.
    pub temperature: Option<f32>,
    /// Characters of a message in which a document is sent; absent where there are none.
    pub chunk_chars: Option<u64>,
    /// Hypotheses of a summary; absent: the model's default.
    pub beam: Option<u32>,
    /// All settings of generation in force, by the API's names, in words. Empty in reports of versions that did not tell them.
    #[serde(default)]
    pub settings: SentSettings,
}

/// Whom requests go to.
#[derive(Debug)]
pub struct RequestTarget {
    /// The server.
    pub pool: ConnectionPool,
    /// The model.
    pub model: String,
    /// Whether to ask where segments end.
    pub boundaries: bool,
    /// How long a request may take.
    pub timeout: Duration,
}

/// A future that a trait can give.
pub type ResponseFuture<'a> = Pin<Box<dyn Future<Output = std::result::Result<(), Status>> + Send + 'a>>;

/// A kind of requests.
pub trait Workload: Send + Sync {
    /// What a report says of it.
    fn info(&self) -> WorkloadInfo;

    /// The request of this number.
    ///
    /// # Errors
    /// A broken invariant.
    fn draw(&self, rng: &mut ChaCha8Rng, number: u64) -> Result<Box<dyn PreparedRequest>>;
}

/// One request: it can be made of several models, and asks each for the same.
pub trait PreparedRequest: Send + Sync {
    /// Makes the request and reads the answer to its end; tells the watch of what comes when.
    fn run<'a>(&'a self, target: &'a RequestTarget, watch: &'a mut RequestTimer) -> ResponseFuture<'a>;

    /// The most characters that it can be answered with.
    fn most_chars(&self) -> u64;
}

/// Workloads, and their shares.
pub struct WorkloadMix {
    parts: Vec<Box<dyn Workload>>,
    weights: WeightedIndex<f64>,
    seed: u64,
    /// The share of requests that the client gives up in the midst.
    cancel: f64,
}

/// A request that was drawn.
pub struct DrawnRequest {
    /// Of which workload.
    pub which: usize,
    /// What it is.
    pub exchange: Box<dyn PreparedRequest>,
    /// After how many characters the client goes away, if it does.
    pub cancel_after: Option<u64>,
}

impl WorkloadMix {
    /// Of these; the client goes away in the midst of so large a share of them.
    ///
    /// # Errors
    /// None, too many, or one that is wrong.
    pub fn new(specs: &[WorkloadSpec], seed: u64, cancel: f64) -> Result<Self> {
        if !(1..=MAX_WORKLOADS).contains(&specs.len()) {
            return Err(Error::option("--workload", specs.len(), format!("given 1 to {MAX_WORKLOADS} times")));
        }
        let mut names = HashSet::new();
        if let Some(twice) = specs.iter().find(|spec| !names.insert(&spec.name)) {
            return Err(Error::option(
                "--workload name",
                &twice.name,
                "given once: figures of two could not be told apart",
            ));
        }
        let build = |spec: &WorkloadSpec| {
            let kind = KINDS.iter().find(|kind| kind.name == spec.kind).ok_or_else(|| {
                let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
                Error::option("--workload kind", &spec.kind, format!("one of {}", names.join(", ")))
            })?;
            (kind.build)(spec)
        };
        let parts = specs.iter().map(build).collect::<Result<Vec<_>>>()?;
        let weights = WeightedIndex::new(specs.iter().map(|spec| spec.weight));
        let weights = weights.map_err(|error| Error::option("--workload weight", error, "numbers above 0"))?;
        Ok(Self { parts, weights, seed, cancel })
    }

    /// How many workloads there are.
    pub fn size(&self) -> usize {
        self.parts.len()
    }

    /// The model that each asks, where this one is measured.
    pub fn models(&self, measured: &str) -> Vec<String> {
        self.info().into_iter().map(|part| part.model.unwrap_or_else(|| measured.to_owned())).collect()
    }

    /// What a report says of them.
    pub fn info(&self) -> Vec<WorkloadInfo> {
        self.parts.iter().map(|part| part.info()).collect()
    }

    /// The request of this number: always the same.
    ///
    /// # Errors
    /// A broken invariant.
    pub fn draw(&self, number: u64) -> Result<DrawnRequest> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(number);
        let which = self.weights.sample(&mut rng);
        let part = self.parts.get(which).ok_or_else(|| Error::Internal("a workload that is not there".into()))?;
        // drawn before the rest, so that what the others ask for does not depend on it
        let given_up = rng.random_bool(self.cancel);
        let share: f64 = rng.random();
        let exchange = part.draw(&mut rng, number)?;
        let cancel_after = given_up.then(|| (share * exchange.most_chars() as f64).ceil().max(1.0) as u64);
        Ok(DrawnRequest { which, exchange, cancel_after })
    }
}

impl WorkloadSpec {
    /// Checks what every kind has.
    ///
    /// # Errors
    /// The option, and its bound.
    pub fn check(&self) -> Result<()> {
        let Self { weight, shared_prefix, prefixes, temperature, max_symbols, .. } = self;
        if !(weight.is_finite() && *weight > 0.0) {
            return Err(Error::option("--workload weight", weight, "a number above 0"));
        }
        if !(1..=MAX_LENGTH).contains(prefixes) {
            return Err(Error::option("--prefixes", prefixes, format!("from 1 to {MAX_LENGTH}")));
        }
        if let Some(warmth) = temperature.filter(|warmth| !(0.0..=100.0).contains(warmth)) {
            return Err(Error::option("--temperature", warmth, "from 0 to 100"));
        }
        let prompt = match self.prompts {
            PromptSource::Parts(length) => length.longest().unwrap_or(1),
            PromptSource::Lines | PromptSource::Documents => 1,
        };
        if !(1..=MAX_LENGTH).contains(&self.chunk_chars) {
            return Err(Error::option("--chunk-chars", self.chunk_chars, format!("from 1 to {MAX_LENGTH}")));
        }
        // what fits into a model that reads documents is counted in its tokens, which only the server knows
        if self.kind == SUMMARIZE {
            return Ok(());
        }
        let longest = shared_prefix.saturating_add(prompt).saturating_add(self.output.longest().unwrap_or(1));
        if longest > *max_symbols {
            return Err(Error::option(
                format!("workload {}: --shared-prefix, --prompt-chars and --output-chars together", self.name),
                longest,
                format!("at most {max_symbols} characters, the model's limit (limits.max_symbols)"),
            ));
        }
        Ok(())
    }
}
