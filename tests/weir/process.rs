//! Programs that run beside a test, and end with it.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

/// How long a program may take to say what it is to say, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program; killed when it is dropped.
pub(super) struct Program {
    child: Child,
    said: Arc<(Mutex<Vec<String>>, Condvar)>,
}

impl Program {
    /// Starts a program and listens to its stderr.
    pub(super) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let (lines, ours) = (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&said));
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                ours.0.lock().unwrap().push(line);
                ours.1.notify_all();
            }
        });
        Self { child, said }
    }

    /// Waits for a line that begins so; the rest of it.
    pub(super) fn says(&self, beginning: &str) -> String {
        let (lines, changed) = &*self.said;
        let find = |lines: &Vec<String>| lines.iter().find_map(|line| line.strip_prefix(beginning).map(str::to_owned));
        let waiting = lines.lock().unwrap();
        let (lines, _) = changed.wait_timeout_while(waiting, PATIENCE, |lines| find(lines).is_none()).unwrap();
        find(&lines).unwrap_or_else(|| panic!("it never said {beginning:?}, but\n{}", lines.join("\n")))
    }

    /// All that it said.
    pub(super) fn all(&self) -> String {
        self.said.0.lock().unwrap().join("\n")
    }

    /// Its number among the system's processes.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name.
    pub(super) fn signal(&self, name: &str) {
        let id = self.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Waits for the end.
    pub(super) fn ends(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `weir serve` on free ports.
pub(super) struct Server {
    pub(super) program: Program,
    /// Where gRPC is spoken.
    pub(super) address: SocketAddr,
    /// The admin port.
    pub(super) port: SocketAddr,
}

impl Server {
    /// With these flags beside the addresses.
    pub(super) fn start(flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.env_clear().args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]).args(flags);
        let program = Program::start(&mut command);
        let port = program.says("admin port on ").parse().unwrap();
        let address = program.says("listening on ").split(' ').next().unwrap().parse().unwrap();
        Self { program, address, port }
    }

    /// What the admin port says about a path: status and body.
    pub(super) fn get(&self, path: &str) -> (u16, String) {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(self.port).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The value of a metric of the only model.
    pub(super) fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let line = text.lines().find(|line| line.starts_with(&format!("weir:{name}{{")));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }
}
