//! Opens regular files only. A pipe in place of a file would block its reader for ever, and a device would never end.

use std::{
    fs::{File, OpenOptions},
    io::{Error, ErrorKind, Result},
    path::Path,
};

/// Opens a regular file to read, and returns its size in bytes too. Never blocks: the file is opened first, and its kind is
/// read from the handle. Fails for anything but a regular file, with [`ErrorKind::InvalidInput`].
pub fn open(path: &Path) -> Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.read(true);
    do_not_wait(&mut options);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok((file, metadata.len()));
    }
    let found = if metadata.is_dir() { "a folder" } else { "a pipe or a device" };
    Err(Error::new(ErrorKind::InvalidInput, format!("expected a regular file, found {found}")))
}

/// Opening a pipe must not wait for its writer. The flag has no effect on a regular file.
#[cfg(unix)]
fn do_not_wait(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags(libc::O_NONBLOCK);
}

/// Does nothing: other systems have no pipes among their files.
#[cfg(not(unix))]
fn do_not_wait(_: &mut OpenOptions) {}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "abc").unwrap();
        assert_eq!(open(&file).unwrap().1, 3);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(open(&link).unwrap().1, 3);

        let pipe = dir.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for (path, found) in
            [(pipe.as_path(), "a pipe"), (dir.path(), "a folder"), (Path::new("/dev/zero"), "a device")]
        {
            let error = open(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}", path.display());
            assert!(error.to_string().contains(found), "{error}");
        }
        assert_eq!(open(&dir.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
