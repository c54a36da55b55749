//! Writes reports, draws saved ones again (`weir-loadtest draw`), and prints progress to stderr.

use crate::error::{Error, Result};
use crate::report::{self, MeasurementReport, ReportPart};
use crate::schedule::RunLength;
use crate::stats::OutcomeCounts;
use crate::timer::{LiveCounters, LoadCounters};
use indicatif::{ProgressBar, ProgressStyle};
use std::ffi::OsString;
use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum files that `draw` reads.
const MAX_FILES: usize = 64;
/// Flags of the files to write.
const JSON: &str = "--json";
const MARKDOWN: &str = "--markdown";
/// Flag whose value must not appear in reports.
pub(crate) const SECRET: &str = "--api-key";

/// True if a word is [`SECRET`], with or without its value.
pub(crate) fn is_secret(word: &str) -> bool {
    word.split_once('=').map_or(word, |(flag, _)| flag) == SECRET
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct OutputArgs {
    /// Write the measurement as JSON to this file. `-` writes it to stdout in place of the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a page of Markdown to this file, and its charts as SVG into the folder of the same name without the ending.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Title of the page.
    #[arg(long, value_name = "TEXT", default_value = "Latency as clients see it")]
    title: String,
}

impl OutputArgs {
    /// Checks before the measurement that files can be written.
    pub(crate) fn check(&self) -> Result<()> {
        let files = [(JSON, &self.json), (MARKDOWN, &self.markdown)];
        let files: Vec<_> = files.into_iter().filter_map(|(flag, file)| Some((flag, file.as_ref()?))).collect();
        if let Some(file) = self.markdown.as_ref().filter(|file| is_stdout(file) || file.extension().is_none()) {
            return Err(Error::option(MARKDOWN, file.display(), "a file with an ending, such as report.md"));
        }
        for (flag, file) in files.into_iter().filter(|(_, file)| !is_stdout(file)) {
            let is_new = !file.exists();
            fs::OpenOptions::new().create(true).append(true).open(file).map_err(Error::file(flag, "write", file))?;
            // a failed measurement must not leave an empty file
            if is_new {
                fs::remove_file(file).map_err(Error::file(flag, "write", file))?;
            }
        }
        Ok(())
    }

    pub(crate) fn write(&self, reports: &[MeasurementReport]) -> Result<()> {
        let mut to_stdout = None;
        // the data first: a page can be made again from it
        if let Some(file) = &self.json {
            let text = report::json(reports)? + "\n";
            if is_stdout(file) {
                to_stdout = Some(text);
            } else {
                fs::write(file, text).map_err(Error::file(JSON, "write", file))?;
                note(format_args!("wrote {}", file.display()));
            }
        }
        if let Some(file) = &self.markdown {
            self.write_markdown(file, reports)?;
        }
        match to_stdout {
            Some(text) => print(&text),
            None => print(&report::table(reports)),
        }
    }

    /// Writes the page, and its pictures into their folder.
    fn write_markdown(&self, file: &Path, reports: &[MeasurementReport]) -> Result<()> {
        let folder = file.with_extension("");
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let (page, pictures) = report::markdown(&self.title, &name, reports);
        fs::create_dir_all(&folder).map_err(Error::file(MARKDOWN, "write", &folder))?;
        for (name, picture) in pictures {
            let path = folder.join(name);
            fs::write(&path, picture).map_err(Error::file(MARKDOWN, "write", &path))?;
        }
        fs::write(file, page).map_err(Error::file(MARKDOWN, "write", file))?;
        note(format_args!("wrote {}", file.display()));
        Ok(())
    }

    /// Writes the reports of this command, then fails in one of three cases: `error` ended the command, no request succeeded, or fewer
    /// than half succeeded, where a search for the knee does not count.
    pub(crate) fn write_measured(&self, reports: &[MeasurementReport], error: Option<Error>) -> Result<()> {
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
        if all.well == 0 {
            return Err(Error::Setting(format!("no request succeeded: {}", all.describe())));
        }
        let mut without_search = OutcomeCounts::default();
        // failures are expected of rates that the server cannot sustain
        let is_search = |part: &ReportPart| matches!(part, ReportPart::Rates { .. });
        let parts = reports.iter().flat_map(|report| &report.parts).filter(|part| !is_search(part));
        parts.flat_map(ReportPart::outcomes).for_each(|outcomes| without_search.add(outcomes));
        if without_search.is_mostly_bad() {
            let outcomes = without_search.describe();
            return Err(Error::Setting(format!("fewer than half of the requests succeeded: {outcomes}")));
        }
        Ok(())
    }
}

/// Draws saved measurements.
#[derive(Debug, clap::Args)]
pub(crate) struct DrawArgs {
    /// Files that --json wrote, each with any number of measurements.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn draw(args: DrawArgs) -> Result<()> {
    let DrawArgs { files, output } = args;
    if files.len() > MAX_FILES {
        return Err(Error::option("FILE", files.len(), format!("at most {MAX_FILES} files")));
    }
    output.check()?;
    let mut reports = Vec::new();
    for file in &files {
        reports.extend(report::read(file)?);
    }
    output.write(&reports)
}

fn is_stdout(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// Prints to stdout and returns an error if the pipe is closed.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Stdout)
}

/// Returns the command line without the program's path and without keys.
pub(crate) fn command_line(arguments: &[OsString]) -> String {
    let mut words = vec!["weir-loadtest".to_owned()];
    let mut is_key = false;
    for word in arguments.iter().skip(1).map(|word| word.to_string_lossy()) {
        let is_flag = is_secret(&word);
        words.push(match () {
            () if is_key => "…".into(),
            () if is_flag && word.contains('=') => format!("{SECRET}=…"),
            () if word.contains(char::is_whitespace) => format!("'{word}'"),
            () => word.to_string(),
        });
        is_key = is_flag && !word.contains('=');
    }
    words.join(" ")
}

/// Prints a line to stderr.
pub(crate) fn note(line: impl Display) {
    // `eprintln!` would panic if stderr is closed
    let _ = writeln!(std::io::stderr(), "weir-loadtest: {line}");
}

pub(crate) struct LoadProgress {
    bar: ProgressBar,
    /// Requests of the load, if the bar counts them instead of time.
    requests: Option<u64>,
}

pub(crate) fn counting(title: &str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} {wide_bar} {elapsed} {msg}");
    let bar = ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.with_prefix(title.to_owned())
}

