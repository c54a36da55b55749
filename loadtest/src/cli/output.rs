//! Where reports go.

use crate::{
    error::{Error, Result},
    report::{
        document::{self, Document},
        html, table,
    },
};
use std::{ffi::OsString, fs, io::Write, path::PathBuf};

/// Flags whose values are nobody's business.
const SECRETS: [&str; 1] = ["--api-key"];

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Output {
    /// Write the measurement as JSON to this file; `-` is stdout, without the table.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write a page of HTML that needs no other file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// What the page is called.
    #[arg(long, value_name = "TEXT", default_value = "Latency as clients see it")]
    title: String,
}

impl Output {
    /// Whether files can be written, before anything is measured.
    pub(super) fn check(&self) -> Result<()> {
        for file in self.json.iter().filter(|file| file.as_os_str() != "-").chain(&self.html) {
            fs::OpenOptions::new().create(true).append(true).open(file).map_err(Error::io(file))?;
        }
        Ok(())
    }

    /// Writes measurements.
    pub(super) fn tell(&self, documents: &[Document]) -> Result<()> {
        let to_stdout = self.json.as_deref().is_some_and(|file| file.as_os_str() == "-");
        if let Some(file) = &self.html {
            fs::write(file, html::page(&self.title, documents)).map_err(Error::io(file))?;
        }
        if let Some(file) = &self.json {
            let all = document::json(documents)?;
            if to_stdout {
                return write(&(all + "\n"));
            }
            fs::write(file, all + "\n").map_err(Error::io(file))?;
        }
        documents.iter().try_for_each(|document| write(&table::table(document)))
    }
}

/// Writes to stdout, so that a closed pipe is an error like any other.
pub(super) fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::io("stdout"))
}

/// The command as it was given, but for the program's place and keys.
pub(super) fn command(arguments: &[OsString]) -> String {
    let mut words = vec!["weir-loadtest".to_owned()];
    let mut is_secret = false;
    for word in arguments.iter().skip(1).map(|word| word.to_string_lossy()) {
        let flag = SECRETS.iter().find(|flag| word == **flag || word.starts_with(&format!("{flag}=")));
        words.push(match flag {
            _ if is_secret => "…".into(),
            Some(flag) if word.contains('=') => format!("{flag}=…"),
            _ if word.contains(char::is_whitespace) => format!("'{word}'"),
            _ => word.to_string(),
        });
        is_secret = flag.is_some() && !word.contains('=');
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::command;

    #[test]
    fn keys_are_not_told() {
        let told =
            command(&["/a/b", "run", "--api-key", "hush", "--api-key=hush", "--note", "two cores"].map(Into::into));
        assert_eq!(told, "weir-loadtest run --api-key … --api-key=… --note 'two cores'");
    }
}
