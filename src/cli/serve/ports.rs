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
    /// Reserves the address that `flag` gives. Fails if another program uses it. Must run within the runtime.
    pub(super) fn reserve(flag: &'static str, address: SocketAddr) -> Result<Self, PortError> {
        Self::bind(flag, address).map_err(|error| PortError { flag, address, error })
    }

    fn bind(flag: &'static str, address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A restarted server may listen while connections of the earlier process end.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        // Until it listens, no other program may take the port.
        #[cfg(unix)]
        socket.set_reuseaddr(false)?;
        // The system has chosen the port if the address asks for port 0.
        let address = socket.local_addr()?;
        Ok(Self { flag, address, socket })
    }

    /// The address, with the real port.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens. Must run within the runtime.
    pub(super) fn listen(self) -> Result<TcpListener, PortError> {
        let Self { flag, address, socket } = self;
        // The connections of an earlier process would prevent it.
        #[cfg(unix)]
        let socket = socket.set_reuseaddr(true).map(|()| socket);
        #[cfg(not(unix))]
        let socket = Ok(socket);
        let listener = socket.and_then(|socket| socket.listen(BACKLOG));
        listener.map_err(|error| PortError { flag, address, error })
    }
}

/// A port that cannot be opened.
#[derive(Debug)]
pub(super) struct PortError {
    flag: &'static str,
    address: SocketAddr,
    error: io::Error,
}

impl From<PortError> for Error {
    fn from(PortError { flag, address, error }: PortError) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "; another program, perhaps another weir server, uses this port, and port 0 selects a free one"
            }
            _ => "",
        };
        Self::Setting(format!("{flag}: cannot listen on {address}: {error}{hint}"))
    }
}

/// State of an optional port.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PortState {
    /// Open at this address.
    Open(SocketAddr),
    /// The settings have addresses, but none for this port.
    Unset,
    /// The settings have no address. The server has API keys or TLS, which this port lacks, so the port has no default address.
    Unprotected,
    /// The server cannot open the port's default address, for this reason.
    Failed(String),
}

/// A port that the server can run without.
pub(super) struct OptionalPort {
    /// True if the settings have no address.
    is_default: bool,
    port: Result<ReservedPort, PortState>,
}

impl OptionalPort {
    /// Reserves an address. Fails as [`ReservedPort::reserve`] does, but if the address is the default one, the port stays closed
    /// instead. Must run within the runtime.
    pub(super) fn reserve(flag: &'static str, address: Option<SocketAddr>, is_default: bool) -> Result<Self> {
        let port = match address {
            None if is_default => Err(PortState::Unprotected),
            None => Err(PortState::Unset),
            Some(address) => match ReservedPort::reserve(flag, address) {
                Ok(port) => Ok(port),
                Err(error) if is_default => Err(error.into()),
                Err(error) => return Err(error.into()),
            },
        };
        Ok(Self { is_default, port })
    }

    /// Listens, if the port is reserved. Fails as [`ReservedPort::listen`] does, unless the address is the default one. Must run
    /// within the runtime.
    pub(super) fn listen(self) -> Result<(PortState, Option<TcpListener>)> {
        let port = match self.port {
            Ok(port) => port,
            Err(state) => return Ok((state, None)),
        };
        let address = port.address;
        match port.listen() {
            Ok(listener) => Ok((PortState::Open(address), Some(listener))),
            Err(error) if self.is_default => Ok((error.into(), None)),
            Err(error) => Err(error.into()),
        }
    }
}

impl From<PortError> for PortState {
    fn from(PortError { address, error, .. }: PortError) -> Self {
        Self::Failed(match error.kind() {
            io::ErrorKind::AddrInUse => format!("another program uses {address}"),
            _ => format!("{address}: {error}"),
        })
    }
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
        assert!(ReservedPort::reserve("--listen", address).is_err(), "two programs reserve one port");
        let listener = reserved.listen().unwrap();
        assert_eq!(listener.local_addr().unwrap(), address);
        TcpStream::connect(address).unwrap();
        let error = ReservedPort::reserve("--http-listen", address).map(|port| port.address()).unwrap_err();
        let error = Error::from(error).to_string();
        assert!(
            error.starts_with(&format!("--http-listen: cannot listen on {address}: "))
                && error.contains("another program"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn only_a_default_address_may_be_taken() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let other = std::net::TcpListener::bind(any).unwrap();
        let taken = other.local_addr().unwrap();
        assert!(OptionalPort::reserve("--http-listen", Some(taken), false).is_err());
        let (state, listener) = OptionalPort::reserve("--http-listen", Some(taken), true).unwrap().listen().unwrap();
        assert!(listener.is_none());
        assert_eq!(state, PortState::Failed(format!("another program uses {taken}")));

        let (state, listener) = OptionalPort::reserve("--http-listen", Some(any), true).unwrap().listen().unwrap();
        assert_eq!(state, PortState::Open(listener.unwrap().local_addr().unwrap()));
        for (is_default, expected) in [(true, PortState::Unprotected), (false, PortState::Unset)] {
            let (state, listener) =
                OptionalPort::reserve("--admin-listen", None, is_default).unwrap().listen().unwrap();
            assert!(listener.is_none());
            assert_eq!(state, expected);
        }
    }

    /// Two programs can reserve an address, and one of them listens first.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn only_a_default_address_may_be_reserved_by_another_program() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let first = ReservedPort::reserve("--http-listen", any).unwrap();
        let address = first.address();
        assert!(OptionalPort::reserve("--http-listen", Some(address), false).is_err());
        let (state, listener) = OptionalPort::reserve("--http-listen", Some(address), true).unwrap().listen().unwrap();
        assert!(listener.is_none());
        assert_eq!(state, PortState::Failed(format!("another program uses {address}")));
        first.listen().unwrap();
    }
}
