//! Addresses of the server's ports. Without any address in the settings, all ports are open to this machine.

use super::{operations::OperationsArgs, transport::TransportArgs};
use crate::config::Checks;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

/// Default address for gRPC.
pub(super) const GRPC: SocketAddr = loopback(50051);
/// Default address for HTTP, if the settings have no address at all.
pub(super) const HTTP: SocketAddr = loopback(8000);
/// Default address of the admin port, if the settings have no address at all.
pub(super) const ADMIN: SocketAddr = loopback(9090);

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

/// Addresses to listen on.
pub(super) struct Listeners {
    pub(super) grpc: SocketAddr,
    pub(super) http: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
    /// True if the settings have no address.
    pub(super) are_default: bool,
}

impl Listeners {
    /// Parses the addresses. Without any, returns the defaults of all ports. The admin port has neither keys nor TLS, so it has no
    /// default address if the server `is_protected` by one of them.
    pub(super) fn parse(
        transport: &TransportArgs,
        operations: &OperationsArgs,
        is_protected: bool,
        checks: &mut Checks,
    ) -> Self {
        if [&transport.listen, &transport.http_listen, &operations.admin_listen].into_iter().all(Option::is_none) {
            let admin = if is_protected { None } else { Some(ADMIN) };
            return Self { grpc: GRPC, http: Some(HTTP), admin, are_default: true };
        }
        let mut parse = |flag, address: &Option<String>| address.as_ref().and_then(|text| checks.address(flag, text));
        let grpc = match &transport.listen {
            Some(_) => parse("--listen", &transport.listen),
            None => Some(GRPC),
        };
        let http = parse("--http-listen", &transport.http_listen);
        let admin = parse("--admin-listen", &operations.admin_listen);
        check_distinct(&[("--listen", grpc), ("--http-listen", http), ("--admin-listen", admin)], checks);
        // The default replaces only an invalid address, which the checks have recorded.
        Self { grpc: grpc.unwrap_or(GRPC), http, admin, are_default: false }
    }
}

/// Rejects listeners that share an address, unless the system chooses the port.
fn check_distinct(listeners: &[(&str, Option<SocketAddr>)], checks: &mut Checks) {
    for (index, (flag, address)) in listeners.iter().enumerate() {
        let Some(address) = address.filter(|address| address.port() != 0) else { continue };
        if let Some((other, _)) = listeners[..index].iter().find(|(_, other)| *other == Some(address)) {
            checks.reject(flag, &address.to_string(), format!("an address different from that of {other}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GRPC;
    use crate::cli::network::DEFAULT_ADDRESS;

    #[test]
    fn commands_call_the_default_server() {
        assert_eq!(GRPC.to_string(), DEFAULT_ADDRESS);
    }
}
