//! `weir lsp`: a scripted client, with the model in its process and on a server, and Neovim.

mod client;
mod lifecycle;
mod neovim;
mod served;
mod typing;

use client::{Client, Options};
use serde_json::{Value, json};

/// The code of an answer to a request that a change overtook.
const CONTENT_MODIFIED: i64 = -32801;
/// The code of an answer to a request that the client cancelled.
const CANCELLED: i64 = -32800;

/// Returns the parameters of a request for completions.
fn at(uri: &str, line: u32, character: u32) -> Value {
    json!({
        "textDocument": { "uri": uri },
        "position": { "line": line, "character": character },
        "context": { "triggerKind": 1 },
    })
}

/// Returns a change of `start` to `end`, each given as line and character.
fn change(start: [u32; 2], end: [u32; 2], text: &str) -> Value {
    let position = |[line, character]: [u32; 2]| json!({ "line": line, "character": character });
    json!({ "range": { "start": position(start), "end": position(end) }, "text": text })
}

/// Returns the texts of the completions in an answer.
#[track_caller]
fn inserted(answer: &Value) -> Vec<&str> {
    let items = answer["result"]["items"].as_array().unwrap_or_else(|| panic!("no items: {answer}"));
    let text = |item: &'_ Value| item["insertText"].as_str().or(item["textEdit"]["newText"].as_str()).is_some();
    assert!(items.iter().all(text), "{answer}");
    items.iter().filter_map(|item| item["insertText"].as_str().or(item["textEdit"]["newText"].as_str())).collect()
}
