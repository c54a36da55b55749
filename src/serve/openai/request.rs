//! What other servers' clients ask for, as requests of `Generate`.
//!
//! The names are OpenAI's; those that it does not have are vLLM's, and `boundaries` and `max_segments` ours. Unknown names and
//! nulls are passed over, as clients for other servers expect; what cannot be had is refused, unless it is asked to do nothing.

use super::seed::Seed;
use crate::error::{Error, Result, clip};
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_proto::v1;

/// Answers that one request may ask for: prompts times `n`.
const MOST_CHOICES: usize = 64;
/// Characters that are generated unless the request tells, as OpenAI has it.
const MAX_TOKENS: u32 = 16;
/// Bytes of a value that a message repeats.
const VALUE_BYTES: usize = 64;

/// Fields by these names, of those that our own API has under others.
const NAMES: [(&str, &str); 15] = [
    ("chunk.text", "document"),
    ("sampling.temperature", "temperature"),
    ("sampling.top_k", "top_k"),
    ("sampling.top_p", "top_p"),
    ("sampling.min_p", "min_p"),
    ("sampling.repetition_penalty", "repetition_penalty"),
    ("sampling.logit_bias", "logit_bias"),
    ("stopping.max_chars", "max_tokens"),
    ("stopping.min_chars", "min_tokens"),
    ("stopping.max_segments", "max_segments"),
    ("stopping.ignore_eos", "ignore_eos"),
    ("details.top_logprobs", "logprobs"),
    ("details.boundaries", "boundaries"),
    ("details.logprobs", "logprobs"),
    ("details.echo", "echo"),
];
/// Stop strings are numbered.
const STOP: &str = "stopping.stop";
/// What the library calls a number, where it says what it expected, and what that is.
const KINDS: [(&str, &str); 6] = [
    ("expected u32", "expected a whole number from 0 to 4294967295"),
    ("expected i32", "expected a whole number from -2147483648 to 2147483647"),
    ("expected i64", "expected a whole number"),
    ("expected usize", "expected a whole number, 0 or more"),
    ("expected f32", "expected a number"),
    ("expected f64", "expected a number"),
];
/// What is said first of a field that comes again.
const TWICE: &str = "duplicate field `";
/// What stands before the options of a summary.
const OPTIONS: &str = "options.";

/// What a field of `Generate` is called here.
pub(in crate::serve) fn named(field: &str) -> &str {
    if field.starts_with(STOP) {
        return "stop";
    }
    let field = field.strip_prefix(OPTIONS).unwrap_or(field);
    NAMES.iter().find(|(ours, _)| *ours == field).map_or(field, |(_, theirs)| theirs)
}

/// Why a generation ended, in the two words there are for it.
pub(in crate::serve) fn ended(reason: v1::FinishReason) -> &'static str {
    match reason {
        v1::FinishReason::Stop | v1::FinishReason::EndOfText => "stop",
        _ => "length",
    }
}

/// The fields of a body.
#[derive(Deserialize, Default)]
#[serde(expecting = "an object")]
pub(in crate::serve) struct CompletionRequest {
    model: Option<String>,
    #[serde(default)]
    prompt: Value,
    max_tokens: Option<u32>,
    min_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<Seed>,
    n: Option<usize>,
    best_of: Option<usize>,
    #[serde(default)]
    stop: Value,
    include_stop_str_in_output: Option<bool>,
    ignore_eos: Option<bool>,
    echo: Option<bool>,
    logprobs: Option<u32>,
    logit_bias: Option<Map<String, Value>>,
    priority: Option<i32>,
    suffix: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    boundaries: Option<bool>,
    boundary_mode: Option<String>,
    max_segments: Option<u32>,
}

/// What a stream tells beside its text.
#[derive(Deserialize, Default, Clone, Copy)]
#[serde(expecting = "an object")]
pub(in crate::serve) struct StreamOptions {
    #[serde(default, deserialize_with = "or_null")]
    pub(in crate::serve) include_usage: bool,
    #[serde(default, deserialize_with = "or_null")]
    pub(in crate::serve) continuous_usage_stats: bool,
}

