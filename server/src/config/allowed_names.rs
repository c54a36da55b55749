//! The host names and origins that HTTP requests may carry, in addition to those that no public web page can have.
//!
//! A browser lets any page send requests to any address, and lets a page read responses from its own host name. A page can also
//! point its host name at the server's address (DNS rebinding). The server therefore checks both headers.

use super::checks::Checks;
use std::{net::IpAddr, str::FromStr};

/// Last labels of names that nobody can register publicly: reserved by RFC 6761, 6762, 8375 and ICANN, or used by Kubernetes.
const PRIVATE_SUFFIXES: [&str; 6] = ["localhost", "local", "internal", "test", "home.arpa", "svc"];

/// Host names and origins that HTTP requests may carry, as the operator lists them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedNames {
    /// Host names without a port, in lower case.
    hosts: Vec<String>,
    /// Origins such as `https://weir.example.com`, in lower case.
    origins: Vec<String>,
}

impl AllowedNames {
    /// Returns true if a request may address the server by this host name or address, given without a port.
    pub fn allows_host(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&host);
        IpAddr::from_str(address).is_ok() || is_private(&host) || self.hosts.contains(&host)
    }

    /// Returns true if the operator lists this origin.
    pub fn lists_origin(&self, origin: &str) -> bool {
        self.origins.iter().any(|listed| listed.eq_ignore_ascii_case(origin))
    }
}

/// Returns true for names that public DNS cannot have: names of one label, and those under a private suffix.
fn is_private(host: &str) -> bool {
    let under = |suffix: &&str| host.strip_suffix(*suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    !host.contains('.') || PRIVATE_SUFFIXES.iter().any(under)
}

impl Checks {
    /// Checks the values of `--allowed-hosts` and `--allowed-origins`.
    pub fn allowed_names(&mut self, hosts: &[String], origins: &[String]) -> AllowedNames {
        for host in hosts.iter().filter(|host| !is_host(host)) {
            self.reject("--allowed-hosts", host, "a host name without scheme and port, such as weir.example.com");
        }
        for origin in origins.iter().filter(|origin| !is_origin(origin)) {
            self.reject("--allowed-origins", origin, "an origin without a path, such as https://weir.example.com");
        }
        let lower_case = |names: &[String]| names.iter().map(|name| name.to_ascii_lowercase()).collect();
        AllowedNames { hosts: lower_case(hosts), origins: lower_case(origins) }
    }
}

fn is_host(host: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !host.is_empty() && !host.ends_with('.') && host.bytes().all(allowed)
}

/// Returns true if a text has the form of an origin: a scheme and an authority, without the default port of the scheme.
pub(super) fn is_origin(origin: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let visible = authority.bytes().all(|byte| byte.is_ascii_graphic() && !b"/*?#@\\".contains(&byte));
    // Browsers leave it out, so an origin with it never matches.
    let has_default_port = match scheme {
        "http" => authority.ends_with(":80"),
        "https" => authority.ends_with(":443"),
        _ => false,
    };
    !scheme.is_empty() && !authority.is_empty() && visible && !has_default_port
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(hosts: &[&str], origins: &[&str]) -> Result<AllowedNames, String> {
        let texts = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>();
        let mut checks = Checks::default();
        let names = checks.allowed_names(&texts(hosts), &texts(origins));
        checks.finish().map(|()| names).map_err(|error| error.to_string())
    }

    #[test]
    fn only_names_that_no_public_page_has_are_allowed_without_a_list() {
        let names = AllowedNames::default();
        for host in ["127.0.0.1", "[::1]", "localhost", "LOCALHOST.", "weir", "a.localhost", "weir.team.svc", "x.local"]
        {
            assert!(names.allows_host(host), "{host}");
        }
        for host in
            ["evil.example.com", "127.0.0.1.nip.io", "localhost.evil.com", "evillocal.com", "a.notlocal", "xlocal.x"]
        {
            assert!(!names.allows_host(host), "{host}");
        }
        let names = allowed(&["Weir.example.com"], &["https://App.example.com"]).unwrap();
        assert!(names.allows_host("weir.EXAMPLE.com") && !names.allows_host("a.weir.example.com"));
        assert!(names.lists_origin("https://app.example.com") && !names.lists_origin("http://app.example.com"));
    }

    #[test]
    fn names_have_their_form() {
        for host in ["", "https://weir", "weir:8000", "we ir", "weir."] {
            assert!(allowed(&[host], &[]).unwrap_err().contains("--allowed-hosts"), "{host}");
        }
        for origin in [
            "",
            "null",
            "weir.example.com",
            "https://weir.example.com/",
            "https://",
            "://x",
            "https://*.x.com",
            "https://x:443",
            "http://x:80",
            "https://x?y",
        ] {
            assert!(allowed(&[], &[origin]).unwrap_err().contains("--allowed-origins"), "{origin}");
        }
        allowed(&["a", "b.example"], &["http://a:8000", "app://b"]).unwrap();
    }
}
