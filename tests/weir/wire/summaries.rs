//! `Summarization` over gRPC.

use super::*;
use crate::{
    document_model::{BLOCK, MARKS, PANIC, TOKENS, hypotheses},
    support::t5_shortened,
    wire::{self, errors::status_of_call, overload::launch},
};
use tonic::IntoStreamingRequest;
use weir_proto::v1::{LongDocuments, SummarizeResponse, summarize_response::Event};

impl Running {
    /// Sends a document in these chunks and returns the complete answer.
    pub(super) async fn summarize(
        &self,
        options: SummarizeOptions,
        chunks: &[&str],
    ) -> Result<SummaryResponse, Status> {
        let parts = parts(options, chunks);
        read(self.summarization().summarize(tokio_stream::iter(parts)).await?.into_inner()).await
    }
}

fn chunk(text: &str) -> SummarizeRequest {
    SummarizeRequest { part: Some(Part::Chunk(DocumentChunk { text: text.into(), ids: Vec::new() })) }
}

fn options(options: SummarizeOptions) -> SummarizeRequest {
    SummarizeRequest { part: Some(Part::Options(options)) }
}

fn parts(request_options: SummarizeOptions, chunks: &[&str]) -> Vec<SummarizeRequest> {
    [options(request_options)].into_iter().chain(chunks.iter().map(|text| chunk(text))).collect()
}

#[derive(Debug, Default)]
pub(super) struct SummaryResponse {
    started: v1::SummaryStarted,
    progress: Vec<v1::Progress>,
    pub(super) selected: Vec<v1::Selected>,
    parts: Vec<v1::SummaryPart>,
    pub(super) text: String,
    pub(super) finished: v1::SummaryFinished,
}

