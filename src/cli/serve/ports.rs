//! The server's ports: reserved before models load, opened when they are ready.

use crate::error::{Error, Result};
use std::{io, net::SocketAddr};
use tokio::net::{TcpListener, TcpSocket};

/// Maximum connections that wait for the server to accept them. The operating system may have a lower limit.
const BACKLOG: u32 = 4096;

/// A port that belongs to this process, on which it does not listen yet. The system refuses connections to it, so a client learns
/// at once that the server is not ready. In a backlog it would wait for minutes, and a TCP probe would count the server as ready.
pub(super) struct ReservedPort {
    flag: &'static str,
    address: SocketAddr,
    socket: TcpSocket,
}

impl ReservedPort {
    /// Reserves the address that `flag` gives. Fails if another program listens there. Must run within the runtime.
    pub(super) fn reserve(flag: &'static str, address: SocketAddr) -> Result<Self> {
        let bind = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // A restarted server may listen while connections of the earlier process end.
            #[cfg(unix)]
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            // The system has chosen the port if the address asks for port 0.
            let address = socket.local_addr()?;
            Ok(Self { flag, address, socket })
        };
        bind().map_err(|error| failed(flag, address, &error))
    }

    /// The address, with the real port.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens. Fails if another program that reserved the port at the same time listens already. Must run within the runtime.
    pub(super) fn listen(self) -> Result<TcpListener> {
        let Self { flag, address, socket } = self;
        socket.listen(BACKLOG).map_err(|error| failed(flag, address, &error))
    }
}

fn failed(flag: &str, address: SocketAddr, error: &io::Error) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => "; another program uses this port, and port 0 selects a free one",
        _ => "",
    };
    Error::Setting(format!("{flag} {address}: {error}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpStream};

    #[tokio::test]
    async fn a_reserved_port_refuses_clients_until_it_listens() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let reserved = ReservedPort::reserve("--listen", any).unwrap();
        let address = reserved.address();
        assert_ne!(address.port(), 0);
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let listener = reserved.listen().unwrap();
        assert_eq!(listener.local_addr().unwrap(), address);
        TcpStream::connect(address).unwrap();
        let error = ReservedPort::reserve("--http-listen", address).map(|port| port.address()).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("--http-listen {address}: ")) && error.contains("another program"),
            "{error}"
        );
    }
}
