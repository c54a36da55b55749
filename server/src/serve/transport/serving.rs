//! The loop that serves connections after their handshake, for every protocol.

use super::{
    connections::Connection,
    lifetime::{HyperConnection, LifetimeLimits},
};
use crate::config::TransportConfig;
use tokio::task::JoinSet;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;

/// Serves connections until `closing` is cancelled, and then until the last one has its responses. `start` starts hyper's
/// connection.
pub(crate) async fn serve_connections(
    mut incoming: impl Stream<Item = Connection> + Unpin,
    config: &TransportConfig,
    closing: CancellationToken,
    start: impl Fn(Connection) -> HyperConnection,
) {
    let limits = LifetimeLimits::from(config);
    let mut connections = JoinSet::new();
    loop {
        let connection = tokio::select! {
            biased;
            () = closing.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            connection = incoming.next() => connection,
        };
        let Some(connection) = connection else { break };
        let open = connection.open.clone();
        let running = open.run(start(connection), limits, closing.clone());
        connections.spawn(async move {
            if let Err(error) = running.await {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
    // Closes the listener.
    drop(incoming);
    while connections.join_next().await.is_some() {}
}
