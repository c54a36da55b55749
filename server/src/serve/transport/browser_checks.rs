//! Keeps web pages of other servers from using an HTTP port through their visitors' browsers.
//!
//! A page of another origin can send requests, and a page whose host name points at this server (DNS rebinding) can also read
//! the responses. A browser sends both names, in `Origin` and `Host`. Other clients send no `Origin`, and `Host` as they like.

use crate::{
    config::{Access, AllowedNames, CorsOrigins},
    engine::clock,
    error::quoted,
    serve::middleware::refusal_log::{Refusal as Denied, RefusalLog},
};
use axum::{
    Json,
    extract::Request,
    http::{
        HeaderMap, HeaderName, StatusCode, Uri,
        header::{HOST, ORIGIN},
        uri::Authority,
    },
    response::{IntoResponse, Response},
};
use serde_json::json;
use std::sync::Arc;
use tonic::Code;

/// The checks of one port.
#[derive(Debug, Clone)]
pub(crate) struct BrowserChecks {
    allowed: Arc<AllowedNames>,
    /// Origins whose pages may also read responses.
    cors: Arc<CorsOrigins>,
    /// The flags that list an origin.
    flags: &'static str,
    /// Limits the log lines about refused requests, which a peer without a key can cause at any rate.
    log: RefusalLog,
    /// False if a rebound name gains a page nothing: its requests lack the API key, or the certificate has another name.
    checks_host: bool,
}

impl BrowserChecks {
    /// The checks of a port without keys and encryption.
    pub(crate) fn of_open_port(allowed: Arc<AllowedNames>) -> Self {
        let log = RefusalLog::default();
        Self { allowed, cors: Arc::default(), flags: "--allowed-origins", log, checks_host: true }
    }

    /// The checks of a port with this access control.
    pub(crate) fn of_port(access: &Access) -> Self {
        let credentials = access.credentials.current();
        let checks_host = credentials.keys.is_none() && credentials.tls.is_none();
        let flags = "--allowed-origins or --cors-origin";
        let log = RefusalLog::default();
        Self { allowed: Arc::clone(&access.allowed), cors: Arc::clone(&access.cors), flags, log, checks_host }
    }

    /// Returns the request if its headers are accepted.
    pub(crate) fn check(&self, request: Request) -> Result<Request, Refusal> {
        match self.refusal(request.uri().authority(), request.headers()) {
            None => Ok(request),
            Some(message) => {
                // Each message begins with the name of a header.
                let field = message.split(':').next().map(str::to_owned);
                let rule = "BROWSER".to_owned();
                let kind = Denied { code: Code::PermissionDenied, rule, field, message: message.clone() };
                if let Some(unlogged) = self.log.count(&kind, clock::now()) {
                    tracing::info!(field = kind.field, reason = message, unlogged, "rejected");
                }
                Err(Refusal(message))
            }
        }
    }

    /// Returns why a request with these headers is refused, if it is. A complete URL in the first line (`target`) goes before `Host`
    /// (RFC 9112, section 3.2.2).
    fn refusal(&self, target: Option<&Authority>, headers: &HeaderMap) -> Option<String> {
        let host = match single(headers, &HOST) {
            Ok(host) => target.map(Authority::as_str).or(host),
            Err(message) => return Some(message),
        };
        let origin = match single(headers, &ORIGIN) {
            Ok(origin) => origin,
            Err(message) => return Some(message),
        };
        let authority = host.and_then(|host| host.parse::<Authority>().ok());
        let name = authority.as_ref().map(Authority::host).filter(|_| host.is_some_and(|host| !host.contains('@')));
        // Browsers always send a host.
        if let Some(host) =
            host.filter(|_| self.checks_host && !name.is_some_and(|name| self.allowed.allows_host(name)))
        {
            let host = quoted(host);
            return Some(format!(
                "host: expected a name of this server, found {host}; list the name in --allowed-hosts to allow it"
            ));
        }
        let is_listed = |origin: &str| self.allowed.lists_origin(origin) || self.cors.allows(origin);
        let origin = origin.filter(|origin| !is_listed(origin))?;
        if authority.is_some_and(|authority| is_same(origin, &authority)) {
            return None;
        }
        let origin = quoted(origin);
        let host = host.map_or_else(|| "nothing".to_owned(), quoted);
        let flags = self.flags;
        Some(format!(
            "origin: expected that of this server, whose host is {host}, found {origin}; list it in {flags} to allow it, or \
             make the proxy forward the client's Host header"
        ))
    }
}

