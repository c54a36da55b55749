//! Flags of a command that calls a server.

use crate::{
    client_tls::{ClientTls, ClientTlsFiles},
    limited_file::{self, FILE_BYTES},
    secret_args::{FlagNames, SecretFlags, SecretSource},
};
use clap::{ArgMatches, Command, Error, FromArgMatches};
use std::path::PathBuf;

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
        Ok(Self { source: API_KEY.source(matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ApiKeyArgs {
    /// Returns the key, if one is given.
    ///
    /// # Errors
    /// The file cannot be read, the key is empty, or no HTTP header can hold it. The message begins with the flag or the variable.
    pub fn key(&self) -> Result<Option<String>, String> {
        match &self.source {
            None => Ok(None),
            Some(SecretSource::Text { origin, secret }) => checked(origin, secret.value(), "an empty one").map(Some),
            Some(SecretSource::File { origin, path }) => {
                let text = limited_file::read(path, FILE_BYTES).map_err(|why| format!("{origin}: {why}"))?;
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

/// TLS flags, for an address that begins with `https://`.
#[derive(Debug, Clone, clap::Args)]
pub struct TlsArgs {
    /// PEM file with the certificate authorities that may have signed the server's certificate; required for https://.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// PEM file with the client certificate and its chain, for a server that requires one.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_CERT", requires = "tls_client_key")]
    tls_client_cert: Option<PathBuf>,
    /// PEM file with the client certificate's private key.
    #[arg(long, value_name = "FILE", env = "WEIR_TLS_CLIENT_KEY", requires = "tls_client_cert")]
    tls_client_key: Option<PathBuf>,
}

impl TlsArgs {
    /// Reads the files, as [`ClientTls::read`] does.
    ///
    /// # Errors
    /// A file cannot be read or has something else. The message begins with the flag.
    pub fn read(&self) -> Result<ClientTls, String> {
        ClientTls::read(ClientTlsFiles {
            authorities: self.tls_ca.as_deref(),
            certificate: self.tls_client_cert.as_deref(),
            key: self.tls_client_key.as_deref(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args;
    use std::fs;

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
    fn two_flags_are_refused() {
        let error = parse(&["--api-key", "k", "--api-key-file", "f"]).unwrap_err().to_string();
        assert_eq!(error, "error: --api-key: expected no value next to --api-key-file, found one\n");
    }

    #[test]
    fn a_wrong_key_is_refused_with_its_flag() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let of_flag = |key| parse(&["--api-key", key]).unwrap().key().unwrap_err();
        let expected = "--api-key: expected only characters that an HTTP header allows, found a control character";
        assert_eq!(of_flag("a\u{7f}b"), expected);
        assert_eq!(of_flag(""), "--api-key: expected the API key, found an empty one");
        for (contents, expected) in [
            (&b"one\ntwo\n"[..], "expected one line with the API key, found several"),
            (b"", "expected the API key, found an empty file"),
            (b" \n", "expected the API key, found only white space"),
            (b"\xff", "expected UTF-8, found other bytes at position 0"),
            (&[b'a'; 1 + (1 << 20)], "expected at most 1048576 bytes, found more"),
        ] {
            fs::write(path, contents).unwrap();
            let error = parse(&["--api-key-file", path]).unwrap().key().unwrap_err();
            assert_eq!(error, format!("--api-key-file: {path}: {expected}"));
        }
        fs::write(path, "from-the-file\n").unwrap();
        assert_eq!(parse(&["--api-key-file", path]).unwrap().key(), Ok(Some("from-the-file".to_owned())));
    }
}
