//! Messages for the client.

use super::{
    completion::WaitingRequest,
    documents::Documents,
    protocol::{self, Severity},
    text::PositionEncoding,
};
use crate::error::{clip, printable};
use lsp_server::{ErrorCode, RequestId};
use serde_json::Value;
use std::{collections::BTreeSet, io::Write};
use weir_proto::v1::CompletionItem;

/// Reports that are remembered, so that they are not repeated.
const REPORTS: usize = 64;
/// Maximum bytes of a report.
const REPORT_BYTES: usize = 1000;

/// The destination of a report, in addition to stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A message that the editor shows to the user.
    Message,
    /// An entry in the editor's log.
    Log,
}

/// Messages that wait to be sent.
#[derive(Debug)]
pub(super) struct Outbox {
    /// Encoding of positions, as negotiated.
    pub(super) encoding: PositionEncoding,
    messages: Vec<Value>,
    reported: BTreeSet<String>,
}

/// Returns the text of a report.
fn reported(message: &str) -> String {
    format!("weir: {}", clip(&printable(message), REPORT_BYTES))
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self { encoding: PositionEncoding::Utf16, messages: Vec::new(), reported: BTreeSet::new() }
    }

    /// Takes the messages.
    pub(super) fn take(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.messages)
    }

    /// Answers a request.
    pub(super) fn respond(&mut self, id: &RequestId, result: Value) {
        self.messages.push(protocol::response(id, result));
    }

    /// Answers a request with completions.
    pub(super) fn complete(&mut self, documents: &Documents, request: &WaitingRequest, items: &[CompletionItem]) {
        let WaitingRequest { id, kind, uri, cursor, .. } = request;
        self.respond(id, kind.result(documents.text(uri), *cursor, self.encoding, items));
    }

    /// Answers a request with an error.
    pub(super) fn fail(&mut self, id: Option<&RequestId>, code: ErrorCode, message: &str) {
        self.messages.push(protocol::failure(id, code, message));
    }

    /// Answers requests whose text has changed.
    pub(super) fn overtaken(&mut self, requests: impl IntoIterator<Item = WaitingRequest>) {
        for request in requests {
            self.fail(Some(&request.id), ErrorCode::ContentModified, "the document changed");
        }
    }

    /// Reports a problem, even if it was reported before.
    pub(super) fn report_again(&mut self, place: Place, severity: Severity, message: &str) {
        self.reported.remove(&reported(message));
        self.report(place, severity, message);
    }

    /// Reports a problem or its end, unless it was reported before.
    pub(super) fn report(&mut self, place: Place, severity: Severity, message: &str) {
        let message = reported(message);
        if self.reported.contains(&message) {
            return;
        }
        // The log of a fuzzer would fill the disk.
        if !cfg!(fuzzing) {
            // `eprintln!` would panic if stderr is closed.
            let _ = writeln!(std::io::stderr(), "{message}");
        }
        self.messages.push(match place {
            Place::Message => protocol::show_message(severity, &message),
            Place::Log => protocol::log_message(severity, &message),
        });
        if self.reported.len() >= REPORTS {
            self.reported.clear();
        }
        self.reported.insert(message);
    }

    /// Lets reports be repeated.
    pub(super) fn forget_reports(&mut self) {
        self.reported.clear();
    }
}
