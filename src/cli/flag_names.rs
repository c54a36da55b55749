//! Replaces names of request fields in errors with the flags that set them.

use crate::cli::model::{IN_PROCESS, is_on_command_line};
use weir_kernels::error::Error;

/// Methods and request fields, dotted as on the wire, and the commands and flags that they have here. [`GENERATE`] has the options of
/// `weir generate`.
const NAMES: [(&str, &str); 33] = [
    ("Generate", "`weir generate`"),
    ("Summarize", "`weir summarize`"),
    ("block_chars", "--block"),
    ("boundary_mode", "--boundary-mode"),
    ("boundary_threshold", "--boundary-threshold"),
    ("chunk.text", "--file"),
    ("complete.until", "--until"),
    ("model", "--model"),
    ("name", "--model"),
    ("normalise", "--normalise"),
    ("options.beam_size", "--beam"),
    ("options.constraint.choice", "--choice"),
    ("options.constraint.grammar", "--grammar"),
    ("options.constraint.json_object", "--json-object"),
    ("options.constraint.json_schema", "--json-schema"),
    ("options.constraint.regex", "--regex"),
    ("options.early_stopping", "--early-stopping"),
    ("options.hard_topk", "--hard-topk"),
    ("options.hypotheses", "--hypotheses"),
    ("options.length_penalty", "--length-penalty"),
    ("options.long_documents", "--long-documents"),
    ("options.max_tokens", "--max-len"),
    ("options.min_tokens", "--min-len"),
    ("options.mode", "--mode"),
    ("options.no_repeat_ngram", "--no-repeat-ngram"),
    ("options.repetition_penalty", "--repetition-penalty"),
    ("options.sampling", "--temperature"),
    ("options.sentences", "--sentences"),
    ("prompt", "--prompt"),
    ("prompt_ids", "--ids"),
    ("threshold", "--threshold"),
    ("windows.length", "--windowed"),
    ("windows.stride", "--windowed"),
];

/// Request fields of `Generate` that the server bounds, dotted as on the wire, and the flags that set them.
const GENERATE: [(&str, &str); 15] = [
    ("constraint.choice", "--choice"),
    ("constraint.grammar", "--grammar"),
    ("constraint.json_object", "--json-object"),
    ("constraint.json_schema", "--json-schema"),
    ("constraint.regex", "--regex"),
    ("sampling.frequency_penalty", "--frequency-penalty"),
    ("sampling.min_p", "--min-p"),
    ("sampling.presence_penalty", "--presence-penalty"),
    ("sampling.repetition_penalty", "--repetition-penalty"),
    ("sampling.temperature", "--temperature"),
    ("sampling.top_p", "--top-p"),
    ("stopping.max_chars", "--max-chars"),
    ("stopping.max_segments", "--max-segments"),
    ("stopping.min_chars", "--min-chars"),
    ("stopping.stop", "--stop"),
];

/// Flags with another name, each with that.
pub(crate) const ALIASES: [(&str, &str); 5] = [
    ("--max-chars", "--max-tokens"),
    ("--max-len", "--max-new-tokens"),
    ("--max-len", "--max-tokens"),
    ("--min-len", "--min-new-tokens"),
    ("--no-repeat-ngram", "--no-repeat-ngram-size"),
];

/// Returns the name by which the user gave a flag.
fn as_given(flag: &'static str) -> &'static str {
    ALIASES.iter().find(|(main, alias)| *main == flag && is_on_command_line(alias)).map_or(flag, |(_, alias)| alias)
}

/// Returns all names of the gRPC API that have another here, each with that.
pub(crate) fn own_names() -> impl Iterator<Item = (&'static str, &'static str)> {
    NAMES.into_iter().chain(GENERATE)
}

/// Returns an error's message with flag names in place of field names, and commands in place of methods. The server in this process
/// has no name in it.
pub(super) fn message(error: Error) -> String {
    match with_flag_names(error) {
        Error::Remote { server, answer } if server == IN_PROCESS => answer,
        Error::Refused { server, error } if server == IN_PROCESS => error.to_string(),
        other => other.to_string(),
    }
}

pub(crate) fn with_flag_names(error: Error) -> Error {
    // An element of a list has the flag of the list.
    let list = |name: &'static str| name.split_once('[').map_or(name, |(list, _)| list);
    error.named(|name| own_names().find(|(field, _)| *field == list(name)).map_or(name, |(_, own)| as_given(own)))
}

/// Returns the error with the name `flag` in place of `name`, for a field that several flags set.
pub(super) fn with_flag(error: Error, name: &str, flag: &'static str) -> Error {
    error.named(|field| if field == name { flag } else { field })
}
