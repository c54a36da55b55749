//! `Summarization` over gRPC: documents in chunks, highlights, texts, and failures.

use super::{
    Running, details, eventually,
    hostile::status_of_call,
    http2_frames::{self, DATA, RST_STREAM, frame, sent},
    reason,
};
use crate::document_model::{BLOCK, DocumentModel, MARKS, PANIC, TOKENS, logits};
use prost::Message;
use std::{sync::Arc, time::Duration};
use tokio::{io::AsyncWriteExt, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming, transport::Channel};
use weir::{
    config::{Access, Keys, TransportConfig},
    decode::{
        beam::{BeamSearch, RowMove, SearchStep},
        contract::Model,
        summary::Summarize,
    },
    engine::{Handle, Limits},
};
use weir_proto::v1::{
    self, DocumentChunk, SummarizeOptions, SummarizeRequest, SummarizeResponse, generation_client::GenerationClient,
    models_client::ModelsClient, summarization_client::SummarizationClient, summarize_request::Part,
    summarize_response::Event,
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
    async fn answer(&self, options: SummarizeOptions, chunks: &[&str]) -> Result<Answer, Status> {
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
struct Answer {
    started: v1::SummaryStarted,
    progress: Vec<v1::Progress>,
    selected: Vec<v1::Selected>,
    text: String,
    finished: v1::SummaryFinished,
}

/// Reads a stream to its end and checks the order of its messages.
async fn read(mut stream: Streaming<SummarizeResponse>) -> Result<Answer, Status> {
    let mut answer = Answer::default();
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

#[tokio::test]
async fn a_document_in_chunks_is_summarized_with_what_was_selected() {
    let server = Server::new().await;
    let text = "A café in Köln, and what it pools: größe! ".repeat(5);
    // chunks of seven characters
    let signs: Vec<String> = text.chars().collect::<Vec<_>>().chunks(7).map(|signs| signs.iter().collect()).collect();
    let chunks: Vec<&str> = signs.iter().map(String::as_str).collect();
    let answer = server.answer(SummarizeOptions::default(), &chunks).await.unwrap();
    let (ids, score) = best(&text, &Summarize::default(), &server.model);
    let v1::SummaryFinished { hypotheses, usage, timing, document_id, reason } = answer.finished;
    assert_eq!((hypotheses.len(), &hypotheses[0].ids, hypotheses[0].score), (1, &ids, score));
    assert_eq!(hypotheses[0].logprobs.len(), ids.len());
    assert_eq!((answer.text, hypotheses[0].text.len()), (hypotheses[0].text.clone(), ids.len() - 1));
    assert!(reason > 0 && document_id.is_some());
    let usage = usage.unwrap();
    let timing = timing.unwrap();
    let tokens = text.len() as u64 + 1;
    assert_eq!((usage.document_tokens, usage.cached_tokens, usage.cut), (tokens, 0, false));
    assert_eq!(usage.summary_tokens, ids.len() as u64);
    assert!(usage.cross_attention_bytes > 0 && usage.cross_attention_bytes < usage.unpooled_cross_attention_bytes);
    let blocks = 2 * tokens.div_ceil(BLOCK as u64) + 1;
    assert_eq!((timing.blocks, timing.layers.len(), timing.memory_ns), (blocks, 2, 7));
    assert!(timing.total_ns >= timing.decode_ns + timing.upload_ns && timing.blocks_at_end <= blocks);
    assert!(answer.progress.is_sorted_by_key(|progress| (progress.tokens_read, progress.blocks_encoded)));
    for progress in &answer.progress {
        assert_eq!(progress.stage == "layer", progress.layer.is_some());
        assert!(["waiting", "layer", "memory", "done"].contains(&progress.stage.as_str()));
    }
    // every second byte is kept, so no two spans touch
    let [selected] = &answer.selected[..] else { panic!("{:?}", answer.selected) };
    assert_eq!((selected.layer, selected.tokens), (0, tokens.div_ceil(2)));
    assert!(selected.spans.windows(2).all(|pair| pair[0].byte_end <= pair[1].byte_start));
    for span in &selected.spans {
        assert!(text.is_char_boundary(span.byte_start as usize) && text.is_char_boundary(span.byte_end as usize));
    }
    server.at_rest().await;
}

#[tokio::test]
async fn another_request_reuses_the_document() {
    let limits = Limits { document_bytes: 1 << 20, document_keep: Duration::from_millis(600), ..Limits::default() };
    let server = Server::with(limits, TransportConfig::default()).await;
    let text = "what is known once ".repeat(8);
    let first = server.answer(SummarizeOptions::default(), &[&text]).await.unwrap();
    let document_id = first.finished.document_id.clone();
    let blocks = server.model.blocks();
    let other = SummarizeOptions {
        document_id: document_id.clone(),
        beam_size: Some(3),
        hypotheses: Some(3),
        ..Default::default()
    };
    let second = server.answer(other.clone(), &[]).await.unwrap();
    assert_eq!(server.model.blocks(), blocks, "the document was encoded again");
    let request = Summarize { beam: Some(3), ..Default::default() };
    assert_eq!(second.finished.hypotheses[0].ids, best(&text, &request, &server.model).0);
    assert_eq!((second.finished.hypotheses.len(), second.started.cached_tokens), (3, text.len() as u64 + 1));
    assert_eq!((second.selected, second.finished.document_id), (first.selected, document_id));
    let refused = async |request_options: SummarizeOptions, chunks: &[&str]| {
        let status = server.answer(request_options, chunks).await.unwrap_err();
        (status.code(), details(&status).bad_request().unwrap().field_violations[0].field.clone())
    };
    let hard = SummarizeOptions { hard_topk: Some(true), ..other.clone() };
    assert_eq!(
        refused(hard, &[]).await,
        (Code::InvalidArgument, "options.hard_topk".into()),
        "the document was encoded with another pooling"
    );
    assert_eq!(refused(other.clone(), &["more"]).await, (Code::InvalidArgument, "chunk".into()));
    let unknown = SummarizeOptions { document_id: Some("f".repeat(500)), ..Default::default() };
    let status = server.answer(unknown, &[]).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::NotFound, "UNKNOWN_DOCUMENT"));
    // the error does not wait for the end of the upload
    let unknown = SummarizeOptions { document_id: Some("none".into()), ..Default::default() };
    let (sender, receiver) = mpsc::channel(1);
    sender.send(options(unknown)).await.unwrap();
    let mut client = server.client();
    let call = tokio::time::timeout(Duration::from_secs(10), client.summarize(ReceiverStream::new(receiver)));
    assert_eq!(call.await.expect("at once").unwrap_err().code(), Code::NotFound);
    drop(sender);
    let hard = SummarizeOptions { hard_topk: Some(true), ..Default::default() };
    let read_hard = server.answer(hard, &[&text]).await.unwrap();
    let again = SummarizeOptions { document_id: read_hard.finished.document_id.clone(), ..Default::default() };
    let again = server.answer(again, &[]).await.unwrap();
    assert_eq!(again.finished.hypotheses, read_hard.finished.hypotheses, "with the document's pooling");
    assert_ne!(again.finished.hypotheses, first.finished.hypotheses);
    // the document expires
    eventually("the cache is empty", || server.model.alive() == 0).await;
    let status = server.answer(other, &[]).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::NotFound, "UNKNOWN_DOCUMENT"));
    server.at_rest().await;
}

