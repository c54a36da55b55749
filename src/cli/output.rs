//! Output of the commands: results to stdout or a file, notes and progress bars to stderr, and colours. A closed pipe is an error, not
//! a panic.

use indicatif::{ProgressBar, ProgressStyle};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::json;
use std::env;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;
use weir_kernels::error::{Error, Result, clip, printable};
use weir_models::checkpoint::WrittenCheckpoint;
use weir_models::convert::Source;
use weir_models::text::TextNormaliser;
use weir_models::text::subwords::TOKENIZER_FILE;

/// Writes text to stdout and flushes it. Fails if stdout cannot be written, for example because the pipe is closed.
pub fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::io("stdout"))
}

/// Writes a JSON value and a newline to stdout. Fails as [`write()`] does.
pub fn json(value: &serde_json::Value) -> Result<()> {
    write(&format!("{value}\n"))
}

/// Prints a checkpoint that was written to `folder`: shape, number of parameters and hash. Fails as [`write()`] does.
pub fn checkpoint(folder: &Path, written: &WrittenCheckpoint, as_json: bool) -> Result<()> {
    let WrittenCheckpoint { shape, parameters, sha256 } = written;
    if as_json {
        return json(&json!({ "path": folder, "shape": shape, "parameters": parameters, "sha256": sha256 }));
    }
    write(&format!("{}: {shape}, {parameters} parameters, sha256 {sha256}\n", folder.display()))
}

/// Writes logits (positions, vocabulary) and, if given, boundaries (positions) to a safetensors file.
pub fn logits(path: &Path, logits: &[f32], shape: [usize; 2], boundaries: Option<&[u8]>) -> Result<()> {
    let bytes: Vec<u8> = logits.iter().flat_map(|value| value.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, shape.to_vec(), &bytes).map(|view| ("logits", view));
    let boundaries = boundaries.map(|flags| TensorView::new(Dtype::U8, vec![shape[0]], flags));
    let tensors = std::iter::once(view).chain(boundaries.map(|view| view.map(|view| ("boundaries", view))));
    let file = tensors.collect::<std::result::Result<Vec<_>, _>>().and_then(|all| safetensors::serialize(all, None));
    let file = file.map_err(|error| Error::Internal(format!("safetensors: {error}")))?;
    std::fs::write(path, file).map_err(Error::io(path))
}

/// Formats `value` with three decimals, or as a dash if absent.
pub fn optional(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.3}"))
}

/// When output has colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorChoice {
    /// Colours on a terminal, unless NO_COLOR is set or TERM is dumb.
    #[default]
    Auto,
    /// Colours everywhere, files and pipes included.
    Always,
    /// No colours.
    Never,
}

/// The flag of the colours, which every command has.
#[derive(Debug, clap::Args)]
pub struct ColorArgs {
    /// When to print results in colours. `auto`: on a terminal, unless NO_COLOR is set or TERM is dumb.
    #[arg(long, value_enum, value_name = "WHEN", env = "WEIR_COLOR", default_value = "auto", global = true)]
    pub(super) color: ColorChoice,
}

impl ColorChoice {
    /// Returns true if a stream gets colours.
    pub(super) fn is_on(self, stream: &impl IsTerminal) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => {
                let no_color = env::var_os("NO_COLOR");
                stream.is_terminal() && allows_color(no_color.as_deref(), env::var_os("TERM").as_deref())
            }
        }
    }
}

