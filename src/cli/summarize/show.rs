//! A summary as people and programs see it.

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

/// What each pooling has kept, in the text: in reverse colours on a terminal, elsewhere in brackets.
pub(super) fn highlights(text: &str, encoded: &EncodedDocument) -> String {
    let marks = if std::io::stdout().is_terminal() { ("\u{1b}[7m", "\u{1b}[0m") } else { ("[", "]") };
    marked(text, encoded, marks)
}

fn marked(text: &str, encoded: &EncodedDocument, (on, off): (&str, &str)) -> String {
    let mut shown = String::new();
    for choice in &encoded.choices {
        let (spans, kept) = spans(choice, &encoded.places, encoded.tokens);
        // Writing to a string does not fail.
        let _ = writeln!(shown, "-- after layer {}: {kept} of {} tokens kept", choice.layer, encoded.tokens);
        let mut at = 0;
        for KeptSpan { start, end, .. } in spans {
            let (start, end) = ((start as usize).max(at), end as usize);
            let (Some(before), Some(span)) = (text.get(at..start), text.get(start..end)) else { continue };
            let _ = write!(shown, "{}{on}{}{off}", harmless(before), harmless(span));
            at = end;
        }
        let _ = writeln!(shown, "{}\n", harmless(text.get(at..).unwrap_or_default()).trim_end());
    }
    shown
}

/// A document is somebody's words, which must not steer the terminal.
fn harmless(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// ROUGE in a few lines.
pub(super) fn rouge(RougeScores { rouge1, rouge2, rouge_l }: &RougeScores) -> String {
    let line = |name, RougeScore { precision, recall, f1 }: &RougeScore| {
        let [f1, precision, recall] = [f1, precision, recall].map(|part| 100.0 * part);
        format!("{name} {f1:.2} (precision {precision:.2}, recall {recall:.2})\n")
    };
    [line("ROUGE-1", rouge1), line("ROUGE-2", rouge2), line("ROUGE-L", rouge_l)].concat()
}

/// All of it.
pub(super) fn json(
    model: &dyn Model,
    encoded: &EncodedDocument,
    summary: &SummaryResult,
    compared: Option<RougeScores>,
) -> Value {
    let SummaryResult { hypotheses, reason, usage, timing, .. } = summary;
    let written = |one: &Hypothesis| {
        let text = one.tokens.split_last().map_or(&[][..], |(_, text)| text);
        let text = model.card().vocabulary.decode(text);
        json!({ "ids": one.tokens, "score": one.score, "text": text, "logprobs": one.logprobs })
    };
    let hypotheses: Vec<Value> = hypotheses.iter().map(written).collect();
    let best = |key: &str| hypotheses.first().map_or(Value::Null, |best| best[key].clone());
    let layers = encoded.layers.iter().map(|layer| json!({ "length": layer.length, "ns": layer.ns }));
    let steps = (usage.generated_chars as u64).saturating_sub(1);
    let mut object = json!({
        "ids": best("ids"),
        "score": best("score"),
        "text": best("text"),
        // what is written are tokens, not characters
        "reason": if *reason == FinishReason::MaxChars { "max_tokens" } else { reason.name() },
        "hypotheses": hypotheses,
        "poolings": encoded.choices.iter().map(|choice| pooling(choice, encoded)).collect::<Vec<_>>(),
        "usage": {
            "document_tokens": encoded.tokens,
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
    if let Some(rouge) = compared {
        object["rouge"] = json!(rouge);
    }
    object
}

/// What a pooling has kept, in the order in which it goes on, and as spans of the text.
fn pooling(choice: &PoolingChoice, encoded: &EncodedDocument) -> Value {
    let kept = choice.kept.iter().map(|kept| json!({ "position": kept.token, "score": kept.score }));
    let (spans, _) = spans(choice, &encoded.places, encoded.tokens);
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
    use crate::decode::document::KeptVector;

    #[test]
    fn what_was_kept_stands_in_the_text() {
        let kept = |tokens: &[usize]| tokens.iter().map(|&token| KeptVector { token, score: 0.5 }).collect();
        let encoded = EncodedDocument {
            places: vec![(0, 4), (4, 10), (10, 13), (13, 13)],
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
        let shown = marked("the\u{1b}größ en", &encoded, ("[", "]"));
        let expected = "-- after layer 0: 3 of 4 tokens kept\n[the\u{fffd}größ] en\n\n\
            -- after layer 2: 1 of 4 tokens kept\nthe\u{fffd}größ[ en]\n\n";
        assert_eq!(shown, expected);
    }
}
