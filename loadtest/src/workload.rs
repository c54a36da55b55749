//! Workloads: what the user specifies, what the report shows, and the requests that a workload draws.

use crate::client::{ConnectionPool, ModelInfo};
use crate::error::{Error, Result};
use crate::timer::ClientTimer;
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp, LogNormal, Normal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;
use weir_client::quoted;
use weir_measure::format;
use weir_proto::v1::Until;

/// Kind of workload for models that summarize documents.
pub const SUMMARIZE: &str = "summarize";

/// Kind of workload that edits documents.
pub const EDIT: &str = "edit";

/// Where prompts come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PromptSource {
    /// Excerpts of the text, with this length.
    Excerpts(Length),
    Lines,
    /// Whole files, or the lines of a JSON lines file.
    Documents,
}

impl fmt::Display for PromptSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Excerpts(length) => length.fmt(out),
            Self::Lines => out.write_str("lines"),
            Self::Documents => out.write_str("documents"),
        }
    }
}

impl FromStr for PromptSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "lines" => Ok(Self::Lines),
            "documents" => Ok(Self::Documents),
            length => length.parse().map(Self::Excerpts),
        }
    }
}

/// Workload as the user specified it, with the options of `WorkloadArgs`.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadSpec {
    pub name: String,
    pub kind: String,
    pub model: Option<String>,
    /// True if that model pools; false if `model` is absent.
    pub pools: bool,
    pub weight: f64,
    pub files: Vec<PathBuf>,
    pub prompts: PromptSource,
    pub output: Length,
    pub shared_prefix: u64,
    pub prefixes: u64,
    pub temperature: Option<f32>,
    pub chunk_chars: u64,
    pub beam: Option<u32>,
    pub typing: TypingSpec,
    /// Maximum characters of prompt and answer that the model allows.
    pub max_symbols: u64,
    pub seed: u64,
}

/// Workload as it is reported.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadInfo {
    pub name: String,
    pub kind: String,
    pub model: Option<String>,
    pub weight: f64,
    pub text: String,
    pub prompt_chars: String,
    pub shared_prefix_chars: u64,
    pub prefixes: u64,
    pub output_chars: String,
    /// Sampling temperature; absent: the server's default.
    pub temperature: Option<f32>,
    /// Characters of each message of a document upload; absent for other kinds.
    pub chunk_chars: Option<u64>,
    /// Beam size for summaries; absent: the model's default.
    pub beam: Option<u32>,
    /// Generation settings in force by their API names, in words.
    pub settings: SentSettings,
}

/// Where requests go, and how.
#[derive(Debug)]
pub struct RequestTarget {
    pub pool: ConnectionPool,
    pub model: String,
    /// True to request segment boundaries.
    pub boundaries: bool,
    /// Time limit of a request.
    pub timeout: Duration,
}

/// Boxed future of a request, so that [`PreparedRequest`] is usable as `dyn`.
pub type SendFuture<'a> = Pin<Box<dyn Future<Output = std::result::Result<(), Status>> + Send + 'a>>;

pub(crate) struct WorkloadKind {
    pub(crate) name: &'static str,
    /// Fails if an option is out of this kind's bounds.
    pub(crate) check: fn(&WorkloadSpec) -> Result<()>,
    /// Adds to a description for the report what only this kind has.
    pub(crate) describe: fn(&WorkloadSpec, &PromptSet, &mut WorkloadInfo),
    /// Draws a request. Fails only if an invariant is broken.
    pub(crate) draw: fn(&WorkloadSpec, &PromptSet, &mut ChaCha8Rng) -> Result<Box<dyn PreparedRequest>>,
}

/// Workload with the texts of its prompts.
pub(crate) struct Workload {
    spec: WorkloadSpec,
    prompts: PromptSet,
    kind: &'static WorkloadKind,
}

