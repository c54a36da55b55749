//! Reads the files that flags name. Errors begin with the flag.

use crate::error::{Error, Result};
use std::{
    fs,
    io::{self, Read},
    path::Path,
};

/// The name of standard input in messages.
const STANDARD_INPUT: &str = "standard input";

/// Reads the file that `flag` names.
pub(super) fn read(flag: &str, file: &Path) -> Result<Vec<u8>> {
    fs::read(file).map_err(unreadable(flag, file))
}

/// Reads the text of the file that `flag` names. Fails if it is not UTF-8.
pub(super) fn read_text(flag: &str, file: &Path) -> Result<String> {
    decode(flag, file, read(flag, file)?)
}

/// Reads a text as [`read_text`] does; `-` is standard input.
pub(super) fn read_text_or_stdin(flag: &str, file: &Path) -> Result<String> {
    if file.as_os_str() != "-" {
        return read_text(flag, file);
    }
    let file = Path::new(STANDARD_INPUT);
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).map_err(unreadable(flag, file))?;
    decode(flag, file, bytes)
}

/// Checks that the file that `flag` names exists, and that it can be opened if it is a regular one; `-` is standard input. Called
/// before a model is loaded, so that a wrong name is reported first.
pub(super) fn check_readable(flag: &str, file: &Path) -> Result<()> {
    if file.as_os_str() == "-" {
        return Ok(());
    }
    let metadata = fs::metadata(file).map_err(unreadable(flag, file))?;
    // Opening and closing a pipe would end the program that writes to it.
    if metadata.is_file() {
        fs::File::open(file).map_err(unreadable(flag, file))?;
    }
    Ok(())
}

/// Returns a function that turns an I/O error about the file that `flag` names into an error with both names.
pub(super) fn unreadable<'a>(flag: &'a str, file: &'a Path) -> impl Fn(io::Error) -> Error + 'a {
    move |error| Error::Setting(format!("{flag}: cannot read {}: {error}", file.display()))
}

/// Returns the error for a file that has invalid UTF-8 at byte `position`. `flag` names the file.
pub(super) fn not_utf8(flag: &str, file: &Path, position: u64) -> Error {
    Error::Setting(format!("{flag}: {}: expected UTF-8, found other bytes at position {position}", file.display()))
}

fn decode(flag: &str, file: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| not_utf8(flag, file, error.utf8_error().valid_up_to() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_begin_with_the_flag() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text");
        let message = |result: Result<String>| result.unwrap_err().to_string();
        let shown = file.display();
        assert!(message(read_text("--file", &file)).starts_with(&format!("--file: cannot read {shown}: ")));
        fs::write(&file, b"ab\xff").unwrap();
        let expected = format!("--file: {shown}: expected UTF-8, found other bytes at position 2");
        assert_eq!(message(read_text_or_stdin("--file", &file)), expected);
        assert_eq!(read("--file", &file).unwrap(), b"ab\xff");
    }
}
