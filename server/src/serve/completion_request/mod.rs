//! Completion requests of OpenAI's API, converted to requests of `Generate`. Requests of the Open Inference Protocol are first
//! converted to these.
//!
//! Field names are OpenAI's, else vLLM's; `boundaries`, `boundary_mode` and `max_segments` are ours. Unknown fields and nulls are
//! ignored, as clients of other servers expect. An unsupported option is rejected, unless its value has no effect.

mod bounded;
mod choices;
mod prompts;
pub(crate) mod seed;
pub(crate) mod speculate;

use crate::{
    decode::{long_documents::LongDocuments, options::OptionLimits, search_rules::EarlyStopping},
    error::{Error, Names, Result, json::mismatch, quoted},
};
use bounded::{Bias, Biases, Texts};
pub(super) use choices::{MAX_CHOICES, check_choices};
pub(super) use prompts::Prompt;
use prompts::Prompts;
use seed::Seed;
use serde::Deserialize;
use serde_json::{Map, Value};
use speculate::Speculate;
use weir_proto::v1;

/// Default of `max_tokens`, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// The names of this API.
pub(crate) const NAMES: Names = Names { dropped: "options.", fields: &[&FIELDS], methods: &PATHS };
/// Fields of the gRPC API, and their names in this one if they differ.
pub(super) const FIELDS: [(&str, &str); 18] = [
    ("prompt_ids", "prompt"),
    ("chunk.text", "document"),
    ("sampling.seed", "seed"),
    ("sampling.temperature", "temperature"),
    ("sampling.top_k", "top_k"),
    ("sampling.top_p", "top_p"),
    ("sampling.min_p", "min_p"),
    ("sampling.repetition_penalty", "repetition_penalty"),
    ("sampling.logit_bias", "logit_bias"),
    ("stopping.max_chars", "max_tokens"),
    ("stopping.min_chars", "min_tokens"),
    ("stopping.max_segments", "max_segments"),
    ("stopping.stop", "stop"),
    ("stopping.ignore_eos", "ignore_eos"),
    ("details.top_logprobs", "logprobs"),
    ("details.boundaries", "boundaries"),
    ("details.logprobs", "logprobs"),
    ("details.echo", "echo"),
];
/// The gRPC methods behind the paths of this API.
const PATHS: [(&str, &str); 2] = [("Generate", "/v1/completions"), ("Summarize", "/v1/summaries")];

/// Returns OpenAI's `finish_reason`: `stop` or `length`.
pub(crate) fn finish_reason(reason: v1::FinishReason) -> &'static str {
    match reason {
        v1::FinishReason::Stop | v1::FinishReason::EndOfText => "stop",
        _ => "length",
    }
}

/// The fields of a completion request.
#[derive(Deserialize, Default)]
#[serde(expecting = "an object")]
pub(crate) struct CompletionRequest {
    pub(super) model: Option<String>,
    #[serde(default)]
    pub(super) prompt: Prompts<MAX_CHOICES>,
    pub(super) max_tokens: Option<u32>,
    pub(super) min_tokens: Option<u32>,
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) top_k: Option<i64>,
    pub(super) min_p: Option<f32>,
    pub(super) repetition_penalty: Option<f32>,
    pub(super) presence_penalty: Option<f32>,
    pub(super) frequency_penalty: Option<f32>,
    pub(super) seed: Option<Seed>,
    pub(super) n: Option<usize>,
    pub(super) best_of: Option<usize>,
    #[serde(default)]
    pub(super) stop: Texts<{ OptionLimits::STOPS }>,
    pub(super) include_stop_str_in_output: Option<bool>,
    pub(super) ignore_eos: Option<bool>,
    pub(super) echo: Option<bool>,
    pub(super) logprobs: Option<u32>,
    #[serde(default)]
    pub(super) logit_bias: Biases,
    pub(super) priority: Option<i32>,
    pub(super) resume_text: Option<String>,
    pub(super) speculate: Option<Speculate>,
    pub(super) suffix: Option<String>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    pub(super) boundaries: Option<bool>,
    pub(super) boundary_mode: Option<String>,
    pub(super) max_segments: Option<u32>,
    pub(super) length_penalty: Option<f32>,
    pub(super) early_stopping: Option<EarlyStopping>,
    #[serde(alias = "no_repeat_ngram_size")]
    pub(super) no_repeat_ngram: Option<u32>,
    pub(super) cut: Option<bool>,
    pub(super) long_documents: Option<LongDocuments>,
}

