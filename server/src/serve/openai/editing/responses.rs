//! The messages of the server in JSON: objects with one field, which names the kind of the message.
//!
//! They borrow from the response and are written in one pass: a tree of values would take many times the memory of the text.

use crate::error::{Error, Result};
use prost::Message as _;
use serde::{Serialize, Serializer};
use weir_proto::v1::{self, document_closed::Reason, edit_response::Event};

/// Length of a formatted response relative to its encoded length, at most. Objects repeat the names of their fields.
pub(super) const FORMATTED: usize = 8;

/// A message of the server.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum ResponseMessage<'a> {
    Applied(AppliedMessage),
    Completions(CompletionsMessage<'a>),
    Scores(ScoresMessage<'a>),
    Stale(StaleMessage),
    Failed(FailedMessage<'a>),
    Closed(ClosedMessage),
}

#[derive(Serialize)]
struct AppliedMessage {
    revision: u64,
    text_bytes: u64,
    normalized_chars: u64,
}

#[derive(Serialize)]
struct CompletionsMessage<'a> {
    id: u64,
    revision: u64,
    #[serde(serialize_with = "items")]
    items: &'a [v1::CompletionItem],
    cut: bool,
    reused_chars: u64,
    recomputed_chars: u64,
    distributions: u32,
    reused_distributions: u32,
    duration_ns: u64,
}

/// One of the completions.
#[derive(Serialize)]
struct ItemMessage<'a> {
    text: &'a str,
    logprob: f64,
    chars: u32,
    boundaries: &'a [u32],
}

#[derive(Serialize)]
struct ScoresMessage<'a> {
    id: u64,
    revision: u64,
    #[serde(serialize_with = "characters")]
    characters: &'a [v1::Character],
    start_bytes: &'a [u64],
    recomputed_chars: u64,
    duration_ns: u64,
}

/// A scored character, without the fields that it does not have. Its numbers are written as `f64`, as in the other responses.
#[derive(Serialize)]
struct CharacterMessage<'a> {
    text: &'a str,
    id: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprob: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    boundary_probability: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nxt_logprob: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    boundary: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk_depth: Option<u32>,
}

#[derive(Serialize)]
struct StaleMessage {
    id: u64,
}

/// A failure, without the fields that it does not have.
#[derive(Serialize)]
struct FailedMessage<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    code: &'a str,
    reason: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
}

#[derive(Serialize)]
struct ClosedMessage {
    reason: &'static str,
}

/// Formats a response under its name.
pub(super) fn response_text(response: &v1::EditResponse) -> Result<String> {
    let Some(event) = &response.event else { return Ok("{}".into()) };
    // Growing would double the memory.
    let mut text = Vec::with_capacity(response.encoded_len().saturating_mul(FORMATTED));
    let broken = |error: &dyn std::fmt::Display| Error::Internal(format!("a response that is not JSON: {error}"));
    serde_json::to_writer(&mut text, &ResponseMessage::from(event)).map_err(|error| broken(&error))?;
    String::from_utf8(text).map_err(|error| broken(&error))
}

impl<'a> From<&'a Event> for ResponseMessage<'a> {
    fn from(event: &'a Event) -> Self {
        match event {
            Event::Applied(applied) => {
                let &v1::DocumentApplied { revision, text_bytes, normalized_chars } = applied;
                Self::Applied(AppliedMessage { revision, text_bytes, normalized_chars })
            }
            Event::Completions(completions) => Self::Completions(completions.into()),
            Event::Scores(scores) => Self::Scores(scores.into()),
            &Event::Stale(v1::StaleRequest { id }) => Self::Stale(StaleMessage { id }),
            Event::Failed(failure) => Self::Failed(failure.into()),
            Event::Closed(closed) => Self::Closed(ClosedMessage { reason: reason_name(closed.reason()) }),
        }
    }
}

impl<'a> From<&'a v1::DocumentCompletions> for CompletionsMessage<'a> {
    fn from(completions: &'a v1::DocumentCompletions) -> Self {
        Self {
            id: completions.id,
            revision: completions.revision,
            items: &completions.items,
            cut: completions.cut,
            reused_chars: completions.reused_chars,
            recomputed_chars: completions.recomputed_chars,
            distributions: completions.distributions,
            reused_distributions: completions.reused_distributions,
            duration_ns: completions.duration_ns,
        }
    }
}

impl<'a> From<&'a v1::DocumentScores> for ScoresMessage<'a> {
    fn from(scores: &'a v1::DocumentScores) -> Self {
        Self {
            id: scores.id,
            revision: scores.revision,
            characters: &scores.characters,
            start_bytes: &scores.start_bytes,
            recomputed_chars: scores.recomputed_chars,
            duration_ns: scores.duration_ns,
        }
    }
}

impl<'a> From<&'a v1::EditFailure> for FailedMessage<'a> {
    fn from(v1::EditFailure { id, code, reason, message, field }: &'a v1::EditFailure) -> Self {
        Self { id: *id, code, reason, message, field: field.as_deref() }
    }
}

fn items<S: Serializer>(items: &[v1::CompletionItem], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(items.iter().map(ItemMessage::from))
}

