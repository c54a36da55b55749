//! An engine's first steps, before it serves: they touch caches, tables and pages once, and reveal a model that cannot step. The
//! engine's own caches of texts and documents stay empty.

use crate::{
    decode::{
        document::DocumentLimits,
        options::{Generate, Sampling, Stopping},
        summary::{ByteRange, Summarize},
    },
    engine::{DocumentEvent, DocumentSource, Event, Events, Handle, Job, Terms},
    error::{Error, Result},
};
use std::sync::Arc;

/// Tenant of the warm-up.
const TENANT: &str = "weir:warm-up";
/// Number of characters to generate.
const CHARS: usize = 16;
/// Number of different symbols in the prompt. Their choice does not matter.
const SYMBOLS: usize = 4;

/// Runs a prompt of one full chunk and a few characters through the engine. Blocks until the request ends. Fails with
/// the error that the engine reports.
pub(crate) fn run(engine: &Handle) -> Result<()> {
    match engine.document_limits() {
        None => finish(text(engine)?),
        Some(limits) => finish(document(engine, limits)?),
    }
}

fn text(engine: &Handle) -> Result<Events> {
    let card = engine.card();
    let chars = CHARS.min(card.max_symbols.saturating_sub(1)).max(1);
    let length = engine.limits().chunk.min(card.max_symbols.saturating_sub(chars)).max(1);
    let symbols: Vec<u32> = card.vocabulary.text_ids().take(SYMBOLS).collect();
    let prompt = symbols.iter().copied().cycle().take(length).collect();
    let job = Generate {
        prompt,
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        stopping: Stopping {
            max_chars: chars,
            min_chars: 0,
            max_segments: None,
            stop: Vec::new(),
            include_stop: false,
            ignore_end: true,
        },
        details: Default::default(),
        boundaries: Default::default(),
        resumed: Vec::new(),
        speculation: None,
    };
    engine.submit(Job::Generate(job), terms())
}

/// Summarizes a document of at most two blocks into a few tokens.
fn document(engine: &Handle, limits: &DocumentLimits) -> Result<Events> {
    let marks = limits.marks;
    let symbols = engine.card().vocabulary.text_ids().filter(|id| ![marks.start, marks.pad, marks.end].contains(id));
    let symbols: Vec<u32> = symbols.take(SYMBOLS).collect();
    let length = limits.tokens.min(limits.block.saturating_mul(2)).saturating_sub(1).max(1);
    let ids: Vec<u32> = symbols.iter().copied().cycle().take(length).chain([marks.end]).collect();
    let (upload, document) = engine.upload();
    upload.use_once();
    let tokens = CHARS.min(limits.targets.saturating_sub(1)).max(1);
    let request = Summarize {
        beam: Some(1),
        min_tokens: Some(tokens),
        max_tokens: Some(tokens),
        no_repeat_ngram: Some(0),
        ..Summarize::default()
    };
    let events = engine.summarize(&request, DocumentSource::Uploading(document), terms())?;
    upload.push(&ids, &vec![ByteRange::default(); ids.len()]);
    upload.close(false);
    Ok(events)
}

fn terms() -> Terms {
    Terms { tenant: Arc::from(TENANT), use_once: true, ..Terms::default() }
}

fn finish(mut events: Events) -> Result<()> {
    loop {
        match events.blocking_recv() {
            Some(Ok(Event::Finished { .. } | Event::Document(DocumentEvent::Summarized(_)))) => return Ok(()),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => return Err(Error::Internal("the engine dropped the warm-up request without an event".into())),
        }
    }
}
