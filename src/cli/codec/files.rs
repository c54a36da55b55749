//! The files that a command reads and writes.

use crate::{
    cli::input_files::unreadable,
    error::{Error, Result, printable},
};
use std::{
    collections::HashSet,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

/// The name of the arguments that are files.
pub(super) const FILE: &str = "FILE";
/// End of the names of compressed files.
const SUFFIX: &str = "weir";

/// A file to read and the file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilePair {
    pub(super) input: PathBuf,
    pub(super) output: PathBuf,
}

/// Returns the pairs of `weir compress`: see [`pairs`].
pub(super) fn compressed_pairs(paths: &[PathBuf]) -> Result<Vec<FilePair>> {
    pairs(paths, |name| {
        let mut name = name.to_os_string();
        name.push(".");
        name.push(SUFFIX);
        Some(name)
    })
}

/// Returns the pairs of `weir decompress`: see [`pairs`]. Fails if a file has no suffix to remove.
pub(super) fn decompressed_pairs(paths: &[PathBuf]) -> Result<Vec<FilePair>> {
    pairs(paths, |name| {
        let name = Path::new(name);
        name.extension().filter(|suffix| *suffix == SUFFIX)?;
        name.file_stem().map(Into::into)
    })
}

/// Pairs all paths but the last with the last one, or with files in it if it is a folder. Fails if several files have no folder, or
/// would be written to one file.
fn pairs(paths: &[PathBuf], rename: impl Fn(&std::ffi::OsStr) -> Option<OsString>) -> Result<Vec<FilePair>> {
    let Some((last, inputs)) = paths.split_last() else {
        return Err(Error::Setting("files: expected a file to read and one to write".into()));
    };
    if !last.is_dir() {
        let [input] = inputs else {
            let last = printable(&last.display().to_string());
            return Err(Error::Setting(format!("{last}: several files are written to a folder, and this is none")));
        };
        return Ok(vec![FilePair { input: input.clone(), output: last.clone() }]);
    }
    let mut taken = HashSet::new();
    let pair = |input: &PathBuf| {
        let shown = || printable(&input.display().to_string());
        let name = input.file_name().and_then(&rename);
        let name =
            name.ok_or_else(|| Error::Setting(format!("{}: expected a name that ends with .{SUFFIX}", shown())))?;
        let output = last.join(name);
        if !taken.insert(output.clone()) {
            return Err(Error::Setting(format!("{}: two files would be written to {}", shown(), output.display())));
        }
        Ok(FilePair { input: input.clone(), output })
    };
    inputs.iter().map(pair).collect()
}

/// Returns the bytes of all files to read whose size is known.
pub(super) fn total_bytes(pairs: &[FilePair]) -> Result<u64> {
    pairs.iter().map(|pair| pair.bytes().map(Option::unwrap_or_default)).sum()
}

impl FilePair {
    /// Returns the bytes of the file to read; `None` for a pipe. Fails if the file is missing.
    pub(super) fn bytes(&self) -> Result<Option<u64>> {
        let metadata = std::fs::metadata(&self.input).map_err(unreadable(FILE, &self.input))?;
        Ok(metadata.is_file().then_some(metadata.len()))
    }

    /// Returns the error of writing the output.
    pub(super) fn unwritable(&self, error: &io::Error) -> Error {
        Error::Setting(format!("{FILE}: cannot write {}: {error}", printable(&self.output.display().to_string())))
    }

    /// Fails if the file to read is missing, or the one to write exists and must not be overwritten.
    pub(super) fn check(&self, force: bool) -> Result<()> {
        self.bytes()?;
        self.check_output(force)
    }

    /// Fails if the file to write exists and must not be overwritten, or is a link or no file.
    pub(super) fn check_output(&self, force: bool) -> Result<()> {
        // of a link itself, which may lead nowhere
        let Ok(existing) = std::fs::symlink_metadata(&self.output) else { return Ok(()) };
        let why = match (force, existing.is_file()) {
            (true, true) => return Ok(()),
            (false, true) => "the file exists; --force overwrites it",
            (_, false) => "this is not a regular file, and is not replaced",
        };
        Err(Error::Setting(format!("{}: {why}", printable(&self.output.display().to_string()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_paired_as_cp_pairs_them() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let pairs = |decompress: bool, names: &[&str]| {
            let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
            let pairs = if decompress { decompressed_pairs(&paths) } else { compressed_pairs(&paths) };
            pairs.map(|pairs| pairs.into_iter().map(|pair| pair.output).collect::<Vec<_>>())
        };
        assert_eq!(pairs(false, &["a.txt", "b"]).unwrap(), [folder.join("b")]);
        assert_eq!(pairs(false, &["a.txt", "b", ""]).unwrap(), [folder.join("a.txt.weir"), folder.join("b.weir")]);
        assert_eq!(pairs(true, &["a.txt.weir", ""]).unwrap(), [folder.join("a.txt")]);
        assert!(pairs(true, &["a.txt", ""]).unwrap_err().to_string().contains("ends with .weir"));
        assert!(pairs(false, &["a", "b", "c"]).unwrap_err().to_string().contains("a folder"));
        assert!(pairs(false, &["a", "x/a", ""]).unwrap_err().to_string().contains("two files"));
    }

    #[test]
    fn an_existing_file_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, "a").unwrap();
        let pair = FilePair { input: file.clone(), output: file };
        assert!(pair.check(false).unwrap_err().to_string().contains("--force"));
        pair.check(true).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn links_and_devices_are_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("a");
        std::fs::write(&input, "a").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("nowhere"), &link).unwrap();
        for output in [link, "/dev/null".into(), folder.path().to_owned()] {
            let pair = FilePair { input: input.clone(), output };
            for force in [false, true] {
                assert!(pair.check(force).unwrap_err().to_string().contains("not a regular file"), "{pair:?}");
            }
        }
    }
}
