//! A table of vectors that stays in its file, in the number type of the file: each row is read when it is needed.
//!
//! Rows are read with `pread`, not through a mapping: both use the page cache, but where the file was truncated a mapping
//! ends the process with SIGBUS, and a read returns an error. Before each step the owner [checks](RowTable::check) that the
//! file is as it was opened.

use crate::checkpoint::file_dtype::{FileDtype, check_finite, check_range};
use std::{
    fs::{File, Metadata},
    io::{Error as IoError, ErrorKind},
    path::{Path, PathBuf},
    time::SystemTime,
};
use weir_kernels::error::{Error, Result};

/// Bytes that are read at a time where all rows are.
const PART: usize = 1 << 20;

/// A table of rows of one width.
#[derive(Debug)]
pub struct RowTable {
    name: String,
    rows: usize,
    width: usize,
    dtype: FileDtype,
    /// Factors of the rows of an I8 table; empty for other types.
    scales: Vec<f32>,
    numbers: Numbers,
}

#[derive(Debug)]
enum Numbers {
    File(OpenTable),
    Memory(Vec<u8>),
}

#[derive(Debug)]
pub(crate) struct OpenTable {
    file: File,
    /// The file's name without its folder, because clients see errors of steps.
    path: PathBuf,
    /// Position of the first row.
    offset: u64,
    version: Version,
}

impl OpenTable {
    /// Describes the table from `offset` on in the open file at `path`. Fails if the file cannot be inspected.
    pub(crate) fn new(file: File, path: &Path, offset: u64) -> Result<Self> {
        let version = Version::of(&file, path)?;
        let path = path.file_name().map_or_else(|| path.to_owned(), PathBuf::from);
        Ok(Self { file, path, offset, version })
    }
}

/// The metadata that change when a file is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    size: u64,
    modified: Option<SystemTime>,
}

impl Version {
    fn of(file: &File, path: &Path) -> Result<Self> {
        let metadata = file.metadata().map_err(Error::io(path))?;
        Ok(Self::from(&metadata))
    }

    fn from(metadata: &Metadata) -> Self {
        Self { size: metadata.len(), modified: metadata.modified().ok() }
    }
}

impl RowTable {
    /// Creates a table of the rows that lie in an open file.
    pub(crate) fn in_file(name: &str, shape: [usize; 2], dtype: FileDtype, file: OpenTable) -> Self {
        let [rows, width] = shape;
        Self { name: name.to_owned(), rows, width, dtype, scales: Vec::new(), numbers: Numbers::File(file) }
    }

    /// Creates a table in memory of f32 numbers, (rows, width).
    pub(crate) fn in_memory(name: &str, shape: [usize; 2], numbers: &[f32]) -> Self {
        let [rows, width] = shape;
        let mut bytes = Vec::with_capacity(size_of_val(numbers));
        FileDtype::F32.narrow(numbers, &mut bytes);
        let numbers = Numbers::Memory(bytes);
        Self { name: name.to_owned(), rows, width, dtype: FileDtype::F32, scales: Vec::new(), numbers }
    }

