//! The answers to requests for completions.

use super::{
    protocol::TextRange,
    text::{DocumentText, PositionEncoding},
};
use crate::decode::completion::is_word_character;
use lsp_server::RequestId;
use serde_json::{Value, json};
use std::time::Instant;
use weir_proto::v1::CompletionItem;

/// Maximum characters of the word before the cursor that an item repeats.
const MAX_WORD: usize = 64;
/// The kind of items: text.
const TEXT: u8 = 1;

/// The request that a client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompletionKind {
    /// `textDocument/completion`: a menu.
    List,
    /// `textDocument/inlineCompletion`: text at the cursor.
    Inline,
}

/// A request that waits for its completions. Its text cannot change while it waits, because a change ends the request.
#[derive(Debug, Clone)]
pub(super) struct WaitingRequest {
    pub(super) id: RequestId,
    pub(super) kind: CompletionKind,
    pub(super) uri: String,
    /// Byte offset of the cursor.
    pub(super) cursor: usize,
    /// Sessions that ended before its answer.
    pub(super) attempts: usize,
    /// The time at which its session sent it last. `None` before that.
    pub(super) sent_at: Option<Instant>,
}

impl CompletionKind {
    /// Returns the result of a request of this kind. `text` is `None` if the document is closed or exceeds a limit.
    pub(super) fn result(
        self,
        text: Option<&DocumentText>,
        cursor: usize,
        encoding: PositionEncoding,
        items: &[CompletionItem],
    ) -> Value {
        let items: Vec<Value> = match (self, text) {
            (_, None) => Vec::new(),
            (Self::Inline, Some(text)) => items.iter().map(|item| inline(text, cursor, encoding, item)).collect(),
            (Self::List, Some(text)) => {
                items.iter().enumerate().map(|(rank, item)| listed(text, cursor, encoding, rank, item)).collect()
            }
        };
        match self {
            Self::List => json!({ "isIncomplete": true, "items": items }),
            Self::Inline => json!({ "items": items }),
        }
    }
}

fn inline(text: &DocumentText, cursor: usize, encoding: PositionEncoding, item: &CompletionItem) -> Value {
    let at = text.position(cursor, encoding);
    json!({ "insertText": item.text, "range": TextRange { start: at, end: at } })
}

/// Returns a menu item. It replaces the word before the cursor with that word plus the completion, because editors filter
/// items by that word.
fn listed(text: &DocumentText, cursor: usize, encoding: PositionEncoding, rank: usize, item: &CompletionItem) -> Value {
    let word = word_before(text.text(), cursor);
    let whole = format!("{word}{}", item.text);
    let start = text.position(cursor - word.len(), encoding);
    let end = text.position(cursor, encoding);
    let label = whole.replace('\n', "⏎");
    let mut listed = json!({
        "label": label,
        "kind": TEXT,
        "detail": format!("{:.1} %", item.logprob.exp() * 100.0),
        "sortText": format!("{rank:04}"),
        "textEdit": { "range": TextRange { start, end }, "newText": whole },
    });
    // Set only if needed: without `filterText`, editors filter by the label, and Neovim completes from the start of the
    // edit.
    if label != whole {
        listed["filterText"] = whole.into();
    }
    listed
}

/// Returns the part of a word that ends at the cursor. Words have the characters that completions up to the end of a word have.
fn word_before(text: &str, cursor: usize) -> &str {
    let before = text.get(..cursor).unwrap_or_default();
    let word = before.chars().rev().take_while(|&character| is_word_character(character));
    let length: usize = word.take(MAX_WORD).map(char::len_utf8).sum();
    &before[before.len() - length..]
}

/// Returns the part of the text before the cursor that the model reads: its last `limit` bytes, or at least half as many. It begins
/// at the same place while the cursor moves within half of `limit`, so that states can be reused.
pub(super) fn context(text: &str, cursor: usize, limit: usize) -> &str {
    let before = text.get(..cursor).unwrap_or_default();
    let Some(excess) = before.len().checked_sub(limit) else { return before };
    let step = (limit / 2).max(1);
    let mut start = excess.next_multiple_of(step).min(before.len());
    while !before.is_char_boundary(start) {
        start += 1;
    }
    &before[start..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use PositionEncoding::{Utf8, Utf16};

    fn items() -> Vec<CompletionItem> {
        let item = |text: &str, logprob| CompletionItem { text: text.into(), logprob, ..CompletionItem::default() };
        vec![item("er", -0.5), item("e\n", -1.0)]
    }

    #[test]
    fn items_replace_the_word_before_the_cursor() {
        let text = DocumentText::new("a\n😀 l'é".into());
        let cursor = text.text().len();
        let result = CompletionKind::List.result(Some(&text), cursor, Utf16, &items());
        let expected = json!({
            "label": "l'éer", "kind": 1, "detail": "60.7 %", "sortText": "0000",
            "textEdit": {
                "range": { "start": { "line": 1, "character": 3 }, "end": { "line": 1, "character": 6 } },
                "newText": "l'éer",
            },
        });
        assert_eq!((&result["isIncomplete"], &result["items"][0]), (&true.into(), &expected));
        assert_eq!(result["items"][1]["filterText"], "l'ée\n");
        assert_eq!((&result["items"][1]["label"], &result["items"][1]["sortText"]), (&"l'ée⏎".into(), &"0001".into()));
        let result = CompletionKind::Inline.result(Some(&text), cursor, Utf8, &items());
        let at = json!({ "line": 1, "character": 9 });
        assert_eq!(result["items"][1], json!({ "insertText": "e\n", "range": { "start": at, "end": at } }));
        let gone = CompletionKind::List.result(None, cursor, Utf16, &items());
        assert_eq!(gone, json!({ "isIncomplete": true, "items": [] }));
    }

    #[test]
    fn a_word_has_letters_digits_and_apostrophes() {
        for (text, word) in [("a b2_c", "b2_c"), ("it's", "it's"), ("it’s", "it’s"), ("a ", ""), ("a-é", "é"), ("", "")]
        {
            assert_eq!(word_before(text, text.len()), word);
        }
        assert_eq!(word_before("abc", 1), "a");
        assert_eq!(word_before(&"a".repeat(100), 100).len(), MAX_WORD);
    }

    #[test]
    fn a_context_begins_at_few_places() {
        let text = "é".repeat(100);
        assert_eq!(context(&text, 16, 16), &text[..16]);
        let mut starts = std::collections::BTreeSet::new();
        for cursor in (0..=200).step_by(2) {
            let context = context(&text, cursor, 16);
            assert!(context.len() <= 16 && (cursor < 16 || context.len() >= 7), "{cursor}: {}", context.len());
            starts.insert(cursor - context.len());
        }
        assert_eq!(starts.len(), 24, "{starts:?}");
        assert_eq!(context("abc", 3, 1), "c");
        assert_eq!(context("abc", 3, 0), "");
    }
}
