//! The key and the certificates that commands send to a server.

use super::{stderr, stdout, weir};
use crate::{certificates::Certificates, process::Server, support::converted};

const KEY: &str = "key-of-the-test-0123456789";

#[test]
fn keys_and_certificates_are_sent() {
    let certificates = Certificates::new();
    let path = |name: &str| certificates.path(name).to_str().unwrap().to_owned();
    let keys = certificates.write("keys", &format!("tester:{KEY}\n"));
    let key = certificates.write("key", &format!("{KEY}\n"));
    let [ca, cert, secret] = ["ca.pem", "server.pem", "server.key"].map(path);
    let model = converted("whitespaces");
    let tls = ["--tls-cert", &cert, "--tls-key", &secret, "--api-keys", keys.to_str().unwrap(), "--threads", "1"];
    let server = Server::start(&[&tls[..], &["--model", model.to_str().unwrap()]].concat());
    let address = format!("https://{}", server.address);
    let args = ["segment", "--text", "a b", "--server", &address, "--tls-ca", &ca];
    let key_file = key.to_str().unwrap().to_owned();
    assert!(stdout(&[&args[..], &["--api-key-file", &key_file]].concat()).contains("1 closed segments"));
    let by_variable = weir(&[("WEIR_API_KEY", KEY)], &args);
    assert!(by_variable.status.success(), "{by_variable:?}");
    let overridden = weir(&[("WEIR_API_KEY", "another")], &[&args[..], &["--api-key-file", &key_file]].concat());
    assert!(overridden.status.success(), "{overridden:?}");
    let both = stderr(&[("WEIR_API_KEY", KEY), ("WEIR_API_KEY_FILE", &key_file)], &args);
    assert!(both.contains("WEIR_API_KEY: expected no value next to WEIR_API_KEY_FILE, found one"), "{both}");
    let empty = stderr(&[("WEIR_API_KEY", "")], &args);
    assert!(empty.contains("use --api-key-file or WEIR_API_KEY (an empty variable counts as unset)"), "{empty}");
    let empty_file = weir(&[("WEIR_API_KEY", KEY), ("WEIR_API_KEY_FILE", ""), ("WEIR_TLS_CLIENT_CERT", "")], &args);
    assert!(empty_file.status.success(), "{empty_file:?}");
    let keyless = stderr(&[], &args);
    assert!(keyless.contains("unauthenticated") && keyless.contains("--api-key-file"), "{keyless}");
    let unencrypted = stderr(&[], &["segment", "--text", "a b", "--server", &server.address.to_string()]);
    assert!(unencrypted.contains("the port expects TLS: use https:// and --tls-ca"), "{unencrypted}");
}
