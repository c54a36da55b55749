//! Figures of edited documents, in words and rows.

use super::figures::{FigureRow, NONE, Unit};
use crate::{
    measure::{edits::EditFigures, stats::RequestFigures},
    units::digits,
};

/// Returns the rows of edited documents.
pub(super) fn rows(edits: &EditFigures) -> [FigureRow; 4] {
    let row = |name, definition, unit, values| FigureRow { name, definition, unit, values };
    [
        row("keystroke to completions", "from the planned time of the keystroke", Unit::Time, edits.keystroke_ns),
        row("… at the server", "from the request to its answer, as the server reports it", Unit::Time, {
            edits.keystroke_server_ns
        }),
        row("… start lag (tester)", "from the planned time to sending", Unit::Time, edits.keystroke_lag_ns),
        row("recomputed characters", "for one answer, as the server reports it", Unit::Count, edits.recomputed_chars),
    ]
}

/// Describes the shares of keystrokes that completions would have saved; a dash without edited documents.
pub(super) fn saved(figures: &RequestFigures) -> String {
    let percent = |share: f64| digits(100.0 * share);
    let described = |edits: &EditFigures| {
        format!("{} % ({} % by the first three)", percent(edits.first_share()), percent(edits.first_three_share()))
    };
    figures.edits.as_ref().map_or(NONE.into(), described)
}

/// Describes what happened to keystrokes; empty without edited documents.
pub(super) fn describe(figures: &RequestFigures) -> String {
    let Some(EditFigures { keystrokes, stale, failed, .. }) = &figures.edits else { return String::new() };
    format!(
        "; {keystrokes} keystrokes: {stale} overtaken by the next, {failed} failed; the first completion would have saved {}",
        saved(figures)
    )
}
