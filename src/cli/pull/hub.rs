//! Repositories of the Hugging Face Hub, which serves each file at `ENDPOINT/ORG/NAME/resolve/REVISION/FILE`.
//!
//! The crate `hf-hub` is not used. Version 0.5 sends the user's token to the host that the Hub redirects to. It writes to the path
//! that a response's `etag` gives, even outside its cache. It stores more bytes than the server stated, without a limit, and
//! accepts fewer as a complete file. It trusts only authorities that are part of the program. Version 1.0 requires `hf-xet`, the
//! client of another protocol. Its feature for TLS depends on aws-lc, which the rules for dependencies exclude.

use super::{
    http::{HttpFolder, HubAccess, without_secrets},
    hub_token::HubToken,
};
use crate::error::{Error, Result, quoted};
use std::fmt;

/// The public Hub, unless `HF_ENDPOINT` names another.
const ENDPOINT: &str = "https://huggingface.co";
/// Revision if the argument has none.
const REVISION: &str = "main";

/// A repository at a revision.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Repository {
    org: String,
    name: String,
    revision: String,
}

/// Shows the repository as the argument of `weir pull` does.
impl fmt::Display for Repository {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { org, name, revision } = self;
        write!(out, "hf:{org}/{name}")?;
        if revision == REVISION { Ok(()) } else { write!(out, "@{revision}") }
    }
}

impl Repository {
    /// Parses `ORG/NAME[@REVISION]`. Fails if a part is missing or has other characters than the Hub allows.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let (repository, revision) = text.split_once('@').unwrap_or((text, REVISION));
        let plain = |part: &str, more: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c) || more.contains(c);
            !part.is_empty() && part.chars().all(allowed) && !part.contains("..") && !part.starts_with(['.', '/'])
        };
        match repository.split_once('/') {
            Some((org, name)) if plain(org, "") && plain(name, "") && plain(revision, "/") => {
                Ok(Self { org: org.into(), name: name.into(), revision: revision.into() })
            }
            _ => Err(Error::bad_option("SOURCE", quoted(&format!("hf:{text}")), "hf:ORG/NAME or hf:ORG/NAME@REVISION")),
        }
    }

    /// The last part of its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Opens the repository at the endpoint that the environment names. Fails if the endpoint is no URL or has a password, if the
    /// user's token cannot be read, or if TLS cannot be set up.
    pub(super) fn open(&self) -> Result<HttpFolder> {
        let endpoint = std::env::var_os("HF_ENDPOINT").and_then(|value| value.into_string().ok());
        let endpoint = endpoint.filter(|value| !value.is_empty()).unwrap_or_else(|| ENDPOINT.into());
        let revisions = self.revisions(&endpoint)?;
        let token = HubToken::of_user(&endpoint)?;
        let url = self.url(&revisions);
        HttpFolder::new(url, Some(HubAccess { repository: self.to_string(), revisions, token }))
    }

    /// The URL that is followed by a revision.
    fn revisions(&self, endpoint: &str) -> Result<String> {
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            let why = "expected a URL that begins with https:// or http://";
            return Err(Error::Setting(format!("HF_ENDPOINT: {why}, found {:?}", without_secrets(endpoint))));
        }
        if endpoint.contains(['@', '?', '#']) {
            let why = "expected a URL without a user, a password, a query and a fragment";
            return Err(Error::Setting(format!("HF_ENDPOINT: {why}, found {}", without_secrets(endpoint))));
        }
        let Self { org, name, .. } = self;
        Ok(format!("{}/{org}/{name}/resolve", endpoint.trim_end_matches('/')))
    }

    fn url(&self, revisions: &str) -> String {
        format!("{revisions}/{}", self.revision.replace('/', "%2F"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_become_urls() {
        let url = |text: &str| {
            let repository = Repository::parse(text).unwrap();
            repository.url(&repository.revisions("https://hub.example/").unwrap())
        };
        assert_eq!(url("org/name"), "https://hub.example/org/name/resolve/main");
        assert_eq!(url("o-1/n.2@refs/pr/3"), "https://hub.example/o-1/n.2/resolve/refs%2Fpr%2F3");
        for wrong in
            ["", "name", "/name", "org/", "a/b/c", "../b", "a/..", "a/b@", "a/b@../c", "a/b@/c", "a/b?c", "a b/c"]
        {
            let error = Repository::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("expected hf:ORG/NAME"), "{wrong}: {error}");
        }
        let refused = |endpoint: &str| Repository::parse("a/b").unwrap().revisions(endpoint).unwrap_err().to_string();
        assert!(refused("hub.example").contains("found \"hub.example\""));
        for secret in
            ["https://user:hidden@hub.example/x", "https://hub.example/?token=hidden", "user:hidden@hub.example"]
        {
            let error = refused(secret);
            assert!(error.starts_with("HF_ENDPOINT: expected a URL ") && !error.contains("hidden"), "{error}");
        }
    }
}
