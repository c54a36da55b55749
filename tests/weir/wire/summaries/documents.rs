//! Documents in chunks, highlights, and the reuse of documents.

use super::{
    super::{details, eventually, reason},
    Server, SummaryResponse, best, chunk, options, parts, read,
};
use crate::document_model::{BLOCK, TOKENS};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};
use weir::{
    config::{Access, Credentials, Keys, TransportConfig},
    decode::summary::Summarize,
    engine::Limits,
};
use weir_proto::v1::{self, SummarizeOptions};

#[tokio::test]
async fn a_document_in_chunks_is_summarized_with_what_was_selected() {
    let server = Server::new().await;
    let text = "A café in Köln, and what it pools: größe! ".repeat(5);
    // chunks of seven characters
    let signs: Vec<String> = text.chars().collect::<Vec<_>>().chunks(7).map(|signs| signs.iter().collect()).collect();
    let chunks: Vec<&str> = signs.iter().map(String::as_str).collect();
    let answer = server.answer(SummarizeOptions::default(), &chunks).await.unwrap();
    let (ids, score) = best(&text, &Summarize::default(), &server.model);
    let v1::SummaryFinished { hypotheses, usage, timing, document_id, reason, parts } = answer.finished;
    assert_eq!((hypotheses.len(), &hypotheses[0].ids, hypotheses[0].score), (1, &ids, score));
    assert_eq!(hypotheses[0].logprobs.len(), ids.len());
    assert_eq!((answer.text, hypotheses[0].text.len()), (hypotheses[0].text.clone(), ids.len() - 1));
    assert!(reason > 0 && document_id.is_some() && parts.is_empty());
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
) -> Result<SummaryResponse, Status> {
    let mut request = Request::new(tokio_stream::iter(parts(request_options, chunks)));
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    read(server.client().summarize(request).await?.into_inner()).await
}

#[tokio::test]
async fn a_document_belongs_to_its_sender() {
    let keys = Keys::parse("alice:a-key-that-alice-has\nbob:another-key-that-bob-has").unwrap();
    let access = Access::from(Credentials { keys: Some(keys), ..Credentials::default() });
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
            assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, "TOO_LONG"));
            assert_eq!(details(&status).error_info().unwrap().metadata["limit"], (TOKENS - 1).to_string());
        }
        server.at_rest().await;
    }
    // the longest document that fits
    let fits = server.answer(SummarizeOptions::default(), &[&long[..TOKENS - 1]]).await.unwrap();
    assert!(!fits.finished.usage.unwrap().cut);
}
