//! Log lines about refused calls, so that an operator sees at the default level that a limit is reached or a client errs.
//!
//! A client can cause refusals at will, so each kind has one line in [`INTERVAL`] at most. The next line counts the refusals that had
//! none. A kind is a code, a rule and a field. A client can also cause many kinds, so the kinds beyond [`KINDS`] share one line for
//! each code. A line has the rule and the field, and no value: a value may be a client's text.

use super::tonic_errors::DECODING;
use crate::{engine::clock, error::clip, serve::status::rule_and_field};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Minimum time between two lines about the same kind.
const INTERVAL: Duration = Duration::from_secs(10);
/// Maximum kinds that have lines of their own.
const KINDS: usize = 64;
/// Maximum bytes of a field's name. No known field has a longer one.
const FIELD_BYTES: usize = 64;
/// The codes of refusals that no other part of the server logs.
const CODES: [Code; 7] = [
    Code::InvalidArgument,
    Code::NotFound,
    Code::FailedPrecondition,
    Code::ResourceExhausted,
    Code::OutOfRange,
    Code::Unauthenticated,
    Code::PermissionDenied,
];
/// The reason of an error whose field may be a key that the client chose.
const UNREADABLE: &str = "UNREADABLE";
/// The fields of requests in JSON, on all paths. Other keys are the client's own text. A test compares them with the requests.
const JSON_FIELDS: [&str; 51] = [
    "beam_size",
    "best_of",
    "boundaries",
    "boundary_mode",
    "cut",
    "document",
    "document_id",
    "early_stopping",
    "echo",
    "frequency_penalty",
    "hard_topk",
    "hypotheses",
    "id",
    "ignore_eos",
    "include_stop_str_in_output",
    "inputs",
    "length_penalty",
    "logit_bias",
    "logprobs",
    "long_documents",
    "max_new_tokens",
    "max_segments",
    "max_tokens",
    "messages",
    "min_new_tokens",
    "min_p",
    "min_tokens",
    "model",
    "n",
    "no_repeat_ngram",
    "no_repeat_ngram_size",
    "num_beams",
    "outputs",
    "parameters",
    "presence_penalty",
    "priority",
    "prompt",
    "repetition_penalty",
    "resume_text",
    "sampling_parameters",
    "seed",
    "speculate",
    "stop",
    "stream",
    "stream_options",
    "suffix",
    "temperature",
    "timeout",
    "top_k",
    "top_p",
    "triton_enable_empty_final_response",
];

/// The state of the lines. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusalLog {
    kinds: Arc<Mutex<BTreeMap<Kind, Refusals>>>,
}

/// Group of refusals that share log lines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    code: i32,
    /// The rule and the field. `None` for the kinds of this code that have no lines of their own.
    cause: Option<(String, Option<String>)>,
}

/// The refusals of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct Refusals {
    /// When the last line was logged.
    last_line: Option<Instant>,
    /// Refusals since then.
    unlogged: u64,
}

/// A refused call, as the log describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::serve) struct Refusal {
    pub(in crate::serve) code: Code,
    /// The name of the violated rule, in upper case.
    pub(in crate::serve) rule: String,
    /// The field of the request that is wrong.
    pub(in crate::serve) field: Option<String>,
    /// The error's message. The log has it only if a limit is reached or credentials are refused.
    pub(in crate::serve) message: String,
}

impl Refusal {
    /// Describes the status of a gRPC call.
    fn of(status: &Status) -> Self {
        let details = status.get_error_details();
        let (rule, field) = rule_and_field(&details);
        let is_of_schema = rule != UNREADABLE || status.message().starts_with(DECODING);
        let field = if is_of_schema { field.map(str::to_owned) } else { field.and_then(json_field) };
        Self { code: status.code(), rule: rule.to_owned(), field, message: status.message().to_owned() }
    }

    /// Describes a refused request in JSON.
    #[cfg(feature = "http")]
    pub(in crate::serve) fn of_json(code: Code, rule: String, field: Option<&str>, message: &str) -> Self {
        let field = if rule == UNREADABLE { field.and_then(json_field) } else { field.map(str::to_owned) };
        Self { code, rule, field, message: message.to_owned() }
    }

    /// Logs this refusal, and the number of earlier ones that had no line.
    fn log(&self, unlogged: u64) {
        let Self { code, rule, field, message } = self;
        match code {
            // These messages have only names and numbers of limits.
            Code::ResourceExhausted => {
                tracing::warn!(?code, rule, limit = message, unlogged, "refused a call: a limit is reached");
            }
            // These messages never contain credentials.
            Code::Unauthenticated => tracing::info!(?code, rule, why = message, unlogged, "refused credentials"),
            Code::PermissionDenied => tracing::warn!(?code, rule, why = message, unlogged, "refused credentials"),
            _ => tracing::info!(?code, rule, field, unlogged, "refused a call"),
        }
    }

