//! `weir-loadtest draw`: draws saved measurements again.

use super::output::OutputArgs;
use crate::{
    error::{Error, Result},
    report::data,
};
use std::path::PathBuf;

/// Maximum files.
const MAX_FILES: usize = 64;

/// Draws saved measurements.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Files that --json wrote, each with any number of measurements.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: Args) -> Result<()> {
    let Args { files, output } = args;
    if files.len() > MAX_FILES {
        return Err(Error::option("FILE", files.len(), format!("at most {MAX_FILES} files")));
    }
    let mut reports = Vec::new();
    for file in &files {
        reports.extend(data::read(file)?);
    }
    output.write(&reports)
}
