//! What an answer says: events of `Generate` as tensors.

use super::{
    request::{VERSION, Wanted},
    tensors::{OUTPUTS, Value, put},
};
use crate::serve::{openai::request::finish_reason, status::code_name};
use serde_json::{Map, json};
use tonic::Status;
use tonic_types::StatusExt;
use weir_proto::{
    inference::{InferParameter, ModelInferResponse, ModelStreamInferResponse, infer_parameter::ParameterChoice},
    v1::{self, generate_response::Event},
};

/// On every message: whether it is the last one of its request.
const FINAL: &str = "triton_final_response";
/// What clients of text models know instead of a reason, before there is one.
const NO_REASON: &str = "None";

/// One answer, as far as it has come.
pub(super) struct Reply {
    model: String,
    wanted: Wanted,
    text: String,
    /// Log-probabilities of the characters that are told next, by their ids.
    characters: Vec<serde_json::Value>,
    cumulative: f64,
    prompt: u64,
    /// Characters made, and those of them that were told of.
    made: u64,
    told: u64,
    finished: Option<v1::Finished>,
}

impl Reply {
    /// Nothing yet.
    pub(super) fn new(wanted: Wanted) -> Self {
        let (model, text, characters) = (String::new(), String::new(), Vec::new());
        Self { model, wanted, text, characters, cumulative: 0.0, prompt: 0, made: 0, told: 0, finished: None }
    }

    /// Takes the next event.
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Started(started) => {
                self.model = started.model;
                self.prompt = started.prompt_chars;
            }
            Event::Piece(piece) => {
                self.text.push_str(&piece.text);
                if !piece.prompt {
                    self.made += piece.characters.len() as u64;
                    piece.characters.into_iter().for_each(|character| self.character(character));
                }
            }
            Event::Finished(finished) => {
                self.made = finished.usage.map_or(self.made, |usage| usage.generated_chars);
                self.finished = Some(finished);
            }
        }
    }

    fn character(&mut self, character: v1::Character) {
        self.cumulative += f64::from(character.logprob.unwrap_or_default());
        if !self.wanted.has("logprobs") {
            return;
        }
        let mut all = Map::new();
        let taken = json!({ "logprob": character.logprob, "rank": null, "decoded_token": character.text });
        all.insert(character.id.to_string(), taken);
        for (rank, one) in (1..).zip(character.top) {
            let told = json!({ "logprob": one.logprob, "rank": rank, "decoded_token": one.text });
            all.insert(one.id.to_string(), told);
        }
        self.characters.push(all.into());
    }

    /// Whether all has come.
    pub(super) fn is_complete(&self) -> bool {
        self.finished.is_some()
    }

    /// Whether a message is due.
    pub(super) fn has_news(&self) -> bool {
        self.is_complete() || self.wanted.stream && !self.text.is_empty()
    }

    /// What has come since the last time; the end is told by another message if that is wanted.
    pub(super) fn message(&mut self) -> ModelInferResponse {
        let last = self.is_complete() && !self.wanted.empty_final;
        let mut message = self.head(last);
        let reason = self.finished.as_ref().map_or(NO_REASON, |finished| finish_reason(finished.reason()));
        let text = std::mem::take(&mut self.text);
        let characters = serde_json::Value::from(std::mem::take(&mut self.characters)).to_string();
        let made = self.made - self.told;
        self.told = self.made;
        for ((name, _), wanted) in OUTPUTS.iter().zip(self.wanted.outputs) {
            let value = match *name {
                _ if !wanted => continue,
                "text_output" => Value::Text(&text),
                "finish_reason" => Value::Text(reason),
                "cumulative_logprob" => Value::Number(self.cumulative),
                "logprobs" => Value::Text(&characters),
                "num_input_tokens" => Value::Count(self.prompt),
                _ => Value::Count(made),
            };
            put(&mut message, name, value);
        }
        message
    }

    /// The end, if it is to be told by a message of its own.
    pub(super) fn end(&self) -> Option<ModelInferResponse> {
        self.wanted.empty_final.then(|| self.head(true))
    }

    fn head(&self, last: bool) -> ModelInferResponse {
        let (model_name, id) = (self.model.clone(), self.wanted.id.clone());
        let parameters = [parameter(FINAL, ParameterChoice::BoolParam(last))].into();
        ModelInferResponse { model_name, model_version: VERSION.into(), id, parameters, ..Default::default() }
    }
}

