//! The place that the argument of `weir pull` names.

use super::{
    files::{FileSource, Folder},
    http::{HttpFolder, without_secrets},
    hub,
};
use crate::error::{Error, Result, quoted};
use std::path::{Path, PathBuf};

/// The place that a checkpoint is fetched from.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A folder of this machine.
    Folder(PathBuf),
    /// A folder of a web server.
    Url(String),
    /// A repository of the Hugging Face Hub.
    Hub(hub::Repository),
}

impl Origin {
    /// Parses the argument. Fails if a repository's name or a URL is malformed.
    pub(super) fn parse(argument: &str) -> Result<Self> {
        if let Some(repository) = argument.strip_prefix("hf:") {
            return hub::Repository::parse(repository).map(Self::Hub);
        }
        let wrong = |expected: &str| Err(Error::bad_option("SOURCE", quoted(&without_secrets(argument)), expected));
        if !argument.starts_with("http://") && !argument.starts_with("https://") {
            if argument.contains("://") {
                return wrong("a folder, a URL that begins with https:// or http://, or hf:ORG/NAME");
            }
            return Ok(Self::Folder(argument.into()));
        }
        if argument.contains(['?', '#']) {
            return wrong("the URL of a folder, without a query and a fragment");
        }
        if argument.split('/').nth(2).is_none_or(|host| host.is_empty() || host.contains('@')) {
            return wrong("a URL with a host, and without a user and a password");
        }
        if [".tar", ".tar.gz", ".tgz", ".zip", ".safetensors"].iter().any(|ending| argument.ends_with(ending)) {
            return wrong("the URL of a folder that holds the checkpoint's files, not of one file");
        }
        Ok(Self::Url(argument.trim_end_matches('/').to_owned()))
    }

    /// The last part of the path, as the model's name.
    pub(super) fn name(&self) -> Option<String> {
        match self {
            Self::Folder(folder) => {
                let full = folder.canonicalize().unwrap_or_else(|_| folder.clone());
                full.file_name().map(|name| name.to_string_lossy().into_owned())
            }
            Self::Url(url) => url.split('/').skip(3).last().filter(|part| !part.is_empty()).map(str::to_owned),
            Self::Hub(repository) => Some(repository.name().to_owned()),
        }
    }

    /// Opens the place. Fails if it is not a checkpoint folder, or if TLS cannot be set up.
    pub(super) fn open(&self) -> Result<Box<dyn FileSource>> {
        Ok(match self {
            Self::Folder(folder) => Box::new(Folder::open(Path::new(folder))?),
            Self::Url(url) => Box::new(HttpFolder::new(url.clone(), None)?),
            Self::Hub(repository) => Box::new(repository.open()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_folders_urls_and_repositories() {
        let name = |argument: &str| Origin::parse(argument).unwrap().name();
        assert_eq!(name("/mnt/english").as_deref(), Some("english"));
        assert_eq!(name("https://example.com/models/english/").as_deref(), Some("english"));
        assert_eq!(name("https://example.com"), None);
        assert_eq!(name("hf:org/english@v1").as_deref(), Some("english"));
        let wrong = [
            ("https://example.com/a?b", "without a query"),
            ("https://example.com/a?token=hidden", "a fragment, found \"https://example.com/…\""),
            (
                "ftp://example.com/x",
                "SOURCE: expected a folder, a URL that begins with https:// or http://, or hf:ORG/NAME",
            ),
            ("https:///a", "with a host"),
            ("https://user:hidden@example.com/a", "without a user"),
            ("https://example.com/a.tar.gz", "not of one file"),
            ("hf:english", "ORG/NAME"),
        ];
        for (argument, expected) in wrong {
            let error = Origin::parse(argument).unwrap_err().to_string();
            assert!(error.contains(expected), "{argument}: {error}");
            assert!(!error.contains("hidden") && !error.contains("?"), "{argument}: {error}");
        }
    }
}
