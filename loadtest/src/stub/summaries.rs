//! Summarization with scripted delays. The upload takes as long as the client takes, encoding as long as the script says.

use super::server::{Script, Stub, WAITING};
use crate::units::ns;
use std::{pin::Pin, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};
use weir_proto::v1::{
    EncoderLayer, SummarizeOptions, SummarizeRequest, SummarizeResponse, SummaryFinished, SummaryPiece, SummaryStarted,
    SummaryTiming, SummaryUsage, summarization_server, summarize_request::Part, summarize_response::Event,
};

/// Bytes of keys and values per token.
const BYTES_PER_TOKEN: u64 = 64;

struct StubSummarization {
    script: Script,
    options: SummarizeOptions,
    /// Characters of the document, each of which counts as a token.
    tokens: u64,
    upload: Duration,
    out: mpsc::Sender<Result<SummarizeResponse, Status>>,
}

impl StubSummarization {
    /// Answers the request; ends early if the client is gone.
    async fn run(self) -> Option<()> {
        let uploaded = Instant::now();
        self.send(Event::Started(SummaryStarted { model: self.script.name.clone(), ..Default::default() })).await?;
        sleep(self.script.first).await;
        let encoded = Instant::now();
        let count = u64::from(self.options.max_tokens());
        for number in 0..count {
            if number > 0 {
                sleep(self.script.plain).await;
            }
            self.send(Event::Piece(SummaryPiece { text: "x".into() })).await?;
        }
        self.send(Event::Finished(self.finished(uploaded, encoded, count))).await
    }

    fn finished(&self, uploaded: Instant, encoded: Instant, tokens: u64) -> SummaryFinished {
        let first = ns(self.script.first);
        let decode = ns(encoded.elapsed());
        let vectors = self.tokens.checked_div(self.script.segment).unwrap_or(self.tokens);
        let usage = SummaryUsage {
            document_tokens: self.tokens,
            summary_tokens: tokens,
            vectors,
            cross_attention_bytes: vectors * BYTES_PER_TOKEN,
            unpooled_cross_attention_bytes: self.tokens * BYTES_PER_TOKEN,
            ..Default::default()
        };
        let timing = SummaryTiming {
            upload_ns: ns(self.upload),
            encode_rest_ns: first,
            layers: vec![EncoderLayer { length: self.tokens, ns: first - first / 4 }],
            memory_ns: first / 4,
            time_to_first_token_ns: first,
            decode_ns: decode,
            decode_ns_per_token: decode.checked_div(tokens.saturating_sub(1)),
            total_ns: ns(uploaded.elapsed()),
            encode_ns: first,
            kept_share: (self.tokens > 0).then(|| vectors as f64 / self.tokens as f64),
            cross_attention_bytes: usage.cross_attention_bytes,
            unpooled_cross_attention_bytes: usage.unpooled_cross_attention_bytes,
            ..Default::default()
        };
        SummaryFinished { usage: Some(usage), timing: Some(timing), ..Default::default() }
    }

    async fn send(&self, event: Event) -> Option<()> {
        self.out.send(Ok(SummarizeResponse { event: Some(event) })).await.ok()
    }
}

#[tonic::async_trait]
impl summarization_server::Summarization for Stub {
    type SummarizeStream = Pin<Box<dyn Stream<Item = Result<SummarizeResponse, Status>> + Send>>;

    async fn summarize(
        &self,
        request: Request<Streaming<SummarizeRequest>>,
    ) -> Result<Response<Self::SummarizeStream>, Status> {
        let arrived = Instant::now();
        let mut parts = request.into_inner();
        let Some(Part::Options(options)) = parts.message().await?.and_then(|message| message.part) else {
            return Err(Status::invalid_argument("the first message has no options"));
        };
        let (script, _) = self.model(options.model())?.clone();
        let mut tokens = 0;
        while let Some(message) = parts.next().await {
            if let Some(Part::Chunk(chunk)) = message?.part {
                tokens += chunk.text.chars().count() as u64;
            }
        }
        let (out, responses) = mpsc::channel(WAITING);
        tokio::spawn(StubSummarization { script, options, tokens, upload: arrived.elapsed(), out }.run());
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }
}
