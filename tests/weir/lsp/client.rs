//! A client of `weir lsp` that sends what a test writes.

use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, ChildStderr, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    time::{Duration, Instant},
};

/// Maximum time that an answer may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How `weir lsp` is started.
pub(super) struct Options<'a> {
    pub(super) flags: Vec<&'a str>,
    pub(super) variables: Vec<(&'a str, &'a str)>,
    /// Capabilities of the client.
    pub(super) capabilities: Value,
}

impl<'a> Options<'a> {
    /// Runs a model in the process.
    pub(super) fn process(model: &'a Path) -> Self {
        Self::with(vec!["--model", model.to_str().unwrap(), "--threads", "1"])
    }

    pub(super) fn with(flags: Vec<&'a str>) -> Self {
        Self { flags, variables: Vec::new(), capabilities: json!({}) }
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("lsp").args(&self.flags).env_clear().envs(self.variables.iter().copied());
        command
    }
}

/// A running `weir lsp`. Killed when it is dropped.
pub(super) struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    stderr: ChildStderr,
    messages: Receiver<Value>,
    /// Messages that were read while others were awaited.
    pending: Vec<Value>,
    last_id: i32,
    version: i32,
}

impl Client {
    /// Starts the server without a message.
    pub(super) fn silent(options: &Options) -> Self {
        let mut command = options.command();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = sync_channel(256);
        std::thread::spawn(move || {
            let mut stdout = stdout;
            while let Some(message) = read(&mut stdout) {
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        let stderr = child.stderr.take().unwrap();
        Self { child, stdin, stderr, messages, pending: Vec::new(), last_id: 0, version: 0 }
    }

    /// Starts and initializes the server. Returns its answer, too.
    pub(super) fn start(options: &Options) -> (Self, Value) {
        let mut client = Self::silent(options);
        let capabilities = options.capabilities.clone();
        let answer = client.ask("initialize", json!({ "processId": null, "capabilities": capabilities }));
        client.notify("initialized", json!({}));
        (client, answer)
    }

    /// Sends bytes as they are.
    pub(super) fn send_raw(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(bytes).and_then(|()| stdin.flush()).unwrap();
    }

    /// Sends messages at once.
    pub(super) fn send(&mut self, messages: &[Value]) {
        let frames: Vec<String> = messages.iter().map(|message| frame(&message.to_string())).collect();
        self.send_raw(frames.concat().as_bytes());
    }

    pub(super) fn notify(&mut self, method: &str, params: Value) {
        self.send(&[notification(method, params)]);
    }

    /// Returns a request with an id of its own.
    pub(super) fn request(&mut self, method: &str, params: Value) -> (i32, Value) {
        self.last_id += 1;
        let request = json!({ "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params });
        (self.last_id, request)
    }

    /// Sends a request and waits for its answer.
    pub(super) fn ask(&mut self, method: &str, params: Value) -> Value {
        let (id, request) = self.request(method, params);
        self.send(&[request]);
        self.answer(id)
    }

    /// Waits for the answer to a request.
    #[track_caller]
    pub(super) fn answer(&mut self, id: i32) -> Value {
        self.wait_for(&format!("answer {id}"), |message| message["id"] == id && message.get("method").is_none())
    }

    /// Waits for a message of this kind to the user, and returns its text.
    #[track_caller]
    pub(super) fn message(&mut self, method: &str) -> String {
        let message = self.wait_for(method, |message| message["method"] == method);
        message["params"]["message"].as_str().unwrap().to_owned()
    }

    /// Waits for a message for which `is_wanted` returns true.
    #[track_caller]
    pub(super) fn wait_for(&mut self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(index) = self.pending.iter().position(&is_wanted) {
                return self.pending.remove(index);
            }
            match self.messages.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(message) => self.pending.push(message),
                Err(RecvTimeoutError::Timeout) => panic!("no {what} in {:?}", self.pending),
                Err(RecvTimeoutError::Disconnected) => {
                    let errors = self.errors();
                    panic!("no {what} in {:?}: {errors}", self.pending);
                }
            }
        }
    }

    /// Messages that arrived and were not awaited.
    pub(super) fn others(&self) -> &[Value] {
        &self.pending
    }

    pub(super) fn open(&mut self, uri: &str, text: &str) {
        let document = json!({ "uri": uri, "languageId": "text", "version": 0, "text": text });
        self.notify("textDocument/didOpen", json!({ "textDocument": document }));
    }

    /// Returns the notice of changes.
    pub(super) fn changed(&mut self, uri: &str, changes: &[Value]) -> Value {
        self.version += 1;
        let document = json!({ "uri": uri, "version": self.version });
        notification("textDocument/didChange", json!({ "textDocument": document, "contentChanges": changes }))
    }

    pub(super) fn change(&mut self, uri: &str, changes: &[Value]) {
        let notice = self.changed(uri, changes);
        self.send(&[notice]);
    }

    /// Shuts the server down. Returns its stderr.
    #[track_caller]
    pub(super) fn shut_down(mut self) -> String {
        let answer = self.ask("shutdown", Value::Null);
        assert_eq!(answer["result"], Value::Null, "{answer}");
        self.notify("exit", Value::Null);
        let (code, errors) = self.ended();
        assert_eq!(code, Some(0), "{errors}");
        errors
    }

    /// Closes the server's input.
    pub(super) fn hang_up(&mut self) {
        self.stdin = None;
    }

    /// Waits for the end of the server. Returns its exit code and its stderr.
    pub(super) fn ended(&mut self) -> (Option<i32>, String) {
        // stderr ends with the process
        let errors = self.errors();
        (self.child.wait().unwrap().code(), errors)
    }

    fn errors(&mut self) -> String {
        let mut errors = String::new();
        self.stderr.read_to_string(&mut errors).unwrap();
        errors
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn notification(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

pub(super) fn frame(body: &str) -> String {
    format!("Content-Length: {}\r\n\r\n{body}", body.len())
}

/// Reads a message; `None` at the end.
fn read(stdout: &mut impl BufRead) -> Option<Value> {
    let mut length = None;
    loop {
        let mut line = String::new();
        if stdout.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        match line.trim_end().split_once(": ") {
            Some((name, value)) => {
                assert_eq!(name, "Content-Length", "only frames are written to stdout");
                length = Some(value.parse().unwrap());
            }
            None => break assert_eq!(line, "\r\n", "only frames are written to stdout"),
        }
    }
    let mut body = vec![0; length.unwrap()];
    stdout.read_exact(&mut body).unwrap();
    Some(serde_json::from_slice(&body).unwrap())
}