/// Sends a document with an API key and returns the complete answer.
async fn answer_to(
    key: &str,
    server: &Server,
    request_options: SummarizeOptions,
    chunks: &[&str],
) -> Result<Answer, Status> {
    let mut request = Request::new(tokio_stream::iter(parts(request_options, chunks)));
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    read(server.client().summarize(request).await?.into_inner()).await
}

#[tokio::test]
async fn a_document_belongs_to_its_sender() {
    let keys = Keys::parse("alice:a-key-that-alice-has\nbob:another-key-that-bob-has").unwrap();
    let access = Access { keys: Some(Arc::new(keys)), tls: None };
    let limits = Limits { document_bytes: 1 << 20, ..Limits::default() };
    let server = Server::with(limits, TransportConfig { access, ..TransportConfig::default() }).await;
    let alice = "a-key-that-alice-has";
    let bob = "another-key-that-bob-has";
    let first = answer_to(alice, &server, SummarizeOptions::default(), &["hers alone"]).await.unwrap();
    let again = SummarizeOptions { document_id: first.finished.document_id, ..Default::default() };
    let status = answer_to(bob, &server, again.clone(), &[]).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::NotFound, "UNKNOWN_DOCUMENT"));
    let second = answer_to(alice, &server, again, &[]).await.unwrap();
    assert_eq!(second.finished.hypotheses, first.finished.hypotheses);
    server.at_rest().await;
}

