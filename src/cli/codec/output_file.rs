//! A file that gets its name only when it is complete.

use super::{files::FilePair, partial_files::PartialFiles};
use crate::error::Result;
use std::{
    fs::File,
    io::{ErrorKind, Write},
    path::PathBuf,
};

/// Partial files of one output that killed processes may have left.
const MAX_LEFT: usize = 100;

/// A file that is being written under another name. Dropping it removes it.
pub(super) struct OutputFile {
    /// `None` once it has its name.
    file: Option<File>,
    partial: PathBuf,
    pair: FilePair,
    /// True if an existing file is replaced.
    overwrite: bool,
    files: PartialFiles,
}

impl OutputFile {
    /// Creates the file of a pair and lists it in `files`. Fails if the operating system does.
    pub(super) fn create(pair: &FilePair, overwrite: bool, files: &PartialFiles) -> Result<Self> {
        // Another process with the same number may have left such a file: in a container, each command is process 1.
        let mut tried = 0;
        let (file, partial) = loop {
            let mut partial = pair.output.as_os_str().to_owned();
            partial.push(format!(".partial-{}-{tried}", std::process::id()));
            let partial = PathBuf::from(partial);
            match files.create(&partial) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && tried < MAX_LEFT => tried += 1,
                created => break (created.map_err(|error| pair.unwritable(&error))?, partial),
            }
        };
        Ok(Self { file: Some(file), partial, pair: pair.clone(), overwrite, files: files.clone() })
    }

    /// Appends bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).map_err(|error| self.pair.unwritable(&error))
    }

    /// Gives the file its name. Fails if another file has got it meanwhile and must be kept.
    pub(super) fn commit(mut self) -> Result<()> {
        self.pair.check_output(self.overwrite)?;
        if let Some(file) = &self.file {
            file.sync_all().map_err(|error| self.pair.unwritable(&error))?;
        }
        self.file = None;
        self.files.complete(&self.partial, &self.pair.output).map_err(|error| self.pair.unwritable(&error))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            self.files.remove(&self.partial);
        }
    }
}
