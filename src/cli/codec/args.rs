//! Flags of `weir compress` and `weir decompress`.

use crate::{
    cli::{
        model::{ModelArgs, count, isa},
        score::parse_windows,
    },
    decode::{
        codec::{DEFAULT_BLOCK, MAX_BLOCK},
        options::WindowOptions,
    },
    family::load::MAX_SYMBOLS,
    kernels::Isa,
};
use std::path::PathBuf;

/// Maximum rows of a batch.
const MAX_ROWS: usize = 256;

/// Compresses texts losslessly with a model.
#[derive(Debug, clap::Args)]
pub struct CompressArgs {
    /// Maximum symbols of a block. Blocks are compressed apart from each other, side by side.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_BLOCK, value_parser = count(1..=MAX_BLOCK), env = "WEIR_BLOCK")]
    pub(super) block: usize,
    /// The model reads a block in windows of LENGTH symbols, each of which predicts its last STRIDE symbols. Default: twice the
    /// training length, and three quarters of that.
    #[arg(long, value_name = "LENGTH,STRIDE", value_parser = parse_windows, env = "WEIR_WINDOWED")]
    pub(super) windowed: Option<WindowOptions>,
    /// Rewrite the text like the model's training text first. `decompress` then returns the rewritten text.
    #[arg(long, env = "WEIR_NORMALISE", value_parser = clap::builder::BoolishValueParser::new())]
    pub(super) normalise: bool,
    #[command(flatten)]
    pub(super) codec: CodecArgs,
    #[command(flatten)]
    pub(super) model: ModelArgs,
}

/// Decompresses texts with the model that compressed them.
#[derive(Debug, clap::Args)]
pub struct DecompressArgs {
    #[command(flatten)]
    pub(super) codec: CodecArgs,
    #[command(flatten)]
    pub(super) model: ModelArgs,
}

/// Flags of both commands.
#[derive(Debug, clap::Args)]
pub(super) struct CodecArgs {
    /// Blocks that run side by side, as rows of one batch.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count(1..=MAX_ROWS), env = "WEIR_ROWS")]
    pub(super) rows: usize,
    /// Symbols per step of all rows together, while texts are read. It changes the time, not the result.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = count(1..=MAX_SYMBOLS), env = "WEIR_CHUNK")]
    pub(super) chunk: usize,
    /// Instruction set of the kernels: amx, avx512, avx2 or portable. The first three compute the same bits, portable others. Default:
    /// the widest that the processor and the system permit.
    #[arg(long, value_name = "NAME", value_parser = isa, env = "WEIR_ISA")]
    pub(super) isa: Option<Isa>,
    /// Overwrite existing files.
    #[arg(long, env = "WEIR_FORCE", value_parser = clap::builder::BoolishValueParser::new())]
    pub(super) force: bool,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    pub(super) json: bool,
    /// One or more files, then the file to write. If that is a folder, each file gets a name in it: with `.weir` after it when it is
    /// compressed, without when it is decompressed.
    #[arg(value_name = "FILE", required = true, num_args = 2..)]
    pub(super) paths: Vec<PathBuf>,
}