/// Options of a stream.
#[derive(Deserialize, Default, Clone, Copy)]
#[serde(expecting = "an object")]
pub(crate) struct StreamOptions {
    #[serde(default, deserialize_with = "null_as_false")]
    pub(crate) include_usage: bool,
    #[serde(default, deserialize_with = "null_as_false")]
    pub(crate) continuous_usage_stats: bool,
}

fn null_as_false<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl CompletionRequest {
    /// Parses JSON. Errors call it `input`. Fails with [`Error::Unreadable`], which names the malformed field.
    pub(crate) fn parse(bytes: &[u8], input: &str) -> Result<Self> {
        parse_json(bytes, input)
    }

    /// Converts parsed fields; fails as [`parse`](Self::parse) does. Errors call the fields `input`.
    pub(crate) fn from_fields(fields: Map<String, Value>, input: &str) -> Result<Self> {
        let read = serde_path_to_error::deserialize(Value::Object(fields));
        read.map_err(|error: serde_path_to_error::Error<serde_json::Error>| {
            unreadable(input, &error.path().to_string(), error.inner())
        })
    }

    /// Returns true if the response is a stream.
    pub(crate) fn wants_stream(&self) -> bool {
        self.stream.unwrap_or_default()
    }

    /// Returns the options of the stream.
    pub(crate) fn stream_options(&self) -> StreamOptions {
        self.stream_options.unwrap_or_default()
    }

    /// Returns true if the response marks where segments end.
    pub(crate) fn wants_boundaries(&self) -> bool {
        self.boundaries.unwrap_or_default()
    }

    /// Returns true if the response lists characters.
    pub(crate) fn wants_characters(&self) -> bool {
        self.logprobs.is_some() || self.wants_boundaries()
    }

    /// Returns the number of choices for each prompt.
    pub(crate) fn choices_per_prompt(&self) -> usize {
        self.n.unwrap_or(1)
    }

    /// Returns the requests of `Generate`, one for each choice: those of the first prompt, then those of the next. Without a prompt,
    /// it is empty. Each is built when it is taken. Fails if an option is unsupported; `Generate` checks the others.
    pub(crate) fn generate_requests(&self) -> Result<impl ExactSizeIterator<Item = v1::GenerateRequest>> {
        self.reject_unsupported()?;
        let prompts = self.prompt.list().unwrap_or_default();
        let count = prompts.len().max(1);
        let n = self.choices_per_prompt();
        check_choices(n, count)?;
        if let Some(best_of) = self.best_of.filter(|best_of| *best_of != n) {
            return Err(Error::bad_option("best_of", best_of.to_string(), format!("{n} (the value of n)")));
        }
        if n * count > 1 && self.resume_text.as_ref().is_some_and(|text| !text.is_empty()) {
            let found = format!("with {} choices", n * count);
            return Err(Error::bad_option("resume_text", found, "at most one choice"));
        }
        let top_k = self.top_k()?;
        Ok((0..n * count).map(move |index| self.generate_request(prompts.get(index / n), top_k, index % n)))
    }

    /// Returns the limit on the most probable symbols. vLLM's −1 keeps all symbols, as our 0 does.
    pub(super) fn top_k(&self) -> Result<Option<u32>> {
        let convert = |k| match k {
            -1 => Ok(0),
            k => u32::try_from(k).map_err(|_| Error::bad_option("top_k", k.to_string(), "-1 or a larger number")),
        };
        self.top_k.map(convert).transpose()
    }

    pub(super) fn reject_unsupported(&self) -> Result<()> {
        let not_zero = |value: Option<f32>| value.filter(|value| *value != 0.0).map(|value| value.to_string());
        for (field, found, neutral) in [
            ("presence_penalty", not_zero(self.presence_penalty), "0"),
            ("frequency_penalty", not_zero(self.frequency_penalty), "0"),
            ("suffix", self.suffix.as_deref().filter(|suffix| !suffix.is_empty()).map(quoted), "\"\""),
        ] {
            if let Some(found) = found {
                return Err(Error::bad_option(field, found, format!("{neutral} (the only supported value)")));
            }
        }
        Ok(())
    }

    fn generate_request(&self, prompt: Option<&Prompt>, top_k: Option<u32>, index: usize) -> v1::GenerateRequest {
        let (prompt, prompt_ids) = match prompt {
            Some(Prompt::Text(text)) => (text.clone(), Vec::new()),
            Some(Prompt::Ids(ids)) => (String::new(), ids.clone()),
            None => Default::default(),
        };
        // Each choice draws from a seed of its own.
        let seed = self.seed.map(|Seed(seed)| seed.wrapping_add(index as u64));
        // Only characters with log-probabilities arrive with their number, which running counts need.
        let counted = self.stream_options().continuous_usage_stats;
        v1::GenerateRequest {
            model: self.model.clone(),
            prompt,
            prompt_ids,
            sampling: Some(v1::Sampling {
                temperature: self.temperature,
                top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                repetition_penalty: self.repetition_penalty,
                seed,
                logit_bias: self.logit_biases(),
            }),
            stopping: Some(v1::Stopping {
                max_chars: Some(self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)),
                min_chars: self.min_tokens,
                max_segments: self.max_segments,
                stop: self.stop.0.clone(),
                include_stop: self.include_stop_str_in_output,
                ignore_eos: self.ignore_eos,
            }),
            stream: None,
            details: Some(v1::Details {
                echo: self.echo,
                logprobs: Some(counted || self.logprobs.is_some()),
                top_logprobs: self.logprobs,
                boundaries: self.boundaries,
                ids: None,
            }),
            boundary_mode: self.boundary_mode.clone(),
            priority: self.priority,
            resume_text: self.resume_text.clone().unwrap_or_default(),
            resume_ids: Vec::new(),
            speculate: self.speculate.clone().map(|Speculate(setting)| setting),
        }
    }

    /// Removes the biases of ids outside a vocabulary of `symbols` symbols: the model never generates these.
    pub(super) fn drop_biases_without_symbol(&mut self, symbols: usize) {
        self.logit_bias.0.retain(|bias| (bias.id as usize) < symbols);
    }

    /// Returns the biases as messages.
    pub(super) fn logit_biases(&self) -> Vec<v1::LogitBias> {
        let message =
            |bias: &Bias| v1::LogitBias { symbol: Some(v1::logit_bias::Symbol::Id(bias.id)), bias: bias.value };
        self.logit_bias.0.iter().map(message).collect()
    }
}

