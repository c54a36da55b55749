//! A summary, as its events tell it.

use crate::{decode::document::PoolingChoice, error::Result};
use weir_proto::v1::{
    Selected, SummaryFinished, SummaryPart, SummaryUsage, summarize_response::Event as SummarizeEvent,
};

/// A summary and its document.
#[derive(Default)]
pub(super) struct Summary {
    pub(super) finished: SummaryFinished,
    /// The tokens that each pooling layer kept, as spans of the text.
    pub(super) selected: Vec<Selected>,
    /// The same tokens by position, in the order of the next layer. Empty if a server summarized.
    pub(super) choices: Vec<PoolingChoice>,
    /// The parts of a document that was summarized in parts.
    pub(super) parts: Vec<SummaryPart>,
    /// Text that was read, if highlights are printed.
    pub(super) document: String,
}

impl Summary {
    /// Text of the best hypothesis.
    pub(super) fn text(&self) -> &str {
        self.finished.hypotheses.first().map_or("", |best| &best.text)
    }

    pub(super) fn usage(&self) -> SummaryUsage {
        self.finished.usage.unwrap_or_default()
    }
}

/// Receives the parts of a long document, and the text of a summary as it grows.
pub(super) type OnEvent<'a> = dyn FnMut(Progress<'_>) -> Result<()> + 'a;

/// Progress of a summary.
pub(super) enum Progress<'a> {
    /// A part of a long document is summarized.
    Part(&'a SummaryPart),
    /// Next part of the summary.
    Text(&'a str),
}

/// Collects the events of one summary. Returns an error if it cannot be printed.
pub(super) fn collect(summary: &mut Summary, event: SummarizeEvent, on_event: &mut OnEvent<'_>) -> Result<()> {
    match event {
        SummarizeEvent::Started(_) | SummarizeEvent::Progress(_) => {}
        SummarizeEvent::Selected(selected) => summary.selected.push(selected),
        SummarizeEvent::Part(part) => {
            on_event(Progress::Part(&part))?;
            summary.parts.push(part);
        }
        SummarizeEvent::Piece(piece) => on_event(Progress::Text(&piece.text))?,
        SummarizeEvent::Finished(finished) => summary.finished = finished,
    }
    Ok(())
}
