//! A `ModelInferRequest` as a request of `Generate`, and what its answer is to tell.

use super::tensors::{EXCLUDE_INPUT, Inputs, OUTPUTS, RETURN, SAMPLING_PARAMETERS, STREAM, TEXT_INPUT, unknown, wrong};
use crate::{
    error::{Error, Result, clip},
    serve::openai::request::{CompletionRequest, wrong_type},
};
use serde_json::{Map, Value};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};
use weir_proto::{
    inference::{InferParameter, ModelInferRequest, infer_parameter::ParameterChoice},
    v1,
};

/// The version of each model.
pub(super) const VERSION: &str = "1";
/// Levels of priority as Triton counts them: 1 is the highest, 0 the default.
pub(super) const PRIORITY_LEVELS: u64 = 16;
/// The level of a request that names none.
pub(super) const DEFAULT_LEVEL: u64 = 8;
/// Bytes of a caller's own words that a message or an answer repeats.
const WORD_BYTES: usize = 64;
/// Bytes of a request's id, which every message of the answer repeats.
const ID_BYTES: usize = 256;

/// Parameters that are not for the model.
const EMPTY_FINAL: &str = "triton_enable_empty_final_response";
const PRIORITY: &str = "priority";
const TIMEOUT: &str = "timeout";
/// Values that are texts whatever they look like.
const TEXTS: [&str; 3] = ["stop", "suffix", "boundary_mode"];

/// A request that is well formed.
pub(super) struct Inquiry {
    pub(super) generate: v1::GenerateRequest,
    pub(super) wanted: Wanted,
    /// By when it is to be answered.
    pub(super) deadline: Option<Instant>,
}

/// What an answer is to tell, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The request's name.
    pub(super) id: String,
    /// Whether text is told as it is made.
    pub(super) stream: bool,
    /// Whether the end is told by a message of its own, without outputs.
    pub(super) empty_final: bool,
    /// Outputs, as they stand in [`OUTPUTS`].
    pub(super) outputs: [bool; OUTPUTS.len()],
}

impl Wanted {
    /// The same in one message.
    pub(super) fn whole(self) -> Self {
        Self { stream: false, empty_final: false, ..self }
    }

    /// Whether that output is.
    pub(super) fn has(&self, output: &str) -> bool {
        OUTPUTS.iter().zip(self.outputs).any(|((name, _), wanted)| wanted && *name == output)
    }
}

/// A request's name, as answers repeat it.
pub(super) fn id_of(request: &ModelInferRequest) -> String {
    clip(&request.id, ID_BYTES)
}

/// Checks that a version is the one there is.
///
/// # Errors
/// It is another.
pub(super) fn check_version(version: &str) -> Result<()> {
    if version.is_empty() || version == VERSION {
        return Ok(());
    }
    Err(wrong("model_version", format!("{:?}", clip(version, WORD_BYTES)), "\"1\", or nothing"))
}

impl Inquiry {
    /// Of a request.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub(super) fn read(mut request: ModelInferRequest) -> Result<Self> {
        check_version(&request.model_version)?;
        if request.id.len() > ID_BYTES {
            return Err(wrong("id", format!("{} bytes", request.id.len()), &format!("at most {ID_BYTES}")));
        }
        let mut inputs = Inputs::take(&mut request)?;
        let text = inputs.text(TEXT_INPUT).ok_or_else(|| wrong_type("inputs", &format!("one named {TEXT_INPUT}")))?;
        let stream = inputs.flag(STREAM).unwrap_or(false);
        let wanted = Wanted {
            outputs: outputs(&request, &inputs)?,
            stream,
            empty_final: flag(&request.parameters, EMPTY_FINAL)?.unwrap_or(false),
            id: request.id,
        };
        let priority = priority(&request.parameters)?;
        let deadline = deadline(&request.parameters)?;
        // of parameters for the model those in the tensor count, if there is one
        let given = inputs.text(SAMPLING_PARAMETERS);
        let mut fields = given.map_or_else(|| Ok(parameters(request.parameters)), |text| sampling_parameters(&text))?;
        read_texts(&mut fields);
        let told_priority = fields.get(PRIORITY).is_some();
        let echo = inputs.flag(EXCLUDE_INPUT).map_or(!stream, |exclude| !exclude);
        fields.insert("model".into(), request.model_name.into());
        fields.insert("prompt".into(), text.into());
        fields.insert("echo".into(), echo.into());
        let asked = CompletionRequest::from_fields(fields, SAMPLING_PARAMETERS)?;
        let [mut generate] = <[_; 1]>::try_from(asked.generate_requests()?)
            .map_err(|all| wrong("n", all.len().to_string(), "1: one answer for each request"))?;
        if !told_priority {
            generate.priority = priority;
        }
        // characters told one by one are counted as they come
        let counted = stream && wanted.has("num_output_tokens");
        let told = counted || wanted.has("logprobs") || wanted.has("cumulative_logprob");
        generate.details.get_or_insert_default().logprobs = Some(told);
        Ok(Self { generate, wanted, deadline })
    }
}

