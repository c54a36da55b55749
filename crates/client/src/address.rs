//! Reads the addresses of gRPC servers that users type.

use tonic::transport::Uri;
use weir_kernels::error::quoted;

/// Where to find a server, in the words of messages.
const FORM: &str = "host:port or a URL, such as 127.0.0.1:50051";

/// Start of an address that TLS protects.
const ENCRYPTED: &str = "https://";

/// Reads an address: `host:port`, `:port` of this machine, or a URL that begins with `http://` or `https://`. Returns `host:port` or
/// the URL. A URL without a port has its scheme's.
///
/// # Errors
/// States what was expected and what was found. HTTP libraries would use port 80 for an address whose port is missing or wrong, and
/// would ignore a path.
pub fn parse(text: &str) -> Result<String, String> {
    let wrong = |expected: &str| Err(format!("expected {expected}, found {}", quoted(text)));
    if text.contains('@') {
        // It may have a password, which no message repeats.
        return Err("expected an address without a user and a password, found one with \"@\"".to_owned());
    }
    let (scheme, rest) = match text.split_once("://") {
        None => ("", text),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => ("http://", rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (ENCRYPTED, rest),
        Some(_) => return wrong("host:port, or a URL that begins with http:// or https://"),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (host, port) = match authority.rsplit_once(':') {
        // Colons within an IPv6 address do not begin a port.
        Some((host, port)) if !authority.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return wrong("an IPv6 address in brackets, such as [::1]:50051");
    }
    match port {
        Some(port) if is_port(port) => {}
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) && !port.is_empty() => {
            return wrong("a port from 1 to 65535");
        }
        None if !scheme.is_empty() && !host.is_empty() => {}
        _ => return wrong(FORM),
    }
    if !matches!(path, "" | "/") {
        return wrong("an address without a path, because gRPC calls have paths of their own");
    }
    let host = match (scheme, host) {
        ("", "") => "127.0.0.1",
        (_, "") => return wrong(FORM),
        (_, host) => host,
    };
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    let address = format!("{scheme}{host}{port}");
    if url(&address).parse::<Uri>().is_err() {
        return wrong(FORM);
    }
    Ok(address)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Returns the URL of an address, which is `host:port` or a URL.
pub(crate) fn url(address: &str) -> String {
    if address.contains("://") { address.to_owned() } else { format!("http://{address}") }
}

/// Returns true if TLS protects connections to an address.
pub fn is_encrypted(address: &str) -> bool {
    address.starts_with(ENCRYPTED)
}

/// Returns host and port of an address. A URL without a port has its scheme's.
pub(crate) fn host_and_port(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("http", address));
    let host = rest.split('/').next().unwrap_or(rest);
    let has_port = host.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok());
    let port = if scheme == "https" { 443 } else { 80 };
    if has_port && !host.ends_with(']') { host.to_owned() } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_urls() {
        let read = |address: &str| parse(address).map(|address| url(&address));
        for address in ["127.0.0.1:50051", "[::1]:50051", "name:80"] {
            assert_eq!(read(address), Ok(format!("http://{address}")));
        }
        for address in ["https://weir.example.org", "http://localhost:1", "http://[::1]", "https://[fe80::1]:65535"] {
            assert_eq!(read(address).as_deref(), Ok(address));
            assert_eq!(read(&format!("{address}/")).as_deref(), Ok(address));
        }
        assert_eq!(parse("HTTPS://h:1").as_deref(), Ok("https://h:1"));
        assert_eq!(parse("Http://h").as_deref(), Ok("http://h"));
        assert_eq!(parse(":50051").as_deref(), Ok("127.0.0.1:50051"));
        assert!(is_encrypted("https://h") && !is_encrypted("http://h") && !is_encrypted("h:1"));
    }

    #[test]
    fn hosts_have_ports() {
        let addresses = ["https://name", "http://name/", "https://name:7", "name:7", "http://[::1]"];
        let hosts = addresses.map(host_and_port);
        assert_eq!(hosts, ["name:443", "name:80", "name:7", "name:7", "[::1]:80"]);
    }
}
