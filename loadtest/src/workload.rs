//! Workloads: what the user specifies, what the report shows, and the texts of the requests.

use crate::client::ConnectionPool;
use crate::error::{Error, Result};
use rand::{Rng, RngExt};
use rand_distr::{Distribution, LogNormal};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// What the requests of a workload ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkloadKind {
    /// Texts that continue prompts.
    #[default]
    Generate,
    /// Summaries of documents.
    Summarize,
    /// Completions in documents that are edited.
    Edit,
}

impl WorkloadKind {
    const ALL: [Self; 3] = [Self::Generate, Self::Summarize, Self::Edit];

    pub fn name(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Summarize => "summarize",
            Self::Edit => "edit",
        }
    }

    /// Returns the unit of its answers' lengths, after a space, unless that is the model's.
    fn unit(self) -> &'static str {
        match self {
            Self::Generate => "",
            Self::Summarize => " tokens",
            Self::Edit => " keystrokes",
        }
    }
}

impl FromStr for WorkloadKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| format!("expected one of {}", names()))
    }
}

/// Workload as the user specified it, with the options of `WorkloadArgs`.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadSpec {
    pub name: String,
    pub kind: WorkloadKind,
    pub weight: f64,
    pub files: Vec<PathBuf>,
    pub prompt: Length,
    pub output: Length,
    /// Keystrokes a second on average, of a document that is edited.
    pub rate: f64,
    /// Time from the first completions of such a document to the first keystroke.
    pub pause: Duration,
    /// Maximum symbols of prompt and answer that the model allows.
    pub max_symbols: u64,
}

/// Workload as it is reported.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkloadInfo {
    pub name: String,
    pub kind: WorkloadKind,
    pub weight: f64,
    pub text: String,
    pub prompt_chars: String,
    pub output_chars: String,
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

/// Most keystrokes a second.
const MAX_RATE: f64 = 1000.0;

impl WorkloadSpec {
    /// Fails if an option is out of bounds, or a prompt with its answer may exceed the model's limit. Only the server can count the
    /// tokens of documents.
    pub(crate) fn check(&self) -> Result<()> {
        if !(self.weight.is_finite() && self.weight > 0.0) {
            return Err(Error::option("--workload weight", self.weight, "a number above 0"));
        }
        if !(0.1..=MAX_RATE).contains(&self.rate) {
            return Err(Error::option("--workload rate", self.rate, format!("0.1 to {MAX_RATE} keystrokes/s")));
        }
        let Self { name, prompt, output, max_symbols, .. } = self;
        let longest = prompt.longest().unwrap_or(1).saturating_add(output.longest().unwrap_or(1));
        if self.kind == WorkloadKind::Summarize || longest <= *max_symbols {
            return Ok(());
        }
        let field = format!("workload {name}: --prompt-chars and --output-chars in sum");
        Err(Error::option(
            field,
            longest,
            format!("at most {max_symbols} symbols, the model's limit (limits.max_symbols)"),
        ))
    }

    /// Describes the workload for the report. `text` is the name of its text.
    pub(crate) fn info(&self, text: &str) -> WorkloadInfo {
        let Self { name, kind, weight, prompt, output, .. } = self;
        WorkloadInfo {
            name: name.clone(),
            kind: *kind,
            weight: *weight,
            text: text.to_owned(),
            prompt_chars: prompt.to_string(),
            output_chars: format!("{output}{}", kind.unit()),
        }
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
    /// `lognormal:MEDIAN:SIGMA`; sigma is the logarithm's.
    LogNormal(f64, f64),
}

impl Length {
    /// Draws a length from 1 to `max`. Never fails for a parsed length.
    pub fn draw(&self, rng: &mut impl Rng, max: u64) -> Result<u64> {
        let drawn = match *self {
            Self::Fixed(length) => length as f64,
            Self::Uniform(from, to) => rng.random_range(from..=to) as f64,
            Self::LogNormal(median, sigma) => {
                let lengths = LogNormal::new(median.ln(), sigma);
                lengths.map_err(|error| Error::Internal(format!("{self}: {error}")))?.sample(rng)
            }
        };
        Ok((drawn.round().max(1.0) as u64).min(max.max(1)))
    }

