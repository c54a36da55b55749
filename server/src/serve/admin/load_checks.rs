//! Checks of a request to load a model: its folder, its name, and the memory available.

use crate::error::{Error, Result, clip};
use std::path::{Component, Path, PathBuf};
use sysinfo::System;

/// Maximum bytes of a name.
const NAME_BYTES: usize = 128;

/// Resolves `path` within the models folder, and follows links. Fails if the server has no models folder, if `path` does
/// not exist, or if it leads out of the folder.
pub(super) fn resolve_folder(root: Option<&Path>, path: &str) -> Result<PathBuf> {
    let rejected = |bound: &str| Error::bad_option("path", format!("{path:?}"), bound);
    let root = root.ok_or_else(|| rejected("no path (this server has no models folder)"))?;
    let mut components = Path::new(path).components();
    if components.clone().count() == 0 || !components.all(|part| matches!(part, Component::Normal(_))) {
        return Err(rejected("a relative path within the models folder"));
    }
    let folder = canonical(&root.join(path))?;
    if !folder.starts_with(canonical(root)?) {
        return Err(rejected("a path that stays within the models folder after links are followed"));
    }
    Ok(folder)
}

fn canonical(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(Error::io(path))
}

/// Returns the requested name, or the folder's if none is requested. Fails if the requested name is too long, does not begin
/// with a letter or digit, or has characters other than letters, digits, `-`, `_` and `.`.
pub(super) fn model_name(requested: Option<&str>, folder: &Path) -> Result<String> {
    let Some(name) = requested.filter(|name| !name.is_empty()) else {
        return Ok(folder.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned()));
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.len() > NAME_BYTES || !name.chars().all(plain) || !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        let bound = format!("1 to {NAME_BYTES} letters, digits, or any of \"-_.\", the first a letter or digit");
        return Err(Error::bad_option("name", format!("{:?}", clip(name, NAME_BYTES)), bound));
    }
    Ok(name.to_owned())
}

/// Checks that the system has `needed` bytes available, in addition to `reserved` bytes that running engines may still
/// take. Fails with [`Error::NoMemory`] otherwise.
pub(super) fn check_memory(needed: usize, reserved: usize) -> Result<()> {
    let mut system = System::new();
    system.refresh_memory();
    // A container's limit may be lower than the machine's memory. Cached files count as used there, but the system frees them when
    // a program needs memory.
    let cgroup = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory.saturating_sub(limits.rss));
    let available = usize::try_from(system.available_memory().min(cgroup)).unwrap_or(usize::MAX);
    let available = available.saturating_sub(reserved);
    if needed > available { Err(Error::NoMemory { needed, available }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_within_the_models_folder() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("models");
        for folder in ["models/a/b", "other"] {
            std::fs::create_dir_all(outer.path().join(folder)).unwrap();
        }
        let real_root = root.canonicalize().unwrap();
        assert_eq!(resolve_folder(Some(&root), "a").unwrap(), real_root.join("a"));
        assert_eq!(resolve_folder(Some(&root), "a/b/").unwrap(), real_root.join("a/b"));
        for wrong in ["", ".", "..", "../other", "a/../../other", "/", "./a", outer.path().to_str().unwrap()] {
            assert!(
                matches!(resolve_folder(Some(&root), wrong), Err(Error::BadOption { field: "path", .. })),
                "{wrong}"
            );
        }
        assert!(matches!(resolve_folder(Some(&root), "nothing"), Err(Error::Io { .. })));
        assert!(matches!(resolve_folder(None, "a"), Err(Error::BadOption { field: "path", .. })));
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
        assert_eq!(resolve_folder(Some(&root), "within").unwrap(), root.canonicalize().unwrap().join("a"));
        assert!(matches!(resolve_folder(Some(&root), "out"), Err(Error::BadOption { field: "path", .. })));
    }

    #[test]
    fn names_have_only_allowed_characters() {
        let name = |requested| model_name(requested, Path::new("/models/big"));
        assert_eq!(name(None).unwrap(), "big");
        assert_eq!(name(Some("")).unwrap(), "big");
        assert_eq!(name(Some("v1.2_b-c")).unwrap(), "v1.2_b-c");
        for wrong in [" ", "a b", "a\n", "é", ".a", "-a", "a/b", &"a".repeat(129)] {
            assert!(matches!(name(Some(wrong)), Err(Error::BadOption { field: "name", .. })), "{wrong:?}");
        }
    }

    #[test]
    fn more_memory_than_available_is_rejected() {
        check_memory(1, 0).unwrap();
        let Err(Error::NoMemory { needed, available }) = check_memory(usize::MAX, 0) else { panic!("accepted") };
        assert!(needed == usize::MAX && available > 0);
        assert!(
            matches!(check_memory(1, usize::MAX), Err(Error::NoMemory { needed: 1, available: 0 })),
            "everything is reserved"
        );
    }
}
