//! The last lines of a start: where the server is reached.

use super::{
    listeners::{ADMIN, HTTP},
    ports::PortState,
};
use crate::config::Announce;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Addresses of a server, and whether the first two use TLS.
pub(super) struct Addresses {
    pub(super) grpc: SocketAddr,
    pub(super) http: PortState,
    pub(super) admin: PortState,
    pub(super) tls: bool,
}

impl Addresses {
    /// Prints one line for each port. A terminal makes the addresses clickable. A port that is off has the flag that opens it.
    pub(super) fn print(&self, log: Announce) {
        self.lines().iter().for_each(|line| log.print(format_args!("{line}")));
    }

    fn lines(&self) -> [String; 3] {
        let scheme = if self.tls { "https" } else { "http" };
        [
            format!("gRPC        {}", url(scheme, self.grpc, "")),
            format!("playground  {}", optional(&self.http, scheme, "/", "--http-listen", HTTP)),
            format!("metrics     {}", optional(&self.admin, "http", "/metrics", "--admin-listen", ADMIN)),
        ]
    }
}

fn optional(port: &PortState, scheme: &str, path: &str, flag: &str, default: SocketAddr) -> String {
    let usual = default.port();
    match port {
        PortState::Open(address) => url(scheme, *address, path),
        PortState::Unset => format!("off; `{flag} localhost:{usual}` turns it on"),
        PortState::Unprotected => {
            format!("off, because this port supports neither keys nor TLS; `{flag} localhost:{usual}` turns it on")
        }
        PortState::Failed(why) => format!("off: {why}; `{flag} localhost:0` selects a free port"),
    }
}

/// Returns a URL that works on this machine. An unspecified address becomes loopback, and the original follows the URL.
fn url(scheme: &str, address: SocketAddr, path: &str) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let reachable = SocketAddr::new(ip, address.port());
    let all = if reachable == address { String::new() } else { format!(" (listens on {address})") };
    format!("{scheme}://{reachable}{path}{all}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_urls_that_a_browser_opens() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let all = Addresses {
            grpc: address("0.0.0.0:50051"),
            http: PortState::Open(address("[::]:8000")),
            admin: PortState::Open(address("192.0.2.1:9090")),
            tls: true,
        };
        let expected = [
            "gRPC        https://127.0.0.1:50051 (listens on 0.0.0.0:50051)",
            "playground  https://[::1]:8000/ (listens on [::]:8000)",
            "metrics     http://192.0.2.1:9090/metrics",
        ];
        assert_eq!(all.lines(), expected);
    }

    #[test]
    fn lines_of_closed_ports_have_the_reason_and_the_flag() {
        let lines = |http: PortState, admin: PortState| {
            let grpc = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
            Addresses { grpc, http, admin, tls: false }.lines()
        };
        let expected = [
            "gRPC        http://127.0.0.1:1",
            "playground  off; `--http-listen localhost:8000` turns it on",
            "metrics     off; `--admin-listen localhost:9090` turns it on",
        ];
        assert_eq!(lines(PortState::Unset, PortState::Unset), expected);
        let expected = [
            "gRPC        http://127.0.0.1:1",
            "playground  off: another program uses 127.0.0.1:8000; `--http-listen localhost:0` selects a free port",
            "metrics     off, because this port supports neither keys nor TLS; `--admin-listen localhost:9090` turns it on",
        ];
        let taken = PortState::Failed("another program uses 127.0.0.1:8000".into());
        assert_eq!(lines(taken, PortState::Unprotected), expected);
    }
}