/// Parses a JSON object. Errors call it `input`. Fails with [`Error::Unreadable`], which names the malformed field.
pub(crate) fn parse_json<T: serde::de::DeserializeOwned>(bytes: &[u8], input: &str) -> Result<T> {
    // serde would accept a list as the fields in their order.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        let why = format!("{input}: expected an object, found a list");
        return Err(Error::Unreadable { field: None, why });
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut deserializer);
    let parsed = parsed.map_err(|error| unreadable(input, &error.path().to_string(), error.inner()))?;
    deserializer.end().map_err(|error| unreadable(input, "", &error))?;
    Ok(parsed)
}

/// Returns the error of a value at `path`, as serde writes paths. The message begins with the path, or with `input` if it is empty.
pub(crate) fn unreadable(input: &str, path: &str, error: &serde_json::Error) -> Error {
    // serde's path ends with `?` where the text ends within a key, and is `.` at the root
    let path = path.trim_end_matches('?').trim_end_matches('.');
    let message = error.to_string();
    let mismatch = mismatch(&message, vec![path], error.is_data());
    let field = Some(&mismatch.key).filter(|key| !key.is_empty());
    let why = format!("{}: {mismatch}", field.map_or(input, String::as_str));
    Error::Unreadable { field: field.cloned(), why }
}

