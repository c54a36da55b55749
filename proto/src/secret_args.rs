//! A pair of flags for a key or token: one for the secret itself, and one for the file that contains it.

use clap::{Arg, ArgMatches, parser::ValueSource, value_parser};
use std::{fmt, path::PathBuf};

/// A key or token. Debug output does not contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(..)")
    }
}

impl Secret {
    /// Returns the key or token.
    pub fn value(&self) -> &str {
        &self.0
    }
}

/// Where the user gave a secret. `origin` is the flag or the environment variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// The secret itself.
    #[expect(missing_docs, reason = "the fields are what their names say")]
    Text { origin: &'static str, secret: Secret },
    /// The file that contains it.
    #[expect(missing_docs, reason = "the fields are what their names say")]
    File { origin: &'static str, path: PathBuf },
    /// Both flags, or both variables: an error of the commands that need the secret.
    #[expect(missing_docs, reason = "the fields are what their names say")]
    Both { text: &'static str, file: &'static str },
}

/// A flag and its environment variable.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the fields are what their names say")]
pub struct FlagNames {
    pub id: &'static str,
    pub flag: &'static str,
    pub variable: &'static str,
}

impl FlagNames {
    /// Returns the flag, which reads its value from the variable if it is not given.
    pub(crate) fn arg(self) -> Arg {
        Arg::new(self.id).long(self.flag.trim_start_matches('-')).env(self.variable)
    }

    /// Returns the flag or the variable.
    fn origin(self, source: ValueSource) -> &'static str {
        if source == ValueSource::EnvVariable { self.variable } else { self.flag }
    }
}

/// A pair of flags: for the secret itself, and for the file that contains it.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the fields are what their names say")]
pub struct SecretFlags {
    pub text: FlagNames,
    pub file: FlagNames,
}

impl SecretFlags {
    /// Returns the flags as clap parses them. `help` and `file_help` describe them.
    pub fn args(self, value_name: &'static str, help: &'static str, file_help: &'static str) -> [Arg; 2] {
        let text = self.text.arg().value_name(value_name).help(help);
        let file = self.file.arg().value_name("FILE").help(file_help);
        [text.hide_env_values(true).value_parser(value_parser!(Secret)), file.value_parser(value_parser!(PathBuf))]
    }

    /// Returns where the secret comes from: a flag if one is given, otherwise a variable.
    pub fn source(self, matches: &ArgMatches) -> Option<SecretSource> {
        let by_flag = self.source_of(ValueSource::CommandLine, matches);
        by_flag.or_else(|| self.source_of(ValueSource::EnvVariable, matches))
    }

    fn source_of(self, source: ValueSource, matches: &ArgMatches) -> Option<SecretSource> {
        let is_given = |names: FlagNames| matches.value_source(names.id) == Some(source);
        let secret = matches.get_one::<Secret>(self.text.id).filter(|_| is_given(self.text));
        let path = matches.get_one::<PathBuf>(self.file.id).filter(|_| is_given(self.file));
        let (text, file) = (self.text.origin(source), self.file.origin(source));
        match (secret, path) {
            (Some(_), Some(_)) => Some(SecretSource::Both { text, file }),
            (Some(secret), None) => Some(SecretSource::Text { origin: text, secret: secret.clone() }),
            (None, Some(path)) => Some(SecretSource::File { origin: file, path: path.clone() }),
            (None, None) => None,
        }
    }
}

impl SecretSource {
    /// Returns the flag on the command line, if one is given.
    pub fn flag(&self) -> Option<&'static str> {
        let (Self::Text { origin, .. } | Self::File { origin, .. } | Self::Both { text: origin, .. }) = self;
        origin.starts_with('-').then_some(*origin)
    }
}

/// Returns the message about two flags, or two variables, for one secret.
pub fn both_given(text: &str, file: &str) -> String {
    format!("{text}: expected no value next to {file}, found one")
}