/// The outputs that are wanted: those that are listed, or else the text and what flags ask for.
fn outputs(request: &ModelInferRequest, inputs: &Inputs) -> Result<[bool; OUTPUTS.len()]> {
    for output in &request.outputs {
        if !OUTPUTS.iter().any(|(name, _)| *name == output.name) {
            return Err(unknown("outputs", &output.name, &OUTPUTS));
        }
        let refused = |key: &&String| key.starts_with("shared_memory") || *key == "classification";
        if let Some(key) = output.parameters.keys().find(refused) {
            return Err(wrong("outputs", format!("the parameter {:?}", clip(key, WORD_BYTES)), "none of this kind"));
        }
    }
    Ok(OUTPUTS.map(|(name, _)| match request.outputs.is_empty() {
        true => name == "text_output" || inputs.flag(&format!("{RETURN}{name}")).unwrap_or(false),
        false => request.outputs.iter().any(|output| output.name == name),
    }))
}

fn sampling_parameters(text: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text).map_err(|error| {
        let why = format!("{SAMPLING_PARAMETERS}: expected an object of JSON: {error}");
        Error::Unreadable { field: Some(SAMPLING_PARAMETERS.into()), why }
    })
}

/// The parameters of a request that are for the model.
fn parameters(all: HashMap<String, InferParameter>) -> Map<String, Value> {
    let own = |name: &str| name.starts_with("triton_") || [PRIORITY, TIMEOUT].contains(&name);
    let value = |one: InferParameter| {
        Some(match one.parameter_choice? {
            ParameterChoice::BoolParam(value) => value.into(),
            ParameterChoice::Int64Param(value) => value.into(),
            ParameterChoice::Uint64Param(value) => value.into(),
            ParameterChoice::StringParam(value) => value.into(),
            ParameterChoice::DoubleParam(value) => value.into(),
        })
    };
    all.into_iter().filter(|(name, _)| !own(name)).filter_map(|(name, one)| Some((name, value(one)?))).collect()
}

/// Reads numbers and flags that were sent as texts, as clients of Triton's text models do.
fn read_texts(fields: &mut Map<String, Value>) {
    for (name, value) in fields.iter_mut() {
        if let (Value::String(text), false) = (&*value, TEXTS.contains(&name.as_str())) {
            let read = match text.trim() {
                "True" => Ok(Value::Bool(true)),
                "False" => Ok(Value::Bool(false)),
                text => serde_json::from_str(text),
            };
            if let Ok(read) = read {
                *value = read;
            }
        }
    }
}

fn flag(parameters: &HashMap<String, InferParameter>, name: &'static str) -> Result<Option<bool>> {
    match parameters.get(name).map(|one| &one.parameter_choice) {
        None => Ok(None),
        Some(Some(ParameterChoice::BoolParam(flag))) => Ok(Some(*flag)),
        Some(_) => Err(wrong_type(name, "a bool_param")),
    }
}

fn count(parameters: &HashMap<String, InferParameter>, name: &'static str) -> Result<Option<u64>> {
    match parameters.get(name).map(|one| &one.parameter_choice) {
        None => Ok(None),
        Some(Some(ParameterChoice::Uint64Param(count))) => Ok(Some(*count)),
        Some(Some(ParameterChoice::Int64Param(count))) => {
            u64::try_from(*count).map(Some).map_err(|_| wrong(name, count.to_string(), "0 or more"))
        }
        Some(_) => Err(wrong_type(name, "an int64_param or uint64_param")),
    }
}