/// Returns true unless one of the variables forbids colours.
fn allows_color(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

/// Maximum bytes of the normalised text in a note.
const SHOWN_BYTES: usize = 80;

/// Reports that a normaliser changed this many characters of the text of `flag`, if it did. `name` is the normaliser's name, if known.
pub(super) fn characters_changed(flag: &str, text: &str, changed: usize, name: Option<&str>) {
    if changed > 0 {
        self::note(&normalised_note(flag, text, changed, name));
    }
}

/// Reports that a conversion left a tokenizer behind.
pub(super) fn tokenizer_not_converted(kind: Source, folder: &Path) {
    let has_tokenizer = [TOKENIZER_FILE, "vocab.json"].iter().any(|name| folder.join(name).exists());
    if kind == Source::Gpt2 && has_tokenizer {
        note(
            "conversions from GPT-2 read no tokenizer: without vocab in config.json, the model takes --ids and no text",
        );
    }
}

/// Returns the note on a text of which a normaliser changed characters. A server of another version may have a normaliser that this
/// program does not know; what the model reads is then unknown.
fn normalised_note(flag: &str, text: &str, changed: usize, name: Option<&str>) -> String {
    let count = text.chars().count();
    let noun = if count == 1 { "character" } else { "characters" };
    let normaliser =
        name.map_or("the model's normaliser".to_owned(), |name| format!("the normaliser {}", printable(name)));
    let read = name.and_then(TextNormaliser::parse).map_or_else(String::new, |known| {
        let shown = clip(&known.apply(text), SHOWN_BYTES);
        format!("; the model reads {shown:?}")
    });
    format!("{flag}: {normaliser} changed {changed} of {count} {noun}{read}")
}

/// Prints a note to stderr: how a command treats its input.
pub(super) fn note(note: &str) {
    to_stderr(format_args!("weir: note: {note}"));
}

/// Prints a line to stderr. `eprintln!` would panic if stderr is closed.
pub(super) fn to_stderr(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Smallest total, in bytes or numbers, that gets a bar: less is done before a bar can be read.
const MIN_SHOWN: u64 = 16 << 20;

/// A progress bar, drawn from the first update on.
pub struct Progress {
    bar: Option<ProgressBar>,
    /// indicatif's template, which names the unit.
    template: &'static str,
    /// Smallest total that gets a bar.
    min_total: u64,
}

impl Progress {
    /// Counts bytes.
    pub fn bytes() -> Self {
        Self { bar: None, template: "{wide_bar} {bytes}/{total_bytes} {eta}", min_total: MIN_SHOWN }
    }

    /// Counts numbers.
    pub fn numbers() -> Self {
        Self { bar: None, template: "{wide_bar} {human_pos}/{human_len} numbers {eta}", min_total: MIN_SHOWN }
    }

    /// Counts measurements. Each takes long enough to show a bar from the first one on.
    pub fn measurements() -> Self {
        Self { bar: None, template: "{wide_bar} {pos}/{len} measurements {eta}", min_total: 1 }
    }

    /// Counts the bytes of texts that a model reads or writes, with a note such as the rate.
    pub fn texts() -> Self {
        Self { bar: None, template: "{wide_bar} {bytes}/{total_bytes} {msg} {eta}", min_total: 1 }
    }

    /// Shows a note in a bar that has a place for it.
    pub fn note(&self, note: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(note);
        }
    }

    /// Shows `done` of `total`.
    pub fn update(&mut self, done: u64, total: u64) {
        if total < self.min_total {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            // indicatif draws to stderr, and draws nothing if stderr is not a terminal.
            let style = ProgressStyle::with_template(self.template).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style)
        });
        bar.set_position(done);
    }
}

/// Smallest text, in bytes, whose reading is shown.
const MIN_READ: usize = 4 << 10;

/// Shows that a model reads a text whose progress is not known, for how long, on a terminal. Dropping it clears the line.
pub(super) struct Waiting(Option<ProgressBar>);

impl Waiting {
    /// Shows it for a text of `bytes` bytes, unless the text is short.
    pub(super) fn for_text(what: &str, bytes: usize) -> Self {
        if bytes < MIN_READ {
            return Self(None);
        }
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
        let bar = ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_message(format!("{what} {bytes} bytes"));
        bar.enable_steady_tick(TICK);
        Self(Some(bar))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Time between two pictures of a spinner.
const TICK: Duration = Duration::from_millis(200);

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_forbid_colors() {
        let allows =
            |no_color: Option<&str>, term: Option<&str>| allows_color(no_color.map(OsStr::new), term.map(OsStr::new));
        assert!(allows(None, None) && allows(Some(""), Some("xterm")));
        assert!(!allows(Some("1"), Some("xterm")) && !allows(None, Some("dumb")));
    }

    #[test]
    fn a_note_shows_what_the_model_reads() {
        let note = normalised_note("--prompt", "A, b", 3, Some("text8"));
        assert_eq!(note, "--prompt: the normaliser text8 changed 3 of 4 characters; the model reads \"a b\"");
        let single = normalised_note("--text", "A", 1, Some("text8"));
        assert_eq!(single, "--text: the normaliser text8 changed 1 of 1 character; the model reads \"a\"");
        let later = normalised_note("--text", "A b", 1, Some("text9"));
        assert_eq!(later, "--text: the normaliser text9 changed 1 of 3 characters");
        let unknown = normalised_note("--text", "A b", 1, None);
        assert_eq!(unknown, "--text: the model's normaliser changed 1 of 3 characters");
    }
}
