//! An engine's first steps, before anyone depends on them: caches, tables and pages are touched once, and a model that
//! cannot step is found out before it serves.

use crate::{
    decode::options::{Generate, Sampling, Stopping},
    engine::handle::{Event, Handle, Job, Terms},
    error::{Error, Result},
};
use std::sync::Arc;

/// Whose requests these are: what they leave in a cache is nobody else's.
const TENANT: &str = "weir:warm-up";
/// Characters generated.
const CHARS: usize = 16;
/// How many different symbols the prompt has; which ones does not matter.
const SYMBOLS: usize = 4;

/// Runs a prompt of one full chunk and a few characters through the engine. Blocks until they are done.
///
/// # Errors
/// What the engine answers.
pub(super) fn up(engine: &Handle) -> Result<()> {
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
    };
    let terms = Terms { tenant: Arc::from(TENANT), ..Terms::default() };
    let mut events = engine.submit(Job::Generate(job), terms)?;
    loop {
        match events.blocking_recv() {
            Some(Ok(Event::Finished { .. })) => return Ok(()),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => return Err(Error::Internal("the engine dropped its first job without a word".into())),
        }
    }
}
