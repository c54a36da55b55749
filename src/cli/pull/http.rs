//! A folder of a web server, over HTTP/1.1. TLS is rustls with ring and the system's certificate authorities.

use super::{
    files::{FileSource, Need, OpenFile},
    hub_token::HubToken,
};
use crate::error::{Error, Result, clip};
use std::{cell::OnceCell, path::PathBuf, sync::Arc, time::Duration};
use tokio_rustls::rustls::crypto::ring;
use ureq::{
    Agent, Body,
    config::RedirectAuthHeaders,
    http::{HeaderMap, Response, StatusCode},
    tls::{Certificate, RootCerts, TlsConfig, TlsProvider},
};

/// Maximum time to connect, and to begin a response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum silence within a response.
const SILENCE: Duration = Duration::from_secs(60);
/// Maximum redirects of one request. The Hub has one or two.
const REDIRECTS: u32 = 5;
/// Maximum bytes of a response's headers.
const HEADER_BYTES: usize = 64 << 10;
/// Header with the commit that the Hub resolved a revision to.
const COMMIT: &str = "x-repo-commit";
/// Header with the Hub's reason for an error.
const ERROR_CODE: &str = "x-error-code";

/// A folder of a web server.
pub(super) struct HttpFolder {
    agent: Agent,
    url: String,
    /// How the Hub serves the folder, if it does.
    hub: Option<HubAccess>,
    /// The commit of the first file, if the Hub serves it. The others are of the same one, even if the branch moves meanwhile.
    commit: OnceCell<String>,
}

/// How the Hub serves a folder.
pub(super) struct HubAccess {
    /// The repository, as the argument names it.
    pub(super) repository: String,
    /// The URL to which `/COMMIT` is appended.
    pub(super) revisions: String,
    pub(super) token: HubToken,
}

impl HttpFolder {
    /// Prepares requests to a folder. Fails if the machine has no certificate authorities for TLS.
    pub(super) fn new(url: String, hub: Option<HubAccess>) -> Result<Self> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(REDIRECTS)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
            .max_response_header_size(HEADER_BYTES)
            .timeout_connect(Some(ANSWER_TIMEOUT))
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .timeout_per_read(Some(SILENCE));
        if url.starts_with("https://") {
            // A redirect must not leave TLS.
            config = config.https_only(true).tls_config(tls()?);
        }
        Ok(Self { agent: config.build().new_agent(), url, hub, commit: OnceCell::new() })
    }

    fn file_url(&self, name: &str) -> String {
        match (self.commit.get(), &self.hub) {
            (Some(commit), Some(hub)) => format!("{}/{commit}/{name}", hub.revisions),
            _ => format!("{}/{name}", self.url),
        }
    }

    /// Keeps the commit that the Hub states, if it is one.
    fn note_commit(&self, headers: &HeaderMap) {
        let commit = headers.get(COMMIT).and_then(|commit| commit.to_str().ok());
        let is_hash = |commit: &&str| commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some(commit) = commit.filter(is_hash) {
            // Only the first one counts.
            let _ = self.commit.set(commit.to_owned());
        }
    }

    /// Returns the error for a response that is neither a file nor "not found". `None` for a missing file, which is not always an
    /// error.
    fn refused(&self, url: &str, response: &Response<Body>) -> Option<Error> {
        let status = response.status();
        let code = response.headers().get(ERROR_CODE).map_or(&b""[..], |code| code.as_bytes());
        match (&self.hub, status, code) {
            (Some(hub), _, b"RevisionNotFound") => {
                let HubAccess { repository, .. } = hub;
                let expected = "expected a revision of a repository of the Hugging Face Hub";
                Some(Error::Setting(format!("SOURCE: {expected}, found {repository}, which does not exist")))
            }
            (Some(hub), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) | (Some(hub), _, b"RepoNotFound") => {
                Some(hub.no_access(status))
            }
            (_, StatusCode::NOT_FOUND, _) => None,
            _ => {
                let url = clip(url, 500);
                Some(Error::Setting(format!("SOURCE: cannot fetch {url}: the server answered {status}")))
            }
        }
    }
}

impl HubAccess {
    /// Returns the error for a repository that the Hub does not show to this user.
    fn no_access(&self, status: StatusCode) -> Error {
        let advice = match self.token {
            HubToken::Sent(_) => "the token may lack access to it",
            HubToken::Unset => "if it is private, set HF_TOKEN to a token, or use `hf auth login`",
            HubToken::Unencrypted => "if it is private, it needs a token, which is not sent without TLS",
            HubToken::Forbidden => {
                "if it is private, it needs a token, which HF_HUB_DISABLE_IMPLICIT_TOKEN stops weir from sending"
            }
        };
        let expected = "expected a repository of the Hugging Face Hub";
        let found = format!("{}, which does not exist or is private", self.repository);
        Error::Setting(format!("SOURCE: {expected}, found {found} (the Hub answered {status}); {advice}"))
    }
}

impl FileSource for HttpFolder {
    fn open(&self, name: &str, need: Need) -> Result<Option<OpenFile>> {
        // Names come from files of others, and a URL gives some characters a meaning.
        if !name.split('/').all(is_plain) {
            let expected = "letters, digits, dots, hyphens and underscores";
            return Err(Error::checkpoint(&self.url, "the name of a file", expected, format!("{name:?}")));
        }
        let url = self.file_url(name);
        let mut request = self.agent.get(&url);
        if let Some(HubAccess { token: HubToken::Sent(token), .. }) = &self.hub {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = request.call().map_err(|error| unanswered(&url, &error.to_string()))?;
        let status = response.status();
        // Storage of objects answers so for a missing file, if the client may not list the others.
        let is_hidden = status == StatusCode::FORBIDDEN && need == Need::Optional;
        if is_hidden {
            return Ok(None);
        }
        if !status.is_success() {
            return self.refused(&url, &response).map_or(Ok(None), Err);
        }
        self.note_commit(response.headers());
        let body = response.into_body();
        Ok(Some(OpenFile { size: body.content_length(), bytes: Box::new(body.into_reader()) }))
    }

    fn place(&self, name: &str) -> PathBuf {
        self.file_url(name).into()
    }
}

/// Returns the error for a request without an answer, with the likely cause if the TLS library reports one.
fn unanswered(url: &str, error: &str) -> Error {
    let hint = match error {
        _ if error.contains("received corrupt message") => {
            "; the port does not use TLS; use http:// if you trust the network, or use a port with TLS"
        }
        _ if error.contains("invalid peer certificate") => {
            "; to trust the server's certificate authority, set SSL_CERT_FILE to a file with its certificate"
        }
        _ => "; is the address correct, and can this machine reach it?",
    };
    Error::Setting(format!("SOURCE: cannot fetch {}: {error}{hint}", clip(url, 500)))
}

/// Returns true if a URL can hold the name of a file or folder as it is.
fn is_plain(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !matches!(name, "" | "." | "..") && name.chars().all(allowed)
}

/// Shortens a URL to scheme and host, for messages: a password or a token may be in the rest.
pub(super) fn without_secrets(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let user = if host.len() < authority.len() { "…@" } else { "" };
    let more = if authority.len() < rest.len() { "/…" } else { "" };
    format!("{scheme}{user}{host}{more}")
}

/// TLS with ring, and the certificate authorities of the system or of the file in `SSL_CERT_FILE`.
fn tls() -> Result<TlsConfig> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        let fix = "install ca-certificates, or set SSL_CERT_FILE";
        return Err(Error::Setting(format!("https: this machine has no certificate authorities{why}; {fix}")));
    }
    let roots: Vec<_> = found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&roots))
        .build())
}