fn or_null<'de, D: serde::Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl CompletionRequest {
    /// Of JSON, which messages call `whole`.
    ///
    /// # Errors
    /// What is wrong with it, and with which field.
    pub(in crate::serve) fn parse(bytes: &[u8], whole: &str) -> Result<Self> {
        read(bytes, whole)
    }

    /// The same of fields that have been read.
    ///
    /// # Errors
    /// What is wrong with one of them.
    pub(in crate::serve) fn of(fields: Map<String, Value>, whole: &str) -> Result<Self> {
        serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| unreadable(whole, &error))
    }

    /// Whether the answer is to come as it is made.
    pub(in crate::serve) fn streams(&self) -> bool {
        self.stream.unwrap_or_default()
    }

    /// What a stream tells beside its text.
    pub(in crate::serve) fn stream_options(&self) -> StreamOptions {
        self.stream_options.unwrap_or_default()
    }

    /// Whether it is told where segments end.
    pub(in crate::serve) fn tells_boundaries(&self) -> bool {
        self.boundaries.unwrap_or_default()
    }

    /// Whether characters are told one by one.
    pub(in crate::serve) fn tells_characters(&self) -> bool {
        self.logprobs.is_some() || self.tells_boundaries()
    }

    /// How many answers each prompt is to have.
    pub(in crate::serve) fn answers(&self) -> usize {
        self.n.unwrap_or(1)
    }

    /// One request for each answer, in their order: the first prompt's, then the next one's.
    ///
    /// # Errors
    /// What cannot be had. The rest is checked where it is done.
    pub(in crate::serve) fn requests(&self) -> Result<Vec<v1::GenerateRequest>> {
        self.refuse_what_is_not_there()?;
        let prompts = texts("prompt", &self.prompt)?;
        let prompts = if prompts.is_empty() { vec![String::new()] } else { prompts };
        let n = self.answers();
        if n == 0 || n.saturating_mul(prompts.len()) > MOST_CHOICES {
            let found = format!("{n} for {} prompts", prompts.len());
            return Err(wrong("n", found, &format!("1 to {MOST_CHOICES} answers in all")));
        }
        if let Some(best) = self.best_of.filter(|best| *best != n) {
            return Err(wrong("best_of", best.to_string(), "n, if given"));
        }
        let mut requests = Vec::with_capacity(n * prompts.len());
        for prompt in prompts {
            for index in 0..n {
                requests.push(self.request(prompt.clone(), index)?);
            }
        }
        Ok(requests)
    }

    fn refuse_what_is_not_there(&self) -> Result<()> {
        let not_zero = |value: Option<f32>| value.filter(|value| *value != 0.0).map(|value| value.to_string());
        let there = [
            ("presence_penalty", not_zero(self.presence_penalty), "0"),
            ("frequency_penalty", not_zero(self.frequency_penalty), "0"),
            ("suffix", self.suffix.as_deref().filter(|suffix| !suffix.is_empty()).map(quoted), "none"),
        ];
        let asked = there.into_iter().find_map(|(field, asked, nothing)| Some((field, asked?, nothing)));
        asked.map_or(Ok(()), |(field, asked, nothing)| {
            Err(wrong(field, asked, &format!("{nothing}, as nothing else is supported")))
        })
    }

    fn request(&self, prompt: String, index: usize) -> Result<v1::GenerateRequest> {
        // a seed names all answers: each has one of its own
        let seed = self.seed.map(|Seed(seed)| seed.wrapping_add(index as u64));
        // −1 is vLLM's way to keep all
        let top_k = match self.top_k {
            None => None,
            Some(-1) => Some(0),
            Some(k) => {
                let refuse = |_| wrong("top_k", k.to_string(), "-1, 0 or more");
                Some(u32::try_from(k).map_err(refuse)?)
            }
        };
        // characters told one by one are counted as they come, whether their log-probabilities are wanted or not
        let counted = self.stream_options().continuous_usage_stats;
        Ok(v1::GenerateRequest {
            model: self.model.clone(),
            prompt,
            sampling: Some(v1::Sampling {
                temperature: self.temperature,
                top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                repetition_penalty: self.repetition_penalty,
                seed,
                logit_bias: self.biases()?,
            }),
            stopping: Some(v1::Stopping {
                max_chars: Some(self.max_tokens.unwrap_or(MAX_TOKENS)),
                min_chars: self.min_tokens,
                max_segments: self.max_segments,
                stop: texts("stop", &self.stop)?,
                include_stop: self.include_stop_str_in_output,
                ignore_eos: self.ignore_eos,
            }),
            stream: None,
            details: Some(v1::Details {
                echo: self.echo,
                logprobs: Some(counted || self.logprobs.is_some()),
                top_logprobs: self.logprobs,
                boundaries: self.boundaries,
            }),
            boundary_mode: self.boundary_mode.clone(),
            priority: self.priority,
        })
    }

    /// Biases by id.
    fn biases(&self) -> Result<Vec<v1::LogitBias>> {
        let refuse = |key: &str| wrong("logit_bias", quoted(key), "the id of a symbol, and a number");
        let given = self.logit_bias.iter().flatten();
        given
            .map(|(key, value)| {
                let (id, bias) = (key.parse().map_err(|_| refuse(key))?, value.as_f64().ok_or_else(|| refuse(key))?);
                Ok(v1::LogitBias { symbol: Some(v1::logit_bias::Symbol::Id(id)), bias: bias as f32 })
            })
            .collect()
    }
}

/// Fields of JSON, which messages call `whole`.
///
/// # Errors
/// What is wrong with it, and with which field.
pub(in crate::serve) fn read<T: serde::de::DeserializeOwned>(bytes: &[u8], whole: &str) -> Result<T> {
    // a list would be taken as fields in their order
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        let why = format!("{whole}: expected an object of JSON, not a list");
        return Err(Error::Unreadable { field: None, why });
    }
    let mut from = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut from).map_err(|error| unreadable(whole, &error))?;
    from.end().map_err(|error| Error::Unreadable { field: None, why: format!("{whole}: {error}") })?;
    Ok(read)
}

