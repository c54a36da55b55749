//! Writes reports, and `weir-loadtest draw`, which draws saved ones again.

use super::steps;
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

/// Maximum files that `draw` reads.
const MAX_FILES: usize = 64;
/// Flags of the files to write.
const JSON: &str = "--json";
const HTML: &str = "--html";
/// Flags whose values must not appear in reports.
const SECRETS: [&str; 1] = ["--api-key"];

/// Returns the first flag among `arguments` that has a secret as its value.
pub(super) fn secret_flag(arguments: &[OsString]) -> Option<&'static str> {
    let mut words = arguments.iter().map(|argument| argument.to_string_lossy());
    words.find_map(|word| {
        let flag = word.split_once('=').map_or(&*word, |(flag, _)| flag);
        SECRETS.into_iter().find(|secret| *secret == flag)
    })
}

#[derive(Debug, Clone, clap::Args)]
pub(super) struct OutputArgs {
    /// Write the measurement as JSON to this file. `-` writes it to stdout in place of the table.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write a self-contained HTML page to this file. `-` writes it to stdout in place of the table.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Title of the page.
    #[arg(long, value_name = "TEXT", default_value = "Latency as clients see it")]
    title: String,
}

impl OutputArgs {
    /// Checks before the measurement that files can be written.
    pub(super) fn check(&self) -> Result<()> {
        let files = [(JSON, &self.json), (HTML, &self.html)].map(|(flag, file)| file.as_ref().map(|file| (flag, file)));
        let files: Vec<_> = files.into_iter().flatten().collect();
        if files.iter().filter(|(_, file)| is_stdout(file)).count() > 1 {
            return Err(Error::option(HTML, "\"-\"", format!("a file because {JSON} writes to stdout")));
        }
        for (flag, file) in files.into_iter().filter(|(_, file)| !is_stdout(file)) {
            let is_new = !file.exists();
            fs::OpenOptions::new().create(true).append(true).open(file).map_err(Error::unwritable(flag, file))?;
            // a failed measurement must not leave an empty file
            if is_new {
                fs::remove_file(file).map_err(Error::unwritable(flag, file))?;
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, reports: &[MeasurementReport]) -> Result<()> {
        let page = self.html.as_ref().map(|file| (HTML, file, html::page(&self.title, reports)));
        let data = match &self.json {
            Some(file) => Some((JSON, file, data::json(reports)? + "\n")),
            None => None,
        };
        let mut to_stdout = None;
        // the data first: a page can be made again from it
        for (flag, file, text) in data.into_iter().chain(page) {
            if is_stdout(file) {
                to_stdout = Some(text);
            } else {
                fs::write(file, text).map_err(Error::unwritable(flag, file))?;
                steps::print(format_args!("wrote {}", file.display()));
            }
        }
        match to_stdout {
            Some(text) => print(&text),
            None => print(&table::table(reports)),
        }
    }

    /// Writes the reports of this command, then fails in one of three cases: `error` ended the command; no request succeeded or was
    /// cancelled on purpose; or fewer than half of those not cancelled succeeded, where a search for the knee does not count.
    pub(super) fn write_measured(&self, reports: &[MeasurementReport], error: Option<Error>) -> Result<()> {
        if let Some(error) = error {
            if reports.iter().any(|report| report.outcomes().next().is_some()) {
                self.write(reports)?;
            }
            return Err(error);
        }
        self.write(reports)?;
        let mut all = OutcomeCounts::default();
        reports.iter().flat_map(MeasurementReport::outcomes).for_each(|outcomes| all.add(outcomes));
        if all.measured == 0 {
            return Err(Error::Setting("nothing was measured: no request began after the warm-up".into()));
        }
        if all.well + all.cancelled == 0 {
            return Err(Error::NoneSucceeded { outcomes: all.describe() });
        }
        let mut without_search = OutcomeCounts::default();
        // failures are expected of rates that the server cannot sustain
        let is_search = |part: &ReportPart| matches!(part, ReportPart::Rates { .. });
        let parts = reports.iter().flat_map(|report| &report.parts).filter(|part| !is_search(part));
        parts.flat_map(ReportPart::outcomes).for_each(|outcomes| without_search.add(outcomes));
        if without_search.is_mostly_bad() {
            return Err(Error::FewSucceeded { outcomes: without_search.describe() });
        }
        Ok(())
    }
}

/// Draws saved measurements.
#[derive(Debug, clap::Args)]
pub(super) struct DrawArgs {
    /// Files that --json wrote, each with any number of measurements.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn draw(args: DrawArgs) -> Result<()> {
    let DrawArgs { files, output } = args;
    if files.len() > MAX_FILES {
        return Err(Error::option("FILE", files.len(), format!("at most {MAX_FILES} files")));
    }
    output.check()?;
    let mut reports = Vec::new();
    for file in &files {
        reports.extend(data::read(file)?);
    }
    output.write(&reports)
}

fn is_stdout(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// Prints to stdout and returns an error if the pipe is closed.
pub(super) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::io("stdout"))
}

/// Returns the command line without the program's path and without keys.
pub(super) fn command_line(arguments: &[OsString]) -> String {
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
    use super::{command_line, secret_flag};

    #[test]
    fn keys_are_left_out() {
        let arguments = ["/a/b", "run", "--api-key", "hush", "--api-key=hush", "--note", "two cores"];
        let line = command_line(&arguments.map(Into::into));
        assert_eq!(secret_flag(&arguments.map(Into::into)), Some("--api-key"));
        assert_eq!(secret_flag(&["--api-key-file", "--note"].map(Into::into)), None);
        assert_eq!(line, "weir-loadtest run --api-key … --api-key=… --note 'two cores'");
    }
}