#[tokio::test]
async fn a_document_that_is_too_long_is_refused_or_cut() {
    let server = Server::new().await;
    let long = "0123456789".repeat(1 << 16);
    // a hundred megabytes, of which the server reads only the beginning
    for cut in [false, true] {
        let (sender, receiver) = mpsc::channel(1);
        let request_options = SummarizeOptions { cut: Some(cut), ..Default::default() };
        let mut client = server.client();
        let sent = tokio::spawn({
            let long = long.clone();
            async move {
                let _ = sender.send(options(request_options)).await;
                for chunks in 0..160 {
                    if sender.send(chunk(&long)).await.is_err() {
                        return chunks;
                    }
                }
                160
            }
        });
        let answer = match client.summarize(ReceiverStream::new(receiver)).await {
            Ok(stream) => read(stream.into_inner()).await,
            Err(status) => Err(status),
        };
        assert!(sent.await.unwrap() < 100, "the server reads on");
        if cut {
            let answer = answer.unwrap();
            let usage = answer.finished.usage.unwrap();
            assert_eq!((usage.cut, usage.document_tokens), (true, TOKENS as u64));
            let beginning = &long[..TOKENS - 1];
            assert_eq!(answer.finished.hypotheses[0].ids, best(beginning, &Summarize::default(), &server.model).0);
            assert!(answer.selected[0].spans.iter().all(|span| span.byte_end < TOKENS as u64));
        } else {
            let status = answer.unwrap_err();
            assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, "TOO_LONG"));
            assert_eq!(details(&status).error_info().unwrap().metadata["limit"], (TOKENS - 1).to_string());
        }
        server.at_rest().await;
    }
    // the longest document that fits
    let fits = server.answer(SummarizeOptions::default(), &[&long[..TOKENS - 1]]).await.unwrap();
    assert!(!fits.finished.usage.unwrap().cut);
}

#[tokio::test]
async fn invalid_requests_are_refused_with_the_field() {
    let server = Server::new().await;
    let refused = async |parts: Vec<SummarizeRequest>| {
        let status = match server.client().summarize(tokio_stream::iter(parts)).await {
            Ok(stream) => read(stream.into_inner()).await.unwrap_err(),
            Err(status) => status,
        };
        let field = details(&status).bad_request().map(|bad| bad.field_violations[0].field.clone());
        (status.code(), field.unwrap_or_default())
    };
    let plain = SummarizeOptions::default;
    let bad = |field: &str| (Code::InvalidArgument, field.to_owned());
    assert_eq!(refused(vec![]).await, bad("options"));
    assert_eq!(refused(vec![chunk("text")]).await, bad("options"));
    assert_eq!(refused(vec![options(plain())]).await, bad("chunk.text"), "no text at all");
    assert_eq!(refused(vec![options(plain()), chunk("")]).await, bad("chunk.text"));
    assert_eq!(refused(vec![options(plain()), options(plain())]).await, bad("options"));
    assert_eq!(refused(vec![options(plain()), SummarizeRequest { part: None }]).await, bad("part"));
    let beam = SummarizeOptions { beam_size: Some(65), ..plain() };
    assert_eq!(refused(parts(beam, &["text"])).await, bad("options.beam_size"));
    let length = SummarizeOptions { max_tokens: Some(1000), ..plain() };
    assert_eq!(refused(parts(length, &["text"])).await, bad("options.max_tokens"));
    let drawn = v1::Sampling { temperature: Some(-1.0), ..Default::default() };
    let sampling = SummarizeOptions { sampling: Some(drawn), ..plain() };
    assert_eq!(refused(parts(sampling, &["text"])).await, bad("sampling.temperature"));
    let model = SummarizeOptions { model: Some("none".into()), ..plain() };
    assert_eq!(refused(parts(model, &["text"])).await.0, Code::NotFound);
    let bytes = http2_frames::message(b"\x12\x03\x0a\x01\xff");
    let first = http2_frames::message(&options(plain()).encode_to_vec());
    for body in [bytes.clone(), [first, bytes].concat()] {
        let status = status_of_call(server.running.address, "/weir.v1.Summarization/Summarize", body, &[]).await;
        let field = details(&status).bad_request().unwrap().field_violations[0].field.clone();
        assert_eq!((status.code(), reason(&status).as_str(), field), (bad("").0, "UNREADABLE", "chunk.text".into()));
    }
    let panics = char::from(PANIC as u8).to_string();
    assert_eq!(refused(parts(plain(), &[&panics])).await.0, Code::Internal);
    server.at_rest().await;
    server.answer(plain(), &["the server continues"]).await.unwrap();
}

