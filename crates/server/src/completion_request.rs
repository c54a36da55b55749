//! Requests in JSON for text, converted to requests of `Generate` and `Summarize`: completions of OpenAI's API, summaries, and the
//! parameters of the Open Inference Protocol.
//!
//! Field names are OpenAI's, else vLLM's, else the gRPC API's. [`CompletionRequest`] has the fields that the server supports,
//! and [`OTHER_FIELDS`] other servers' fields: one that would change the text is refused by name. A null counts as absent. Errors
//! name a field as the client did.

use serde::{
    Deserialize, Deserializer,
    de::{
        self, DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess,
        Unexpected, Visitor,
    },
};
use serde_json::{Map, Value, json};
use std::{borrow::Cow, fmt};
use weir_engine::{
    options::OptionLimits,
    speculation::Speculation,
    summary::{LongDocuments, SummaryMode},
};
use weir_kernels::error::{Error, Result, floor_boundary, mismatch, quoted};
use weir_models::contract::{Card, EarlyStopping, SearchRules};
use weir_proto::v1::{self, SummarizeRequest, constraint::Form, summarize_request::Part};

/// Default of `max_tokens` for a model of tokens, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Default of `max_tokens` for a model of characters or bytes: about as much text.
const DEFAULT_MAX_CHARACTERS: u32 = 128;

/// The surface of a request, which has its own names for the gRPC API's fields and methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Surface {
    /// A path of the HTTP API without fields of its own.
    #[default]
    Http,
    /// `/v1/completions`.
    Completions,
    /// `/v1/completions` of a model that summarizes: the prompt is the document.
    SummarizedPrompts,
    /// `/v1/summaries`.
    Summaries,
    /// The Open Inference Protocol over gRPC.
    Inference,
    /// The Open Inference Protocol over HTTP.
    HttpInference,
}

/// The names that errors of a request have.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    surface: Surface,
    aliases: Aliases,
}

/// The fields that a client sent by another name, each with that.
type Aliases = Vec<(&'static str, &'static str)>;

impl From<Surface> for Names {
    fn from(surface: Surface) -> Self {
        Self { surface, aliases: Aliases::new() }
    }
}

impl Names {
    /// Returns an error with the client's names for fields and methods of the gRPC API.
    pub(crate) fn name(&self, error: Error) -> Error {
        error.named(|name| {
            let own = self.surface.own_name(name);
            self.aliases.iter().find(|(field, _)| *field == own).map_or(own, |(_, alias)| alias)
        })
    }
}

impl Surface {
    /// Returns the surface's name of a field or a method of the gRPC API. An element of a list has the name of the list.
    fn own_name(self, name: &'static str) -> &'static str {
        match (name.split_once('[').map_or(name, |(list, _)| list), self) {
            ("Generate", Self::Inference) => "ModelInfer",
            ("Generate", Self::HttpInference) => "/infer",
            ("Generate", _) => "/v1/completions",
            ("Summarize", Self::Inference) => "weir.v1.Summarization",
            ("Summarize", _) => "/v1/summaries",
            ("Check", _) => "/v1/check",
            ("name" | "model_name", Self::Http | Self::HttpInference) => "model",
            (_, Self::Http) => name,
            ("prompt" | "prompt_ids", Self::Inference | Self::HttpInference) => "text_input",
            ("prompt" | "prompt_ids", _) | ("chunk" | "chunk.text" | "chunk.ids", Self::SummarizedPrompts) => "prompt",
            ("chunk" | "chunk.text", _) => "document",
            ("options.beam_size", Self::SummarizedPrompts) => "best_of",
            ("options.hypotheses", Self::SummarizedPrompts) => "n",
            ("stopping.max_chars", _) => "max_tokens",
            ("stopping.min_chars", _) => "min_tokens",
            ("stopping.include_stop", _) => "include_stop_str_in_output",
            ("constraint" | "options.constraint", _) => "structured_outputs",
            ("constraint.regex" | "options.constraint.regex", _) => "structured_outputs.regex",
            ("constraint.choice" | "options.constraint.choice" | "choice.texts", _) => "structured_outputs.choice",
            ("constraint.json_schema" | "options.constraint.json_schema", _) => "structured_outputs.json",
            ("constraint.json_object" | "options.constraint.json_object", _) => "structured_outputs.json_object",
            ("constraint.grammar" | "options.constraint.grammar", _) => "structured_outputs.grammar",
            ("details.top_logprobs", _) => "logprobs",
            // Other fields of these messages have their own names.
            (list, _) => match list.rsplit_once('.') {
                Some((
                    "sampling" | "stopping" | "details" | "constraint" | "options" | "options.constraint",
                    field,
                )) => field,
                _ => list,
            },
        }
    }
}

/// Returns OpenAI's `finish_reason`: `stop` or `length`.
pub(crate) fn finish_reason(reason: v1::FinishReason) -> &'static str {
    match reason {
        v1::FinishReason::Stop | v1::FinishReason::EndOfText | v1::FinishReason::Constraint => "stop",
        _ => "length",
    }
}

/// The fields of a completion or summary request.
#[derive(Deserialize, Default)]
#[serde(expecting = "an object")]
pub(crate) struct CompletionRequest {
    pub(crate) model: Option<String>,
    #[serde(default)]
    pub(crate) prompt: Prompts<MAX_CHOICES>,
    pub(crate) document: Option<String>,
    pub(crate) document_id: Option<String>,
    pub(crate) max_tokens: Option<u32>,
    max_new_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    pub(crate) min_tokens: Option<u32>,
    min_new_tokens: Option<u32>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) seed: Option<Seed>,
    pub(crate) n: Option<usize>,
    pub(crate) best_of: Option<usize>,
    #[serde(default)]
    pub(crate) stop: Texts<{ OptionLimits::STOPS }>,
    pub(crate) include_stop_str_in_output: Option<bool>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) echo: Option<bool>,
    pub(crate) logprobs: Option<u32>,
    #[serde(default)]
    pub(crate) logit_bias: Biases,
    pub(crate) priority: Option<i32>,
    pub(crate) resume_text: Option<String>,
    pub(crate) speculate: Option<Speculate>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) boundaries: Option<bool>,
    /// Only `/v1/completions/render` returns them.
    pub(crate) return_token_offsets: Option<bool>,
    pub(crate) boundary_mode: Option<String>,
    pub(crate) boundary_threshold: Option<f32>,
    pub(crate) max_segments: Option<u32>,
    beam_size: Option<u32>,
    num_beams: Option<u32>,
    pub(crate) hypotheses: Option<u32>,
    pub(crate) length_penalty: Option<f32>,
    pub(crate) early_stopping: Option<EarlyStopping>,
    pub(crate) no_repeat_ngram: Option<u32>,
    no_repeat_ngram_size: Option<u32>,
    do_sample: Option<bool>,
    pub(crate) cut: Option<bool>,
    pub(crate) long_documents: Option<LongDocuments>,
    pub(crate) hard_topk: Option<bool>,
    pub(crate) mode: Option<SummaryMode>,
    pub(crate) sentences: Option<u32>,
    response_format: Option<ResponseFormat>,
    structured_outputs: Option<StructuredOutputs>,
    end_when_complete: Option<bool>,
    #[serde(skip)]
    aliases: Aliases,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(expecting = "an object")]
pub(crate) struct StreamOptions {
    #[serde(default, deserialize_with = "null_as_false")]
    pub(crate) include_usage: bool,
    #[serde(default, deserialize_with = "null_as_false")]
    pub(crate) continuous_usage_stats: bool,
}

/// OpenAI's form of the answer.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct ResponseFormat {
    r#type: String,
    json_schema: Option<NamedSchema>,
    /// The schema of a `json_object`, as llama.cpp has it.
    schema: Option<Value>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct NamedSchema {
    schema: Option<Value>,
}

/// vLLM's form of the answer: one field. The options of a [`Neutral`] type say nothing about it.
#[derive(Deserialize)]
#[serde(expecting = "an object", deny_unknown_fields)]
#[expect(dead_code, reason = "the other fields are only checked")]
struct StructuredOutputs {
    /// A schema, or its text.
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
    structural_tag: Option<Neutral>,
    whitespace_pattern: Option<Neutral>,
    backend: Option<Neutral>,
    disable_fallback: Option<Neutral>,
    disable_any_whitespace: Option<Neutral>,
    disable_additional_properties: Option<Neutral>,
}