impl Workload {
    /// Builds the workload. Fails if an option is out of bounds, or a file cannot be used.
    pub(crate) fn new(spec: &WorkloadSpec, kind: &'static WorkloadKind) -> Result<Self> {
        spec.check()?;
        (kind.check)(spec)?;
        Ok(Self { spec: spec.clone(), prompts: PromptSet::read(spec.prompts, &spec.files)?, kind })
    }

    /// Describes the workload for the report.
    pub(crate) fn info(&self) -> WorkloadInfo {
        let WorkloadSpec { name, kind, model, weight, prompts, output, .. } = &self.spec;
        let mut info = WorkloadInfo {
            name: name.clone(),
            kind: kind.clone(),
            model: model.clone(),
            weight: *weight,
            text: self.prompts.text.name.clone(),
            prompt_chars: prompts.to_string(),
            output_chars: output.to_string(),
            ..WorkloadInfo::default()
        };
        (self.kind.describe)(&self.spec, &self.prompts, &mut info);
        info
    }

    /// Draws a request. Fails only if an invariant is broken.
    pub(crate) fn draw(&self, rng: &mut ChaCha8Rng) -> Result<Box<dyn PreparedRequest>> {
        (self.kind.draw)(&self.spec, &self.prompts, rng)
    }
}

/// Request ready to be sent, to several models if need be, each time with the same content.
pub trait PreparedRequest: Send + Sync {
    /// Sends the request, reads the answer to its end, and records every message with `timer`.
    fn send<'a>(&'a self, target: &'a RequestTarget, timer: &'a mut ClientTimer) -> SendFuture<'a>;

    /// Returns the maximum characters of the answer.
    fn max_chars(&self) -> u64;
}

impl WorkloadSpec {
    /// Fails if an option that all kinds have is out of bounds.
    fn check(&self) -> Result<()> {
        if !(self.weight.is_finite() && self.weight > 0.0) {
            return Err(Error::option("--workload weight", self.weight, "a number above 0"));
        }
        Error::check_range("--prefixes", self.prefixes, 1..=MAX_LENGTH)?;
        Error::check_range("--temperature", self.temperature.unwrap_or(0.0), 0.0..=100.0)?;
        Error::check_range("--chunk-chars", self.chunk_chars, 1..=MAX_LENGTH)
    }

    /// Fails if a prompt with its answer may exceed the model's limit.
    pub(crate) fn check_length(&self) -> Result<()> {
        let Self { shared_prefix, max_symbols, .. } = self;
        let prompt = match self.prompts {
            PromptSource::Excerpts(length) => length.longest().unwrap_or(1),
            PromptSource::Lines | PromptSource::Documents => 1,
        };
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

/// Standard deviation of the logarithm of the times between keystrokes. The times of a fast typist and a slow one differ, but
/// both are skewed to the right like this.
const SIGMA: f64 = 0.5;
/// Most keystrokes a second.
const MAX_RATE: f64 = 1000.0;
/// Most completions that a server returns.
const MAX_COUNT: u32 = 16;

/// A typist, and the completions that each keystroke asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TypingSpec {
    /// Keystrokes a second, on average.
    pub rate: f64,
    /// Time from the first completions of a document to the first gap.
    pub pause: Duration,
    /// Completions.
    pub count: u32,
    /// The end of each completion.
    pub until: Until,
}

impl Default for TypingSpec {
    fn default() -> Self {
        Self { rate: 10.0, pause: Duration::ZERO, count: 3, until: Until::Word }
    }
}

/// Names of the ends of completions.
const ENDS: [(&str, Until); 4] =
    [("word", Until::Word), ("line", Until::Line), ("segment", Until::Segment), ("max_chars", Until::MaxChars)];

impl TypingSpec {
    /// Fails if a value is out of bounds.
    pub(crate) fn check(&self) -> Result<()> {
        if !(0.1..=MAX_RATE).contains(&self.rate) {
            let expected = format!("0.1 to {MAX_RATE} keystrokes/s");
            return Err(Error::option("--workload rate", self.rate, expected));
        }
        Error::check_range("--workload count", self.count, 1..=MAX_COUNT)
    }

