//! Parts of the fuzz target for messages of editing sessions.

use super::{messages::read_message, responses::response_text};
use crate::serve::grpc::editing_messages::failed;
use weir_proto::v1::{EditRequest, EditResponse};

/// Reads a message. The answer to one that cannot be read must be JSON.
pub(in crate::serve) fn read(text: &[u8]) -> Option<EditRequest> {
    read_message(text).inspect_err(|refused| format(&failed(refused.id, &refused.error))).ok()
}

/// Formats a response, which must be JSON.
pub(in crate::serve) fn format(response: &EditResponse) {
    let text = response_text(response).unwrap_or_default();
    assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "not JSON: {text}");
}
