//! `Summarization` over gRPC.

mod documents;
mod failures;
mod parts;
mod t5;

use super::{Running, eventually};
use crate::document_model::{DocumentModel, MARKS, logits};
use std::sync::Arc;
use tonic::{IntoStreamingRequest, Status, Streaming, transport::Channel};
use weir::{
    config::TransportConfig,
    decode::{
        beam::{BeamSearch, RowMove, SearchStep},
        contract::Model,
        summary::Summarize,
    },
    engine::{Handle, Limits},
};
use weir_proto::v1::{
    self, DocumentChunk, SummarizeOptions, SummarizeRequest, SummarizeResponse,
    summarization_client::SummarizationClient, summarize_request::Part, summarize_response::Event,
};

struct Server {
    model: Arc<DocumentModel>,
    engine: Handle,
    running: Running,
}

impl Server {
    async fn new() -> Self {
        let limits = Limits { document_bytes: 1 << 20, ..Limits::default() };
        Self::with(limits, TransportConfig::default()).await
    }

    async fn with(limits: Limits, config: TransportConfig) -> Self {
        let model = DocumentModel::new();
        let engine = Handle::start(Arc::clone(&model) as Arc<dyn Model>, limits).unwrap();
        let running = Running::start(vec![engine.clone()], config).await;
        Self { model, engine, running }
    }

    fn client(&self) -> SummarizationClient<Channel> {
        SummarizationClient::new(self.running.channel.clone())
    }

    /// Sends a document in these chunks and returns the complete answer.
    async fn answer(&self, options: SummarizeOptions, chunks: &[&str]) -> Result<SummaryResponse, Status> {
        let parts = parts(options, chunks);
        read(self.client().summarize(tokio_stream::iter(parts)).await?.into_inner()).await
    }

    async fn at_rest(&self) {
        eventually("all resources are released", || {
            let load = self.engine.load();
            let kept = self.engine.document_cache_usage().entries;
            (load.queued, load.running, load.bytes, self.model.alive() - kept) == (0, 0, 0, 0)
        })
        .await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.model.release();
    }
}

fn chunk(text: &str) -> SummarizeRequest {
    SummarizeRequest { part: Some(Part::Chunk(DocumentChunk { text: text.into() })) }
}

fn options(options: SummarizeOptions) -> SummarizeRequest {
    SummarizeRequest { part: Some(Part::Options(options)) }
}

fn parts(request_options: SummarizeOptions, chunks: &[&str]) -> Vec<SummarizeRequest> {
    [options(request_options)].into_iter().chain(chunks.iter().map(|text| chunk(text))).collect()
}

#[derive(Debug, Default)]
struct SummaryResponse {
    started: v1::SummaryStarted,
    progress: Vec<v1::Progress>,
    selected: Vec<v1::Selected>,
    parts: Vec<v1::SummaryPart>,
    text: String,
    finished: v1::SummaryFinished,
}

/// Sends a request that fails, at once or while its response is read. Returns the status.
async fn failed(server: &Server, request: impl IntoStreamingRequest<Message = SummarizeRequest>) -> Status {
    match server.client().summarize(request).await {
        Ok(stream) => read(stream.into_inner()).await.unwrap_err(),
        Err(status) => status,
    }
}

/// Reads a stream to its end and checks the order of its messages.
async fn read(mut stream: Streaming<SummarizeResponse>) -> Result<SummaryResponse, Status> {
    let mut answer = SummaryResponse::default();
    let Some(Event::Started(started)) = stream.message().await?.and_then(|message| message.event) else {
        panic!("the first message is not the start");
    };
    answer.started = started;
    while let Some(message) = stream.message().await? {
        match message.event.unwrap() {
            Event::Started(_) => panic!("started twice"),
            Event::Progress(progress) => {
                assert!(answer.text.is_empty());
                answer.progress.push(progress);
            }
            Event::Selected(selected) => {
                assert!(answer.text.is_empty());
                answer.selected.push(selected);
            }
            Event::Part(part) => {
                assert!(answer.text.is_empty() && answer.progress.is_empty() && answer.selected.is_empty());
                answer.parts.push(part);
            }
            Event::Piece(piece) => answer.text += &piece.text,
            Event::Finished(finished) => {
                answer.finished = finished;
                assert!(stream.message().await?.is_none(), "nothing follows the end");
                return Ok(answer);
            }
        }
    }
    panic!("the last message is not the end");
}

/// Returns ids and score of the best summary, from a beam search without a server.
fn best(text: &str, request: &Summarize, model: &DocumentModel) -> (Vec<u32>, f32) {
    let document: Vec<u32> = text.bytes().map(u32::from).chain([MARKS.end]).collect();
    let rules = request.plan(model.card(), model.document_encoder().unwrap().limits(), 32).unwrap().rules;
    let mut search = BeamSearch::new(rules, MARKS, 256);
    let mut rows = vec![vec![MARKS.start]];
    loop {
        let row_logits: Vec<_> = rows.iter().map(|row| logits(&document, row)).collect();
        match search.advance(row_logits.iter().map(Vec::as_slice)).unwrap() {
            SearchStep::Done => return (search.finished()[0].tokens.clone(), search.finished()[0].score),
            SearchStep::Continue(moves) => {
                let grown = |&RowMove { parent, token }: &RowMove| [rows[parent].as_slice(), &[token]].concat();
                rows = moves.iter().map(grown).collect();
            }
        }
    }
}
