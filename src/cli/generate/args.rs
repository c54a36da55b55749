//! Flags of `weir generate`.

use crate::{
    cli::{
        model::{BoundaryArgs, speculation},
        model_source::ModelSourceArgs,
    },
    decode::speculation::Speculation,
};
use clap::ArgGroup;

/// Generates text.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true, group = ArgGroup::new("input").args(["prompt", "ids"]).required(true))]
pub struct Args {
    /// Text to continue.
    #[arg(long)]
    pub(super) prompt: Option<String>,
    /// Symbol ids of the prompt, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub(super) ids: Option<Vec<u32>>,
    /// Maximum symbols to generate. Default: 256, or fewer if the prompt leaves less room.
    #[arg(long, value_name = "N", env = "WEIR_MAX_CHARS", visible_alias = "max-tokens")]
    pub(super) max_chars: Option<usize>,
    /// Minimum symbols before a stop string takes effect.
    #[arg(long, value_name = "N", default_value_t = 0, env = "WEIR_MIN_CHARS")]
    pub(super) min_chars: usize,
    /// Maximum segments to close.
    #[arg(long, value_name = "N", env = "WEIR_MAX_SEGMENTS")]
    pub(super) max_segments: Option<usize>,
    /// Stop before this string. The flag can be repeated.
    #[arg(long, value_name = "TEXT", env = "WEIR_STOP")]
    pub(super) stop: Vec<String>,
    /// Do not let the model end the text, if it has an end-of-text symbol or an end byte.
    #[arg(long, env = "WEIR_IGNORE_EOS", value_parser = clap::builder::BoolishValueParser::new())]
    pub(super) ignore_eos: bool,
    /// Sampling temperature; 0 selects the most probable symbol each time. Default: the checkpoint's, else 1.
    #[arg(long, value_name = "T", env = "WEIR_TEMPERATURE")]
    pub(super) temperature: Option<f32>,
    /// Sample from the K most probable symbols; 0 keeps all. Default: the checkpoint's, else 0.
    #[arg(long, value_name = "K", env = "WEIR_TOP_K")]
    pub(super) top_k: Option<usize>,
    /// Sample from the most probable symbols whose probabilities add up to P. Default: the checkpoint's, else 1.
    #[arg(long, value_name = "P", env = "WEIR_TOP_P")]
    pub(super) top_p: Option<f32>,
    /// Sample from symbols at least P times as probable as the most probable one. Default: the checkpoint's, else 0.
    #[arg(long, value_name = "P", env = "WEIR_MIN_P")]
    pub(super) min_p: Option<f32>,
    /// Penalize symbols that occurred before by this factor; 1 has no effect. Default: the checkpoint's, else 1.
    #[arg(long, value_name = "X", env = "WEIR_REPETITION_PENALTY")]
    pub(super) repetition_penalty: Option<f32>,
    /// Guess characters that are checked in one step: `auto`, `off`, or the most characters to guess at a time, 1 to 16. The text
    /// does not depend on it. Default: the server's setting; without a server `off`.
    #[arg(long, value_name = "auto|off|N", env = "WEIR_SPECULATE", value_parser = speculation)]
    pub(super) speculate: Option<Speculation>,
    #[command(flatten)]
    pub(super) boundaries: BoundaryArgs,
    /// Print JSON when generation has finished.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) model: ModelSourceArgs,
}

impl Args {
    /// Returns the text of the prompt. Empty if the prompt is given as ids, which a server does not take.
    pub(super) fn prompt_text(&self) -> &str {
        self.prompt.as_deref().unwrap_or_default()
    }
}
