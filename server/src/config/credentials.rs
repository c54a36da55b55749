//! Certificates and keys that can be replaced while the server runs.

use super::{Checks, Keys, Tls, TlsFiles};
use std::{
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
};

/// The files of all credentials.
#[derive(Debug, Clone, Default)]
pub struct CredentialFiles {
    /// Certificates of the server and of its clients.
    pub tls: TlsFiles,
    /// API keys.
    pub api_keys: Option<PathBuf>,
}

impl CredentialFiles {
    /// Returns true if the settings name no file.
    pub fn is_empty(&self) -> bool {
        let TlsFiles { cert, key, client_ca, client_crl } = &self.tls;
        [cert, key, client_ca, client_crl, &self.api_keys].into_iter().all(Option::is_none)
    }

    /// Reads and checks every file.
    pub fn read(&self, checks: &mut Checks) -> Credentials {
        // Every file is checked even after an error, so that all errors are reported at once.
        let tls = checks.tls(&self.tls);
        let keys = self.api_keys.as_ref().and_then(|file| checks.keys("--api-keys", file));
        Credentials { tls, keys }
    }
}

/// Credentials that were read together.
#[derive(Debug, Default)]
pub struct Credentials {
    /// Encryption and required client certificates.
    pub tls: Option<Tls>,
    /// API keys, of which each call must carry one.
    pub keys: Option<Keys>,
}

/// The credentials in use, which all clones share. Connections and calls that began with earlier ones keep those.
#[derive(Debug, Clone, Default)]
pub struct LiveCredentials(Arc<RwLock<Arc<Credentials>>>);

impl From<Credentials> for LiveCredentials {
    fn from(credentials: Credentials) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(credentials))))
    }
}

impl LiveCredentials {
    /// Returns the credentials for a new connection or call.
    pub fn current(&self) -> Arc<Credentials> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces all credentials at once.
    pub fn replace(&self, credentials: Credentials) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(credentials);
    }
}
