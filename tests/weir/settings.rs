//! The settings of `weir serve`: flags, environment, file, defaults, in this order; and everything wrong told at once.

use clap::{Arg, ArgAction, CommandFactory};
use std::{fs, path::Path, process::Command};
use tempfile::TempDir;
use weir::cli::Cli;

/// What `weir serve` says: stdout if it ends well, else stderr.
fn serve(environment: &[(String, String)], args: &[String]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let environment = environment.iter().map(|(name, value)| (name, value));
    let output = command.arg("serve").args(args).env_clear().envs(environment).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn texts(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

/// Every flag that is a setting.
fn settings() -> Vec<Arg> {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").unwrap();
    let about = ["config", "print-config", "check-config", "help", "version"];
    let all: Vec<_> = serve.get_arguments().cloned().collect();
    all.into_iter().filter(|arg| !about.contains(&arg.get_long().unwrap())).collect()
}

fn is(arg: &Arg, names: &[&str]) -> bool {
    arg.get_value_names().is_some_and(|given| names.contains(&given[0].as_str()))
}

/// A value that is no default; `nth` tells one source from another.
fn value(arg: &Arg, nth: usize) -> String {
    match () {
        () if is(arg, &["BOOL"]) => (nth % 2 == 1).to_string(),
        () if is(arg, &["N", "SECONDS", "SIZE"]) => (7000 + nth).to_string(),
        () => format!("value-{nth}"),
    }
}

/// The value in a file.
fn in_toml(arg: &Arg, nth: usize) -> String {
    let value = value(arg, nth);
    match arg.get_action() {
        ArgAction::Append => format!("[\"{value}\"]"),
        _ if is(arg, &["N", "SECONDS", "SIZE", "BOOL"]) => value,
        _ => format!("\"{value}\""),
    }
}

/// Each setting by a file, by a file and the environment, and by both and a flag: found by walking the flags, so that a new
/// one is tested by itself.
#[test]
fn every_setting_can_be_given_in_three_ways() {
    let (folder, all) = (TempDir::new().unwrap(), settings());
    assert!(all.len() > 25, "only {} settings: looked in the wrong place", all.len());
    let long = |arg: &Arg| arg.get_long().unwrap().to_owned();
    let file = folder.path().join("weir.toml");
    fs::write(&file, all.iter().map(|arg| format!("{} = {}\n", long(arg), in_toml(arg, 1))).collect::<String>())
        .unwrap();
    let environment: Vec<_> =
        all.iter().map(|arg| (arg.get_env().unwrap().to_str().unwrap().to_owned(), value(arg, 2))).collect();
    let flags = all.iter().map(|arg| format!("--{}={}", long(arg), value(arg, 3)));
    let base = texts(&["--print-config", "--config", file.to_str().unwrap()]);
    let with_flags = [base.clone(), flags.collect()].concat();
    let file_name = file.display();
    for (nth, environment, args) in
        [(1, &[][..], &base), (2, &environment[..], &base), (3, &environment[..], &with_flags)]
    {
        let told = serve(environment, args).unwrap();
        for (line, arg) in (1..).zip(&all) {
            let long = long(arg);
            let origin = match nth {
                1 => format!("{file_name}, line {line}"),
                2 => arg.get_env().unwrap().to_str().unwrap().to_owned(),
                _ => format!("--{long}"),
            };
            let expected = match arg.is_hide_env_values_set() {
                true => format!("# {long}: set, a secret # {origin}"),
                false => format!("{long} = {} # {origin}", in_toml(arg, nth)),
            };
            assert!(told.lines().any(|line| line == expected), "{expected}\nis not in\n{told}");
        }
    }
}

/// What is printed is a file that gives the same settings.
#[test]
fn printed_settings_are_a_file() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("weir.toml");
    let values = |told: String| -> Vec<String> {
        told.lines().map(|line| line.split(" # ").next().unwrap().to_owned()).collect()
    };
    let args =
        texts(&["--print-config", "--model", "a,b", "--rows", "9", "--kv-memory", "3GiB", "--log", "weir=\"x\""]);
    let first = serve(&[], &args).unwrap();
    fs::write(&file, &first).unwrap();
    let args = texts(&["--print-config", "--config", file.to_str().unwrap()]);
    let second = serve(&[], &args).unwrap();
    assert_eq!(values(first.clone()), values(second));
    for line in ["model = [\"a\", \"b\"] # --model", "rows = 9 # --rows", "kv-memory = \"3GiB\" # --kv-memory"] {
        assert!(first.lines().any(|one| one == line), "{line}\n{first}");
    }
    // a switch in any of its words, and a variable that is set to nothing
    let environment = [("WEIR_LATE_HEADERS".to_owned(), "yes".to_owned()), ("WEIR_TLS_CERT".into(), String::new())];
    let told = serve(&environment, &texts(&["--print-config"])).unwrap();
    assert!(told.contains("late-headers = true # WEIR_LATE_HEADERS\n"), "{told}");
    assert!(told.contains("# tls-cert: not set\n"), "{told}");
    assert!(serve(&[], &texts(&["--print-config", "--late-headers"])).unwrap().contains("late-headers = true"));
    assert!(first.contains("listen = \"127.0.0.1:50051\"\n") && first.contains("# tls-cert: not set\n"), "{first}");
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let keys = write("keys", "alice:short\n");
    let file = write("weir.toml", "queue = 0\nrows = \"many\"\nno_such = 1\n\nlog-format = \"xml\"\n");
    let environment = [("WEIR_CHUNK".to_owned(), "5000".to_owned()), ("WEIR_KV_MEMORY".into(), "2XB".into())];
    let environment = [&environment[..], &[("WEIR_LATE_HEADERS".into(), "maybe".into())]].concat();
    let args =
        texts(&["--check-config", "--config", &file, "--api-keys", &keys, "--listen", "here", "--tls-key", "none"]);
    let told = serve(&environment, &args).unwrap_err();
    let expected = [
        format!("--queue \"0\" (from {file}, line 1): expected a whole number from 1"),
        format!("{file}, line 2: rows: expected a whole number, found string"),
        format!("{file}, line 3: unknown setting \"no_such\""),
        format!("--log-format \"xml\" (from {file}, line 5): expected text or json"),
        "--chunk \"5000\" (from WEIR_CHUNK): expected a whole number from 1 to 4096".to_owned(),
        "--kv-memory \"2XB\" (from WEIR_KV_MEMORY): expected a size".to_owned(),
        "--listen \"here\": ".to_owned(),
        "--tls-cert and --tls-key need each other".to_owned(),
        "--tls-key \"none\": ".to_owned(),
        "--late-headers \"maybe\" (from WEIR_LATE_HEADERS): expected true or false".to_owned(),
        format!("--api-keys {keys:?}: line 1: expected a key of 16 or more"),
    ];
    for expected in &expected {
        assert!(told.contains(expected), "{expected}\nis not in\n{told}");
    }
    assert!(!told.contains("short"), "{told}");
    // A file that is none ends nothing early either.
    let told = serve(&environment, &texts(&["--check-config", "--config", "/no/such/file"])).unwrap_err();
    assert!(told.contains("--config \"/no/such/file\": No such file") && told.contains("WEIR_CHUNK"), "{told}");
}

#[test]
fn right_settings_are_checked_in_silence() {
    let model = crate::support::converted("whitespaces");
    let args = texts(&["--check-config", "--model", model.to_str().unwrap()]);
    assert_eq!(serve(&[], &args).unwrap(), "");
    let wrong = texts(&["--check-config", "--model", Path::new("/no/such").to_str().unwrap()]);
    assert!(serve(&[], &wrong).unwrap_err().contains("expected a checkpoint"));
    let twice = ["--check-config", "--listen", "127.0.0.1:7000", "--admin-listen", "127.0.0.1:7000", "--model"];
    let told = serve(&[], &[texts(&twice), texts(&[model.to_str().unwrap()])].concat()).unwrap_err();
    assert!(told.contains("--listen has the same address"), "{told}");
}