fn unreadable<E: std::fmt::Display>(whole: &str, error: &serde_path_to_error::Error<E>) -> Error {
    let (path, mut said) = (error.path().to_string(), error.inner().to_string());
    // types of numbers by what they hold
    for (kind, name) in KINDS {
        said = said.replacen(kind, name, 1);
    }
    // what is no JSON at all has no fields
    let path = Some(path).filter(|path| path.starts_with(|first: char| first.is_ascii_alphabetic()));
    let why = match &path {
        Some(path) => format!("{whole}: {path}: {said}"),
        None => format!("{whole}: {said}"),
    };
    // the path ends before a name that comes again
    let again = || Some(said.strip_prefix(TWICE)?.split_once('`')?.0.to_owned());
    Error::Unreadable { field: path.or_else(again), why }
}

fn wrong(field: &'static str, found: String, bound: &str) -> Error {
    Error::BadOption { field, found, bound: bound.into() }
}

/// A field that is no such thing as it must be.
pub(in crate::serve) fn no(field: &str, expected: &str) -> Error {
    Error::Unreadable { field: Some(field.into()), why: format!("{field}: expected {expected}") }
}

fn quoted(text: &str) -> String {
    format!("{:?}", clip(text, VALUE_BYTES))
}

/// Nothing, a text, or a list of texts.
fn texts(field: &'static str, value: &Value) -> Result<Vec<String>> {
    let expected = match field {
        "prompt" => "a text or a list of texts, as symbols' ids are not taken",
        _ => "a text or a list of texts",
    };
    let refuse = || no(field, expected);
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(all) => all.iter().map(|text| text.as_str().map(str::to_owned).ok_or_else(refuse)).collect(),
        _ => Err(refuse()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(body: &str) -> Result<Vec<v1::GenerateRequest>> {
        CompletionRequest::parse(body.as_bytes(), "the body")?.requests()
    }

    fn field(error: &Error) -> Option<&str> {
        match error {
            Error::BadOption { field, .. } => Some(field),
            Error::Unreadable { field, .. } => field.as_deref(),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn nulls_and_unknown_names_are_passed_over() {
        let body = r#"{"model": null, "prompt": "a", "max_tokens": null, "logit_bias": null, "stop": null, "n": null,
            "user": "me", "stream_options": {"include_usage": null, "x": 1}, "presence_penalty": 0, "suffix": null}"#;
        let [request] = &requests(body).unwrap()[..] else { panic!() };
        assert_eq!((request.prompt.as_str(), request.stopping.as_ref().unwrap().max_chars), ("a", Some(16)));
    }

    #[test]
    fn every_answer_is_a_request() {
        let all = requests(r#"{"prompt": ["a", "b"], "n": 2, "seed": -1, "stop": ["x", "y"], "top_k": -1}"#).unwrap();
        let seen: Vec<_> = all.iter().map(|one| (one.prompt.as_str(), one.sampling.as_ref().unwrap().seed)).collect();
        assert_eq!(seen, [("a", Some(u64::MAX)), ("a", Some(0)), ("b", Some(u64::MAX)), ("b", Some(0))]);
        assert_eq!(all[0].sampling.as_ref().unwrap().top_k, Some(0));
        assert_eq!(all[0].stopping.as_ref().unwrap().stop, ["x", "y"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, field) in [
            (r#"{"prompt": [1, 2]}"#, Some("prompt")),
            (r#"{"prompt": 3}"#, Some("prompt")),
            (r#"{"prompt": "a", "n": 0}"#, Some("n")),
            (r#"{"prompt": "a", "n": 65}"#, Some("n")),
            (r#"{"prompt": "a", "best_of": 2}"#, Some("best_of")),
            (r#"{"prompt": "a", "suffix": "b"}"#, Some("suffix")),
            (r#"{"prompt": "a", "frequency_penalty": 0.5}"#, Some("frequency_penalty")),
            (r#"{"prompt": "a", "max_tokens": -1}"#, Some("max_tokens")),
            (r#"{"prompt": "a", "temperature": "hot"}"#, Some("temperature")),
            (r#"{"prompt": "a", "logit_bias": {"x": 1}}"#, Some("logit_bias")),
            (r#"{"prompt": "a", "logit_bias": {"1": "x"}}"#, Some("logit_bias")),
            (r#"{"prompt": "a", "top_k": -2}"#, Some("top_k")),
            (r#"{"prompt": "a", "stream_options": {"include_usage": 1}}"#, Some("stream_options.include_usage")),
            ("{", None),
            (r#"{"prompt": "a", "seed": 1, "seed": 2}"#, Some("seed")),
            ("[]", None),
            (r#"{"prompt": "a"} and"#, None),
        ] {
            let refusal = requests(body).err().unwrap_or_else(|| panic!("{body} is taken"));
            assert_eq!(self::field(&refusal), field, "{body}");
            assert!(!["struct", "u32", "f32"].iter().any(|word| refusal.to_string().contains(word)), "{refusal}");
            assert!(field.is_none_or(|field| refusal.to_string().contains(field)), "{refusal}");
        }
    }
}
