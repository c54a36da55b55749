//! The file of `--plot`: opened before anything is measured, so that a file that cannot be written costs nobody an hour.

use crate::{
    error::{Error, Result},
    report::plot,
};
use serde_json::Value;
use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    path::{Path, PathBuf},
};

/// Bytes of one file of measurements, at most.
const MAX_BYTES: u64 = 64 << 20;

/// Where a picture goes.
pub(super) struct Picture {
    path: PathBuf,
    file: File,
    /// Removed again if nothing comes to be drawn into it.
    made: bool,
}

impl Picture {
    /// Opens the file; what is in it stays until there is a picture.
    ///
    /// # Errors
    /// [`Error::Io`] naming it.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let made = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(Error::io(path))?;
        Ok(Self { path: path.to_path_buf(), file, made })
    }

    /// Draws.
    ///
    /// # Errors
    /// Entries that cannot be drawn, [`Error::Io`].
    pub(super) fn write(mut self, source: &'static str, entries: &[Value]) -> Result<()> {
        let svg = plot::svg(source, entries)?;
        self.file.set_len(0).and_then(|()| self.file.write_all(svg.as_bytes())).map_err(Error::io(&self.path))?;
        self.made = false;
        Ok(())
    }
}

impl Drop for Picture {
    fn drop(&mut self) {
        if self.made {
            // an error brought us here: there is nobody to tell another one
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The entries of files that `--json` printed, one after the other.
///
/// # Errors
/// [`Error::Io`], and [`Error::BadOption`] naming what is not a list of measurements.
pub(super) fn saved(files: &[PathBuf]) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for path in files {
        let mut text = String::new();
        let file = File::open(path).map_err(Error::io(path))?;
        if file.metadata().map_err(Error::io(path))?.len() > MAX_BYTES {
            let bound = format!("a file of at most {MAX_BYTES} bytes");
            return Err(Error::BadOption { field: "FILE", found: path.display().to_string(), bound });
        }
        file.take(MAX_BYTES).read_to_string(&mut text).map_err(Error::io(path))?;
        let entries: Vec<Value> = serde_json::from_str(&text).map_err(|error| Error::BadOption {
            field: "FILE",
            found: path.display().to_string(),
            bound: format!("a list that weir bench printed with --json ({error})"),
        })?;
        all.extend(entries);
    }
    Ok(all)
}
