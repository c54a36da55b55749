//! Formats summaries as text and JSON.

use crate::{
    decode::{
        beam::Hypothesis,
        contract::Model,
        document::PoolingChoice,
        options::FinishReason,
        spans::{KeptSpan, spans},
        summary::{EncodedDocument, SummaryResult},
    },
    error::printable,
    report::rouge::{RougeScore, RougeScores},
};
use serde_json::{Value, json};
use std::{fmt::Write, io::IsTerminal};

/// Shows the tokens that each pooling layer kept: in reverse video on a terminal, otherwise in brackets.
pub(super) fn highlights(text: &str, encoded: &EncodedDocument) -> String {
    let terminal = std::io::stdout().is_terminal();
    if terminal { marked(text, encoded, "\u{1b}[7m", "\u{1b}[0m") } else { marked(text, encoded, "[", "]") }
}

fn marked(text: &str, encoded: &EncodedDocument, on: &str, off: &str) -> String {
    let mut shown = String::new();
    for choice in &encoded.choices {
        let (spans, kept) = spans(choice, &encoded.byte_ranges, encoded.tokens);
        // Never fails: the writer is a `String`.
        let _ = writeln!(shown, "-- after layer {}: {kept} of {} tokens kept", choice.layer, encoded.tokens);
        let mut shown_to = 0;
        for KeptSpan { start, end, .. } in spans {
            let start = (start as usize).max(shown_to);
            let end = end as usize;
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
pub(super) fn json(
    model: &dyn Model,
    encoded: &EncodedDocument,
    summary: &SummaryResult,
    scores: Option<RougeScores>,
) -> Value {
    let SummaryResult { hypotheses, reason, usage, timing, .. } = summary;
    let end = model.document_encoder().map_or(0, |encoder| encoder.limits().marks.end);
    let hypothesis = |hypothesis: &Hypothesis| {
        let Hypothesis { tokens, score, logprobs } = hypothesis;
        let text = model.card().vocabulary.decode(hypothesis.text(end));
        json!({ "ids": tokens, "score": score, "text": text, "logprobs": logprobs })
    };
    let hypotheses: Vec<Value> = hypotheses.iter().map(hypothesis).collect();
    let best = |key: &str| hypotheses.first().map_or(Value::Null, |best| best[key].clone());
    let layers = encoded.layers.iter().map(|layer| json!({ "length": layer.length, "ns": layer.ns }));
    let steps = (usage.generated_chars as u64).saturating_sub(1);
    let mut object = json!({
        "ids": best("ids"),
        "score": best("score"),
        "text": best("text"),
        // Summaries consist of tokens, not characters.
        "reason": if *reason == FinishReason::MaxChars { "max_tokens" } else { reason.name() },
        "hypotheses": hypotheses,
        "poolings": encoded.choices.iter().map(|choice| pooling(choice, encoded)).collect::<Vec<_>>(),
        "usage": {
            "document_tokens": encoded.tokens,
            "document_bytes": encoded.read_bytes(),
            "cut": encoded.cut,
            "vectors": encoded.vectors,
            "cross_attention_bytes": encoded.bytes,
            "unpooled_cross_attention_bytes": encoded.unpooled_bytes,
            "summary_tokens": usage.generated_chars,
        },
        "timing": {
            "encode_ns": timing.prefill_ns,
            "layers": layers.collect::<Vec<_>>(),
            "memory_ns": encoded.memory_ns,
            "decode_ns": timing.decode_ns,
            "decode_ns_per_token": timing.decode_ns.checked_div(steps),
            "total_ns": timing.total_ns,
        },
    });
    if let Some(rouge) = scores {
        object["rouge"] = json!(rouge);
    }
    object
}

/// Formats the tokens that one pooling layer kept: in the order of the next layer, and as spans of the text.
fn pooling(choice: &PoolingChoice, encoded: &EncodedDocument) -> Value {
    let kept = choice.kept.iter().map(|kept| json!({ "position": kept.token, "score": kept.score }));
    let (spans, _) = spans(choice, &encoded.byte_ranges, encoded.tokens);
    let span =
        |KeptSpan { start, end, score }: &KeptSpan| json!({ "byte_start": start, "byte_end": end, "score": score });
    json!({
        "layer": choice.layer,
        "kept": kept.collect::<Vec<_>>(),
        "spans": spans.iter().map(span).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{document::KeptVector, summary::ByteRange};

    #[test]
    fn kept_tokens_are_marked_in_the_text() {
        let kept = |tokens: &[usize]| tokens.iter().map(|&token| KeptVector { token, score: 0.5 }).collect();
        let encoded = EncodedDocument {
            byte_ranges: [(0, 4), (4, 10), (10, 13), (13, 13)].map(|(start, end)| ByteRange { start, end }).to_vec(),
            tokens: 4,
            cut: false,
            vectors: 2,
            bytes: 0,
            unpooled_bytes: 0,
            choices: vec![
                PoolingChoice { layer: 0, kept: kept(&[3, 1, 0]) },
                PoolingChoice { layer: 2, kept: kept(&[2]) },
            ],
            layers: Vec::new(),
            memory_ns: 0,
        };
        let shown = marked("the\u{1b}größ en", &encoded, "[", "]");
        let expected = "-- after layer 0: 3 of 4 tokens kept\n[the\u{fffd}größ] en\n\n\
            -- after layer 2: 1 of 4 tokens kept\nthe\u{fffd}größ[ en]\n\n";
        assert_eq!(shown, expected);
    }
}
