//! What a completion says: events of `Generate` as OpenAI's JSON.

use super::request::ended;
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use weir_proto::v1;

/// What all messages of one completion have in common.
#[derive(Clone)]
pub(super) struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    /// Of a call by its name.
    pub(super) fn new(call: &str) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { id: format!("cmpl-{call}"), created, model: String::new() }
    }

    /// The model that answers.
    pub(super) fn answered_by(&mut self, model: &str) {
        if self.model.is_empty() {
            model.clone_into(&mut self.model);
        }
    }

    /// A message with these choices.
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

/// One answer, as far as it has come.
#[derive(Default)]
pub(super) struct Choice {
    index: usize,
    text: String,
    characters: Option<Characters>,
    /// Characters of text told so far: where the next one stands.
    told: usize,
    usage: Counts,
    finished: Option<v1::Finished>,
}

/// Symbols, which this API calls tokens.
#[derive(Default, Clone, Copy)]
pub(super) struct Counts {
    prompt: u64,
    cached: u64,
    generated: u64,
}

impl Counts {
    /// Of several answers together.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            prompt: self.prompt + other.prompt,
            cached: self.cached + other.cached,
            generated: self.generated + other.generated,
        }
    }

    /// Of one more answer to a prompt that has been counted.
    pub(super) fn without_prompt(self) -> Self {
        Self { prompt: 0, cached: 0, ..self }
    }

    /// OpenAI's form.
    pub(super) fn usage(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}

/// Characters one by one, each field a list.
#[derive(Default)]
struct Characters {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
    boundaries: Vec<Value>,
    boundary_probabilities: Vec<Value>,
}

impl Choice {
    /// Nothing yet of the answer at this index.
    pub(super) fn new(index: usize, tells_characters: bool) -> Self {
        Self { index, characters: tells_characters.then(Characters::default), ..Self::default() }
    }

    /// The request got its place.
    pub(super) fn start(&mut self, started: &v1::Started) {
        self.usage.prompt = started.prompt_chars;
        self.usage.cached = started.cached_chars;
    }

    /// More text.
    pub(super) fn push(&mut self, piece: v1::Piece) {
        self.text.push_str(&piece.text);
        if !piece.prompt {
            // as far as they are told one by one; the end tells how many there were in any case
            self.usage.generated += piece.characters.len() as u64;
        }
        if let Some(characters) = &mut self.characters {
            for character in piece.characters {
                let length = character.text.chars().count();
                characters.push(character, self.told);
                self.told += length;
            }
        }
    }

    /// Its end.
    pub(super) fn finish(&mut self, finished: v1::Finished) {
        if let Some(usage) = &finished.usage {
            self.usage.generated = usage.generated_chars;
        }
        self.finished = Some(finished);
    }

    /// Whether there is something to tell.
    pub(super) fn has_news(&self) -> bool {
        self.finished.is_some() || !self.text.is_empty() || self.characters.as_ref().is_some_and(Characters::has_some)
    }

    /// What was counted so far.
    pub(super) fn counts(&self) -> Counts {
        self.usage
    }

    /// What has come since the last time, in OpenAI's form.
    pub(super) fn take(&mut self) -> Value {
        let text = std::mem::take(&mut self.text);
        let characters = self.characters.as_mut().map(|characters| std::mem::take(characters).told());
        let finished = self.finished.take();
        let reason = finished.as_ref().map(|finished| ended(finished.reason()));
        let stop = finished.as_ref().and_then(|finished| finished.matched_stop.clone());
        let mut choice = json!({
            "index": self.index,
            "text": text,
            "logprobs": characters,
            "finish_reason": reason,
            "stop_reason": stop,
        });
        if let (Some(finished), Some(choice)) = (finished, choice.as_object_mut()) {
            choice.insert("weir".into(), measured(&finished));
        }
        choice
    }
}

impl Characters {
    fn has_some(&self) -> bool {
        !self.tokens.is_empty()
    }

