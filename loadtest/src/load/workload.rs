//! Workloads: what the user specifies, what the report shows, and the requests that a workload draws.

use super::{
    length::{Length, MAX_LENGTH},
    settings::SentSettings,
    typing::TypingSpec,
};
use crate::{
    client::connection::ConnectionPool,
    error::{Error, Result},
    measure::request_timer::ClientTimer,
};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::{future::Future, path::PathBuf, pin::Pin, time::Duration};
use tonic::Status;

/// Kind of workload for models that summarize documents.
pub const SUMMARIZE: &str = "summarize";

/// Kind of workload that edits documents.
pub const EDIT: &str = "edit";

/// Where prompts come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PromptSource {
    /// Excerpts of the text, with this length.
    Excerpts(Length),
    /// Lines of the text.
    Lines,
    /// Whole files, or the lines of a JSON lines file.
    Documents,
}

impl std::fmt::Display for PromptSource {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Excerpts(length) => length.fmt(out),
            Self::Lines => out.write_str("lines"),
            Self::Documents => out.write_str("documents"),
        }
    }
}

/// Workload as the user specified it.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadSpec {
    /// Name in reports.
    pub name: String,
    /// Name of its kind.
    pub kind: String,
    /// Model, if it is not the measured one.
    pub model: Option<String>,
    /// True if that model pools; false if `model` is absent.
    pub pools: bool,
    /// Share of the requests, relative to the sum of all weights.
    pub weight: f64,
    /// Text files.
    pub files: Vec<PathBuf>,
    /// Where in the files prompts come from.
    pub prompts: PromptSource,
    /// Characters to generate.
    pub output: Length,
    /// Characters of a common prefix, in addition to each prompt's own.
    pub shared_prefix: u64,
    /// Number of different common prefixes.
    pub prefixes: u64,
    /// Sampling temperature.
    pub temperature: Option<f32>,
    /// Characters of each message of a document upload.
    pub chunk_chars: u64,
    /// Beam size for summaries; absent: the model's default.
    pub beam: Option<u32>,
    /// Typist of documents that are edited.
    pub typing: TypingSpec,
    /// Maximum characters of prompt and answer that the model allows.
    pub max_symbols: u64,
    /// Seed of the random number generator.
    pub seed: u64,
}

/// Workload as it is reported.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadInfo {
    /// Name.
    pub name: String,
    /// Name of its kind.
    pub kind: String,
    /// Model, if it is not the measured one.
    pub model: Option<String>,
    /// Share of the requests, relative to the sum of all weights.
    pub weight: f64,
    /// Source of its text.
    pub text: String,
    /// Lengths of prompts in characters, or `lines`, or `documents`.
    pub prompt_chars: String,
    /// Characters of a common prefix, in addition to `prompt_chars`.
    pub shared_prefix_chars: u64,
    /// Number of different common prefixes.
    pub prefixes: u64,
    /// Requested characters.
    pub output_chars: String,
    /// Sampling temperature; absent: the server's default.
    pub temperature: Option<f32>,
    /// Characters of each message of a document upload; absent for other kinds.
    pub chunk_chars: Option<u64>,
    /// Beam size for summaries; absent: the model's default.
    pub beam: Option<u32>,
    /// Generation settings in force by their API names, in words. Empty in reports of versions that did not record them.
    #[serde(default)]
    pub settings: SentSettings,
}

/// Where requests go, and how.
#[derive(Debug)]
pub struct RequestTarget {
    /// Connections to the server.
    pub pool: ConnectionPool,
    /// Model.
    pub model: String,
    /// True to request segment boundaries.
    pub boundaries: bool,
    /// Time limit of a request.
    pub timeout: Duration,
}

/// Boxed future of a request, so that [`PreparedRequest`] is usable as `dyn`.
pub type SendFuture<'a> = Pin<Box<dyn Future<Output = std::result::Result<(), Status>> + Send + 'a>>;

/// Kind of requests.
pub trait Workload: Send + Sync {
    /// Describes the workload for the report.
    fn info(&self) -> WorkloadInfo;

    /// Draws a request. Fails only if an invariant is broken.
    fn draw(&self, rng: &mut ChaCha8Rng) -> Result<Box<dyn PreparedRequest>>;
}

/// Request ready to be sent, to several models if need be, each time with the same content.
pub trait PreparedRequest: Send + Sync {
    /// Sends the request, reads the answer to its end, and records every message with `timer`.
    fn send<'a>(&'a self, target: &'a RequestTarget, timer: &'a mut ClientTimer) -> SendFuture<'a>;

    /// Returns the maximum characters of the answer.
    fn max_chars(&self) -> u64;
}

impl WorkloadSpec {
    /// Returns a workload of generation requests with prompts and answers of fixed length.
    pub fn fixed(name: &str, prompt_chars: u64, output_chars: u64) -> Self {
        Self {
            name: name.into(),
            kind: "generate".into(),
            model: None,
            pools: false,
            weight: 1.0,
            files: Vec::new(),
            prompts: PromptSource::Excerpts(Length::Fixed(prompt_chars)),
            output: Length::Fixed(output_chars),
            shared_prefix: 0,
            prefixes: 1,
            temperature: None,
            chunk_chars: 7,
            beam: None,
            typing: TypingSpec::default(),
            max_symbols: 1 << 20,
            seed: 1,
        }
    }

    /// Checks the options that every kind has. Fails if one is out of bounds.
    pub fn check(&self) -> Result<()> {
        let Self { weight, shared_prefix, prefixes, temperature, max_symbols, .. } = self;
        if !(weight.is_finite() && *weight > 0.0) {
            return Err(Error::option("--workload weight", weight, "a number above 0"));
        }
        if !(1..=MAX_LENGTH).contains(prefixes) {
            return Err(Error::option("--prefixes", prefixes, format!("1 to {MAX_LENGTH}")));
        }
        if let Some(temperature) = temperature.filter(|temperature| !(0.0..=100.0).contains(temperature)) {
            return Err(Error::option("--temperature", temperature, "0 to 100"));
        }
        let prompt = match self.prompts {
            PromptSource::Excerpts(length) => length.longest().unwrap_or(1),
            PromptSource::Lines | PromptSource::Documents => 1,
        };
        if !(1..=MAX_LENGTH).contains(&self.chunk_chars) {
            return Err(Error::option("--chunk-chars", self.chunk_chars, format!("1 to {MAX_LENGTH}")));
        }
        // a summarizing model's limit is in tokens, which only the server can count
        if self.kind == SUMMARIZE {
            return Ok(());
        }
        let longest = shared_prefix.saturating_add(prompt).saturating_add(self.output.longest().unwrap_or(1));
        if longest > *max_symbols {
            return Err(Error::option(
                format!("workload {}: --shared-prefix, --prompt-chars and --output-chars in sum", self.name),
                longest,
                format!("at most {max_symbols} characters, the model's limit (limits.max_symbols)"),
            ));
        }
        Ok(())
    }
}
