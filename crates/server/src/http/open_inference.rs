//! `/v2`: the Open Inference Protocol (KServe's protocol, version 2) over HTTP and JSON.
//!
//! A request becomes a call of the same method as over gRPC. Errors have this protocol's form: an object whose `error` is a text.

use crate::{
    call::ClientContext,
    completion_request::{Surface, parse_json},
    grpc::generation::Incoming,
    http::{
        error::{ApiError, Json},
        state::{ApiState, JSON, PathResult},
    },
    middleware::limits::GuardedBody,
    open_inference,
};
use axum::{
    Extension,
    body::Body,
    extract::{Path, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use prost::Message;
use serde::{
    Deserialize, Deserializer,
    de::{self, Error as _, MapAccess, SeqAccess, Unexpected, Visitor},
};
use serde_json::{Map, Number, Value, json};
use std::{collections::HashMap, fmt, marker::PhantomData, sync::Arc};
use weir_kernels::error::{Error, Result};
use weir_proto::inference::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse, ModelMetadataResponse,
    ServerMetadataResponse,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
    model_metadata_response::TensorMetadata,
};

/// Memory of a response in JSON relative to its encoded length: one byte may become an escape of six.
const FORMATTED: usize = 8;

/// Header of a request whose tensors follow the JSON in binary.
const BINARY: &str = "inference-header-content-length";

/// The path of a method of the protocol.
macro_rules! method {
    ($name:literal) => {
        concat!("/inference.GRPCInferenceService/", $name)
    };
}

/// Returns the name and version of the server, and the extensions that it supports.
pub(crate) async fn server(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
) -> Result<Json, InferenceError> {
    let metadata = || Ok(open_inference::service::server_metadata_response());
    Ok(Json(server_json(state.calls.ask(method!("ServerMetadata"), &client, metadata).await?)))
}

/// Answers 200 if no model's worker hangs. Needs no key.
pub(crate) async fn live(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
) -> Result<(StatusCode, Json), InferenceError> {
    let live = state.calls.ask(method!("ServerLive"), &client, || Ok(state.monitor.alive().is_ok())).await?;
    Ok(flag(live, json!({ "live": live })))
}

/// Answers 200 if the server takes requests. Needs no key.
pub(crate) async fn ready(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
) -> Result<(StatusCode, Json), InferenceError> {
    let ready = state.calls.ask(method!("ServerReady"), &client, || Ok(state.monitor.ready().is_ok())).await?;
    Ok(flag(ready, json!({ "ready": ready })))
}

/// Returns the tensors of a model.
pub(crate) async fn model(
    State(state): State<ApiState>,
    path: PathResult,
    Extension(client): Extension<ClientContext>,
) -> Result<Json, InferenceError> {
    let Path(path) = path?;
    let name = path.model();
    let metadata = || state.inference.metadata(&name, &path.version);
    Ok(Json(model_json(state.calls.ask(method!("ModelMetadata"), &client, metadata).await?)))
}

/// Answers 200 if a model takes requests.
pub(crate) async fn model_ready(
    State(state): State<ApiState>,
    path: PathResult,
    Extension(client): Extension<ClientContext>,
) -> Result<(StatusCode, Json), InferenceError> {
    let Path(path) = path?;
    let name = path.model();
    let is_ready = || Ok(state.inference.is_ready(&name, &path.version));
    let ready = state.calls.ask(method!("ModelReady"), &client, is_ready).await?;
    Ok(flag(ready, json!({ "name": name, "ready": ready })))
}

/// Answers a request for text, in one message.
pub(crate) async fn infer(
    State(state): State<ApiState>,
    path: PathResult,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Result<Response, InferenceError> {
    let Path(path) = path?;
    if request.headers().contains_key(BINARY) {
        state.check_head(&client, &request, JSON)?;
        let message = format!("{BINARY}: binary tensors are not supported; send them as JSON");
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "binary_tensors", message).into());
    }
    let body = state.read_body(&client, request, JSON).await?;
    let tenant = Arc::clone(&body.tenant);
    let request = state.parse(body, |bytes| parse_json::<InferenceRequest>(bytes, "the body")).await?;
    let message = request.into_message(path.model(), path.version);
    let inference = &state.inference;
    let answer = state.calls.begin(method!("ModelInfer"), &client, message.encoded_len(), async |call, memory| {
        inference.infer(Incoming { message, call, memory: Some(memory) }, Surface::HttpInference).await
    });
    let answer = answer.await?.into_complete();
    let bytes = answer.encoded_len().saturating_mul(FORMATTED);
    let mut size = state.collected.begin(&tenant, "use ModelStreamInfer over gRPC");
    size.grow_to(bytes)?;
    // A long response also takes long to format.
    let formatted = state
        .calls
        .jobs
        .workers
        .run(&tenant, bytes, move || Ok::<_, ApiError>(Json(response_json(answer)?).into_response()));
    Ok(formatted.await??.map(|body| Body::new(GuardedBody::new(body, size))))
}

