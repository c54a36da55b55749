//! Converts a `ModelInferRequest` to a request of `Generate`, and reads which outputs the client wants.

use crate::{
    completion_request::{CompletionRequest, Names, Surface, parse_json, parse_value},
    open_inference::tensors::{
        EXCLUDE_INPUT, Inputs, OUTPUTS, RETURN, SAMPLING_PARAMETERS, STREAM, TEXT_INPUT, unknown_tensor,
    },
};
use prost::Message;
use serde_json::{Map, Value};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};
use weir_engine::clock;
use weir_kernels::error::{Error, QUOTED_BYTES, Result, clip, quoted};
use weir_models::contract::Card;
use weir_proto::{
    inference::{InferParameter, ModelInferRequest, infer_parameter::ParameterChoice},
    v1::{self},
};

/// The version of every model.
pub(super) const VERSION: &str = "1";

/// Number of Triton's priority levels: 1 is the highest, and 0 selects the default.
pub(super) const PRIORITY_LEVELS: u64 = 16;

/// The level of a request without one.
pub(super) const DEFAULT_LEVEL: u64 = 8;

/// Maximum bytes of a request's id, which every message of the response repeats.
const ID_BYTES: usize = 256;

/// Maximum parameters of a request. More than the API has, because unknown ones are ignored.
const MAX_PARAMETERS: usize = 64;

/// Maximum bytes of all parameters, or of the tensor that replaces them. The longest valid stop strings and biases fit.
const PARAMETER_BYTES: usize = 256 << 10;

/// Parameters for the server, not for the model.
pub(crate) const EMPTY_FINAL: &str = "triton_enable_empty_final_response";

const PRIORITY: &str = "priority";

pub(crate) const TIMEOUT: &str = "timeout";

/// Fields whose values stay text even if they look like numbers.
const TEXTS: [&str; 4] = ["stop", "suffix", "boundary_mode", "resume_text"];

pub(crate) struct InferRequest {
    pub(crate) generate: v1::GenerateRequest,
    pub(super) output: OutputOptions,
    /// Time at which the client stops waiting.
    pub(super) deadline: Option<Instant>,
    /// The names that errors have.
    pub(super) names: Names,
}

/// The outputs that a client wants, and their form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OutputOptions {
    /// The request's id.
    pub(super) id: String,
    /// True if text is sent while it is generated.
    pub(super) stream: bool,
    /// True if a separate message without outputs marks the end.
    pub(super) empty_final: bool,
    /// True for each wanted output, in the order of [`OUTPUTS`].
    pub(super) outputs: [bool; OUTPUTS.len()],
}

impl OutputOptions {
    /// Returns true if this output is wanted.
    pub(super) fn has(&self, output: &str) -> bool {
        OUTPUTS.iter().zip(self.outputs).any(|((name, _), wanted)| wanted && *name == output)
    }
}

/// Returns the request's id, shortened as responses repeat it.
pub(super) fn shortened_id(request: &ModelInferRequest) -> String {
    clip(&request.id, ID_BYTES)
}

/// Checks that a version is empty or the only one. Fails with [`Error::BadOption`] otherwise.
pub(super) fn check_version(version: &str) -> Result<()> {
    if version.is_empty() || version == VERSION {
        return Ok(());
    }
    Err(Error::bad_option("model_version", quoted(version), "\"1\" or empty"))
}

