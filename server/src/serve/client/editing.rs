//! Calls of a server's editing service, with the messages of `weir.v1`.

use super::inference::{InferenceClient, MESSAGE_BYTES, MessageStream};
use crate::error::Result;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use weir_proto::v1::editing_client::EditingClient;
pub use weir_proto::v1::{
    CompleteDocument, CompletionItem, DocumentApplied, DocumentCompletions, EditFailure, EditRequest, EditResponse,
    OpenDocument, SpliceDocument, StaleRequest, TextSplice, Until, document_closed::Reason as CloseReason,
    edit_request::Action as EditAction, edit_response::Event as EditEvent,
};

impl InferenceClient {
    /// Begins to edit a document. Sends the requests, and returns the responses.
    pub async fn edit(&self, requests: mpsc::Receiver<EditRequest>) -> Result<MessageStream<EditResponse>> {
        let mut client = EditingClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES);
        let request = self.request(ReceiverStream::new(requests));
        self.stream(client.edit(request).await).await
    }
}
