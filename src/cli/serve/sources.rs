//! Where the settings of `weir serve` come from.

use crate::config::Origins;

/// Where the settings come from.
#[derive(Debug, Default)]
pub struct SettingSources {
    /// Errors found in the settings file.
    pub problems: Vec<String>,
    /// Origin of each setting that was not given as a flag.
    pub origins: Origins,
    /// All settings, in the format of a settings file.
    pub shown: String,
}
