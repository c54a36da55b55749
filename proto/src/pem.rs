//! Describes the contents of a PEM file that lacks the expected certificate or key.

/// Describes what a file has in place of certificates in PEM; `None` if it has one.
pub fn no_certificate(pem: &[u8]) -> Option<&'static str> {
    match () {
        () if has(pem, CERTIFICATE) => None,
        () if has(pem, PRIVATE_KEY) => Some("a private key"),
        () => Some("none"),
    }
}

/// Describes what a file has in place of a private key in PEM that is not encrypted; `None` if it has one.
pub fn no_private_key(pem: &[u8]) -> Option<&'static str> {
    let is_encrypted = ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "4,ENCRYPTED"].into_iter().any(|mark| has(pem, mark));
    match () {
        () if is_encrypted => Some("an encrypted one"),
        () if has(pem, PRIVATE_KEY) => None,
        () if has(pem, CERTIFICATE) => Some("a certificate"),
        () => Some("none"),
    }
}

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
const PRIVATE_KEY: &str = "PRIVATE KEY-----";

fn has(pem: &[u8], part: &str) -> bool {
    pem.windows(part.len()).any(|window| window == part.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_contents_are_described() {
        let certificate = b"x\n-----BEGIN CERTIFICATE-----\n";
        let key = b"-----BEGIN EC PRIVATE KEY-----\n";
        assert_eq!((no_certificate(certificate), no_private_key(certificate)), (None, Some("a certificate")));
        assert_eq!((no_certificate(key), no_private_key(key)), (Some("a private key"), None));
        assert_eq!((no_certificate(b""), no_private_key(b"")), (Some("none"), Some("none")));
        for encrypted in
            ["-----BEGIN ENCRYPTED PRIVATE KEY-----\n", "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n"]
        {
            assert_eq!(no_private_key(encrypted.as_bytes()), Some("an encrypted one"));
        }
    }
}