    fn push(&mut self, character: v1::Character, offset: usize) {
        self.token_logprobs.push(character.logprob.into());
        let mut top: Map<_, _> = character.top.into_iter().map(|one| (one.text, one.logprob.into())).collect();
        // the one taken is told among them in any case, as OpenAI has it
        if let Some(logprob) = character.logprob {
            top.entry(character.text.clone()).or_insert_with(|| logprob.into());
        }
        self.top_logprobs.push(if top.is_empty() { Value::Null } else { top.into() });
        self.text_offset.push(offset.into());
        self.boundaries.push(character.boundary.into());
        self.boundary_probabilities.push(character.boundary_probability.into());
        self.tokens.push(character.text.into());
    }

    fn told(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
            "boundaries": self.boundaries,
            "boundary_probabilities": self.boundary_probabilities,
        })
    }
}

/// What this server tells beside OpenAI's fields: segments and times.
fn measured(finished: &v1::Finished) -> Value {
    let (usage, timing) = (finished.usage.unwrap_or_default(), finished.timing.unwrap_or_default());
    json!({
        "seed": finished.seed.to_string(),
        "prompt_segments": usage.prompt_segments,
        "generated_segments": usage.generated_segments,
        "shortening_factor": usage.shortening_factor,
        "nxt_steps": usage.nxt_steps,
        "queue_ns": timing.queue_ns,
        "prefill_ns": timing.prefill_ns,
        "time_to_first_char_ns": timing.time_to_first_char_ns,
        "decode_ns": timing.decode_ns,
        "total_ns": timing.total_ns,
        "steps": timing.steps,
        "middle_steps": timing.middle_steps,
        "middle_ns": timing.middle_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn character(text: &str, logprob: f32) -> v1::Character {
        let top = vec![v1::Alternative { text: "x".into(), logprob: -0.5, id: 3 }];
        let boundary = Some(text == " ");
        v1::Character { text: text.into(), logprob: Some(logprob), boundary, top, ..Default::default() }
    }

    #[test]
    fn a_choice_is_told_bit_by_bit() {
        let mut choice = Choice::new(1, true);
        assert!(!choice.has_news());
        choice.start(&v1::Started { prompt_chars: 7, cached_chars: 4, ..Default::default() });
        let characters = vec![character("a", -1.0), character(" ", -2.0)];
        choice.push(v1::Piece { text: "a ".into(), characters, prompt: false });
        let told = choice.take();
        assert_eq!((&told["text"], &told["index"], &told["finish_reason"]), (&json!("a "), &json!(1), &Value::Null));
        assert_eq!(told["logprobs"]["tokens"], json!(["a", " "]));
        assert_eq!(told["logprobs"]["text_offset"], json!([0, 1]));
        assert_eq!(told["logprobs"]["boundaries"], json!([false, true]));
        assert_eq!(told["logprobs"]["top_logprobs"][0], json!({ "x": -0.5, "a": -1.0 }));
        assert!(!choice.has_news());
        choice.push(v1::Piece { text: "b".into(), characters: vec![character("b", -1.0)], prompt: false });
        let usage = Some(v1::Usage { generated_chars: 3, ..Default::default() });
        let reason = v1::FinishReason::Stop.into();
        choice.finish(v1::Finished { reason, matched_stop: Some(".".into()), seed: 9, usage, timing: None });
        let told = choice.take();
        assert_eq!((&told["finish_reason"], &told["stop_reason"]), (&json!("stop"), &json!(".")));
        assert_eq!((&told["logprobs"]["text_offset"], &told["weir"]["seed"]), (&json!([2]), &json!("9")));
        let usage = choice.counts().and(choice.counts()).usage();
        assert_eq!((&usage["prompt_tokens"], &usage["total_tokens"]), (&json!(14), &json!(20)));
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 8);
        let usage = choice.counts().and(choice.counts().without_prompt()).usage();
        assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(7), &json!(6)));
    }

    #[test]
    fn what_was_not_asked_for_is_null() {
        let mut choice = Choice::new(0, false);
        choice.push(v1::Piece { text: "a".into(), ..Default::default() });
        assert_eq!(choice.take()["logprobs"], Value::Null);
        assert!(Head::new("r").message(Vec::new(), None).get("usage").is_none());
    }
}
