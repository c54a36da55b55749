//! Runs the program as a command against a stub on a loopback port.

use super::support::ms;
use serde_json::Value;
use std::{
    future::pending,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, runtime::Runtime};
use tonic::transport::server::TcpIncoming;
use weir_loadtest::stub::{Script, Stub};

pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// Stub that serves until it is dropped.
pub(super) struct ServedStub {
    pub(super) address: String,
    pub(super) stub: Stub,
    _runtime: Runtime,
}

pub(super) fn serve(scripts: Vec<Script>) -> ServedStub {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stub = Stub::new(scripts);
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    runtime.spawn(stub.clone().serve(TcpIncoming::from(listener).with_nodelay(Some(true)), pending()));
    ServedStub { address, stub, _runtime: runtime }
}

pub(super) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-loadtest"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(super) fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Splits a command line at spaces.
pub(super) fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Runs the program, which must fail, and returns its stderr.
#[track_caller]
pub(super) fn failure(arguments: &[&str]) -> String {
    let output = run(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{arguments:?}: {stderr}");
    stderr
}

/// Runs the program, interrupts it as Ctrl-C does once `condition` holds, and returns its output.
#[cfg(unix)]
pub(super) fn run_interrupted(arguments: &[&str], condition: impl Fn() -> bool) -> Output {
    let mut child = command(arguments).spawn().unwrap();
    wait(&mut child, condition);
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    child.wait_with_output().unwrap()
}

#[track_caller]
pub(super) fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

pub(super) fn script(name: &str) -> Script {
    Script { first: ms(20), plain: ms(2), boundary: ms(4), segment: 4, rows: 4, ..Script::instant(name) }
}

/// Waits until `condition` holds; kills the program and panics if it does not within a minute.
pub(super) fn wait(child: &mut Child, condition: impl Fn() -> bool) {
    let started = Instant::now();
    let (_sender, receiver) = std::sync::mpsc::sync_channel::<()>(0);
    while !condition() {
        if started.elapsed() > TIMEOUT {
            child.kill().unwrap();
            panic!("the condition did not hold within {TIMEOUT:?}");
        }
        let _ = receiver.recv_timeout(ms(10));
    }
}
