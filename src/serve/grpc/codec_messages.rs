//! The messages of the service `Codec`, and where a call sends them.

use crate::{
    decode::codec::Totals,
    error::{Error, Result},
};
use std::time::Duration;
use tokio::{sync::mpsc::Sender, time::timeout};

/// The messages of a method.
pub(crate) trait Messages: Send + 'static {
    /// The message type of the request.
    type Request: Send + 'static;
    /// The message type of the response.
    type Response: Unpin + Send + 'static;

    /// Returns the bytes of a part after the options. Fails for any other part.
    fn bytes(request: Self::Request) -> Result<Vec<u8>>;

    /// Creates a message with output.
    fn output(bytes: Vec<u8>) -> Self::Response;

    /// Creates the last message.
    fn summary(totals: Totals) -> Self::Response;
}

/// Where a call sends its messages.
pub(super) struct Output<M: Messages> {
    pub(super) sender: Sender<M::Response>,
    /// How long a client may read nothing.
    pub(super) stall: Duration,
}

impl<M: Messages> Output<M> {
    /// Sends a message. Waits while the client is behind; fails with [`Error::Stalled`] if it reads nothing for too long.
    pub(super) async fn send(&self, message: M::Response) -> Result<()> {
        match timeout(self.stall, self.sender.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Error::Cancelled),
            Err(_) => Err(Error::Stalled { limit: self.stall }),
        }
    }
}
