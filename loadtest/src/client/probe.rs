//! What answers at an address that did not answer as a gRPC server: found out by asking it in HTTP/1.
//!
//! A server of HTTP/1 answers in that; one of TLS with an alert; one of HTTP/2 with its settings.

use super::connection::ConnectOptions;
use crate::error::Error;
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// How long each of connecting, asking and answering may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// What is asked.
const ASKED: &[u8] = b"GET / HTTP/1.1\r\nhost: weir-loadtest\r\nconnection: close\r\n\r\n";
/// Bytes of the answer that tell it.
const TELLING: usize = 5;

/// What there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// Nobody listens.
    Nothing,
    /// Somebody listens, and does not answer.
    Silence,
    Http1,
    Tls,
    /// HTTP/2, or something unknown.
    Other,
}

impl ConnectOptions {
    /// The same error, with what answers at the address and what to do, where that is why there was no connection, or no answer.
    pub async fn explained(&self, error: Error) -> Error {
        let Error::Remote { server, answer } = error else { return error };
        let (host, encrypted) = self.host();
        let why = match (speaks(&host).await, encrypted) {
            (Protocol::Nothing, _) => {
                "nothing is to be reached there: is the server started, and the address right? --wait gives it time to start"
            }
            (Protocol::Silence, _) => {
                "what listens there takes connections and says nothing: is it the server's address?"
            }
            (Protocol::Http1, false) => {
                "the port speaks HTTP/1, as that for administration (--admin-listen) and that for HTTP (--http-listen) do: give the \
                 address of gRPC (--listen of `weir serve`)"
            }
            // proxies that speak TLS say in HTTP/1 that they do
            (Protocol::Http1, true) => {
                "the port answers in HTTP/1: is it one of gRPC, and one of TLS? If not of TLS, leave out https://"
            }
            (Protocol::Other, true) => "the port speaks no TLS: leave out https://",
            (Protocol::Tls, false) => "the port expects TLS: give https:// and --tls-ca",
            (Protocol::Tls, true) | (Protocol::Other, false) => return Error::Remote { server, answer },
        };
        Error::Remote { server, answer: format!("{why} ({answer})") }
    }

    /// Host and port, and whether it is spoken to with TLS.
    fn host(&self) -> (String, bool) {
        let (scheme, rest) = self.address.split_once("://").unwrap_or(("http", &self.address));
        let encrypted = scheme == "https";
        let host = rest.split('/').next().unwrap_or(rest);
        let has_port = host.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok());
        let port = if encrypted { 443 } else { 80 };
        (if has_port { host.to_owned() } else { format!("{host}:{port}") }, encrypted)
    }
}

async fn speaks(host: &str) -> Protocol {
    let Ok(Ok(mut stream)) = timeout(PATIENCE, TcpStream::connect(host)).await else { return Protocol::Nothing };
    let mut answer = [0; TELLING];
    let read = async {
        stream.write_all(ASKED).await?;
        stream.read_exact(&mut answer).await
    };
    match timeout(PATIENCE, read).await {
        Ok(Ok(_)) => {}
        Ok(Err(_)) | Err(_) => return Protocol::Silence,
    }
    match answer {
        [b'H', b'T', b'T', b'P', b'/'] => Protocol::Http1,
        // an alert, of any version
        [21, 3, ..] => Protocol::Tls,
        _ => Protocol::Other,
    }
}
