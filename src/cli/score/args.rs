//! Flags of `weir score`.

use crate::{
    cli::{
        model::{BoundaryArgs, TextArgs, whole},
        model_source::ModelSourceArgs,
    },
    decode::options::WindowOptions,
};
use std::path::PathBuf;

/// Scores a text.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) text: TextArgs,
    #[command(flatten)]
    pub(super) boundaries: BoundaryArgs,
    /// How the text is split into steps. The results are identical.
    #[arg(long, value_enum, default_value_t = ModeArg::Chunked)]
    pub(super) mode: ModeArg,
    /// Symbols per step in chunked mode.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = whole::<u32>(1..=u32::MAX), env = "WEIR_CHUNK")]
    pub(super) chunk: u32,
    /// Evaluate as the papers do: windows of LENGTH symbols, each of which scores its last STRIDE symbols. Outputs at a symbol
    /// come from the window that scores the next symbol; the last symbol has none.
    #[arg(long, value_name = "LENGTH,STRIDE", conflicts_with = "mode", value_parser = parse_windows, env = "WEIR_WINDOWED")]
    pub(super) windowed: Option<WindowOptions>,
    /// Bits per character by length: splits the text into independent pieces of each LENGTH. Every length scores the same
    /// symbols.
    #[arg(long, value_name = "LENGTH,…", value_delimiter = ',', conflicts_with_all = ["mode", "windowed", "logits"],
        value_parser = whole::<u32>(1..=u32::MAX), env = "WEIR_LENGTHS")]
    pub(super) lengths: Vec<u32>,
    /// Write logits (symbols, vocabulary) and, for pooled models, boundaries (symbols) to this safetensors file.
    #[arg(long, value_name = "OUT", env = "WEIR_LOGITS")]
    pub(super) logits: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) model: ModelSourceArgs,
}

/// Values of `--mode`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(super) enum ModeArg {
    /// All symbols in one step.
    Full,
    /// One symbol per step.
    Incremental,
    /// `--chunk` symbols per step.
    Chunked,
}

/// Parses two numbers LENGTH,STRIDE.
pub(in crate::cli) fn parse_windows(text: &str) -> std::result::Result<WindowOptions, String> {
    let numbers = text.split_once(',').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    match numbers {
        Some((length, stride)) if 1 <= stride && stride <= length => Ok(WindowOptions { length, stride }),
        _ => Err("expected two numbers LENGTH,STRIDE with 1 ≤ STRIDE ≤ LENGTH".into()),
    }
}
