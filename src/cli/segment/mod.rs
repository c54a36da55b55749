//! `weir segment`: shows the segments of a text, cut by a model in this process or by a server.

mod args;
mod process;
mod server;
mod show;

pub use args::Args;

use super::{color::ColorChoice, flag_names::with_flag, model_source::ModelSource, output};
use crate::error::Result;

/// Runs the command. Fails if the checkpoint or the text is invalid, if the server rejects the call, or if stdout cannot be
/// written.
pub fn run(args: Args, color: ColorChoice) -> Result<()> {
    let text = match args.model.open()? {
        ModelSource::Process(model) => process::run(&args, &*model)?,
        ModelSource::Server(model) => {
            server::run(&args, &model).map_err(|error| with_flag(error, "text", args.text.flag()))?
        }
    };
    if args.json {
        return output::json(&text.as_json());
    }
    output::write(&text.as_text(color.is_on(&std::io::stdout())))
}
