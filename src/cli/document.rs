//! What commands read: a text, a document to summarize, texts in portions that end between characters, and tables of documents.

use crate::cli::{
    flag_names::with_flag,
    model::{STANDARD_INPUT, not_utf8, read_text_or_stdin, unreadable},
    output::note,
};
use serde::de::DeserializeOwned;
use std::{
    fs::File,
    io::{BufRead, BufReader, IsTerminal, Read, stdin},
    path::{Path, PathBuf},
    thread,
};
use weir_kernels::error::{Error, Result, printable};

/// The flag that names the file.
const FLAG: &str = "--file";

/// Maximum bytes of a line of a table.
const MAX_LINE: u64 = 64 << 20;

/// Bytes per read.
const READ_BYTES: usize = 1 << 16;

/// Stands for standard input where a text or a file is expected.
pub(super) const DASH: &str = "-";

/// A text, given as an argument, as a file, as ids or on standard input.
#[derive(Debug, Clone, clap::Args)]
#[group(multiple = false)]
pub(super) struct TextArgs {
    /// Text; - for standard input. Without a text, a file and ids, the text comes from standard input, unless that is a terminal.
    #[arg(value_name = "TEXT")]
    positional: Option<String>,
    /// Text; - for standard input.
    #[arg(long)]
    text: Option<String>,
    /// File with the text in UTF-8; - for standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Symbol ids, separated by commas. `score` also accepts the end-of-text id at the end, and scores it.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    ids: Option<Vec<u32>>,
}

/// A text as a server takes it.
pub(super) struct TextInput {
    /// The flag that gives it.
    pub(super) flag: &'static str,
    /// Empty if `ids` are given instead.
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
    /// True if it comes from a file or from standard input.
    pub(super) is_file: bool,
}

impl TextInput {
    /// Returns a server's error with the flag of the text in place of the request's fields.
    pub(super) fn with_flag(&self, error: Error) -> Error {
        ["text", "ids", "prompt", "prompt_ids"].iter().fold(error, |error, field| with_flag(error, field, self.flag))
    }
}

impl TextArgs {
    /// Reads the text. Fails if the file cannot be read, or if there is no text.
    pub(super) fn read(&self) -> Result<TextInput> {
        let arguments = [("TEXT", self.positional.as_deref()), ("--text", self.text.as_deref())];
        read_text_arguments(arguments, self.file.as_deref(), self.ids.as_deref())
    }
}

/// Reads the text of the argument, the file or the ids that are given, else of standard input. Fails if it cannot be read, or if only a
/// terminal is left to read.
pub(super) fn read_text_arguments(
    arguments: [(&'static str, Option<&str>); 2],
    file: Option<&Path>,
    ids: Option<&[u32]>,
) -> Result<TextInput> {
    if let Some(ids) = ids {
        return Ok(TextInput { flag: "--ids", text: String::new(), ids: ids.to_vec(), is_file: false });
    }
    let read = |flag, file: &Path| {
        let text = read_text_or_stdin(flag, file)?;
        Ok(TextInput { flag, text, ids: Vec::new(), is_file: true })
    };
    if let Some(file) = file {
        return read(FLAG, file);
    }
    note_file_name(arguments[0]);
    for (flag, text) in arguments {
        match text {
            Some(DASH) => return read(flag, Path::new(DASH)),
            Some(text) => return Ok(TextInput { flag, text: text.to_owned(), ids: Vec::new(), is_file: false }),
            None => {}
        }
    }
    check_standard_input(arguments[0].0)?;
    read(STANDARD_INPUT, Path::new(DASH))
}

/// Notes that the text of an argument is the name of a file, which is not read.
pub(super) fn note_file_name((argument, text): (&str, Option<&str>)) {
    if let Some(text) = text
        && !text.contains(char::is_whitespace)
        && Path::new(text).is_file()
    {
        let text = printable(text);
        note(&format!("{argument}: the text is {text:?}, not the file of that name, which {FLAG} {text} reads"));
    }
}

/// Fails if standard input is a terminal. `argument` is the argument that is missing then.
pub(super) fn check_standard_input(argument: &str) -> Result<()> {
    if stdin().is_terminal() {
        let expected = "expected a value, or a text on standard input, found a terminal";
        return Err(Error::Setting(format!("{argument}: {expected} (see --help)")));
    }
    Ok(())
}

/// Starts a thread that reads what a call sends. The process does not wait for it, because standard input may stay open.
pub(super) fn read_on_thread(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().spawn(work);
    thread.map(drop).map_err(|source| Error::NoThread { work: "reading the input", source })
}

/// Maximum parts of a call's input that wait to be sent.
pub(super) const WAITING_PARTS: usize = 4;

pub(super) enum Document {
    /// A file; `-` is standard input.
    File(PathBuf),
    /// A text from the command line or from a table of documents.
    Text(String),
    /// Token ids, with the end-of-text id.
    Ids(Vec<u32>),
}

/// Reads UTF-8 text in portions that end between characters.
pub(super) struct TextReader<'a> {
    /// The flag or argument that names the file.
    flag: &'static str,
    bytes: Box<dyn Read + Send + 'a>,
    /// Name in I/O errors.
    file: PathBuf,
    /// Bytes that were returned.
    done: u64,
    /// Beginning of a character that the next read completes.
    pending: Vec<u8>,
}

impl TextReader<'static> {
    /// Opens a file; `-` is standard input.
    pub(super) fn open(file: &Path) -> Result<Self> {
        if file.as_os_str() == DASH {
            return Ok(Self::new(FLAG, Box::new(stdin()), Path::new(STANDARD_INPUT)));
        }
        Ok(Self::new(FLAG, Box::new(File::open(file).map_err(unreadable(FLAG, file))?), file))
    }
}

