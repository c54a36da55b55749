//! Runs a `Summarize` call whose document may be longer than the model reads. Summarizes the parts one after another, each by a job
//! of its own, then their summaries.

use super::{
    document_upload::{DocumentWorkers, TEXT},
    part_totals::PartTotals,
    response_stream::{MessageEncoder, is_last},
    summary_stream::SummaryEncoder,
    task_response::Output,
    totals::count,
};
use crate::{
    decode::{
        long_documents::{FieldNames, LongDocument, TextPart},
        summary::{Summarize, SummaryResult},
    },
    engine::{DocumentEvent, DocumentSource, Event, Events, Terms, clock},
    error::{Error, Result},
    serve::{call::Call, middleware::body_limits::Reservation, registry::engines::Lease},
};
use std::time::Duration;
use tokio::time::sleep;
use weir_proto::v1::{self, summarize_response::Event as Payload};

/// Names of the options in errors.
const NAMES: FieldNames = FieldNames { text: TEXT, long_documents: "options.long_documents" };
/// How long a part waits before it asks again for a place or memory that others held.
const RETRY: Duration = Duration::from_millis(50);
/// Bytes of a part's message outside of its summary.
const PART_BYTES: usize = size_of::<v1::SummaryPart>();

/// A call whose document is summarized in parts.
pub(super) struct PartedSummary {
    pub(super) engine: Lease,
    pub(super) request: Summarize,
    pub(super) terms: Terms,
    pub(super) workers: DocumentWorkers,
    /// The memory of the document's text, and of the summaries of its parts.
    pub(super) reserved: Reservation,
    pub(super) call: Call,
}

/// The end of a job.
struct JobOutput {
    selected: Vec<v1::Selected>,
    finished: v1::SummaryFinished,
    result: Box<SummaryResult>,
}

impl PartedSummary {
    /// Summarizes a document, and sends the events of the response. Fails as [`LongDocument`] does, and if a job fails.
    pub(super) async fn run(self, text: String, output: &Output<v1::SummarizeResponse>) -> Result<()> {
        let mut totals = PartTotals::new(clock::since(self.call.arrived));
        // Reserved bytes of the round's text, and of the next round's.
        let mut held = text.capacity();
        let mut next_held = 0;
        let mut document = LongDocument::new(text, NAMES);
        let mut parts: Vec<v1::SummaryPart> = Vec::new();
        loop {
            let (next, part) = self.next_part(document).await?;
            document = next;
            let is_first = part.round == 1 && part.number == 1;
            let submitted = clock::since(self.call.arrived);
            let events = self.submit(&part, is_first).await?;
            let job = self.read(events, output, is_first, part.is_whole()).await?;
            totals.add(&job.finished, &job.result);
            if part.is_whole() {
                if let Some(span) = &self.call.span {
                    let (usage, timing) = totals.of_jobs();
                    span.record_job(&self.engine.card().name, usage, timing);
                }
                let finished = totals.finish(job.finished, parts, submitted, clock::since(self.call.arrived));
                return output.send(message(Payload::Finished(finished))).await;
            }
            let (summarized, selected) = summarized_part(&part, job);
            let bytes = summarized.summary.len();
            // Once in the response, and once in the text of the next round.
            self.when_free(true, || self.reserved.add(2 * bytes + PART_BYTES)).await?;
            next_held += bytes;
            totals.add_part(&part);
            let sent = v1::SummaryPart { selected, ..summarized.clone() };
            output.send(message(Payload::Part(sent))).await?;
            document.push_summary(&part, &summarized.summary)?;
            parts.push(summarized);
            if part.is_last {
                self.reserved.release(held);
                held = std::mem::take(&mut next_held);
            }
        }
    }

    /// Tries until other calls leave a place or memory, up to the stall limit if `waits` is true.
    async fn when_free<T>(&self, waits: bool, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let began = clock::now();
        loop {
            match attempt() {
                Err(Error::QueueFull { .. }) if waits && clock::since(began) < self.engine.limits().stall => {
                    sleep(RETRY).await;
                }
                done => return done,
            }
        }
    }

