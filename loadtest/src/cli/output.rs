//! Where reports go.

use crate::{
    error::{Error, Result},
    measure::stats::OutcomeCounts,
    report::{
        data::{self, MeasurementReport, ReportPart},
        html, table,
    },
};
use std::{
    ffi::OsString,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

/// Flags whose values are nobody's business.
const SECRETS: [&str; 1] = ["--api-key"];

#[derive(Debug, Clone, clap::Args)]
pub(super) struct OutputArgs {
    /// Write the measurement as JSON to this file; `-` is stdout, without the table.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write a page of HTML that needs no other file; `-` is stdout, without the table.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// What the page is called.
    #[arg(long, value_name = "TEXT", default_value = "Latency as clients see it")]
    title: String,
}

impl OutputArgs {
    /// Whether files can be written, before anything is measured.
    pub(super) fn check(&self) -> Result<()> {
        let files = || self.json.iter().chain(&self.html);
        if files().filter(|file| is_stdout(file)).count() > 1 {
            return Err(Error::Setting("--json - and --html -: one of them may go to stdout".into()));
        }
        for file in files().filter(|file| !is_stdout(file)) {
            let is_new = !file.exists();
            fs::OpenOptions::new().create(true).append(true).open(file).map_err(Error::io(file))?;
            // where nothing comes of it, an empty file is no report
            if is_new {
                fs::remove_file(file).map_err(Error::io(file))?;
            }
        }
        Ok(())
    }

    /// Writes measurements.
    pub(super) fn tell(&self, documents: &[MeasurementReport]) -> Result<()> {
        let page = self.html.as_ref().map(|file| (file, html::page(&self.title, documents)));
        let data = match &self.json {
            Some(file) => Some((file, data::json(documents)? + "\n")),
            None => None,
        };
        let mut told = None;
        for (file, text) in page.into_iter().chain(data) {
            if is_stdout(file) {
                told = Some(text);
            } else {
                fs::write(file, text).map_err(Error::io(file))?;
            }
        }
        match told {
            Some(text) => write(&text),
            None => documents.iter().try_for_each(|document| write(&table::table(document))),
        }
    }

    /// Writes what was measured just now, and fails if not one request of it ended as it should have: well, or cancelled on
    /// purpose; or, of all that is no search for loads that are too much, fewer than half of those not cancelled ended well. Where an error broke it off, what there is so far is written all the same.
    pub(super) fn tell_measured(&self, documents: &[MeasurementReport], broken: Option<Error>) -> Result<()> {
        if let Some(error) = broken {
            if documents.iter().any(|document| document.ends().next().is_some()) {
                self.tell(documents)?;
            }
            return Err(error);
        }
        self.tell(documents)?;
        let mut all = OutcomeCounts::default();
        documents.iter().flat_map(MeasurementReport::ends).for_each(|ends| all.add(ends));
        if all.measured == 0 {
            return Err(Error::Setting("nothing was measured: no request began after the warm-up".into()));
        }
        if all.well + all.cancelled == 0 {
            return Err(Error::NothingWell { ends: all.describe() });
        }
        let mut held = OutcomeCounts::default();
        let parts = documents.iter().flat_map(|document| &document.parts).filter(|part| !part.is_search());
        parts.flat_map(ReportPart::ends).for_each(|ends| held.add(ends));
        if held.is_mostly_bad() { Err(Error::FewWell { ends: held.describe() }) } else { Ok(()) }
    }
}

fn is_stdout(file: &Path) -> bool {
    file.as_os_str() == "-"
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
