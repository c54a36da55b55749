//! `weir lsp`: a scripted client, with the model in its process and on a server, and Neovim.

use crate::{
    process::{Program, program},
    *,
};
use std::{
    io::BufRead,
    process::{ChildStderr, ChildStdin},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
};

/// The code of an answer to a request that a change overtook.
const CONTENT_MODIFIED: i64 = -32801;

/// The code of an answer to a request that the client cancelled.
const CANCELLED: i64 = -32800;

/// Returns the parameters of a request for completions.
fn at(uri: &str, line: u32, character: u32) -> Value {
    json!({
        "textDocument": { "uri": uri },
        "position": { "line": line, "character": character },
        "context": { "triggerKind": 1 },
    })
}

/// Returns a change of `start` to `end`, each given as line and character.
fn change(start: [u32; 2], end: [u32; 2], text: &str) -> Value {
    let position = |[line, character]: [u32; 2]| json!({ "line": line, "character": character });
    json!({ "range": { "start": position(start), "end": position(end) }, "text": text })
}

/// Returns the texts of the completions in an answer.
#[track_caller]
fn inserted(answer: &Value) -> Vec<&str> {
    let items = answer["result"]["items"].as_array().unwrap_or_else(|| panic!("no items: {answer}"));
    let text = |item: &'_ Value| item["insertText"].as_str().or(item["textEdit"]["newText"].as_str()).is_some();
    assert!(items.iter().all(text), "{answer}");
    items.iter().filter_map(|item| item["insertText"].as_str().or(item["textEdit"]["newText"].as_str())).collect()
}

/// Waits until `found` returns something.
#[track_caller]
fn until<T>(never: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < end, "{never}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// How `weir lsp` is started.
struct Options<'a> {
    flags: Vec<&'a str>,
    variables: Vec<(&'a str, &'a str)>,
    /// Capabilities of the client.
    capabilities: Value,
}