/// Builds the error of a field with a value of the wrong type.
pub(crate) fn wrong_type(field: &str, expected: &str) -> Error {
    Error::Unreadable { field: Some(field.into()), why: format!("{field}: expected {expected}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(body: &str) -> Result<Vec<v1::GenerateRequest>> {
        Ok(CompletionRequest::parse(body.as_bytes(), "the body")?.generate_requests()?.collect())
    }

    fn field(error: &Error) -> Option<&str> {
        match error {
            Error::BadOption { field, .. } => Some(field),
            Error::Unreadable { field, .. } => field.as_deref(),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn nulls_and_unknown_fields_are_ignored() {
        let body = r#"{"model": null, "prompt": "a", "max_tokens": null, "logit_bias": null, "stop": null, "n": null,
            "user": "me", "stream_options": {"include_usage": null, "x": 1}, "presence_penalty": 0, "suffix": null}"#;
        let [request] = &requests(body).unwrap()[..] else { panic!() };
        assert_eq!((request.prompt.as_str(), request.stopping.as_ref().unwrap().max_chars), ("a", Some(16)));
    }

    #[test]
    fn every_choice_is_a_request() {
        let all = requests(r#"{"prompt": ["a", "b"], "n": 2, "seed": -1, "stop": ["x", "y"], "top_k": -1}"#).unwrap();
        let prompts_and_seeds: Vec<_> =
            all.iter().map(|request| (request.prompt.as_str(), request.sampling.as_ref().unwrap().seed)).collect();
        assert_eq!(prompts_and_seeds, [("a", Some(u64::MAX)), ("a", Some(0)), ("b", Some(u64::MAX)), ("b", Some(0))]);
        assert_eq!(all[0].sampling.as_ref().unwrap().top_k, Some(0));
        assert_eq!(all[0].stopping.as_ref().unwrap().stop, ["x", "y"]);
    }

    #[test]
    fn biases_without_a_symbol_are_dropped() {
        let body = r#"{"prompt": "a", "logit_bias": {"7": 1, "8": 2, "4294967296": 3, "99999999999999999999": 4}}"#;
        let mut request = CompletionRequest::parse(body.as_bytes(), "the body").unwrap();
        assert_eq!(request.logit_biases().len(), 4);
        request.drop_biases_without_symbol(8);
        let kept = v1::LogitBias { symbol: Some(v1::logit_bias::Symbol::Id(7)), bias: 1.0 };
        assert_eq!(request.logit_biases(), [kept]);
    }

    #[test]
    fn a_prompt_may_be_ids() {
        let all = requests(r#"{"prompt": [[3, 1], [2]], "n": 2}"#).unwrap();
        let ids: Vec<_> = all.iter().map(|request| &request.prompt_ids[..]).collect();
        assert_eq!(ids, [&[3, 1][..], &[3, 1], &[2], &[2]]);
        assert!(all.iter().all(|request| request.prompt.is_empty()));
    }

    #[test]
    fn errors_name_the_field() {
        for (body, field) in [
            (r#"{"prompt": [1, -2]}"#, Some("prompt[1]")),
            (r#"{"prompt": [[1], [2, 3.5]]}"#, Some("prompt[1][1]")),
            (r#"{"prompt": [1, "a"]}"#, Some("prompt")),
            (r#"{"prompt": 3}"#, Some("prompt")),
            (r#"{"prompt": "a", "n": 0}"#, Some("n")),
            (r#"{"prompt": "a", "n": 65}"#, Some("n")),
            (r#"{"prompt": "a", "best_of": 2}"#, Some("best_of")),
            (r#"{"prompt": "a", "suffix": "b"}"#, Some("suffix")),
            (r#"{"prompt": "a", "frequency_penalty": 0.5}"#, Some("frequency_penalty")),
            (r#"{"prompt": "a", "max_tokens": -1}"#, Some("max_tokens")),
            (r#"{"prompt": "a", "temperature": "hot"}"#, Some("temperature")),
            (r#"{"prompt": "a", "logit_bias": {"x": 1}}"#, Some("logit_bias")),
            (r#"{"prompt": "a", "logit_bias": {"-1": 1}}"#, Some("logit_bias")),
            (r#"{"prompt": "a", "logit_bias": {"1.5": 1}}"#, Some("logit_bias")),
            (r#"{"prompt": "a", "logit_bias": {"": 1}}"#, Some("logit_bias")),
            (r#"{"prompt": "a", "logit_bias": {"1": "x"}}"#, Some("logit_bias.1")),
            (r#"{"prompt": "a", "top_k": -2}"#, Some("top_k")),
            (r#"{"prompt": "a", "stream_options": {"include_usage": 1}}"#, Some("stream_options.include_usage")),
            ("{", None),
            (r#"{"prompt": "a", "seed": 1, "seed": 2}"#, Some("seed")),
            ("[]", None),
            (r#"{"prompt": "a"} and"#, None),
        ] {
            let error = requests(body).err().unwrap_or_else(|| panic!("{body} is accepted"));
            assert_eq!(self::field(&error), field, "{body}");
            assert!(!["struct", "u32", "f32"].iter().any(|word| error.to_string().contains(word)), "{error}");
            let start = format!("{}: expected ", field.unwrap_or("the body"));
            assert!(error.to_string().starts_with(&start) && error.to_string().contains(", found "), "{body}: {error}");
        }
        for (body, message) in [
            (
                r#"{"max_tokens": "x"}"#,
                "max_tokens: expected a whole number of at least 0, found \"x\" (line 1 column 18)",
            ),
            (
                r#"{"prompt": "a",}"#,
                "the body: expected valid JSON, found a syntax error (trailing comma at line 1 column 16)",
            ),
            (r#"{"seed": 1, "seed": 2}"#, "seed: expected one value, found two (line 1 column 18)"),
        ] {
            assert_eq!(requests(body).err().unwrap().to_string(), message);
        }
    }
}
