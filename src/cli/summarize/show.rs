//! Formats summaries as text and JSON.

use super::summary::{DocumentPart, EncodedText, KeptTokens, Summary, SummaryText};
use crate::{
    decode::spans::KeptSpan,
    error::printable,
    report::rouge::{RougeScore, RougeScores},
};
use serde_json::{Value, json};
use std::fmt::Write;

/// Shows the tokens that each pooling layer kept: in reverse video with `color`, otherwise in brackets.
pub(super) fn highlights(encoded: &EncodedText<'_>, color: bool) -> String {
    if color { marked(encoded, "\u{1b}[7m", "\u{1b}[0m") } else { marked(encoded, "[", "]") }
}

fn marked(encoded: &EncodedText<'_>, on: &str, off: &str) -> String {
    let EncodedText { text, tokens, poolings } = *encoded;
    let mut shown = String::new();
    for KeptTokens { layer, tokens: kept, spans, .. } in poolings {
        // Never fails: the writer is a `String`.
        let _ = writeln!(shown, "-- layer {layer}: {kept} of {tokens} tokens kept");
        let mut shown_to = 0;
        for KeptSpan { start, end, .. } in spans {
            let start = (*start as usize).max(shown_to);
            let end = *end as usize;
            let (Some(before), Some(span)) = (text.get(shown_to..start), text.get(start..end)) else { continue };
            let _ = write!(shown, "{}{on}{}{off}", without_controls(before), without_controls(span));
            shown_to = end;
        }
        let _ = writeln!(shown, "{}\n", without_controls(text.get(shown_to..).unwrap_or_default()).trim_end());
    }
    shown
}

/// Replaces control characters, which could change the terminal, in every line.
fn without_controls(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Formats ROUGE scores, one per line.
pub(super) fn rouge(RougeScores { rouge1, rouge2, rouge_l }: &RougeScores) -> String {
    let line = |name, RougeScore { precision, recall, f1 }: &RougeScore| {
        let [f1, precision, recall] = [f1, precision, recall].map(|part| 100.0 * part);
        format!("{name} {f1:.2} (precision {precision:.2}, recall {recall:.2})\n")
    };
    [line("ROUGE-1", rouge1), line("ROUGE-2", rouge2), line("ROUGE-L", rouge_l)].concat()
}

/// Formats a summary and its document as JSON.
pub(super) fn json(summary: &Summary, scores: Option<RougeScores>) -> Value {
    let Summary { hypotheses, reason, poolings, document, summary_tokens, timing, parts } = summary;
    let hypothesis = |hypothesis: &SummaryText| {
        let SummaryText { ids, score, text, logprobs } = hypothesis;
        json!({ "ids": ids, "score": score, "text": text, "logprobs": logprobs })
    };
    let hypotheses: Vec<Value> = hypotheses.iter().map(hypothesis).collect();
    let best = |key: &str| hypotheses.first().map_or(Value::Null, |best| best[key].clone());
    let layers = timing.layers.iter().map(|layer| json!({ "length": layer.length, "ns": layer.ns }));
    // Each summary has a token without a step.
    let steps = (*summary_tokens as u64).saturating_sub(parts.len() as u64 + 1);
    let mut object = json!({
        "ids": best("ids"),
        "score": best("score"),
        "text": best("text"),
        "reason": reason,
        "hypotheses": hypotheses,
        "poolings": poolings.iter().map(pooling).collect::<Vec<_>>(),
        "usage": {
            "document_tokens": document.tokens,
            "document_bytes": document.bytes,
            "cut": document.cut,
            "vectors": document.vectors,
            "cross_attention_bytes": document.cross_attention_bytes,
            "unpooled_cross_attention_bytes": document.unpooled_cross_attention_bytes,
            "summary_tokens": summary_tokens,
        },
        "timing": {
            "encode_ns": timing.encode_ns,
            "layers": layers.collect::<Vec<_>>(),
            "memory_ns": timing.memory_ns,
            "decode_ns": timing.decode_ns,
            "decode_ns_per_token": timing.decode_ns.checked_div(steps),
            "total_ns": timing.total_ns,
            "kept_share": document.kept_share,
            "cross_attention_bytes": document.cross_attention_bytes,
            "unpooled_cross_attention_bytes": document.unpooled_cross_attention_bytes,
        },
    });
    if !parts.is_empty() {
        object["parts"] = parts.iter().map(part).collect();
    }
    if let Some(rouge) = scores {
        object["rouge"] = json!(rouge);
    }
    object
}

/// Formats a part of a long document.
fn part(part: &DocumentPart) -> Value {
    json!({
        "round": part.round,
        "part": part.number,
        "byte_start": part.start,
        "byte_end": part.end,
        "round_bytes": part.round_bytes,
        "document_tokens": part.tokens,
        "summary_tokens": part.summary_tokens,
        "summary": part.summary,
        "poolings": part.poolings.iter().map(pooling).collect::<Vec<_>>(),
    })
}

/// Formats the tokens that one pooling layer kept: in the order of the next layer, if it is known, and as spans of the text.
fn pooling(pooling: &KeptTokens) -> Value {
    let span =
        |KeptSpan { start, end, score }: &KeptSpan| json!({ "byte_start": start, "byte_end": end, "score": score });
    let spans: Vec<Value> = pooling.spans.iter().map(span).collect();
    let Some(order) = &pooling.order else { return json!({ "layer": pooling.layer, "spans": spans }) };
    let kept = order.iter().map(|kept| json!({ "position": kept.position, "score": kept.score }));
    json!({ "layer": pooling.layer, "kept": kept.collect::<Vec<_>>(), "spans": spans })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_tokens_are_marked_in_the_text() {
        let kept = |layer, tokens, ranges: &[(u64, u64)]| KeptTokens {
            layer,
            tokens,
            spans: ranges.iter().map(|&(start, end)| KeptSpan { start, end, score: 0.5 }).collect(),
            order: None,
        };
        let poolings = [kept(0, 3, &[(0, 10)]), kept(2, 1, &[(10, 13)])];
        let encoded = EncodedText { text: "the\u{1b}größ en", tokens: 4, poolings: &poolings };
        let expected = "-- layer 0: 3 of 4 tokens kept\n[the\u{fffd}größ] en\n\n\
            -- layer 2: 1 of 4 tokens kept\nthe\u{fffd}größ[ en]\n\n";
        assert_eq!(marked(&encoded, "[", "]"), expected);
        assert!(highlights(&encoded, true).contains("\u{1b}[7m en\u{1b}[0m"));
    }
}