impl<'a> Options<'a> {
    /// Runs a model in the process.
    fn process(more: &[&'a str]) -> Self {
        static MODEL: LazyLock<PathBuf> = LazyLock::new(|| converted("whitespaces"));
        Self::with(&[&["--model", MODEL.to_str().unwrap(), "--threads", "1"], more].concat())
    }

    fn with(flags: &[&'a str]) -> Self {
        Self { flags: flags.to_vec(), variables: Vec::new(), capabilities: json!({}) }
    }

    fn command(&self) -> Command {
        let mut command = program(&["lsp"]);
        command.args(&self.flags).envs(self.variables.iter().copied());
        command
    }
}

/// A running `weir lsp`. Killed when it is dropped.
struct Client {
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
    fn silent(options: &Options) -> Self {
        Self::of(options.command())
    }

    fn of(mut command: Command) -> Self {
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

    /// Starts and initializes the server. Also returns its answer.
    fn start(options: &Options) -> (Self, Value) {
        let mut client = Self::silent(options);
        let answer = client.initialize(&options.capabilities);
        (client, answer)
    }

    fn initialize(&mut self, capabilities: &Value) -> Value {
        let answer = self.ask("initialize", json!({ "processId": null, "capabilities": capabilities }));
        self.notify("initialized", json!({}));
        answer
    }

    /// Sends bytes as they are.
    fn send_raw(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(bytes).and_then(|()| stdin.flush()).unwrap();
    }

    /// Sends messages at once.
    fn send(&mut self, messages: &[Value]) {
        let frames: Vec<String> = messages.iter().map(|message| frame(&message.to_string())).collect();
        self.send_raw(frames.concat().as_bytes());
    }

    fn notify(&mut self, method: &str, params: Value) {
        self.send(&[notification(method, params)]);
    }

    /// Returns a request with an id of its own.
    fn request(&mut self, method: &str, params: Value) -> (i32, Value) {
        self.last_id += 1;
        let request = json!({ "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params });
        (self.last_id, request)
    }

    /// Sends a request and waits for its answer.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let (id, request) = self.request(method, params);
        self.send(&[request]);
        self.answer(id)
    }

    /// Sends requests for inline completions at once. Each answer must have completions: `count` ones, if given.
    #[track_caller]
    fn ask_at_once<'a>(&mut self, places: impl IntoIterator<Item = (&'a str, u32)>, count: Option<usize>) {
        let requests = places.into_iter().map(|(uri, character)| self.request(INLINE, at(uri, 0, character)));
        let (ids, requests): (Vec<_>, Vec<_>) = requests.unzip();
        self.send(&requests);
        for id in ids {
            let answer = self.answer(id);
            let found = inserted(&answer).len();
            assert!(found > 0 && count.is_none_or(|count| found == count), "{answer}");
        }
    }

    /// Waits for the answer to a request.
    #[track_caller]
    fn answer(&mut self, id: i32) -> Value {
        self.wait_for(&format!("answer {id}"), |message| message["id"] == id && message.get("method").is_none())
    }

    /// Waits for a message of this kind to the user, and returns its text.
    #[track_caller]
    fn message(&mut self, method: &str) -> String {
        let message = self.wait_for(method, |message| message["method"] == method);
        message["params"]["message"].as_str().unwrap().to_owned()
    }

    /// Waits for a line of the log with this text. Other lines may come before it.
    #[track_caller]
    fn logged(&mut self, text: &str) {
        let has_text = |message: &Value| message["params"]["message"].as_str().is_some_and(|line| line.contains(text));
        self.wait_for(text, |message| message["method"] == "window/logMessage" && has_text(message));
    }

    /// Waits for a message for which `is_wanted` returns true.
    #[track_caller]
    fn wait_for(&mut self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
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
    fn others(&self) -> &[Value] {
        &self.pending
    }

    fn open(&mut self, uri: &str, text: &str) {
        let document = json!({ "uri": uri, "languageId": "text", "version": 0, "text": text });
        self.notify("textDocument/didOpen", json!({ "textDocument": document }));
    }

    /// Returns the notice of changes.
    fn changed(&mut self, uri: &str, changes: &[Value]) -> Value {
        self.version += 1;
        let document = json!({ "uri": uri, "version": self.version });
        notification("textDocument/didChange", json!({ "textDocument": document, "contentChanges": changes }))
    }

    fn change(&mut self, uri: &str, changes: &[Value]) {
        let notice = self.changed(uri, changes);
        self.send(&[notice]);
    }

    /// Shuts the server down. Returns its stderr.
    #[track_caller]
    fn shut_down(mut self) -> String {
        let answer = self.ask("shutdown", Value::Null);
        assert_eq!(answer["result"], Value::Null, "{answer}");
        self.notify("exit", Value::Null);
        let (code, errors) = self.ended();
        assert_eq!(code, Some(0), "{errors}");
        errors
    }

    /// Closes the server's input.
    fn hang_up(&mut self) {
        self.stdin = None;
    }

    /// Waits for the end of the server. Returns its exit code and its stderr.
    fn ended(&mut self) -> (Option<i32>, String) {
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

/// Initializes `weir lsp` and sends it messages in JSON, one after another. Returns the answers to those that have an id.
pub(crate) fn answers<'a>(
    flags: &[String],
    folder: &Path,
    messages: impl IntoIterator<Item = &'a String>,
) -> Vec<Value> {
    let mut command = program(&["lsp"]);
    command.args(flags).current_dir(folder);
    let mut client = Client::of(command);
    client.initialize(&json!({}));
    let mut answers = Vec::new();
    for message in messages {
        client.send_raw(frame(message).as_bytes());
        if message.contains("\"id\":") {
            let is_answer = |answer: &Value| answer.get("id").is_some() && answer.get("method").is_none();
            answers.push(client.wait_for(message, is_answer));
        }
    }
    answers
}

fn notification(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

fn frame(body: &str) -> String {
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

const INLINE: &str = "textDocument/inlineCompletion";

#[test]
fn wrong_messages_are_answered_and_the_server_goes_on() {
    let mut client = Client::silent(&Options::process(&[]));
    let early = client.ask(INLINE, at("a", 0, 0));
    assert_eq!(early["error"]["code"], -32002, "{early}");
    client.open("a", "dropped before initialize");
    let malformed = json!({ "capabilities": { "general": { "positionEncodings": "utf-8" } } });
    assert_eq!(client.ask("initialize", malformed)["error"]["code"], -32602);
    assert!(client.ask("initialize", json!({ "capabilities": { "general": null } }))["result"].is_object());
    assert_eq!(inserted(&client.ask(INLINE, at("a", 0, 0))), [""; 0]);
    for (body, code) in
        [("{\"id\": 1", -32700), ("\u{1}", -32700), ("", -32700), ("[]", -32600), ("{\"id\": [1]}", -32600)]
    {
        client.send_raw(frame(body).as_bytes());
        let answer = client.wait_for(body, |message| message["error"]["code"] == code);
        assert_eq!(answer.get("id"), Some(&Value::Null), "{answer}");
    }
    // A change that cannot be read leaves the document out, and unknown notices are ignored.
    client.open("a", "the river");
    client.notify("textDocument/didChange", json!({ "textDocument": { "uri": "a" }, "contentChanges": 7 }));
    let log = client.wait_for("a log", |message| {
        message["params"]["message"].as_str().is_some_and(|text| text.contains("textDocument/didChange"))
    });
    assert_eq!(log["method"], "window/logMessage");
    let shown = client.message("window/showMessage");
    assert!(shown.contains("a: a message could not be read, so the text is unknown; open it again"), "{shown}");
    assert_eq!(inserted(&client.ask(INLINE, at("a", 0, 9))).len(), 0);
    client.open("a", "the river");
    client.notify("$/setTrace", json!({ "value": "off" }));
    client.send(&[json!({ "jsonrpc": "2.0", "id": 9000, "result": null })]);
    client.change("unknown", &[change([0, 0], [0, 0], "a")]);
    assert_eq!(inserted(&client.ask(INLINE, at("a", 0, 9))).len(), 3);
    assert_eq!(client.ask("shutdown", json!(null))["result"], json!(null));
    client.notify("exit", json!(null));
    let (code, errors) = client.ended();
    assert!(code == Some(0) && errors.contains("weir: expected JSON"), "{code:?}: {errors}");
}

#[test]
fn documents_beyond_the_limit_are_left_out_and_others_go_on() {
    let (mut client, _) = Client::start(&Options::process(&[]));
    client.open("small", "the river");
    client.open("large", &"a".repeat((4 << 20) + 1));
    let shown = client.message("window/showMessage");
    assert!(shown.contains("large: expected a document of at most 4194304 bytes, found 4194305"), "{shown}");
    client.change("large", &[change([0, 0], [0, 0], "b")]);
    assert_eq!(inserted(&client.ask(INLINE, at("large", 0, 1))), [""; 0]);
    assert_eq!(inserted(&client.ask(INLINE, at("small", 0, 9))).len(), 3);
    assert!(!client.others().iter().any(|message| message["method"] == "window/showMessage"), "shown once");
    // A message that is too long is skipped. Unless it names another method, it may have changed any document.
    let opens = format!(r#"{{"method": "textDocument/didOpen", {}}}"#, " ".repeat(32 << 20));
    client.send_raw(frame(&opens).as_bytes());
    assert_eq!(inserted(&client.ask(INLINE, at("small", 0, 9))).len(), 3);
    client.send_raw(frame(&" ".repeat((32 << 20) + 1)).as_bytes());
    for found in [opens.len(), (32 << 20) + 1] {
        client.logged(&format!("expected a message of at most 33554432 bytes, found {found}"));
    }
    let shown = client.message("window/showMessage");
    assert!(shown.contains("the open documents: a message could not be read"), "{shown}");
    assert_eq!(inserted(&client.ask(INLINE, at("small", 0, 9))), [""; 0]);
    client.change("large", &[json!({ "text": "the river" })]);
    assert_eq!(inserted(&client.ask(INLINE, at("large", 0, 9))).len(), 3);
    client.shut_down();
}

#[test]
fn a_client_that_leaves_without_shutdown_is_an_error() {
    let options = Options::process(&[]);
    let mut exits = Client::silent(&options);
    exits.send(&[notification("exit", json!(null))]);
    let mut hangs_up = Client::silent(&options);
    hangs_up.hang_up();
    let mut breaks = Client::silent(&options);
    breaks.send_raw(b"GET / HTTP/1.1\r\n\r\n");
    for (client, expected) in [
        (&mut exits, "the client left without shutdown"),
        (&mut hangs_up, "the client left without shutdown"),
        (&mut breaks, "standard input: expected a header such as Content-Length: 2, found \"GET / HTTP/1.1\""),
    ] {
        let (code, errors) = client.ended();
        assert!(code == Some(1) && errors.contains(expected), "{code:?}: {errors}");
    }
}

/// Starts the language server for the file of the command line.
const INIT: &str = r"
vim.o.swapfile = false
vim.api.nvim_create_autocmd('VimEnter', { callback = function()
  local config = { name = 'weir', cmd = { vim.env.WEIR, 'lsp', '--threads', '1' } }
  if vim.lsp.start then
    vim.lsp.start(config)
  else
    vim.lsp.buf_attach_client(0, vim.lsp.start_client(config))
  end
  vim.bo.omnifunc = 'v:lua.vim.lsp.omnifunc'
end })
function _G.is_ready()
  for _, client in pairs((vim.lsp.get_clients or vim.lsp.get_active_clients)()) do
    if client.initialized then return 1 end
  end
  return 0
end
";

/// A running editor.
struct Neovim {
    program: Program,
    folder: TempDir,
}

impl Neovim {
    /// Opens a file with `text`. Returns `None` if Neovim is not installed.
    fn start(text: &str) -> Option<Self> {
        let required = std::env::var_os("WEIR_REQUIRE_NEOVIM").is_some_and(|value| value == "1");
        let found = Command::new("nvim").arg("--version").stdout(Stdio::null()).status();
        if found.is_err() {
            assert!(!required, "nvim is required, and not installed");
            eprintln!("skipped: nvim is not installed");
            return None;
        }
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("init.lua"), INIT).unwrap();
        fs::write(folder.path().join("text"), text).unwrap();
        let mut command = Command::new("nvim");
        command.args(["--headless", "-i", "NONE", "-u", "init.lua", "--listen", "socket", "text"]);
        command.current_dir(folder.path()).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", folder.path()).env("XDG_RUNTIME_DIR", folder.path());
        command.env("WEIR", env!("CARGO_BIN_EXE_weir")).env("WEIR_MODEL", converted("whitespaces"));
        let neovim = Self { program: Program::start(&mut command), folder };
        neovim.wait_for("luaeval('is_ready()')", "1");
        Some(neovim)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("text")
    }

    /// Sends one command to the editor. Returns what it printed, as an error if it failed.
    fn remote(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new("nvim");
        let output = command.args(["--headless", "--server", "socket"]).args(arguments).current_dir(self.folder.path());
        let output = output.env("HOME", self.folder.path()).output().unwrap();
        // some versions print results to stderr
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap().trim().to_owned();
        if output.status.success() { Ok(printed) } else { Err(printed) }
    }

    /// Types keys.
    fn type_keys(&self, keys: &str) {
        self.remote(&["--remote-send", keys]).unwrap();
    }

    /// Quits the editor and expects its success.
    fn quit(mut self) {
        // The editor may close the connection before it answers, and then the remote command fails. Its own exit status counts.
        let answer = self.remote(&["--remote-send", ":qa!<CR>"]);
        assert!(self.program.wait().success(), "{answer:?}: {}", self.program.stderr());
    }

    /// Waits until an expression has this value.
    fn wait_for(&self, expression: &str, expected: &str) {
        until(&format!("{expression} is not {expected:?}"), || {
            let found = self.remote(&["--remote-expr", expression]);
            (found.as_deref() == Ok(expected)).then_some(())
        });
    }
}

#[test]
fn a_completion_is_taken_while_typing() {
    let Some(neovim) = Neovim::start("a 😀 b\nthe r\n") else { return };
    // After a character of two UTF-16 units, and at the end of another line.
    neovim.type_keys("ggA é😀c<Esc>02lxGAiv<C-x><C-o>");
    neovim.wait_for("pumvisible()", "1");
    let (mut client, _) = Client::start(&Options::process(&[]));
    client.open("a", "a  b é😀c\nthe riv");
    let expected = client.ask("textDocument/completion", at("a", 1, 7));
    let words = inserted(&expected);
    neovim.wait_for("join(map(complete_info(['items']).items, 'v:val.word'))", &words.join(" "));
    // The second one.
    neovim.type_keys("<C-n><C-y> end<Esc>:w<CR>");
    let written = format!("a  b é😀c\nthe {} end\n", words[1]);
    neovim.wait_for("&modified", "0");
    assert_eq!(fs::read_to_string(neovim.file()).unwrap(), written);
    neovim.quit();
    client.shut_down();
}

const LIST: &str = "textDocument/completion";
const KEY: &str = "key-of-the-test-0123456789";

/// Returns the server's count of events of editing sessions.
fn events(server: &Server, event: &str) -> u64 {
    let (_, metrics) = server.get("/metrics");
    let label = format!("event=\"{event}\"");
    let line = metrics.lines().find(|line| line.starts_with("weir_edit_events_total{") && line.contains(&label));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
fn completions_are_those_of_this_process() {
    let certificates = Certificates::new();
    certificates.write("keys", &format!("tester:{KEY}\n"));
    let names = ["server.pem", "server.key", "ca.pem", "keys"];
    let [cert, key, ca, keys] = names.map(|name| certificates.name(name));
    let flags = ["--api-keys", &keys, "--tls-cert", &cert, "--tls-key", &key];
    let server = Server::of(&[converted("whitespaces")], &flags);
    let address = format!("https://{}", server.address);
    let more = ["--count", "4", "--until", "segment", "--completion-chars", "6"];
    let mut remote = Options::with(&[&["--tls-ca", &ca][..], &more].concat());
    remote.variables = vec![("WEIR_SERVER", &address)];
    let mut rejected = Client::silent(&remote);
    let (code, errors) = rejected.ended();
    assert!(code == Some(1) && errors.contains("use --api-key-file or WEIR_API_KEY"), "{errors}");
    remote.variables.push(("WEIR_API_KEY", KEY));
    let answers = [remote, Options::process(&more)].map(|options| {
        let (mut client, _) = Client::start(&options);
        client.open("a", "é the river runs past");
        let answers = [9, 21].map(|character| {
            let list = client.ask(LIST, at("a", 0, character));
            assert_eq!(inserted(&list).len(), 4, "{list}");
            list["result"].clone()
        });
        client.shut_down();
        answers
    });
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn a_cancelled_request_is_cancelled_on_the_server() {
    let server = Server::of(&[converted("whitespaces")], &[]);
    let address = server.address.to_string();
    let flags = ["--server", &address, "--count", "16", "--until", "line", "--completion-chars", "64"];
    let (mut client, _) = Client::start(&Options::with(&flags));
    client.open("a", &"the river runs past the mill. ".repeat(30));
    let (id, request) = client.request(INLINE, at("a", 0, 890));
    client.send(&[request, notification("$/cancelRequest", json!({ "id": id }))]);
    assert_eq!(client.answer(id)["error"]["code"], CANCELLED);
    until("the server was not told", || (events(&server, "stale") > 0).then_some(()));
    assert_eq!((events(&server, "stale"), events(&server, "completion")), (1, 0));
    client.shut_down();
}

/// Requests before the furthest cursor overtake nothing. The log has why a session ended.
#[test]
fn requests_at_several_cursors_are_completed_at_once() {
    let mut server = Server::of(&[converted("whitespaces")], &[]);
    let address = server.address.to_string();
    let mut options = Options::with(&["--server", &address]);
    // WEIR_MAX_CHARS is a variable of `weir generate`.
    options.variables = vec![("WEIR_COMPLETION_CHARS", "5"), ("WEIR_MAX_CHARS", "1000")];
    let (mut client, _) = Client::start(&options);
    client.open("a", "the river runs");
    client.ask_at_once([14, 9, 3, 6].map(|cursor| ("a", cursor)), None);
    assert_eq!((events(&server, "stale"), events(&server, "completion")), (0, 4));
    server.program.signal("KILL");
    server.program.wait();
    client.logged("the session of a ended: ");
    client.shut_down();
}

/// A server that drains ends the sessions. Its successor gets the documents.
#[test]
fn documents_are_opened_again_on_another_server() {
    let mut first = Server::of(&[converted("whitespaces")], &[]);
    let address = first.address.to_string();
    let (mut client, _) = Client::start(&Options::with(&["--server", &address]));
    client.open("a", "the river");
    let before = client.ask(INLINE, at("a", 0, 9));
    first.program.signal("TERM");
    assert!(first.program.wait().success());
    client.logged("closed the session of a: REASON_DRAINING");
    // Requests have empty answers, and the reason is logged once.
    for _ in 0..3 {
        assert_eq!(inserted(&client.ask(INLINE, at("a", 0, 9))), [""; 0]);
    }
    client.logged("there are no completions until the server answers");
    let quick = ["serve", "--listen", &address, "--threads=1", "--calibration-milliseconds=0", "--model"];
    let second = Program::start(program(&quick).arg(converted("whitespaces")));
    second.listener("gRPC");
    client.change("a", &[change([0, 9], [0, 9], "s")]);
    client.change("a", &[change([0, 9], [0, 10], "")]);
    let after = until("the server is not used again", || {
        Some(client.ask(INLINE, at("a", 0, 9))).filter(|answer| !inserted(answer).is_empty())
    });
    assert_eq!(after["result"], before["result"]);
    client.logged("the server answers again");
    // A check of words may have met the end of the first server.
    let is_about_words = |message: &Value| message.to_string().contains("misspelt words are not marked");
    let mut others = client.others().iter().filter(|message| message.get("method").is_some());
    assert!(others.all(is_about_words), "{:?}", client.others());
    client.shut_down();
}

const URI: &str = "file:///a%20b/é.txt";

#[test]
fn both_kinds_of_completions_are_ranked_and_at_the_cursor() {
    let (mut client, initialized) = Client::start(&Options::process(&[]));
    let capabilities = &initialized["result"]["capabilities"];
    assert_eq!(capabilities["positionEncoding"], "utf-16");
    assert_eq!(capabilities["textDocumentSync"], json!({ "openClose": true, "change": 2 }));
    assert!(capabilities["completionProvider"].is_object() && capabilities["inlineCompletionProvider"].is_object());
    client.open(URI, "ab ca\nthe rest");
    let inline = client.ask(INLINE, at(URI, 0, 5));
    let cursor = json!({ "line": 0, "character": 5 });
    assert_eq!(inline["result"]["items"][0]["range"], json!({ "start": cursor, "end": cursor }));
    let texts = inserted(&inline);
    assert!(texts.len() == 3 && texts.iter().all(|text| !text.is_empty() && !text.contains(' ')), "{inline}");
    let list = client.ask(LIST, at(URI, 0, 5));
    assert_eq!(list["result"]["isIncomplete"], true);
    let whole: Vec<String> = texts.iter().map(|text| format!("ca{text}")).collect();
    assert_eq!(inserted(&list), whole, "the word before the cursor is replaced by itself and the completion");
    let first = &list["result"]["items"][0];
    assert_eq!((&first["label"], &first["sortText"]), (&whole[0].clone().into(), &"0000".into()));
    let word = json!({ "line": 0, "character": 3 });
    assert_eq!(first["textEdit"]["range"], json!({ "start": word, "end": cursor }));
    let shares = list["result"]["items"].as_array().unwrap().iter().map(|item| {
        let detail = item["detail"].as_str().unwrap().strip_suffix(" %").unwrap();
        detail.parse::<f64>().unwrap()
    });
    assert!(shares.is_sorted_by(|a, b| a >= b), "{list}");
    client.notify("textDocument/didClose", json!({ "textDocument": { "uri": URI } }));
    assert_eq!(inserted(&client.ask(LIST, at(URI, 0, 5))), [""; 0]);
    assert_eq!(client.shut_down(), "");
}

/// Waits for the next hints of a document.
#[track_caller]
fn hints(client: &mut Client) -> Vec<Value> {
    let published = client.wait_for("hints", |message| message["method"] == "textDocument/publishDiagnostics");
    assert_eq!(published["params"]["uri"], URI, "{published}");
    published["params"]["diagnostics"].as_array().unwrap().clone()
}

/// A misspelt word gets a hint once the document rests, and loses it when a quick fix has replaced the word.
#[test]
fn misspelt_words_have_hints_and_quick_fixes() {
    let (mut client, initialized) = Client::start(&Options::with(&["--threads", "1"]));
    let actions = &initialized["result"]["capabilities"]["codeActionProvider"];
    assert_eq!(actions, &json!({ "codeActionKinds": ["quickfix"] }));
    client.open(URI, "é\n😀 the history of the goverment of the united states of america\n");
    let found = hints(&mut client);
    let hint = &found[0];
    let [start, end] = [22, 31].map(|character| json!({ "line": 1, "character": character }));
    assert_eq!((found.len(), &hint["range"]), (1, &json!({ "start": start, "end": end })), "{found:?}");
    assert_eq!((&hint["severity"], &hint["source"]), (&json!(4), &json!("weir")));
    assert_eq!(hint["data"]["word"], "goverment");
    let ask = json!({ "textDocument": { "uri": URI }, "range": hint["range"], "context": { "diagnostics": [hint] } });
    let fixes = client.ask("textDocument/codeAction", ask.clone());
    let fix = &fixes["result"][0];
    assert_eq!((&fix["kind"], &fix["title"]), (&json!("quickfix"), &json!("Replace by “government”")), "{fixes}");
    let edit = fix["edit"]["changes"][URI][0].clone();
    client.change(URI, &[json!({ "range": edit["range"], "text": edit["newText"] })]);
    assert_eq!(client.ask("textDocument/codeAction", ask)["result"], json!([]), "the word is replaced");
    assert_eq!(hints(&mut client), [] as [Value; 0]);
    client.shut_down();
    let (client, initialized) = Client::start(&Options::process(&["--no-check"]));
    assert_eq!(initialized["result"]["capabilities"]["codeActionProvider"], Value::Null);
    client.shut_down();
}

/// A document after changes gets the completions of one that is opened with their result.
#[test]
fn changes_with_any_characters_are_those_of_the_editor() {
    // where é, | and b begin, and where c does once it follows 😀
    for (encoding, [e, bar, b, c]) in [("utf-16", [1, 2, 3, 4]), ("utf-8", [1, 3, 4, 7])] {
        let mut options = Options::process(&["--count", "5", "--until", "line", "--completion-chars", "4"]);
        options.capabilities = json!({ "general": { "positionEncodings": [encoding, "utf-16"] } });
        let (mut client, initialized) = Client::start(&options);
        assert_eq!(initialized["result"]["capabilities"]["positionEncoding"], encoding);
        client.open(URI, "aé|b\r\n\n");
        client.change(URI, &[change([0, b], [0, b + 1], "😀c\nthe"), change([0, bar], [0, b], "")]);
        client.change(URI, &[change([0, c], [0, 99], " caf")]);
        client.change(URI, &[change([1, 3], [9, 0], " river"), change([0, 0], [0, e], "")]);
        client.open("file:///cold", "é😀 caf\nthe river");
        for character in [3, 9] {
            let warm = client.ask(INLINE, at(URI, 1, character));
            let cold = client.ask(INLINE, at("file:///cold", 1, character));
            assert_eq!((&warm["result"], inserted(&warm).len()), (&cold["result"], 5), "{encoding}");
        }
        // the word begins after the character of two units
        let list = client.ask(LIST, at(URI, 0, 99));
        let start = list["result"]["items"][0]["textEdit"]["range"]["start"]["character"].as_u64().unwrap();
        assert_eq!(start, if encoding == "utf-8" { 7 } else { 4 }, "{list}");
        client.shut_down();
    }
}

#[test]
fn a_request_is_cancelled_and_another_goes_on() {
    let options = Options::process(&["--count", "16", "--until", "word", "--completion-chars", "5"]);
    let (mut client, _) = Client::start(&options);
    client.open(URI, "the river runs");
    let expected = client.ask(INLINE, at(URI, 0, 9));
    let (cancelled, first) = client.request(LIST, at(URI, 0, 14));
    let (kept, second) = client.request(INLINE, at(URI, 0, 9));
    let cancel = notification("$/cancelRequest", json!({ "id": cancelled }));
    let unknown = notification("$/cancelRequest", json!({ "id": "unknown" }));
    client.send(&[first, second, cancel, unknown]);
    assert_eq!(client.answer(cancelled)["error"]["code"], CANCELLED);
    let answer = client.answer(kept);
    assert_eq!((&answer["result"], inserted(&answer).is_empty()), (&expected["result"], false));
    client.shut_down();
}

#[test]
fn a_change_overtakes_requests() {
    let options = Options::process(&["--count", "16", "--until", "word", "--completion-chars", "5"]);
    let (mut client, _) = Client::start(&options);
    client.open(URI, "the");
    client.open("file:///other", "the");
    let (overtaken, first) = client.request(INLINE, at(URI, 0, 3));
    let (other, second) = client.request(INLINE, at("file:///other", 0, 3));
    let notice = client.changed(URI, &[change([0, 3], [0, 3], " river")]);
    let (after, third) = client.request(INLINE, at(URI, 0, 9));
    client.send(&[first, second, notice, third]);
    assert_eq!(client.answer(overtaken)["error"]["code"], CONTENT_MODIFIED);
    // the requests of another document and later ones are answered
    assert!(!inserted(&client.answer(other)).is_empty() && !inserted(&client.answer(after)).is_empty());
    // elsewhere: the distributions after the same text are known, and the answer could come first
    let (closed, request) = client.request(INLINE, at(URI, 0, 8));
    let close = notification("textDocument/didClose", json!({ "textDocument": { "uri": URI } }));
    client.send(&[request, close]);
    assert_eq!(client.answer(closed)["error"]["code"], CONTENT_MODIFIED);
    let (ended, request) = client.request(INLINE, at("file:///other", 0, 2));
    let (shutdown, last) = client.request("shutdown", json!(null));
    client.send(&[request, last]);
    assert_eq!(client.answer(ended)["error"]["code"], CANCELLED);
    assert_eq!(client.answer(shutdown)["result"], json!(null));
}

/// The model reads the end of a long text, and more sessions than are kept are opened one after the other.
#[test]
fn long_and_many_documents_are_completed() {
    let options = Options::process(&["--max-symbols", "128", "--completion-chars", "8"]);
    let (mut client, _) = Client::start(&options);
    let long = "the river runs past the mill. ".repeat(40);
    let uris: Vec<String> = (0..12).map(|index| format!("file:///{index}")).collect();
    uris.iter().for_each(|uri| client.open(uri, &long));
    for uri in uris.iter().chain(&uris[..3]) {
        client.ask_at_once([(uri.as_str(), 1199)], Some(3));
    }
    // More documents than sessions ask at the same time. None loses its request.
    client.ask_at_once(uris.iter().map(|uri| (uri.as_str(), 1190)), Some(3));
    // Requests whose texts begin at different places wait for one another, and requests of longer texts overtake shorter ones.
    client.ask_at_once([100, 600, 1199, 3, 104, 1195].map(|cursor| (uris[2].as_str(), cursor)), None);
    assert_eq!(client.others(), [json!(null); 0]);
    client.shut_down();
}