/// A value that changes nothing.
struct Neutral;

impl<'de> Deserialize<'de> for Neutral {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Description(found) = Description::deserialize(deserializer)?;
        let is_neutral = found == "false" || EMPTY.contains(&&*found);
        let refused = || D::Error::invalid_value(Unexpected::Other(&found), &"null, false or empty");
        is_neutral.then_some(Self).ok_or_else(refused)
    }
}

impl ResponseFormat {
    fn form(&self) -> Result<Option<Form>> {
        let field = "response_format";
        match (&*self.r#type, &self.json_schema) {
            ("text", _) => Ok(None),
            ("json_object", _) => Ok(Some(match &self.schema {
                Some(schema) => Form::JsonSchema(schema.to_string()),
                None => Form::JsonObject(true),
            })),
            ("json_schema", Some(NamedSchema { schema: Some(schema) })) => {
                Ok(Some(Form::JsonSchema(schema.to_string())))
            }
            ("json_schema", _) => Err(Error::bad_option(field, "no schema", "json_schema.schema")),
            (other, _) => Err(Error::bad_option(field, quoted(other), "text, json_object or json_schema")),
        }
    }
}

impl StructuredOutputs {
    fn form(&self) -> Result<Option<Form>> {
        let schema = |schema: &Value| schema.as_str().map_or_else(|| schema.to_string(), str::to_owned);
        let forms = [
            ("structured_outputs.json", self.json.as_ref().map(|json| Form::JsonSchema(schema(json)))),
            ("structured_outputs.regex", self.regex.clone().map(Form::Regex)),
            ("structured_outputs.choice", self.choice.clone().map(|texts| Form::Choice(v1::Choice { texts }))),
            ("structured_outputs.grammar", self.grammar.clone().map(Form::Grammar)),
            ("structured_outputs.json_object", self.json_object.filter(|wanted| *wanted).map(Form::JsonObject)),
        ];
        let mut given = forms.into_iter().filter_map(|(name, form)| Some((name, form?)));
        match (given.next(), given.next()) {
            (Some((first, _)), Some((second, _))) => Err(Error::Exclusive { first, second }),
            (Some((_, form)), None) => Ok(Some(form)),
            (None, _) => Err(Error::bad_option(
                "structured_outputs",
                "nothing",
                "one of json, regex, choice, grammar and json_object",
            )),
        }
    }
}