impl<'a> TextReader<'a> {
    /// Reads from an open file, which `flag` names.
    pub(super) fn new(flag: &'static str, bytes: Box<dyn Read + Send + 'a>, file: &Path) -> Self {
        Self { flag, bytes, file: file.to_owned(), done: 0, pending: Vec::new() }
    }

    /// Reads from a text in memory.
    pub(super) fn text(text: &'a str) -> Self {
        Self::new(FLAG, Box::new(text.as_bytes()), Path::new("a document"))
    }

    /// Returns the next portion; `None` at the end. Fails if the bytes cannot be read or are not UTF-8.
    pub(super) fn next(&mut self) -> Result<Option<String>> {
        let Self { flag, bytes, file, done, pending } = self;
        let read = bytes.take(READ_BYTES as u64).read_to_end(pending).map_err(unreadable(flag, file))?;
        let valid = match std::str::from_utf8(pending) {
            Ok(all) => all.len(),
            // The next read completes the last character.
            Err(error) if error.error_len().is_none() && read > 0 => error.valid_up_to(),
            Err(error) => return Err(not_utf8(flag, file, *done + error.valid_up_to() as u64)),
        };
        *done += valid as u64;
        let rest = pending.split_off(valid);
        let portion = String::from_utf8(std::mem::replace(pending, rest)).unwrap_or_default();
        Ok((read > 0).then_some(portion))
    }
}

/// Reads a JSON object from each non-empty line of a file. Returns the objects with their line numbers. `flag` is the
/// argument that names the file, and `object` describes an object in errors. Fails if the file has no object.
pub(super) fn json_lines<T: DeserializeOwned>(flag: &str, file: &Path, object: &str) -> Result<Vec<(u64, T)>> {
    let mut reader = BufReader::new(File::open(file).map_err(unreadable(flag, file))?);
    let mut objects = Vec::new();
    for number in 1.. {
        let mut line = String::new();
        let read = (&mut reader).take(MAX_LINE).read_line(&mut line).map_err(unreadable(flag, file))?;
        if read == 0 {
            break;
        }
        let wrong = |expected: &str, found: String| Error::checkpoint(file, format!("line {number}"), expected, found);
        if read as u64 == MAX_LINE && !line.ends_with('\n') {
            return Err(wrong(&format!("at most {MAX_LINE} bytes"), "more".into()));
        }
        // serde would accept a list as the fields in order.
        if line.trim_start().starts_with('[') {
            return Err(wrong(object, "a list".into()));
        }
        if !line.trim().is_empty() {
            objects.push((number, serde_json::from_str(&line).map_err(|error| wrong(object, error.to_string()))?));
        }
    }
    match objects.is_empty() {
        true => Err(Error::checkpoint(file, "line 1", object, "nothing")),
        false => Ok(objects),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<String>> {
        let mut reader = TextReader::new(FLAG, Box::new(bytes), Path::new("a.txt"));
        std::iter::from_fn(|| reader.next().transpose()).collect()
    }

    #[test]
    fn portions_end_between_characters() {
        let text = "é".repeat(READ_BYTES);
        let odd = format!("a{text}");
        let portions = read(odd.as_bytes()).unwrap();
        assert_eq!((portions.len(), portions[0].len()), (3, READ_BYTES - 1));
        assert_eq!(portions.concat(), odd);
        assert_eq!(read(b"").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn invalid_and_incomplete_text_fails() {
        for bytes in [&b"a\xff"[..], b"a\xc3"] {
            let error = read(bytes).unwrap_err().to_string();
            assert!(error.starts_with("--file: a.txt: expected UTF-8"), "{error}");
        }
    }
}
