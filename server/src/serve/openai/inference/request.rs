//! Inference requests in JSON, converted to messages. Lists are bounded while they are parsed; the service checks their contents.

use crate::{error::Result, serve::completion_request::parse_json};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Unexpected, Visitor},
};
use std::{collections::HashMap, fmt, marker::PhantomData};
use weir_proto::inference::{
    InferParameter, InferTensorContents, ModelInferRequest,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

/// Maximum inputs and outputs. More than the API has, so that an unknown one is named.
const MAX_TENSORS: usize = 16;
/// Maximum dimensions of a shape, and maximum elements of a tensor. Valid tensors have one element.
const MAX_ELEMENTS: usize = 8;
/// Maximum parameters of a request or tensor, as over gRPC.
const MAX_PARAMETERS: usize = 64;

/// The fields of a request. Unknown ones are ignored.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
pub(in crate::serve) struct InferenceRequest {
    id: Option<String>,
    #[serde(default)]
    parameters: Parameters,
    #[serde(default)]
    inputs: List<Input, MAX_TENSORS>,
    #[serde(default)]
    outputs: List<Output, MAX_TENSORS>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Input {
    name: String,
    datatype: String,
    #[serde(default)]
    shape: List<i64, MAX_ELEMENTS>,
    #[serde(default)]
    parameters: Parameters,
    #[serde(default)]
    data: List<Element, MAX_ELEMENTS>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Output {
    name: String,
    #[serde(default)]
    parameters: Parameters,
}

impl InferenceRequest {
    /// Parses JSON. Errors call it `input`, and name the malformed field.
    pub(in crate::serve) fn parse(bytes: &[u8], input: &str) -> Result<Self> {
        parse_json(bytes, input)
    }

    /// Converts the request to a message for a model.
    pub(in crate::serve) fn into_message(self, model_name: String, model_version: String) -> ModelInferRequest {
        let outputs = self
            .outputs
            .0
            .into_iter()
            .map(|Output { name, parameters }| InferRequestedOutputTensor { name, parameters: parameters.0 });
        ModelInferRequest {
            model_name,
            model_version,
            id: self.id.unwrap_or_default(),
            parameters: self.parameters.0,
            inputs: self.inputs.0.into_iter().map(Input::into_message).collect(),
            outputs: outputs.collect(),
            raw_input_contents: Vec::new(),
        }
    }
}

impl Input {
    fn into_message(self) -> InferInputTensor {
        let mut contents = InferTensorContents::default();
        for element in self.data.0 {
            element.add_to(&mut contents);
        }
        InferInputTensor {
            name: self.name,
            datatype: self.datatype,
            shape: self.shape.0,
            parameters: self.parameters.0,
            contents: Some(contents),
        }
    }
}

/// An element of a tensor, or a row of elements: shapes may be flattened or nested.
enum Element {
    Text(String),
    Flag(bool),
    Number(f64),
    Row(List<Scalar, MAX_ELEMENTS>),
}

/// An element that is not a row.
struct Scalar(Element);

impl Element {
    fn add_to(self, contents: &mut InferTensorContents) {
        match self {
            Self::Text(text) => contents.bytes_contents.push(text.into_bytes()),
            Self::Flag(flag) => contents.bool_contents.push(flag),
            Self::Number(number) => contents.fp64_contents.push(number),
            Self::Row(row) => row.0.into_iter().for_each(|scalar| scalar.0.add_to(contents)),
        }
    }
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor { may_be_row: true })
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor { may_be_row: false }).map(Self)
    }
}

struct ElementVisitor {
    may_be_row: bool,
}

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a boolean or a number")?;
        if self.may_be_row { f.write_str(", or a list of these") } else { Ok(()) }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Text(text.to_owned()))
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Element, E> {
        Ok(Element::Flag(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Element, E> {
        Ok(Element::Number(number as f64))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Element, E> {
        Ok(Element::Number(number as f64))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Element, E> {
        Ok(Element::Number(number))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Element, A::Error> {
        if !self.may_be_row {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        ListVisitor(PhantomData).visit_seq(list).map(Element::Row)
    }
}

/// Null, or a list of at most `MAX` elements.
struct List<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = List<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} elements")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(List::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element()? {
            if elements.len() == MAX {
                return Err(A::Error::custom(format!("expected at most {MAX} elements, found more")));
            }
            elements.push(element);
        }
        Ok(List(elements))
    }
}

/// Null, or an object of at most [`MAX_PARAMETERS`] parameters.
#[derive(Default)]
struct Parameters(HashMap<String, InferParameter>);

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ParametersVisitor)
    }
}