/// A request's failure, as a stream tells it: no more comes of that request. The text is Triton's way of saying it; the code, the
/// rule that was broken, and the time after which another try makes sense are for programs.
pub(super) fn failed(id: &str, status: &Status) -> ModelStreamInferResponse {
    let details = status.get_error_details();
    let text = ParameterChoice::StringParam;
    let mut parameters = vec![
        parameter(FINAL, ParameterChoice::BoolParam(true)),
        parameter("code", text(code_name(status.code()).into())),
    ];
    if let Some(info) = details.error_info() {
        parameters.push(parameter("reason", text(info.reason.clone())));
    }
    if let Some(delay) = details.retry_info().and_then(|retry| retry.retry_delay) {
        parameters.push(parameter("retry_after_seconds", ParameterChoice::DoubleParam(delay.as_secs_f64())));
    }
    // an empty one would be none
    let error_message = Some(status.message()).filter(|message| !message.is_empty()).unwrap_or("failed").to_owned();
    let parameters = parameters.into_iter().collect();
    let infer_response = Some(ModelInferResponse { id: id.into(), parameters, ..Default::default() });
    ModelStreamInferResponse { error_message, infer_response }
}

fn parameter(name: &str, choice: ParameterChoice) -> (String, InferParameter) {
    (name.to_owned(), InferParameter { parameter_choice: Some(choice) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str, logprob: f32) -> Event {
        let top = vec![v1::Alternative { text: "x".into(), logprob: -0.5, id: 3 }];
        let character = v1::Character { text: text.into(), logprob: Some(logprob), top, id: 9, ..Default::default() };
        Event::Piece(v1::Piece { text: text.into(), characters: vec![character], prompt: false })
    }

    fn output<'a>(message: &'a ModelInferResponse, name: &str) -> &'a [u8] {
        let at = message.outputs.iter().position(|output| output.name == name).unwrap();
        &message.raw_output_contents[at]
    }

    #[test]
    fn an_answer_is_told_bit_by_bit() {
        let wanted = Wanted { id: "7".into(), stream: true, empty_final: true, outputs: [true; 6] };
        let mut reply = Reply::new(wanted);
        assert!(!reply.has_news());
        reply.take(Event::Started(v1::Started { model: "m".into(), prompt_chars: 4, ..Default::default() }));
        reply.take(made("a", -1.0));
        assert!(reply.has_news());
        let first = reply.message();
        assert_eq!((first.id.as_str(), first.model_name.as_str(), first.outputs.len()), ("7", "m", 6));
        assert_eq!(output(&first, "text_output"), b"\x01\0\0\0a");
        assert_eq!(output(&first, "finish_reason"), b"\x04\0\0\0None");
        assert_eq!(output(&first, "num_input_tokens"), 4_u32.to_le_bytes());
        assert_eq!(output(&first, "num_output_tokens"), 1_u32.to_le_bytes());
        let told: serde_json::Value = serde_json::from_slice(&output(&first, "logprobs")[4..]).unwrap();
        assert_eq!(told[0]["9"]["logprob"], json!(-1.0));
        assert_eq!(told[0]["3"], json!({ "logprob": -0.5, "rank": 1, "decoded_token": "x" }));
        reply.take(made("b", -2.0));
        let usage = Some(v1::Usage { generated_chars: 2, ..Default::default() });
        let reason = v1::FinishReason::Stop.into();
        reply.take(Event::Finished(v1::Finished { reason, usage, ..Default::default() }));
        let last = reply.message();
        assert_eq!(output(&last, "cumulative_logprob"), (-3.0_f32).to_le_bytes());
        assert_eq!(output(&last, "finish_reason"), b"\x04\0\0\0stop");
        let ends = |message: &ModelInferResponse| message.parameters[FINAL].parameter_choice.clone();
        assert_eq!(ends(&last), Some(ParameterChoice::BoolParam(false)));
        let end = reply.end().unwrap();
        assert_eq!((ends(&end), end.outputs.len()), (Some(ParameterChoice::BoolParam(true)), 0));
    }
}