impl LoadProgress {
    pub(crate) fn new(title: &str, length: &RunLength) -> Self {
        let millis = length.duration.map(|duration| (duration + length.warm_up).as_millis() as u64);
        Self { bar: counting(title, length.requests.or(millis).unwrap_or(0)), requests: length.requests }
    }

    pub(crate) fn update(&self, counters: &LiveCounters, begin: Instant) {
        let counts = counters.read().counts;
        let LoadCounters { characters, finished, failed, .. } = counts;
        let elapsed = begin.elapsed().max(Duration::from_millis(1));
        let speed = characters as f64 / elapsed.as_secs_f64();
        let in_flight = counts.in_flight();
        self.bar.set_position(self.requests.map_or(elapsed.as_millis() as u64, |_| finished + failed));
        let message = format!("{finished} succeeded, {failed} failed, {in_flight} in flight, {speed:.0} characters/s");
        self.bar.set_message(message);
    }
}

impl Drop for LoadProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The error that ended a command early, if one did; all its sessions share it.
#[derive(Clone, Default)]
pub(crate) struct AbortLog(Arc<Mutex<Option<Error>>>);

impl AbortLog {
    fn error(&self) -> MutexGuard<'_, Option<Error>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failed(&self) -> bool {
        self.error().is_some()
    }

    /// Returns the value, or records the error. The command then measures no more and writes its report before it fails.
    pub(crate) fn ok_or_record<T>(&self, measured: Result<T>) -> Option<T> {
        measured.map_err(|error| self.error().get_or_insert(error).to_string()).ok()
    }

    /// Marks the last report if the command ended early. Returns the error if one ended it.
    pub(crate) fn finish(&self, reports: &mut [MeasurementReport], interrupted: bool) -> Option<Error> {
        let error = self.error().take();
        let reason = error.as_ref().map(Error::to_string).or(interrupted.then(|| "it was interrupted".to_owned()));
        if let Some(last) = reports.last_mut() {
            last.broken_off = reason;
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_left_out() {
        let arguments = ["/a/b", "run", "--api-key", "hush", "--api-key=hush", "--note", "two cores"];
        let line = command_line(&arguments.map(Into::into));
        assert_eq!(["--api-key", "--api-key=hush", "--api-key-file"].map(is_secret), [true, true, false]);
        assert_eq!(line, "weir-loadtest run --api-key … --api-key=… --note 'two cores'");
    }
}