fn null_as_false<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl CompletionRequest {
    /// Parses the body of a request. Fails as [`parse_json`] does, and at a field that the path refuses.
    pub(crate) fn parse<'a>(json: impl Into<Cow<'a, [u8]>>, path: Path) -> Result<Self> {
        parse::<Self>(json.into(), "the body", Some(path))?.without_aliases()
    }

    /// Converts the parsed fields of a completion. Fails as [`parse`](Self::parse) does. Errors call the fields `input`.
    pub(crate) fn from_fields(fields: Map<String, Value>, input: &str) -> Result<Self> {
        let read = read_fields::<Self, _>(Value::Object(fields), Some(Path::Completions));
        read.map_err(|unread| unread.into_error(input))?.without_aliases()
    }

    /// Moves the values of aliases to their fields. Fails if a field has two values.
    fn without_aliases(mut self) -> Result<Self> {
        if let Some(format) = self.response_format.as_ref().filter(|format| format.r#type != "text") {
            let schema = if format.schema.is_some() { "response_format.schema" } else { "response_format.json_schema" };
            self.aliases.push(("structured_outputs.json", schema));
            self.aliases.push(("structured_outputs.json_object", "response_format"));
        }
        for (field, name, aliases) in [
            (
                &mut self.max_tokens,
                "max_tokens",
                &[
                    ("max_new_tokens", self.max_new_tokens.take()),
                    ("max_completion_tokens", self.max_completion_tokens.take()),
                ][..],
            ),
            (&mut self.min_tokens, "min_tokens", &[("min_new_tokens", self.min_new_tokens.take())]),
            (&mut self.beam_size, "beam_size", &[("num_beams", self.num_beams.take())]),
            (
                &mut self.no_repeat_ngram,
                "no_repeat_ngram",
                &[("no_repeat_ngram_size", self.no_repeat_ngram_size.take())],
            ),
        ] {
            let mut first = name;
            for &(alias, value) in aliases {
                match (*field, value) {
                    (None, Some(_)) => {
                        *field = value;
                        first = alias;
                        self.aliases.push((name, alias));
                    }
                    (Some(stated), Some(other)) if stated != other => {
                        return Err(Error::Exclusive { first, second: alias });
                    }
                    _ => {}
                }
            }
        }
        Ok(self)
    }

    /// Returns the names that errors of this request have on a surface.
    pub(crate) fn names(&self, surface: Surface) -> Names {
        let mut aliases = self.aliases.clone();
        // The beam of a completion has two names.
        if surface == Surface::SummarizedPrompts && self.best_of.is_none() && self.beam_size.is_some() {
            let own = aliases.iter().find(|(field, _)| *field == "beam_size").map_or("beam_size", |(_, alias)| alias);
            aliases.push(("best_of", own));
        }
        Names { surface, aliases }
    }

    /// Returns true if the response is a stream.
    pub(crate) fn wants_stream(&self) -> bool {
        self.stream.unwrap_or_default()
    }

    pub(crate) fn stream_options(&self) -> StreamOptions {
        self.stream_options.unwrap_or_default()
    }

    pub(crate) fn wants_offsets(&self) -> bool {
        self.return_token_offsets.unwrap_or_default()
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

    /// Returns the requests of `Generate`, one for each choice: the first prompt's, then the next one's. Without a prompt,
    /// it is empty. Each is built when it is taken. Fails if an option is unsupported; `Generate` checks the others.
    pub(crate) fn generate_requests(&self) -> Result<impl ExactSizeIterator<Item = v1::GenerateRequest>> {
        self.reject_searched()?;
        self.check_do_sample(self.temperature != Some(0.0))?;
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
        let constraint = self.constraint()?;
        let request = move |index: usize| v1::GenerateRequest {
            constraint: constraint.clone(),
            ..self.generate_request(prompts.get(index / n), top_k, index % n)
        };
        Ok((0..n * count).map(request))
    }

    /// Returns the form that the text must have. Fails if several are given.
    pub(crate) fn constraint(&self) -> Result<Option<v1::Constraint>> {
        let of_format = self.response_format.as_ref().map(ResponseFormat::form).transpose()?.flatten();
        let of_outputs = self.structured_outputs.as_ref().map(StructuredOutputs::form).transpose()?.flatten();
        if of_format.is_some() && of_outputs.is_some() {
            return Err(Error::Exclusive { first: "response_format", second: "structured_outputs" });
        }
        let form = of_format.or(of_outputs);
        if form.is_none() && self.end_when_complete.is_some() {
            let bound = "no value without response_format and structured_outputs";
            return Err(Error::bad_option("end_when_complete", "one", bound));
        }
        let end_when_complete = self.end_when_complete;
        Ok(form.map(|form| v1::Constraint { form: Some(form), end_when_complete }))
    }

    /// Returns the limit on the most probable symbols. vLLM's −1 keeps all symbols, as our 0 does.
    pub(crate) fn top_k(&self) -> Result<Option<u32>> {
        let convert = |k| match k {
            -1 => Ok(0),
            k => u32::try_from(k).map_err(|_| Error::bad_option("top_k", k.to_string(), "-1 to 4294967295")),
        };
        self.top_k.map(convert).transpose()
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
            sampling: Some(self.sampling(top_k, seed)),
            stopping: Some(v1::Stopping {
                max_chars: self.max_tokens,
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
            boundary_threshold: self.boundary_threshold,
            priority: self.priority,
            resume_text: self.resume_text.clone().unwrap_or_default(),
            resume_ids: Vec::new(),
            speculate: self.speculate.clone().map(|Speculate(setting)| setting),
            constraint: None,
        }
    }

    /// Prepares a completion by the model of `card`: sets the default of `max_tokens`, and drops biases without effect.
    pub(crate) fn adapt_to(&mut self, card: &Card) {
        let most = if card.vocabulary.is_subword() { DEFAULT_MAX_TOKENS } else { DEFAULT_MAX_CHARACTERS };
        let longest = u32::try_from(card.max_symbols).unwrap_or(u32::MAX);
        self.max_tokens.get_or_insert(most.min(longest));
        self.drop_biases_without_symbol(card.vocabulary.len());
    }

    /// Removes the biases of ids outside a vocabulary of `symbols` symbols: the model never generates these.
    pub(crate) fn drop_biases_without_symbol(&mut self, symbols: usize) {
        self.logit_bias.0.retain(|bias| (bias.id as usize) < symbols);
    }

    /// Returns the options that the request states, under the names of vLLM's `SamplingParams` where it has them.
    pub(crate) fn sampling_params(&self) -> Result<Value> {
        let biases = self.sampling(None, None).logit_bias.into_iter().filter_map(|bias| match bias.symbol {
            Some(v1::logit_bias::Symbol::Id(id)) => Some((id.to_string(), json!(bias.bias))),
            _ => None,
        });
        let biases: Map<_, _> = biases.collect();
        let params = json!({
            "n": self.choices_per_prompt(),
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": self.seed.as_ref().map(|seed| seed.0),
            "ignore_eos": self.ignore_eos,
            "stop": Some(&self.stop.0).filter(|stop| !stop.is_empty()),
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "logprobs": self.logprobs,
            "logit_bias": Some(biases).filter(|biases| !biases.is_empty()),
            "echo": self.echo,
            "boundaries": self.boundaries,
            "boundary_mode": self.boundary_mode,
            "max_segments": self.max_segments,
            "beam_size": self.beam(),
            "length_penalty": self.length_penalty,
            "early_stopping": self.early_stopping.map(EarlyStopping::name),
            "no_repeat_ngram": self.no_repeat_ngram,
        });
        let Value::Object(params) = params else { return Err(Error::Internal("sampling_params is no object".into())) };
        let mut stated: Map<_, _> = params.into_iter().filter(|(_, value)| !value.is_null()).collect();
        if let Some(constraint) = self.constraint()? {
            if let Some(ends) = constraint.end_when_complete {
                stated.insert("end_when_complete".into(), ends.into());
            }
            stated.insert("structured_outputs".into(), structured_outputs(constraint)?);
        }
        Ok(Value::Object(stated))
    }

    /// Returns the options of sampling, with a converted `top_k` and the seed of a choice.
    pub(crate) fn sampling(&self, top_k: Option<u32>, seed: Option<u64>) -> v1::Sampling {
        let bias = |bias: &Bias| v1::LogitBias { symbol: Some(v1::logit_bias::Symbol::Id(bias.id)), bias: bias.value };
        v1::Sampling {
            temperature: self.temperature,
            top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed,
            logit_bias: self.logit_bias.0.iter().map(bias).collect(),
        }
    }
}

// Requests of `Summarize`.

/// Maximum bytes of a document in one message of a call.
const CHUNK_BYTES: usize = 64 << 10;

impl CompletionRequest {
    /// Returns the messages of the call that a summary request makes: options, then the document in chunks.
    pub(crate) fn summary_messages(&self) -> Result<Vec<SummarizeRequest>> {
        let sampling = self.summary_sampling()?;
        // The summary is sampled only if the request has a sampling option; otherwise it is searched.
        let sampling = (sampling != v1::Sampling::default()).then_some(sampling);
        self.check_do_sample(sampling.is_some() && self.temperature != Some(0.0))?;
        let mode = |mode| match mode {
            SummaryMode::Abstract => v1::SummaryMode::Abstract.into(),
            SummaryMode::Extract => v1::SummaryMode::Extract.into(),
        };
        let options = v1::SummarizeOptions {
            model: self.model.clone(),
            mode: self.mode.map(mode),
            sentences: self.sentences,
            beam_size: self.beam_size,
            hypotheses: self.hypotheses,
            sampling,
            document_id: self.document_id.clone(),
            hard_topk: self.hard_topk,
            constraint: self.constraint()?,
            ..self.summary_options()
        };
        Ok(call_messages(options, self.document.as_deref().unwrap_or_default()))
    }

    /// Returns the messages of `Summarize` for a completion by a model that summarizes, one list for each prompt. Ids that do not end with
    /// the end mark get it: clients of models that continue texts add none. Without a temperature above 0, the text comes from a beam
    /// search by these `rules`, or is greedy if the search lacks one of the options. Fails if an option is unsupported; `Summarize` checks
    /// the others.
    pub(crate) fn summarize_requests(
        &self,
        model: &str,
        end: u32,
        rules: SearchRules,
    ) -> Result<Vec<Vec<SummarizeRequest>>> {
        self.reject_unsummarized()?;
        let is_sampled = self.temperature.is_some_and(|temperature| temperature != 0.0);
        self.check_do_sample(is_sampled)?;
        let n = self.choices_per_prompt();
        let prompts = self.prompt.list()?;
        check_choices(n, prompts.len())?;
        let width = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let beam = self.beam();
        if beam.is_some() && self.beam_size.is_some_and(|size| beam != Some(size)) {
            return Err(Error::Exclusive { first: "best_of", second: "beam_size" });
        }
        if let Some(beam) = beam.filter(|beam| *beam < width(n)) {
            return Err(Error::bad_option("best_of", beam.to_string(), format!("at least {n} (the value of n)")));
        }
        if self.temperature.is_none() {
            self.reject_cuts()?;
        }
        let sampling = v1::Sampling { temperature: self.temperature.or(Some(0.0)), ..self.summary_sampling()? };
        let options = v1::SummarizeOptions {
            model: Some(model.to_owned()),
            beam_size: beam,
            hypotheses: Some(width(n)),
            sampling: (is_sampled || self.has_unsearched(rules, beam.unwrap_or(width(n)))).then_some(sampling),
            constraint: self.constraint()?,
            ..self.summary_options()
        };
        let messages = |prompt: &Prompt| match prompt {
            Prompt::Text(text) => call_messages(options.clone(), text),
            Prompt::Ids(ids) => {
                let end = Some(end).filter(|end| ids.last() != Some(end));
                let ids = ids.iter().copied().chain(end).collect();
                let chunk = v1::DocumentChunk { ids, ..Default::default() };
                [Part::Options(options.clone()), Part::Chunk(chunk)]
                    .map(|part| SummarizeRequest { part: Some(part) })
                    .into()
            }
        };
        Ok(prompts.iter().map(messages).collect())
    }

    /// Returns the width of the beam of a completion by a model that summarizes.
    pub(crate) fn beam(&self) -> Option<u32> {
        self.best_of.map(|best_of| u32::try_from(best_of).unwrap_or(u32::MAX)).or(self.beam_size)
    }

    /// Returns the options that summaries and completions have in common.
    fn summary_options(&self) -> v1::SummarizeOptions {
        let long_documents = |chosen| match chosen {
            LongDocuments::Refuse => v1::LongDocuments::Refuse.into(),
            LongDocuments::Cut => v1::LongDocuments::Cut.into(),
            LongDocuments::Chunk => v1::LongDocuments::Chunk.into(),
        };
        v1::SummarizeOptions {
            length_penalty: self.length_penalty,
            min_tokens: self.min_tokens,
            max_tokens: self.max_tokens,
            no_repeat_ngram: self.no_repeat_ngram,
            cut: self.cut,
            priority: self.priority,
            early_stopping: self.early_stopping.map(|when| when.name().to_owned()),
            repetition_penalty: self.repetition_penalty,
            long_documents: self.long_documents.map(long_documents),
            ..Default::default()
        }
    }

    /// Returns the options of sampling but the repetition penalty, which beams have as well.
    fn summary_sampling(&self) -> Result<v1::Sampling> {
        let seed = self.seed.map(|Seed(seed)| seed);
        Ok(v1::Sampling { repetition_penalty: None, ..self.sampling(self.top_k()?, seed) })
    }

    /// Fails if `do_sample` contradicts the other options.
    fn check_do_sample(&self, is_sampled: bool) -> Result<()> {
        match self.do_sample {
            Some(stated) if stated != is_sampled => Err(Error::bad_option(
                "do_sample",
                stated.to_string(),
                format!("{is_sampled} (as the other options say)"),
            )),
            _ => Ok(()),
        }
    }

    /// Fails if an option of searches would change a text that a model continues symbol by symbol.
    fn reject_searched(&self) -> Result<()> {
        let early_stopping = self.early_stopping.filter(|when| *when != EarlyStopping::False);
        for (field, found, neutral) in [
            ("beam_size", self.beam_size.filter(|size| *size != 1).map(|size| size.to_string()), "1"),
            ("no_repeat_ngram", self.no_repeat_ngram.filter(|size| *size != 0).map(|size| size.to_string()), "0"),
            ("length_penalty", other_than(1.0, self.length_penalty), "1"),
            ("early_stopping", early_stopping.map(|when| when.name().to_owned()), "false"),
        ] {
            if let Some(found) = found {
                return Err(Error::bad_option(field, found, format!("{neutral} (this model does not summarize)")));
            }
        }
        Ok(())
    }

    /// Returns true if an option is set that changes a greedy text, but not a beam search by these rules.
    fn has_unsearched(&self, rules: SearchRules, beam: u32) -> bool {
        let is_set = |neutral, value| other_than(neutral, value).is_some();
        let penalizes = is_set(0.0, self.presence_penalty) || is_set(0.0, self.frequency_penalty);
        let repeats = rules == SearchRules::Fairseq && beam == 1 && is_set(1.0, self.repetition_penalty);
        penalizes || repeats || !self.logit_bias.0.is_empty()
    }

    /// Fails if an option limits the tokens to sample from. Called for requests without a temperature, whose text is searched.
    fn reject_cuts(&self) -> Result<()> {
        for (field, found) in [
            ("top_k", self.top_k()?.filter(|k| *k != 0).map(|k| k.to_string())),
            // 0 stands for the most probable symbol, which a search takes.
            ("top_p", other_than(1.0, self.top_p.filter(|top_p| *top_p != 0.0))),
            ("min_p", other_than(0.0, self.min_p)),
        ] {
            if let Some(found) = found {
                return Err(Error::bad_option(field, found, "no value without a temperature"));
            }
        }
        Ok(())
    }

    /// Fails if an option is set that summaries do not have.
    fn reject_unsummarized(&self) -> Result<()> {
        let is_true = |flag: Option<bool>| flag.filter(|flag| *flag).map(|flag| flag.to_string());
        for (field, found) in [
            ("echo", is_true(self.echo)),
            ("ignore_eos", is_true(self.ignore_eos)),
            ("boundaries", is_true(self.boundaries)),
            ("boundary_mode", self.boundary_mode.as_deref().map(quoted)),
            ("boundary_threshold", self.boundary_threshold.map(|threshold| threshold.to_string())),
            ("logprobs", self.logprobs.map(|count| count.to_string())),
            ("max_segments", self.max_segments.map(|count| count.to_string())),
            ("resume_text", self.resume_text.as_deref().filter(|text| !text.is_empty()).map(quoted)),
            ("end_when_complete", is_true(self.end_when_complete)),
        ] {
            if let Some(found) = found {
                return Err(Error::bad_option(field, found, "no value (this model summarizes the prompt)"));
            }
        }
        Ok(())
    }
}

/// Returns a number unless it is absent or changes nothing.
fn other_than(neutral: f32, value: Option<f32>) -> Option<String> {
    value.filter(|value| *value != neutral).map(|value| value.to_string())
}

/// Returns the messages of a call: options, then the document in chunks that end at a character boundary.
fn call_messages(options: v1::SummarizeOptions, mut document: &str) -> Vec<SummarizeRequest> {
    let mut messages = vec![SummarizeRequest { part: Some(Part::Options(options)) }];
    while !document.is_empty() {
        let (chunk, rest) = document.split_at(floor_boundary(document, CHUNK_BYTES));
        messages.push(SummarizeRequest {
            part: Some(Part::Chunk(v1::DocumentChunk { text: chunk.to_owned(), ..Default::default() })),
        });
        document = rest;
    }
    messages
}

// The fields of a request.

/// The path of a request, which decides about its fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    /// `/v1/completions`, and parameters of the Open Inference Protocol.
    Completions,
    /// `/v1/summaries`.
    Summaries,
}

