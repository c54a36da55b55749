//! The files of a place, opened by name.

use crate::{
    error::{Error, Result},
    family::checkpoint::files::{self, check_folder, check_inside},
};
use std::{
    io::Read,
    path::{Path, PathBuf},
};

/// An open file, and its size if the place states it.
pub(super) struct OpenFile {
    pub(super) bytes: Box<dyn Read>,
    pub(super) size: Option<u64>,
}

/// Whether a checkpoint can lack a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Every checkpoint has it, or another one in its place.
    Required,
    /// A checkpoint may be complete without it.
    Optional,
}

/// A place with the files of a checkpoint.
pub(super) trait FileSource {
    /// Opens a file, whose name is a relative path with `/`. Returns `None` if there is none. Fails if it cannot be opened.
    fn open(&self, name: &str, need: Need) -> Result<Option<OpenFile>>;

    /// Returns the path or the URL of a file, for messages.
    fn place(&self, name: &str) -> PathBuf;
}

/// A folder of this machine.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Opens a folder. Fails if it is not a checkpoint.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        check_folder(folder)?;
        Ok(Self(folder.to_owned()))
    }
}

impl FileSource for Folder {
    fn open(&self, name: &str, _: Need) -> Result<Option<OpenFile>> {
        let file = self.place(name);
        if !file.try_exists().map_err(Error::io(&file))? {
            return Ok(None);
        }
        check_inside(&self.0, &file)?;
        let (bytes, size) = files::open(&file).map_err(Error::io(&file))?;
        Ok(Some(OpenFile { bytes: Box::new(bytes), size: Some(size) }))
    }

    fn place(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}
