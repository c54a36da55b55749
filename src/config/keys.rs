//! API keys: a file of them, and whose key a call brings.
//!
//! Only digests are kept. A key is looked up by comparing its digest with all of them, each in constant time and none left
//! out, so that the time taken tells nothing about any of them.

use super::{Checks, contents, warn_if_open};
use sha2::{Digest, Sha256};
use std::{fmt, path::Path, sync::Arc};
use subtle::{ConditionallySelectable, ConstantTimeEq};

/// Keys of one file: each call is compared with all.
const MOST_KEYS: usize = 4096;
/// Characters of a key: fewer can be guessed.
const LEAST_CHARACTERS: usize = 16;
/// Characters of a name.
const NAME_CHARACTERS: usize = 64;
/// What a digest's bytes are.
type Known = [u8; 32];

/// Keys, and the name that each stands for.
pub struct Keys {
    digests: Vec<Known>,
    names: Vec<Arc<str>>,
}

impl Keys {
    /// Reads lines of `name:key` or `name:sha256:DIGEST`. A name may have several keys.
    ///
    /// # Errors
    /// All lines that are wrong, by number; what stands in them is never repeated.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let mut keys = Self { digests: Vec::new(), names: Vec::new() };
        let mut wrong = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match entry(line).and_then(|(name, digest)| keys.add(name, digest)) {
                Ok(()) => {}
                Err(why) => wrong.push(format!("line {number}: {why}")),
            }
        }
        if keys.names.is_empty() && wrong.is_empty() {
            wrong.push("there is no key in it".into());
        }
        if wrong.is_empty() { Ok(keys) } else { Err(wrong) }
    }

    fn add(&mut self, name: &str, digest: Known) -> Result<(), String> {
        if self.digests.contains(&digest) {
            return Err("the same key stands in an earlier line".into());
        }
        if self.digests.len() == MOST_KEYS {
            return Err(format!("at most {MOST_KEYS} keys"));
        }
        self.digests.push(digest);
        self.names.push(name.into());
        Ok(())
    }

    /// Whose key it is.
    pub fn find(&self, key: &[u8]) -> Option<Arc<str>> {
        let digest: Known = Sha256::digest(key).into();
        let mut found = u32::MAX;
        for (at, known) in (0..).zip(&self.digests) {
            found.conditional_assign(&at, known.ct_eq(&digest));
        }
        self.names.get(found as usize).cloned()
    }
}

/// How many there are is all that may be told.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.digests.len())
    }
}

fn entry(line: &str) -> Result<(&str, Known), String> {
    let (name, key) = line.split_once(':').ok_or("expected name:key")?;
    let decent = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    if !(1..=NAME_CHARACTERS).contains(&name.len()) || !name.bytes().all(decent) {
        return Err(format!("expected a name of 1 to {NAME_CHARACTERS} letters, digits, and any of -_.@"));
    }
    if let Some(digest) = key.strip_prefix("sha256:") {
        return bytes_of(digest).map(|digest| (name, digest)).ok_or("expected 64 hexadecimal digits".into());
    }
    if key.len() < LEAST_CHARACTERS || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("expected a key of {LEAST_CHARACTERS} or more visible ASCII characters"));
    }
    Ok((name, Sha256::digest(key).into()))
}

fn bytes_of(digest: &str) -> Option<Known> {
    let mut bytes = Known::default();
    if digest.len() != 2 * bytes.len() || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(digest.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

impl Checks {
    /// The keys of a file.
    pub fn keys(&mut self, flag: &str, file: &Path) -> Option<Keys> {
        let mut wrong = |why: String| self.wrong(flag, &file.display().to_string(), why);
        let bytes = contents(file).map_err(&mut wrong).ok()?;
        warn_if_open(file);
        let text = String::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8".into())).ok()?;
        Keys::parse(&text).map_err(|problems| problems.into_iter().for_each(wrong)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_for_names() {
        let hash = "2f92ea77a5ddf8f2c3a1f1b6a8a0a4a3cbf4f3bb4a27ec1b1d2b3b8f2e6a0c11";
        let text = format!("# ours\n\nalice:0123456789abcdef\n  alice:fedcba9876543210  \nbob:sha256:{hash}\n");
        let keys = Keys::parse(&text).unwrap();
        assert_eq!(keys.find(b"0123456789abcdef").as_deref(), Some("alice"));
        assert_eq!(keys.find(b"fedcba9876543210").as_deref(), Some("alice"));
        for wrong in ["", "0123456789abcde", "0123456789abcdef ", "0123456789ABCDEF", hash] {
            assert_eq!(keys.find(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(format!("{keys:?}"), "3 keys");
    }

    #[test]
    fn a_digest_is_that_of_the_key() {
        // printf %s 0123456789abcdef | sha256sum
        let digest = "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f";
        for digest in [digest.to_owned(), digest.to_uppercase()] {
            let keys = Keys::parse(&format!("carol:sha256:{digest}")).unwrap();
            assert_eq!(keys.find(b"0123456789abcdef").as_deref(), Some("carol"));
        }
    }

    #[test]
    fn wrong_lines_are_told_by_number_and_not_repeated() {
        let text = "alice\na b:0123456789abcdef\ncarol:tooshort\ndave:sha256:beef\n:0123456789abcdef\n\
                    erin:0123456789abcdef\nfrank:0123456789abcdef\ngrace:0123456789\tabcdef\nheidi:0123456789abcdéf";
        let wrong = Keys::parse(text).unwrap_err();
        let lines: Vec<_> = wrong.iter().map(|why| why.split(':').next().unwrap()).collect();
        assert_eq!(lines, ["line 1", "line 2", "line 3", "line 4", "line 5", "line 7", "line 8", "line 9"]);
        let told = wrong.join("\n");
        for secret in ["tooshort", "beef", "0123456789", "alice", "frank"] {
            assert!(!told.contains(secret), "{told}");
        }
        assert_eq!(Keys::parse("# none\n").unwrap_err(), ["there is no key in it"]);
        let many: String = (0..=MOST_KEYS).map(|at| format!("n:{at:016}\n")).collect();
        assert_eq!(Keys::parse(&many).unwrap_err(), ["line 4097: at most 4096 keys"]);
    }
}
