//! Links within a checkpoint. A checkpoint is data: none of its files may be a link out of its folder.

use crate::error::{Error, Result};
use std::path::Path;

/// Fails with [`Error::Checkpoint`] if a file of the folder is somewhere else once all links are followed.
pub fn check_inside(dir: &Path, file: &Path) -> Result<()> {
    if is_inside(dir, file)? {
        return Ok(());
    }
    Err(Error::checkpoint(file, "the file", "a file in this folder", "a link out of it"))
}

/// Returns true if a file of the folder is still there after all links are followed. Fails if either does not exist.
pub(super) fn is_inside(dir: &Path, file: &Path) -> Result<bool> {
    let target = file.canonicalize().map_err(Error::io(file))?;
    Ok(target.starts_with(dir.canonicalize().map_err(Error::io(dir))?))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_may_not_leave_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("checkpoint");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("inner"), "").unwrap();
        std::fs::write(dir.path().join("outer"), "").unwrap();
        symlink("inner", folder.join("near")).unwrap();
        symlink("../outer", folder.join("far")).unwrap();
        assert!(check_inside(&folder, &folder.join("near")).is_ok());
        let error = check_inside(&folder, &folder.join("far")).unwrap_err().to_string();
        assert!(error.contains("far") && error.contains("a link out of it"), "{error}");
        assert!(check_inside(&folder, &folder.join("none")).is_err());
    }
}