impl fmt::Display for Path {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if *self == Self::Completions { "/v1/completions" } else { "/v1/summaries" })
    }
}

/// What a field means that the server does not support, at least on one path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OtherField {
    /// It cannot change the text.
    Ignored,
    /// It changes the text, unless its value is empty ([`EMPTY`]) or one of these, separated by ` or `.
    Refused(&'static str),
    /// It changes the text, and only this path supports it. On others, its value may be empty or one of these.
    OnlyOf(Path, &'static str),
}

/// Values that count as absent, as [`Description`] has them. An object without fields may mean something.
const EMPTY: [&str; 3] = ["null", "\"\"", "[]"];

/// The fields of OpenAI, vLLM, SGLang, TGI, llama.cpp, KoboldCpp, Ollama, transformers and Triton that the server does not support, and
/// those that only one path supports. Completions ignore a field that is not here either; summaries refuse it.
const OTHER_FIELDS: [(OtherField, &str); 16] = [
    (
        OtherField::Ignored,
        "user store metadata service_tier safety_identifier prompt_cache_key prompt_cache_retention prediction request_id \
         rid session_id extra_key cache_salt cache_prompt id_slot n_keep n_cache_reuse use_cache cache_implementation \
         keep_alive details decoder_input_details parallel_tool_calls top_n_tokens top_logprobs prompt_logprobs n_probs \
         return_logprob logprob_start_len top_logprobs_num logprob_token_ids post_sampling_probs return_token_ids \
         return_tokens return_tokens_as_token_ids return_hidden_states output_scores output_logits \
         return_dict_in_generate response_fields timings_per_token return_progress stream_interval \
         guided_decoding_backend guided_whitespace_pattern spaces_between_special_tokens truncation_side \
         dynatemp_exponent dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_threshold \
         mirostat_tau mirostat_eta pad_token_id bos_token_id num_assistant_tokens prompt_lookup_num_tokens",
    ),
    (
        OtherField::Refused("null"),
        "structural_tag guided_json guided_regex guided_choice guided_grammar guided_decoding structured_output choice \
         json_schema regex ebnf grammar format tools functions stop_strings stop_sequence stop_sequences stop_words \
         stop_regex stop_str stop_token stop_token_ids stopping_strings eos_token_id end_id bad_words bad_words_ids \
         banned_strings banned_tokens force_words_ids forced_words_ids embedding_bias_words embedding_bias_weights \
         runtime_top_k runtime_top_p top_p_min top_p_decay allowed_token_ids suppress_tokens begin_suppress_tokens \
         forced_bos_token_id forced_eos_token_id forced_decoder_ids decoder_start_token_id sequence_bias constraints \
         logits_processors custom_logit_processor custom_params vllm_xargs samplers top_h dola_layers \
         exponential_decay_length_penalty repetition_detection n_predict num_predict max_length max_time truncate \
         max_output_tokens max_tokens_to_sample max_gen_len stopSequences rep_pen rep_pen_range grammar_string \
         truncate_prompt_tokens sampling_seed random_seed inputs input input_ids prompt_token_ids prompt_embeds \
         input_embeds text messages suffix input_prefix input_suffix input_extra negative_prompt negative_prompt_ids \
         system template chat_template images image_data audio_data multimodal_data session_params lora lora_path \
         lora_request lora_name lora_id adapter_id adapters watermarking_config reasoning reasoning_effort verbosity \
         web_search_options sampler_order sampler_seed custom_token_bans memory context decoder_input_ids penalty_prompt \
         logits_bias bias antislop modalities maxTokens topP topK frequencyPenalty presencePenalty",
    ),
    (
        OtherField::Refused("{}"),
        "extra_body options parameters sampling_params generation_config chat_template_kwargs nvext",
    ),
    (OtherField::Refused("\"none\" or \"auto\""), "tool_choice function_call"),
    (
        OtherField::Refused("false"),
        "use_beam_search json_object guided_json_object ban_eos_token watermark watermarking return_full_text no_stop_trim token_healing \
         renormalize_logits continue_final_message raw penalize_nl dynamic_temperature temperature_last",
    ),
    (OtherField::Refused("true"), "add_special_tokens skip_special_tokens"),
    (
        OtherField::Refused("0"),
        "mirostat mirostat_mode xtc_probability dry_multiplier dynatemp_range penalty_alpha epsilon_cutoff eta_cutoff n_indent min_keep \
         t_max_predict_ms min_length encoder_no_repeat_ngram_size diversity_penalty top_a smoothing_factor repetition_penalty_range",
    ),
    (
        OtherField::Refused("1"),
        "typical typical_p tfs tfs_z repeat_penalty encoder_repetition_penalty num_beam_groups beam_width guidance_scale cfg_scale \
         num_return_sequences n_cmpl len_penalty",
    ),
    (OtherField::Refused("-1"), "top_n_sigma adaptive_target thinking_token_budget"),
    (OtherField::Refused("-1 or 64"), "repeat_last_n"),
    (
        OtherField::OnlyOf(Path::Completions, "null"),
        "prompt logprobs boundary_mode boundary_threshold max_segments resume_text end_when_complete",
    ),
    (OtherField::OnlyOf(Path::Completions, "{}"), "logit_bias"),
    (OtherField::OnlyOf(Path::Completions, "1"), "n best_of"),
    (OtherField::OnlyOf(Path::Completions, "false"), "ignore_eos echo boundaries return_token_offsets"),
    (OtherField::OnlyOf(Path::Summaries, "null"), "document document_id hard_topk mode sentences"),
    (OtherField::OnlyOf(Path::Summaries, "1"), "hypotheses"),
];

/// A field whose value may change the text, on a path that does not support it.
#[derive(Clone, Copy)]
struct RefusedField {
    name: &'static str,
    /// The values that it may have, separated by ` or `.
    values: &'static str,
    /// The path that supports it.
    supporting: Option<Path>,
}

impl RefusedField {
    /// Checks a value, as [`Description`] has it.
    fn check(self, found: String) -> Result<()> {
        let Self { name, values, supporting } = self;
        if EMPTY.contains(&&*found) || values.split(" or ").any(|value| value == found) {
            return Ok(());
        }
        let bound = match supporting {
            Some(path) => format!("{values} (a field of {path})"),
            None if values.contains(" or ") => format!("{values} (the only supported values)"),
            None => format!("{values} (the only supported value)"),
        };
        Err(Error::bad_option(name, found, bound))
    }
}

impl Path {
    /// Returns a field that this path does not support, if its value may change the text.
    fn refused_field(self, name: &str) -> Option<RefusedField> {
        OTHER_FIELDS.iter().find_map(|&(field, names)| {
            let (values, supporting) = match field {
                OtherField::Refused(values) => (values, None),
                OtherField::OnlyOf(path, values) if path != self => (values, Some(path)),
                OtherField::OnlyOf(..) | OtherField::Ignored => return None,
            };
            Some(RefusedField { name: listed(name, names)?, values, supporting })
        })
    }
}

/// Returns a name out of a list whose names are separated by spaces.
fn listed(name: &str, names: &'static str) -> Option<&'static str> {
    names.split(' ').find(|listed| *listed == name)
}

/// Parses a JSON object, in which a whole number may be written as `10.0` or `1e1`. Errors call it `input`. Fails with
/// [`Error::Unreadable`], which names the malformed field.
pub(crate) fn parse_json<'a, T: DeserializeOwned>(json: impl Into<Cow<'a, [u8]>>, input: &str) -> Result<T> {
    parse(json.into(), input, None)
}

fn parse<T: DeserializeOwned>(mut json: Cow<'_, [u8]>, input: &str, path: Option<Path>) -> Result<T> {
    // serde would accept a list as the fields in their order.
    if json.trim_ascii_start().first() == Some(&b'[') {
        let why = format!("{input}: expected an object, found a list");
        return Err(Error::Unreadable { field: None, why });
    }
    let unpaired = scan(&mut json);
    // What follows an unpaired surrogate is left out, so that the error is about its string.
    let mut deserializer = serde_json::Deserializer::from_slice(&json[..unpaired.unwrap_or(json.len())]);
    let read = read_fields(&mut deserializer, path);
    if let (Err(Unread::Malformed(error)), Some(at)) = (&read, unpaired)
        && error.inner().is_eof()
    {
        let escape = String::from_utf8_lossy(&json[at..(at + ESCAPE).min(json.len())]);
        let (line, column) = (error.inner().line(), error.inner().column() + 1);
        let field = key(&error.path().to_string()).to_owned();
        let name = if field.is_empty() { input } else { &field };
        let why = format!(
            "{name}: expected Unicode text, found half of a surrogate pair, {escape} (line {line} column {column})"
        );
        return Err(Error::Unreadable { field: Some(field).filter(|field| !field.is_empty()), why });
    }
    let parsed = read.map_err(|unread| unread.into_error(input))?;
    deserializer.end().map_err(|error| unreadable(input, "", &error))?;
    Ok(parsed)
}

/// Parses a JSON value, in which a whole number may be written as `10.0` or `1e1`.
pub(crate) fn parse_value(text: &str) -> serde_json::Result<Value> {
    let mut json = Cow::from(text.as_bytes());
    scan(&mut json);
    serde_json::from_slice(&json)
}

/// Bytes of an escape such as `\u000a`.
const ESCAPE: usize = 6;

/// Writes each number such as `10.0`, `1e1` or `-0` with digits only, and spaces in the place of the rest. Returns the place of the first
/// escape of a surrogate without its other half: such a string has no UTF-8, and serde_json describes each kind in other words.
fn scan(json: &mut Cow<'_, [u8]>) -> Option<usize> {
    let mut written = Vec::new();
    let mut copied = 0;
    let mut at = 0;
    let mut unpaired = None;
    while at < json.len() {
        match json[at] {
            b'"' => match string_end(json, at + 1) {
                Ok(end) => at = end,
                Err(escape) => {
                    unpaired = Some(written.len() + escape - copied);
                    break;
                }
            },
            b'0'..=b'9' => {
                let is_part = |byte: &&u8| byte.is_ascii_digit() || b".eE+-".contains(byte);
                let end = at + json[at..].iter().take_while(is_part).count();
                let number = &json[at..end];
                let is_negative = json[copied..at].ends_with(b"-");
                let zero = || (is_negative && number == b"0").then_some(Cow::Borrowed("0"));
                if let Some(digits) = whole_number(number).or_else(zero) {
                    // serde_json reads -0 as a fraction
                    let start = if is_negative && digits == "0" { at - 1 } else { at };
                    written.extend_from_slice(&json[copied..start]);
                    written.extend_from_slice(digits.as_bytes());
                    written.resize(written.len() + (end - start).saturating_sub(digits.len()), b' ');
                    copied = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    if copied > 0 {
        written.extend_from_slice(&json[copied..]);
        *json = Cow::Owned(written);
    }
    unpaired
}

/// Returns the digits of a number that is whole and not written with digits only. One with an exponent counts up to 10^9, so that no text
/// grows much.
fn whole_number(number: &[u8]) -> Option<Cow<'_, str>> {
    let point = number.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match number.get(point..)? {
        [] => None,
        [b'.', zeros @ ..] if !zeros.is_empty() && zeros.iter().all(|digit| *digit == b'0') => {
            std::str::from_utf8(&number[..point]).ok().map(Cow::Borrowed)
        }
        rest if rest.iter().any(|byte| b"eE".contains(byte)) => {
            let value: f64 = serde_json::from_slice(number).ok()?;
            (value.fract() == 0.0 && value <= 1e9).then(|| Cow::Owned(format!("{value}")))
        }
        _ => None,
    }
}

/// Returns the place behind the string whose text begins at `at`. Fails with the place of its first unpaired surrogate.
fn string_end(json: &[u8], mut at: usize) -> Result<usize, usize> {
    let unit = |at: usize| {
        let digits = json.get(at..at + ESCAPE)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    while let Some(byte) = json.get(at) {
        at += match byte {
            b'"' => return Ok(at + 1),
            b'\\' => match (unit(at), unit(at + ESCAPE)) {
                (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 2 * ESCAPE,
                (Some(0xd800..=0xdfff), _) => return Err(at),
                _ => 2,
            },
            _ => 1,
        };
    }
    Ok(json.len())
}

/// Why the fields of a request cannot be read.
enum Unread {
    /// The path refuses a field.
    Refused(Error),
    /// A value is malformed, or the JSON is.
    Malformed(serde_path_to_error::Error<serde_json::Error>),
}

impl Unread {
    fn into_error(self, input: &str) -> Error {
        match self {
            Self::Refused(error) => error,
            Self::Malformed(error) => unreadable(input, &error.path().to_string(), error.inner()),
        }
    }
}

/// Reads the fields of a request, and refuses those that `path` refuses.
fn read_fields<'de, T, D>(deserializer: D, path: Option<Path>) -> Result<T, Unread>
where
    T: DeserializeOwned,
    D: Deserializer<'de, Error = serde_json::Error>,
{
    let mut refusal = None;
    let fields = Fields { inner: deserializer, known: &[], path, refused: None, refusal: &mut refusal };
    let read = serde_path_to_error::deserialize(fields);
    read.map_err(|error| refusal.map_or(Unread::Malformed(error), Unread::Refused))
}

/// The fields of a request while they are read: its type's are passed on, and the others are checked.
struct Fields<'a, I> {
    /// The deserializer of the request, the visitor of its type, or the fields.
    inner: I,
    /// The fields of its type.
    known: &'static [&'static str],
    /// `None` if the others are ignored.
    path: Option<Path>,
    /// The field whose value is read next, if it is one that the path refuses.
    refused: Option<RefusedField>,
    /// Why the request is refused.
    refusal: &'a mut Option<Error>,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Fields<'_, D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let Fields { inner, path, refusal, .. } = self;
        inner.deserialize_struct(name, known, Fields { inner: visitor, known, path, refused: None, refusal })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Fields<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<V::Value, M::Error> {
        let Fields { inner, known, path, refusal, .. } = self;
        inner.visit_map(Fields { inner: map, known, path, refused: None, refusal })
    }
}

impl<'de, M: MapAccess<'de>> MapAccess<'de> for Fields<'_, M> {
    type Error = M::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, M::Error> {
        let Some(name) = self.inner.next_key::<String>()? else { return Ok(None) };
        self.refused = self.path.and_then(|path| path.refused_field(&name));
        let is_known =
            || self.known.contains(&&*name) || OTHER_FIELDS.iter().any(|(_, names)| listed(&name, names).is_some());
        if let Some(path) = self.path.filter(|_| !is_known()) {
            if path == Path::Summaries {
                let why = format!("{name}: expected a field of /v1/summaries, found an unknown key");
                *self.refusal = Some(Error::Unreadable { field: Some(name), why });
                return Err(M::Error::custom("an unknown field"));
            }
            tracing::debug!(field = quoted(&name), "ignored an unknown field");
        }
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, M::Error> {
        let Some(field) = self.refused.take() else { return self.inner.next_value_seed(seed) };
        let Description(found) = self.inner.next_value()?;
        if let Err(error) = field.check(found) {
            *self.refusal = Some(error);
            return Err(M::Error::custom("a refused field"));
        }
        // absent
        seed.deserialize(().into_deserializer())
    }
}

/// A value in a few words: a scalar, an empty list, an empty object, or an object of one field as JSON, others by their type. A list
/// of nulls and empty strings counts as empty.
struct Description(String);

impl<'de> Deserialize<'de> for Description {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DescriptionVisitor).map(Self)
    }
}

struct DescriptionVisitor;

impl<'de> Visitor<'de> for DescriptionVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<String, E> {
        Ok("null".to_owned())
    }

    fn visit_bool<E>(self, value: bool) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_i64<E>(self, value: i64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_u64<E>(self, value: u64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_f64<E>(self, value: f64) -> Result<String, E> {
        // Zero has no sign.
        Ok((value + 0.0).to_string())
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(quoted(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<String, A::Error> {
        let mut is_empty = true;
        while is_empty && let Some(Description(element)) = list.next_element()? {
            is_empty = EMPTY.contains(&&*element);
        }
        count_rest(&mut list)?;
        Ok(if is_empty { "[]" } else { "a list" }.to_owned())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<String, A::Error> {
        let Some((name, Description(value))) = map.next_entry::<String, Description>()? else {
            return Ok("{}".to_owned());
        };
        let mut is_single = true;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            is_single = false;
        }
        Ok(if is_single { format!("{{{}:{value}}}", quoted(&name)) } else { "an object".to_owned() })
    }
}

/// Returns the error of a value at `path`, as serde writes paths. The message begins with the path, or with `input` if it is empty.
fn unreadable(input: &str, path: &str, error: &serde_json::Error) -> Error {
    let path = key(path);
    let message = error.to_string();
    let mismatch = mismatch(&message, vec![path], error.is_data());
    let field = Some(&mismatch.key).filter(|key| !key.is_empty());
    let why = format!("{}: {mismatch}", field.map_or(input, String::as_str));
    Error::Unreadable { field: field.cloned(), why }
}

/// Returns a path of serde's as errors state it. It ends with `?` where the text ends within a key, and is `.` at the root.
fn key(path: &str) -> &str {
    path.trim_end_matches('?').trim_end_matches('.')
}

/// Returns the names of the fields of a request, aliases included, as serde derives them.
pub(crate) fn field_names<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names = FieldNames(&[]);
    // Never succeeds: there are no values.
    let _ = T::deserialize(&mut names);
    names.0
}

/// A deserializer that takes the names of a struct's fields, and fails.
struct FieldNames(&'static [&'static str]);

impl<'de> Deserializer<'de> for &mut FieldNames {
    type Error = de::value::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0 = fields;
        self.deserialize_any(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("only names are read"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

// Lists in a request's JSON, bounded while they are parsed: no element beyond the limit is stored.

/// Null, a string, or a list of at most `MAX` strings. Empty strings and nulls count as absent.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Texts<const MAX: usize>(pub(crate) Vec<String>);

impl<'de, const MAX: usize> Deserialize<'de> for Texts<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextsVisitor::<MAX>)
    }
}

struct TextsVisitor<const MAX: usize>;

impl<'de, const MAX: usize> Visitor<'de> for TextsVisitor<MAX> {
    type Value = Texts<MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string or a list of at most {MAX} strings")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Texts::default())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Texts(if text.is_empty() { Vec::new() } else { vec![text.to_owned()] }))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut texts = Vec::new();
        while texts.len() < MAX
            && let Some(text) = list.next_element::<Option<String>>()?
        {
            texts.extend(text.filter(|text| !text.is_empty()));
        }
        check_count(MAX, "strings", texts.len() + count_rest(&mut list)?)?;
        Ok(Texts(texts))
    }
}

/// Counts the rest of a list without storing it.
fn count_rest<'de, A: SeqAccess<'de>>(list: &mut A) -> Result<usize, A::Error> {
    let mut count = 0;
    while list.next_element::<IgnoredAny>()?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// Fails if there are more than `limit` elements, which the error calls `unit`.
fn check_count<E: de::Error>(limit: usize, unit: &str, count: usize) -> Result<(), E> {
    if count > limit {
        return Err(E::custom(format!("expected at most {limit} {unit}, found {count}")));
    }
    Ok(())
}

/// Biases by symbol id: null, or an object whose keys are ids.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Biases(pub(crate) Vec<Bias>);

/// A number that is added to the logit of a symbol.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bias {
    id: u32,
    value: f32,
}

impl<'de> Deserialize<'de> for Biases {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BiasesVisitor)
    }
}

struct BiasesVisitor;

impl<'de> Visitor<'de> for BiasesVisitor {
    type Value = Biases;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of at most {} symbol ids, each with a number as its value", OptionLimits::LOGIT_BIAS)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Biases::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut biases = Vec::new();
        while biases.len() < OptionLimits::LOGIT_BIAS
            && let Some(key) = map.next_key::<String>()?
        {
            let is_number = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
            let id = match key.parse() {
                Ok(id) => id,
                // No vocabulary has a symbol of either id.
                Err(_) if is_number => u32::MAX,
                Err(_) => return Err(A::Error::custom(format!("expected symbol ids as keys, found {}", quoted(&key)))),
            };
            let value: f64 = map.next_value()?;
            biases.push(Bias { id, value: value as f32 });
        }
        let mut count = biases.len();
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            count += 1;
        }
        check_count(OptionLimits::LOGIT_BIAS, "symbol ids", count)?;
        Ok(Biases(biases))
    }
}