#[tokio::test]
async fn wrong_kinds_of_models_are_refused_both_ways() {
    let server = Server::new().await;
    let mut generation = GenerationClient::new(server.running.channel.clone());
    let status = generation.generate(super::prompt("a")).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::FailedPrecondition, "WRONG_KIND_OF_MODEL"));
    let score = v1::ScoreRequest { text: "a".into(), ..Default::default() };
    assert_eq!(generation.score(score).await.unwrap_err().code(), Code::FailedPrecondition);
    let other = super::Server::new().await;
    let mut client = SummarizationClient::new(other.channel.clone());
    let status = client.summarize(tokio_stream::iter(parts(Default::default(), &["a"]))).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::FailedPrecondition, "WRONG_KIND_OF_MODEL"));
    let mut models = ModelsClient::new(server.running.channel.clone());
    let model = models.get_model(v1::GetModelRequest::default()).await.unwrap().into_inner();
    let documents = model.documents.unwrap();
    assert_eq!((documents.max_tokens, documents.max_summary_tokens, documents.beam_size), (TOKENS as u64 - 1, 59, 2));
    assert_eq!(documents.poolings.len(), 1);
    assert_eq!(model.limits.unwrap().document_bytes, 1 << 20);
    let model = other.models().get_model(v1::GetModelRequest::default()).await.unwrap().into_inner();
    assert!(model.documents.is_none());
}

#[tokio::test]
async fn cancelled_and_late_requests_release_everything() {
    let server = Server::new().await;
    // during the upload: with a reset frame, and without
    for reset in [true, false] {
        let blocks = server.model.blocks();
        let messages = parts(SummarizeOptions::default(), &[&"a".repeat(50)]);
        let data: Vec<u8> = messages.iter().flat_map(|part| http2_frames::message(&part.encode_to_vec())).collect();
        let call = http2_frames::call(1, "/weir.v1.Summarization/Summarize");
        let bytes = [http2_frames::beginning(), call, frame(DATA, 0, 1, &data)].concat();
        let mut client = sent(server.running.address, &bytes).await;
        eventually("the document is read", || server.model.blocks() >= blocks + 6).await;
        assert_eq!(server.engine.load().running, 1);
        if reset {
            client.write_all(&frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes())).await.unwrap();
            server.at_rest().await;
        }
        drop(client);
        server.at_rest().await;
    }
    // during encoding, at the deadline
    server.model.slow(Duration::from_millis(60));
    let mut request = Request::new(tokio_stream::iter(parts(SummarizeOptions::default(), &[&"late ".repeat(10)])));
    request.set_timeout(Duration::from_millis(150));
    let status = match server.client().summarize(request).await {
        Ok(stream) => read(stream.into_inner()).await.unwrap_err(),
        Err(status) => status,
    };
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    server.model.release();
    server.at_rest().await;
    server.answer(SummarizeOptions::default(), &["the server continues"]).await.unwrap();
}

#[tokio::test]
async fn a_full_queue_refuses_summaries() {
    let limits = Limits { rows: 2, queue: 2, ..Limits::default() };
    let server = Server::with(limits, TransportConfig::default()).await;
    server.model.hold();
    let mut calls = Vec::new();
    let mut refused = 0;
    for _ in 0..8 {
        let parts = parts(SummarizeOptions::default(), &["one of many"]);
        match server.client().summarize(tokio_stream::iter(parts)).await {
            Ok(stream) => calls.push(stream.into_inner()),
            Err(status) => {
                assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "QUEUE_FULL"));
                refused += 1;
            }
        }
    }
    assert!(refused >= 5, "{refused}");
    server.model.release();
    for call in calls {
        read(call).await.unwrap();
    }
    server.at_rest().await;
}

#[tokio::test]
async fn draining_lets_summaries_finish() {
    let mut server = Server::new().await;
    let (sender, receiver) = mpsc::channel(8);
    sender.send(options(SummarizeOptions::default())).await.unwrap();
    sender.send(chunk("the first half, ")).await.unwrap();
    let stream = server.client().summarize(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    eventually("the document is read", || server.model.blocks() >= 2).await;
    server.running.shut_down();
    // longer than the drain waits for queued requests
    tokio::time::sleep(Duration::from_millis(1300)).await;
    sender.send(chunk("and the second")).await.unwrap();
    drop(sender);
    let answer = read(stream).await.unwrap();
    let text = "the first half, and the second";
    assert_eq!(answer.finished.hypotheses[0].ids, best(text, &Summarize::default(), &server.model).0);
}
