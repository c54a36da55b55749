//! The messages of a client in JSON: objects with one field, which names the kind of the message.

use serde::Deserialize;
use weir_proto::v1::{self, edit_request::Action};

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

/// The end of a completion.
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
}