    /// Cuts the next part off the document, on a worker if much text is left.
    async fn next_part(&self, document: LongDocument) -> Result<(LongDocument, TextPart)> {
        let bytes = document.bytes_left();
        let engine = self.engine.clone();
        let work = move || {
            let missing = || Error::Internal("a summarizer without limits".into());
            let limits = engine.document_limits().ok_or_else(missing)?;
            let part = document.next_part(&engine.card().vocabulary, limits)?;
            Ok((document, part))
        };
        let DocumentWorkers { workers, tenant } = &self.workers;
        workers.run(tenant, bytes, work).await?
    }

    /// Submits a part. If the queue is full, the first part fails, and a later one waits up to the stall limit.
    async fn submit(&self, part: &TextPart, is_first: bool) -> Result<Events> {
        // The call was admitted when it arrived.
        let terms = Terms { continues: true, ..self.terms.clone() };
        let submit = || {
            let (upload, incoming) = self.engine.upload();
            upload.push(&part.ids, &part.byte_ranges);
            if !(is_first && part.is_whole()) {
                upload.use_once();
            }
            upload.close(false);
            self.engine.summarize(&self.request, DocumentSource::Uploading(incoming), terms.clone())
        };
        self.when_free(!is_first, submit).await
    }

    /// Reads the events of a job to its end. Sends `started` for the first job, and all messages but the last if the part is the
    /// whole text of its round.
    async fn read(
        &self,
        mut events: Events,
        output: &Output<v1::SummarizeResponse>,
        is_first: bool,
        is_whole: bool,
    ) -> Result<JobOutput> {
        let lost = || Error::Internal("the engine dropped a job without a final event".into());
        let card = self.engine.card();
        let end = self.engine.document_limits().map_or(0, |limits| limits.marks.end);
        let mut encoder = SummaryEncoder::new(card, end, &self.call.id, None);
        let mut selected = Vec::new();
        loop {
            let event = events.recv().await.ok_or_else(lost)??;
            let last = is_last(&event);
            let result = match &event {
                Event::Document(DocumentEvent::Summarized(result)) => Some(result.clone()),
                _ => None,
            };
            encoder.push(event);
            if last {
                encoder.close();
            }
            while let Some(response) = encoder.next() {
                match response.event {
                    Some(Payload::Finished(finished)) => {
                        let result = result.ok_or_else(lost)?;
                        return Ok(JobOutput { selected, finished, result });
                    }
                    Some(Payload::Started(started)) if is_first => {
                        output.send(message(Payload::Started(started))).await?
                    }
                    Some(Payload::Started(_)) | None => {}
                    Some(event) if is_whole => output.send(message(event)).await?,
                    Some(Payload::Selected(kept)) => selected.push(kept),
                    Some(_) => {}
                }
            }
            if last {
                return Err(lost());
            }
        }
    }
}

fn message(event: Payload) -> v1::SummarizeResponse {
    v1::SummarizeResponse { event: Some(event) }
}

/// Returns the message for a part that is summarized, without its spans, and the spans.
fn summarized_part(part: &TextPart, job: JobOutput) -> (v1::SummaryPart, Vec<v1::Selected>) {
    let JobOutput { selected, finished, .. } = job;
    let usage = finished.usage.unwrap_or_default();
    let summarized = v1::SummaryPart {
        round: count(part.round),
        part: count(part.number),
        byte_start: part.start,
        byte_end: part.end,
        round_bytes: part.round_bytes,
        document_tokens: usage.document_tokens,
        summary_tokens: usage.summary_tokens,
        summary: finished.hypotheses.into_iter().next().map(|best| best.text).unwrap_or_default(),
        selected: Vec::new(),
    };
    (summarized, selected)
}
