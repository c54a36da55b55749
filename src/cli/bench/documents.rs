//! `weir bench documents`.

use crate::{
    cli::{
        bench::{setup::BenchArgs, table},
        document::json_lines,
        model::{checkpoint, count, unreadable},
        output::Progress,
    },
    report::documents::{self, BenchDocument, DocumentBenchPlan, MAX_PAIRS},
};
use serde::Deserialize;
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};
use weir_kernels::error::{Error, Result};

/// The name of the arguments that are files.
const FILE: &str = "FILE";

/// Maximum bytes of a file.
const MAX_FILE: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct DocumentsArgs {
    /// Model: checkpoint folder, or name of a model in the user's models folder.
    #[arg(value_name = "DIR")]
    model: PathBuf,
    /// Files with documents. Each file is one document. If its name ends in .jsonl, each line is an object with the key `document`.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Model to compare with: a gain is its cost divided by that of DIR. Default: DIR with its pooling turned off, which only an
    /// MrT5 with a gate supports.
    #[arg(long, value_name = "DIR")]
    baseline: Option<PathBuf>,
    /// Tokens decoded for each document.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count(2..=1 << 24))]
    tokens: usize,
    /// Timed runs of each model on each document, in alternating order, after one warm-up run of each.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count(1..=MAX_PAIRS))]
    pairs: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

/// A line of a file with several documents.
#[derive(Deserialize)]
struct Line {
    document: String,
}

pub(super) fn run(args: &DocumentsArgs) -> Result<()> {
    let DocumentsArgs { model, files, baseline, tokens, pairs, bench } = args;
    let mut all = Vec::new();
    for file in files {
        read(file, &mut all)?;
    }
    let plan = DocumentBenchPlan { tokens: *tokens, pairs: *pairs };
    let model = checkpoint("DIR", Some(model))?;
    let baseline = baseline.as_deref().map(|folder| checkpoint("--baseline", Some(folder))).transpose()?;
    let mut entries = Vec::new();
    for setup in bench.compute.setups() {
        let ([a, b], machine) = match &baseline {
            Some(baseline) => setup.load([&model, baseline])?,
            None => setup.load_with_unpooled(&model)?,
        };
        let mut progress = Progress::measurements();
        let total = plan.pairs as u64 + 1;
        progress.update(0, total);
        let mut report = |rounds: usize| progress.update(rounds as u64 + 1, total);
        entries.push(documents::compare([&*a, &*b], &all, plan, &machine, &mut report)?);
    }
    bench.print(&entries, table::documents)
}

fn read(file: &Path, all: &mut Vec<BenchDocument>) -> Result<()> {
    let shown = file.display();
    if file.extension().is_some_and(|extension| extension == "jsonl") {
        let lines: Vec<(u64, Line)> = json_lines(FILE, file, "an object with `document`")?;
        let document =
            |(number, line): (u64, Line)| BenchDocument { name: format!("{shown}:{number}"), text: line.document };
        all.extend(lines.into_iter().map(document));
        return Ok(());
    }
    let mut text = String::new();
    let opened = File::open(file).map_err(unreadable(FILE, file))?;
    opened.take(MAX_FILE + 1).read_to_string(&mut text).map_err(unreadable(FILE, file))?;
    if text.len() as u64 > MAX_FILE {
        return Err(Error::checkpoint(file, "the file", format!("at most {MAX_FILE} bytes"), "more"));
    }
    all.push(BenchDocument { name: shown.to_string(), text });
    Ok(())
}
