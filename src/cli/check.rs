//! `weir check`: finds words of files that are probably misspelt, by a server, which runs in this process unless `--server` names
//! another.

use crate::cli::{
    model::{DescribedModel, ModelSourceArgs, check_readable, read_text_or_stdin, size, whole},
    output,
};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use weir_engine::{Limits, check::MAX_TEXT_BYTES};
use weir_kernels::error::{Result, floor_boundary};
use weir_proto::v1::{CheckRequest, CheckedWord};

/// The argument that names a file in errors.
const FILE: &str = "FILE";

/// Memory for the states of texts, if the model runs in this process.
const CACHE_BYTES: usize = 64 << 20;

/// Maximum words of a call's answer: all that are compared.
pub(super) const MAX_WORDS: u32 = 1024;

/// Runs the command. Fails if a file cannot be read or is not UTF-8, if the checkpoint is invalid, if the server rejects the call, or
/// if stdout cannot be written.
pub fn run(args: Args) -> Result<()> {
    let files = if args.files.is_empty() { vec![PathBuf::from("-")] } else { args.files.clone() };
    files.iter().try_for_each(|file| check_readable(FILE, file))?;
    let limits = Limits { cache_bytes: CACHE_BYTES, calibration: Duration::ZERO, ..Limits::default() };
    let served = args.model.open()?.served(limits)?;
    let model = DescribedModel::new(&served)?;
    let mut all = Vec::new();
    for file in &files {
        let words = check_file(&args, &model, file)?;
        all.push(json!({ "file": file, "words": words }));
    }
    if args.json { output::json(&json!({ "files": all })) } else { Ok(()) }
}

/// Checks a file in pieces. Prints each word as it is found, unless JSON is wanted. Returns the words as JSON.
fn check_file(args: &Args, model: &DescribedModel<'_>, file: &Path) -> Result<Vec<Value>> {
    let text = read_text_or_stdin(FILE, file)?;
    let mut place = Place { text: &text, byte: 0, utf16: 0, line: 1, column: 1 };
    let mut found = Vec::new();
    let mut start = 0;
    for piece in pieces(&text, piece_bytes(model)) {
        let request = CheckRequest {
            model: model.name(),
            text: piece.to_owned(),
            threshold: args.threshold,
            alternatives: Some(args.alternatives),
            max_words: Some(MAX_WORDS),
            ..CheckRequest::default()
        };
        // a text without words may have nothing that the model can read
        let words = if piece.trim().is_empty() {
            Vec::new()
        } else {
            model.model.call(async |client| client.check(request).await)?.words
        };
        place.move_to(start);
        let utf16 = place.utf16;
        for word in words {
            place.move_to(start + size(word.start_byte));
            if args.json {
                found.push(word_json(&word, &place, start, utf16));
            } else {
                output::write(&line(file, &place, &word))?;
            }
        }
        start += piece.len();
    }
    Ok(found)
}

/// Returns the bytes of a piece: half of the model's longest sequence at most, because normalising may turn a character into several.
pub(super) fn piece_bytes(model: &DescribedModel<'_>) -> usize {
    let limits = model.description.as_ref().and_then(|description| description.limits.as_ref());
    let max_symbols = limits.map_or(usize::MAX, |limits| size(limits.max_symbols));
    MAX_TEXT_BYTES.min(max_symbols / 2).max(1)
}

/// Cuts a text into pieces of at most `limit` bytes, after lines if possible, else after words.
pub(super) fn pieces(text: &str, limit: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        // a character has at most four bytes
        let end = floor_boundary(rest, limit.max(4));
        let fits = &rest[..end];
        let cut = |is_end: fn(char) -> bool| {
            fits.rfind(is_end).and_then(|at| Some(at + fits[at..].chars().next()?.len_utf8()))
        };
        let whole = (end == rest.len()).then_some(end);
        let (piece, after) =
            rest.split_at(whole.or_else(|| cut(|c| c == '\n')).or_else(|| cut(char::is_whitespace)).unwrap_or(end));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Finds misspelt words of texts.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// Files in UTF-8; - for standard input. Default: standard input.
    #[arg(value_name = FILE)]
    files: Vec<PathBuf>,
    /// Nats by which another spelling must be more probable. A lower threshold finds more errors, and more words that are none. Default:
    /// the server's, 11.5.
    #[arg(long, value_name = "NATS", env = "WEIR_THRESHOLD")]
    threshold: Option<f32>,
    /// Maximum alternatives of a word, best first: 1 to 16.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole(1..=16u32), env = "WEIR_ALTERNATIVES")]
    alternatives: u32,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
    #[command(flatten)]
    model: ModelSourceArgs,
}

/// A place in a text, which moves forwards.
struct Place<'a> {
    text: &'a str,
    byte: usize,
    utf16: usize,
    /// Line, from 1.
    line: usize,
    /// Position in the line in characters, from 1.
    column: usize,
}

impl Place<'_> {
    fn move_to(&mut self, byte: usize) {
        for character in self.text.get(self.byte..byte).unwrap_or_default().chars() {
            self.utf16 += character.len_utf16();
            self.column += 1;
            if character == '\n' {
                self.line += 1;
                self.column = 1;
            }
        }
        self.byte = byte;
    }
}

/// Formats a word as a line: `FILE:LINE:COLUMN: goverment → government`.
fn line(file: &Path, place: &Place<'_>, word: &CheckedWord) -> String {
    let others: Vec<_> = word.alternatives.iter().map(|other| other.text.as_str()).collect();
    format!("{}:{}:{}: {} → {}\n", file.display(), place.line, place.column, word.text, others.join(", "))
}

/// Returns a word of a piece as JSON. The piece begins at byte `start` and UTF-16 unit `utf16` of its file.
fn word_json(word: &CheckedWord, place: &Place<'_>, start: usize, utf16: usize) -> Value {
    json!({
        "text": word.text,
        "line": place.line,
        "column": place.column,
        "start": start + size(word.start_byte),
        "end": start + size(word.end_byte),
        "start_utf16": utf16 + size(word.start_utf16),
        "end_utf16": utf16 + size(word.end_utf16),
        "logprob": word.logprob,
        "alternatives": word.alternatives,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_after_lines_or_words() {
        let cut = |text, limit| pieces(text, limit).collect::<Vec<_>>();
        assert_eq!(cut("", 4), [""; 0]);
        assert_eq!(cut("a\nbc", 4), ["a\nbc"]);
        assert_eq!(cut("a\nb c de", 4), ["a\n", "b c ", "de"]);
        assert_eq!(cut("ab\u{2003}c", 5), ["ab\u{2003}", "c"]);
        assert_eq!(cut("éééé", 5), ["éé", "éé"]);
        assert_eq!(cut("😀😀", 1), ["😀", "😀"]);
    }

    #[test]
    fn places_count_lines_characters_and_units() {
        let mut place = Place { text: "é\n😀 ab", byte: 0, utf16: 0, line: 1, column: 1 };
        place.move_to(3);
        assert_eq!((place.line, place.column, place.utf16), (2, 1, 2));
        place.move_to(8);
        assert_eq!((place.line, place.column, place.utf16), (2, 3, 5));
        let word = CheckedWord {
            text: "ab".into(),
            start_byte: 5,
            end_byte: 7,
            start_utf16: 3,
            end_utf16: 5,
            ..Default::default()
        };
        assert_eq!(line(Path::new("a.txt"), &place, &word), "a.txt:2:3: ab → \n");
        let json = word_json(&word, &place, 3, 2);
        assert_eq!((&json["start"], &json["end_utf16"], &json["column"]), (&8.into(), &7.into(), &3.into()));
    }
}
