//! `weir score`: bits per character of a text, and all outputs needed to compare two implementations. A model in this process is
//! evaluated directly, because a server has neither its logits nor its exact log-probabilities.

mod args;
mod lengths;
mod scored_text;
mod scorer;
mod windowed_text;

pub use args::Args;
pub(super) use args::parse_windows;

use super::{
    direct::Evaluation,
    model_source::{DescribedModel, ModelSource},
    output,
};
use crate::{
    decode::{contract::Model, evaluate::StepSize},
    error::{Error, Result},
};
use args::ModeArg;
use lengths::LengthScores;
use scored_text::ScoredText;
use scorer::Scorer;
use windowed_text::WindowedText;

/// Runs the command. Fails if the checkpoint or the text is invalid, if the server rejects the call, or if an output file cannot
/// be written.
pub fn run(args: Args) -> Result<()> {
    match args.model.open()? {
        ModelSource::Process(model) => {
            let model: &dyn Model = &*model;
            let (symbols, has_end) = args.text.symbols_and_end(model)?;
            if has_end && args.windowed.is_some() {
                let bound = "no end-of-text symbol with --windowed (no window scores it)";
                return Err(Error::bad_option("--ids", "one at the end", bound));
            }
            let step = match args.mode {
                ModeArg::Full => StepSize::Full,
                ModeArg::Incremental => StepSize::Incremental,
                ModeArg::Chunked => StepSize::Chunked(args.chunk as usize),
            };
            print(
                &args,
                &Scorer::Direct(Evaluation {
                    model,
                    symbols: &symbols,
                    has_end,
                    flag: args.text.flag(),
                    step,
                    boundaries: args.boundaries.options(),
                    logits: args.logits.as_deref(),
                }),
            )
        }
        ModelSource::Server(model) => {
            let text = args.text.text()?;
            print(&args, &Scorer::Served(DescribedModel::new(&model)?, text))
        }
    }
}

fn print(args: &Args, scorer: &Scorer<'_>) -> Result<()> {
    let (json, text) = if !args.lengths.is_empty() {
        let scores = LengthScores::new(args, scorer)?;
        (scores.as_json(), scores.as_text())
    } else if let Some(windows) = args.windowed {
        let scores = WindowedText { scores: scorer.score(args, Some(windows))?, windows };
        (scores.as_json(), scores.as_text())
    } else {
        let scores = scorer.score(args, None)?;
        let (default, is_pooled) = scorer.boundaries()?;
        let scores = ScoredText { scores, mode: args.boundaries.boundary_mode.or(default), is_pooled };
        (scores.as_json(), scores.as_text())
    };
    if args.json { output::json(&json) } else { output::write(&text) }
}
