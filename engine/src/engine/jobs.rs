//! Turns a job into the session that runs it, and refuses what could not run within the engine's limits.

use super::api::{Job, Limits};
use crate::{
    decode::{contract::Model, options::Generate, session::Session},
    error::{Error, Result},
};

/// The field that decides how much text a distribution follows.
const CURSOR: &str = "complete.cursor_byte";

/// The names of a job's fields in errors.
struct FieldNames {
    /// The call, if the model does not continue texts.
    call: &'static str,
    /// The field that alone makes too much work.
    text: &'static str,
    /// The field that makes too much work with the text.
    work: &'static str,
    /// The field that alone needs too much memory.
    held: &'static str,
    /// The field that needs too much memory with the text.
    memory: &'static str,
}

/// Creates the session of a job. Fails if the job is invalid, if the model does not continue texts, and with `TooMuchWork` or
/// `NeverFits` if it could not run even alone.
pub(super) fn open(job: Job, model: &dyn Model, limits: &Limits) -> Result<Session> {
    let card = model.card();
    let names = FieldNames::of(&job);
    check_takes_texts(names.call, model)?;
    let session = match job {
        Job::Generate(request) => {
            let speculation = request.speculation.or(Some(limits.speculation));
            Session::generate(Generate { speculation, ..request }, card)
        }
        Job::Score(request) => Session::score(request, card),
        Job::Code(request) => Session::code(request, card),
        Job::Next(request) => Session::next_symbol(request, card),
    }?;
    check_work(&session, names.text, names.work, limits.request_work)?;
    check_fits(&session, names.held, names.memory, model)?;
    Ok(session)
}

impl FieldNames {
    fn of(job: &Job) -> Self {
        match job {
            Job::Generate(_) => Self {
                call: "Generate",
                text: "prompt",
                work: "stopping.max_chars",
                held: "prompt",
                memory: "stopping.max_chars",
            },
            Job::Score(request) if request.windows.is_some() => Self {
                call: "Score",
                text: "text",
                work: "windows.stride",
                held: "windows.length",
                memory: "windows.length",
            },
            Job::Score(_) => Self { call: "Score", text: "text", work: "text", held: "text", memory: "text" },
            Job::Code(_) => Self {
                call: "the codec",
                text: "block",
                work: "windows.stride",
                held: "windows.length",
                memory: "windows.length",
            },
            Job::Next(_) => Self { call: "Edit", text: CURSOR, work: CURSOR, held: CURSOR, memory: CURSOR },
        }
    }
}

/// Rejects a text for a model that summarizes documents.
fn check_takes_texts(call: &'static str, model: &dyn Model) -> Result<()> {
    let card = model.card();
    if model.document_encoder().is_none() {
        return Ok(());
    }
    let found = format!("a model that summarizes (use Summarize): {}", card.shape);
    Err(Error::WrongKind { call, model: card.name.clone(), wanted: "continues a prompt", found })
}

/// Rejects a text that would feed more than `limit` symbols. The error names `text_field` if the text alone does, and
/// `other_field` otherwise.
fn check_work(session: &Session, text_field: &'static str, other_field: &'static str, limit: usize) -> Result<()> {
    let work = session.max_work();
    if work <= limit {
        return Ok(());
    }
    let field = if session.prompt_symbols() > limit { text_field } else { other_field };
    Err(Error::TooMuchWork { field, work, limit })
}

/// Rejects a text that could not run even alone. The error names `prompt_field` if the prompt alone is too long, and
/// `length_field` otherwise.
fn check_fits(
    session: &Session,
    prompt_field: &'static str,
    length_field: &'static str,
    model: &dyn Model,
) -> Result<()> {
    let needed = model.bytes_for(session.max_symbols());
    let limit = model.memory().limit;
    if needed <= limit {
        return Ok(());
    }
    let prompt_alone = model.bytes_for(session.prompt_symbols()) > limit;
    Err(Error::NeverFits { field: if prompt_alone { prompt_field } else { length_field }, needed, limit })
}
