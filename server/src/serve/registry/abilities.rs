//! The calls that a model can answer. A request without a model's name goes to the only model that can.

use crate::engine::Handle;

/// Returns true if the model continues texts, which it also scores and compresses.
pub(crate) fn continues_text(engine: &Handle) -> bool {
    engine.document_limits().is_none()
}

/// Returns true if the model splits texts into segments.
pub(crate) fn segments_text(engine: &Handle) -> bool {
    continues_text(engine) && engine.card().pooled
}

/// Returns true if the model summarizes documents.
pub(crate) fn summarizes(engine: &Handle) -> bool {
    engine.document_limits().is_some()
}
