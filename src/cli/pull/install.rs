//! Puts a folder among the user's models: completely or not at all.

use crate::{
    error::{Error, Result},
    family::checkpoint::files::sync_folder,
};
use std::{
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    io,
    path::{Path, PathBuf},
};

/// Name of a replaced model inside the hidden folder.
const OLD: &str = "old";

/// A model on its way into the models folder. Its files are in a hidden folder next to the final one, on the same file system. The
/// hidden folder is removed at the end, also after an error. If the process is killed before, the next installation of the same
/// model removes it.
pub(super) struct Installation {
    models: PathBuf,
    /// The final folder.
    target: PathBuf,
    /// The hidden folder.
    work: PathBuf,
    /// The file next to the hidden folder that this process has locked. The system unlocks it when the process ends.
    _lock: File,
    overwrite: bool,
}

impl Installation {
    /// Creates the models folder, if it is missing, and the hidden folder. Fails if the name is taken and may not be replaced.
    pub(super) fn begin(models: &Path, name: &str, overwrite: bool) -> Result<Self> {
        let target = models.join(name);
        fs::create_dir_all(models).map_err(Error::io(models))?;
        remove_stale(models, name)?;
        check_vacant(&target, overwrite)?;
        // The number of the process is not unique: it is often 1 in a container.
        let work = models.join(format!(".{name}.{:016x}", RandomState::new().build_hasher().finish()));
        let lock_file = lock_file(&work);
        let lock = File::create_new(&lock_file).map_err(Error::io(&lock_file))?;
        // Before the folder exists, so that another process never takes it for a stale one. Fails if the file system has no locks:
        // then no process removes the folders of others.
        let _ = lock.try_lock();
        let installation = Self { models: models.to_owned(), work, target, _lock: lock, overwrite };
        fs::create_dir(&installation.work).map_err(Error::io(&installation.work))?;
        Ok(installation)
    }

    /// The hidden folder.
    pub(super) fn folder(&self) -> &Path {
        &self.work
    }

    /// Moves a folder inside the hidden one to its final name, and returns that. Fails if the name was taken meanwhile.
    pub(super) fn finish(self, folder: &Path) -> Result<PathBuf> {
        check_vacant(&self.target, self.overwrite)?;
        let old = self.work.join(OLD);
        let replaces = self.target.exists();
        if replaces {
            // Until the next rename there is no model of this name. The system has no portable exchange of two folders.
            fs::rename(&self.target, &old).map_err(Error::io(&self.target))?;
        }
        if let Err(error) = fs::rename(folder, &self.target) {
            if replaces {
                fs::rename(&old, &self.target).map_err(Error::io(&self.target))?;
            }
            return Err(Error::io(&self.target)(error));
        }
        sync_folder(&self.models)?;
        Ok(self.target.clone())
    }
}

fn check_vacant(target: &Path, overwrite: bool) -> Result<()> {
    if overwrite || !target.exists() {
        return Ok(());
    }
    let target = target.display();
    Err(Error::Setting(format!("{target}: a model of this name exists; give another --name, or --force to replace it")))
}

/// Returns the path of the file that the owner of a hidden folder locks.
fn lock_file(work: &Path) -> PathBuf {
    let mut file = work.as_os_str().to_owned();
    file.push(".lock");
    file.into()
}

/// Removes the hidden folders of this model whose processes have ended. A process that was killed while it replaced a model may have
/// left the earlier one there, which then gets its place back.
fn remove_stale(models: &Path, name: &str) -> Result<()> {
    let prefix = format!(".{name}.");
    for entry in models.read_dir().map_err(Error::io(models))? {
        let entry = entry.map_err(Error::io(models))?;
        let file_name = entry.file_name();
        let unique = file_name.to_str().and_then(|name| name.strip_prefix(&prefix)).unwrap_or_default();
        if unique.len() != 16 || !unique.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        let work = entry.path();
        // A folder without the file is one that its own process is removing.
        if let Ok(lock) = File::open(lock_file(&work))
            && lock.try_lock().is_ok()
        {
            let old = work.join(OLD);
            let target = models.join(name);
            if old.exists() && !target.exists() {
                fs::rename(&old, &target).map_err(Error::io(&target))?;
            }
            remove(&work)?;
        }
    }
    Ok(())
}

impl Drop for Installation {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.work) {
            tracing::warn!(%error, "a temporary folder remains");
        }
    }
}

/// Removes a hidden folder, and then the file of its lock.
fn remove(work: &Path) -> Result<()> {
    absent_or(fs::remove_dir_all(work)).map_err(Error::io(work))?;
    let lock = lock_file(work);
    absent_or(fs::remove_file(&lock)).map_err(Error::io(&lock))
}

fn absent_or(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    }

    fn install(models: &Path, contents: &str, overwrite: bool) -> Result<PathBuf> {
        let installation = Installation::begin(models, "english", overwrite)?;
        let folder = installation.folder().join("fetched");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("file"), contents).unwrap();
        // Nothing that a reader looks for exists before the end.
        assert!(names(models).iter().all(|name| name.starts_with('.') || overwrite));
        installation.finish(&folder)
    }

    #[test]
    fn a_model_appears_at_the_end() {
        let data = tempfile::tempdir().unwrap();
        let models = data.path().join("weir/models");
        let installed = install(&models, "first", false).unwrap();
        assert_eq!(fs::read_to_string(installed.join("file")).unwrap(), "first");
        let error = install(&models, "second", false).unwrap_err().to_string();
        assert!(error.contains("a model of this name exists") && error.contains("--force"), "{error}");
        assert_eq!(fs::read_to_string(installed.join("file")).unwrap(), "first");
        install(&models, "second", true).unwrap();
        assert_eq!(fs::read_to_string(installed.join("file")).unwrap(), "second");
        assert_eq!(names(&models), ["english"]);
    }

    #[test]
    fn an_abandoned_installation_leaves_nothing() {
        let data = tempfile::tempdir().unwrap();
        let installation = Installation::begin(data.path(), "english", false).unwrap();
        fs::write(installation.folder().join("part"), "").unwrap();
        drop(installation);
        assert_eq!(names(data.path()), [""; 0]);
    }

    #[test]
    fn folders_of_killed_processes_are_removed() {
        let data = tempfile::tempdir().unwrap();
        let running = Installation::begin(data.path(), "english", false).unwrap();
        let other = Installation::begin(data.path(), "english.v2", false).unwrap();
        let stale = data.path().join(".english.0123456789abcdef");
        fs::create_dir(&stale).unwrap();
        fs::write(lock_file(&stale), "").unwrap();
        fs::write(stale.join("part"), "").unwrap();
        let next = Installation::begin(data.path(), "english", false).unwrap();
        assert!(!stale.exists() && !lock_file(&stale).exists());
        assert!(running.folder().is_dir() && other.folder().is_dir() && next.folder().is_dir());
        assert_ne!(running.folder(), next.folder());
        drop([running, other, next]);
        assert_eq!(names(data.path()), [""; 0]);
        // Killed between two renames.
        fs::create_dir_all(stale.join(OLD)).unwrap();
        fs::write(lock_file(&stale), "").unwrap();
        let error = Installation::begin(data.path(), "english", false).err().unwrap().to_string();
        assert!(error.contains("a model of this name exists"), "{error}");
        assert_eq!(names(data.path()), ["english"]);
    }
}