    /// Sets the factors of the rows of an I8 table.
    pub(crate) fn set_scales(&mut self, scales: Vec<f32>) {
        self.scales = scales;
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Element type: the file's.
    pub fn dtype(&self) -> FileDtype {
        self.dtype
    }

    /// Factors of the rows of an I8 table; empty for other types.
    pub(crate) fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Bytes of a row in the file.
    pub fn row_bytes(&self) -> usize {
        self.width * self.dtype.bytes()
    }

    /// Bytes of its elements in the file, the factors of an I8 table included.
    pub fn file_bytes(&self) -> usize {
        self.rows * self.row_bytes() + size_of_val(&*self.scales)
    }

    /// Copies all rows into memory, in their type. Fails if the file cannot be read or memory runs out.
    pub fn copy_into_memory(&mut self) -> Result<()> {
        let size = self.rows * self.row_bytes();
        let mut bytes = Vec::new();
        let exhausted =
            |_| Error::checkpoint("--copy-tables", &*self.name, "memory for all rows", format!("{size} bytes"));
        bytes.try_reserve_exact(size).map_err(exhausted)?;
        self.each_part(&mut |part| {
            bytes.extend_from_slice(part);
            Ok(())
        })?;
        self.numbers = Numbers::Memory(bytes);
        Ok(())
    }

    /// Passes all rows to `take`, some at a time, as they are stored. Fails if the file cannot be read, or at a number that is not
    /// finite.
    pub(crate) fn each_part(&self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let at_once = (PART / self.row_bytes().max(1)).max(1);
        let mut bytes = Vec::new();
        let mut numbers = Vec::new();
        for first in (0..self.rows).step_by(at_once) {
            bytes.resize(at_once.min(self.rows - first) * self.row_bytes(), 0);
            self.read_bytes(first, &mut bytes)?;
            numbers.clear();
            self.dtype.widen(&bytes, &mut numbers);
            self.check_numbers(first, &numbers)?;
            take(&bytes)?;
        }
        Ok(())
    }

    /// Passes `count` rows, or all of a smaller table, to `take`, as they are stored: evenly spaced. Fails if the file cannot be read.
    pub(crate) fn sample(&self, count: usize, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut bytes = vec![0; self.row_bytes()];
        let count = count.min(self.rows);
        for index in 0..count {
            self.read_bytes(index * self.rows / count, &mut bytes)?;
            take(&bytes);
        }
        Ok(())
    }

    /// Tells the system that rows are read in no order from now on, so that it reads no bytes around them.
    pub fn expect_single_rows(&self) {
        if let Numbers::File(OpenTable { file, .. }) = &self.numbers {
            advise_random(file);
        }
    }

    /// Lets the system read rows ahead of [`read`](Self::read), all at the same time. Sorts `rows` and removes duplicates.
    pub fn prefetch(&self, rows: &mut Vec<usize>) {
        let Numbers::File(OpenTable { file, offset, .. }) = &self.numbers else { return };
        rows.sort_unstable();
        rows.dedup();
        for row in rows {
            advise_needed(file, offset + (*row * self.row_bytes()) as u64, self.row_bytes());
        }
    }

    /// Checks numbers of the file, from a row on.
    fn check_numbers(&self, row: usize, numbers: &[f32]) -> Result<()> {
        let Numbers::File(OpenTable { path, .. }) = &self.numbers else { return Ok(()) };
        match self.dtype {
            FileDtype::I8 => check_range(path, &self.name, row * self.width, numbers),
            _ => check_finite(path, &self.name, row * self.width, numbers),
        }
    }

    /// Checks that the file is as it was when the table was opened. Always passes for a table in memory.
    pub fn check(&self) -> Result<()> {
        let Numbers::File(OpenTable { file, path, version, .. }) = &self.numbers else { return Ok(()) };
        let now = file.metadata().map_err(|error| self.changed(path, error.to_string()))?;
        let now = Version::from(&now);
        if now == *version {
            return Ok(());
        }
        let found = match now.size == version.size {
            true => "a file that was written to after the model was loaded".to_owned(),
            false => format!("a file of {} bytes now, {} when the model was loaded", now.size, version.size),
        };
        Err(self.changed(path, found))
    }

    fn changed(&self, path: &Path, found: String) -> Error {
        Error::FileChanged { file: path.display().to_string(), tensor: self.name.clone(), found }
    }

    /// Reads a row as f32 into `numbers`, (width); `bytes` is a buffer. Fails with `FileChanged` if the file was truncated or
    /// cannot be read, and otherwise if the row has numbers that are not finite.
    pub fn read(&self, row: usize, bytes: &mut Vec<u8>, numbers: &mut Vec<f32>) -> Result<()> {
        bytes.resize(self.row_bytes(), 0);
        self.read_bytes(row, bytes)?;
        numbers.clear();
        self.dtype.widen(bytes, numbers);
        self.check_numbers(row, numbers)?;
        if let Some(scale) = self.scales.get(row) {
            numbers.iter_mut().for_each(|number| *number *= scale);
        }
        Ok(())
    }

    /// Fills `bytes` with rows from `row` on, as they are stored.
    fn read_bytes(&self, row: usize, bytes: &mut [u8]) -> Result<()> {
        let start = row * self.row_bytes();
        match &self.numbers {
            Numbers::Memory(all) => {
                let missing = || Error::Internal(format!("{}: row {row} of {}", self.name, self.rows));
                bytes.copy_from_slice(all.get(start..start + bytes.len()).ok_or_else(missing)?);
                Ok(())
            }
            Numbers::File(OpenTable { file, path, offset, .. }) => {
                read_at(file, bytes, offset + start as u64).map_err(|error| match error.kind() {
                    ErrorKind::UnexpectedEof => self.changed(path, format!("its end before row {row}")),
                    _ => self.changed(path, error.to_string()),
                })
            }
        }
    }
}

#[cfg(target_os = "linux")]
fn advise_random(file: &File) {
    // only slower without
    let _advised = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
}

#[cfg(not(target_os = "linux"))]
fn advise_random(_: &File) {}

/// Tells the system that some bytes are read soon. It starts to read them and does not wait.
#[cfg(target_os = "linux")]
fn advise_needed(file: &File, offset: u64, bytes: usize) {
    let length = std::num::NonZeroU64::new(bytes as u64);
    let _advised = rustix::fs::fadvise(file, offset, length, rustix::fs::Advice::WillNeed);
}

#[cfg(not(target_os = "linux"))]
fn advise_needed(_: &File, _: u64, _: usize) {}

/// Fills `bytes` from a position of a file. Does not move the file's own position.
#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> Result<(), IoError> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

/// Fills `bytes` from a position of a file.
#[cfg(windows)]
fn read_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> Result<(), IoError> {
    while !bytes.is_empty() {
        let read = std::os::windows::fs::FileExt::seek_read(file, bytes, offset)?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes = &mut bytes[read..];
        offset += read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A file with four bytes before a table of three rows of two bf16 numbers.
    fn table() -> (tempfile::NamedTempFile, RowTable) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = vec![9; 4];
        FileDtype::Bf16.narrow(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut bytes);
        file.write_all(&bytes).unwrap();
        let opened = File::open(file.path()).unwrap();
        let table = RowTable::in_file("t", [3, 2], FileDtype::Bf16, OpenTable::new(opened, file.path(), 4).unwrap());
        (file, table)
    }

    fn row(table: &RowTable, row: usize) -> Result<Vec<f32>> {
        let mut numbers = Vec::new();
        table.read(row, &mut Vec::new(), &mut numbers).map(|()| numbers)
    }

    #[test]
    fn rows_are_read_from_file_and_memory_alike() {
        let (_file, mut table) = table();
        table.check().unwrap();
        assert_eq!(row(&table, 2).unwrap(), [5.0, 6.0]);
        table.copy_into_memory().unwrap();
        assert_eq!((row(&table, 0).unwrap(), row(&table, 1).unwrap()), (vec![1.0, 2.0], vec![3.0, 4.0]));
        assert!(row(&table, 3).is_err());
    }

    #[test]
    fn a_sample_is_spread_over_the_table() {
        let (_file, table) = table();
        for (count, expected) in [(1, vec![0]), (2, vec![0, 1]), (3, vec![0, 1, 2]), (9, vec![0, 1, 2])] {
            let mut sampled = Vec::new();
            table.sample(count, &mut |row| sampled.push(row.to_vec())).unwrap();
            let mut bytes = Vec::new();
            table
                .each_part(&mut |part| {
                    bytes.extend_from_slice(part);
                    Ok(())
                })
                .unwrap();
            assert!(sampled.iter().eq(expected.iter().map(|&row: &usize| &bytes[row * 4..][..4])), "{count}");
        }
        let mut rows = vec![2, 0, 2];
        table.prefetch(&mut rows);
        assert_eq!(rows, [0, 2]);
    }

    #[test]
    fn a_changed_file_is_an_error() {
        let (mut file, table) = table();
        file.as_file().set_len(13).unwrap();
        let message = table.check().unwrap_err().to_string();
        assert!(message.contains("found a file of 13 bytes now, 16 when the model was loaded"), "{message}");
        assert_eq!(row(&table, 1).unwrap(), [3.0, 4.0]);
        let message = row(&table, 2).unwrap_err().to_string();
        assert!(message.contains("t: expected an unchanged file"), "{message}");
        assert!(message.contains("found its end before row 2;"), "{message}");
        file.as_file().set_len(16).unwrap();
        file.write_all(&[0]).unwrap();
        assert!(table.check().is_err());
    }

    #[test]
    fn an_infinite_number_is_an_error() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = Vec::new();
        FileDtype::F32.narrow(&[1.0, f32::INFINITY], &mut bytes);
        file.write_all(&bytes).unwrap();
        let opened = File::open(file.path()).unwrap();
        let table = RowTable::in_file("t", [2, 1], FileDtype::F32, OpenTable::new(opened, file.path(), 0).unwrap());
        assert_eq!(row(&table, 0).unwrap(), [1.0]);
        assert!(row(&table, 1).unwrap_err().to_string().ends_with("found inf at index 1"));
    }
}
