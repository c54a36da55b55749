//! The program without its repository: the embedded model, models by name, and the lines of a start.

use super::{process::Program, support::converted};
use crate::*;
use std::net::{TcpListener, TcpStream};

const EMBEDDED: &str = "hourglass-english";

/// Returns a command of the program, in another folder and without an environment.
fn weir_in(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.current_dir(folder).env_clear().args(args);
    command
}

fn text(output: &Output) -> String {
    let bytes = if output.status.success() { &output.stdout } else { &output.stderr };
    String::from_utf8(bytes.clone()).unwrap()
}

fn run(folder: &Path, args: &[&str]) -> String {
    let output = weir_in(folder, args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

#[test]
fn commands_use_the_embedded_model_in_any_folder() {
    let folder = TempDir::new().unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(EMBEDDED);
    let shipped = shipped.to_str().unwrap();
    let generate = ["generate", "--prompt", "the ", "--max-chars", "3", "--seed", "1"];
    let expected = run(folder.path(), &[&generate[..], &["--model", shipped]].concat());
    assert!(expected.trim_end_matches('\n').chars().count() >= 3, "{expected:?}");
    assert_eq!(run(folder.path(), &generate), expected);
    assert_eq!(run(folder.path(), &[&generate[..], &["--model", EMBEDDED]].concat()), expected);

    let inspect = |args: &[&str]| -> Value { serde_json::from_str(&run(folder.path(), args)).unwrap() };
    let (embedded, of_folder) = (inspect(&["inspect", "--json"]), inspect(&["inspect", "--json", shipped]));
    assert_eq!(embedded["path"], format!("embedded:{EMBEDDED}"));
    assert_eq!((&embedded["sha256"], &embedded["tensors"]), (&of_folder["sha256"], &of_folder["tensors"]));
    let printed = run(folder.path(), &["inspect"]);
    assert!(printed.starts_with(&format!("checkpoint       embedded:{EMBEDDED}\n")), "{printed}");
    let isa = weir::kernels::Isa::detect().name();
    assert!(printed.contains(&format!("instruction set  {isa}\n")) && embedded["isa"] == isa, "{printed}");
}

#[test]
fn the_embedded_model_is_verified() {
    let folder = TempDir::new().unwrap();
    let printed = run(folder.path(), &["verify", "--ids", "3,1,2,0,4,1,0"]);
    assert!(printed.starts_with(&format!("{EMBEDDED}: hourglass")) && printed.ends_with("verified\n"), "{printed}");
}

#[test]
fn the_server_starts_in_an_empty_folder() {
    let folder = TempDir::new().unwrap();
    let flags = ["serve", "--listen", ":0", "--http-listen", "localhost:0", "--admin-listen", "127.0.0.1:0"];
    let quick = ["--calibration-milliseconds", "0", "--chunk", "16"];
    let mut program = Program::start(&mut weir_in(folder.path(), &[&flags[..], &quick].concat()));
    assert_eq!(program.wait_for_line("serving "), EMBEDDED);
    let port = |name: &str| program.listener(name).parse::<SocketAddr>().unwrap().port();
    let grpc = port("gRPC");
    let http = port("playground");
    let admin = port("metrics");
    program.signal("TERM");
    assert!(program.wait().success());
    let log = program.stderr();
    let last: Vec<_> = log.lines().filter(|line| !line.contains(" INFO ")).collect();
    let urls = [
        format!("gRPC        http://127.0.0.1:{grpc} (listens on 0.0.0.0:{grpc})"),
        format!("playground  http://127.0.0.1:{http}/"),
        format!("metrics     http://127.0.0.1:{admin}/metrics"),
    ];
    assert!(grpc > 0 && http > 0 && admin > 0);
    assert_eq!(last[last.len() - 3..], urls, "{log}");
    for step in ["loading", "loaded; running the first steps"] {
        assert!(log.contains(step) && log.contains("embedded:"), "{step}\n{log}");
    }
}

/// A port in use is reported before the models are loaded, which can take minutes.
#[test]
fn a_port_in_use_is_reported_before_models_load() {
    let folder = TempDir::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--listen", "--http-listen", "--admin-listen"] {
        let mut args = vec!["serve", flag, &address];
        if flag != "--listen" {
            args.extend(["--listen", "127.0.0.1:0"]);
        }
        let output = weir_in(folder.path(), &args).output().unwrap();
        let error = text(&output);
        assert!(!output.status.success(), "{flag}");
        assert!(
            error.contains(&format!("weir: {flag}: cannot listen on {address}: ")) && error.contains("another program"),
            "{error}"
        );
        assert!(!error.contains("loading"), "{error}");
    }
}

/// Asks `address` for a path. Returns the status.
fn status(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response.split(' ').nth(1).unwrap().to_owned()
}

/// Without an address in its settings, a server opens all ports. Other programs of this machine may have one of them.
#[test]
fn a_server_without_addresses_opens_three_ports() {
    const GRPC: &str = "127.0.0.1:50051";
    const HTTP: &str = "127.0.0.1:8000";
    const ADMIN: &str = "127.0.0.1:9090";
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("keys"), "someone:0123456789abcdef\n").unwrap();
    let serve = |flags: &[&str]| {
        let quick = ["serve", "--calibration-milliseconds", "0", "--threads", "1", "--model"];
        let model = converted("whitespaces");
        let args = [&quick[..], &[model.to_str().unwrap()], flags].concat();
        let program = Program::start(&mut weir_in(folder.path(), &args));
        program.wait_for_part(GRPC);
        program
    };
    let is_taken = |address: &str| TcpListener::bind(address).is_err();

    let grpc_is_taken = is_taken(GRPC);
    if !grpc_is_taken {
        let taken = [is_taken(HTTP), is_taken(ADMIN)];
        let program = serve(&[]);
        let playground = program.wait_for_line("playground  ");
        let metrics = program.wait_for_line("metrics     ");
        let expected = |taken: bool, address: &str, path: &str| match taken {
            true => format!("off: another program uses {address}; "),
            false => format!("http://{address}{path}"),
        };
        assert!(playground.starts_with(&expected(taken[0], HTTP, "/")), "{playground}");
        assert!(metrics.starts_with(&expected(taken[1], ADMIN, "/metrics")), "{metrics}");
        assert_eq!(program.listener("gRPC"), GRPC);
        for address in [GRPC, HTTP, ADMIN] {
            assert_eq!(program.stderr().matches(&format!("://{address}")).count(), 1, "{}", program.stderr());
        }
        if taken == [false; 2] {
            assert_eq!([status(HTTP, "/"), status(ADMIN, "/metrics")], ["200", "200"]);
        }
        drop(program);

        // Keys protect the HTTP port too. The admin port has none, so it stays closed.
        let program = serve(&["--api-keys", "keys"]);
        let metrics = program.wait_for_line("metrics     ");
        assert!(
            metrics.starts_with("off, because this port supports neither keys nor TLS; `--admin-listen "),
            "{metrics}"
        );
        assert_eq!(is_taken(ADMIN), taken[1]);
        if !taken[0] {
            assert_eq!([status(HTTP, "/"), status(HTTP, "/v1/models")], ["200", "401"]);
        }
        drop(program);

        // An error of `bind` means that another program has the port already.
        let _http = TcpListener::bind(HTTP);
        let _admin = TcpListener::bind(ADMIN);
        let program = serve(&[]);
        let expected = format!("off: another program uses {HTTP}; `--http-listen localhost:0` selects a free port");
        assert_eq!(program.wait_for_line("playground  "), expected);
        let expected = format!("off: another program uses {ADMIN}; `--admin-listen localhost:0` selects a free port");
        assert_eq!(program.wait_for_line("metrics     "), expected);
    }
    let _grpc = TcpListener::bind(GRPC);
    let mut program = serve(&[]);
    assert!(!program.wait().success());
    let error = program.stderr();
    assert!(
        error.contains(&format!("weir: --listen: cannot listen on {GRPC}: ")) && error.contains("perhaps another weir"),
        "{error}"
    );
    assert!(!error.contains("loading"), "{error}");
}

