//! The method `Check`: passes a text to [`CheckTask`], and returns the words that it finds with their places.

use crate::{
    grpc::{
        convert::{self, count, nanoseconds, size},
        generation::{Incoming, JobService, terms},
    },
    middleware::limits::Reservation,
    registry::continues_text,
};
use std::sync::Arc;
use weir_engine::{
    check::{BYTES_PER_BYTE, CheckRules, CheckTask, CheckedWord, MAX_TEXT_BYTES, Spelling},
    clock,
};
use weir_kernels::error::Result;
use weir_proto::v1;

impl JobService {
    /// Checks a text. Dropping the future cancels the check within one step.
    pub(crate) async fn check_text(&self, request: Incoming<v1::CheckRequest>) -> Result<v1::CheckResponse> {
        let began = clock::now();
        let permit = self.gate.enter()?;
        let Incoming { message, call, memory } = request;
        let engine = self.engines.find_able("model", message.model.as_deref(), continues_text)?;
        let rules = rules(&message);
        let terms = terms(&call, message.priority);
        let tenant = Arc::clone(&terms.tenant);
        let reserved = Reservation::new(Arc::clone(&self.memory), Arc::clone(&tenant));
        reserved.add(message.text.len().min(MAX_TEXT_BYTES) * BYTES_PER_BYTE)?;
        let text = Arc::<str>::from(message.text);
        let read = Arc::clone(&text);
        let handle = (*engine).clone();
        let prepare = move || CheckTask::new(handle, terms, &read, rules);
        let task = self.workers.run(&tenant, text.len(), prepare).await.flatten()?;
        // the task has what it needs of the request
        drop(memory);
        let checked = tokio::select! {
            biased;
            checked = task.run() => checked?,
            error = permit.ended() => return Err(error),
        };
        if let Some(span) = &call.span {
            span.record_job(&engine.card().name, &checked.usage, &checked.timing);
        }
        let normalized_chars = Some(engine.card().vocabulary.normaliser().changed_chars(&text) as u64);
        Ok(v1::CheckResponse {
            words: words(&text, checked.words),
            cut: checked.is_cut,
            compared_words: count(checked.compared),
            usage: Some(v1::Usage { normalized_chars, ..convert::usage(checked.usage) }),
            timing: Some(convert::timing(checked.timing)),
            duration_ns: nanoseconds(clock::since(began)),
        })
    }
}

/// Returns the rules of a check, which [`CheckTask::new`] validates.
fn rules(message: &v1::CheckRequest) -> CheckRules {
    let default = CheckRules::default();
    CheckRules {
        threshold: message.threshold.map_or(default.threshold, f64::from),
        alternatives: message.alternatives.map_or(default.alternatives, size),
        words: message.max_words.map_or(default.words, size),
    }
}

/// Returns the messages of words, which are in the order of the text.
fn words(text: &str, found: Vec<CheckedWord>) -> Vec<v1::CheckedWord> {
    let mut byte = 0;
    let mut utf16 = 0;
    let units = |text: &str| text.encode_utf16().count() as u64;
    let word = |CheckedWord { bytes, logprob, alternatives }: CheckedWord| {
        let own = &text[bytes.clone()];
        utf16 += units(&text[byte..bytes.start]);
        let start_utf16 = utf16;
        utf16 += units(own);
        byte = bytes.end;
        let alternative = |Spelling { text, logprob }| v1::WordAlternative { text, logprob };
        v1::CheckedWord {
            text: own.to_owned(),
            start_byte: bytes.start as u64,
            end_byte: bytes.end as u64,
            start_utf16,
            end_utf16: utf16,
            logprob,
            alternatives: alternatives.into_iter().map(alternative).collect(),
        }
    };
    found.into_iter().map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_bytes_and_utf16() {
        let text = "é😀 ab c\u{301} de";
        let found = [(7..9), (14..16)].map(|bytes| CheckedWord { bytes, logprob: -1.0, alternatives: Vec::new() });
        let places: Vec<_> = words(text, found.to_vec())
            .into_iter()
            .map(|word| (word.text, word.start_byte, word.end_byte, word.start_utf16, word.end_utf16))
            .collect();
        assert_eq!(places, [("ab".into(), 7, 9, 4, 6), ("de".into(), 14, 16, 10, 12)]);
    }
}