    /// Returns the upper bound of the length, if the distribution has one.
    pub fn longest(&self) -> Option<u64> {
        match *self {
            Self::Fixed(length) | Self::Uniform(_, length) => Some(length),
            Self::LogNormal(..) => None,
        }
    }
}

impl FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let integer = |text: &str| text.trim().parse().ok().filter(|length| (1..=MAX_LENGTH).contains(length));
        let number = |text: &str, min: f64, max: f64| {
            text.trim().parse::<f64>().ok().filter(|number| (min..=max).contains(number))
        };
        let read = || match text.split(':').collect::<Vec<_>>()[..] {
            ["lognormal", median, sigma] => {
                Some(Self::LogNormal(number(median, 1.0, MAX_LENGTH as f64)?, number(sigma, 0.0, 10.0)?))
            }
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
        read().ok_or_else(|| {
            format!("expected N, FROM..TO or lognormal:MEDIAN:SIGMA, from 1 to {MAX_LENGTH}, sigma at most 10")
        })
    }
}

impl fmt::Display for Length {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(out, "{length}"),
            Self::Uniform(from, to) => write!(out, "{from}..{to}"),
            Self::LogNormal(median, sigma) => write!(out, "lognormal:{median}:{sigma}"),
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
    /// Reads and concatenates files, or returns the bundled sample. Fails if a file is missing, blank, too large or not UTF-8.
    pub(crate) fn read(files: &[PathBuf]) -> Result<Self> {
        if files.is_empty() {
            return Ok(Self { name: SAMPLE_NAME.into(), chars: SAMPLE.chars().collect() });
        }
        let mut chars = Vec::new();
        for file in files {
            chars.extend(read_file(file)?.chars());
        }
        let name = |file: &PathBuf| file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { name: files.iter().map(name).collect::<Vec<_>>().join(", "), chars })
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

fn read_file(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|opened| opened.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(Error::file("--prompts", "read", file))?;
    let field = || format!("--prompts: {}", file.display());
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::option(field(), "a larger file", format!("at most {MAX_BYTES} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        Error::option(field(), format!("an invalid byte at offset {}", error.utf8_error().valid_up_to()), "UTF-8 text")
    })?;
    match text.trim().is_empty() {
        true => Err(Error::option(field(), "a blank file", "a text")),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    fn mean(text: &str) -> f64 {
        let length = Length::from_str(text).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        assert_eq!(length.to_string(), text);
        let drawn: Vec<_> = (0..20_000).map(|_| length.draw(&mut rng, 100_000).unwrap()).collect();
        assert!(drawn.iter().all(|length| (1..=100_000).contains(length)));
        drawn.iter().sum::<u64>() as f64 / drawn.len() as f64
    }

    #[test]
    fn distributions_have_their_means_and_bounds() {
        assert_eq!(mean("256"), 256.0);
        assert!((mean("64..512") / 288.0 - 1.0).abs() < 0.02);
        // exp(sigma² / 2) times the median
        assert!((mean("lognormal:200:0.5") / (200.0 * 0.125f64.exp()) - 1.0).abs() < 0.02);
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let wide = Length::from_str("lognormal:10:3").unwrap();
        let drawn: Vec<_> = (0..1000).map(|_| wide.draw(&mut rng, 80).unwrap()).collect();
        assert!(drawn.contains(&1) && drawn.contains(&80) && drawn.iter().all(|length| (1..=80).contains(length)));
    }

    #[test]
    fn invalid_lengths_are_rejected() {
        for wrong in ["", "0", "-3", "5..4", "0..4", "lognormal:5", "lognormal:5:11", "lognormal:nan:1", "9e9", "x"] {
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

    #[test]
    fn files_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let message = |path| PromptText::read(&[path]).unwrap_err().to_string();
        assert!(message(file("empty", b"")).contains("a blank file"));
        assert!(message(file("bytes", b"abc\xff")).contains("byte at offset 3"));
        assert!(message(folder.path().join("none")).contains("none"));
        let text = PromptText::read(&[file("a", "ä\n\nb \n".as_bytes()), file("b", b"c")]).unwrap();
        assert_eq!((text.chars.len(), text.name.as_str(), text.head(3)), (7, "a, b", "ä\n\n".to_owned()));
    }
}