/// Triton's priority in ours, of which the highest is the largest.
fn priority(parameters: &HashMap<String, InferParameter>) -> Result<Option<i32>> {
    let Some(level) = count(parameters, PRIORITY)?.filter(|level| *level > 0) else { return Ok(None) };
    match i32::try_from(level) {
        Ok(own) if level <= PRIORITY_LEVELS => Ok(Some(8 - own)),
        _ => Err(wrong(PRIORITY, level.to_string(), &format!("0 to {PRIORITY_LEVELS}"))),
    }
}

/// Triton's time-out, which is in microseconds.
fn deadline(parameters: &HashMap<String, InferParameter>) -> Result<Option<Instant>> {
    let timeout = count(parameters, TIMEOUT)?.filter(|timeout| *timeout > 0);
    Ok(timeout.and_then(|timeout| Instant::now().checked_add(Duration::from_micros(timeout))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::inference::{InferTensorContents, model_infer_request};

    fn bytes(name: &str, text: &str) -> model_infer_request::InferInputTensor {
        let contents = InferTensorContents { bytes_contents: vec![text.into()], ..Default::default() };
        let (name, datatype, shape) = (name.into(), "BYTES".into(), vec![1]);
        model_infer_request::InferInputTensor { name, datatype, shape, contents: Some(contents), ..Default::default() }
    }

    fn with(parameters: &[(&str, ParameterChoice)], sampling: Option<&str>) -> Result<Inquiry> {
        let one = |(name, choice): &(&str, ParameterChoice)| {
            ((*name).to_owned(), InferParameter { parameter_choice: Some(choice.clone()) })
        };
        let mut inputs = vec![bytes("text_input", "ab")];
        inputs.extend(sampling.map(|text| bytes("sampling_parameters", text)));
        let parameters = parameters.iter().map(one).collect();
        Inquiry::read(ModelInferRequest { inputs, parameters, ..Default::default() })
    }

    #[test]
    fn numbers_may_be_texts_and_parameters_of_the_request() {
        let sampling = r#"{"temperature": "0.5", "max_tokens": "7", "ignore_eos": "True", "stop": "1"}"#;
        let all = with(&[("max_tokens", ParameterChoice::Int64Param(9))], Some(sampling)).unwrap().generate;
        let (drawn, stopping) = (all.sampling.unwrap(), all.stopping.unwrap());
        assert_eq!((drawn.temperature, stopping.max_chars, stopping.ignore_eos), (Some(0.5), Some(7), Some(true)));
        assert_eq!(stopping.stop, ["1"]);
        let alone = [
            ("max_tokens", ParameterChoice::StringParam("9".into())),
            ("temperature", ParameterChoice::DoubleParam(0.0)),
        ];
        let all = with(&alone, None).unwrap().generate;
        assert_eq!((all.sampling.unwrap().temperature, all.stopping.unwrap().max_chars), (Some(0.0), Some(9)));
    }

    #[test]
    fn priorities_and_times_are_tritons() {
        let priority =
            |level| with(&[("priority", ParameterChoice::Uint64Param(level))], None).map(|one| one.generate.priority);
        assert_eq!((priority(0).unwrap(), priority(1).unwrap(), priority(16).unwrap()), (None, Some(7), Some(-8)));
        assert_eq!(priority(DEFAULT_LEVEL).unwrap(), Some(0));
        assert!(priority(17).unwrap_err().to_string().contains("0 to 16"));
        let timed = with(&[("timeout", ParameterChoice::Int64Param(1_000_000))], None).unwrap();
        assert!(timed.deadline.unwrap() > Instant::now());
        assert!(with(&[("timeout", ParameterChoice::Int64Param(-1))], None).is_err());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (sampling, told) in [
            ("{", "sampling_parameters: expected an object of JSON"),
            ("[1]", "sampling_parameters: expected an object of JSON"),
            (r#"{"n": 2}"#, "n: 2 is out of bounds: 1"),
            (r#"{"temperature": "hot"}"#, "sampling_parameters: temperature: invalid type"),
            (r#"{"frequency_penalty": 1}"#, "frequency_penalty: "),
        ] {
            let refused = with(&[], Some(sampling)).err().unwrap().to_string();
            assert!(refused.starts_with(told), "{refused}");
        }
        let request = ModelInferRequest { model_version: "7".into(), ..Default::default() };
        assert!(Inquiry::read(request).err().unwrap().to_string().starts_with("model_version: \"7\""));
        assert!(
            Inquiry::read(ModelInferRequest::default()).err().unwrap().to_string().contains("one named text_input")
        );
    }
}
