//! The parts of the language server protocol 3.18 that this server uses. Fields that it does not read are left out.

use lsp_server::{ErrorCode, RequestId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Severity of a message that an editor shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    Error = 1,
    Warning = 2,
    Info = 3,
}

/// A place in a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Position {
    /// The line, from 0.
    pub(super) line: u32,
    /// Units of the negotiated encoding before it in its line.
    pub(super) character: u32,
}

/// A part of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct TextRange {
    pub(super) start: Position,
    /// Exclusive.
    pub(super) end: Position,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct InitializeParams {
    capabilities: ClientCapabilities,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClientCapabilities {
    general: Option<GeneralCapabilities>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GeneralCapabilities {
    position_encodings: Option<Vec<String>>,
}

impl InitializeParams {
    /// Returns the names of the position encodings that the client offers.
    pub(super) fn position_encodings(self) -> Vec<String> {
        self.capabilities.general.and_then(|general| general.position_encodings).unwrap_or_default()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct DocumentId {
    pub(super) uri: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct DocumentItem {
    pub(super) uri: String,
    pub(super) text: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OpenParams {
    pub(super) text_document: DocumentItem,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChangeParams {
    pub(super) text_document: DocumentId,
    pub(super) content_changes: Vec<ContentChange>,
}

/// A change of a document. Without a range, the text is the whole document.
#[derive(Debug, Deserialize)]
pub(super) struct ContentChange {
    pub(super) range: Option<TextRange>,
    pub(super) text: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CloseParams {
    pub(super) text_document: DocumentId,
}

/// Parameters of a request for completions, inline or not.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CompletionParams {
    pub(super) text_document: DocumentId,
    pub(super) position: Position,
}

#[derive(Debug, Deserialize)]
pub(super) struct CancelParams {
    pub(super) id: RequestId,
}

/// Returns the answer to a request.
pub(super) fn response(id: &RequestId, result: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

/// Returns the answer to a request that failed; without an id if that could not be read.
pub(super) fn failure(id: Option<&RequestId>, code: ErrorCode, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code as i32, "message": message } })
}

/// Returns a message that the editor shows to the user.
pub(super) fn show_message(severity: Severity, message: &str) -> Value {
    notification("window/showMessage", severity, message)
}

/// Returns a message that the editor logs.
pub(super) fn log_message(severity: Severity, message: &str) -> Value {
    notification("window/logMessage", severity, message)
}

fn notification(method: &str, severity: Severity, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": { "type": severity as i32, "message": message } })
}
