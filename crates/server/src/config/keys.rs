//! Secrets: the admin token, API keys, the files that have them, and the credentials in use, which can be replaced.

use crate::config::checks::{Checks, foreign_kind, read_text, warn_if_open};
use crate::config::{Tls, TlsFiles};
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use subtle::{ConditionallySelectable, ConstantTimeEq};

/// Minimum bytes of a token: shorter tokens can be guessed.
const MIN_BYTES: usize = 16;

/// Maximum bytes of a token: it is sent in a header.
pub(super) const MAX_BYTES: usize = 1024;

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
        let text = read_text(file)?;
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

// Only digests are stored. A lookup compares a key's digest with all digests, each in constant time, so its duration reveals
// nothing about any key.

/// Maximum keys of one file: each call is compared with all.
pub(super) const MAX_KEYS: usize = 4096;

/// Maximum keys that a connection remembers: those that it used last.
const MAX_USED_KEYS: usize = 64;

/// Minimum characters of a key: shorter keys can be guessed.
const MIN_CHARACTERS: usize = 16;

/// Maximum characters of a name.
const NAME_CHARACTERS: usize = 64;

/// SHA-256 of a key.
type KeyDigest = [u8; 32];

/// API keys and the name of each key's tenant.
#[derive(Default)]
pub struct Keys {
    digests: Vec<KeyDigest>,
    names: Vec<Arc<str>>,
}

impl Keys {
    /// Parses lines of `name:key` or `name:sha256:DIGEST`. A name may have several keys. The error lists the problems
    /// of all invalid lines by number, and never quotes a line.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let mut keys = Self::default();
        let mut problems = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Err(why) = parse_line(line).and_then(|(name, digest)| keys.add(name, digest)) {
                problems.push(format!("line {number}: {why}"));
            }
        }
        if keys.names.is_empty() && problems.is_empty() {
            problems.push("expected a key, found none".into());
        }
        if problems.is_empty() { Ok(keys) } else { Err(problems) }
    }

    fn add(&mut self, name: &str, digest: KeyDigest) -> Result<(), String> {
        if self.digests.contains(&digest) {
            return Err("expected a different key on each line, found the key of an earlier line".into());
        }
        if self.digests.len() == MAX_KEYS {
            return Err(format!("expected at most {MAX_KEYS} keys, found more"));
        }
        self.digests.push(digest);
        self.names.push(name.into());
        Ok(())
    }

    /// Returns the name of the key's tenant, if the key is known.
    pub fn find(&self, key: &[u8]) -> Option<Arc<str>> {
        self.owner(&Sha256::digest(key).into())
    }

    fn owner(&self, digest: &KeyDigest) -> Option<Arc<str>> {
        let mut found = u32::MAX;
        for (index, known) in (0..).zip(&self.digests) {
            found.conditional_assign(&index, known.ct_eq(digest));
        }
        self.names.get(found as usize).cloned()
    }

    fn remove(&mut self, index: usize) {
        self.digests.remove(index);
        self.names.remove(index);
    }
}

/// Keys that one connection has used. They keep working there when a reload removes them. Clones share them.
#[derive(Clone, Default)]
pub struct UsedKeys(Arc<Mutex<Keys>>);

impl UsedKeys {
    /// Returns true if the connection has used no key.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).digests.is_empty()
    }

    /// Returns the name of the tenant of a key that is in `present`, or that was when the connection used it before.
    pub fn find(&self, key: &[u8], present: &Keys) -> Option<Arc<str>> {
        let digest = Sha256::digest(key).into();
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(name) = present.owner(&digest) else { return used.owner(&digest) };
        // A key may have another owner now.
        if let Some(index) = used.digests.iter().position(|known| *known == digest) {
            used.remove(index);
        } else if used.names.len() == MAX_USED_KEYS {
            used.remove(0);
        }
        used.digests.push(digest);
        used.names.push(Arc::clone(&name));
        Some(name)
    }
}

/// Shows only the number of keys.
impl fmt::Debug for UsedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fmt(f)
    }
}

/// Shows only the number of keys.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.digests.len())
    }
}

fn parse_line(line: &str) -> Result<(&str, KeyDigest), String> {
    let (name, key) = line.split_once(':').ok_or("expected name:key, found no colon")?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    if !(1..=NAME_CHARACTERS).contains(&name.len()) || !name.bytes().all(is_allowed) {
        return Err(format!(
            "expected a name of 1 to {NAME_CHARACTERS} letters, digits, and any of -_.@, found another one"
        ));
    }
    if let Some(digest) = key.strip_prefix("sha256:") {
        return parse_digest(digest)
            .map(|digest| (name, digest))
            .ok_or("expected 64 hexadecimal digits after sha256:, found something else".into());
    }
    if key.len() < MIN_CHARACTERS || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "expected a key of {MIN_CHARACTERS} or more visible ASCII characters, found fewer or other characters"
        ));
    }
    Ok((name, Sha256::digest(key).into()))
}

