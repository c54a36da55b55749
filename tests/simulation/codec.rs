//! Texts that go through the service `Codec` and come back.

use crate::{
    client::{Client, End},
    plan::{CallPlan, Reading},
};
use tokio::time::sleep;
use tonic::Status;
use weir_proto::v1::{
    CodecSummary, CompressOptions, CompressRequest, CompressResponse, DecompressOptions, DecompressRequest,
    DecompressResponse, codec_client::CodecClient, compress_request, compress_response, decompress_request,
    decompress_response,
};

/// Bytes of a message of a request.
const PIECE: usize = 7;

/// An event of a response: a part of the output, or the summary at its end.
enum Event {
    Output(Vec<u8>),
    Summary(CodecSummary),
}

impl From<CompressResponse> for Event {
    fn from(message: CompressResponse) -> Self {
        match message.event.expect("an event") {
            compress_response::Event::Data(data) => Self::Output(data),
            compress_response::Event::Summary(summary) => Self::Summary(summary),
        }
    }
}

impl From<DecompressResponse> for Event {
    fn from(message: DecompressResponse) -> Self {
        match message.event.expect("an event") {
            decompress_response::Event::Text(text) => Self::Output(text),
            decompress_response::Event::Summary(summary) => Self::Summary(summary),
        }
    }
}

impl Client {
    /// Compresses the prompt in blocks of the planned length, decompresses the data, and checks the text.
    pub(crate) async fn round_trip(&self, plan: &CallPlan, name: &str) -> Result<End, Status> {
        let options = CompressOptions {
            block_chars: Some(plan.count as u32),
            priority: Some(plan.priority),
            ..Default::default()
        };
        let text = plan.prompt.as_bytes().chunks(PIECE).map(|piece| compress_request::Part::Text(piece.to_vec()));
        let parts: Vec<_> = [compress_request::Part::Options(options)].into_iter().chain(text).collect();
        let parts = parts.into_iter().map(|part| CompressRequest { part: Some(part) });
        let mut client = CodecClient::new(self.channel.clone());
        let call = client.compress(self.request(plan, name, tokio_stream::iter(parts)));
        let Some(data) = self.output(plan, name, call.await?.into_inner()).await? else { return Ok(End::Cancelled) };
        let options = DecompressOptions { priority: Some(plan.priority), ..Default::default() };
        let pieces = data.chunks(PIECE).map(|piece| decompress_request::Part::Data(piece.to_vec()));
        let parts: Vec<_> = [decompress_request::Part::Options(options)].into_iter().chain(pieces).collect();
        let parts = parts.into_iter().map(|part| DecompressRequest { part: Some(part) });
        let call = client.decompress(self.request(plan, name, tokio_stream::iter(parts)));
        let Some(text) = self.output(plan, name, call.await?.into_inner()).await? else { return Ok(End::Cancelled) };
        if text != plan.prompt.as_bytes() {
            self.world.log.violation(format_args!("{name}: {:?} comes back", String::from_utf8_lossy(&text)));
        }
        Ok(End::Complete)
    }

    /// Reads a response to its end as the plan says. Returns its output, or `None` if the client cancels the call.
    async fn output(
        &self,
        plan: &CallPlan,
        name: &str,
        mut messages: tonic::Streaming<impl Into<Event> + 'static>,
    ) -> Result<Option<Vec<u8>>, Status> {
        let mut output = Vec::new();
        let mut summary = None;
        for number in 0.. {
            match plan.reading {
                Reading::Slow(pause) => sleep(pause).await,
                Reading::Late(pause) if number == 0 => sleep(pause).await,
                Reading::Cancel(messages) if number >= messages => return Ok(None),
                _ => {}
            }
            match messages.message().await?.map(Into::into) {
                Some(Event::Output(more)) if summary.is_none() => output.extend(more),
                Some(Event::Summary(found)) if summary.is_none() => summary = Some(found),
                Some(_) => self.world.log.violation(format_args!("{name}: a message follows the summary")),
                None => break,
            }
        }
        if summary.map(|summary| summary.chars) != Some(plan.prompt.len() as u64) {
            self.world.log.violation(format_args!("{name}: the stream ends with {summary:?}"));
        }
        Ok(Some(output))
    }
}
