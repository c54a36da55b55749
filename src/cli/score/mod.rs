//! `weir score`: bits per character of a text, and all outputs needed to compare two implementations, from a model in this process
//! or from a server.

mod args;
mod lengths;
mod marked_text;
mod process;
mod scored_text;
mod scores;
mod server;
mod text_bits;
mod windowed_text;

pub use args::Args;
pub(super) use args::parse_windows;

use super::{flag_names::with_flag, model_source::ModelSource};
use crate::error::{Error, Result};
use scores::print;

/// Runs the command. Fails if the checkpoint or the text is invalid, if the server rejects the call, or if an output file cannot
/// be written.
pub fn run(args: Args) -> Result<()> {
    match args.model.open()? {
        ModelSource::Process(model) => {
            let model = &*model;
            let (symbols, has_end) = args.text.symbols_and_end(model)?;
            match args.windowed {
                _ if !args.lengths.is_empty() => print(args.json, &process::lengths(&args, model, &symbols)?),
                Some(_) if has_end => {
                    let bound = "no end-of-text symbol with --windowed (no window scores it)";
                    Err(Error::bad_option("--ids", "one at the end", bound))
                }
                Some(size) => print(args.json, &process::windowed(&args, model, &symbols, size)?),
                None => print(args.json, &process::whole(&args, model, &symbols, has_end)?),
            }
        }
        ModelSource::Server(model) => {
            let text = args.text.text()?;
            let in_flags = |error| with_flag(error, "text", args.text.flag());
            match args.windowed {
                _ if !args.lengths.is_empty() => {
                    print(args.json, &server::lengths(&args, &model, &text).map_err(in_flags)?)
                }
                Some(size) => print(args.json, &server::windowed(&args, &model, text, size).map_err(in_flags)?),
                None => print(args.json, &server::whole(&args, &model, text).map_err(in_flags)?),
            }
        }
    }
}
