//! Formats summaries as text and JSON.

use super::summary::Summary;
use crate::{
    decode::document::PoolingChoice,
    error::printable,
    report::rouge::{RougeScore, RougeScores},
};
use serde_json::{Value, json};
use std::fmt::Write;
use weir_proto::v1::{Hypothesis, Selected, Span, SummaryFinishReason, SummaryPart};

/// Shows the tokens that each pooling layer kept: in reverse video with `color`, otherwise in brackets.
pub(super) fn highlights(summary: &Summary, color: bool) -> String {
    if color { marked(summary, "\u{1b}[7m", "\u{1b}[0m") } else { marked(summary, "[", "]") }
}

fn marked(summary: &Summary, on: &str, off: &str) -> String {
    let text = &summary.document;
    let tokens = summary.usage().document_tokens;
    let mut shown = String::new();
    for Selected { layer, tokens: kept, spans } in &summary.selected {
        // Never fails: the writer is a `String`.
        let _ = writeln!(shown, "-- layer {layer}: {kept} of {tokens} tokens kept");
        let mut shown_to = 0;
        for Span { byte_start, byte_end, .. } in spans {
            let start = (*byte_start as usize).max(shown_to);
            let end = *byte_end as usize;
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
    let finished = &summary.finished;
    let usage = summary.usage();
    let timing = finished.timing.clone().unwrap_or_default();
    let hypothesis = |hypothesis: &Hypothesis| {
        let Hypothesis { ids, score, text, logprobs } = hypothesis;
        json!({ "ids": ids, "score": score, "text": text, "logprobs": logprobs })
    };
    let hypotheses: Vec<Value> = finished.hypotheses.iter().map(hypothesis).collect();
    let best = |key: &str| hypotheses.first().map_or(Value::Null, |best| best[key].clone());
    let layers = timing.layers.iter().map(|layer| json!({ "length": layer.length, "ns": layer.ns }));
    // Each summary has a token without a step.
    let steps = usage.summary_tokens.saturating_sub(summary.parts.len() as u64 + 1);
    let choices = summary.choices.iter().map(Some).chain(std::iter::repeat(None));
    let poolings = summary.selected.iter().zip(choices).map(|(selected, choice)| pooling(selected, choice));
    let mut object = json!({
        "ids": best("ids"),
        "score": best("score"),
        "text": best("text"),
        "reason": if finished.reason() == SummaryFinishReason::EndOfText { "end_of_text" } else { "max_tokens" },
        "hypotheses": hypotheses,
        "poolings": poolings.collect::<Vec<_>>(),
        "usage": {
            "document_tokens": usage.document_tokens,
            "document_bytes": usage.document_bytes,
            "cut": usage.cut,
            "vectors": usage.vectors,
            "cross_attention_bytes": usage.cross_attention_bytes,
            "unpooled_cross_attention_bytes": usage.unpooled_cross_attention_bytes,
            "summary_tokens": usage.summary_tokens,
        },
        "timing": {
            "encode_ns": timing.encode_ns,
            "layers": layers.collect::<Vec<_>>(),
            "memory_ns": timing.memory_ns,
            "decode_ns": timing.decode_ns,
            "decode_ns_per_token": timing.decode_ns.checked_div(steps),
            "total_ns": timing.total_ns,
            "kept_share": timing.kept_share,
            "cross_attention_bytes": usage.cross_attention_bytes,
            "unpooled_cross_attention_bytes": usage.unpooled_cross_attention_bytes,
        },
    });
    if !summary.parts.is_empty() {
        object["parts"] = summary.parts.iter().map(part).collect();
    }
    if let Some(rouge) = scores {
        object["rouge"] = json!(rouge);
    }
    object
}

/// Formats a part of a long document.
fn part(part: &SummaryPart) -> Value {
    json!({
        "round": part.round,
        "part": part.part,
        "byte_start": part.byte_start,
        "byte_end": part.byte_end,
        "round_bytes": part.round_bytes,
        "document_tokens": part.document_tokens,
        "summary_tokens": part.summary_tokens,
        "summary": part.summary,
        "poolings": part.selected.iter().map(|selected| pooling(selected, None)).collect::<Vec<_>>(),
    })
}

/// Formats the tokens that one pooling layer kept: in the order of the next layer, if it is known, and as spans of the text.
fn pooling(selected: &Selected, choice: Option<&PoolingChoice>) -> Value {
    let span = |Span { byte_start, byte_end, score }: &Span| json!({ "byte_start": byte_start, "byte_end": byte_end, "score": score });
    let spans: Vec<Value> = selected.spans.iter().map(span).collect();
    let Some(choice) = choice else { return json!({ "layer": selected.layer, "spans": spans }) };
    let kept = choice.kept.iter().map(|kept| json!({ "position": kept.token, "score": kept.score }));
    json!({ "layer": selected.layer, "kept": kept.collect::<Vec<_>>(), "spans": spans })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::v1::{SummaryFinished, SummaryUsage};

    #[test]
    fn kept_tokens_are_marked_in_the_text() {
        let kept = |layer, tokens, ranges: &[(u64, u64)]| Selected {
            layer,
            tokens,
            spans: ranges.iter().map(|&(byte_start, byte_end)| Span { byte_start, byte_end, score: 0.5 }).collect(),
        };
        let usage = SummaryUsage { document_tokens: 4, ..SummaryUsage::default() };
        let summary = Summary {
            finished: SummaryFinished { usage: Some(usage), ..SummaryFinished::default() },
            selected: vec![kept(0, 3, &[(0, 10)]), kept(2, 1, &[(10, 13)])],
            document: "the\u{1b}größ en".into(),
            ..Summary::default()
        };
        let expected = "-- layer 0: 3 of 4 tokens kept\n[the\u{fffd}größ] en\n\n\
            -- layer 2: 1 of 4 tokens kept\nthe\u{fffd}größ[ en]\n\n";
        assert_eq!(marked(&summary, "[", "]"), expected);
        assert!(highlights(&summary, true).contains("\u{1b}[7m en\u{1b}[0m"));
    }
}
