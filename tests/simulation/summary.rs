//! Summaries of documents, which are encoded while they arrive, or come from the cache.

use crate::{
    client::{Client, End},
    document_model::{DocumentModel, MARKS, logits},
    plan::{CallPlan, Reading},
};
use tokio::time::sleep;
use tonic::{Status, Streaming};
use tonic_types::StatusExt;
use weir::decode::{
    beam::{BeamSearch, RowMove, SearchStep},
    contract::Model,
    summary::Summarize,
};
use weir_proto::v1::{
    DocumentChunk, SummarizeOptions, SummarizeRequest, SummarizeResponse, SummaryFinished,
    summarization_client::SummarizationClient, summarize_request::Part, summarize_response::Event,
};

/// Bytes of a message of a request.
const PIECE: usize = 7;
/// Symbols of the document model.
const SYMBOLS: usize = 256;

impl Client {
    /// Summarizes the prompt, and once more from the cache if the server has kept it. Checks the summaries.
    pub(crate) async fn summarize(&self, plan: &CallPlan, name: &str) -> Result<End, Status> {
        let pieces = plan.prompt.as_bytes().chunks(PIECE).map(String::from_utf8_lossy);
        let chunks = pieces.map(|piece| Part::Chunk(DocumentChunk { text: piece.into_owned() }));
        let options = self.summary_options(plan, None);
        let parts = [Part::Options(options)].into_iter().chain(chunks).collect();
        let Some(finished) = self.summary(plan, name, parts).await? else { return Ok(End::Cancelled) };
        let Some(id) = finished.document_id else { return Ok(End::Complete) };
        let options = self.summary_options(plan, Some(id));
        match self.summary(plan, name, vec![Part::Options(options)]).await {
            Ok(Some(_)) => self.world.log.count("summary of a cached document", 1),
            Ok(None) => return Ok(End::Cancelled),
            // another document has taken its place
            Err(status) if reason(&status).as_deref() == Some("UNKNOWN_DOCUMENT") => {
                self.world.log.count("document that was not kept", 1);
            }
            Err(status) => return Err(status),
        }
        Ok(End::Complete)
    }

    fn summary_options(&self, plan: &CallPlan, document_id: Option<String>) -> SummarizeOptions {
        let Summarize { beam, min_tokens, max_tokens, .. } = search(plan, self.world.plan.limits.rows);
        SummarizeOptions {
            beam_size: beam.map(|beam| beam as u32),
            min_tokens: min_tokens.map(|count| count as u32),
            max_tokens: max_tokens.map(|count| count as u32),
            priority: Some(plan.priority),
            document_id,
            ..Default::default()
        }
    }

    /// Sends a request, and reads its response as the plan says. Returns its last message, or `None` if the client cancels the call.
    async fn summary(&self, plan: &CallPlan, name: &str, parts: Vec<Part>) -> Result<Option<SummaryFinished>, Status> {
        let parts = parts.into_iter().map(|part| SummarizeRequest { part: Some(part) });
        let mut client = SummarizationClient::new(self.channel.clone());
        let call = client.summarize(self.request(plan, name, tokio_stream::iter(parts)));
        let mut messages: Streaming<SummarizeResponse> = call.await?.into_inner();
        let mut text = String::new();
        let mut started = false;
        let mut finished = None;
        for number in 0.. {
            match plan.reading {
                Reading::Slow(pause) => sleep(pause).await,
                Reading::Late(pause) if number == 0 => sleep(pause).await,
                Reading::Cancel(messages) if number >= messages => return Ok(None),
                _ => {}
            }
            match messages.message().await?.map(|message| message.event) {
                Some(Some(Event::Started(_))) if !started => started = true,
                Some(Some(Event::Progress(_) | Event::Selected(_))) if started && text.is_empty() => {}
                Some(Some(Event::Piece(piece))) if started && finished.is_none() => text.push_str(&piece.text),
                Some(Some(Event::Finished(last))) if started && finished.is_none() => finished = Some(last),
                Some(other) => self.world.log.violation(format_args!("{name}: message {number} is {other:?}")),
                None => break,
            }
        }
        let expected = best(&plan.prompt, &search(plan, self.world.plan.limits.rows), &self.world.reader);
        let found = finished.as_ref().and_then(|finished| finished.hypotheses.first());
        if text != expected || found.map(|found| &found.text) != Some(&expected) {
            self.world.log.violation(format_args!("{name}: {text:?} and {found:?} instead of {expected:?}"));
        }
        Ok(finished)
    }
}

/// Returns the options of the planned call.
fn search(plan: &CallPlan, rows: usize) -> Summarize {
    Summarize {
        beam: Some(rows.min(2)),
        min_tokens: Some(1),
        max_tokens: Some(plan.count.clamp(1, 40)),
        ..Summarize::default()
    }
}

/// Returns the best summary of a text, from a beam search without a server.
fn best(text: &str, request: &Summarize, model: &DocumentModel) -> String {
    let document: Vec<u32> = text.bytes().map(u32::from).chain([MARKS.end]).collect();
    let rules = request.plan(model.card(), model.document_encoder().unwrap().limits(), 2).unwrap().rules;
    let mut search = BeamSearch::new(rules, MARKS, SYMBOLS);
    let mut rows = vec![vec![MARKS.start]];
    loop {
        let row_logits: Vec<_> = rows.iter().map(|row| logits(&document, row)).collect();
        match search.advance(row_logits.iter().map(Vec::as_slice)).unwrap() {
            SearchStep::Done => {
                let tokens = search.finished()[0].tokens.iter().filter(|token| **token != MARKS.end);
                return tokens.map(|token| char::from(*token as u8)).collect();
            }
            SearchStep::Continue(moves) => {
                let grown = |&RowMove { parent, token }: &RowMove| [rows[parent].as_slice(), &[token]].concat();
                rows = moves.iter().map(grown).collect();
            }
        }
    }
}

fn reason(status: &Status) -> Option<String> {
    status.get_error_details().error_info().map(|info| info.reason.clone())
}
