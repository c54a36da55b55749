//! `weir serve` as a service of systemd: notifications, and the unit of the Debian package.
#![cfg(unix)]

use super::{process::Server, support::converted};
use std::{fs, net::TcpStream, os::unix::net::UnixDatagram, path::Path, time::Duration};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A socket in place of systemd's.
struct Manager {
    socket: UnixDatagram,
    folder: TempDir,
}

impl Manager {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { socket, folder }
    }

    fn path(&self) -> String {
        self.folder.path().join("notify").to_str().unwrap().to_owned()
    }

    /// Returns the lines of the next notification.
    fn received(&self) -> Vec<String> {
        let mut buffer = [0; 1024];
        let length = self.socket.recv(&mut buffer).unwrap();
        std::str::from_utf8(&buffer[..length]).unwrap().lines().map(str::to_owned).collect()
    }

    /// Checks that no notification waits.
    fn is_silent(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let is_silent = self.socket.recv(&mut [0; 16]).is_err();
        self.socket.set_nonblocking(false).unwrap();
        is_silent
    }
}

fn model_flag() -> String {
    format!("--model=m={}", converted("whitespaces").display())
}

#[test]
fn systemd_is_notified_of_readiness_and_shutdown() {
    let manager = Manager::new();
    let mut server = Server::start_with(&[&model_flag()], &[("NOTIFY_SOCKET", &manager.path())]);
    assert_eq!(manager.received(), ["READY=1", "STATUS=serving m"]);
    drop(TcpStream::connect(server.address).unwrap());
    assert!(manager.is_silent());
    server.program.signal("TERM");
    assert_eq!(manager.received(), ["STOPPING=1"]);
    assert!(server.program.wait().success());
    assert!(manager.is_silent());
}

#[test]
fn a_server_without_its_manager_serves() {
    let manager = Manager::new();
    let path = manager.path();
    drop(manager);
    let mut server = Server::start_with(&[&model_flag()], &[("NOTIFY_SOCKET", &path)]);
    server.program.wait_for_part("systemd is not notified");
    drop(TcpStream::connect(server.address).unwrap());
    server.program.signal("TERM");
    assert!(server.program.wait().success());
}

/// Returns the values of a setting of the unit, in order.
fn unit(setting: &str) -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd/weir.service");
    let text = fs::read_to_string(file).unwrap();
    let values = text.lines().filter_map(|line| line.strip_prefix(setting)?.strip_prefix('='));
    values.map(str::to_owned).collect()
}

#[test]
fn the_unit_waits_for_notifications_and_for_the_drain() {
    assert_eq!(unit("Type"), ["notify"]);
    assert_eq!(unit("ExecStart"), ["/usr/bin/weir serve"]);
    // SIGHUP reloads certificates and keys
    assert_eq!(unit("ExecReload"), ["/bin/kill -HUP $MAINPID"]);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
        .env_clear()
        .args(["serve", "--print-config"])
        .output()
        .unwrap();
    let settings = String::from_utf8(output.stdout).unwrap();
    let drain = settings.lines().find_map(|line| line.trim_start_matches("# ").strip_prefix("drain-seconds = "));
    let drain: u64 = drain.unwrap_or_else(|| panic!("no drain-seconds in\n{settings}")).parse().unwrap();
    let stop: u64 = unit("TimeoutStopSec")[0].parse().unwrap();
    assert!(stop >= drain + 20, "{stop} {drain}");
}

#[test]
fn the_unit_does_not_restart_a_server_with_an_unknown_flag() {
    let weir = |flag| {
        let mut weir = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.env_clear().args(["serve", "--check-config", flag]).output().unwrap().status.code().unwrap().to_string()
    };
    assert_eq!(unit("Restart"), ["on-failure"]);
    assert_eq!(unit("RestartPreventExitStatus"), [weir("--unknown")]);
    // Other failures can end without a correction, such as a port in use.
    assert_ne!(unit("RestartPreventExitStatus"), [weir("--models=/missing")]);
}
