//! Progress bars on stderr, shown only if stderr is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

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

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
