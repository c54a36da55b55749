//! Colours of the output.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::IsTerminal,
};

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
    /// When to print colours. `auto`: on a terminal, unless NO_COLOR is set or TERM is dumb.
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

    /// Returns the choice of a command line for clap's own messages, which clap prints before the line is parsed.
    pub(super) fn of(arguments: &[OsString]) -> clap::ColorChoice {
        let mut words = arguments.iter().skip(1);
        let mut choice = env::var_os("WEIR_COLOR");
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--") => break,
                Some("--color") => choice = words.next().cloned(),
                Some(word) => choice = word.strip_prefix("--color=").map(OsString::from).or(choice),
                None => {}
            }
        }
        match choice.as_deref().and_then(OsStr::to_str) {
            Some("always") => clap::ColorChoice::Always,
            Some("never") => clap::ColorChoice::Never,
            _ => clap::ColorChoice::Auto,
        }
    }
}

/// Returns true unless one of the variables forbids colours.
fn allows_color(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
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
    fn the_flag_is_found_before_parsing() {
        let choice = |words: &[&str]| ColorChoice::of(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(choice(&["weir", "segment", "--color", "always"]), clap::ColorChoice::Always);
        assert_eq!(choice(&["weir", "--color=never", "segment"]), clap::ColorChoice::Never);
        assert_eq!(choice(&["weir", "segment", "--", "--color=always"]), clap::ColorChoice::Auto);
        assert_eq!(choice(&["weir", "--color"]), clap::ColorChoice::Auto);
    }
}
