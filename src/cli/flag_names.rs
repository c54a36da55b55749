//! Replaces names of request fields in errors with the flags that set them.

use crate::cli::model::IN_PROCESS;
use weir_kernels::error::{Error, Names, is_field_name};

/// Request fields, dotted as on the wire, and the flags that set them.
pub(crate) const FLAGS: [(&str, &str); 28] = [
    ("block_chars", "--block"),
    ("boundary_mode", "--boundary-mode"),
    ("chunk.text", "--file"),
    ("complete.until", "--until"),
    ("model", "--model"),
    ("normalise", "--normalise"),
    ("options.beam_size", "--beam"),
    ("options.early_stopping", "--early-stopping"),
    ("options.hard_topk", "--hard-topk"),
    ("options.hypotheses", "--hypotheses"),
    ("options.length_penalty", "--length-penalty"),
    ("options.long_documents", "--long-documents"),
    ("options.max_tokens", "--max-len"),
    ("options.min_tokens", "--min-len"),
    ("options.no_repeat_ngram", "--no-repeat-ngram"),
    ("options.repetition_penalty", "--repetition-penalty"),
    ("prompt", "--prompt"),
    ("prompt_ids", "--ids"),
    ("sampling.min_p", "--min-p"),
    ("sampling.repetition_penalty", "--repetition-penalty"),
    ("sampling.temperature", "--temperature"),
    ("sampling.top_p", "--top-p"),
    ("stopping.max_chars", "--max-chars"),
    ("stopping.max_segments", "--max-segments"),
    ("stopping.min_chars", "--min-chars"),
    ("stopping.stop", "--stop"),
    ("windows.length", "--windowed"),
    ("windows.stride", "--windowed"),
];

/// The methods of the API behind commands.
const COMMANDS: [(&str, &str); 6] = [
    ("Generate", "`weir generate`"),
    ("Summarize", "`weir summarize`"),
    ("Score", "`weir score`"),
    ("Segment", "`weir segment`"),
    ("Compress", "`weir compress`"),
    ("Edit", "`weir lsp`"),
];

/// The `call` of errors about a model in commands without the flag `--model`.
const WITHOUT_FLAG: [&str; 2] = ["attention resolution", "this benchmark"];

/// The names of the command line.
const NAMES: Names = Names { dropped: "", fields: &[&FLAGS], methods: &COMMANDS };

/// Returns an error's message with flag names in place of field names, and commands in place of methods. The server in this process
/// has no name in it.
pub(super) fn message(error: Error) -> String {
    match with_flag_names(error) {
        Error::Remote { server, answer } if server == IN_PROCESS => answer,
        Error::Refused { server, field, why } if server == IN_PROCESS => field + &why,
        other => other.to_string(),
    }
}

pub(crate) fn with_flag_names(mut error: Error) -> Error {
    match &mut error {
        Error::WrongKind { call, .. } if !WITHOUT_FLAG.contains(call) => {
            let field = if is_field_name(call) { *call } else { "model" };
            return Error::Setting(NAMES.message(Some(field), &error.to_string()));
        }
        Error::Refused { field, why, .. } => {
            *field = NAMES.field(field).to_owned();
            *why = NAMES.text(why);
        }
        Error::BadOption { bound, .. } => *bound = NAMES.text(bound),
        _ => {}
    }
    if let Some(field) = field_of(&mut error) {
        *field = NAMES.field(field);
    }
    error
}

/// Returns the error with the name `flag` in place of `name`, for a field that several flags set.
pub(super) fn with_flag(mut error: Error, name: &str, flag: &'static str) -> Error {
    match &mut error {
        Error::Refused { field, .. } if field == name => flag.clone_into(field),
        _ => {
            if let Some(field) = field_of(&mut error).filter(|field| **field == name) {
                *field = flag;
            }
        }
    }
    error
}

/// Returns the name of the field that an error is about.
fn field_of(error: &mut Error) -> Option<&mut &'static str> {
    match error {
        Error::BadOption { field, .. }
        | Error::UnknownSymbol { field, .. }
        | Error::TooLong { field, .. }
        | Error::LongerThan { field, .. }
        | Error::NeverFits { field, .. }
        | Error::TooMuchWork { field, .. }
        | Error::NeedsNormaliser { option: field, .. } => Some(field),
        _ => None,
    }
}
