//! Completions in OpenAI's JSON, from events of `Generate`.

use super::{state::unix_seconds, text_offsets::TextOffsets};
use crate::serve::{completion_request::finish_reason, transport::cors::NORMALIZED_CHARS};
use axum::response::Response;
use serde_json::{Map, Value, json};
use weir_proto::v1;

/// The fields that all messages of one completion share.
#[derive(Clone)]
pub(super) struct CompletionHead {
    id: String,
    created: u64,
    model: String,
}

impl CompletionHead {
    /// Starts a completion; its id is made from the request's.
    pub(super) fn new(request_id: &str) -> Self {
        Self { id: format!("cmpl-{request_id}"), created: unix_seconds(), model: String::new() }
    }

    /// Sets the model's name, once.
    pub(super) fn set_model(&mut self, model: &str) {
        if self.model.is_empty() {
            model.clone_into(&mut self.model);
        }
    }

    /// Builds a message with these choices.
    pub(super) fn message(&self, choices: Vec<Value>, usage: Option<Value>) -> Value {
        let mut message = json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if let (Some(usage), Some(message)) = (usage, message.as_object_mut()) {
            message.insert("usage".into(), usage);
        }
        message
    }
}

/// Memory of a character in the lists of a choice, besides the texts.
const CHARACTER_BYTES: usize = 512;
/// Memory of one of its alternatives, besides the texts.
const ALTERNATIVE_BYTES: usize = 160;

/// The output of one choice of a completion.
#[derive(Default)]
pub(super) struct Choice {
    index: usize,
    text: String,
    characters: Option<CharacterLists>,
    /// Offsets of the characters in the choice's text.
    offsets: TextOffsets,
    pub(super) counts: TokenCounts,
    finished: Option<v1::Finished>,
    /// True after the last event.
    complete: bool,
    /// Bytes of memory, estimated, by which the output has grown since this was last taken.
    growth: usize,
}

/// Numbers of symbols, which this API calls tokens, and of Unicode characters.
#[derive(Default, Clone, Copy)]
pub(super) struct TokenCounts {
    prompt: u64,
    cached: u64,
    generated: u64,
    prompt_text_chars: u64,
    normalized_chars: u64,
    generated_text_chars: u64,
}

impl TokenCounts {
    /// Adds the counts of another choice.
    pub(super) fn add(self, other: Self) -> Self {
        Self {
            prompt: self.prompt + other.prompt,
            cached: self.cached + other.cached,
            generated: self.generated + other.generated,
            prompt_text_chars: self.prompt_text_chars + other.prompt_text_chars,
            normalized_chars: self.normalized_chars + other.normalized_chars,
            generated_text_chars: self.generated_text_chars + other.generated_text_chars,
        }
    }

    /// Leaves out the prompt, which another choice has counted.
    pub(super) fn without_prompt(self) -> Self {
        Self { prompt: 0, cached: 0, prompt_text_chars: 0, normalized_chars: 0, ..self }
    }

    /// Adds the header with the characters that normalising changed, if it changed any.
    pub(super) fn add_header(self, mut response: Response) -> Response {
        if self.normalized_chars > 0 {
            response.headers_mut().insert(NORMALIZED_CHARS, self.normalized_chars.into());
        }
        response
    }

    /// Returns the counts in OpenAI's form, with three keys more for characters.
    pub(super) fn usage(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": { "cached_tokens": self.cached },
            "prompt_text_chars": self.prompt_text_chars,
            "completion_text_chars": self.generated_text_chars,
            "normalized_chars": self.normalized_chars,
        })
    }
}

/// Properties of characters, one list for each.
#[derive(Default)]
struct CharacterLists {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
    boundaries: Vec<Value>,
    boundary_probabilities: Vec<Value>,
    chunk_depths: Vec<Value>,
}

impl Choice {
    /// Starts the choice at this index. Normalising changed `normalized_chars` characters of its prompt.
    pub(super) fn new(index: usize, with_characters: bool, normalized_chars: u64) -> Self {
        let counts = TokenCounts { normalized_chars, ..TokenCounts::default() };
        Self { index, characters: with_characters.then(CharacterLists::default), counts, ..Self::default() }
    }

    /// Records that the engine has started the request.
    pub(super) fn start(&mut self, started: &v1::Started) {
        self.counts.prompt = started.prompt_chars;
        self.counts.cached = started.cached_chars;
        self.counts.prompt_text_chars = started.prompt_text_chars();
        self.counts.generated = started.resumed_chars;
    }

    /// Adds text.
    pub(super) fn push(&mut self, piece: v1::Piece) {
        self.text.push_str(&piece.text);
        self.growth += piece.text.len();
        if !piece.prompt {
            // Pieces without character details are counted at the end.
            self.counts.generated += piece.characters.iter().filter(|character| !character.ends_text).count() as u64;
            self.counts.generated_text_chars += piece.text.chars().count() as u64;
        }
        if let Some(characters) = &mut self.characters {
            for character in piece.characters {
                self.growth += CHARACTER_BYTES + character.top.len() * ALTERNATIVE_BYTES;
                let bytes = character.raw_bytes.as_deref().unwrap_or(character.text.as_bytes());
                let offset = self.offsets.push(bytes);
                characters.push(character, offset);
            }
        }
    }

