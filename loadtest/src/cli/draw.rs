//! `weir-loadtest draw`: saved measurements drawn again.

use super::output::OutputArgs;
use crate::{
    error::{Error, Result},
    report::data,
};
use std::path::PathBuf;

/// The most files of a page.
const MAX_FILES: usize = 64;

/// Draws saved measurements.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What --json wrote, of any number of measurements.
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
    let mut documents = Vec::new();
    for file in &files {
        documents.extend(data::read(file)?);
    }
    output.tell(&documents)
}