impl InferRequest {
    /// Checks and converts a request to the model of `card`. Fails at the first invalid input, output or parameter, before
    /// any is copied.
    pub(crate) fn parse(mut request: ModelInferRequest, card: &Card, surface: Surface) -> Result<Self> {
        check_version(&request.model_version)?;
        if request.id.len() > ID_BYTES {
            return Err(Error::bad_option("id", request.id.len().to_string(), format!("at most {ID_BYTES} bytes")));
        }
        check_parameters(&request.parameters)?;
        check_outputs(&request)?;
        let mut inputs = Inputs::take(&mut request)?;
        let text = inputs
            .text(TEXT_INPUT)
            .ok_or_else(|| Error::bad_option("inputs", "none", format!("one named {TEXT_INPUT}")))?;
        let stream = inputs.flag(STREAM).unwrap_or(false);
        let empty_final = server_parameter(&request.parameters, EMPTY_FINAL, "true or false", Value::as_bool)?;
        let output = OutputOptions {
            outputs: outputs(&request, &inputs),
            stream,
            empty_final: empty_final.unwrap_or(false),
            id: request.id,
        };
        let priority = priority(&request.parameters)?;
        let deadline = deadline(&request.parameters)?;
        // The tensor replaces the request's parameters for the model.
        let tensor = inputs.text(SAMPLING_PARAMETERS);
        let mut fields = tensor.map_or_else(|| parameters(request.parameters), |text| sampling_parameters(&text))?;
        parse_texts(&mut fields);
        let fields_have_priority = fields.get(PRIORITY).is_some();
        let echo = inputs.flag(EXCLUDE_INPUT).map_or(!stream, |exclude| !exclude);
        fields.insert("model".into(), request.model_name.into());
        // The prompt may be long: it replaces this one once all fields are checked.
        fields.insert("prompt".into(), "".into());
        fields.insert("echo".into(), echo.into());
        let mut completion = CompletionRequest::from_fields(fields, SAMPLING_PARAMETERS)?;
        completion.adapt_to(card);
        let names = completion.names(surface);
        let mut requests = completion.generate_requests().map_err(|error| names.name(error))?;
        let choices = requests.len();
        let Some(mut generate) = requests.next().filter(|_| choices == 1) else {
            return Err(Error::bad_option("n", choices.to_string(), "1 (each request has one response)"));
        };
        generate.prompt = text;
        if !fields_have_priority {
            generate.priority = priority;
        }
        // Only characters with log-probabilities arrive with their number, which running counts need.
        let counted = stream && output.has("num_output_tokens");
        let logprobs = counted || output.has("logprobs") || output.has("cumulative_logprob");
        generate.details.get_or_insert_default().logprobs = Some(logprobs);
        Ok(Self { generate, output, deadline, names })
    }
}

/// Checks the number and the size of the parameters.
fn check_parameters(parameters: &HashMap<String, InferParameter>) -> Result<()> {
    if parameters.len() > MAX_PARAMETERS {
        return Err(Error::bad_option("parameters", parameters.len().to_string(), format!("at most {MAX_PARAMETERS}")));
    }
    let bytes = parameters.iter().map(|(name, parameter)| name.len() + parameter.encoded_len()).sum();
    check_size("parameters", bytes)
}

/// Checks the size of parameters before they are parsed.
fn check_size(field: &'static str, bytes: usize) -> Result<()> {
    if bytes > PARAMETER_BYTES {
        return Err(Error::TooLong { field, length: bytes, limit: PARAMETER_BYTES, unit: "bytes", why: None });
    }
    Ok(())
}

/// Checks the names and parameters of the listed outputs.
fn check_outputs(request: &ModelInferRequest) -> Result<()> {
    if request.outputs.len() > OUTPUTS.len() {
        let found = request.outputs.len().to_string();
        return Err(Error::bad_option("outputs", found, format!("at most {}", OUTPUTS.len())));
    }
    for output in &request.outputs {
        if !OUTPUTS.iter().any(|(name, _)| *name == output.name) {
            return Err(unknown_tensor("outputs", &output.name, &OUTPUTS));
        }
        let unsupported = |key: &&String| key.starts_with("shared_memory") || *key == "classification";
        if let Some(key) = output.parameters.keys().find(unsupported) {
            let found = quoted(key);
            return Err(Error::bad_option("outputs", found, "no parameter but binary_data"));
        }
    }
    Ok(())
}

/// Returns which outputs are wanted: the listed ones, or else the text and those that flags select.
fn outputs(request: &ModelInferRequest, inputs: &Inputs) -> [bool; OUTPUTS.len()] {
    OUTPUTS.map(|(name, _)| match request.outputs.is_empty() {
        true => name == "text_output" || inputs.flag(&format!("{RETURN}{name}")).unwrap_or(false),
        false => request.outputs.iter().any(|output| output.name == name),
    })
}

