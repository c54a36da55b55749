//! A folder of a web server, over HTTP/1.1. TLS is rustls with ring and the system's certificate authorities.

use super::files::{FileSource, OpenFile};
use crate::error::{Error, Result, clip};
use std::{
    cell::OnceCell,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio_rustls::rustls::crypto::ring;
use ureq::{
    Agent,
    config::RedirectAuthHeaders,
    http::{HeaderMap, StatusCode},
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

/// A folder of a web server.
pub(super) struct HttpFolder {
    agent: Agent,
    url: String,
    token: Option<String>,
    /// The commit of the first file. The others are of the same one, even if the branch moves meanwhile.
    commit: OnceCell<String>,
}

impl HttpFolder {
    /// Prepares requests to a folder, with a bearer token if there is one. After a redirect to another host the token is not sent.
    /// Fails if the machine has no certificate authorities for TLS.
    pub(super) fn new(url: String, token: Option<String>) -> Result<Self> {
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
        Ok(Self { agent: config.build().new_agent(), url, token, commit: OnceCell::new() })
    }

    fn file_url(&self, name: &str) -> String {
        match (self.commit.get(), self.url.rsplit_once("/resolve/")) {
            (Some(commit), Some((repository, _))) => format!("{repository}/resolve/{commit}/{name}"),
            _ => format!("{}/{name}", self.url),
        }
    }

    /// Keeps the commit that the server states, if it is one.
    fn note_commit(&self, headers: &HeaderMap) {
        let commit = headers.get(COMMIT).and_then(|commit| commit.to_str().ok());
        let is_hash = |commit: &&str| commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some(commit) = commit.filter(is_hash) {
            // Only the first one counts.
            let _ = self.commit.set(commit.to_owned());
        }
    }
}

impl FileSource for HttpFolder {
    fn open(&self, name: &str) -> Result<Option<OpenFile>> {
        let url = self.file_url(name);
        let mut request = self.agent.get(&url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = request.call().map_err(|error| Error::io(Path::new(&url))(io::Error::other(error)))?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        if !status.is_success() {
            return Err(refused(&url, status, self.token.is_some()));
        }
        self.note_commit(response.headers());
        let body = response.into_body();
        Ok(Some(OpenFile { size: body.content_length(), bytes: Box::new(body.into_reader()) }))
    }

    fn place(&self, name: &str) -> PathBuf {
        self.file_url(name).into()
    }
}

/// The error for a response that is neither a file nor "not found".
fn refused(url: &str, status: StatusCode, with_token: bool) -> Error {
    let hint = match (status, with_token) {
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, false) => {
            "; there may be no such repository, or it may need a token in HF_TOKEN"
        }
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, true) => "; the token may lack access to this repository",
        _ => "",
    };
    Error::Setting(format!("{}: the server answered {status}{hint}", clip(url, 500)))
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