    fn kind(&self) -> Kind {
        let field = self.field.as_deref().map(|field| clip(field, FIELD_BYTES));
        Kind { code: self.code as i32, cause: Some((self.rule.clone(), field)) }
    }
}

/// Returns the first name of a path in JSON if it is a known field. Drops the keys and indices below it: keys may be a client's
/// text.
fn json_field(path: &str) -> Option<String> {
    let first = path.split(['.', '[']).next()?;
    JSON_FIELDS.contains(&first).then(|| first.to_owned())
}

impl RefusalLog {
    /// Logs the status of a gRPC call, in the current span, if its kind has had no line in [`INTERVAL`].
    pub(in crate::serve) fn record_status(&self, status: &Status) {
        if CODES.contains(&status.code()) {
            self.record(&Refusal::of(status));
        }
    }

    /// Logs a refusal, in the current span, if its kind has had no line in [`INTERVAL`].
    pub(in crate::serve) fn record(&self, refusal: &Refusal) {
        if let Some(unlogged) = self.count(refusal, clock::now()) {
            refusal.log(unlogged);
        }
    }

    /// Counts a refusal. Returns the number of earlier refusals without a line if this one gets a line.
    pub(in crate::serve) fn count(&self, refusal: &Refusal, now: Instant) -> Option<u64> {
        if !CODES.contains(&refusal.code) {
            return None;
        }
        // Before the lock: a flood of refusals waits for it.
        let mut kind = refusal.kind();
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        if !kinds.contains_key(&kind) && kinds.len() >= KINDS {
            forget_quiet_kinds(&mut kinds, now);
            if kinds.len() >= KINDS {
                kind.cause = None;
            }
        }
        let refusals = kinds.entry(kind).or_default();
        if refusals.is_recent(now) {
            refusals.unlogged += 1;
            return None;
        }
        refusals.last_line = Some(now);
        Some(std::mem::take(&mut refusals.unlogged))
    }
}

impl Refusals {
    /// Returns true if a line was logged less than [`INTERVAL`] ago.
    fn is_recent(&self, now: Instant) -> bool {
        self.last_line.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL)
    }
}