fn sampling_parameters(text: &str) -> Result<Map<String, Value>> {
    check_size(SAMPLING_PARAMETERS, text.len())?;
    parse_json(text.as_bytes(), SAMPLING_PARAMETERS).map_err(|error| match error {
        Error::Unreadable { field: None, why } => {
            Error::Unreadable { field: Some(SAMPLING_PARAMETERS.to_owned()), why }
        }
        other => other,
    })
}

/// Returns the parameters of a request that are for the model, with the options of the parameter `sampling_parameters`. Fails if both
/// state an option.
fn parameters(all: HashMap<String, InferParameter>) -> Result<Map<String, Value>> {
    let is_for_server = |name: &str| name.starts_with("triton_") || [PRIORITY, TIMEOUT].contains(&name);
    let own = all.into_iter().filter(|(name, _)| !is_for_server(name));
    let mut fields: Map<_, _> =
        own.filter_map(|(name, parameter)| Some((name, value(parameter.parameter_choice?)))).collect();
    let options = match fields.remove(SAMPLING_PARAMETERS) {
        Some(Value::String(text)) => sampling_parameters(&text)?,
        Some(other) => return Err(Error::bad_option(SAMPLING_PARAMETERS, other.to_string(), "a JSON object as text")),
        None => Map::new(),
    };
    if let Some(name) = options.keys().find(|name| fields.contains_key(*name)) {
        let bound = "no option that is also a parameter of the request";
        return Err(Error::bad_option(SAMPLING_PARAMETERS, quoted(name), bound));
    }
    fields.extend(options);
    Ok(fields)
}

fn value(parameter: ParameterChoice) -> Value {
    match parameter {
        ParameterChoice::BoolParam(value) => value.into(),
        ParameterChoice::Int64Param(value) => value.into(),
        ParameterChoice::Uint64Param(value) => value.into(),
        ParameterChoice::StringParam(value) => value.into(),
        // A whole number has no fraction in this form. JSON has no infinite numbers.
        ParameterChoice::DoubleParam(value) => parse_value(&value.to_string()).unwrap_or(value.to_string().into()),
    }
}

/// Converts numbers and flags in text form, which clients of Triton's text models send.
fn parse_texts(fields: &mut Map<String, Value>) {
    for (name, value) in fields.iter_mut() {
        if let (Value::String(text), false) = (&*value, TEXTS.contains(&name.as_str())) {
            let parsed = match text.trim() {
                "True" => Ok(Value::Bool(true)),
                "False" => Ok(Value::Bool(false)),
                text => parse_value(text),
            };
            if let Ok(parsed) = parsed {
                *value = parsed;
            }
        }
    }
}