    /// Returns the end of completions with this name. Fails if there is none.
    pub(crate) fn end(name: &str) -> Result<Until, String> {
        let known = ENDS.iter().find(|(known, _)| *known == name);
        let names = || ENDS.map(|(name, _)| name).join(", ");
        known.map(|(_, end)| *end).ok_or_else(|| format!("expected one of {}", names()))
    }

    pub(crate) fn end_name(&self) -> &'static str {
        ENDS.iter().find(|(_, end)| *end == self.until).map_or("word", |(name, _)| *name)
    }

    /// Draws the log-normal times before `count` keystrokes, with the mean 1 / `rate`. Never fails after [`Self::check`].
    pub(crate) fn gaps(&self, rng: &mut impl Rng, count: usize) -> Result<Vec<Duration>> {
        // the mean of a log-normal distribution is exp(mu + sigma² / 2)
        let mu = -self.rate.ln() - SIGMA * SIGMA / 2.0;
        let gaps = LogNormal::new(mu, SIGMA).map_err(|error| Error::Internal(format!("a typist: {error}")))?;
        Ok(gaps.sample_iter(rng).take(count).map(Duration::from_secs_f64).collect())
    }
}

pub(crate) const MAX_LENGTH: u64 = 1 << 20;

/// Distribution of a length in characters. Draws beyond the bounds are clamped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Length {
    /// Always the same: `256`.
    Fixed(u64),
    /// Uniform from the first to the second: `64..512`.
    Uniform(u64, u64),
    /// `normal:MEAN:DEVIATION`.
    Normal(f64, f64),
    /// `lognormal:MEDIAN:SIGMA`; sigma is the logarithm's.
    LogNormal(f64, f64),
    /// `exponential:MEAN`.
    Exponential(f64),
}

impl Length {
    /// Draws a length from 1 to `max`. Never fails for a parsed length.
    pub fn draw(&self, rng: &mut impl Rng, max: u64) -> Result<u64> {
        let wrong = |error: &dyn fmt::Display| Error::Internal(format!("{self}: {error}"));
        let drawn = match *self {
            Self::Fixed(length) => length as f64,
            Self::Uniform(from, to) => rng.random_range(from..=to) as f64,
            Self::Normal(mean, deviation) => Normal::new(mean, deviation).map_err(|e| wrong(&e))?.sample(rng),
            Self::LogNormal(median, sigma) => LogNormal::new(median.ln(), sigma).map_err(|e| wrong(&e))?.sample(rng),
            Self::Exponential(mean) => Exp::new(mean.recip()).map_err(|e| wrong(&e))?.sample(rng),
        };
        Ok((drawn.round().max(1.0) as u64).min(max.max(1)))
    }

    /// Returns the upper bound of the length, if the distribution has one.
    pub fn longest(&self) -> Option<u64> {
        match *self {
            Self::Fixed(length) | Self::Uniform(_, length) => Some(length),
            Self::Normal(..) | Self::LogNormal(..) | Self::Exponential(_) => None,
        }
    }
}

impl FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let expected = || {
            format!(
                "expected N, FROM..TO, normal:MEAN:DEVIATION, lognormal:MEDIAN:SIGMA or exponential:MEAN, in characters \
                 from 1 to {MAX_LENGTH}, sigma at most 10"
            )
        };
        let integer = |text: &str| text.trim().parse().ok().filter(|length| (1..=MAX_LENGTH).contains(length));
        let number = |text: &str, min: f64, max: f64| {
            text.trim().parse::<f64>().ok().filter(|number| (min..=max).contains(number))
        };
        let max = MAX_LENGTH as f64;
        let read = || match text.split(':').collect::<Vec<_>>()[..] {
            ["normal", mean, deviation] => Some(Self::Normal(number(mean, 1.0, max)?, number(deviation, 0.0, max)?)),
            ["lognormal", median, sigma] => Some(Self::LogNormal(number(median, 1.0, max)?, number(sigma, 0.0, 10.0)?)),
            ["exponential", mean] => Some(Self::Exponential(number(mean, 1.0, max)?)),
            [plain] => match plain.split_once("..") {
                Some((from, to)) => {
                    let from = integer(from)?;
                    let to = integer(to)?;
                    (from <= to).then_some(Self::Uniform(from, to))
                }
                None => integer(plain).map(Self::Fixed),
            },
            _ => None,
        };
        read().ok_or_else(expected)
    }
}

