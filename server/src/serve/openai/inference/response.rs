//! Messages of the Open Inference Protocol in JSON.

use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use weir_proto::inference::{
    InferParameter, ModelInferResponse, ModelMetadataResponse, ServerMetadataResponse,
    infer_parameter::ParameterChoice, model_metadata_response::TensorMetadata,
};

/// Bytes of the length in front of an element of BYTES.
const LENGTH_BYTES: usize = 4;

/// Converts the server's metadata.
pub(super) fn server(metadata: ServerMetadataResponse) -> Value {
    let ServerMetadataResponse { name, version, extensions } = metadata;
    json!({ "name": name, "version": version, "extensions": extensions })
}

/// Converts a model's metadata.
pub(super) fn model(metadata: ModelMetadataResponse) -> Value {
    let ModelMetadataResponse { name, versions, platform, inputs, outputs } = metadata;
    let tensor =
        |TensorMetadata { name, datatype, shape }| json!({ "name": name, "datatype": datatype, "shape": shape });
    let tensors = |all: Vec<TensorMetadata>| all.into_iter().map(tensor).collect::<Vec<_>>();
    json!({
        "name": name, "versions": versions, "platform": platform, "inputs": tensors(inputs), "outputs": tensors(outputs),
    })
}

/// Converts the response to a request. Fails if an output has not the form in which our service writes it.
pub(super) fn inference(response: ModelInferResponse) -> Result<Value> {
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

    #[test]
    fn raw_contents_become_elements() {
        let output = |name: &str, datatype: &str| InferOutputTensor {
            name: name.into(),
            datatype: datatype.into(),
            shape: vec![1],
            ..Default::default()
        };
        let response = |contents: &[&[u8]]| ModelInferResponse {
            model_name: "m".into(),
            model_version: "1".into(),
            outputs: vec![output("a", "BYTES"), output("b", "UINT32"), output("c", "FP32")],
            raw_output_contents: contents.iter().map(|raw| raw.to_vec()).collect(),
            ..Default::default()
        };
        let json = inference(response(&[b"\x03\0\0\0\xc3\xa9\n", &[2, 1, 0, 0], &(-0.5_f32).to_le_bytes()])).unwrap();
        assert_eq!(json["outputs"][0], json!({ "name": "a", "datatype": "BYTES", "shape": [1], "data": ["é\n"] }));
        assert_eq!((&json["outputs"][1]["data"], &json["outputs"][2]["data"]), (&json!([258]), &json!([-0.5])));
        assert_eq!((&json["model_name"], json.get("id")), (&json!("m"), None));
        assert!(inference(response(&[b"\x03\0"])).is_err());
        assert!(inference(response(&[b"\x01\0\0\0\xff"])).is_err());
    }
}
