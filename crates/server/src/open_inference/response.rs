//! Responses: events of `Generate` as output tensors.

use crate::{
    completion_request::{Names, Surface, finish_reason},
    open_inference::{
        request::{OutputOptions, VERSION},
        tensors::{OUTPUTS, OutputValue, push_output},
    },
    status::{CODE_NAMES, status},
};
use serde_json::{Map, json};
use tonic::Status;
use tonic_types::StatusExt;
use weir_kernels::error::{Error, Result};
use weir_proto::{
    inference::{
        InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
        infer_parameter::ParameterChoice,
    },
    v1::{self, generate_response::Event},
};

/// Parameter of every message: true on the last message of its request.
pub(super) const FINAL: &str = "triton_final_response";

/// The finish reason before the end, as clients of Triton's text models expect it.
const NO_REASON: &str = "None";

/// Collects the events of one request, and builds messages from them.
#[derive(Default)]
pub(super) struct ResponseBuilder {
    model: String,
    options: OutputOptions,
    text: String,
    /// Log-probabilities of the characters in the next message, by symbol id: a JSON array without its last bracket.
    logprobs: String,
    cumulative_logprob: f64,
    prompt_chars: u64,
    /// Characters generated so far.
    generated: u64,
    /// Characters reported in earlier messages.
    reported: u64,
    finished: Option<v1::Finished>,
}

impl ResponseBuilder {
    /// Starts a response.
    pub(super) fn new(options: OutputOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Adds the next event.
    pub(super) fn push(&mut self, event: Event) {
        match event {
            Event::Started(started) => {
                self.model = started.model;
                self.prompt_chars = started.prompt_chars;
            }
            Event::Piece(piece) => {
                self.text.push_str(&piece.text);
                if !piece.prompt {
                    self.generated += piece.characters.iter().filter(|character| !character.ends_text).count() as u64;
                    piece.characters.into_iter().for_each(|character| self.push_character(character));
                }
            }
            Event::Finished(finished) => {
                self.generated = finished.usage.map_or(self.generated, |usage| usage.generated_chars);
                self.finished = Some(finished);
            }
        }
    }

    fn push_character(&mut self, character: v1::Character) {
        self.cumulative_logprob += f64::from(character.logprob.unwrap_or_default());
        if !self.options.has("logprobs") {
            return;
        }
        let mut alternatives = Map::new();
        let mut sampled = json!({ "logprob": character.logprob, "rank": null, "decoded_token": character.text });
        if let Some(mass) = character.constraint_mass {
            sampled["constraint_mass"] = mass.into();
        }
        alternatives.insert(character.id.to_string(), sampled);
        for (rank, other) in (1..).zip(character.top) {
            let ranked = json!({ "logprob": other.logprob, "rank": rank, "decoded_token": other.text });
            alternatives.insert(other.id.to_string(), ranked);
        }
        self.logprobs.push(if self.logprobs.is_empty() { '[' } else { ',' });
        self.logprobs += &serde_json::Value::from(alternatives).to_string();
    }

    /// Returns the memory in bytes of the output that is not taken yet, and of the message that will be built from it.
    pub(super) fn memory_bytes(&self) -> usize {
        self.text.len().saturating_add(self.logprobs.len()).saturating_mul(2)
    }

    /// Returns true after the last event.
    pub(super) fn is_complete(&self) -> bool {
        self.finished.is_some()
    }

    /// Returns true if a message is due.
    pub(super) fn has_output(&self) -> bool {
        self.is_complete() || self.options.stream && !self.text.is_empty()
    }

    /// Takes the output since the last message. It also marks the end, unless the client wants a separate message for that.
    pub(super) fn take_message(&mut self) -> ModelInferResponse {
        let last = self.is_complete() && !self.options.empty_final;
        let mut message = self.empty_message(last);
        let reason = self.finished.as_ref().map_or(NO_REASON, |finished| finish_reason(finished.reason()));
        let text = std::mem::take(&mut self.text);
        let mut logprobs = std::mem::take(&mut self.logprobs);
        logprobs.push_str(if logprobs.is_empty() { "[]" } else { "]" });
        let new_chars = self.generated - self.reported;
        self.reported = self.generated;
        for ((name, _), wanted) in OUTPUTS.iter().zip(self.options.outputs) {
            let value = match *name {
                _ if !wanted => continue,
                "text_output" => OutputValue::Text(&text),
                "finish_reason" => OutputValue::Text(reason),
                "cumulative_logprob" => OutputValue::Number(self.cumulative_logprob),
                "logprobs" => OutputValue::Text(&logprobs),
                "num_input_tokens" => OutputValue::Count(self.prompt_chars),
                _ => OutputValue::Count(new_chars),
            };
            push_output(&mut message, name, value);
        }
        message
    }

    /// Returns the message that only marks the end, if the client wants one.
    pub(super) fn end_message(&self) -> Option<ModelInferResponse> {
        self.options.empty_final.then(|| self.empty_message(true))
    }

    fn empty_message(&self, last: bool) -> ModelInferResponse {
        let model_name = self.model.clone();
        let id = self.options.id.clone();
        let parameters = [parameter(FINAL, ParameterChoice::BoolParam(last))].into();
        ModelInferResponse { model_name, model_version: VERSION.into(), id, parameters, ..Default::default() }
    }
}

/// Builds the last message of a failed request in a stream. Triton only sends the text. Our parameters add the code, the violated
/// rule, and the delay before a retry.
pub(super) fn failure_message(id: &str, status: &Status) -> ModelStreamInferResponse {
    let details = status.get_error_details();
    let text = ParameterChoice::StringParam;
    let mut parameters = vec![
        parameter(FINAL, ParameterChoice::BoolParam(true)),
        parameter("code", text(CODE_NAMES[status.code() as usize].into())),
    ];
    if let Some(info) = details.error_info() {
        parameters.push(parameter("reason", text(info.reason.clone())));
    }
    if let Some(delay) = details.retry_info().and_then(|retry| retry.retry_delay) {
        parameters.push(parameter("retry_after_seconds", ParameterChoice::DoubleParam(delay.as_secs_f64())));
    }
    // Clients take an empty text for success.
    let error_message = Some(status.message()).filter(|message| !message.is_empty()).unwrap_or("failed").to_owned();
    let parameters = parameters.into_iter().collect();
    let infer_response = Some(ModelInferResponse { id: id.into(), parameters, ..Default::default() });
    ModelStreamInferResponse { error_message, infer_response }
}

fn parameter(name: &str, choice: ParameterChoice) -> (String, InferParameter) {
    (name.to_owned(), InferParameter { parameter_choice: Some(choice) })
}

/// Returns the status of an error with this protocol's names.
pub(super) fn for_client(error: Error, request_id: &str) -> Status {
    status(&Names::from(Surface::Inference).name(error), request_id)
}

/// A request of a stream, or the reason why it cannot be decoded.
pub(super) type DecodedRequest = Result<ModelInferRequest, String>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_inference::request::OutputOptions;

