//! The program without its repository: the embedded model, models by name, and the lines of a start.

use crate::process::{Program, http, outcome, program};
use crate::*;
use std::net::TcpListener;

const EMBEDDED: &str = "hourglass-english";

/// Returns a command of the program, in another folder.
fn weir_in(folder: &Path, args: &[&str]) -> Command {
    let mut command = program(args);
    command.current_dir(folder);
    command
}

fn run(folder: &Path, args: &[&str]) -> Result<String, String> {
    outcome(&mut weir_in(folder, args))
}

#[test]
fn commands_use_the_embedded_model_in_any_folder() {
    let folder = TempDir::new().unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(EMBEDDED);
    let shipped = shipped.to_str().unwrap();
    let generate = ["generate", "--prompt", "the ", "--max-chars", "3", "--seed", "1"];
    let run = |args: &[&str]| run(folder.path(), args).unwrap();
    let expected = run(&[&generate[..], &["--model", shipped]].concat());
    assert!(expected.trim_end_matches('\n').chars().count() >= 3, "{expected:?}");
    assert_eq!(run(&generate), expected);
    assert_eq!(run(&[&generate[..], &["--model", EMBEDDED]].concat()), expected);

    let inspect = |args: &[&str]| -> Value { serde_json::from_str(&run(args)).unwrap() };
    let (embedded, of_folder) = (inspect(&["inspect", "--json"]), inspect(&["inspect", "--json", shipped]));
    assert_eq!(embedded["path"], format!("embedded:{EMBEDDED}"));
    assert_eq!((&embedded["sha256"], &embedded["tensors"]), (&of_folder["sha256"], &of_folder["tensors"]));
    let printed = run(&["inspect"]);
    assert!(printed.starts_with(&format!("checkpoint       embedded:{EMBEDDED}\n")), "{printed}");
    let isa = weir::kernels::Isa::detect().name();
    assert!(printed.contains(&format!("instruction set  {isa}\n")) && embedded["isa"] == isa, "{printed}");
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
    let status = |address: &str, path: &str| http(address, &format!("GET {path}"), "host: localhost\r\n", "").0;

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
            assert_eq!([status(HTTP, "/"), status(ADMIN, "/metrics")], [200, 200]);
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
            assert_eq!([status(HTTP, "/"), status(HTTP, "/v1/models")], [200, 401]);
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
    assert!(error.contains(&format!("weir: --listen: cannot listen on {GRPC}: ")), "{error}");
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
