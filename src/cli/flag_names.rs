//! Replaces the names of request fields in errors by the flags that set them.

use super::model_source::IN_PROCESS;
use crate::error::{Error, Names, is_field_name};

/// Request fields, dotted as on the wire, and the flags that set them.
const FLAGS: [(&str, &str); 28] = [
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

fn with_flag_names(mut error: Error) -> Error {
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

#[cfg(test)]
mod tests {
    use super::{super::Cli, FLAGS, with_flag, with_flag_names};
    use crate::error::Error;
    use clap::CommandFactory;

    #[test]
    fn each_is_a_flag_of_some_command() {
        let command = Cli::command();
        let arguments = command.get_subcommands().flat_map(|subcommand| subcommand.get_arguments());
        let flags: Vec<&str> = arguments.filter_map(|flag| flag.get_long()).collect();
        for (field, flag) in FLAGS {
            assert!(flags.contains(&flag.trim_start_matches("--")), "{field}: no command has {flag}");
        }
    }

    #[test]
    fn a_field_is_reported_as_its_flag() {
        let message = |field| {
            with_flag_names(Error::BadOption { field, found: "65".into(), bound: "1 to 64".into() }).to_string()
        };
        assert_eq!(message("options.beam_size"), "--beam: expected 1 to 64, found 65");
        assert_eq!(message("--windowed"), "--windowed: expected 1 to 64, found 65");
        assert_eq!(message("prompt"), "--prompt: expected 1 to 64, found 65");
        assert_eq!(
            with_flag(Error::bad_option("prompt", "65", "1 to 64"), "prompt", "--ids").to_string(),
            "--ids: expected 1 to 64, found 65"
        );
        let refused = |message: &str| {
            let (field, why) = message.split_at(message.find(": ").unwrap());
            Error::Refused { server: "h:1".into(), field: field.into(), why: why.into() }
        };
        let remote = |message: &str| with_flag_names(refused(message)).to_string();
        assert_eq!(
            remote("model: expected one that reads (for Summarize), found \"m\", another (use Generate)"),
            "h:1: --model: expected one that reads (for `weir summarize`), found \"m\", another (use `weir generate`)"
        );
        let local = |call| {
            let found = "another".into();
            with_flag_names(Error::WrongKind { call, model: "m".into(), wanted: "pools", found }).to_string()
        };
        let expected = "--max-segments: expected a model that pools, found \"m\", another";
        assert_eq!(local("stopping.max_segments"), expected);
        assert_eq!(local("Segment"), "--model: expected one that pools (for `weir segment`), found \"m\", another");
        assert_eq!(remote("stopping.max_chars: 0 to 8"), "h:1: --max-chars: 0 to 8");
        assert_eq!(remote("stopping.max_chars_more: 0 to 8"), "h:1: stopping.max_chars_more: 0 to 8");
        assert_eq!(remote("stopping.stop[3]: 257 characters"), "h:1: --stop: 257 characters");
        assert_eq!(
            remote("stopping.min_chars: 0 to 3 (the value of max_chars)"),
            "h:1: --min-chars: 0 to 3 (the value of --max-chars)"
        );
        let text = with_flag(refused("text: 0"), "text", "--file");
        assert_eq!(text.to_string(), "h:1: --file: 0");
        assert_eq!(remote("Unavailable: draining"), "h:1: Unavailable: draining");
    }
}
