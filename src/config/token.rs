//! The token that calls to `Admin` must have.

use super::{Checks, contents, warn_if_open};
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
    /// What it should be; never what was given.
    pub fn new(text: &str) -> Result<Self, String> {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if visible && (LEAST..=MOST).contains(&text.len()) {
            return Ok(Self(text.as_bytes().into()));
        }
        let found = if visible { format!("{} of them", text.len()) } else { "other characters".into() };
        Err(format!("expected a token of {LEAST} to {MOST} visible ASCII characters, found {found}"))
    }

    /// The token in a file, which may end with a line break.
    ///
    /// # Errors
    /// It cannot be read, or has none.
    pub fn read(file: &Path) -> Result<Self, String> {
        let bytes = contents(file)?;
        warn_if_open(file);
        let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8")?;
        Self::new(text.trim_end_matches(['\r', '\n']))
    }

    /// Whether it is this one. Takes the same time whatever differs, but for the length.
    pub fn is(&self, given: &[u8]) -> bool {
        self.0.ct_eq(given).into()
    }

    /// The header's value that shows it.
    pub fn bearer(&self) -> String {
        format!("Bearer {}", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Checks {
    /// The token of a file.
    pub fn token(&mut self, flag: &str, file: &Path) -> Option<Token> {
        Token::read(file).map_err(|why| self.wrong(flag, &file.display().to_string(), why)).ok()
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
            let told = Token::new(wrong).unwrap_err();
            assert!(wrong.is_empty() || !told.contains(wrong), "{told}");
        }
    }

    #[test]
    fn a_files_last_line_break_is_not_the_tokens() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
        assert!(Token::read(file.path()).unwrap().is(b"0123456789abcdef"));
        let mut checks = Checks::default();
        assert!(checks.token("--admin-token-file", Path::new("/nowhere/token")).is_none());
        let told = checks.finish().unwrap_err().to_string();
        assert!(told.contains("--admin-token-file") && told.contains("/nowhere/token"), "{told}");
    }
}