/// Maximum choices of one request, of all prompts together.
pub(crate) const MAX_CHOICES: usize = 64;

/// Checks the number of choices for each of these prompts, of which there is at least one.
pub(crate) fn check_choices(n: usize, prompts: usize) -> Result<()> {
    if n > 0 && n.saturating_mul(prompts) <= MAX_CHOICES {
        return Ok(());
    }
    let bound = match prompts {
        1 => format!("1 to {MAX_CHOICES}"),
        _ => format!("1 to {} ({MAX_CHOICES} choices for {prompts} prompts together)", MAX_CHOICES / prompts),
    };
    Err(Error::bad_option("n", n.to_string(), bound))
}

/// Maximum ids of a prompt, about as over gRPC: a message has at most 65,536 fields there, and each id counts as one.
const MAX_IDS: usize = 65_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    /// Ids of the model's vocabulary, which OpenAI's API calls tokens.
    Ids(Vec<u32>),
}

/// The field `prompt` of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Prompts<const MAX: usize> {
    /// The request has no such field.
    #[default]
    Missing,
    Null,
    /// At most `MAX` prompts.
    List(Vec<Prompt>),
}

impl<const MAX: usize> Prompts<MAX> {
    /// Returns the prompts, at least one. Fails if the request has none.
    pub(crate) fn list(&self) -> Result<&[Prompt]> {
        let found = match self {
            Self::Missing => "nothing",
            Self::Null => "null",
            Self::List(list) if list.is_empty() => "an empty list",
            Self::List(list) => return Ok(list),
        };
        Err(Error::bad_option("prompt", found, "at least one symbol"))
    }
}

