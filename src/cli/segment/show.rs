//! Formats segments as text and JSON.

use crate::cli::output;
use serde_json::{Value, json};

/// A text, cut into segments.
pub(super) struct SegmentedText {
    /// Number of symbols, a start mark included.
    pub(super) symbols: usize,
    /// Number of boundaries: each ends a segment or begins a chunk.
    pub(super) boundaries: usize,
    pub(super) segments: Vec<TextSegment>,
    /// Boundaries of each level, if several are known.
    pub(super) levels: Vec<Vec<u8>>,
    /// Unicode characters of the text that normalising replaced or dropped.
    pub(super) normalized_chars: usize,
}

/// Symbols `start..end` of the text. The offsets do not count a start mark.
pub(super) struct TextSegment {
    pub(super) text: String,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Probability of the boundary that ends or begins it, from a learned predictor.
    pub(super) probability: Option<f32>,
    pub(super) closed: bool,
    /// Levels at which a chunk begins with its first symbol; 0 in a model without levels.
    pub(super) depth: u8,
}

impl SegmentedText {
    fn closed(&self) -> usize {
        self.segments.iter().filter(|segment| segment.closed).count()
    }

    fn factor(&self) -> Option<f64> {
        (self.boundaries > 0).then(|| self.symbols as f64 / self.boundaries as f64)
    }

    pub(super) fn as_json(&self) -> Value {
        let list = self.segments.iter().map(|segment| {
            let TextSegment { text, start, end, probability, closed, depth: _ } = segment;
            json!({ "text": text, "start": start, "end": end, "closed": closed, "boundary_probability": probability })
        });
        let mut object = json!({
            "symbols": self.symbols,
            "normalized_chars": self.normalized_chars,
            "segments": list.collect::<Vec<_>>(),
            "closed": self.closed(),
            "shortening_factor": self.factor(),
        });
        if let levels @ [_, _, ..] = &*self.levels {
            object["boundary_levels"] = json!(levels);
        }
        object
    }

    /// Text with a bar after each closed segment and an ellipsis after an open one. A segment whose first symbol also begins a
    /// chunk of deeper levels has a bar more before it for each. `color` alternates two terminal colours.
    pub(super) fn as_text(&self, color: bool) -> String {
        let mut out = String::new();
        for (index, segment) in self.segments.iter().enumerate() {
            let text = segment.text.replace('\n', "⏎\n");
            let deeper = self.segments.get(index + 1).map_or(0, |next| next.depth.saturating_sub(1));
            let end = if segment.closed { "│".repeat(1 + usize::from(deeper)) } else { "…".into() };
            match (color, index % 2) {
                (false, _) => out += &format!("{text}{end}"),
                (true, 0) => out += &format!("\x1b[36m{text}\x1b[2;39m{end}\x1b[0m"),
                (true, _) => out += &format!("\x1b[33m{text}\x1b[2;39m{end}\x1b[0m"),
            }
        }
        let factor = output::optional(self.factor());
        out += &format!("\n{} symbols, {} closed segments, shortening factor {factor}\n", self.symbols, self.closed());
        out
    }
}
