//! A file that gets its name only when it is complete.

use super::partial_files::PartialFiles;
use crate::error::{Error, Result};
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

/// A file that is being written under another name. Dropping it removes it.
pub(super) struct OutputFile {
    /// `None` once it has its name.
    file: Option<File>,
    partial: PathBuf,
    path: PathBuf,
    files: PartialFiles,
}

impl OutputFile {
    /// Creates the file and lists it in `files`. Fails if the operating system does.
    pub(super) fn create(path: &Path, files: &PartialFiles) -> Result<Self> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".partial-{}", std::process::id()));
        let partial = PathBuf::from(partial);
        let file = files.create(&partial).map_err(Error::io(&partial))?;
        Ok(Self { file: Some(file), partial, path: path.to_owned(), files: files.clone() })
    }

    /// Appends bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).map_err(Error::io(&self.path))
    }

    /// Gives the file its name.
    pub(super) fn commit(mut self) -> Result<()> {
        if let Some(file) = &self.file {
            file.sync_all().map_err(Error::io(&self.path))?;
        }
        self.file = None;
        self.files.complete(&self.partial, &self.path).map_err(Error::io(&self.path))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            self.files.remove(&self.partial);
        }
    }
}