fn parse_digest(digest: &str) -> Option<KeyDigest> {
    let mut bytes = KeyDigest::default();
    if digest.len() != 2 * bytes.len() || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, index) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(digest.get(index..index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

impl Checks {
    /// Reads a file of API keys.
    pub fn keys(&mut self, flag: &str, file: &Path) -> Option<Keys> {
        warn_if_open(file);
        let text = read_text(file).map_err(|why| self.reject_with(flag, why)).ok()?;
        if let Some(found) = foreign_kind(&text) {
            self.reject_with(flag, format!("{}: expected lines of name:key, found {found}", file.display()));
            return None;
        }
        let mut reject = |why: String| self.reject_with(flag, format!("{}: {why}", file.display()));
        Keys::parse(&text).map_err(|problems| problems.into_iter().for_each(&mut reject)).ok()
    }
}

/// The files of all credentials.
#[derive(Debug, Clone, Default)]
pub struct CredentialFiles {
    /// Certificates of the server and of its clients.
    pub tls: TlsFiles,
    /// API keys.
    pub api_keys: Option<PathBuf>,
}

impl CredentialFiles {
    /// Returns true if the settings name no file.
    pub fn is_empty(&self) -> bool {
        let TlsFiles { cert, key, client_ca, client_crl } = &self.tls;
        [cert, key, client_ca, client_crl, &self.api_keys].into_iter().all(Option::is_none)
    }

    /// Reads and checks every file.
    pub fn read(&self, checks: &mut Checks) -> Credentials {
        // Every file is checked even after an error, so that all errors are reported at once.
        let tls = checks.tls(&self.tls);
        let keys = self.api_keys.as_ref().and_then(|file| checks.keys("--api-keys", file));
        Credentials { tls, keys }
    }
}

/// Credentials that were read together.
#[derive(Debug, Default)]
pub struct Credentials {
    /// Encryption and required client certificates.
    pub tls: Option<Tls>,
    /// API keys, of which each call must carry one.
    pub keys: Option<Keys>,
}

/// The credentials in use, which all clones share. Connections and calls that began with earlier ones keep those.
#[derive(Debug, Clone, Default)]
pub struct LiveCredentials(Arc<RwLock<Arc<Credentials>>>);

impl From<Credentials> for LiveCredentials {
    fn from(credentials: Credentials) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(credentials))))
    }
}

impl LiveCredentials {
    /// Returns the credentials for a new connection or call.
    pub fn current(&self) -> Arc<Credentials> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces all credentials at once.
    pub fn replace(&self, credentials: Credentials) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(credentials);
    }
}

#[cfg(test)]
mod tests {
    use crate::config::checks::foreign_kind;
    use crate::config::keys::{AdminToken, Keys, MAX_BYTES, UsedKeys};

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
    fn keys_map_to_names() {
        let hash = "2f92ea77a5ddf8f2c3a1f1b6a8a0a4a3cbf4f3bb4a27ec1b1d2b3b8f2e6a0c11";
        let text = format!("# keys\n\nalice:0123456789abcdef\n  alice:fedcba9876543210  \nbob:sha256:{hash}\n");
        let keys = Keys::parse(&text).unwrap();
        assert_eq!(keys.find(b"0123456789abcdef").as_deref(), Some("alice"));
        assert_eq!(keys.find(b"fedcba9876543210").as_deref(), Some("alice"));
        for wrong in ["", "0123456789abcde", "0123456789abcdef ", "0123456789ABCDEF", hash] {
            assert_eq!(keys.find(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(format!("{keys:?}"), "3 keys");
    }

    #[test]
    fn a_used_key_works_after_it_is_removed() {
        let key = b"0123456789abcdef";
        let keys = |lines: &str| Keys::parse(lines).unwrap();
        let used = UsedKeys::default();
        assert_eq!(used.find(key, &keys("bob:fedcba9876543210")), None, "not used yet");
        assert_eq!(used.find(key, &keys("alice:0123456789abcdef")).as_deref(), Some("alice"));
        assert_eq!(used.find(key, &keys("bob:fedcba9876543210")).as_deref(), Some("alice"));
        assert_eq!(used.find(key, &keys("carol:0123456789abcdef")).as_deref(), Some("carol"), "a new owner");
        assert_eq!(used.find(key, &keys("bob:fedcba9876543210")).as_deref(), Some("carol"));
        for index in 0..200 {
            let key = format!("a key with number {index}").replace(' ', "-");
            assert_eq!(used.find(key.as_bytes(), &keys(&format!("dave:{key}"))).as_deref(), Some("dave"));
        }
        assert_eq!(format!("{used:?}"), "64 keys");
    }

    #[test]
    fn a_digest_matches_its_key() {
        // printf %s 0123456789abcdef | sha256sum
        let digest = "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f";
        for digest in [digest.to_owned(), digest.to_uppercase()] {
            let keys = Keys::parse(&format!("carol:sha256:{digest}")).unwrap();
            assert_eq!(keys.find(b"0123456789abcdef").as_deref(), Some("carol"));
        }
    }

    #[test]
    fn files_of_other_kinds_are_named() {
        for page in ["<!DOCTYPE html>", "\n<!doctype html>", "<HTML>", "<html lang=en>"] {
            assert_eq!(foreign_kind(page), Some("a web page in HTML"), "{page}");
        }
        assert_eq!(foreign_kind(" {}"), Some("JSON"));
        assert_eq!(foreign_kind("-----BEGIN SOMETHING-----"), Some("a PEM file"));
        assert_eq!(foreign_kind("tester:a-key"), None);
    }
}
