//! Where a checkpoint may be loaded from, under which name, and whether there is memory for it.

use crate::error::{Error, Result};
use std::path::{Component, Path, PathBuf};
use sysinfo::System;

/// Bytes of a name.
const NAME_BYTES: usize = 128;

/// The folder of that path within the models folder, links followed.
pub(super) fn folder(root: Option<&Path>, path: &str) -> Result<PathBuf> {
    let refused = |bound: &str| Error::BadOption { field: "path", found: format!("{path:?}"), bound: bound.into() };
    let Some(root) = root else {
        return Err(refused("absent: this server was given no models folder"));
    };
    let components = Path::new(path).components();
    let down = components.clone().all(|part| matches!(part, Component::Normal(_)));
    if !down || components.count() == 0 {
        return Err(refused("a path relative to the models folder, and within it"));
    }
    let whole = root.join(path);
    let (root, folder) = (resolved(root)?, resolved(&whole)?);
    if !folder.starts_with(&root) {
        return Err(refused("a path within the models folder, links followed"));
    }
    Ok(folder)
}

fn resolved(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(Error::io(path))
}

/// The name asked for, else the folder's.
pub(super) fn name(given: Option<&str>, folder: &Path) -> Result<String> {
    let Some(name) = given.filter(|name| !name.is_empty()) else {
        return Ok(folder.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned()));
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.len() > NAME_BYTES || !name.chars().all(plain) || !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        let bound = format!("1 to {NAME_BYTES} letters, digits, or any of \"-_.\", the first a letter or digit");
        let found = format!("{:?}", crate::error::clip(name, NAME_BYTES));
        return Err(Error::BadOption { field: "name", found, bound });
    }
    Ok(name.to_owned())
}

/// Whether so many bytes more can be had, as far as the system tells; of what it has some are promised to others.
pub(super) fn room(needed: usize, promised: usize) -> Result<()> {
    let mut system = System::new();
    system.refresh_memory();
    // What containers may have is less than what there is.
    let own = system.cgroup_limits().map_or(u64::MAX, |limits| limits.free_memory);
    let available = usize::try_from(system.available_memory().min(own)).unwrap_or(usize::MAX);
    let available = available.saturating_sub(promised);
    if needed > available { Err(Error::NoMemory { needed, available }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_within_the_folder() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("models");
        for folder in ["models/a/b", "other"] {
            std::fs::create_dir_all(outer.path().join(folder)).unwrap();
        }
        let root_itself = root.canonicalize().unwrap();
        assert_eq!(folder(Some(&root), "a").unwrap(), root_itself.join("a"));
        assert_eq!(folder(Some(&root), "a/b/").unwrap(), root_itself.join("a/b"));
        for wrong in ["", ".", "..", "../other", "a/../../other", "/", "./a", outer.path().to_str().unwrap()] {
            assert!(matches!(folder(Some(&root), wrong), Err(Error::BadOption { field: "path", .. })), "{wrong}");
        }
        assert!(matches!(folder(Some(&root), "nothing"), Err(Error::Io { .. })));
        assert!(matches!(folder(None, "a"), Err(Error::BadOption { field: "path", .. })));
    }

    #[cfg(unix)]
    #[test]
    fn links_do_not_lead_out() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("models");
        for folder in ["models/a", "other"] {
            std::fs::create_dir_all(outer.path().join(folder)).unwrap();
        }
        std::os::unix::fs::symlink(root.join("a"), root.join("within")).unwrap();
        std::os::unix::fs::symlink(outer.path().join("other"), root.join("out")).unwrap();
        assert_eq!(folder(Some(&root), "within").unwrap(), root.canonicalize().unwrap().join("a"));
        assert!(matches!(folder(Some(&root), "out"), Err(Error::BadOption { field: "path", .. })));
    }

    #[test]
    fn names_are_plain() {
        let own = |given| name(given, Path::new("/models/big"));
        assert_eq!((own(None).unwrap(), own(Some("")).unwrap()), ("big".into(), "big".into()));
        assert_eq!(own(Some("v1.2_b-c")).unwrap(), "v1.2_b-c");
        for wrong in [" ", "a b", "a\n", "é", ".a", "-a", "a/b", &"a".repeat(129)] {
            assert!(matches!(own(Some(wrong)), Err(Error::BadOption { field: "name", .. })), "{wrong:?}");
        }
    }

    #[test]
    fn what_no_machine_has_is_refused() {
        room(1, 0).unwrap();
        let Err(Error::NoMemory { needed, available }) = room(usize::MAX, 0) else { panic!("there is room") };
        assert!(needed == usize::MAX && available > 0);
        assert!(matches!(room(1, usize::MAX), Err(Error::NoMemory { needed: 1, available: 0 })), "all is promised");
    }
}