impl<'de, const MAX: usize> Deserialize<'de> for Prompts<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor::<MAX>)
    }
}

struct PromptsVisitor<const MAX: usize>;

impl<'de, const MAX: usize> Visitor<'de> for PromptsVisitor<MAX> {
    type Value = Prompts<MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string, a list of token ids, or a list of at most {MAX} of either")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Prompts::Null)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Prompts::List(vec![Prompt::Text(text.to_owned())]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut prompts = Vec::new();
        let mut ids = Vec::new();
        while let Some(element) = list.next_element()? {
            match element {
                Element::Id(_) if ids.len() == MAX_IDS => check_ids(MAX_IDS + 1 + count_rest(&mut list)?)?,
                Element::Id(id) if prompts.is_empty() => ids.push(id),
                Element::Prompt(_) if prompts.len() == MAX => {
                    check_count(MAX, "prompts", MAX + 1 + count_rest(&mut list)?)?;
                }
                Element::Prompt(prompt) if ids.is_empty() => prompts.push(prompt),
                _ => return Err(A::Error::custom("expected either token ids or prompts, found both")),
            }
        }
        if !ids.is_empty() {
            prompts.push(Prompt::Ids(ids));
        }
        Ok(Prompts::List(prompts))
    }
}

/// An element of a list: a prompt, or an id of the only prompt.
enum Element {
    Id(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string, a token id from 0 to {}, or a list of token ids", u32::MAX)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Prompt(Prompt::Text(text.to_owned())))
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<Element, E> {
        u32::try_from(id).map(Element::Id).map_err(|_| E::invalid_value(Unexpected::Unsigned(id), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
        let mut ids = Vec::new();
        while ids.len() < MAX_IDS
            && let Some(id) = list.next_element()?
        {
            ids.push(id);
        }
        check_ids(ids.len() + count_rest(&mut list)?)?;
        if ids.is_empty() {
            return Err(A::Error::custom("expected at least one token id, found none"));
        }
        Ok(Element::Prompt(Prompt::Ids(ids)))
    }
}

/// Fails if a prompt has too many ids.
fn check_ids<E: de::Error>(count: usize) -> Result<(), E> {
    check_count(MAX_IDS, "token ids in a prompt", count)
}

/// A signed or unsigned 64-bit number, or its text. Responses report seeds as text because many JSON parsers round such numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SeedVisitor)
    }
}

struct SeedVisitor;

impl Visitor<'_> for SeedVisitor {
    type Value = Seed;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a whole number from -2^63 to 2^64 - 1")
    }

    fn visit_u64<E>(self, seed: u64) -> Result<Seed, E> {
        Ok(Seed(seed))
    }

    fn visit_i64<E>(self, seed: i64) -> Result<Seed, E> {
        Ok(Seed(seed.cast_unsigned()))
    }

    /// Reads a number such as `1e19`, because `to_string` writes out all of its digits.
    fn visit_f64<E: de::Error>(self, seed: f64) -> Result<Seed, E> {
        self.visit_str(&seed.to_string()).map_err(|_: E| E::invalid_value(Unexpected::Float(seed), &SeedVisitor))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Seed, E> {
        let signed = |_| text.parse().map(i64::cast_unsigned);
        text.parse().or_else(signed).map(Seed).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// The setting as text: a name, or a number of characters. The gRPC service checks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Speculate(pub(crate) String);

impl<'de> Deserialize<'de> for Speculate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpeculateVisitor)
    }
}