/// Returns a status that probes read, with the same in JSON.
fn flag(holds: bool, body: Value) -> (StatusCode, Json) {
    // The protocol asks for a 4xx status.
    (if holds { StatusCode::OK } else { StatusCode::BAD_REQUEST }, Json(body))
}

/// An error in this protocol's form.
pub(crate) struct InferenceError(ApiError);

impl<E: Into<ApiError>> From<E> for InferenceError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for InferenceError {
    fn into_response(self) -> Response {
        self.0.into_text_response()
    }
}

// Inference requests in JSON, converted to messages. Lists are bounded while they are parsed; the service checks their contents.

/// Maximum inputs and outputs. More than the API has, so that an unknown one is named.
const MAX_TENSORS: usize = 16;

/// Maximum dimensions of a shape, and maximum elements of a tensor. Valid tensors have one element.
const MAX_ELEMENTS: usize = 8;

/// Maximum parameters of a request or tensor, as over gRPC.
const MAX_PARAMETERS: usize = 64;

/// The fields of a request. Unknown ones are ignored.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct InferenceRequest {
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
    /// Converts the request to a message for a model.
    pub(crate) fn into_message(self, model_name: String, model_version: String) -> ModelInferRequest {
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
    Number(Number),
    Row(List<Scalar, MAX_ELEMENTS>),
}

/// An element that is not a row.
struct Scalar(Element);

impl Element {
    fn add_to(self, contents: &mut InferTensorContents) {
        match self {
            Self::Text(text) => contents.bytes_contents.push(text.into_bytes()),
            Self::Flag(flag) => contents.bool_contents.push(flag),
            Self::Number(number) => contents.fp64_contents.extend(number.as_f64()),
            Self::Row(row) => row.0.into_iter().for_each(|scalar| scalar.0.add_to(contents)),
        }
    }