/// Sends a request that fails, at once or while its response is read. Returns the status.
async fn failed(server: &Summarizer, request: impl IntoStreamingRequest<Message = SummarizeRequest>) -> Status {
    match server.summarization().summarize(request).await {
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
    let best = hypotheses(&document, request, model, 32).swap_remove(0);
    (best.tokens, best.score)
}

#[tokio::test]
async fn a_document_in_chunks_is_summarized_with_what_was_selected() {
    let server = Server::summarizing().await;
    let text = "A café in Köln, and what it pools: größe! ".repeat(5);
    // chunks of seven characters
    let signs: Vec<String> = text.chars().collect::<Vec<_>>().chunks(7).map(|signs| signs.iter().collect()).collect();
    let chunks: Vec<&str> = signs.iter().map(String::as_str).collect();
    let answer = server.summarize(SummarizeOptions::default(), &chunks).await.unwrap();
    let (ids, score) = best(&text, &Summarize::default(), &server.model);
    let v1::SummaryFinished { hypotheses, usage, timing, document_id, reason, parts, sentences } = answer.finished;
    assert_eq!((hypotheses.len(), &hypotheses[0].ids, hypotheses[0].score), (1, &ids, score));
    assert_eq!(hypotheses[0].logprobs.len(), ids.len());
    assert_eq!((answer.text, hypotheses[0].text.len()), (hypotheses[0].text.clone(), ids.len() - 1));
    assert!(reason > 0 && document_id.is_some() && parts.is_empty() && sentences.is_empty());
    let usage = usage.unwrap();
    let timing = timing.unwrap();
    let tokens = text.len() as u64 + 1;
    assert_eq!((usage.document_tokens, usage.cached_tokens, usage.cut), (tokens, 0, false));
    assert_eq!(usage.document_bytes, Some(text.len() as u64));
    assert_eq!(usage.summary_tokens, ids.len() as u64);
    assert!(usage.cross_attention_bytes > 0 && usage.cross_attention_bytes < usage.unpooled_cross_attention_bytes);
    let blocks = 2 * tokens.div_ceil(BLOCK as u64) + 1;
    assert_eq!((timing.blocks, timing.layers.len(), timing.memory_ns), (blocks, 2, 7));
    assert!(timing.total_ns >= timing.decode_ns + timing.upload_ns && timing.blocks_at_end <= blocks);
    assert!(answer.progress.is_sorted_by_key(|progress| (progress.tokens_read, progress.blocks_encoded)));
    for progress in &answer.progress {
        assert_eq!(progress.stage == "layer", progress.layer.is_some());
        assert!(["waiting", "layer", "memory", "done"].contains(&progress.stage.as_str()));
        assert_eq!(progress.document_bytes.is_some(), progress.tokens_read > 0);
        assert!(!progress.cut && progress.document_bytes <= Some(text.len() as u64));
    }
    let last = answer.progress.last().unwrap();
    assert_eq!((last.blocks_total, last.document_bytes), (Some(blocks), Some(text.len() as u64)));
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
    let limits = Limits { document_bytes: 1 << 20, document_keep: Duration::from_secs(3), ..Limits::default() };
    let server = Server::summarizing_with(limits, TransportConfig::default()).await;
    let text = "what is known once ".repeat(8);
    let first = server.summarize(SummarizeOptions::default(), &[&text]).await.unwrap();
    let document_id = first.finished.document_id.clone();
    let blocks = server.model.blocks();
    let other = SummarizeOptions {
        document_id: document_id.clone(),
        beam_size: Some(3),
        hypotheses: Some(3),
        ..Default::default()
    };
    let second = server.summarize(other.clone(), &[]).await.unwrap();
    assert_eq!(server.model.blocks(), blocks, "the document was encoded again");
    let request = Summarize { beam: Some(3), ..Default::default() };
    assert_eq!(second.finished.hypotheses[0].ids, best(&text, &request, &server.model).0);
    assert_eq!((second.finished.hypotheses.len(), second.started.cached_tokens), (3, text.len() as u64 + 1));
    assert_eq!((second.selected, second.finished.document_id), (first.selected, document_id));
    let refused = async |request_options: SummarizeOptions, chunks: &[&str]| {
        let status = server.summarize(request_options, chunks).await.unwrap_err();
        refusal(&status)
    };
    let hard = SummarizeOptions { hard_topk: Some(true), ..other.clone() };
    assert_eq!(
        refused(hard, &[]).await,
        (Code::InvalidArgument, "options.hard_topk".into()),
        "the document was encoded with another pooling"
    );
    assert_eq!(refused(other.clone(), &["more"]).await, (Code::InvalidArgument, "chunk".into()));
    let unknown = SummarizeOptions { document_id: Some("f".repeat(500)), ..Default::default() };
    let status = server.summarize(unknown, &[]).await.unwrap_err();
    assert_refused(&status, Code::NotFound, "UNKNOWN_DOCUMENT");
    // the error does not wait for the end of the upload
    let unknown = SummarizeOptions { document_id: Some("none".into()), ..Default::default() };
    let (sender, receiver) = mpsc::channel(1);
    sender.send(options(unknown)).await.unwrap();
    let mut client = server.summarization();
    let call = tokio::time::timeout(Duration::from_secs(10), client.summarize(ReceiverStream::new(receiver)));
    assert_eq!(call.await.expect("at once").unwrap_err().code(), Code::NotFound);
    drop(sender);
    let hard = SummarizeOptions { hard_topk: Some(true), ..Default::default() };
    let read_hard = server.summarize(hard, &[&text]).await.unwrap();
    let again = SummarizeOptions { document_id: read_hard.finished.document_id.clone(), ..Default::default() };
    let again = server.summarize(again, &[]).await.unwrap();
    assert_eq!(again.finished.hypotheses, read_hard.finished.hypotheses, "with the document's pooling");
    assert_ne!(again.finished.hypotheses, first.finished.hypotheses);
    // the document expires
    eventually("the cache is empty", || server.model.alive() == 0).await;
    let status = server.summarize(other, &[]).await.unwrap_err();
    assert_refused(&status, Code::NotFound, "UNKNOWN_DOCUMENT");
    server.at_rest().await;
}

/// Sends a document with an API key and returns the complete answer.
async fn answer_to(
    key: &str,
    server: &Summarizer,
    request_options: SummarizeOptions,
    chunks: &[&str],
) -> Result<SummaryResponse, Status> {
    let mut request = Request::new(tokio_stream::iter(parts(request_options, chunks)));
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    read(server.summarization().summarize(request).await?.into_inner()).await
}

#[tokio::test]
async fn a_document_belongs_to_its_sender() {
    let limits = Limits { document_bytes: 1 << 20, ..Limits::default() };
    let access = alice_and_bob();
    let server = Server::summarizing_with(limits, TransportConfig { access, ..TransportConfig::default() }).await;
    let alice = "a-key-that-alice-has";
    let bob = "another-key-that-bob-has";
    let first = answer_to(alice, &server, SummarizeOptions::default(), &["hers alone"]).await.unwrap();
    let again = SummarizeOptions { document_id: first.finished.document_id, ..Default::default() };
    let status = answer_to(bob, &server, again.clone(), &[]).await.unwrap_err();
    assert_refused(&status, Code::NotFound, "UNKNOWN_DOCUMENT");
    let second = answer_to(alice, &server, again, &[]).await.unwrap();
    assert_eq!(second.finished.hypotheses, first.finished.hypotheses);
    server.at_rest().await;
}

#[tokio::test]
async fn lookups_of_documents_are_counted() {
    let folder = TempDir::new().unwrap();
    let model = load(Path::new(&write_random_model(folder.path())), &settings()).unwrap();
    let name = model.card().name.clone();
    let engines = Engines::default();
    launch(&engines, model).await;
    let running = Running::offering(ServerParts::from(engines.clone()), TransportConfig::default()).await;
    let first = running.summarize(SummarizeOptions::default(), &["the king and the thing"]).await.unwrap();
    let of = |document_id| SummarizeOptions { document_id, ..Default::default() };
    for id in [&first.finished.document_id; 2] {
        running.summarize(of(id.clone()), &[]).await.unwrap();
    }
    running.summarize(of(Some("none".into())), &[]).await.unwrap_err();
    let metrics = engines.render_metrics().unwrap();
    for (result, count) in [("hit", 2), ("miss", 1)] {
        let labels = format!("{{model_name=\"{name}\",result=\"{result}\"}}");
        let sample = format!("weir_document_cache_lookups_total{labels} {count}\n");
        assert!(metrics.contains(&sample), "no {sample}: {metrics}");
    }
}

#[tokio::test]
async fn a_document_that_is_too_long_is_refused_or_cut() {
    let server = Server::summarizing().await;
    let long = "0123456789".repeat(1 << 16);
    // a hundred megabytes, of which the server reads only the beginning
    for cut in [false, true] {
        let (sender, receiver) = mpsc::channel(1);
        let request_options = SummarizeOptions { cut: Some(cut), ..Default::default() };
        let mut client = server.summarization();
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
            assert_eq!(usage.document_bytes, Some(TOKENS as u64 - 1), "the end mark has no bytes");
            // the progress reports the cut as soon as the number of blocks is known
            assert!(answer.progress.last().unwrap().blocks_total.is_some());
            for progress in &answer.progress {
                assert_eq!(progress.cut, progress.blocks_total.is_some());
                assert!(!progress.cut || progress.document_bytes == usage.document_bytes);
            }
            let beginning = &long[..TOKENS - 1];
            assert_eq!(answer.finished.hypotheses[0].ids, best(beginning, &Summarize::default(), &server.model).0);
            assert!(answer.selected[0].spans.iter().all(|span| span.byte_end < TOKENS as u64));
        } else {
            let status = answer.unwrap_err();
            assert_refused(&status, Code::InvalidArgument, "TOO_LONG");
            assert_eq!(details(&status).error_info().unwrap().metadata["limit"], (TOKENS - 1).to_string());
        }
        server.at_rest().await;
    }
    // the longest document that fits
    let fits = server.summarize(SummarizeOptions::default(), &[&long[..TOKENS - 1]]).await.unwrap();
    assert!(!fits.finished.usage.unwrap().cut);
}

