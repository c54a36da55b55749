//! Prints generated text at once, or collects it for JSON.

use crate::{
    cli::output,
    decode::usage::{LevelUsage, Timing, Usage},
    error::Result,
};
use serde_json::{Value, json};

/// A generated symbol.
pub(super) struct GeneratedSymbol {
    pub(super) id: u32,
    /// True if a segment ends with it; `None` if unknown.
    pub(super) boundary: Option<bool>,
}

/// The end of a generation.
pub(super) struct GenerationEnd {
    /// Why it ended.
    pub(super) reason: &'static str,
    pub(super) usage: Usage,
    pub(super) timing: Timing,
    /// Unicode characters of the prompt.
    pub(super) prompt_text_chars: usize,
    /// Unicode characters of the prompt that normalising replaced or dropped.
    pub(super) normalized_chars: usize,
}

/// How a model with special symbols ends segments.
pub(super) struct SegmentEnds {
    /// The end-of-segment symbol.
    pub(super) symbol: u32,
    /// True if the model generates it.
    pub(super) is_generated: bool,
}

/// Prints text at once, or collects it for JSON.
pub(super) struct Printer {
    json: bool,
    /// Segment ends of a model with special symbols.
    segment_ends: Option<SegmentEnds>,
    text: String,
    symbols: Vec<GeneratedSymbol>,
}

impl Printer {
    pub(super) fn new(json: bool, segment_ends: Option<SegmentEnds>) -> Self {
        Self { json, segment_ends, text: String::new(), symbols: Vec::new() }
    }

    /// Takes the next part of the text, and its symbols, which only JSON needs.
    pub(super) fn push(&mut self, text: &str, symbols: impl Iterator<Item = GeneratedSymbol>) -> Result<()> {
        if !self.json {
            return output::write(text);
        }
        self.text += text;
        self.symbols.extend(symbols);
        Ok(())
    }

    /// Ends the output.
    pub(super) fn finish(self, end: &GenerationEnd) -> Result<()> {
        if !self.json {
            return output::write("\n");
        }
        output::json(&self.as_json(end))
    }

    fn as_json(&self, end: &GenerationEnd) -> Value {
        let boundary = |symbol: &GeneratedSymbol| symbol.boundary.map(u8::from);
        let mut object = json!({
            "ids": self.symbols.iter().map(|symbol| symbol.id).collect::<Vec<_>>(),
            "text": self.text,
            "boundaries": self.symbols.iter().map(boundary).collect::<Vec<_>>(),
            "reason": end.reason,
            "usage": usage_json(end, self.text.chars().count()),
            "timing": timing_json(&end.timing),
        });
        let levels = end.usage.by_level(&end.timing);
        if !levels.is_empty() {
            object["levels"] = levels.iter().map(level_json).collect();
        }
        if let Some(ends) = &self.segment_ends {
            object["events"] = json!(self.events(ends, &end.usage));
        }
        object
    }

    /// Returns the symbols and, if the model generates them, the end-of-segment symbols, in the order of generation.
    fn events(&self, ends: &SegmentEnds, usage: &Usage) -> Vec<u32> {
        let is_end = |symbol: &GeneratedSymbol| ends.is_generated && symbol.boundary == Some(true);
        let after_symbols = self.symbols.iter().filter(|symbol| is_end(symbol)).count();
        // One more means that the first draw closed the prompt's open segment.
        let mut events = vec![ends.symbol; usize::from(usage.nxt_steps > after_symbols)];
        for symbol in &self.symbols {
            events.push(symbol.id);
            events.extend(is_end(symbol).then_some(ends.symbol));
        }
        events
    }
}

fn usage_json(end: &GenerationEnd, generated_text_chars: usize) -> Value {
    let usage = &end.usage;
    json!({
        "prompt_chars": usage.prompt_chars,
        "cached_chars": usage.cached_chars,
        "generated_chars": usage.generated_chars,
        "prompt_text_chars": end.prompt_text_chars,
        "generated_text_chars": generated_text_chars,
        "normalized_chars": end.normalized_chars,
        "prompt_segments": usage.prompt_segments,
        "generated_segments": usage.generated_segments,
        "shortening_factor": usage.shortening_factor(),
        "nxt_steps": usage.nxt_steps,
        "drafted_chars": usage.drafted_chars,
        "accepted_chars": usage.accepted_chars,
    })
}

fn level_json(level: &LevelUsage) -> Value {
    json!({
        "chunks": level.chunks,
        "shortening_factor": level.shortening_factor,
        "middle_steps": level.middle_steps,
    })
}

fn timing_json(timing: &Timing) -> Value {
    json!({
        "queue_ns": timing.queue_ns,
        "prefill_ns": timing.prefill_ns,
        "time_to_first_char_ns": timing.time_to_first_char_ns,
        "decode_ns": timing.decode_ns,
        "total_ns": timing.total_ns,
        "steps": timing.steps,
        "middle_steps": timing.middle_steps,
        "middle_ns": timing.middle_ns,
    })
}
