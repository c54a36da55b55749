//! The token that calls to `Admin` must have.

use crate::error::{Error, Result};
use std::{fmt, path::Path};
use subtle::ConstantTimeEq;

/// The least bytes of a token: guessing one of fewer may be tried.
const LEAST: usize = 16;
/// The most: it travels in a header.
const MOST: usize = 1024;

/// A secret. It is compared in constant time, and never printed.
#[derive(Clone)]
pub struct Token(Box<[u8]>);

impl Token {
    /// A token of 16 to 1,024 visible ASCII characters.
    ///
    /// # Errors
    /// [`Error::Setting`], which does not tell the token.
    pub fn new(text: &str) -> Result<Self> {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if !visible || !(LEAST..=MOST).contains(&text.len()) {
            let found = if visible { format!("{} characters", text.len()) } else { "others".into() };
            let wanted = format!("a token of {LEAST} to {MOST} visible ASCII characters");
            return Err(Error::Setting(format!("expected {wanted}, found {found}")));
        }
        Ok(Self(text.as_bytes().into()))
    }

    /// The token in a file, which may end with a line break.
    ///
    /// # Errors
    /// [`Error::Setting`]: no such file, or not a token.
    pub fn read(file: &Path) -> Result<Self> {
        let about = |why: &dyn fmt::Display| Error::Setting(format!("{}: {why}", file.display()));
        let text = std::fs::read_to_string(file).map_err(|error| about(&error))?;
        Self::new(text.trim_end_matches(['\r', '\n'])).map_err(|error| about(&error))
    }

    /// Whether it is this one. Takes the same time whatever differs, but for the length.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        self.0.ct_eq(given).into()
    }

    /// The header's value that shows it.
    pub(in crate::serve) fn bearer(&self) -> String {
        format!("Bearer {}", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_visible() {
        let token = Token::new("0123456789abcdef").unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for wrong in [&b"0123456789abcdeg"[..], b"0123456789abcde", b"0123456789abcdef0", b""] {
            assert!(!token.is(wrong));
        }
        assert_eq!(format!("{token:?}"), "Token");
        for wrong in ["", "0123456789abcde", "0123456789 abcdef", "0123456789abcdé", &"a".repeat(MOST + 1)] {
            let told = Token::new(wrong).unwrap_err().to_string();
            assert!(wrong.is_empty() || !told.contains(wrong), "{told}");
        }
    }

    #[test]
    fn a_files_last_line_break_is_not_the_tokens() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
        assert!(Token::read(file.path()).unwrap().is(b"0123456789abcdef"));
        let told = Token::read(Path::new("/nowhere/token")).unwrap_err().to_string();
        assert!(told.starts_with("/nowhere/token: "), "{told}");
    }
}