struct ParametersVisitor;

impl<'de> Visitor<'de> for ParametersVisitor {
    type Value = Parameters;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of at most {MAX_PARAMETERS} parameters")
    }

    fn visit_unit<E: Error>(self) -> Result<Parameters, E> {
        Ok(Parameters::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parameters, A::Error> {
        let mut parameters = HashMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if parameters.len() == MAX_PARAMETERS {
                return Err(A::Error::custom(format!("expected at most {MAX_PARAMETERS} parameters, found more")));
            }
            let choice: Parameter = map.next_value()?;
            parameters.insert(name, InferParameter { parameter_choice: Some(choice.0) });
        }
        Ok(Parameters(parameters))
    }
}

/// The value of a parameter.
struct Parameter(ParameterChoice);

impl<'de> Deserialize<'de> for Parameter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ParameterVisitor)
    }
}

struct ParameterVisitor;

impl Visitor<'_> for ParameterVisitor {
    type Value = Parameter;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a boolean or a number")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Parameter, E> {
        Ok(Parameter(ParameterChoice::StringParam(text.to_owned())))
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Parameter, E> {
        Ok(Parameter(ParameterChoice::BoolParam(flag)))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Parameter, E> {
        Ok(Parameter(ParameterChoice::Int64Param(number)))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Parameter, E> {
        Ok(Parameter(ParameterChoice::Uint64Param(number)))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Parameter, E> {
        Ok(Parameter(ParameterChoice::DoubleParam(number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<ModelInferRequest> {
        Ok(InferenceRequest::parse(body.as_bytes(), "the body")?.into_message("m".into(), "1".into()))
    }

    #[test]
    fn tensors_may_be_flat_or_nested() {
        let message = parse(
            r#"{"id": "7", "parameters": {"max_tokens": 3, "temperature": 0.5, "priority": -1, "x": "y", "z": true},
                "inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [["ab"]]},
                           {"name": "stream", "shape": [1], "datatype": "BOOL", "data": [false], "parameters": null}],
                "outputs": [{"name": "text_output"}], "unknown": 1}"#,
        )
        .unwrap();
        assert_eq!((message.id.as_str(), message.model_name.as_str(), message.model_version.as_str()), ("7", "m", "1"));
        let [text, stream] = &message.inputs[..] else { panic!() };
        assert_eq!((&text.shape[..], text.datatype.as_str()), (&[1, 1][..], "BYTES"));
        assert_eq!(text.contents.as_ref().unwrap().bytes_contents, [b"ab"]);
        assert_eq!(stream.contents.as_ref().unwrap().bool_contents, [false]);
        assert_eq!(message.outputs[0].name, "text_output");
        let parameter = |name: &str| message.parameters[name].parameter_choice.clone().unwrap();
        assert_eq!(parameter("max_tokens"), ParameterChoice::Uint64Param(3));
        assert_eq!(parameter("priority"), ParameterChoice::Int64Param(-1));
        assert_eq!(parameter("temperature"), ParameterChoice::DoubleParam(0.5));
    }

    #[test]
    fn long_lists_are_refused() {
        let input = r#"{"name": "a", "datatype": "BYTES", "shape": [1], "data": ["b"]}"#;
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        for (body, part) in [
            (format!(r#"{{"inputs": [{}]}}"#, [input; 17].join(",")), "at most 16 elements"),
            (r#"{"inputs": [{"name": "a", "datatype": "BYTES", "data": [1,2,3,4,5,6,7,8,9]}]}"#.into(), "at most 8"),
            (r#"{"inputs": [{"name": "a", "datatype": "BYTES", "data": [null]}]}"#.into(), "a string, a boolean"),
            (r#"{"inputs": [{"name": "a"}]}"#.into(), "datatype"),
            (r#"{"parameters": {"a": []}}"#.into(), "a string, a boolean or a number"),
            (
                format!(r#"{{"inputs": [{{"name": "a", "datatype": "B", "data": {}}}]}}"#, nested(3)),
                "a string, a boolean or a number",
            ),
            ("[]".into(), "the body: expected an object, found a list"),
        ] {
            let error = parse(&body).unwrap_err().to_string();
            assert!(error.contains(": expected ") && error.contains(part), "{error}");
        }
        let many: Vec<_> = (0..65).map(|index| format!(r#""p{index}": 1"#)).collect();
        let error = parse(&format!(r#"{{"parameters": {{{}}}}}"#, many.join(","))).unwrap_err().to_string();
        assert!(error.contains("at most 64 parameters"), "{error}");
    }
}
