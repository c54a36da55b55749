//! Generations over the Open Inference Protocol.

use crate::{
    client::{Client, End},
    model::greedy,
    plan::CallPlan,
};
use serde_json::json;
use tonic::Status;
use weir_proto::inference::{
    ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient, model_infer_request::InferInputTensor,
};

/// Bytes before a text in a tensor, which are its length.
const LENGTH_BYTES: usize = 4;

impl Client {
    /// Continues the prompt, and checks the text, which begins with the prompt.
    pub(crate) async fn infer(&self, plan: &CallPlan, name: &str) -> Result<End, Status> {
        let parameters = json!({ "max_tokens": plan.count, "temperature": 0, "seed": 1 });
        let texts = [("text_input", plan.prompt.clone()), ("sampling_parameters", parameters.to_string())];
        let tensor = |(name, _): &(&str, String)| InferInputTensor {
            name: (*name).into(),
            datatype: "BYTES".into(),
            shape: vec![1],
            ..Default::default()
        };
        let raw = |(_, text): &(&str, String)| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        let message = ModelInferRequest {
            model_name: "sim".into(),
            id: "id".into(),
            inputs: texts.iter().map(tensor).collect(),
            raw_input_contents: texts.iter().map(raw).collect(),
            ..Default::default()
        };
        let mut client = GrpcInferenceServiceClient::new(self.channel.clone());
        let response = client.model_infer(self.request(plan, name, message)).await?.into_inner();
        let index = response.outputs.iter().position(|output| output.name == "text_output");
        let text = index.and_then(|index| response.raw_output_contents.get(index)?.get(LENGTH_BYTES..));
        // a prompt that makes the step panic has no response
        let is_expected = |text: &[u8]| {
            !plan.prompt.contains('!') && text == (plan.prompt.clone() + &greedy(&plan.prompt, plan.count)).as_bytes()
        };
        if !text.is_some_and(is_expected) {
            self.world.log.violation(format_args!("{name}: inferred {:?}", text.map(String::from_utf8_lossy)));
        }
        Ok(End::Complete)
    }
}
