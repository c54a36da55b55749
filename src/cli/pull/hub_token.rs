//! The user's token for the Hugging Face Hub.

use crate::error::{Error, Result};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs::File,
    io::{ErrorKind, Read},
    path::PathBuf,
};

/// Maximum bytes of the file with the token.
const FILE_BYTES: u64 = 64 << 10;

/// A bearer token of the Hub.
#[derive(PartialEq, Eq)]
pub(super) enum HubToken {
    /// The user's token. Every request carries it, except after a redirect to another host.
    Sent(String),
    /// The user has no token.
    Unset,
    /// The connection is not encrypted, so no token may be sent.
    Unencrypted,
    /// `HF_HUB_DISABLE_IMPLICIT_TOKEN` forbids weir to send a token.
    Forbidden,
}

impl HubToken {
    /// Returns the token in `HF_TOKEN`, or else the one in the file where the Hub's own tools keep it. Fails if that file cannot be
    /// read, unless this user has no access to it. Reads neither if the endpoint has no TLS, or if `HF_HUB_DISABLE_IMPLICIT_TOKEN`
    /// is true: the Hub's own tools treat both tokens as implicit.
    pub(super) fn of_user(endpoint: &str) -> Result<Self> {
        // A token must not cross the network in plain text.
        if !endpoint.starts_with("https://") {
            return Ok(Self::Unencrypted);
        }
        if variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|value| is_true(&value)) {
            return Ok(Self::Forbidden);
        }
        if let Some(token) = variable("HF_TOKEN").and_then(|token| token.into_string().ok()) {
            return Ok(Self::Sent(token));
        }
        let token = file(variable).map(read).transpose()?.flatten();
        Ok(token.map_or(Self::Unset, Self::Sent))
    }
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns true for the values that the Hub's own tools read as true.
fn is_true(value: &OsStr) -> bool {
    ["1", "on", "yes", "true"].into_iter().any(|known| value.eq_ignore_ascii_case(known))
}

/// Returns the file in which `hf auth login` keeps the token. `variable` returns an environment variable's value.
fn file(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from);
    let cache = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    let home = || path("HF_HOME").or_else(|| Some(cache()?.join("huggingface")));
    path("HF_TOKEN_PATH").or_else(|| Some(home()?.join("token")))
}

/// Reads the token in a file. Returns `None` if there is no file, if this user has no access to it, or if it is empty.
fn read(path: PathBuf) -> Result<Option<String>> {
    let mut text = String::new();
    use ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    let read = File::open(&path).and_then(|file| file.take(FILE_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(Some(text.trim().to_owned()).filter(|token| !token.is_empty())),
        // a home folder of another user, or of nobody, keeps no public model from being pulled
        Err(error) if matches!(error.kind(), NotFound | NotADirectory | PermissionDenied) => Ok(None),
        Err(error) => Err(Error::io(&path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    #[test]
    fn the_file_is_that_of_the_hubs_tools() {
        let with = |variables: &[(&str, &str)]| {
            file(|name| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into()))
        };
        let home = ("HOME", "/home/a");
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[home]).as_deref(), Some(Path::new("/home/a/.cache/huggingface/token")));
        let cache = ("XDG_CACHE_HOME", "/cache");
        assert_eq!(with(&[home, cache]).as_deref(), Some(Path::new("/cache/huggingface/token")));
        let hub = ("HF_HOME", "/hub");
        assert_eq!(with(&[home, cache, hub]).as_deref(), Some(Path::new("/hub/token")));
        let path = ("HF_TOKEN_PATH", "/secret");
        assert_eq!(with(&[home, cache, hub, path]).as_deref(), Some(Path::new("/secret")));
    }

    #[test]
    fn true_values_are_those_of_the_hubs_tools() {
        let known = |values: &[&str]| values.iter().map(|value| is_true(OsStr::new(value))).collect::<Vec<_>>();
        assert_eq!(known(&["1", "ON", "yes", "True"]), [true; 4]);
        assert_eq!(known(&["0", "off", "no", "2"]), [false; 4]);
    }

    #[test]
    fn a_file_has_one_token_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        assert_eq!(read(file.clone()).unwrap(), None);
        for (text, token) in [("hf_a\n", Some("hf_a")), (" \n", None)] {
            fs::write(&file, text).unwrap();
            assert_eq!(read(file.clone()).unwrap().as_deref(), token);
        }
        assert_eq!(read(file.join("below-a-file")).unwrap(), None);
        fs::write(&file, [0xff]).unwrap();
        assert!(read(file).unwrap_err().to_string().contains("token"));
    }
}