#[test]
fn models_may_be_named_without_a_flag() {
    let folder = TempDir::new().unwrap();
    let model = converted("whitespaces");
    let named = format!("other={}", model.display());
    let serve = ["serve", "--listen", "localhost:0", "--calibration-milliseconds", "0"];
    let args = [&serve[..], &["--model", &named, model.to_str().unwrap()]].concat();
    let program = Program::start(&mut weir_in(folder.path(), &args));
    let serving = program.wait_for_line("serving ");
    let own = model.file_name().unwrap().to_str().unwrap();
    let mut names: Vec<_> = serving.split(", ").collect();
    names.sort_unstable();
    let mut expected = [own, "other"];
    expected.sort_unstable();
    assert_eq!(names, expected);
    program.wait_for_line("playground  off; `--http-listen localhost:8000` turns it on");
}

#[test]
fn models_are_found_by_name_in_the_data_folder() {
    let folder = TempDir::new().unwrap();
    let models = folder.path().join("data/models");
    fs::create_dir_all(models.join("mine")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(converted("whitespaces").join(name), models.join("mine").join(name)).unwrap();
    }
    let run = |args: &[&str]| {
        let output = weir_in(folder.path(), args).env("WEIR_DATA", folder.path().join("data")).output().unwrap();
        (output.status.success(), text(&output))
    };
    let (found, segments) = run(&["segment", "--model", "mine", "--text", "ab c"]);
    assert!(found, "{segments}");
    let (found, contents) = run(&["inspect", "mine"]);
    assert!(found && contents.contains(models.join("mine").to_str().unwrap()), "{contents}");
    assert!(run(&["serve", "--check-config", "--model", "mine"]).0);
    for args in [&["segment", "--text", "ab c", "--model", "yours"][..], &["serve", "--check-config", "yours"]] {
        let (found, error) = run(args);
        assert!(!found && error.starts_with("weir: --model: expected one of mine, "), "{error}");
        assert!(error.contains(models.join("yours").to_str().unwrap()), "{error}");
        assert!(
            error.contains("one of mine, hourglass-english (embedded), or a folder, found \"yours\" (tried "),
            "{error}"
        );
    }
    // The error names the argument.
    for (args, argument) in [
        (&["inspect", "yours"][..], "DIR"),
        (&["bench", "compare", "mine", "yours"], "DIR_B"),
        (&["bench", "decode", "--model", "yours"], "--model"),
    ] {
        let (found, error) = run(args);
        let expected = format!("weir: {argument}: expected one of mine, ");
        assert!(!found && error.starts_with(&expected), "{error}");
    }
    let (found, measured) = run(&["bench", "decode", "--steps", "4", "--batch", "1", "--context", "8", "--json"]);
    assert!(found && measured.contains("hourglass-english"), "{measured}");
}
