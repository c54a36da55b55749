//! Progress bars on stderr, where stderr is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Work smaller than this is done before a bar can be read.
const WORTH_SHOWING: u64 = 16 << 20;

/// A bar that is told what is done and what there is to do; `template` says what is counted.
pub struct Progress {
    bar: Option<ProgressBar>,
    template: &'static str,
}

impl Progress {
    /// Counts bytes.
    pub fn bytes() -> Self {
        Self { bar: None, template: "{wide_bar} {bytes}/{total_bytes} {eta}" }
    }

    /// Counts numbers.
    pub fn numbers() -> Self {
        Self { bar: None, template: "{wide_bar} {human_pos}/{human_len} numbers {eta}" }
    }

    /// Shows how far the work is.
    pub fn tell(&mut self, done: u64, total: u64) {
        if total < WORTH_SHOWING {
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