impl fmt::Display for Length {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(out, "{length}"),
            Self::Uniform(from, to) => write!(out, "{from}..{to}"),
            Self::Normal(mean, deviation) => write!(out, "normal:{mean}:{deviation}"),
            Self::LogNormal(median, sigma) => write!(out, "lognormal:{median}:{sigma}"),
            Self::Exponential(mean) => write!(out, "exponential:{mean}"),
        }
    }
}

/// English in lower case: Wikipedia, CC BY-SA 4.0.
const SAMPLE: &str = include_str!("english.txt");
const SAMPLE_NAME: &str = "bundled English sample";
/// Maximum bytes of a file.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone)]
pub(crate) struct PromptText {
    /// Names of the files, or of the bundled sample.
    pub name: String,
    chars: Vec<char>,
}

impl PromptText {
    /// Reads and concatenates files, or returns the bundled sample. Fails if a file is missing, empty, too large or not UTF-8.
    pub(crate) fn read(files: &[PathBuf]) -> Result<Self> {
        if files.is_empty() {
            return Ok(Self { name: SAMPLE_NAME.into(), chars: SAMPLE.chars().collect() });
        }
        let mut chars = Vec::new();
        for file in files {
            chars.extend(read_file(file)?.chars());
        }
        Ok(Self { name: file_names(files), chars })
    }

    /// Reads documents, and a text without characters that carries their common name. Each line of a `.jsonl` file is an object
    /// with a document as `text`, `document` or `article`; every other file is one document. Fails if there is no file, or one is
    /// missing, empty, too large, or malformed.
    pub(crate) fn documents(files: &[PathBuf]) -> Result<(Self, Vec<String>)> {
        if files.is_empty() {
            return Err(Error::option("--prompts", "no file", "files, because the prompts are documents"));
        }
        let mut documents = Vec::new();
        for file in files {
            let text = read_file(file)?;
            if file.extension().is_some_and(|extension| extension == "jsonl") {
                let expected = "a JSON object with a text as `text`, `document` or `article`";
                for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                    let field = || format!("--prompts: {}, line {}", file.display(), number + 1);
                    let malformed = || Error::option(field(), "another value", expected);
                    let object: serde_json::Value = serde_json::from_str(line).map_err(|_| malformed())?;
                    let value = ["text", "document", "article"].iter().find_map(|key| object.get(key)?.as_str());
                    let document = value.filter(|document| !document.trim().is_empty()).ok_or_else(malformed)?;
                    documents.push(document.to_owned());
                }
            } else {
                documents.push(text);
            }
        }
        Ok((Self { name: file_names(files), chars: Vec::new() }, documents))
    }

    /// Reads documents as [`documents`](Self::documents) does, as one text with a newline between two of them.
    pub(crate) fn joined_documents(files: &[PathBuf]) -> Result<Self> {
        let (text, documents) = Self::documents(files)?;
        Ok(Self { chars: documents.join("\n").chars().collect(), ..text })
    }

    /// Returns the lines that are not blank. Fails if there are none.
    pub(crate) fn lines(&self) -> Result<Vec<String>> {
        let text: String = self.chars.iter().collect();
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
        if lines.is_empty() {
            Err(Error::option("--prompts", quoted(&self.name), "text with lines in it"))
        } else {
            Ok(lines)
        }
    }

    pub(crate) fn head(&self, length: usize) -> String {
        self.chars.iter().take(length).collect()
    }

    /// Returns `length` characters from a random position, at the start of a word if the text has words. Wraps around at the end.
    pub(crate) fn excerpt(&self, rng: &mut impl Rng, length: u64) -> String {
        let count = self.chars.len();
        if count == 0 {
            return String::new();
        }
        let start = rng.random_range(0..count);
        let word = (0..count).find(|ahead| self.chars[(start + ahead + count - 1) % count].is_whitespace());
        let start = start + word.unwrap_or(0);
        (0..length as usize).map(|ahead| self.chars[(start + ahead) % count]).collect()
    }
}

