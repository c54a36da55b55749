//! Files of settings, keys and certificates: bounded reads, files of another kind, and files that others can read.

use std::path::Path;
use weir_client::tls::{FILE_BYTES, no_certificate, no_private_key, read_open, unreadable};
use weir_models::checkpoint::files::{self, is_web_page};

/// Reads a file of at most [`FILE_BYTES`] bytes. Errors name the file.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    read_up_to(FILE_BYTES, path)
}

/// Reads a regular file of at most `limit` bytes.
pub(super) fn read_up_to(limit: u64, path: &Path) -> Result<Vec<u8>, String> {
    let (file, _) = files::open(path).map_err(|error| unreadable(path, &error))?;
    read_open(file, path, limit)
}

/// Reads a file of at most [`FILE_BYTES`] bytes of UTF-8.
pub(super) fn read_text(path: &Path) -> Result<String, String> {
    String::from_utf8(read_file(path)?).map_err(|_| format!("{}: expected UTF-8, found other bytes", path.display()))
}

/// Names the kind of a text that belongs to another setting or program; `None` for other texts.
pub(super) fn foreign_kind(text: &str) -> Option<&'static str> {
    if no_private_key(text.as_bytes()).is_none() {
        Some("a private key")
    } else if no_certificate(text.as_bytes()).is_none() {
        Some("a certificate")
    } else if text.contains("-----BEGIN ") {
        Some("a PEM file")
    } else if text.trim_start().starts_with('{') {
        Some("JSON")
    } else if is_web_page(text.as_bytes()) {
        Some("a web page in HTML")
    } else {
        None
    }
}

/// Logs a warning if a secret file can be read by users other than its owner and group, or written by others than its owner.
#[cfg(unix)]
pub(super) fn warn_if_open(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    const TOO_OPEN: u32 = 0o026;
    let mode = path.metadata().map(|data| data.permissions().mode() & 0o777);
    if let Ok(mode) = mode
        && mode & TOO_OPEN != 0
    {
        let mode = format!("{mode:03o}");
        tracing::warn!(file = %path.display(), mode, "others can read or change this secret: chmod 600 is enough");
    }
}

/// Does nothing: other systems have no such file modes.
#[cfg(not(unix))]
pub(super) fn warn_if_open(_: &Path) {}