/// Removes the kinds without a line in the last [`INTERVAL`]. Adds their counts of unlogged refusals to the shared kind of their
/// code.
fn forget_quiet_kinds(kinds: &mut BTreeMap<Kind, Refusals>, now: Instant) {
    let mut unlogged = BTreeMap::<i32, u64>::new();
    kinds.retain(|kind, refusals| {
        let is_kept = kind.cause.is_none() || refusals.is_recent(now);
        if !is_kept && refusals.unlogged > 0 {
            *unlogged.entry(kind.code).or_default() += refusals.unlogged;
        }
        is_kept
    });
    for (code, count) in unlogged {
        kinds.entry(Kind { code, cause: None }).or_default().unlogged += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::Error, serve::status::status};
    #[cfg(feature = "http")]
    use std::collections::BTreeSet;

    fn field(error: &Error) -> Option<String> {
        Refusal::of(&status(error, "")).field
    }

    #[test]
    fn a_refusal_names_its_field() {
        let named = |error: Error, name: &str| assert_eq!(field(&error).as_deref(), Some(name), "{error}");
        let wrong_kind = |call| Error::WrongKind { call, model: "m".into(), wanted: "w", found: "f".into() };
        named(Error::UnknownModel { name: "x".into(), known: vec![] }, "model");
        named(Error::UnknownDocument { id: "x".into() }, "document_id");
        named(Error::bad_option("n", "0", "1"), "n");
        named(wrong_kind("Generate"), "model");
        named(wrong_kind("stopping.max_segments"), "stopping.max_segments");
        assert_eq!(field(&Error::Oversized { what: "the body", limit: 1 }), None);
    }

    #[test]
    fn unreadable_values_have_the_field_and_no_key_of_the_client() {
        let unreadable =
            |path: &str, why: &str| field(&Error::Unreadable { field: Some(path.into()), why: why.into() });
        assert_eq!(unreadable("top_p", "top_p: expected a number").as_deref(), Some("top_p"));
        assert_eq!(unreadable("logit_bias.secret", "x").as_deref(), Some("logit_bias"));
        assert_eq!(unreadable("prompt[3]", "x").as_deref(), Some("prompt"));
        assert_eq!(unreadable("secret", "x"), None);
        let decoding = format!("{DECODING}Sampling.top_p: GenerateRequest.sampling: invalid wire type");
        assert_eq!(unreadable("sampling.top_p", &decoding).as_deref(), Some("sampling.top_p"));
    }

    fn refusal(code: Code, field: &str) -> Refusal {
        Refusal { code, rule: "BAD_OPTION".into(), field: Some(field.into()), message: String::new() }
    }

    #[test]
    fn each_kind_has_one_line_in_the_interval() {
        let log = RefusalLog::default();
        let start = Instant::now();
        let count = |code, field, seconds| log.count(&refusal(code, field), start + Duration::from_secs(seconds));
        assert_eq!(count(Code::InvalidArgument, "n", 0), Some(0));
        assert_eq!(count(Code::InvalidArgument, "n", 1), None);
        assert_eq!(count(Code::InvalidArgument, "top_p", 1), Some(0), "another field");
        assert_eq!(count(Code::InvalidArgument, "n", 9), None);
        assert_eq!(count(Code::ResourceExhausted, "n", 9), Some(0), "another code");
        assert_eq!(count(Code::InvalidArgument, "n", 10), Some(2));
        assert_eq!(count(Code::InvalidArgument, "n", 20), Some(0));
        for quiet in [Code::Ok, Code::Cancelled, Code::Unavailable, Code::Internal] {
            assert_eq!(count(quiet, "n", 30), None, "{quiet:?}");
        }
    }

    #[test]
    fn many_kinds_share_a_line() {
        let log = RefusalLog::default();
        let start = Instant::now();
        let count = |index: usize, seconds| {
            let refusal = refusal(Code::InvalidArgument, &format!("splices[{index}]"));
            log.count(&refusal, start + Duration::from_secs(seconds))
        };
        for index in 0..KINDS {
            assert_eq!(count(index, 0), Some(0));
        }
        assert_eq!(
            [count(0, 1), count(KINDS, 1), count(KINDS + 1, 1), count(KINDS + 2, 1)],
            [None, Some(0), None, None]
        );
        assert_eq!(log.kinds.lock().unwrap().len(), KINDS + 1);
        // The quiet kinds make room, and the shared one keeps the count of kind 0.
        assert_eq!(count(KINDS + 3, 10), Some(0));
        let kinds = log.kinds.lock().unwrap();
        let unlogged: Vec<_> = kinds.iter().map(|(kind, refusals)| (kind.cause.is_none(), refusals.unlogged)).collect();
        assert_eq!(unlogged, [(true, 3), (false, 0)]);
    }

    #[cfg(feature = "http")]
    #[test]
    fn json_fields_are_those_of_the_requests() {
        use crate::serve::{
            completion_request::CompletionRequest,
            oip::request::{EMPTY_FINAL, TIMEOUT},
            oip::tensors::SAMPLING_PARAMETERS,
            openai::{inference::request::InferenceRequest, summaries::SummaryRequest},
        };
        let mut fields = BTreeSet::from([SAMPLING_PARAMETERS, EMPTY_FINAL, TIMEOUT]);
        fields.extend(FieldNames::of::<CompletionRequest>());
        fields.extend(FieldNames::of::<SummaryRequest>());
        fields.extend(FieldNames::of::<InferenceRequest>());
        // Refused before they are parsed: the field of chats that errors name.
        fields.insert("messages");
        assert_eq!(BTreeSet::from(JSON_FIELDS), fields);
        assert_eq!(fields.len(), JSON_FIELDS.len(), "a field is listed twice");
    }

    /// Reads the names of a struct's fields, aliases included, from its implementation of `Deserialize`.
    #[cfg(feature = "http")]
    #[derive(Default)]
    struct FieldNames(&'static [&'static str]);

    #[cfg(feature = "http")]
    impl FieldNames {
        fn of<T: serde::de::DeserializeOwned>() -> &'static [&'static str] {
            let mut names = Self::default();
            assert!(T::deserialize(&mut names).is_err());
            names.0
        }
    }

    #[cfg(feature = "http")]
    impl<'de> serde::Deserializer<'de> for &mut FieldNames {
        type Error = serde::de::value::Error;

        fn deserialize_struct<V: serde::de::Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Self::Error> {
            self.0 = fields;
            self.deserialize_any(visitor)
        }

        fn deserialize_any<V: serde::de::Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(serde::de::Error::custom("only names are read"))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }
}
