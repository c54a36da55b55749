//! The messages of `Edit` in JSON: objects with one field, which names the kind of the message.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_proto::v1::{self, document_closed::Reason, edit_request::Action, edit_response::Event};

/// A message of a client.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", expecting = "an object with one field: open, splice, complete, score or close")]
pub(super) enum RequestMessage {
    Open(OpenMessage),
    Splice(SpliceMessage),
    Complete(CompleteMessage),
    Score(ScoreMessage),
    Close(CloseMessage),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(super) struct OpenMessage {
    model: Option<String>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    revision: u64,
    priority: Option<i32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(super) struct SpliceMessage {
    revision: u64,
    splices: Vec<Replacement>,
}

/// One replacement of a splice.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Replacement {
    start_byte: u64,
    end_byte: u64,
    #[serde(default)]
    text: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(super) struct CompleteMessage {
    id: u64,
    cursor_byte: u64,
    count: Option<u32>,
    until: Option<UntilName>,
    max_chars: Option<u32>,
}

/// Where a completion ends.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum UntilName {
    Word,
    Line,
    Segment,
    MaxChars,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(super) struct ScoreMessage {
    id: u64,
    start_byte: u64,
    end_byte: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an empty object")]
pub(super) struct CloseMessage {}

impl RequestMessage {
    /// Converts the message to one of the call.
    pub(super) fn into_request(self) -> v1::EditRequest {
        let action = match self {
            Self::Open(OpenMessage { model, text, revision, priority }) => {
                Action::Open(v1::OpenDocument { model, text, revision, priority })
            }
            Self::Splice(SpliceMessage { revision, splices }) => {
                let splice = |Replacement { start_byte, end_byte, text }| v1::TextSplice { start_byte, end_byte, text };
                Action::Splice(v1::SpliceDocument { revision, splices: splices.into_iter().map(splice).collect() })
            }
            Self::Complete(CompleteMessage { id, cursor_byte, count, until, max_chars }) => {
                let until = until.map(|until| v1::Until::from(until).into());
                Action::Complete(v1::CompleteDocument { id, cursor_byte, count, until, max_chars })
            }
            Self::Score(ScoreMessage { id, start_byte, end_byte }) => {
                Action::Score(v1::ScoreDocument { id, start_byte, end_byte })
            }
            Self::Close(CloseMessage {}) => Action::Close(v1::CloseDocument {}),
        };
        v1::EditRequest { action: Some(action) }
    }
}

impl From<UntilName> for v1::Until {
    fn from(name: UntilName) -> Self {
        match name {
            UntilName::Word => Self::Word,
            UntilName::Line => Self::Line,
            UntilName::Segment => Self::Segment,
            UntilName::MaxChars => Self::MaxChars,
        }
    }
}

/// Converts a response to JSON under its name.
pub(super) fn response_json(response: &v1::EditResponse) -> Value {
    match &response.event {
        Some(Event::Applied(v1::DocumentApplied { revision, text_bytes, normalized_chars })) => json!({ "applied": {
            "revision": revision,
            "text_bytes": text_bytes,
            "normalized_chars": normalized_chars,
        } }),
        Some(Event::Completions(completions)) => json!({ "completions": completions_json(completions) }),
        Some(Event::Scores(scores)) => json!({ "scores": {
            "id": scores.id,
            "revision": scores.revision,
            "characters": scores.characters.iter().map(character_json).collect::<Vec<_>>(),
            "start_bytes": scores.start_bytes,
            "recomputed_chars": scores.recomputed_chars,
            "duration_ns": scores.duration_ns,
        } }),
        Some(Event::Stale(v1::StaleRequest { id })) => json!({ "stale": { "id": id } }),
        Some(Event::Failed(failure)) => json!({ "failed": failure_json(failure) }),
        Some(Event::Closed(closed)) => json!({ "closed": { "reason": reason_name(closed.reason()) } }),
        None => json!({}),
    }
}

fn completions_json(completions: &v1::DocumentCompletions) -> Value {
    let item = |item: &v1::CompletionItem| {
        let v1::CompletionItem { text, logprob, chars, boundaries } = item;
        json!({ "text": text, "logprob": logprob, "chars": chars, "boundaries": boundaries })
    };
    json!({
        "id": completions.id,
        "revision": completions.revision,
        "items": completions.items.iter().map(item).collect::<Vec<_>>(),
        "cut": completions.cut,
        "reused_chars": completions.reused_chars,
        "recomputed_chars": completions.recomputed_chars,
        "distributions": completions.distributions,
        "duration_ns": completions.duration_ns,
    })
}

/// Converts a character, without the fields that it does not have.
fn character_json(character: &v1::Character) -> Value {
    let mut fields = Map::new();
    fields.insert("text".into(), character.text.clone().into());
    fields.insert("id".into(), character.id.into());
    for (name, value) in [
        ("logprob", character.logprob),
        ("boundary_probability", character.boundary_probability),
        ("nxt_logprob", character.nxt_logprob),
    ] {
        if let Some(value) = value {
            fields.insert(name.into(), value.into());
        }
    }
    if let Some(boundary) = character.boundary {
        fields.insert("boundary".into(), boundary.into());
    }
    if character.chunk_depth > 0 {
        fields.insert("chunk_depth".into(), character.chunk_depth.into());
    }
    fields.into()
}

/// Converts a failure, without the fields that it does not have.
fn failure_json(v1::EditFailure { id, code, reason, message, field }: &v1::EditFailure) -> Value {
    let mut fields = Map::new();
    if let Some(id) = id {
        fields.insert("id".into(), (*id).into());
    }
    fields.insert("code".into(), code.clone().into());
    fields.insert("reason".into(), reason.clone().into());
    fields.insert("message".into(), message.clone().into());
    if let Some(field) = field {
        fields.insert("field".into(), field.clone().into());
    }
    fields.into()
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
    use crate::serve::completion_request::parse_json;

    fn action(text: &str) -> Result<Action, String> {
        let message: RequestMessage = parse_json(text.as_bytes(), "the message").map_err(|error| error.to_string())?;
        Ok(message.into_request().action.unwrap())
    }

    #[test]
    fn each_message_has_its_form() {
        let open = v1::OpenDocument { model: Some("m".into()), text: "é".into(), revision: 3, priority: Some(-1) };
        assert_eq!(
            action(r#"{"open": {"model": "m", "text": "é", "revision": 3, "priority": -1}}"#),
            Ok(Action::Open(open))
        );
        assert_eq!(action(r#"{"open": {}}"#), Ok(Action::Open(v1::OpenDocument::default())));
        let splices = vec![v1::TextSplice { start_byte: 1, end_byte: 2, text: "x".into() }];
        let splice = Action::Splice(v1::SpliceDocument { revision: 4, splices });
        assert_eq!(
            action(r#"{"splice": {"revision": 4, "splices": [{"start_byte": 1, "end_byte": 2, "text": "x"}]}}"#),
            Ok(splice)
        );
        for (name, until) in [
            ("word", v1::Until::Word),
            ("line", v1::Until::Line),
            ("segment", v1::Until::Segment),
            ("max_chars", v1::Until::MaxChars),
        ] {
            let complete = v1::CompleteDocument {
                id: 1,
                cursor_byte: 2,
                count: Some(3),
                until: Some(until.into()),
                max_chars: Some(4),
            };
            let text = format!(
                r#"{{"complete": {{"id": 1, "cursor_byte": 2, "count": 3, "until": "{name}", "max_chars": 4}}}}"#
            );
            assert_eq!(action(&text), Ok(Action::Complete(complete)));
        }
        let score = v1::ScoreDocument { id: 1, start_byte: 2, end_byte: 3 };
        assert_eq!(action(r#"{"score": {"id": 1, "start_byte": 2, "end_byte": 3}}"#), Ok(Action::Score(score)));
        assert_eq!(action(r#"{"close": {}}"#), Ok(Action::Close(v1::CloseDocument {})));
    }

    #[test]
    fn malformed_messages_are_named() {
        for (text, part) in [
            ("{", "the message: "),
            ("[]", "expected a JSON object, not a list"),
            ("{}", "the message: "),
            (r#"{"type": {}}"#, "unknown variant `type`"),
            (r#"{"open": {"txt": "a"}}"#, "unknown field `txt`"),
            (r#"{"splice": {"revision": -1}}"#, "splice.revision"),
            (r#"{"splice": {"splices": []}}"#, "missing field `revision`"),
            (r#"{"complete": {"id": 1, "cursor_byte": 0, "until": "sentence"}}"#, "complete.until"),
            (r#"{"close": {}, "open": {}}"#, "the message: "),
        ] {
            let error = action(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn responses_have_the_fields_that_are_set() {
        let json = |event| response_json(&v1::EditResponse { event: Some(event) });
        let failure = v1::EditFailure { id: Some(7), code: "C".into(), field: Some("f".into()), ..Default::default() };
        assert_eq!(
            json(Event::Failed(failure)),
            json!({ "failed": { "id": 7, "code": "C", "reason": "", "message": "", "field": "f" } })
        );
        assert_eq!(
            json(Event::Failed(v1::EditFailure::default())),
            json!({ "failed": { "code": "", "reason": "", "message": "" } })
        );
        let characters = vec![
            v1::Character { text: "a".into(), id: 1, ..Default::default() },
            v1::Character { logprob: Some(-0.5), boundary: Some(false), chunk_depth: 2, ..Default::default() },
        ];
        let scores = json(Event::Scores(v1::DocumentScores { characters, ..Default::default() }));
        assert_eq!(
            scores["scores"]["characters"],
            json!([{ "text": "a", "id": 1 }, { "text": "", "id": 0, "logprob": -0.5, "boundary": false, "chunk_depth": 2 }])
        );
        let closed = v1::DocumentClosed { reason: Reason::ModelChanged.into() };
        assert_eq!(json(Event::Closed(closed)), json!({ "closed": { "reason": "model_changed" } }));
    }
}
