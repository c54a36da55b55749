//! Reads and writes `ngrams.bin`, the table from which speculation guesses.

use crate::{
    checkpoint::{
        files::{self, PartialFile, sync_folder},
        json::read_limited,
    },
    ngrams::{MAX_BYTES, NgramTable},
};
use std::path::{Path, PathBuf};
use weir_kernels::error::{Error, Result};

/// The name of the file.
pub const NGRAMS_FILE: &str = "ngrams.bin";

/// Reads the n-grams of the checkpoint in a folder, if it has any. Fails if the file is damaged or of another vocabulary.
pub(crate) fn read(dir: &Path, vocabulary: usize) -> Result<Option<NgramTable>> {
    let Some(file) = files::present(dir, NGRAMS_FILE)? else { return Ok(None) };
    let bytes = read_limited(&file, MAX_BYTES as u64)?;
    let table = NgramTable::from_bytes(&bytes, vocabulary);
    let table = table.map_err(|mismatch| Error::checkpoint(&file, "the n-grams", mismatch.expected, mismatch.found))?;
    Ok(Some(table))
}

/// Writes the n-grams of the checkpoint in a folder, in place of earlier ones. Returns the file. Fails if it cannot be written.
pub fn write(dir: &Path, table: &NgramTable) -> Result<PathBuf> {
    let file = dir.join(NGRAMS_FILE);
    let mut partial = PartialFile::write(dir, NGRAMS_FILE, &table.to_bytes())?;
    partial.rename(&file)?;
    sync_folder(dir)?;
    Ok(file)
}