    /// Records the end.
    pub(super) fn finish(&mut self, finished: v1::Finished) {
        if let Some(usage) = &finished.usage {
            self.counts.generated = usage.generated_chars;
            if let Some(chars) = usage.generated_text_chars {
                self.counts.generated_text_chars = chars;
            }
        }
        self.finished = Some(finished);
        self.complete = true;
    }

    /// Returns true after the last event.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the bytes of memory by which the output has grown since the last call.
    pub(super) fn take_growth(&mut self) -> usize {
        std::mem::take(&mut self.growth)
    }

    /// Returns true if there is output to send.
    pub(super) fn has_output(&self) -> bool {
        self.finished.is_some()
            || !self.text.is_empty()
            || self.characters.as_ref().is_some_and(|lists| !lists.tokens.is_empty())
    }

    /// Takes the output since the last call, in OpenAI's form.
    pub(super) fn take_output(&mut self) -> Value {
        let text = std::mem::take(&mut self.text);
        let characters = self.characters.as_mut().map(|characters| std::mem::take(characters).json());
        let finished = self.finished.take();
        let reason = finished.as_ref().map(|finished| finish_reason(finished.reason()));
        let stop = finished.as_ref().and_then(|finished| finished.matched_stop.clone());
        let mut choice = json!({
            "index": self.index,
            "text": text,
            "logprobs": characters,
            "finish_reason": reason,
            "stop_reason": stop,
        });
        if let (Some(finished), Some(choice)) = (finished, choice.as_object_mut()) {
            choice.insert("weir".into(), measurements(&finished));
        }
        choice
    }
}

impl CharacterLists {
    fn push(&mut self, character: v1::Character, offset: usize) {
        self.token_logprobs.push(character.logprob.into());
        let token = token(character.text, character.raw_bytes);
        let alternative = |other: v1::Alternative| (self::token(other.text, other.raw_bytes), other.logprob.into());
        let mut top: Map<_, _> = character.top.into_iter().map(alternative).collect();
        // The sampled character is always in the list, as in OpenAI's API.
        if let Some(logprob) = character.logprob {
            top.entry(token.clone()).or_insert_with(|| logprob.into());
        }
        self.top_logprobs.push(if top.is_empty() { Value::Null } else { top.into() });
        self.text_offset.push(offset.into());
        self.boundaries.push(character.boundary.into());
        self.boundary_probabilities.push(character.boundary_probability.into());
        self.chunk_depths.push(character.chunk_depth.into());
        self.tokens.push(token.into());
    }

    fn json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
            "boundaries": self.boundaries,
            "boundary_probabilities": self.boundary_probabilities,
            "chunk_depths": self.chunk_depths,
        })
    }
}

/// Returns a token as OpenAI's API writes it: its text, or `bytes:\xc3` if its bytes are not text on their own.
fn token(text: String, raw_bytes: Option<Vec<u8>>) -> String {
    match raw_bytes {
        Some(bytes) => bytes.iter().fold("bytes:".to_owned(), |token, byte| format!("{token}\\x{byte:02x}")),
        None => text,
    }
}

/// Returns the fields that OpenAI's API does not have: segments and times.
fn measurements(finished: &v1::Finished) -> Value {
    let usage = finished.usage.unwrap_or_default();
    let timing = finished.timing.unwrap_or_default();
    let mut object = json!({
        "seed": finished.seed.to_string(),
        "prompt_segments": usage.prompt_segments,
        "generated_segments": usage.generated_segments,
        "shortening_factor": usage.shortening_factor,
        "nxt_steps": usage.nxt_steps,
        "resumed_chars": usage.resumed_chars,
        "drafted_chars": usage.drafted_chars,
        "accepted_chars": usage.accepted_chars,
        "prompt_text_chars": usage.prompt_text_chars,
        "generated_text_chars": usage.generated_text_chars,
        "queue_ns": timing.queue_ns,
        "prefill_ns": timing.prefill_ns,
        "time_to_first_char_ns": timing.time_to_first_char_ns,
        "decode_ns": timing.decode_ns,
        "total_ns": timing.total_ns,
        "steps": timing.steps,
        "middle_steps": timing.middle_steps,
        "middle_ns": timing.middle_ns,
    });
    if !finished.levels.is_empty() {
        object["levels"] = finished.levels.iter().map(level).collect();
    }
    object
}

