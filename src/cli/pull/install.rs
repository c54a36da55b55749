//! Puts a folder among the user's models: completely or not at all.

use crate::{
    error::{Error, Result},
    family::checkpoint::writer::sync_folder,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A model on its way into the models folder. Its files are in a hidden folder next to the final one, on the same file system. The
/// hidden folder is removed at the end, also after an error.
pub(super) struct Installation {
    models: PathBuf,
    /// The final folder.
    target: PathBuf,
    /// The hidden folder.
    work: PathBuf,
    overwrite: bool,
}

impl Installation {
    /// Creates the models folder, if it is missing, and the hidden folder. Fails if the name is taken and may not be replaced.
    pub(super) fn begin(models: &Path, name: &str, overwrite: bool) -> Result<Self> {
        let target = models.join(name);
        let installation = Self {
            models: models.to_owned(),
            work: models.join(format!(".{name}.{}", std::process::id())),
            target,
            overwrite,
        };
        installation.check_vacant()?;
        fs::create_dir_all(models).map_err(Error::io(models))?;
        // A crashed process of the same number may have left one.
        remove(&installation.work)?;
        fs::create_dir(&installation.work).map_err(Error::io(&installation.work))?;
        Ok(installation)
    }

    /// The hidden folder.
    pub(super) fn folder(&self) -> &Path {
        &self.work
    }

    /// Moves a folder inside the hidden one to its final name, and returns that. Fails if the name was taken meanwhile.
    pub(super) fn finish(self, folder: &Path) -> Result<PathBuf> {
        self.check_vacant()?;
        let old = self.work.join("old");
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

    fn check_vacant(&self) -> Result<()> {
        if self.overwrite || !self.target.exists() {
            return Ok(());
        }
        let target = self.target.display();
        Err(Error::Setting(format!(
            "{target}: a model of this name exists; give another --name, or --force to replace it"
        )))
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.work) {
            tracing::warn!(%error, "a temporary folder remains");
        }
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io(folder)(error)),
        _ => Ok(()),
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
}
