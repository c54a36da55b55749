//! The file of `--plot`. It is opened before the first measurement, so that an unwritable file is reported at once.

use crate::report::plot::{self, MeasurementFile};
use serde_json::Value;
use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    path::{Path, PathBuf},
};
use weir_kernels::error::{Error, Result, clip};

/// Maximum bytes of a file of measurements.
const MAX_BYTES: u64 = 64 << 20;

const EXPECTED: &str = "a list that weir bench printed with --json";

/// Maximum bytes of the contents that an error quotes.
const QUOTED: usize = 80;

pub(super) struct Picture {
    path: PathBuf,
    file: File,
    /// True until the picture is drawn into a file that did not exist before. Such a file is removed on drop.
    remove: bool,
}

impl Picture {
    /// Opens the file. Its contents stay until a picture replaces them. Fails if the file cannot be opened.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let remove = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(Error::io(path))?;
        Ok(Self { path: path.to_path_buf(), file, remove })
    }

    /// Draws the picture. Fails if an entry cannot be drawn or the file cannot be written.
    pub(super) fn write(mut self, field: &'static str, sources: &[MeasurementFile]) -> Result<()> {
        let svg = plot::svg(field, sources)?;
        self.file.set_len(0).and_then(|()| self.file.write_all(svg.as_bytes())).map_err(Error::io(&self.path))?;
        self.remove = false;
        Ok(())
    }
}

impl Drop for Picture {
    fn drop(&mut self) {
        if self.remove {
            // The caller is already returning another error.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Reads a file that was printed with `--json`. Fails if it cannot be read or is not a list of measurements.
pub(super) fn read(path: &Path) -> Result<MeasurementFile> {
    let file = File::open(path).map_err(Error::io(path))?;
    let length = file.metadata().map_err(Error::io(path))?.len();
    if length > MAX_BYTES {
        let expected = format!("a file of at most {MAX_BYTES} bytes");
        return Err(Error::checkpoint(path, "length", expected, format!("{length} bytes")));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(Error::io(path))?;
    let wrong = |place: String, found: String| Error::checkpoint(path, place, EXPECTED, found);
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
