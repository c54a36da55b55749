//! Files of a checkpoint that get their names only when they are complete.

use crate::error::{Error, Result};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

/// A file under a temporary name, which is removed unless it is renamed.
pub(super) struct PartialFile {
    path: PathBuf,
    renamed: bool,
}

impl PartialFile {
    /// Chooses the temporary name of `name` in the folder `dest`. The caller creates the file.
    pub(super) fn new(dest: &Path, name: &str) -> Self {
        Self { path: dest.join(format!(".{name}{}", Self::own_ending())), renamed: false }
    }

    /// The ending of this process's temporary names.
    fn own_ending() -> String {
        format!(".{}.partial", std::process::id())
    }

    /// Returns true for a temporary name of this process.
    pub(super) fn is_own_name(name: &str) -> bool {
        name.starts_with('.') && name.ends_with(&Self::own_ending())
    }

    /// Returns true for a temporary name. A process that was killed leaves such a file.
    pub(super) fn is_name(name: &str) -> bool {
        name.starts_with('.') && name.ends_with(".partial")
    }

    /// Writes a file with these contents, and waits until they are on the disk.
    pub(super) fn write(dest: &Path, name: &str, contents: &[u8]) -> Result<Self> {
        let partial = Self::new(dest, name);
        let mut file = File::create(&partial.path).map_err(unwritable(dest))?;
        file.write_all(contents).and_then(|()| file.sync_all()).map_err(Error::io(&partial.path))?;
        Ok(partial)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn rename(&mut self, to: &Path) -> Result<()> {
        fs::rename(&self.path, to).map_err(Error::io(to))?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.renamed {
            // an error cannot be reported here; a leftover is recognised by its name
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns a function that turns an error of creating a file in `dest` into one that says what was to be written.
pub(super) fn unwritable(dest: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::Setting(format!("{}: cannot write a checkpoint there: {error}", dest.display()))
}

/// Waits until the names in a folder are on the disk. Fails if the file system reports an error.
#[cfg(unix)]
pub fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::io(folder))
}

/// Does nothing: other systems cannot open a folder.
#[cfg(not(unix))]
pub fn sync_folder(_: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_name_when_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let names = || -> Vec<String> {
            let entries = fs::read_dir(dir.path()).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let mut partial = PartialFile::write(dir.path(), "a", b"contents").unwrap();
        assert!(names().len() == 1 && PartialFile::is_name(&names()[0]), "{:?}", names());
        partial.rename(&dir.path().join("a")).unwrap();
        drop(partial);
        assert_eq!(names(), ["a"]);
        drop(PartialFile::write(dir.path(), "b", b"contents").unwrap());
        assert_eq!(names(), ["a"]);
        assert!(!PartialFile::is_name("a") && !PartialFile::is_name("ngrams.bin.partial"));
    }
}
