//! Connections to a server in the same process.

use super::{
    connection::{Peer, ServerEndpoint},
    inference::InferenceClient,
};
use crate::serve::transport::listener::Accepted;
use hyper_util::rt::TokioIo;
use std::{
    io::{Error, ErrorKind},
    net::{Ipv4Addr, SocketAddr},
};
use tokio::{io::duplex, sync::mpsc};
use tonic::transport::{Endpoint, Uri};
use tower::service_fn;

/// Bytes of each direction's buffer.
const BUFFER_BYTES: usize = 64 << 10;

impl InferenceClient {
    /// Connects to the server whose listener receives `connections`. Connects at the first call, and reconnects at the first
    /// call after the connection has ended. Must run within a runtime.
    pub fn in_process(connections: mpsc::Sender<Accepted>) -> Self {
        let connector = service_fn(move |_: Uri| {
            let connections = connections.clone();
            async move {
                let (near, far) = duplex(BUFFER_BYTES);
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                let accepted = connections.send(Accepted { stream: Box::new(far), address }).await;
                accepted.map_err(|_| Error::from(ErrorKind::ConnectionRefused))?;
                Ok::<_, Error>(TokioIo::new(near))
            }
        });
        let channel = Endpoint::from_static("http://in-process").connect_with_connector_lazy(connector);
        let server = ServerEndpoint { address: "this process".into(), ..ServerEndpoint::default() };
        Self { channel, peer: Peer { server, has_key: false }, authorization: None }
    }
}
