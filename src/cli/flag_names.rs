//! Replaces names of request fields in errors with the flags that set them.

use crate::cli::{generate, model::IN_PROCESS};
use weir_kernels::error::Error;

/// Request fields, dotted as on the wire, and the flags that set them. [`generate::FLAGS`] has the options of `weir generate`.
const FLAGS: [(&str, &str); 20] = [
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
    ("windows.length", "--windowed"),
    ("windows.stride", "--windowed"),
];

/// The `call` of errors about a model in commands without the flag `--model`.
const WITHOUT_FLAG: [&str; 2] = ["attention resolution", "this benchmark"];

/// Returns all request fields that flags set, each with its flag.
pub(crate) fn fields_and_flags() -> impl Iterator<Item = (&'static str, &'static str)> {
    FLAGS.into_iter().chain(generate::FLAGS)
}

/// Returns the flag of a field, or the command of a method. An element of a list has the flag of the list.
fn own_name(name: &str) -> Option<&'static str> {
    let command = match name {
        "Generate" => "`weir generate`",
        "Summarize" => "`weir summarize`",
        "Score" => "`weir score`",
        "Segment" => "`weir segment`",
        "Compress" => "`weir compress`",
        "Edit" => "`weir lsp`",
        _ => {
            let list = name.split_once('[').map_or(name, |(list, _)| list);
            return fields_and_flags().find(|(field, _)| *field == list).map(|(_, flag)| flag);
        }
    };
    Some(command)
}

/// Replaces the names that a server's message has in parentheses: the method that was called or that should be, and the option on
/// which a limit depends.
fn with_own_names(text: &str) -> String {
    let mut parts = text.split('(');
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let own = ["for ", "use ", "the value of "].iter().find_map(|start| {
            let (name, rest) = part.strip_prefix(start)?.split_once(')')?;
            let option = || fields_and_flags().find(|(field, _)| field.rsplit('.').next() == Some(name));
            let own = own_name(name).or_else(|| option().map(|(_, flag)| flag))?;
            Some(format!("{start}{own}){rest}"))
        });
        named.push('(');
        named.push_str(own.as_deref().unwrap_or(part));
    }
    named
}

/// Returns an error's message with flag names in place of field names, and commands in place of methods. The server in this process
/// has no name in it.
pub(super) fn message(error: Error) -> String {
    match with_flag_names(error) {
        Error::Remote { server, answer } if server == IN_PROCESS => answer,
        Error::Refused { server, field, why } if server == IN_PROCESS => field + &why,
        other => other.to_string(),
    }
}

pub(crate) fn with_flag_names(error: Error) -> Error {
    match error {
        Error::WrongKind { call, .. } if WITHOUT_FLAG.contains(&call) => error,
        Error::WrongKind { .. } | Error::OtherMethod { .. } => {
            let text = error.named(|name| own_name(name).unwrap_or(name)).to_string();
            // The message about a method begins with the field `model`.
            Error::Setting(if text.starts_with("--") { text } else { format!("--{text}") })
        }
        Error::Refused { server, field, why } => {
            let field = own_name(&field).map_or(field, str::to_owned);
            Error::Refused { server, field, why: with_own_names(&why) }
        }
        other => other.named(|name| own_name(name).unwrap_or(name)),
    }
}

/// Returns the error with the name `flag` in place of `name`, for a field that several flags set.
pub(super) fn with_flag(error: Error, name: &str, flag: &'static str) -> Error {
    match error {
        Error::Refused { server, field, why } if field == name => Error::Refused { server, field: flag.into(), why },
        other => other.named(|field| if field == name { flag } else { field }),
    }
}
