//! Prints generated text at once, or collects it for JSON.

use crate::{
    cli::{
        output,
        wire::{reason_name, size},
    },
    error::Result,
};
use serde_json::{Value, json};
use weir_proto::v1::{Finished, LevelUsage, Piece, Timing, Usage};

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
    ids: Vec<u32>,
    /// True if a segment ends with the symbol of this index; `None` if unknown.
    boundaries: Vec<Option<bool>>,
}

impl Printer {
    pub(super) fn new(json: bool, segment_ends: Option<SegmentEnds>) -> Self {
        Self { json, segment_ends, text: String::new(), ids: Vec::new(), boundaries: Vec::new() }
    }

    /// Takes the next part of the text, and its symbols, which only JSON needs.
    pub(super) fn push(&mut self, piece: &Piece) -> Result<()> {
        if !self.json {
            return output::write(&piece.text);
        }
        self.text += &piece.text;
        self.ids.extend(piece.characters.iter().map(|character| character.id));
        self.boundaries.extend(piece.characters.iter().map(|character| character.boundary));
        Ok(())
    }

    /// Ends the output.
    pub(super) fn finish(self, end: &Finished) -> Result<()> {
        if !self.json {
            return output::write("\n");
        }
        output::json(&self.as_json(end))
    }

    fn as_json(&self, end: &Finished) -> Value {
        let usage = end.usage.unwrap_or_default();
        let boundaries: Vec<_> = self.boundaries.iter().map(|boundary| boundary.map(u8::from)).collect();
        let mut object = json!({
            "ids": self.ids,
            "text": self.text,
            "boundaries": boundaries,
            "reason": reason_name(end),
            "usage": usage_json(&usage, self.text.chars().count()),
            "timing": timing_json(&end.timing.unwrap_or_default()),
        });
        if !end.levels.is_empty() {
            object["levels"] = end.levels.iter().map(level_json).collect();
        }
        if let Some(ends) = &self.segment_ends {
            object["events"] = json!(self.events(ends, &usage));
        }
        object
    }

    /// Returns the symbols and, if the model generates them, the end-of-segment symbols, in the order of generation.
    fn events(&self, ends: &SegmentEnds, usage: &Usage) -> Vec<u32> {
        let is_end = |boundary: Option<bool>| ends.is_generated && boundary == Some(true);
        let after_symbols = self.boundaries.iter().filter(|&&boundary| is_end(boundary)).count();
        // One more means that the first draw closed the prompt's open segment.
        let mut events = vec![ends.symbol; usize::from(size(usage.nxt_steps) > after_symbols)];
        for (&id, &boundary) in self.ids.iter().zip(&self.boundaries) {
            events.push(id);
            events.extend(is_end(boundary).then_some(ends.symbol));
        }
        events
    }
}

fn usage_json(usage: &Usage, generated_text_chars: usize) -> Value {
    json!({
        "prompt_chars": usage.prompt_chars,
        "cached_chars": usage.cached_chars,
        "generated_chars": usage.generated_chars,
        "prompt_text_chars": usage.prompt_text_chars(),
        "generated_text_chars": generated_text_chars,
        "normalized_chars": usage.normalized_chars(),
        "prompt_segments": usage.prompt_segments,
        "generated_segments": usage.generated_segments,
        "shortening_factor": usage.shortening_factor,
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