/// Returns a parameter for the server. Fails if it has a value that `read` does not return.
fn server_parameter<T>(
    parameters: &HashMap<String, InferParameter>,
    name: &'static str,
    expected: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>> {
    let Some(choice) = parameters.get(name).and_then(|parameter| parameter.parameter_choice.clone()) else {
        return Ok(None);
    };
    let value = value(choice);
    let wrong = || Error::bad_option(name, clip(&value.to_string(), QUOTED_BYTES), expected);
    read(&value).ok_or_else(wrong).map(Some)
}

fn count(parameters: &HashMap<String, InferParameter>, name: &'static str) -> Result<Option<u64>> {
    server_parameter(parameters, name, "a whole number of at least 0", Value::as_u64)
}

/// Converts Triton's priority to ours, where larger is higher.
pub(super) fn priority(parameters: &HashMap<String, InferParameter>) -> Result<Option<i32>> {
    let Some(level) = count(parameters, PRIORITY)?.filter(|level| *level > 0) else { return Ok(None) };
    match i32::try_from(level) {
        Ok(own) if level <= PRIORITY_LEVELS => Ok(Some(8 - own)),
        _ => Err(Error::bad_option(PRIORITY, level.to_string(), format!("0 to {PRIORITY_LEVELS}"))),
    }
}

/// Converts Triton's time-out in microseconds to a deadline.
pub(super) fn deadline(parameters: &HashMap<String, InferParameter>) -> Result<Option<Instant>> {
    let timeout = count(parameters, TIMEOUT)?.filter(|timeout| *timeout > 0);
    Ok(timeout.and_then(|timeout| clock::now().checked_add(Duration::from_micros(timeout))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_inference::request::{DEFAULT_LEVEL, InferRequest};
    use weir_models::text::{TextNormaliser, Vocabulary};
    use weir_proto::inference::{InferTensorContents, model_infer_request};

    fn bytes(name: &str, text: &str) -> model_infer_request::InferInputTensor {
        let contents = InferTensorContents { bytes_contents: vec![text.into()], ..Default::default() };
        model_infer_request::InferInputTensor {
            name: name.into(),
            datatype: "BYTES".into(),
            shape: vec![1],
            contents: Some(contents),
            ..Default::default()
        }
    }

    fn parse_with(parameters: &[(&str, ParameterChoice)], sampling: Option<&str>) -> Result<InferRequest> {
        let parameter = |(name, choice): &(&str, ParameterChoice)| {
            ((*name).to_owned(), InferParameter { parameter_choice: Some(choice.clone()) })
        };
        let mut inputs = vec![bytes("text_input", "ab")];
        inputs.extend(sampling.map(|text| bytes("sampling_parameters", text)));
        let parameters = parameters.iter().map(parameter).collect();
        let card = Card::for_tests(Vocabulary::byte_level(TextNormaliser::None));
        InferRequest::parse(ModelInferRequest { inputs, parameters, ..Default::default() }, &card, Surface::Inference)
    }

    #[test]
    fn biases_outside_the_vocabulary_have_no_effect() {
        let request = parse_with(&[], Some(r#"{"logit_bias": {"7": 1, "256": 2, "50256": -100}}"#)).unwrap();
        let ids: Vec<_> = request.generate.sampling.unwrap().logit_bias.into_iter().map(|bias| bias.symbol).collect();
        assert_eq!(ids, [Some(v1::logit_bias::Symbol::Id(7))]);
    }

    #[test]
    fn numbers_may_be_texts_or_parameters_of_the_request() {
        let sampling = r#"{"temperature": "0.5", "max_tokens": "7", "ignore_eos": "True", "stop": "1"}"#;
        let all = parse_with(&[("max_tokens", ParameterChoice::Int64Param(9))], Some(sampling)).unwrap().generate;
        let sampling = all.sampling.unwrap();
        let stopping = all.stopping.unwrap();
        assert_eq!((sampling.temperature, stopping.max_chars, stopping.ignore_eos), (Some(0.5), Some(7), Some(true)));
        assert_eq!(stopping.stop, ["1"]);
        let alone = [
            ("max_tokens", ParameterChoice::StringParam("9".into())),
            ("temperature", ParameterChoice::DoubleParam(0.0)),
        ];
        let all = parse_with(&alone, None).unwrap().generate;
        assert_eq!((all.sampling.unwrap().temperature, all.stopping.unwrap().max_chars), (Some(0.0), Some(9)));
    }

    #[test]
    fn priorities_and_timeouts_follow_triton() {
        let priority = |level| {
            parse_with(&[("priority", ParameterChoice::Uint64Param(level))], None)
                .map(|request| request.generate.priority)
        };
        assert_eq!((priority(0).unwrap(), priority(1).unwrap(), priority(16).unwrap()), (None, Some(7), Some(-8)));
        assert_eq!(priority(DEFAULT_LEVEL).unwrap(), Some(0));
        assert!(priority(17).unwrap_err().to_string().contains("0 to 16"));
        assert!(parse_with(&[("timeout", ParameterChoice::Int64Param(-1))], None).is_err());
    }
}