pub(crate) struct PromptSet {
    source: PromptSource,
    pub(crate) text: PromptText,
    /// Lines or documents; empty if prompts are excerpts of the text.
    pub(crate) items: Vec<Arc<str>>,
}

impl PromptSet {
    pub(crate) fn read(source: PromptSource, files: &[PathBuf]) -> Result<Self> {
        let (text, items) = match source {
            PromptSource::Documents => PromptText::documents(files)?,
            PromptSource::Excerpts(_) => (PromptText::read(files)?, Vec::new()),
            PromptSource::Lines => {
                let text = PromptText::read(files)?;
                let lines = text.lines()?;
                (text, lines)
            }
        };
        Ok(Self { source, text, items: items.into_iter().map(Arc::from).collect() })
    }

    /// Draws a prompt. An excerpt has at most `max` characters.
    pub(crate) fn draw(&self, rng: &mut impl Rng, max: u64) -> Result<Arc<str>> {
        if let PromptSource::Excerpts(length) = self.source {
            let length = length.draw(rng, max)?;
            return Ok(self.text.excerpt(rng, length).into());
        }
        let item = self.items.get(rng.random_range(0..self.items.len().max(1)));
        item.cloned().ok_or_else(|| Error::Internal("no prompts".into()))
    }
}

fn file_names(files: &[PathBuf]) -> String {
    let name = |file: &PathBuf| file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
    files.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn read_file(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    File::open(file).and_then(|opened| opened.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(Error::file(
        "--prompts",
        "read",
        file,
    ))?;
    let field = || format!("--prompts: {}", file.display());
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::option(field(), "a larger file", format!("at most {MAX_BYTES} bytes")));
    }
    if bytes.is_empty() {
        return Err(Error::option(field(), "an empty file", "a text"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        Error::option(field(), format!("an invalid byte at offset {}", error.utf8_error().valid_up_to()), "UTF-8 text")
    })?;
    if text.trim().is_empty() {
        return Err(Error::option(field(), "a blank file", "a text"));
    }
    Ok(text)
}

/// Settings by their API names, each with a description of its value.
pub(crate) type SentSettings = BTreeMap<String, String>;

/// Value of a setting that is not sent and that the server does not report.
const SERVER_DEFAULT: &str = "server's default";
/// Value of a setting that is not sent and that comes from the model.
const MODEL_DEFAULT: &str = "model's default";

fn settings_map<const N: usize>(settings: [(&str, String); N]) -> SentSettings {
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(crate) fn generation_settings(temperature: Option<f32>) -> SentSettings {
    settings_map([
        ("temperature", temperature.map_or(SERVER_DEFAULT.into(), |temperature| temperature.to_string())),
        ("top_k", SERVER_DEFAULT.into()),
        ("top_p", SERVER_DEFAULT.into()),
        ("min_p", SERVER_DEFAULT.into()),
        ("repetition_penalty", SERVER_DEFAULT.into()),
        ("seed", "sent, different in each request".into()),
        ("max_chars", "sent, as many as requested".into()),
        ("min_chars", "sent, the same".into()),
        ("ignore_eos", "true".into()),
    ])
}

/// Returns the settings of summarization requests, which use beam search instead of sampling.
pub(crate) fn summarization_settings(beam: Option<u32>) -> SentSettings {
    settings_map([
        ("beam_size", beam.map_or(MODEL_DEFAULT.into(), |beam| beam.to_string())),
        ("length_penalty", MODEL_DEFAULT.into()),
        ("no_repeat_ngram", MODEL_DEFAULT.into()),
        ("max_tokens", "sent, as many as requested".into()),
        ("min_tokens", "sent, the same".into()),
        ("sampling", "none: beam search".into()),
        ("cut", "true".into()),
    ])
}

/// Returns the settings of sessions that edit documents.
pub(crate) fn edit_settings(typing: &TypingSpec) -> SentSettings {
    settings_map([
        ("count", format!("sent, {}", typing.count)),
        ("until", format!("sent, {}", typing.end_name())),
        ("max_chars", SERVER_DEFAULT.into()),
        ("rate", format!("{} keystrokes/s, log-normal gaps", format::digits(typing.rate))),
        ("pause", format::time(typing.pause.as_nanos() as f64)),
    ])
}

/// Replaces settings left to the model by the default that the server reports, where all models have the same.
pub(crate) fn fill_model_defaults(settings: &mut SentSettings, models: &[&ModelInfo]) {
    for (name, value) in settings.iter_mut().filter(|(_, value)| *value == MODEL_DEFAULT) {
        let mut defaults = models.iter().map(|model| model.documents.as_ref()?.default_of(name));
        let first = defaults.next().flatten();
        if let Some(first) = first.filter(|first| defaults.all(|other| other.as_ref() == Some(first))) {
            *value = format!("{first} ({MODEL_DEFAULT}, reported by the server)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::DocumentInfo;
    use rand::SeedableRng;

    #[test]
    fn gaps_have_the_rate_and_the_spread_and_follow_the_seed() {
        let typing = TypingSpec { rate: 8.0, ..TypingSpec::default() };
        let gaps = |seed| typing.gaps(&mut ChaCha8Rng::seed_from_u64(seed), 20_000).unwrap();
        let drawn = gaps(1);
        let mean = drawn.iter().map(Duration::as_secs_f64).sum::<f64>() / 20_000.0;
        assert!((mean * 8.0 - 1.0).abs() < 0.02, "{mean}");
        let logs: Vec<f64> = drawn.iter().map(|gap| gap.as_secs_f64().ln()).collect();
        let middle = logs.iter().sum::<f64>() / 20_000.0;
        let variance = logs.iter().map(|log| (log - middle).powi(2)).sum::<f64>() / 20_000.0;
        assert!((variance.sqrt() - SIGMA).abs() < 0.02, "{variance}");
        assert_eq!(drawn, gaps(1));
        assert_ne!(drawn, gaps(2));
    }

    fn mean(text: &str) -> f64 {
        let length = Length::from_str(text).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        assert_eq!(length.to_string(), text);
        let drawn: Vec<_> = (0..20_000).map(|_| length.draw(&mut rng, 100_000).unwrap()).collect();
        assert!(drawn.iter().all(|length| (1..=100_000).contains(length)));
        drawn.iter().sum::<u64>() as f64 / drawn.len() as f64
    }

    #[test]
    fn distributions_have_their_means() {
        assert_eq!(mean("256"), 256.0);
        assert!((mean("64..512") / 288.0 - 1.0).abs() < 0.02);
        assert!((mean("normal:300:20") / 300.0 - 1.0).abs() < 0.02);
        // exp(sigma² / 2) times the median
        assert!((mean("lognormal:200:0.5") / (200.0 * 0.125f64.exp()) - 1.0).abs() < 0.02);
        assert!((mean("exponential:500") / 500.0 - 1.0).abs() < 0.03);
    }

    #[test]
    fn lengths_stay_within_their_bounds() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let wide = Length::from_str("normal:50:500").unwrap();
        let drawn: Vec<_> = (0..1000).map(|_| wide.draw(&mut rng, 80).unwrap()).collect();
        assert!(drawn.contains(&1) && drawn.contains(&80) && drawn.iter().all(|length| (1..=80).contains(length)));
    }

    #[test]
    fn invalid_lengths_are_rejected() {
        for wrong in
            ["", "0", "-3", "5..4", "0..4", "normal:5", "normal:0:1", "lognormal:5:11", "exponential:nan", "9e9", "x"]
        {
            let message = Length::from_str(wrong).unwrap_err();
            assert!(message.contains("FROM..TO"), "{wrong}: {message}");
        }
    }

    #[test]
    fn excerpts_begin_with_words_and_wrap_around() {
        let text = PromptText { name: String::new(), chars: "one two three".chars().collect() };
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut excerpts: Vec<_> = (0..200).map(|_| text.excerpt(&mut rng, 5)).collect();
        excerpts.sort();
        excerpts.dedup();
        assert_eq!(excerpts, ["three", "two t"]);
        assert_eq!(text.excerpt(&mut rng, 40).chars().count(), 40);
    }

    fn written(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn documents_are_files_or_lines_of_json() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| written(&folder, name, text.as_bytes());
        let lines = file("set.jsonl", "{\"text\": \"one\", \"id\": 1}\n\n{\"article\": \"two\\nlines\"}\n");
        let files = [lines, file("a.txt", "three\n\nfour")];
        let (text, documents) = PromptText::documents(&files).unwrap();
        assert_eq!((text.name.as_str(), documents.len()), ("set.jsonl, a.txt", 3));
        assert_eq!(documents, ["one", "two\nlines", "three\n\nfour"]);
        assert_eq!(PromptText::joined_documents(&files).unwrap().head(99), "one\ntwo\nlines\nthree\n\nfour");
        for (wrong, line) in
            [("{\"text\": 3}", "line 1"), ("{\"text\": \"x\"}\nno", "line 2"), ("{\"text\": \" \"}", "line 1")]
        {
            let message = PromptText::documents(&[file("w.jsonl", wrong)]).unwrap_err().to_string();
            assert!(message.contains("w.jsonl") && message.contains(line), "{message}");
        }
        assert!(PromptText::documents(&[]).unwrap_err().to_string().contains("no file"));
    }

    #[test]
    fn files_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| written(&folder, name, bytes);
        let message = |path| PromptText::read(&[path]).unwrap_err().to_string();
        assert!(message(file("empty", b"")).contains("an empty file"));
        assert!(message(file("bytes", b"abc\xff")).contains("byte at offset 3"));
        assert!(message(folder.path().join("none")).contains("none"));
        let text = PromptText::read(&[file("a", "ä\n\nb \n".as_bytes()), file("b", b"c")]).unwrap();
        assert_eq!((text.chars.len(), text.name.as_str()), (7, "a, b"));
        assert_eq!(text.lines().unwrap(), ["ä", "b", "c"]);
        assert_eq!(text.head(3), "ä\n\n");
    }

    #[test]
    fn model_defaults_are_filled_in_where_the_models_agree() {
        let model = |beam_size, length_penalty| ModelInfo {
            documents: Some(DocumentInfo { beam_size, length_penalty, ..Default::default() }),
            ..Default::default()
        };
        let mut settings = summarization_settings(None);
        fill_model_defaults(&mut settings, &[&model(2, 1.0), &model(2, 0.8)]);
        assert_eq!(settings["beam_size"], "2 (model's default, reported by the server)");
        assert_eq!(settings["length_penalty"], MODEL_DEFAULT);
        let mut settings = summarization_settings(Some(3));
        fill_model_defaults(&mut settings, &[&model(2, 1.0)]);
        assert_eq!((settings["beam_size"].as_str(), settings["sampling"].starts_with("none")), ("3", true));
        // the server does not report defaults
        let mut settings = summarization_settings(None);
        fill_model_defaults(&mut settings, &[&ModelInfo::default()]);
        assert_eq!(settings["beam_size"], MODEL_DEFAULT);
        let texts = generation_settings(Some(0.7));
        assert_eq!((texts["temperature"].as_str(), texts["top_p"].as_str()), ("0.7", SERVER_DEFAULT));
    }
}
