//! The token that calls to the `Admin` service must carry.

use super::{
    checks::Checks,
    secret_file::{self, warn_if_open},
};
use std::{fmt, path::Path};
use subtle::ConstantTimeEq;

/// Minimum bytes of a token: shorter tokens can be guessed.
const MIN_BYTES: usize = 16;
/// Maximum bytes of a token: it is sent in a header.
const MAX_BYTES: usize = 1024;

/// A secret, compared in constant time and never printed.
#[derive(Clone)]
pub struct AdminToken(Box<[u8]>);

impl AdminToken {
    /// Creates a token of 16 to 1,024 visible ASCII characters. The error describes the expected form and never quotes
    /// the text.
    pub fn new(text: &str) -> Result<Self, String> {
        let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if is_visible && (MIN_BYTES..=MAX_BYTES).contains(&text.len()) {
            return Ok(Self(text.as_bytes().into()));
        }
        let found = if is_visible { format!("{} characters", text.len()) } else { "other characters".into() };
        Err(format!("expected a token of {MIN_BYTES} to {MAX_BYTES} visible ASCII characters, found {found}"))
    }

    /// Reads a token from a file, which may end with a line break. Fails if the file or its token is invalid; the error
    /// names the file.
    pub fn read(file: &Path) -> Result<Self, String> {
        warn_if_open(file);
        let text = secret_file::read_text(file)?;
        Self::new(text.trim_end_matches(['\r', '\n'])).map_err(|why| format!("{}: {why}", file.display()))
    }

    /// Returns true if `token` is this token. The time depends on its length only.
    pub fn matches(&self, token: &[u8]) -> bool {
        self.0.ct_eq(token).into()
    }

    /// Returns the token, which is ASCII.
    pub fn value(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Checks {
    /// Reads the admin token from a file.
    pub fn token(&mut self, flag: &str, file: &Path) -> Option<AdminToken> {
        AdminToken::read(file).map_err(|why| self.reject_with(flag, why)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_must_be_long_and_visible() {
        let token = AdminToken::new("0123456789abcdef").unwrap();
        assert!(token.matches(b"0123456789abcdef"));
        for invalid in [&b"0123456789abcdeg"[..], b"0123456789abcde", b"0123456789abcdef0", b""] {
            assert!(!token.matches(invalid));
        }
        assert_eq!(format!("{token:?}"), "Token");
        for invalid in ["", "0123456789abcde", "0123456789 abcdef", "0123456789abcdé", &"a".repeat(MAX_BYTES + 1)] {
            let message = AdminToken::new(invalid).unwrap_err();
            assert!(invalid.is_empty() || !message.contains(invalid), "{message}");
        }
    }

    #[test]
    fn the_last_line_break_of_a_file_is_ignored() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
        assert!(AdminToken::read(file.path()).unwrap().matches(b"0123456789abcdef"));
        let mut checks = Checks::default();
        assert!(checks.token("--admin-token-file", Path::new("/nowhere/token")).is_none());
        let message = checks.finish().unwrap_err().to_string();
        assert!(message.contains("--admin-token-file") && message.contains("/nowhere/token"), "{message}");
    }
}
