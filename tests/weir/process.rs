//! Programs that run during a test and are killed at its end.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Maximum time that a program may take to print a line or to exit. A busy machine has needed more than 60 s.
const TIMEOUT: Duration = Duration::from_secs(240);

/// A child process. Killed when it is dropped.
pub(super) struct Program {
    child: Child,
    stderr: Arc<(Mutex<Vec<String>>, Condvar)>,
    /// The thread that collects stderr. It ends when the process has closed stderr.
    collector: Option<JoinHandle<()>>,
}

impl Program {
    /// Starts a program and collects its stderr.
    pub(super) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let collected = Arc::clone(&stderr);
        let collector = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                collected.0.lock().unwrap().push(line);
                collected.1.notify_all();
            }
        });
        Self { child, stderr, collector: Some(collector) }
    }

    /// Waits for a line that starts with `prefix` and returns the rest of it.
    pub(super) fn wait_for_line(&self, prefix: &str) -> String {
        let (lines, changed) = &*self.stderr;
        let find = |lines: &Vec<String>| lines.iter().find_map(|line| line.strip_prefix(prefix).map(str::to_owned));
        let waiting = lines.lock().unwrap();
        let (lines, _) = changed.wait_timeout_while(waiting, TIMEOUT, |lines| find(lines).is_none()).unwrap();
        find(&lines).unwrap_or_else(|| panic!("no line starts with {prefix:?}:\n{}", lines.join("\n")))
    }

    /// Waits for the line with the URL of a server's `gRPC`, `playground` or `metrics`. Returns the URL's address.
    pub(super) fn listener(&self, name: &str) -> String {
        let url = self.wait_for_line(&format!("{name:<12}http"));
        let (_, rest) = url.split_once("://").unwrap();
        rest.split(['/', ' ']).next().unwrap().to_owned()
    }

    /// Waits until stderr contains `part`. A thread of its own writes the log, so a line may come after later events.
    pub(super) fn wait_for_part(&self, part: &str) {
        let (lines, changed) = &*self.stderr;
        let missing = |lines: &Vec<String>| !lines.iter().any(|line| line.contains(part));
        let waiting = lines.lock().unwrap();
        let (lines, waited) = changed.wait_timeout_while(waiting, TIMEOUT, |lines| missing(lines)).unwrap();
        assert!(!waited.timed_out(), "{part:?} is not in\n{}", lines.join("\n"));
    }

    /// Returns the stderr so far. It is complete after [`Program::wait`].
    pub(super) fn stderr(&self) -> String {
        self.stderr.0.lock().unwrap().join("\n")
    }

    /// Returns the process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, given by name.
    pub(super) fn signal(&self, name: &str) {
        let id = self.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Waits for the exit of the process and for the end of its stderr.
    pub(super) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                if let Some(collector) = self.collector.take() {
                    collector.join().unwrap();
                }
                return status;
            }
            assert!(Instant::now() < deadline, "the process does not exit");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `weir serve` on free ports.
pub(super) struct Server {
    pub(super) program: Program,
    /// Address of the gRPC port.
    pub(super) address: SocketAddr,
    /// Address of the admin port.
    pub(super) admin_address: SocketAddr,
}

impl Server {
    /// Starts a server with `flags` in addition to its addresses.
    pub(super) fn start(flags: &[&str]) -> Self {
        Self::start_with(flags, &[])
    }

    /// Starts a server with `flags` and with no other variables than `variables`.
    pub(super) fn start_with(flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.env_clear().envs(variables.iter().copied());
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]).args(flags);
        let program = Program::start(&mut command);
        let admin_address = program.listener("metrics").parse().unwrap();
        let address = program.listener("gRPC").parse().unwrap();
        Self { program, address, admin_address }
    }

    /// Requests a path of the admin port. Returns status and body.
    pub(super) fn get(&self, path: &str) -> (u16, String) {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(self.admin_address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Returns the resident memory in MiB. `None` where `/proc` does not report it.
    pub(super) fn resident_mib(&self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.program.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        Some(kib / 1024.0)
    }

    /// Returns the value of a metric of the only model.
    pub(super) fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let line = text.lines().find(|line| line.starts_with(&format!("weir_{name}{{")));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }
}