fn level(level: &v1::LevelUsage) -> Value {
    let v1::LevelUsage { chunks, shortening_factor, middle_steps } = level;
    json!({ "chunks": chunks, "shortening_factor": shortening_factor, "middle_steps": middle_steps })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn character(text: &str, logprob: f32) -> v1::Character {
        let top = vec![v1::Alternative { text: "x".into(), logprob: -0.5, id: 3, raw_bytes: None }];
        let boundary = Some(text == " ");
        v1::Character { text: text.into(), logprob: Some(logprob), boundary, top, ..Default::default() }
    }

    #[test]
    fn a_choice_is_sent_in_parts() {
        let mut choice = Choice::new(1, true, 2);
        assert!(!choice.has_output());
        let started =
            v1::Started { prompt_chars: 7, cached_chars: 4, prompt_text_chars: Some(5), ..Default::default() };
        choice.start(&started);
        let characters = vec![character("a", -1.0), character(" ", -2.0)];
        choice.push(v1::Piece { text: "a ".into(), characters, ..Default::default() });
        let output = choice.take_output();
        assert_eq!((&output["text"], &output["index"]), (&json!("a "), &json!(1)));
        assert_eq!(output["finish_reason"], Value::Null);
        assert_eq!(output["logprobs"]["tokens"], json!(["a", " "]));
        assert_eq!(output["logprobs"]["text_offset"], json!([0, 1]));
        assert_eq!(output["logprobs"]["boundaries"], json!([false, true]));
        assert_eq!(output["logprobs"]["top_logprobs"][0], json!({ "x": -0.5, "a": -1.0 }));
        assert!(!choice.has_output());
        choice.push(v1::Piece { text: "b".into(), characters: vec![character("b", -1.0)], ..Default::default() });
        let usage = Some(v1::Usage { generated_chars: 3, ..Default::default() });
        let reason = v1::FinishReason::Stop.into();
        choice.finish(v1::Finished {
            reason,
            matched_stop: Some(".".into()),
            seed: 9,
            usage,
            timing: None,
            levels: Vec::new(),
        });
        let output = choice.take_output();
        assert_eq!((&output["finish_reason"], &output["stop_reason"]), (&json!("stop"), &json!(".")));
        assert_eq!((&output["logprobs"]["text_offset"], &output["weir"]["seed"]), (&json!([2]), &json!("9")));
        let usage = choice.counts.add(choice.counts).usage();
        assert_eq!((&usage["prompt_tokens"], &usage["total_tokens"]), (&json!(14), &json!(20)));
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 8);
        assert_eq!((&usage["prompt_text_chars"], &usage["completion_text_chars"]), (&json!(10), &json!(6)));
        let usage = choice.counts.add(choice.counts.without_prompt()).usage();
        assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(7), &json!(6)));
        assert_eq!((&usage["prompt_text_chars"], &usage["completion_text_chars"]), (&json!(5), &json!(6)));
        assert_eq!(usage["normalized_chars"], 2, "a prompt counts once");
    }

    #[test]
    fn the_end_of_a_text_has_an_empty_token_and_is_not_counted() {
        let mut choice = Choice::new(0, true, 0);
        let end = v1::Character { ends_text: true, ..character("", -3.0) };
        choice.push(v1::Piece { text: "a".into(), characters: vec![character("a", -1.0), end], ..Default::default() });
        assert_eq!(choice.counts.usage()["completion_tokens"], 1);
        let output = choice.take_output();
        assert_eq!(output["logprobs"]["tokens"], json!(["a", ""]));
        assert_eq!(output["logprobs"]["top_logprobs"][1], json!({ "x": -0.5, "": -3.0 }));
    }

    #[test]
    fn only_changed_prompts_have_the_header() {
        let header = |changed| {
            let marked = Choice::new(0, false, changed).counts.add_header(Response::default());
            marked.headers().get(NORMALIZED_CHARS).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(header(3).as_deref(), Some("3"));
        assert_eq!(header(0), None);
    }

    #[test]
    fn bytes_have_the_place_of_their_character() {
        let byte = |byte: u8| {
            let raw_bytes = Some(vec![byte]);
            let top = vec![v1::Alternative { raw_bytes: Some(vec![0xe2]), logprob: -0.5, ..Default::default() }];
            v1::Character { text: format!("\\x{byte:02x}"), logprob: Some(-1.0), raw_bytes, top, ..Default::default() }
        };
        let mut choice = Choice::new(0, true, 0);
        choice.push(v1::Piece { characters: vec![byte(0xc3)], ..Default::default() });
        let output = choice.take_output();
        assert_eq!((&output["text"], &output["logprobs"]["tokens"]), (&json!(""), &json!(["bytes:\\xc3"])));
        let top = json!([{ "bytes:\\xc3": -1.0, "bytes:\\xe2": -0.5 }]);
        assert_eq!((&output["logprobs"]["text_offset"], &output["logprobs"]["top_logprobs"]), (&json!([0]), &top));
        let characters = vec![byte(0xa9), character("x", -1.0)];
        choice.push(v1::Piece { text: "éx".into(), characters, ..Default::default() });
        assert_eq!(choice.take_output()["logprobs"]["text_offset"], json!([0, 1]));
    }

    #[test]
    fn logprobs_are_null_unless_requested() {
        let mut choice = Choice::new(0, false, 0);
        choice.push(v1::Piece { text: "a".into(), ..Default::default() });
        assert_eq!(choice.take_output()["logprobs"], Value::Null);
        assert!(CompletionHead::new("r").message(Vec::new(), None).get("usage").is_none());
    }
}
