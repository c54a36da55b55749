//! `weir bench documents`.

use crate::{
    cli::{
        bench::{setup::TableBenchArgs, table},
        model::{ModelArgument, count},
        output::Progress,
    },
    report::documents::{self, BenchDocument, DocumentBenchPlan, MAX_DOCUMENTS, MAX_PAIRS},
};
use serde::Deserialize;
use std::{
    io::Read,
    path::{Path, PathBuf},
};
use weir_kernels::error::{Error, Result};

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
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = count(2..=1 << 24), allow_negative_numbers = true)]
    tokens: usize,
    /// Timed runs of each model on each document, in alternating order, after one warm-up run of each.
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = count(1..=MAX_PAIRS), allow_negative_numbers = true)]
    pairs: usize,
    #[command(flatten)]
    bench: TableBenchArgs,
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
    let argument = |name, value| ModelArgument { name, value: Some(value) };
    let mut entries = Vec::new();
    for setup in bench.compute.setups() {
        let baseline = baseline.as_deref().map(|folder| argument("--baseline", folder));
        let ([a, b], machine) = setup.load_with_baseline(argument("DIR", model), baseline)?;
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
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(Error::io(file))?;
    opened.take(MAX_FILE + 1).read_to_string(&mut text).map_err(Error::io(file))?;
    let wrong = |key: String, expected: String, found: String| Err(Error::checkpoint(file, key, expected, found));
    if text.len() as u64 > MAX_FILE {
        return wrong("the file".into(), format!("at most {MAX_FILE} bytes"), "more".into());
    }
    let mut add = |name: String, text: String| match all.len() < MAX_DOCUMENTS {
        true => {
            all.push(BenchDocument { name, text });
            Ok(())
        }
        false => wrong("the file".into(), format!("at most {MAX_DOCUMENTS} documents"), "more".into()),
    };
    if file.extension().is_none_or(|extension| extension != "jsonl") {
        return add(shown.to_string(), text);
    }
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let number = index + 1;
        // serde would accept a list as the fields in order
        let parsed = match line.trim_start().starts_with('[') {
            true => Err("a list".to_owned()),
            false => serde_json::from_str::<Line>(line).map_err(|error| error.to_string()),
        };
        match parsed {
            Ok(Line { document }) => add(format!("{shown}:{number}"), document)?,
            Err(found) => return wrong(format!("line {number}"), "an object with `document`".into(), found),
        }
    }
    Ok(())
}
