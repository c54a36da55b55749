//! Flags of a command that calls a server: its address, the API key, TLS files, and pairs of flags for a secret and the file that
//! contains it. Also what both programs do with any command line: empty variables, and the variable behind a value in their own errors.

use crate::address;
use crate::connection::ServerEndpoint;
use crate::tls::{ClientTls, FILE_BYTES, read_limited};
use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Error, FromArgMatches, value_parser};
use std::{ffi::OsString, fmt, path::PathBuf};
use weir_kernels::error::quoted;

/// The flags of the API key.
const API_KEY: SecretFlags = SecretFlags {
    text: FlagNames { id: "api_key", flag: "--api-key", variable: "WEIR_API_KEY" },
    file: FlagNames { id: "api_key_file", flag: "--api-key-file", variable: "WEIR_API_KEY_FILE" },
};

/// Flags of the API key. A flag overrides the variables.
#[derive(Debug, Clone)]
pub struct ApiKeyArgs {
    source: Option<SecretSource>,
}

impl clap::Args for ApiKeyArgs {
    fn augment_args(command: Command) -> Command {
        let help = "API key, if the server requires one. Prefer the environment variable: other users can see command-line arguments";
        command.args(API_KEY.args("KEY", help, "File that contains the API key"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ApiKeyArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Ok(Self { source: API_KEY.source(matches) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ApiKeyArgs {
    /// Returns the flag on the command line, if one is given.
    pub fn flag(&self) -> Option<&'static str> {
        self.source.as_ref()?.flag()
    }

    /// Returns the key, if one is given.
    ///
    /// # Errors
    /// Two flags or two variables are given, the file cannot be read, the key is empty, or no HTTP header can hold it. The message
    /// begins with the flag or the variable.
    pub fn key(&self) -> Result<Option<String>, String> {
        match &self.source {
            None => Ok(None),
            Some(SecretSource::Both { text, file }) => Err(both_given(text, file)),
            Some(SecretSource::Text { origin, secret }) => checked(origin, secret.value(), "an empty one").map(Some),
            Some(SecretSource::File { origin, path }) => {
                let text = read_limited(path, FILE_BYTES).map_err(|why| format!("{origin}: {why}"))?;
                let origin = format!("{origin}: {}", path.display());
                let text = String::from_utf8(text).map_err(|error| {
                    let position = error.utf8_error().valid_up_to();
                    format!("{origin}: expected UTF-8, found other bytes at position {position}")
                })?;
                let found = if text.is_empty() { "an empty file" } else { "only white space" };
                checked(&origin, text.trim(), found).map(Some)
            }
        }
    }
}

/// Returns the key of `origin`. Fails if no HTTP header can hold it, or if it is empty: `empty` then describes what was found.
fn checked(origin: &str, key: &str, empty: &str) -> Result<String, String> {
    if key.is_empty() {
        return Err(format!("{origin}: expected the API key, found {empty}"));
    }
    match key.chars().find(|character| character.is_ascii_control()) {
        None => Ok(key.to_owned()),
        Some('\n') => Err(format!("{origin}: expected one line with the API key, found several")),
        Some(_) => {
            Err(format!("{origin}: expected only characters that an HTTP header allows, found a control character"))
        }
    }
}

/// The name of an argument that is a server's address.
pub const ADDRESS: &str = "ADDRESS";

/// The flag of a server's address.
pub const SERVER: &str = "--server";

/// The address of a server as an argument or as a flag.
#[derive(Debug, Clone, clap::Args)]
pub struct AddressArgs {
    /// Server address: host:port, :port of this machine, or a URL; https:// for TLS.
    #[arg(value_name = ADDRESS)]
    address: Option<String>,
    /// Server address, in place of the argument.
    #[arg(long, value_name = ADDRESS, env = "WEIR_SERVER")]
    server: Option<String>,
}

impl AddressArgs {
    /// Returns the address with the name of what gives it. The argument comes before the variable.
    ///
    /// # Errors
    /// Both the argument and the flag are given.
    pub fn given(&self) -> Result<Option<(&'static str, &str)>, String> {
        if self.address.is_some() && is_on_command_line(SERVER) {
            return Err(format!("{SERVER}: expected no value next to {ADDRESS}, found one"));
        }
        let argument = self.address.as_deref().map(|address| (ADDRESS, address));
        Ok(argument.or_else(|| self.server.as_deref().map(|address| (SERVER, address))))
    }

    /// Returns the address, or that of a server without settings, with the name of what gives it.
    ///
    /// # Errors
    /// Both the argument and the flag are given.
    pub fn or_default(&self) -> Result<(&'static str, &str), String> {
        Ok(self.given()?.unwrap_or((ADDRESS, DEFAULT_ADDRESS)))
    }

    /// Takes the argument if it is the next one: next to the flag, and next to its variable if it can be no address.
    pub fn take_other(&mut self) -> Option<String> {
        let has_server = self.server.is_some();
        self.address.take_if(|address| is_on_command_line(SERVER) || (has_server && !address.contains(':')))
    }
}

/// The address of a server that `weir serve` starts without settings.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:50051";

/// TLS flags, for an address that begins with `https://`.
#[derive(Debug, Clone, clap::Args)]
pub struct TlsArgs {
    /// PEM file with the certificate authorities that may have signed the server's certificate; required for https://.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// PEM file with the client certificate and its chain, for a server that requires one.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_CERT")]
    tls_client_cert: Option<PathBuf>,
    /// PEM file with the client certificate's private key.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_KEY")]
    tls_client_key: Option<PathBuf>,
}

/// Returns true if an argument of this program is this flag.
pub fn is_on_command_line(flag: &str) -> bool {
    let value = |argument: OsString| argument.to_str()?.strip_prefix(flag).map(str::to_owned);
    std::env::args_os().filter_map(value).any(|value| value.is_empty() || value.starts_with('='))
}

impl TlsArgs {
    /// Combines these flags with a server's address, which the argument `name` gives: `host:port`, a URL, or `:port` of this machine.
    ///
    /// # Errors
    /// The address is anything else, or the TLS flags do not suit it. The message begins with the argument or the flag.
    pub fn endpoint(&self, name: &str, address: &str) -> Result<ServerEndpoint, String> {
        let address = address::parse(address).map_err(|why| format!("{name}: {why}"))?;
        Ok(ServerEndpoint { tls: self.read(&address)?, address, key: None })
    }

    /// Reads the files for calls of a server at `address`, as [`ClientTls::read`] does. Variables have no effect for an address without
    /// TLS, because they may hold for other commands.
    ///
    /// # Errors
    /// A flag is given for an address without TLS, only one of the client's certificate and its key is given, or a file cannot be
    /// read or has the wrong contents. The message begins with the flag.
    fn read(&self, address: &str) -> Result<ClientTls, String> {
        if !address::is_encrypted(address) {
            let Some(flag) = self.flag() else { return Ok(ClientTls::default()) };
            let found = quoted(address);
            return Err(format!("{flag}: expected a server address that begins with https://, found {found}"));
        }
        let Self { tls_ca, tls_client_cert, tls_client_key } = self;
        let alone = |missing, given| Err(format!("{missing}: expected a file because {given} is set, found none"));
        match (tls_client_cert, tls_client_key) {
            (Some(_), None) => alone("--tls-client-key", "--tls-client-cert"),
            (None, Some(_)) => alone("--tls-client-cert", "--tls-client-key"),
            _ => ClientTls::read(tls_ca.as_deref(), tls_client_cert.as_deref(), tls_client_key.as_deref()),
        }
    }

    /// Returns the first of these flags on the command line, if there is one.
    pub fn flag(&self) -> Option<&'static str> {
        ["--tls-ca", "--tls-client-cert", "--tls-client-key"].into_iter().find(|flag| is_on_command_line(flag))
    }
}

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

/// The flags whose values come from environment variables.
#[derive(Debug, Clone, Default)]
pub struct FlagOrigins {
    /// The flag, and the end of its name in messages: ` (from WEIR_ROWS)`.
    flags: Vec<(String, String)>,
}

impl FlagOrigins {
    /// Finds the flags among the arguments of a command and of the subcommands that `matches` selects.
    pub fn of(command: &Command, matches: &ArgMatches) -> Self {
        let mut flags = Vec::new();
        collect(command, matches, &mut flags);
        Self { flags }
    }

    /// Returns a message with the variable after the name of the flag that it is about.
    pub fn explain(&self, message: &str) -> String {
        self.flags.iter().fold(message.to_owned(), |message, (flag, origin)| {
            let named = format!("{flag}: ");
            if let Some(rest) = message.strip_prefix(&named) {
                return format!("{flag}{origin}: {rest}");
            }
            // The name may follow the address of a server.
            message.replacen(&format!(": {named}"), &format!(": {flag}{origin}: "), 1)
        })
    }
}

fn collect(command: &Command, matches: &ArgMatches, flags: &mut Vec<(String, String)>) {
    let is_from_variable = |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::EnvVariable);
    flags
        .extend(command.get_arguments().filter(is_from_variable).filter_map(|arg| Some((arg_name(arg), origin(arg)?))));
    if let Some((name, matches)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        collect(command, matches, flags);
    }
}

fn origin(arg: &Arg) -> Option<String> {
    Some(format!(" (from {})", arg.get_env()?.display()))
}

/// Returns the name of an argument in messages.
fn arg_name(arg: &Arg) -> String {
    let value = || arg.get_value_names().and_then(<[_]>::first).map(ToString::to_string);
    arg.get_long().map(|long| format!("--{long}")).or_else(value).unwrap_or_else(|| arg.get_id().to_string())
}

/// Removes the empty environment variables from the flags of a command and of its subcommands. Otherwise they would be values.
pub fn without_empty(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(Resettable::Reset),
        _ => arg,
    });
    command.mut_subcommands(without_empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args;

    fn parse(arguments: &[&str]) -> Result<ApiKeyArgs, Error> {
        let command = ApiKeyArgs::augment_args(Command::new("tool").no_binary_name(true));
        ApiKeyArgs::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }

    #[test]
    fn debug_output_has_no_key() {
        let args = parse(&["--api-key", "hidden-key"]).unwrap();
        assert_eq!(args.key(), Ok(Some("hidden-key".to_owned())));
        assert!(!format!("{args:?}").contains("hidden-key"));
        assert_eq!(parse(&[]).unwrap().key(), Ok(None));
    }

    #[test]
    fn the_variable_follows_the_flag() {
        let flags = vec![("--max-chars".to_owned(), " (from WEIR_MAX_CHARS)".to_owned())];
        let origins = FlagOrigins { flags };
        for (message, expected) in [
            ("--max-chars: expected 1", "--max-chars (from WEIR_MAX_CHARS): expected 1"),
            ("h:1: --max-chars: expected 1", "h:1: --max-chars (from WEIR_MAX_CHARS): expected 1"),
            ("--min-chars: expected --max-chars", "--min-chars: expected --max-chars"),
        ] {
            assert_eq!(origins.explain(message), expected);
        }
    }
}
