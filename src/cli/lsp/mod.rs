//! `weir lsp`: a language server on standard input and output, which completes texts with a model in this process or on a server.
//!
//! Both use the same gRPC calls: the process serves a local model to itself over in-memory connections. One loop takes the
//! client's messages (`server`); each document that asks for completions has a stream of `Editing.Edit` (`sessions`), and one that
//! rests is checked for misspelt words (`diagnostics`).

mod diagnostics;
mod documents;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod protocol;
mod server;
mod sessions;

use crate::cli::{
    check::piece_bytes,
    lsp::{
        diagnostics::{CheckOptions, Checks, PIECE_BYTES},
        documents::{DocumentLimits, Documents},
        server::LanguageServer,
        sessions::{CompletionOptions, Sessions},
    },
    model::{DescribedModel, ModelSourceArgs, ServedModel, named, size, whole},
};
use clap::builder::TypedValueParser;
use std::{
    io::{BufReader, stdin, stdout},
    time::Duration,
};
use tokio::sync::mpsc;
use weir_client::connection::Client;
use weir_engine::{Limits, check::THRESHOLDS};
use weir_kernels::error::{Error, Result};
use weir_proto::v1::{
    CompleteDocument, EditFailure, EditRequest, OpenDocument, Until, edit_request::Action as EditAction,
    edit_response::Event as EditEvent,
};
use weir_server::WRONG_KIND_OF_MODEL;

/// Memory for the states of texts, if the model runs in this process.
const CACHE_BYTES: usize = 128 << 20;

/// Maximum bytes of text before the cursor that the model reads. After a jump to another position, the model computes up to
/// this many again.
const CONTEXT_BYTES: usize = 8 << 10;

/// Maximum queued session events.
const WAITING_EVENTS: usize = 64;

/// Maximum time for the runtime to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(100);

/// Runs the command until the client exits. Fails if the checkpoint is invalid, if the first call fails, if the model does
/// not continue texts, if the client's messages cannot be read, or if it leaves without `shutdown`.
pub fn run(args: Args) -> Result<()> {
    // The first check would only log it.
    if let Some(threshold) = args.threshold.filter(|threshold| !THRESHOLDS.contains(&f64::from(*threshold))) {
        let bound = format!("{} to {}", THRESHOLDS.start(), THRESHOLDS.end());
        return Err(Error::bad_option("--threshold", threshold.to_string(), bound));
    }
    let limits = Limits { cache_bytes: CACHE_BYTES, calibration: Duration::ZERO, ..Limits::default() };
    let served = args.model.open()?.served(limits)?;
    let name = served.name.clone();
    served.call(async |client| check_editing(client, name, args.until).await)?;
    let described = DescribedModel::new(&served)?;
    let max_symbols = size(described.description()?.limits.as_ref().map_or(0, |limits| limits.max_symbols));
    // Half, because normalising may turn a character into several.
    let context_bytes = CONTEXT_BYTES.min(max_symbols.saturating_sub(args.completion_chars as usize) / 2).max(1);
    let check_options = CheckOptions {
        model: described.name(),
        threshold: args.threshold,
        alternatives: args.alternatives,
        piece_bytes: piece_bytes(&described).min(PIECE_BYTES),
    };
    let ServedModel { runtime, client, name } = served;
    let options =
        CompletionOptions { model: name, count: args.count, until: args.until, max_chars: args.completion_chars };
    let input = protocol::read(BufReader::new(stdin()))?;
    let (output, writer) = protocol::write(stdout())?;
    let (sender, events) = mpsc::channel(WAITING_EVENTS);
    let sessions = Sessions::new(client.clone(), options, context_bytes, sender);
    // At most one check runs.
    let (found, checked) = mpsc::channel(1);
    let checks = (!args.no_check).then(|| Checks::new(client, check_options, found));
    let server = LanguageServer::new(Documents::new(DocumentLimits::default()), sessions, checks);
    let served = runtime.block_on(server.run(input, events, checked, output));
    runtime.shutdown_timeout(STOP_TIMEOUT);
    let written = writer.join().map_err(|_| Error::Internal("the thread that writes to stdout panicked".into()))?;
    served.and(written.map_err(Error::io("stdout")))
}

/// Opens an empty document and closes it. Fails with the server's reason if it is refused, or if the model has no completions
/// with the end `until`.
async fn check_editing(client: &Client, model: Option<String>, until: Until) -> Result<()> {
    let (requests, receiver) = mpsc::channel(2);
    let open = EditAction::Open(OpenDocument { model, ..OpenDocument::default() });
    // The shortest completion, of an empty text: only the server knows which models have segments that can end one.
    let shortest =
        CompleteDocument { id: 1, until: Some(Until::Segment.into()), max_chars: Some(1), ..Default::default() };
    let complete = (until == Until::Segment).then_some(EditAction::Complete(shortest));
    for action in [open].into_iter().chain(complete) {
        // Never fails: the channel has room for both.
        let _ = requests.try_send(EditRequest { action: Some(action) });
    }
    drop(requests);
    let mut responses = client.edit(receiver).await?;
    let refused =
        |EditFailure { field, message, .. }: EditFailure| Err(client.rejected_field(field.as_deref(), &message));
    match responses.next().await?.and_then(|response| response.event) {
        Some(EditEvent::Applied(_)) => {}
        Some(EditEvent::Failed(failure)) => return refused(failure),
        _ => return Err(client.incomplete("an answer to open")),
    }
    match responses.next().await?.and_then(|response| response.event) {
        Some(EditEvent::Failed(failure)) if failure.reason == WRONG_KIND_OF_MODEL => refused(failure),
        // Some models cannot complete an empty text.
        _ => Ok(()),
    }
}

/// Completes text in editors and marks misspelt words, as a language server on standard input and output.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// Number of completions, best first: 1 to 16.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole(1..=16u32), env = "WEIR_COUNT")]
    count: u32,
    /// End of a completion: the word, the line or the segment.
    #[arg(long, value_name = "END", default_value = "word", value_parser = end(), env = "WEIR_UNTIL")]
    until: Until,
    /// Maximum symbols of a completion, 1 to 256.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole(1..=256u32), env = "WEIR_COMPLETION_CHARS")]
    completion_chars: u32,
    /// Do not mark misspelt words.
    #[arg(long, env = "WEIR_NO_CHECK", value_parser = clap::builder::BoolishValueParser::new())]
    no_check: bool,
    /// Nats by which another spelling of a word must be more probable to mark it. Default: the server's, 11.5.
    #[arg(long, value_name = "NATS", env = "WEIR_THRESHOLD")]
    threshold: Option<f32>,
    /// Maximum alternatives of a marked word, best first: 1 to 16.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole(1..=16u32), env = "WEIR_ALTERNATIVES")]
    alternatives: u32,
    #[command(flatten)]
    model: ModelSourceArgs,
}

/// The ends of completions, by name.
fn end() -> impl TypedValueParser<Value = Until> {
    named(["word", "line", "segment"], |name| Until::from_str_name(&format!("UNTIL_{}", name.to_uppercase())))
}