#[tokio::test]
async fn broken_text_and_a_panic_end_one_request() {
    let server = Server::summarizing().await;
    let plain = SummarizeOptions::default;
    let bytes = wire::connections::framed(b"\x12\x03\x0a\x01\xff");
    let first = wire::connections::framed(&options(plain()).encode_to_vec());
    for body in [bytes.clone(), [first, bytes].concat()] {
        let status = status_of_call(server.address, "/weir.v1.Summarization/Summarize", body, &[]).await;
        assert_refused(&status, Code::InvalidArgument, "UNREADABLE");
        assert_eq!(field(&status), "chunk.text");
    }
    let panics = char::from(PANIC as u8).to_string();
    assert_eq!(refused(&server, parts(plain(), &[&panics])).await.code(), Code::Internal);
    server.at_rest().await;
    server.summarize(plain(), &["the server continues"]).await.unwrap();
}

#[tokio::test]
async fn cancelled_and_late_requests_release_everything() {
    let server = Server::summarizing().await;
    // during the upload: with a reset frame, and without
    for reset in [true, false] {
        let blocks = server.model.blocks();
        let messages = parts(SummarizeOptions::default(), &[&"a".repeat(50)]);
        let data: Vec<u8> = messages.iter().flat_map(|part| wire::connections::framed(&part.encode_to_vec())).collect();
        let call = wire::connections::call(1, "/weir.v1.Summarization/Summarize");
        let bytes = [wire::connections::beginning(), call, frame(DATA, 0, 1, &data)].concat();
        let mut client = sent(server.address, &bytes).await;
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
    server.model.gate.slow(Duration::from_millis(60));
    let mut request = Request::new(tokio_stream::iter(parts(SummarizeOptions::default(), &[&"late ".repeat(10)])));
    request.set_timeout(Duration::from_millis(150));
    let status = failed(&server, request).await;
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    server.model.gate.release();
    server.at_rest().await;
    server.summarize(SummarizeOptions::default(), &["the server continues"]).await.unwrap();
}

#[tokio::test]
async fn a_full_queue_refuses_summaries() {
    let limits = Limits { rows: 2, queue: 2, ..Limits::default() };
    let server = Server::summarizing_with(limits, TransportConfig::default()).await;
    server.model.gate.hold(0);
    let mut calls = Vec::new();
    let mut refused = 0;
    for _ in 0..8 {
        let parts = parts(SummarizeOptions::default(), &["one of many"]);
        match server.summarization().summarize(tokio_stream::iter(parts)).await {
            Ok(stream) => calls.push(stream.into_inner()),
            Err(status) => {
                assert_refused(&status, Code::ResourceExhausted, "QUEUE_FULL");
                refused += 1;
            }
        }
    }
    assert!(refused >= 5, "{refused}");
    // the first part of a long document, too
    let long = sentences(60);
    let status = self::refused(&server, parts(in_parts(), &[&long])).await;
    assert_refused(&status, Code::ResourceExhausted, "QUEUE_FULL");
    server.model.gate.release();
    for call in calls {
        read(call).await.unwrap();
    }
    assert!(server.summarize(in_parts(), &[&long]).await.unwrap().parts.len() > 4);
    server.at_rest().await;
}

#[tokio::test]
async fn draining_lets_summaries_finish() {
    let mut server = Server::summarizing().await;
    let (sender, receiver) = mpsc::channel(8);
    sender.send(options(SummarizeOptions::default())).await.unwrap();
    sender.send(chunk("the first half, ")).await.unwrap();
    let stream = server.summarization().summarize(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    eventually("the document is read", || server.model.blocks() >= 2).await;
    server.shut_down();
    // longer than the drain waits for queued requests
    tokio::time::sleep(Duration::from_millis(1300)).await;
    sender.send(chunk("and the second")).await.unwrap();
    drop(sender);
    let answer = read(stream).await.unwrap();
    let text = "the first half, and the second";
    assert_eq!(answer.finished.hypotheses[0].ids, best(text, &Summarize::default(), &server.model).0);
}

fn in_parts() -> SummarizeOptions {
    SummarizeOptions {
        long_documents: Some(LongDocuments::Chunk.into()),
        max_tokens: Some(6),
        ..SummarizeOptions::default()
    }
}

fn plain() -> SummarizeOptions {
    SummarizeOptions { long_documents: None, ..in_parts() }
}

fn sentences(count: usize) -> String {
    (0..count).map(|number| format!("Sentence {number} of the document ends. ")).collect()
}

/// Returns the code and the field of a refusal.
fn refusal(status: &Status) -> (Code, String) {
    (status.code(), field(status))
}

async fn refused(server: &Summarizer, messages: Vec<SummarizeRequest>) -> Status {
    failed(server, tokio_stream::iter(messages)).await
}

/// Checks parts of one round against the summaries of their texts.
async fn check_round(server: &Summarizer, text: &str, round: &[&v1::SummaryPart]) {
    let mut covered = 0;
    for (index, part) in round.iter().enumerate() {
        assert_eq!((part.part as usize, part.round_bytes), (index + 1, text.len() as u64));
        let [start, end] = [part.byte_start, part.byte_end].map(|byte| byte as usize);
        assert!(start <= covered && end > covered, "{start} {end} {covered}");
        covered = end;
        let cut = SummarizeOptions { cut: Some(true), ..plain() };
        let alone = server.summarize(cut, &[&text[start..]]).await.unwrap();
        let usage = alone.finished.usage.unwrap();
        assert_eq!(part.summary, alone.text);
        assert_eq!((part.document_tokens, part.summary_tokens), (usage.document_tokens, usage.summary_tokens));
        assert_eq!(end - start, usage.document_bytes.unwrap() as usize);
        let [kept] = &part.selected[..] else { panic!("{:?}", part.selected) };
        assert_eq!(kept.tokens, alone.selected[0].tokens);
        for (span, expected) in kept.spans.iter().zip(&alone.selected[0].spans) {
            assert_eq!(span.byte_start - part.byte_start, expected.byte_start);
            assert_eq!(span.byte_end - part.byte_start, expected.byte_end);
        }
    }
    assert_eq!(covered, text.len());
}

#[tokio::test]
async fn parts_are_summarized_until_one_is_left() {
    let server = Server::summarizing().await;
    let text = sentences(60);
    let chunks: Vec<&str> = [&text[..700], &text[700..1100], &text[1100..]].into();
    let answer = server.summarize(in_parts(), &chunks).await.unwrap();
    let SummaryResponse { parts, finished, text: summary, .. } = answer;
    let first: Vec<_> = parts.iter().filter(|part| part.round == 1).collect();
    assert!(first.len() > 4);
    assert_eq!(server.engine.document_cache_usage().entries, 0, "no part is kept");
    check_round(&server, &text, &first).await;
    // the last round reads the summaries of the one before
    let rounds = parts.last().unwrap().round;
    let last: Vec<&str> = parts.iter().filter(|part| part.round == rounds).map(|part| &*part.summary).collect();
    let alone = server.summarize(plain(), &[&last.join("\n")]).await.unwrap();
    assert_eq!((&summary, &finished.hypotheses), (&alone.text, &alone.finished.hypotheses));
    // the last message repeats the parts without their spans, and sums their tokens
    let without_spans: Vec<_> =
        parts.iter().map(|part| v1::SummaryPart { selected: Vec::new(), ..part.clone() }).collect();
    assert_eq!((finished.parts, finished.document_id), (without_spans, None));
    let usage = finished.usage.unwrap();
    let alone = alone.finished.usage.unwrap();
    let sum = |count: fn(&v1::SummaryPart) -> u64| parts.iter().map(count).sum::<u64>();
    assert_eq!(usage.document_tokens, sum(|part| part.document_tokens) + alone.document_tokens);
    assert_eq!(usage.summary_tokens, sum(|part| part.summary_tokens) + alone.summary_tokens);
    assert_eq!((usage.document_bytes, usage.cut), (Some(text.len() as u64), false));
    assert_eq!(usage.vectors, alone.vectors);
    let timing = finished.timing.unwrap();
    assert!(timing.total_ns >= timing.time_to_first_token_ns && timing.total_ns >= timing.upload_ns + timing.decode_ns);
    server.at_rest().await;
}

#[tokio::test]
async fn a_document_that_fits_is_summarized_at_once() {
    let server = Server::summarizing().await;
    let text = sentences(8);
    let several = SummarizeOptions { beam_size: Some(3), hypotheses: Some(3), ..in_parts() };
    let answer = server.summarize(several.clone(), &[&text]).await.unwrap();
    let alone = server.summarize(SummarizeOptions { long_documents: None, ..several }, &[&text]).await.unwrap();
    assert!(answer.parts.is_empty() && answer.finished.parts.is_empty());
    assert_eq!((answer.text, answer.selected), (alone.text, alone.selected));
    assert_eq!((answer.finished.hypotheses.len(), answer.finished.hypotheses), (3, alone.finished.hypotheses));
    assert_eq!(answer.finished.usage, alone.finished.usage);
    let again = SummarizeOptions { document_id: answer.finished.document_id, ..plain() };
    assert_eq!(server.summarize(again, &[]).await.unwrap().started.cached_tokens, text.len() as u64 + 1);
    server.at_rest().await;
}

fn extract(sentences: u32, long_documents: LongDocuments) -> SummarizeOptions {
    SummarizeOptions {
        mode: Some(v1::SummaryMode::Extract.into()),
        sentences: Some(sentences),
        long_documents: Some(long_documents.into()),
        ..SummarizeOptions::default()
    }
}

/// Checks that an extract consists of its sentences, and returns their numbers.
fn extracted(text: &str, answer: &SummaryResponse) -> Vec<usize> {
    let spans = &answer.finished.sentences;
    let found: Vec<&str> = spans.iter().map(|span| &text[span.byte_start as usize..span.byte_end as usize]).collect();
    assert_eq!((&answer.text, &answer.finished.hypotheses[0].text), (&found.join(" "), &answer.text));
    assert_eq!(answer.finished.usage.unwrap().summary_tokens as usize, found.concat().len());
    let number = |sentence: &&str| {
        let rest = sentence.strip_prefix("Sentence ").and_then(|rest| rest.strip_suffix(" of the document ends."));
        rest.expect(sentence).parse().unwrap()
    };
    found.iter().map(number).collect()
}

#[tokio::test]
async fn an_extract_is_the_sentences_that_the_decoder_attends_to_most() {
    let server = Server::summarizing().await;
    let text = sentences(8);
    let answer = server.summarize(extract(2, LongDocuments::Refuse), &[&text[..99], &text[99..]]).await.unwrap();
    // the fake model attends to later tokens more
    assert_eq!(extracted(&text, &answer), [6, 7]);
    assert!(!answer.selected.is_empty() && answer.parts.is_empty() && answer.finished.parts.is_empty());
    let usage = answer.finished.usage.unwrap();
    assert_eq!((usage.document_tokens, usage.cut), (text.len() as u64 + 1, false));
    let again = SummarizeOptions { document_id: answer.finished.document_id, ..plain() };
    assert_eq!(server.summarize(again, &[]).await.unwrap().started.cached_tokens, text.len() as u64 + 1);
    server.at_rest().await;
}

#[tokio::test]
async fn an_extract_of_a_long_document_is_refused_cut_or_taken_from_all_parts() {
    let server = Server::summarizing().await;
    let text = sentences(60);
    let status = refused(&server, parts(extract(5, LongDocuments::Refuse), &[&text])).await;
    assert_eq!(refusal(&status), (Code::InvalidArgument, "chunk.text".into()));
    assert_eq!(reason(&status), "TOO_LONG");
    let cut = server.summarize(extract(1, LongDocuments::Cut), &[&text]).await.unwrap();
    let usage = cut.finished.usage.unwrap();
    let [last] = extracted(&text, &cut)[..] else { panic!("{}", cut.text) };
    let end = text.find(&format!("Sentence {} ", last + 1)).unwrap() as u64;
    assert!(usage.cut && cut.parts.is_empty(), "{usage:?}");
    assert!(
        end <= usage.document_bytes.unwrap() && end + 70 > usage.document_bytes.unwrap(),
        "the last whole sentence"
    );
    let answer = server.summarize(extract(5, LongDocuments::Chunk), &[&text]).await.unwrap();
    assert_eq!(extracted(&text, &answer).len(), 5);
    assert!(answer.parts.len() > 4 && answer.finished.document_id.is_none());
    assert!(answer.parts.iter().all(|part| part.round == 1 && part.summary.is_empty() && part.selected.len() == 1));
    // each part has late tokens, so no part has all five sentences
    let first = answer.finished.sentences[0].byte_end;
    assert!(answer.parts.iter().any(|part| part.byte_start > first), "{:?}", answer.finished.sentences);
    let read: u64 = answer.parts.iter().map(|part| part.document_tokens).sum();
    assert_eq!(answer.finished.usage.unwrap().document_tokens, read);
    server.at_rest().await;
}

#[tokio::test]
async fn documents_with_too_many_parts_or_bytes_are_refused() {
    let server = Server::summarizing().await;
    let blocks = server.model.blocks();
    let long = "a".repeat(65 * TOKENS);
    let status = refused(&server, parts(in_parts(), &[&long])).await;
    assert_eq!(refusal(&status), (Code::InvalidArgument, "options.long_documents".into()));
    assert_eq!(server.model.blocks(), blocks, "before any part is summarized");
    // The first part has no overlap and the others one of a quarter, so that the estimate is too low.
    let text = ["b".repeat(2 * TOKENS), format!("{}. ", "a".repeat(318)).repeat(70)].concat();
    let short = SummarizeOptions { max_tokens: Some(1), min_tokens: Some(0), beam_size: Some(1), ..in_parts() };
    let status = refused(&server, parts(short, &[&text])).await;
    assert_eq!(refusal(&status), (Code::InvalidArgument, "options.long_documents".into()));
    // one byte more than 16 MiB
    let megabyte = chunk(&"a".repeat(1 << 20));
    let messages = [options(in_parts())].into_iter().chain(std::iter::repeat_n(megabyte, 16)).chain([chunk("a")]);
    let status = refused(&server, messages.collect()).await;
    assert_eq!((refusal(&status).1.as_str(), reason(&status).as_str()), ("chunk.text", "TOO_LONG"));
    assert_eq!(details(&status).error_info().unwrap().metadata["limit"], (16 << 20).to_string());
    server.at_rest().await;
}

#[tokio::test]
async fn the_text_of_a_document_counts_as_request_memory() {
    let config = TransportConfig { message_bytes: 4 << 10, request_memory: 32 << 10, ..TransportConfig::default() };
    let server = Server::summarizing_with(Limits::default(), config).await;
    let text = sentences(400);
    let chunks: Vec<&str> = text.as_bytes().chunks(2000).map(|bytes| std::str::from_utf8(bytes).unwrap()).collect();
    // A caller may hold 16 KiB. Many times, so that memory that is not released would be missed.
    for _ in 0..4 {
        let status = refused(&server, parts(in_parts(), &chunks)).await;
        assert!(matches!(status.code(), Code::ResourceExhausted | Code::OutOfRange), "{status:?}");
        let answer = server.summarize(in_parts(), &chunks[..2]).await.unwrap();
        assert!(answer.parts.len() > 4);
    }
    server.at_rest().await;
}

#[tokio::test]
async fn the_end_of_the_call_ends_its_part() {
    let server = Server::summarizing().await;
    let text = sentences(100);
    server.model.gate.slow(Duration::from_millis(2));
    // the client leaves after the first part
    let messages = parts(in_parts(), &[&text]);
    let mut stream = server.summarization().summarize(tokio_stream::iter(messages.clone())).await.unwrap().into_inner();
    while !matches!(stream.message().await.unwrap().unwrap().event, Some(Event::Part(_))) {}
    drop(stream);
    server.at_rest().await;
    let blocks = server.model.blocks();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.model.blocks(), blocks, "no other part is summarized");
    // its deadline passes
    server.model.gate.hold(0);
    let mut request = Request::new(tokio_stream::iter(messages));
    request.set_timeout(Duration::from_millis(300));
    let status = failed(&server, request).await;
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    server.model.gate.release();
    server.at_rest().await;
    server.summarize(plain(), &["the server continues"]).await.unwrap();
}

/// FIXTURES.md: scores.
const SCORES: f32 = 1e-5;

/// Tolerance of gate values.
const GATES: f32 = 2e-4;

/// Starts a server of one checkpoint.
async fn t5(folder: &Path) -> Running {
    let limits = Limits { document_bytes: 1 << 22, ..Limits::default() };
    Running::of(load(folder, &settings()).unwrap(), limits, TransportConfig::default()).await
}

/// A fixture: its description and its golden tensors.
struct Fixture {
    about: Value,
    golden: Golden,
}

impl Fixture {
    fn open(case: &str) -> Self {
        let about = fs::read(golden_data("t5").join(case).join("golden.json")).unwrap();
        Self { about: serde_json::from_slice(&about).unwrap(), golden: Golden::open(&golden_data("t5").join(case)) }
    }

    fn text(&self, source: &str) -> String {
        let sources = self.about["sources"].as_array().unwrap();
        let found = sources.iter().find(|other| other["name"] == source).unwrap();
        found["text"].as_str().unwrap().to_owned()
    }

    /// Compares the hypotheses of one setting with transformers'.
    fn check(&self, source: &str, setting: &str, answer: &SummaryResponse) {
        let key = |part: &str| format!("{source}.{setting}.{part}");
        let lengths = self.golden.ids(&key("lengths"));
        let hypotheses = &answer.finished.hypotheses;
        assert_eq!(hypotheses.len(), lengths.len(), "{source} {setting}");
        for (rank, (hypothesis, length)) in hypotheses.iter().zip(lengths).enumerate() {
            let ids = self.golden.row_ids(&key("ids"), rank);
            assert_eq!(hypothesis.ids, ids[..length as usize], "{source} {setting} {rank}");
            if self.golden.has(&key("scores")) {
                let difference = (hypothesis.score - self.golden.get(&key("scores"))[rank]).abs();
                assert!(difference <= SCORES, "{source} {setting} {rank}: {difference}");
            }
        }
        assert_eq!(answer.text, hypotheses[0].text, "{source} {setting}");
    }
}

/// Returns the options for settings in the names of transformers.
fn search(settings: &Value) -> SummarizeOptions {
    let number = |key: &str| settings[key].as_u64().map(|number| number as u32);
    // lengths in total count the start symbol
    let length = |new: &str, total: &str| number(new).or(number(total).map(|total| total - 1));
    let float = |key: &str| Some(settings[key].as_f64().unwrap_or(1.0) as f32);
    let early_stopping = match &settings["early_stopping"] {
        Value::Null => "false".to_owned(),
        Value::String(word) => word.clone(),
        flag => flag.to_string(),
    };
    SummarizeOptions {
        beam_size: number("num_beams"),
        hypotheses: number("num_beams"),
        length_penalty: float("length_penalty"),
        min_tokens: length("min_new_tokens", "min_length").or(Some(0)),
        max_tokens: length("max_new_tokens", "max_length"),
        no_repeat_ngram: number("no_repeat_ngram_size").or(Some(0)),
        early_stopping: Some(early_stopping),
        repetition_penalty: float("repetition_penalty"),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_and_scores_are_those_of_transformers() {
    for case in ["t5_v10", "byt5", "mrt5"] {
        let fixture = Fixture::open(case);
        let server = t5(&golden_data("t5").join(case)).await;
        let mut compared = BTreeMap::new();
        for source in ["s0", "s1"] {
            let text = fixture.text(source);
            let tokens = fixture.golden.ids(&format!("{source}.ids")).len() as u64;
            let mut document_id = None;
            for (setting, values) in fixture.about["settings"].as_object().unwrap() {
                // forced tokens are not supported
                if setting == "forced" {
                    continue;
                }
                let chunks: Vec<String> = text.chars().map(String::from).collect();
                let chunks: Vec<&str> = chunks.iter().map(String::as_str).collect();
                let uploads = document_id.is_none();
                let options = SummarizeOptions { document_id: document_id.clone(), ..search(values) };
                let answer = server.summarize(options, if uploads { &chunks } else { &[] }).await.unwrap();
                fixture.check(source, setting, &answer);
                let usage = answer.finished.usage.unwrap();
                assert_eq!((usage.document_tokens, usage.cut), (tokens, false), "{case} {source}");
                assert_eq!(usage.cached_tokens, if uploads { 0 } else { tokens }, "{case} {source} {setting}");
                assert_eq!(usage.document_bytes, Some(text.len() as u64));
                // an encoder that looks both ways begins when the upload is complete
                let early = answer.progress.iter().filter(|progress| progress.blocks_encoded > 0);
                assert!(early.clone().all(|progress| progress.tokens_read == tokens), "{:?}", answer.progress);
                assert_eq!(answer.finished.timing.as_ref().unwrap().blocks_at_end, 0);
                document_id = answer.finished.document_id.clone();
                assert!(document_id.is_some());
                *compared.entry(source).or_insert(0) += answer.finished.hypotheses.len();
            }
        }
        assert!(compared.values().all(|count| *count >= 8), "{case}: {compared:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_bytes_of_mrt5_are_spans_with_gate_values() {
    let fixture = Fixture::open("mrt5");
    let server = t5(&golden_data("t5/mrt5")).await;
    for source in ["s0", "s1", "s2"] {
        let text = fixture.text(source);
        let kept = fixture.golden.ids(&format!("{source}.gate.kept"));
        let values = fixture.golden.get(&format!("{source}.gate.values"));
        let options = SummarizeOptions { max_tokens: Some(3), ..Default::default() };
        let answer = server.summarize(options, &[&text]).await.unwrap();
        let [selected] = &answer.selected[..] else { panic!("{:?}", answer.selected) };
        // the gate is before layer 3; a byte is a token, and the end mark has no bytes
        assert_eq!((selected.layer, selected.tokens), (3, kept.len() as u64), "{source}");
        let bytes: Vec<u32> =
            selected.spans.iter().flat_map(|span| span.byte_start as u32..span.byte_end as u32).collect();
        let expected: Vec<u32> = kept.iter().copied().filter(|position| (*position as usize) < text.len()).collect();
        assert_eq!(bytes, expected, "{source}");
        for span in &selected.spans {
            let gates = &values[span.byte_start as usize..span.byte_end as usize];
            let mean = gates.iter().sum::<f32>() / gates.len() as f32;
            assert!((span.score - mean).abs() <= GATES, "{source}: {span:?}, not {mean}");
        }
        let usage = answer.finished.usage.unwrap();
        assert_eq!((usage.vectors, usage.document_tokens), (kept.len() as u64, values.len() as u64), "{source}");
        assert!(usage.cross_attention_bytes <= usage.unpooled_cross_attention_bytes, "{usage:?}");
        let timing = answer.finished.timing.unwrap();
        assert_eq!(timing.kept_share, Some(kept.len() as f64 / values.len() as f64), "{source}");
        let bytes = (timing.cross_attention_bytes, timing.unpooled_cross_attention_bytes);
        assert_eq!(bytes, (usage.cross_attention_bytes, usage.unpooled_cross_attention_bytes), "{source}");
        let layers = timing.layers;
        assert_eq!(timing.encode_ns, layers.iter().map(|layer| layer.ns).sum::<u64>() + timing.memory_ns, "{source}");
        let lengths: Vec<u64> = layers.iter().map(|layer| layer.length).collect();
        let [all, fewer] = [values.len() as u64, kept.len() as u64];
        assert_eq!(lengths, [all, all, all, fewer, fewer], "{source}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t5_cuts_a_document_as_if_it_ended_there() {
    let folder = t5_shortened(24);
    let server = t5(folder.path()).await;
    let short = || SummarizeOptions { max_tokens: Some(6), min_tokens: Some(0), ..Default::default() };
    let long = "the river goes on and on and on past the old mill, and the lake, and the hills";
    assert_refused(&server.summarize(short(), &[long]).await.unwrap_err(), Code::InvalidArgument, "TOO_LONG");
    let cut = SummarizeOptions { cut: Some(true), ..short() };
    let cut = server.summarize(cut, &[long]).await.unwrap().finished;
    let usage = cut.usage.unwrap();
    assert_eq!((usage.cut, usage.document_tokens), (true, 24));
    let read = usage.document_bytes.unwrap() as usize;
    assert!(read > 0 && read < long.len(), "{read}");
    let same = server.summarize(short(), &[&long[..read]]).await.unwrap().finished;
    assert_eq!((same.hypotheses, same.usage.unwrap().cut), (cut.hypotheses, false));
    // the prefix alone is longer than the model takes
    let folder = t5_shortened(4);
    let error = load(folder.path(), &settings()).err().unwrap();
    assert!(matches!(&error, Error::Checkpoint { key, .. } if key == "generation.prefix"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_gives_the_same_summaries_under_both_names() {
    let fixture = Fixture::open("t5_v10");
    let server = t5(&golden_data("t5/t5_v10")).await;
    let text = fixture.text("s1");
    let options = search(&fixture.about["settings"]["beam4_es_never"]);
    let expected = server.summarize(options, &[&text]).await.unwrap();
    fixture.check("s1", "beam4_es_never", &expected);
    let texts: Vec<&str> = expected.finished.hypotheses.iter().map(|other| other.text.as_str()).collect();
    let search = json!({ "max_new_tokens": 30, "min_new_tokens": 6, "length_penalty": 2.0, "no_repeat_ngram_size": 3,
        "early_stopping": "never", "repetition_penalty": 1.0 });
    let with = |own: Value| {
        let all = [&search, &own].into_iter().flat_map(|part| part.as_object().unwrap().clone());
        Value::Object(all.collect())
    };
    let body = with(json!({ "document": text, "num_beams": 4, "hypotheses": 4 }));
    let answer = server.post_to("/v1/summaries", &body).await.json();
    assert_eq!(answer["text"], texts[0]);
    let timing = &answer["timing"];
    assert!(timing["kept_share"] == 1.0 && timing["encode_ns"].as_u64() > Some(0), "{timing}");
    assert_eq!(timing["cross_attention_bytes"], answer["usage"]["cross_attention_bytes"], "{timing}");
    let found = answer["hypotheses"].as_array().unwrap().iter().map(|other| other["text"].as_str().unwrap());
    assert_eq!(found.collect::<Vec<_>>(), texts);
    // OpenAI's call: the prompt is the document
    let names = json!({ "max_tokens": 30, "min_tokens": 6, "prompt": text, "n": 4, "best_of": 4, "temperature": 0 });
    let mut body = with(names);
    ["max_new_tokens", "min_new_tokens"].iter().for_each(|name| drop(body.as_object_mut().unwrap().remove(*name)));
    let answer = server.post(&body).await.json();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect::<Vec<_>>(), texts);
    for (rank, (choice, hypothesis)) in choices.iter().zip(&expected.finished.hypotheses).enumerate() {
        let reason = if hypothesis.ids.last() == Some(&1) { "stop" } else { "length" };
        assert_eq!((&choice["index"], choice["finish_reason"].as_str()), (&json!(rank), Some(reason)));
        assert!((choice["weir"]["score"].as_f64().unwrap() - f64::from(hypothesis.score)).abs() < 1e-6);
    }
    let usage = expected.finished.usage.unwrap();
    let generated: usize = expected.finished.hypotheses.iter().map(|other| other.ids.len()).sum();
    assert_eq!(answer["usage"]["prompt_tokens"], usage.document_tokens);
    assert_eq!(answer["usage"]["completion_tokens"], generated);
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!("t5_v10")));
    assert_eq!(choices[0]["weir"]["usage"]["cut"], false);
    // a stream
    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    let mut events = server.post(&body).await.events();
    let last = events.pop().unwrap();
    assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &answer["usage"]));
    let mut streamed = vec![String::new(); 4];
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        streamed[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
    }
    assert_eq!(streamed, texts);
    assert!(events.iter().all(|event| event["usage"].is_null() && event["id"] == last["id"]));
    assert!(events[0]["choices"][0]["finish_reason"].is_null(), "{}", events[0]);
    // a prompt without options takes the checkpoint's defaults; a list is answered in its order
    let both = json!({ "prompt": [text, "also known"], "max_tokens": 12, "min_tokens": 0 });
    let answer = server.post(&both).await.json();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!((choices.len(), &choices[1]["index"]), (2, &json!(1)));
    let alone = json!({ "document": "also known", "max_tokens": 12, "min_tokens": 0 });
    let alone = server.post_to("/v1/summaries", &alone).await.json();
    assert_eq!(choices[1]["text"], alone["text"]);
    // sampling
    let drawn = json!({ "prompt": text, "max_tokens": 8, "min_tokens": 0, "temperature": 1.5, "seed": 3 });
    let [first, second] = [server.post(&drawn).await, server.post(&drawn).await];
    assert_eq!(first.json()["choices"][0]["text"], second.json()["choices"][0]["text"]);
}
