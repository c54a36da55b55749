//! Reads files of keys and certificates, whose size is limited.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Maximum bytes of a file of settings, keys or certificates.
pub const FILE_BYTES: u64 = 1 << 20;

/// Reads the file at `path`, which may be a pipe, of at most `limit` bytes.
///
/// # Errors
/// The file cannot be read or is larger. The message names it.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    read_open(file, path, limit)
}

/// Reads an open file of at most `limit` bytes. `path` is its name in messages.
///
/// # Errors
/// The file cannot be read or is larger. The message names it.
pub fn read_open(file: File, path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let too_large = || Err(format!("{}: expected at most {limit} bytes, found more", path.display()));
    let size = file.metadata().map_err(|error| unreadable(path, &error))?.len();
    if size > limit {
        return too_large();
    }
    // A pipe has no size, and a file may have grown.
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    if bytes.len() as u64 > limit { too_large() } else { Ok(bytes) }
}

/// Returns the message about a file that cannot be read.
pub fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn larger_files_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "12345").unwrap();
        assert_eq!(read(file.path(), 5).unwrap(), b"12345");
        let shown = file.path().display();
        assert_eq!(read(file.path(), 4), Err(format!("{shown}: expected at most 4 bytes, found more")));
        let missing = read(Path::new("/nowhere/key"), 4).unwrap_err();
        assert!(missing.starts_with("cannot read /nowhere/key: "), "{missing}");
    }

    /// Its size is unknown before it is read.
    #[cfg(unix)]
    #[test]
    fn endless_files_are_refused() {
        let expected = "/dev/zero: expected at most 4 bytes, found more".to_owned();
        assert_eq!(read(Path::new("/dev/zero"), 4), Err(expected));
    }
}
