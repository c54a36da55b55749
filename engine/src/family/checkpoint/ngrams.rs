//! `ngrams.bin`: the n-grams of a checkpoint, from which generations draft. Optional; `weir ngrams` writes it.

use super::{
    files::{PartialFile, check_inside, sync_folder},
    json::read_limited,
};
use crate::{
    decode::ngrams::{MAX_BYTES, NgramTable},
    error::{Error, Result},
};
use std::path::{Path, PathBuf};

/// The name of the file.
pub const NGRAMS_FILE: &str = "ngrams.bin";

/// Reads the n-grams of the checkpoint in a folder, if it has any. Fails if the file is too large or damaged, or if its n-grams are
/// those of another vocabulary than one of `vocabulary` symbols.
pub fn read(dir: &Path, vocabulary: usize) -> Result<Option<NgramTable>> {
    let file = dir.join(NGRAMS_FILE);
    if !file.try_exists().map_err(Error::io(&file))? {
        return Ok(None);
    }
    check_inside(dir, &file)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::ngrams::NgramCounter;
    use std::fs;

    #[test]
    fn errors_name_the_file_and_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path(), 5).unwrap().is_none());
        let mut counter = NgramCounter::new(1 << 8, 5);
        (0..1000).for_each(|position| counter.push(position % 5));
        let table = counter.finish();
        let file = write(dir.path(), &table).unwrap();
        assert_eq!(read(dir.path(), 5).unwrap().as_ref(), Some(&table));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = |vocabulary| read(dir.path(), vocabulary).unwrap_err().to_string();
        assert!(error(6).contains(NGRAMS_FILE) && error(6).contains("n-grams of 6 symbols"), "{}", error(6));
        // a file that cannot get its name leaves nothing behind
        let taken = tempfile::tempdir().unwrap();
        fs::create_dir_all(taken.path().join(NGRAMS_FILE).join("x")).unwrap();
        assert!(write(taken.path(), &table).unwrap_err().to_string().contains(NGRAMS_FILE));
        assert_eq!(fs::read_dir(taken.path()).unwrap().count(), 1);
        fs::write(&file, "short").unwrap();
        assert!(error(5).contains(NGRAMS_FILE) && error(5).contains("5 bytes"), "{}", error(5));
        // a sparse file
        fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
        assert!(error(5).contains(&format!("at most {MAX_BYTES} bytes")), "{}", error(5));
    }
}