fn characters<S: Serializer>(characters: &[v1::Character], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(characters.iter().map(CharacterMessage::from))
}

impl<'a> From<&'a v1::CompletionItem> for ItemMessage<'a> {
    fn from(v1::CompletionItem { text, logprob, chars, boundaries }: &'a v1::CompletionItem) -> Self {
        Self { text, logprob: *logprob, chars: *chars, boundaries }
    }
}

impl<'a> From<&'a v1::Character> for CharacterMessage<'a> {
    fn from(character: &'a v1::Character) -> Self {
        Self {
            text: &character.text,
            id: character.id,
            logprob: character.logprob.map(f64::from),
            boundary_probability: character.boundary_probability.map(f64::from),
            nxt_logprob: character.nxt_logprob.map(f64::from),
            boundary: character.boundary,
            chunk_depth: (character.chunk_depth > 0).then_some(character.chunk_depth),
        }
    }
}

/// Returns the name of the reason why a session ended.
fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::Unspecified => "unspecified",
        Reason::Client => "client",
        Reason::Idle => "idle",
        Reason::Draining => "draining",
        Reason::ModelChanged => "model_changed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(event: Event) -> String {
        response_text(&v1::EditResponse { event: Some(event) }).unwrap()
    }

    #[test]
    fn responses_have_the_fields_that_are_set() {
        let failure = v1::EditFailure { id: Some(7), code: "C".into(), field: Some("f".into()), ..Default::default() };
        assert_eq!(
            text(Event::Failed(failure)),
            r#"{"failed":{"id":7,"code":"C","reason":"","message":"","field":"f"}}"#
        );
        let failure = v1::EditFailure::default();
        assert_eq!(text(Event::Failed(failure)), r#"{"failed":{"code":"","reason":"","message":""}}"#);
        let characters = vec![
            v1::Character { text: "\"".into(), id: 1, nxt_logprob: Some(f32::NAN), ..Default::default() },
            v1::Character { logprob: Some(-0.4), boundary: Some(false), chunk_depth: 2, ..Default::default() },
        ];
        let scores = v1::DocumentScores { id: 3, characters, start_bytes: vec![0, 1], ..Default::default() };
        assert_eq!(
            text(Event::Scores(scores)),
            r#"{"scores":{"id":3,"revision":0,"characters":[{"text":"\"","id":1,"nxt_logprob":null},"#.to_owned()
                + r#"{"text":"","id":0,"logprob":-0.4000000059604645,"boundary":false,"chunk_depth":2}],"#
                + r#""start_bytes":[0,1],"recomputed_chars":0,"duration_ns":0}}"#
        );
        let item = v1::CompletionItem { text: "a".into(), logprob: -1.0, chars: 1, boundaries: vec![0] };
        let completions = v1::DocumentCompletions { id: 4, items: vec![item], ..Default::default() };
        assert_eq!(
            text(Event::Completions(completions)),
            r#"{"completions":{"id":4,"revision":0,"items":[{"text":"a","logprob":-1.0,"chars":1,"boundaries":[0]}],"#
                .to_owned()
                + r#""cut":false,"reused_chars":0,"recomputed_chars":0,"distributions":0,"reused_distributions":0,"duration_ns":0}}"#
        );
        let applied = v1::DocumentApplied { revision: 1, text_bytes: 2, normalized_chars: 3 };
        assert_eq!(text(Event::Applied(applied)), r#"{"applied":{"revision":1,"text_bytes":2,"normalized_chars":3}}"#);
        assert_eq!(text(Event::Stale(v1::StaleRequest { id: 5 })), r#"{"stale":{"id":5}}"#);
        let closed = v1::DocumentClosed { reason: Reason::ModelChanged.into() };
        assert_eq!(text(Event::Closed(closed)), r#"{"closed":{"reason":"model_changed"}}"#);
        assert_eq!(response_text(&v1::EditResponse::default()).unwrap(), "{}");
    }

    #[test]
    fn long_responses_fit_in_their_estimate() {
        let is_within = |event| {
            let response = v1::EditResponse { event: Some(event) };
            let length = response_text(&response).unwrap().len();
            assert!(length <= response.encoded_len() * FORMATTED, "{length} of {}", response.encoded_len());
        };
        // Control characters and long numbers take the most characters of JSON.
        let number = Some(-1.234_567_8e-30);
        let character = v1::Character {
            text: "\u{1}".into(),
            id: 1,
            logprob: number,
            boundary: Some(false),
            boundary_probability: number,
            nxt_logprob: number,
            chunk_depth: 2,
            ..Default::default()
        };
        for character in [
            character.clone(),
            v1::Character { boundary_probability: None, nxt_logprob: None, chunk_depth: 0, ..character },
        ] {
            let characters = vec![character; 500];
            is_within(Event::Scores(v1::DocumentScores {
                characters,
                start_bytes: (0..500).collect(),
                ..Default::default()
            }));
        }
        let item = v1::CompletionItem {
            text: "\u{1}".repeat(9),
            logprob: -1.234_567_891e-30,
            chars: 9,
            boundaries: vec![1; 9],
        };
        is_within(Event::Completions(v1::DocumentCompletions { items: vec![item; 50], ..Default::default() }));
    }
}