/// Why a request is refused. The response has the form of OpenAI's errors on every port.
#[derive(Debug)]
pub(crate) struct Refusal(String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let error = json!({ "message": self.0, "type": "permission_error", "param": null, "code": "foreign_page" });
        (StatusCode::FORBIDDEN, Json(json!({ "error": error }))).into_response()
    }
}

/// Returns the value of a header that may occur once, if it is present. Fails if it is repeated or not visible ASCII.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, String> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(format!("{name}: expected one header, found several"));
    }
    first.map(|value| value.to_str().map_err(|_| format!("{name}: expected visible ASCII characters"))).transpose()
}

/// Returns true if an origin has this host and port. The scheme does not matter: a proxy may add the encryption.
fn is_same(origin: &str, authority: &Authority) -> bool {
    let Ok(origin) = origin.parse::<Uri>() else { return false };
    let default_port = match origin.scheme_str() {
        Some("http") => 80,
        Some("https") => 443,
        _ => return false,
    };
    let same_host = origin.host().is_some_and(|host| host.eq_ignore_ascii_case(authority.host()));
    same_host && origin.port_u16().unwrap_or(default_port) == authority.port_u16().unwrap_or(default_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(headers: &[(HeaderName, &str)]) -> bool {
        let checks = BrowserChecks::of_port(&Access::default());
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        checks.refusal(None, &headers).is_some()
    }

    #[test]
    fn the_url_of_the_request_goes_before_the_host() {
        let checks = BrowserChecks::of_port(&Access::default());
        let headers = [(HOST, "localhost".parse().unwrap())].into_iter().collect();
        for (target, allowed) in [("localhost:8000", true), ("evil.com", false), ("localhost@evil.com", false)] {
            let refusal = checks.refusal(Some(&target.parse().unwrap()), &headers);
            assert_eq!(refusal.is_none(), allowed, "{target}: {refusal:?}");
        }
    }

    #[test]
    fn an_origin_must_be_that_of_the_host() {
        for (origin, host, allowed) in [
            ("http://localhost:8000", "localhost:8000", true),
            ("https://LOCALHOST", "localhost", true),
            ("https://localhost", "localhost:443", true),
            ("http://[::1]:8000", "[::1]:8000", true),
            ("http://localhost:8001", "localhost:8000", false),
            ("http://localhost", "localhost:8000", false),
            ("http://127.0.0.1:8000", "localhost:8000", false),
            ("https://evil.com", "localhost:8000", false),
            ("https://localhost.evil.com", "localhost", false),
            ("http://user@localhost", "user@localhost", false),
            ("app://localhost", "localhost", false),
            ("null", "localhost:8000", false),
            ("", "localhost:8000", false),
        ] {
            assert_eq!(refused(&[(HOST, host), (ORIGIN, origin)]), !allowed, "{origin} of {host}");
        }
        assert!(!refused(&[]));
        assert!(refused(&[(ORIGIN, "http://localhost")]));
        assert!(refused(&[(HOST, "localhost"), (HOST, "localhost")]));
    }

    #[test]
    fn a_host_must_have_its_form() {
        for host in ["", "localhost@evil.com", "a b", "evil.com:8000"] {
            assert!(refused(&[(HOST, host)]), "{host}");
        }
    }
}