    /// Returns the value of a parameter; `None` for a row.
    fn into_choice(self) -> Option<ParameterChoice> {
        match self {
            Self::Text(text) => Some(ParameterChoice::StringParam(text)),
            Self::Flag(flag) => Some(ParameterChoice::BoolParam(flag)),
            Self::Number(number) => {
                let unsigned = number.as_u64().map(ParameterChoice::Uint64Param);
                let signed = || number.as_i64().map(ParameterChoice::Int64Param);
                unsigned.or_else(signed).or_else(|| number.as_f64().map(ParameterChoice::DoubleParam))
            }
            Self::Row(_) => None,
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

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Text(text.to_owned()))
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Element, E> {
        Ok(Element::Flag(flag))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Element, E> {
        Ok(Element::Number(number.into()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Element, E> {
        Ok(Element::Number(number.into()))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Element, E> {
        let finite = Number::from_f64(number).map(Element::Number);
        finite.ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
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

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
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

    fn visit_unit<E: de::Error>(self) -> Result<Parameters, E> {
        Ok(Parameters::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parameters, A::Error> {
        let mut parameters = HashMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if parameters.len() == MAX_PARAMETERS {
                return Err(A::Error::custom(format!("expected at most {MAX_PARAMETERS} parameters, found more")));
            }
            let Scalar(value) = map.next_value()?;
            parameters.insert(name, InferParameter { parameter_choice: value.into_choice() });
        }
        Ok(Parameters(parameters))
    }
}

/// Bytes of the length in front of an element of BYTES.
const LENGTH_BYTES: usize = 4;

/// Converts the server's metadata.
fn server_json(metadata: ServerMetadataResponse) -> Value {
    let ServerMetadataResponse { name, version, extensions } = metadata;
    json!({ "name": name, "version": version, "extensions": extensions })
}

/// Converts a model's metadata.
fn model_json(metadata: ModelMetadataResponse) -> Value {
    let ModelMetadataResponse { name, versions, platform, inputs, outputs } = metadata;
    let tensor =
        |TensorMetadata { name, datatype, shape }| json!({ "name": name, "datatype": datatype, "shape": shape });
    let tensors = |all: Vec<TensorMetadata>| all.into_iter().map(tensor).collect::<Vec<_>>();
    json!({
        "name": name, "versions": versions, "platform": platform, "inputs": tensors(inputs), "outputs": tensors(outputs),
    })
}

/// Converts the response to a request. Fails if an output has not the form in which our service writes it.
fn response_json(response: ModelInferResponse) -> Result<Value> {
    let mut outputs = Vec::new();
    for (output, raw) in response.outputs.into_iter().zip(response.raw_output_contents) {
        let element = element(&output.datatype, raw)
            .ok_or_else(|| Error::Internal(format!("the output {} is malformed", output.name)))?;
        outputs.push(json!({
            "name": output.name, "datatype": output.datatype, "shape": output.shape, "data": [element],
        }));
    }
    let mut message = json!({
        "model_name": response.model_name,
        "model_version": response.model_version,
        "parameters": response.parameters.into_iter().filter_map(parameter).collect::<Map<_, _>>(),
        "outputs": outputs,
    });
    if !response.id.is_empty() {
        message["id"] = response.id.into();
    }
    Ok(message)
}

/// Returns the only element of a tensor, from its raw contents.
fn element(datatype: &str, mut raw: Vec<u8>) -> Option<Value> {
    if datatype == "BYTES" {
        raw.get(..LENGTH_BYTES)?;
        raw.drain(..LENGTH_BYTES);
        return String::from_utf8(raw).ok().map(Value::from);
    }
    let number: [u8; 4] = raw.try_into().ok()?;
    match datatype {
        "UINT32" => Some(u32::from_le_bytes(number).into()),
        "FP32" => Some(f32::from_le_bytes(number).into()),
        _ => None,
    }
}

fn parameter((name, parameter): (String, InferParameter)) -> Option<(String, Value)> {
    let value = match parameter.parameter_choice? {
        ParameterChoice::BoolParam(flag) => flag.into(),
        ParameterChoice::Int64Param(number) => number.into(),
        ParameterChoice::Uint64Param(number) => number.into(),
        ParameterChoice::DoubleParam(number) => number.into(),
        ParameterChoice::StringParam(text) => text.into(),
    };
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::inference::model_infer_response::InferOutputTensor;

    fn parse(body: &str) -> Result<ModelInferRequest> {
        Ok(parse_json::<InferenceRequest>(body.as_bytes(), "the body")?.into_message("m".into(), "1".into()))
    }

    #[test]
    fn parameters_keep_their_types_and_unknown_fields_are_ignored() {
        let parameters = r#"{"max_tokens": 3, "temperature": 0.5, "priority": -1, "x": "y", "z": true}"#;
        let input = r#"{"name": "stream", "shape": [1], "datatype": "BOOL", "data": [false], "parameters": null}"#;
        let message = parse(&format!(r#"{{"parameters": {parameters}, "inputs": [{input}], "unknown": 1}}"#)).unwrap();
        for (name, choice) in [
            ("max_tokens", ParameterChoice::Uint64Param(3)),
            ("temperature", ParameterChoice::DoubleParam(0.5)),
            ("priority", ParameterChoice::Int64Param(-1)),
            ("x", ParameterChoice::StringParam("y".into())),
            ("z", ParameterChoice::BoolParam(true)),
        ] {
            assert_eq!(message.parameters[name].parameter_choice, Some(choice), "{name}");
        }
    }

    #[test]
    fn broken_raw_contents_are_refused() {
        for raw in [&b"\x03\0"[..], b"\x01\0\0\0\xff"] {
            let output = InferOutputTensor { datatype: "BYTES".into(), shape: vec![1], ..Default::default() };
            let response = ModelInferResponse {
                outputs: vec![output],
                raw_output_contents: vec![raw.to_vec()],
                ..Default::default()
            };
            assert!(response_json(response).is_err(), "{raw:?}");
        }
    }
}
