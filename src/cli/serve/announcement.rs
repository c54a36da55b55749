//! The last lines of a start: where the server is reached.

use crate::config::Announce;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Addresses of a server, and whether the first two use TLS.
pub(super) struct Addresses {
    pub(super) grpc: SocketAddr,
    pub(super) http: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
    pub(super) tls: bool,
}

impl Addresses {
    /// Prints one line for each port. A terminal makes the addresses clickable. A port that is off has the flag that opens it.
    pub(super) fn print(&self, log: Announce) {
        self.lines().iter().for_each(|line| log.print(format_args!("{line}")));
    }

    fn lines(&self) -> [String; 3] {
        let scheme = if self.tls { "https" } else { "http" };
        let http = self.http.map(|address| format!("{scheme}://{}/", reachable(address)));
        let metrics = self.admin.map(|address| format!("http://{}/metrics", reachable(address)));
        let off = |flag: &str, address: &str| format!("off; `{flag} {address}` turns it on");
        [
            format!("gRPC        {scheme}://{}", reachable(self.grpc)),
            format!("playground  {}", http.unwrap_or_else(|| off("--http-listen", "localhost:8000"))),
            format!("metrics     {}", metrics.unwrap_or_else(|| off("--admin-listen", "localhost:9090"))),
        ]
    }
}

/// Returns an address that a client on this machine can reach: loopback in place of all addresses.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_urls_that_a_browser_opens() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let all = Addresses {
            grpc: address("0.0.0.0:50051"),
            http: Some(address("[::]:8000")),
            admin: Some(address("192.0.2.1:9090")),
            tls: true,
        };
        let expected = [
            "gRPC        https://127.0.0.1:50051",
            "playground  https://[::1]:8000/",
            "metrics     http://192.0.2.1:9090/metrics",
        ];
        assert_eq!(all.lines(), expected);
        let one = Addresses { grpc: address("127.0.0.1:1"), http: None, admin: None, tls: false };
        let expected = [
            "gRPC        http://127.0.0.1:1",
            "playground  off; `--http-listen localhost:8000` turns it on",
            "metrics     off; `--admin-listen localhost:9090` turns it on",
        ];
        assert_eq!(one.lines(), expected);
    }
}
