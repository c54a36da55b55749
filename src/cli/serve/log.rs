//! Log level and format.

use super::log_writer::LogWriter;
use crate::{
    cli::color::ColorChoice,
    config::{Announce, Checks},
};
use tracing_subscriber::EnvFilter;

/// Flags of the log.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Log")]
pub(super) struct LogArgs {
    /// Log filter: a level, or `target=level` directives separated by commas. The log goes to stderr.
    #[arg(long, value_name = "FILTER", env = "WEIR_LOG", default_value = "info")]
    log: String,
    /// Log format: text or json.
    #[arg(long, value_name = "FORMAT", env = "WEIR_LOG_FORMAT", default_value = "text")]
    log_format: String,
}

impl LogArgs {
    /// Starts the log, with `writer` as its way to stderr. Called first, so that later checks can log.
    pub(super) fn start(&self, writer: &LogWriter, color: ColorChoice, checks: &mut Checks) -> Announce {
        let filter = EnvFilter::try_new(&self.log).unwrap_or_else(|error| {
            checks.reject("--log", &self.log, format!("a level such as info, or target=level directives ({error})"));
            EnvFilter::default()
        });
        let log = tracing_subscriber::fmt().with_ansi(color.is_on(&std::io::stderr())).with_env_filter(filter);
        let writer = writer.clone();
        let log = log.with_writer(move || writer.clone()).log_internal_errors(false);
        // The standard library would write to stderr itself, which may block.
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        // A log that is already running stays in place.
        match self.log_format.as_str() {
            "text" => {
                let _ = log.try_init();
            }
            "json" => {
                let _ = log.json().try_init();
                return Announce::Event;
            }
            other => checks.reject("--log-format", other, "one of text, json"),
        }
        Announce::Line
    }
}
