//! The file of `--plot`: opened before anything is measured, so that a file that cannot be written costs nobody an hour.

use crate::{
    error::{Error, Result, clip},
    report::plot::{self, MeasurementFile},
};
use serde_json::Value;
use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    path::{Path, PathBuf},
};

/// Bytes of one file of measurements, at most.
const MAX_BYTES: u64 = 64 << 20;
/// What such a file is.
const LIST: &str = "a list that weir bench printed with --json";
/// Bytes of it that an error repeats.
const QUOTED: usize = 80;

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
    pub(super) fn write(mut self, field: &'static str, sources: &[MeasurementFile]) -> Result<()> {
        let svg = plot::svg(field, sources)?;
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

/// What files hold that `--json` printed.
///
/// # Errors
/// [`Error::Io`], and [`Error::Checkpoint`] naming a file that is no list of measurements.
pub(super) fn saved(files: &[PathBuf]) -> Result<Vec<MeasurementFile>> {
    files.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<MeasurementFile> {
    let file = File::open(path).map_err(Error::io(path))?;
    let length = file.metadata().map_err(Error::io(path))?.len();
    if length > MAX_BYTES {
        let expected = format!("a file of at most {MAX_BYTES} bytes");
        return Err(Error::checkpoint(path, "length", expected, format!("{length} bytes")));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(Error::io(path))?;
    let wrong = |place: String, found: String| Error::checkpoint(path, place, LIST, found);
    match serde_json::from_slice(&bytes) {
        Ok(Value::Array(entries)) => Ok(MeasurementFile { name: path.into(), entries }),
        Ok(other) => Err(wrong("the JSON".into(), clip(&other.to_string(), QUOTED))),
        Err(error) => {
            let found = error.to_string();
            let found = found.split(" at line ").next().unwrap_or_default();
            Err(wrong(format!("line {}, column {}", error.line(), error.column()), found.into()))
        }
    }
}
