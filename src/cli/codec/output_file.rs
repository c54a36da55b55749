//! A file that gets its name only when it is complete.

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
}

impl OutputFile {
    /// Creates the file. Fails if the operating system does.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".partial-{}", std::process::id()));
        let partial = PathBuf::from(partial);
        let file = File::create_new(&partial).map_err(Error::io(&partial))?;
        Ok(Self { file: Some(file), partial, path: path.to_owned() })
    }

    /// Appends bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).map_err(Error::io(&self.path))
    }

    /// Gives the file its name.
    pub(super) fn commit(mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            file.sync_all().map_err(Error::io(&self.path))?;
        }
        std::fs::rename(&self.partial, &self.path).map_err(|error| {
            // it stays under its other name no longer than the command runs
            let _ = std::fs::remove_file(&self.partial);
            Error::io(&self.path)(error)
        })
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // a file that cannot be removed is visibly partial
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}