    fn piece(text: &str, logprob: f32) -> Event {
        let top = vec![v1::Alternative { text: "x".into(), logprob: -0.5, id: 3, raw_bytes: None }];
        let character = v1::Character { text: text.into(), logprob: Some(logprob), top, id: 9, ..Default::default() };
        Event::Piece(v1::Piece { text: text.into(), characters: vec![character], ..Default::default() })
    }

    fn output<'a>(message: &'a ModelInferResponse, name: &str) -> &'a [u8] {
        let index = message.outputs.iter().position(|output| output.name == name).unwrap();
        &message.raw_output_contents[index]
    }

    #[test]
    fn log_probabilities_are_listed_by_id_and_summed_over_the_parts() {
        let options = OutputOptions { stream: true, outputs: [true; 6], ..Default::default() };
        let mut response = ResponseBuilder::new(options);
        response.push(piece("a", -1.0));
        let first = response.take_message();
        let logprobs: serde_json::Value = serde_json::from_slice(&output(&first, "logprobs")[4..]).unwrap();
        assert_eq!(logprobs[0]["9"]["logprob"], json!(-1.0));
        assert_eq!(logprobs[0]["3"], json!({ "logprob": -0.5, "rank": 1, "decoded_token": "x" }));
        response.push(piece("b", -2.0));
        assert_eq!(output(&response.take_message(), "cumulative_logprob"), (-3.0_f32).to_le_bytes());
    }

    /// The symbol that ends the text arrives before the usage, which excludes it.
    #[test]
    fn the_end_of_a_text_is_not_counted() {
        let options = OutputOptions { stream: true, outputs: [true; 6], ..Default::default() };
        let mut response = ResponseBuilder::new(options);
        let last = v1::Character { text: "a".into(), ..Default::default() };
        let end = v1::Character { ends_text: true, ..Default::default() };
        response.push(Event::Piece(v1::Piece { text: "a".into(), characters: vec![last, end], ..Default::default() }));
        assert_eq!(output(&response.take_message(), "num_output_tokens"), 1_u32.to_le_bytes());
        let usage = Some(v1::Usage { generated_chars: 1, ..Default::default() });
        response.push(Event::Finished(v1::Finished { usage, ..Default::default() }));
        assert_eq!(output(&response.take_message(), "num_output_tokens"), 0_u32.to_le_bytes());
    }
}
