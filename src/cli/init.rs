//! `weir init`: creates a checkpoint of a given shape with random weights.

use crate::cli::output::{self, Progress};
use std::path::PathBuf;
use weir_kernels::error::Result;
use weir_models::checkpoint::FileDtype;
use weir_models::load::{RandomWeights, init_with_progress};

/// Creates a checkpoint with random weights.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shape of the model: a file like a checkpoint's config.json. models/shapes/ contains examples.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Folder to write the checkpoint to.
    dest: PathBuf,
    /// Seed of the random weights.
    #[arg(long, value_name = "N", default_value_t = 0, env = "WEIR_SEED")]
    seed: u64,
    /// Number format of the matrices in the file. Vectors are f32.
    #[arg(long, value_name = "TYPE", value_enum, default_value = "f32")]
    dtype: StoredDtype,
    /// Replace an existing checkpoint, including its model card and shards. A folder with other files is never replaced.
    #[arg(long, env = "WEIR_FORCE")]
    force: bool,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// Number format of a checkpoint's matrices.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(super) enum StoredDtype {
    /// 32-bit floats.
    F32,
    /// The upper half of a 32-bit float.
    Bf16,
    /// 8-bit integers, with an f32 scale for each row of a matrix.
    Int8,
}

impl From<StoredDtype> for FileDtype {
    fn from(dtype: StoredDtype) -> Self {
        match dtype {
            StoredDtype::F32 => Self::F32,
            StoredDtype::Bf16 => Self::Bf16,
            StoredDtype::Int8 => Self::I8,
        }
    }
}

/// Creates the checkpoint and prints its shape, size and hash. Fails if a setting is invalid, or if DEST is
/// not empty and `--force` may not replace it.
pub fn run(args: Args) -> Result<()> {
    let mut progress = Progress::numbers();
    let report = &mut |done, total| progress.update(done, total);
    let weights = RandomWeights { seed: args.seed, matrices: args.dtype.into() };
    let written = init_with_progress(&args.config, &args.dest, weights, args.force, report)?;
    drop(progress);
    output::checkpoint(&args.dest, &written, args.json)
}
