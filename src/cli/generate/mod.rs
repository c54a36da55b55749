//! `weir generate`: streams text generated from a prompt, by an engine in this process or by a server.

mod args;
mod printer;
mod process;
mod server;

pub use args::Args;

use super::model_source::ModelSource;
use crate::error::Result;

/// Runs the command. Fails if the checkpoint, the prompt or an option is invalid, if the server rejects the call, or if stdout
/// cannot be written.
pub fn run(args: Args) -> Result<()> {
    match args.model.open()? {
        ModelSource::Process(model) => process::run(&args, &model),
        ModelSource::Server(model) => server::run(&args, &model),
    }
}
