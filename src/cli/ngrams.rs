//! `weir ngrams`: writes a checkpoint's n-grams, from which generations draft.

use crate::cli::document::TextReader;
use crate::cli::model::{checkpoint, unreadable};
use crate::cli::output::{self, Progress};
use serde_json::json;
use std::path::{Path, PathBuf};
use weir_kernels::error::{Error, Result, printable};
use weir_models::checkpoint::files;
use weir_models::checkpoint::writer::write_ngrams;
use weir_models::load::{self, blueprint};
use weir_models::ngrams::{HEADER_BYTES, MAX_SLOTS, MIN_SLOTS, NgramCounter};
use weir_models::text::Vocabulary;

/// Writes a checkpoint's n-grams.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// UTF-8 file with text like that which the model was trained on.
    #[arg(value_name = "TEXT")]
    text: PathBuf,
    /// Checkpoint folder, or name of a model in the user's models folder. The n-grams are written to its ngrams.bin.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Contexts that the table has room for: a power of two from 256 to 4194304. A context takes 8 bytes in the file and in memory,
    /// and 20 while the table is made.
    #[arg(long, value_name = "N", default_value_t = 1 << 20, env = "WEIR_SLOTS", value_parser = slots)]
    slots: usize,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

fn slots(text: &str) -> std::result::Result<usize, String> {
    let number = text.parse().ok().filter(|number: &usize| number.is_power_of_two());
    let number = number.filter(|number| (MIN_SLOTS..=MAX_SLOTS).contains(number));
    number.ok_or_else(|| format!("expected a power of two from {MIN_SLOTS} to {MAX_SLOTS}"))
}

/// Counts the n-grams of the text and writes them. Fails if the checkpoint is invalid or its family does not speculate, and if the
/// text has no n-gram that repeats, cannot be read, or has characters outside of the vocabulary.
pub fn run(args: Args) -> Result<()> {
    let source = checkpoint("DIR", Some(&args.dir))?;
    let Some(folder) = source.folder() else { return Err(Error::bad_option("DIR", "the embedded model", "a folder")) };
    let config = load::config(&source)?;
    let blueprint = blueprint(&config, &source.config_file())?;
    if !blueprint.speculates() {
        let expected = "a family that speculates";
        return Err(Error::checkpoint(source.config_file(), "family", expected, config.family.clone()));
    }
    let vocabulary = config.vocabulary(&source.config_file())?;
    let mut counter = NgramCounter::new(args.slots, vocabulary.len());
    let symbols = count(&args.text, &vocabulary, &mut counter)?;
    let table = counter.finish();
    let used = table.used();
    if used == 0 {
        return Err(Error::bad_option("TEXT", format!("{symbols} symbols"), "a text in which n-grams repeat"));
    }
    let file = write_ngrams(folder, &table)?;
    let bytes = HEADER_BYTES + table.slots() * size_of::<u64>();
    if args.json {
        return output::json(&json!({
            "path": file,
            "bytes": bytes,
            "slots": table.slots(),
            "contexts": used,
            "symbols": symbols,
        }));
    }
    let path = printable(&file.display().to_string());
    output::write(&format!("{path}: {used} contexts of {symbols} symbols, {bytes} bytes\n"))
}

/// Counts the n-grams of a file. Returns the number of its symbols, which is at least 1.
fn count(file: &Path, vocabulary: &Vocabulary, counter: &mut NgramCounter) -> Result<u64> {
    let mut progress = Progress::bytes();
    let (opened, size) = files::open(file).map_err(unreadable("TEXT", file))?;
    let mut reader = TextReader::new("TEXT", Box::new(opened), file);
    let mut read = 0;
    let mut characters = 0;
    let mut symbols = 0;
    while let Some(text) = reader.next()? {
        let encoded = vocabulary.encode("TEXT", &text, usize::MAX).map_err(|error| after(error, characters))?;
        for symbol in encoded {
            counter.push(symbol);
            symbols += 1;
        }
        characters += text.chars().count();
        read += text.len() as u64;
        progress.update(read, size);
    }
    if symbols == 0 {
        return Err(Error::bad_option("TEXT", "\"\"", "at least one symbol"));
    }
    Ok(symbols)
}

/// Returns an error about a part of a text, which `characters` characters precede, with its position in the whole text.
fn after(error: Error, characters: usize) -> Error {
    match error {
        Error::UnknownSymbol { field, found, offset, unit } => {
            Error::UnknownSymbol { field, found, offset: offset.saturating_add(characters), unit }
        }
        other => other,
    }
}
