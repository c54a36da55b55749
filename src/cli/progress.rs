//! Progress bars on stderr, where stderr is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Bytes or numbers that are done before a bar can be read.
const WORTH_SHOWING: u64 = 16 << 20;

/// A bar that is told what is done and what there is to do; `template` says what is counted, and `worth` how much of it is
/// worth showing.
pub struct Progress {
    bar: Option<ProgressBar>,
    template: &'static str,
    worth: u64,
}

impl Progress {
    /// Counts bytes.
    pub fn bytes() -> Self {
        Self { bar: None, template: "{wide_bar} {bytes}/{total_bytes} {eta}", worth: WORTH_SHOWING }
    }

    /// Counts numbers.
    pub fn numbers() -> Self {
        Self { bar: None, template: "{wide_bar} {human_pos}/{human_len} numbers {eta}", worth: WORTH_SHOWING }
    }

    /// Counts measurements, each of which takes its time.
    pub fn measurements() -> Self {
        Self { bar: None, template: "{wide_bar} {pos}/{len} measurements {eta}", worth: 1 }
    }

    /// Shows how far the work is.
    pub fn tell(&mut self, done: u64, total: u64) {
        if total < self.worth {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            // drawn to stderr, and not at all where that is no terminal
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
