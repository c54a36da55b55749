//! Flags of a command that calls a server.

use crate::client_tls::{ClientTls, ClientTlsFiles};
use std::{fmt, fs, path::PathBuf};

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
    /// Returns the key or token; `None` if it is empty, which is the same as unset.
    pub fn value(&self) -> Option<&str> {
        Some(&*self.0).filter(|text| !text.is_empty())
    }
}

/// Flags of the API key.
#[derive(Debug, Clone, clap::Args)]
pub struct ApiKeyArgs {
    /// API key, if the server requires one. Prefer the environment variable: other users can see command-line arguments.
    #[arg(long, value_name = "KEY", env = "WEIR_API_KEY", hide_env_values = true)]
    api_key: Option<Secret>,
    /// File that contains the API key.
    #[arg(long, value_name = "FILE", env = "WEIR_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
}

impl ApiKeyArgs {
    /// Returns the key, if one is given. An empty key counts as none.
    ///
    /// # Errors
    /// The file cannot be read, or no HTTP header can hold the key. The message begins with the flag.
    pub fn key(&self) -> Result<Option<String>, String> {
        match (self.api_key.as_ref().and_then(Secret::value), &self.api_key_file) {
            (Some(key), _) => checked("--api-key (or WEIR_API_KEY)", key),
            (None, Some(file)) => {
                let flag = "--api-key-file";
                let text =
                    fs::read(file).map_err(|error| format!("{flag}: cannot read {}: {error}", file.display()))?;
                let text = String::from_utf8(text).map_err(|error| {
                    let position = error.utf8_error().valid_up_to();
                    format!("{flag}: {}: expected UTF-8, found other bytes at position {position}", file.display())
                })?;
                checked(&format!("{flag}: {}", file.display()), text.trim())
            }
            (None, None) => Ok(None),
        }
    }
}

/// Returns the key of `origin` unless it is empty. Fails if no HTTP header can hold it.
fn checked(origin: &str, key: &str) -> Result<Option<String>, String> {
    match key.chars().find(|character| character.is_ascii_control()) {
        None => Ok(Some(key.to_owned()).filter(|key| !key.is_empty())),
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
    use std::path::Path;

    #[test]
    fn an_empty_key_is_unset_and_debug_output_has_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let args = |key: &str, file: Option<&Path>| ApiKeyArgs {
            api_key: Some(key.into()),
            api_key_file: file.map(Path::to_owned),
        };
        fs::write(file.path(), "from-the-file\n").unwrap();
        assert_eq!(args("", None).key(), Ok(None));
        assert_eq!(args("", Some(file.path())).key().unwrap().as_deref(), Some("from-the-file"));
        assert_eq!(args("given", Some(file.path())).key().unwrap().as_deref(), Some("given"));
        assert!(!format!("{:?}", args("hidden-key", None)).contains("hidden-key"));
        fs::write(file.path(), "\n").unwrap();
        assert_eq!(args("", Some(file.path())).key(), Ok(None));
    }

    #[test]
    fn a_wrong_key_is_refused_with_its_flag() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of_flag = ApiKeyArgs { api_key: Some("a\u{7f}b".into()), api_key_file: None };
        let of_file = ApiKeyArgs { api_key: None, api_key_file: Some(file.path().to_owned()) };
        let expected = "--api-key (or WEIR_API_KEY): expected only characters that an HTTP header allows, found a control character";
        assert_eq!(of_flag.key().unwrap_err(), expected);
        let shown = file.path().display();
        fs::write(file.path(), "one\ntwo\n").unwrap();
        let expected = format!("--api-key-file: {shown}: expected one line with the API key, found several");
        assert_eq!(of_file.key(), Err(expected));
        fs::write(file.path(), b"\xff").unwrap();
        let expected = format!("--api-key-file: {shown}: expected UTF-8, found other bytes at position 0");
        assert_eq!(of_file.key(), Err(expected));
    }
}
