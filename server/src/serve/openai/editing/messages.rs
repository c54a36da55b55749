//! The messages of a client in JSON: objects with one field, which names the kind of the message.

use crate::{
    error::{Error, Result},
    serve::{
        completion_request::parse_json,
        grpc::editing_messages::{MAX_SPLICES, check_splice_count},
    },
};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};
use std::fmt;
use weir_proto::v1::{self, edit_request::Action};

/// A message that cannot be read.
#[derive(Debug)]
pub(super) struct RefusedMessage {
    /// The id of its `complete` or `score`, if that can be read.
    pub(super) id: Option<u64>,
    pub(super) error: Error,
}

impl From<Error> for RefusedMessage {
    fn from(error: Error) -> Self {
        Self { id: None, error }
    }
}

/// Reads a message.
pub(super) fn read_message(text: &[u8]) -> Result<v1::EditRequest, RefusedMessage> {
    let read = parse_json(text, "the message").and_then(RequestMessage::into_request);
    read.map_err(|error| RefusedMessage { id: read_id(text), error })
}

/// Returns the id of a message whose other fields may be wrong.
fn read_id(text: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Identified {
        Complete(Id),
        Score(Id),
    }
    #[derive(Deserialize)]
    struct Id {
        id: u64,
    }
    match serde_json::from_slice(text).ok()? {
        Identified::Complete(Id { id }) | Identified::Score(Id { id }) => Some(id),
    }
}

/// A message of a client.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", expecting = "an object with one field: open, splice, complete, score or close")]
enum RequestMessage {
    Open(OpenMessage),
    Splice(SpliceMessage),
    Complete(CompleteMessage),
    Score(ScoreMessage),
    Close(CloseMessage),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct OpenMessage {
    model: Option<String>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    revision: u64,
    priority: Option<i32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct SpliceMessage {
    revision: u64,
    splices: Replacements,
}

/// The first replacements of a splice, at most [`MAX_SPLICES`], and the count of all.
#[derive(Debug)]
struct Replacements {
    first: Vec<Replacement>,
    count: usize,
}

impl<'de> Deserialize<'de> for Replacements {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Replacements;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Replacements, A::Error> {
                let mut first = Vec::new();
                while first.len() < MAX_SPLICES
                    && let Some(replacement) = list.next_element()?
                {
                    first.push(replacement);
                }
                let mut count = first.len();
                // A list that goes on is too long. The rest is counted without memory for it.
                if count == MAX_SPLICES {
                    while list.next_element::<IgnoredAny>()?.is_some() {
                        count += 1;
                    }
                }
                Ok(Replacements { first, count })
            }
        }
        deserializer.deserialize_seq(List)
    }
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
struct CompleteMessage {
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
struct ScoreMessage {
    id: u64,
    start_byte: u64,
    end_byte: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an empty object")]
struct CloseMessage {}

impl RequestMessage {
    /// Converts the message to one of the call. Fails if it has too many splices.
    fn into_request(self) -> Result<v1::EditRequest> {
        let action = match self {
            Self::Open(OpenMessage { model, text, revision, priority }) => {
                Action::Open(v1::OpenDocument { model, text, revision, priority })
            }
            Self::Splice(SpliceMessage { revision, splices: Replacements { first, count } }) => {
                check_splice_count(count)?;
                let splice = |Replacement { start_byte, end_byte, text }| v1::TextSplice { start_byte, end_byte, text };
                Action::Splice(v1::SpliceDocument { revision, splices: first.into_iter().map(splice).collect() })
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
        Ok(v1::EditRequest { action: Some(action) })
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

    fn action(text: &str) -> Result<Action, String> {
        let message = read_message(text.as_bytes()).map_err(|refused| refused.error.to_string())?;
        Ok(message.action.unwrap())
    }

    #[test]
    fn a_message_that_cannot_be_read_has_its_id() {
        for (text, id) in [
            (r#"{"complete": {"id": 7, "cursor_byte": -1}}"#, Some(7)),
            (r#"{"score": {"start_byte": [], "id": 0, "x": {"id": 3}}}"#, Some(0)),
            (r#"{"complete": {"id": -7, "cursor_byte": 1}}"#, None),
            (r#"{"complete": {"cursor_byte": 1}}"#, None),
            (r#"{"complete": {"id": 1, "id": 2, "cursor_byte": 1}}"#, None),
            (r#"{"complete": {"id": 1}, "score": {"id": 2}}"#, None),
            (r#"{"complete": {"id": 1}"#, None),
            (r#"{"splice": {"id": 1}}"#, None),
            ("1", None),
        ] {
            assert_eq!(read_message(text.as_bytes()).unwrap_err().id, id, "{text}");
        }
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
    fn the_splices_of_a_message_are_limited() {
        let splices = |count| {
            let list = vec![r#"{"start_byte": 0, "end_byte": 0}"#; count].join(", ");
            format!(r#"{{"splice": {{"revision": 1, "splices": [{list}]}}}}"#)
        };
        let Ok(Action::Splice(splice)) = action(&splices(MAX_SPLICES)) else { panic!("no splice") };
        assert_eq!(splice.splices.len(), MAX_SPLICES);
        for count in [MAX_SPLICES + 1, 1000] {
            let expected = format!("splice.splices: expected at most {MAX_SPLICES} in a message, found {count}");
            assert_eq!(action(&splices(count)), Err(expected));
        }
    }

    #[test]
    fn malformed_messages_are_named() {
        for (text, part) in [
            ("{", "the message: "),
            ("[]", "the message: expected an object, found a list"),
            ("{}", "the message: "),
            (r#"{"type": {}}"#, "found \"type\""),
            (r#"{"open": {"txt": "a"}}"#, "open.txt: expected one of `model`"),
            (r#"{"splice": {"revision": -1}}"#, "splice.revision"),
            (r#"{"splice": {"splices": []}}"#, "splice.revision: expected a value, found nothing"),
            (r#"{"splice": {"revision": 1, "splices": 1}}"#, "splice.splices: expected a list, found 1"),
            (r#"{"splice": {"revision": 1, "splices": [{"start_byte": "a"}]}}"#, "splice.splices[0].start_byte"),
            (r#"{"complete": {"id": 1, "cursor_byte": 0, "until": "sentence"}}"#, "complete.until"),
            (r#"{"close": {}, "open": {}}"#, "the message: "),
        ] {
            let error = action(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