struct SpeculateVisitor;

impl Visitor<'_> for SpeculateVisitor {
    type Value = Speculate;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(Speculation::EXPECTED)
    }

    fn visit_u64<E>(self, number: u64) -> Result<Speculate, E> {
        Ok(Speculate(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Speculate, E> {
        Ok(Speculate(text.to_owned()))
    }
}

/// Returns a form under the names of vLLM's `structured_outputs`.
fn structured_outputs(constraint: v1::Constraint) -> Result<Value> {
    Ok(match constraint.form {
        Some(Form::Regex(regex)) => json!({ "regex": regex }),
        Some(Form::Choice(choice)) => json!({ "choice": choice.texts }),
        Some(Form::JsonSchema(schema)) => {
            let schema: Value = serde_json::from_str(&schema)
                .map_err(|error| Error::bad_option("constraint.json_schema", quoted(&schema), error.to_string()))?;
            json!({ "json": schema })
        }
        Some(Form::JsonObject(is_object)) => json!({ "json_object": is_object }),
        Some(Form::Grammar(grammar)) => json!({ "grammar": grammar }),
        None => json!({}),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};
    use weir_models::text::{TextNormaliser, Vocabulary};

    fn requests(body: &str) -> Result<Vec<v1::GenerateRequest>> {
        Ok(CompletionRequest::parse(body.as_bytes(), Path::Completions)?.generate_requests()?.collect())
    }

    #[test]
    fn the_default_length_depends_on_the_vocabulary() {
        let length = |body: &str, card: &Card| {
            let mut request = CompletionRequest::parse(body.as_bytes(), Path::Completions).unwrap();
            request.adapt_to(card);
            request.max_tokens
        };
        let short = Card::for_tests(Vocabulary::byte_level(TextNormaliser::None));
        let bytes = Card { max_symbols: 1000, ..short.clone() };
        let tokens = Card::for_tests(Vocabulary::from_tokenizer(9, None, TextNormaliser::None).unwrap());
        for (card, expected) in [(&bytes, 128), (&tokens, 16), (&short, 100)] {
            assert_eq!(length(r#"{"max_tokens": null}"#, card), Some(expected));
            assert_eq!(length(r#"{"max_tokens": 7}"#, card), Some(7));
        }
    }

    /// Every value that changes nothing is accepted on both paths, and another one is refused by name.
    #[test]
    fn fields_of_other_servers_are_in_one_table() {
        let known = field_names::<CompletionRequest>();
        for (field, names) in OTHER_FIELDS {
            for (name, path) in names.split(' ').flat_map(|name| [(name, Path::Completions), (name, Path::Summaries)]) {
                let read = |value: &str| {
                    CompletionRequest::parse(format!("{{\"{name}\": {value}}}").as_bytes(), path).map(drop)
                };
                assert_eq!(known.contains(&name), matches!(field, OtherField::OnlyOf(..)), "{name}");
                let values = match field {
                    OtherField::Ignored => {
                        read("[{}]").unwrap();
                        continue;
                    }
                    OtherField::OnlyOf(supporting, _) if supporting == path => continue,
                    OtherField::Refused(values) | OtherField::OnlyOf(_, values) => values,
                };
                values.split(" or ").chain(EMPTY).for_each(|value| read(value).unwrap());
                for value in ["[0]", "{\"a\": 1}", "\"x\"", "7.5"] {
                    assert!(
                        matches!(read(value), Err(Error::BadOption { field, .. }) if field == name),
                        "{name}: {value}"
                    );
                }
            }
        }
    }

    /// Returns the fields of a message, those of its messages included, dotted after `prefix`.
    fn dotted_fields(messages: &[DescriptorProto], message: &str, prefix: &str) -> Vec<String> {
        let message = messages.iter().find(|found| found.name() == message).unwrap();
        let fields = message.field.iter().flat_map(|field| {
            let name = format!("{prefix}{}", field.name());
            match field.type_name().rsplit('.').next().filter(|_| field.r#type() == Type::Message) {
                Some(nested) if nested != "LogitBias" => dotted_fields(messages, nested, &format!("{}.", field.name())),
                _ => vec![name],
            }
        });
        fields.collect()
    }

    #[test]
    fn every_field_of_a_call_has_its_own_name() {
        let set = FileDescriptorSet::decode(weir_proto::FILE_DESCRIPTOR_SET).unwrap();
        let messages: Vec<_> = set.file.into_iter().flat_map(|file| file.message_type).collect();
        let known = field_names::<CompletionRequest>();
        // Over gRPC only.
        let without =
            ["stream.coalesce_chars", "stream.per_segment", "resume_ids", "details.ids", "options.kept_tokens"];
        for (surface, message, prefix) in [
            (Surface::Completions, "GenerateRequest", ""),
            (Surface::Summaries, "SummarizeOptions", "options."),
            (Surface::SummarizedPrompts, "SummarizeOptions", "options."),
        ] {
            for field in dotted_fields(&messages, message, prefix) {
                let own = surface.own_name(field.clone().leak());
                let own = own.split_once('.').map_or(own, |(object, _)| object);
                assert!(known.contains(&own) || without.contains(&&*field), "{field}: {own}");
            }
        }
    }

    #[test]
    fn whole_numbers_may_have_a_fraction() {
        for (json, scanned) in [
            (r#"{"a": 10.0, "b": [1.00,-3.0]}"#, r#"{"a": 10  , "b": [1   ,-3  ]}"#),
            (r#"{"a": 2e0, "b": [-20e-1,1.0E+3, 1e9]}"#, r#"{"a": 2  , "b": [-2    ,1000  , 1000000000]}"#),
            (
                r#"[1.05, 1e-1, 1e3.0, 1.0.0, .0, 10., 1e, 01e1, 1e10, 1e999, 1.00000000000000001, "1.0", "\\", "\"1.0"]"#,
                r#"[1.05, 1e-1, 1e3.0, 1.0.0, .0, 10., 1e, 01e1, 1e10, 1e999, 1.00000000000000001, "1.0", "\\", "\"1.0"]"#,
            ),
            ("1.0", "1  "),
            (r#"[-0, -0.0, -0e0, -0.5, -00, 0, "-0"]"#, r#"[0 , 0   , 0   , -0.5, -00, 0, "-0"]"#),
            (r#""1.0"#, r#""1.0"#),
        ] {
            let mut found = Cow::from(json.as_bytes());
            assert_eq!((scan(&mut found), std::str::from_utf8(&found).unwrap()), (None, scanned));
        }
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
    fn documents_are_split_at_character_boundaries() {
        let text = format!("a{}", "é".repeat(CHUNK_BYTES));
        let (_, chunks) = options_and_chunks(call_messages(Default::default(), &text));
        assert!(chunks.len() > 2 && chunks.iter().all(|chunk| chunk.len() <= CHUNK_BYTES));
        assert_eq!(chunks.concat(), text);
        assert_eq!(call_messages(Default::default(), "").len(), 1);
    }

    fn options_and_chunks(messages: Vec<SummarizeRequest>) -> (v1::SummarizeOptions, Vec<String>) {
        let mut options = None;
        let mut chunks = Vec::new();
        for message in messages {
            match message.part.unwrap() {
                Part::Options(own) => options = Some(own),
                Part::Chunk(chunk) => chunks.push(chunk.text),
            }
        }
        (options.unwrap(), chunks)
    }

    #[test]
    fn summaries_are_sampled_only_on_request() {
        let options = |body: &str| {
            let request = CompletionRequest::parse(body.as_bytes(), Path::Summaries).unwrap();
            options_and_chunks(request.summary_messages().unwrap()).0
        };
        assert_eq!(options(r#"{"document": "a", "beam_size": 3}"#).sampling, None);
        assert!(options(r#"{"document": "a", "seed": 3}"#).sampling.is_some());
        let search = options(r#"{"document": "a", "repetition_penalty": 1.5, "early_stopping": true}"#);
        assert_eq!((search.sampling, search.repetition_penalty), (None, Some(1.5)));
        assert_eq!(search.early_stopping.as_deref(), Some("true"));
        let names = r#"{"document": "a", "num_beams": 2, "min_new_tokens": 3, "max_new_tokens": 4,
            "no_repeat_ngram_size": 5, "early_stopping": "never"}"#;
        let names = options(names);
        assert_eq!((names.beam_size, names.min_tokens, names.max_tokens), (Some(2), Some(3), Some(4)));
        assert_eq!((names.no_repeat_ngram, names.early_stopping.as_deref()), (Some(5), Some("never")));
    }

    #[test]
    fn a_prompt_is_a_document() {
        let calls = |body: &str| {
            let request = CompletionRequest::parse(body.as_bytes(), Path::Completions).unwrap();
            let calls = request.summarize_requests("flan", 1, SearchRules::Transformers).unwrap();
            calls.into_iter().map(options_and_chunks).collect::<Vec<_>>()
        };
        let all = calls(r#"{"prompt": ["a", "b"], "n": 2, "max_tokens": 9, "temperature": 0, "seed": 3}"#);
        let [(options, first), (_, second)] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&first[..], &second[..]), (&["a".to_owned()][..], &["b".to_owned()][..]));
        assert_eq!((options.model.as_deref(), options.beam_size, options.hypotheses), (Some("flan"), None, Some(2)));
        assert_eq!((options.max_tokens, &options.sampling), (Some(9), &None));
        let (options, _) = &calls(r#"{"prompt": "a", "presence_penalty": 1, "repetition_penalty": 2}"#)[0];
        let sampling = options.sampling.as_ref().unwrap();
        assert_eq!((sampling.temperature, sampling.presence_penalty), (Some(0.0), Some(1.0)));
        assert_eq!(calls(r#"{"prompt": "a", "repetition_penalty": 2}"#)[0].0.sampling, None);
        let (options, _) = &calls(r#"{"prompt": "a", "best_of": 6, "early_stopping": "never"}"#)[0];
        assert_eq!((options.beam_size, options.hypotheses, options.max_tokens), (Some(6), Some(1), None));
        assert_eq!(options.early_stopping.as_deref(), Some("never"));
        let (options, _) = &calls(r#"{"prompt": "a", "temperature": 0.7, "repetition_penalty": 2}"#)[0];
        assert_eq!(options.sampling.as_ref().unwrap().temperature, Some(0.7));
        assert_eq!((options.beam_size, options.repetition_penalty), (None, Some(2.0)));
        for (name, choice) in [("refuse", v1::LongDocuments::Refuse), ("cut", v1::LongDocuments::Cut)] {
            let body = format!(r#"{{"prompt": "a", "long_documents": "{name}"}}"#);
            assert_eq!(calls(&body)[0].0.long_documents(), choice);
        }
    }
}
