//! The messages of the service `Codec`.

use crate::{decode::codec::Totals, error::Result};

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
