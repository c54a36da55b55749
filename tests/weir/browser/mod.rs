//! The playground in headless Chromium, controlled through WebDriver (W3C). The tests are skipped with a message if it is not
//! installed, unless `WEIR_REQUIRE_BROWSER=1`. `WEIR_SCREENSHOTS=FOLDER` saves screenshots there.

mod editor;
mod playground;
mod refusals;
mod report;
mod settings;
mod summaries;

use super::{
    process::{Program, Server},
    support::converted,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// Maximum wait for the page to reach a state.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Key codes of WebDriver.
const RIGHT: &str = "\u{e014}";
const HOME: &str = "\u{e011}";
const END: &str = "\u{e010}";
/// Keys that start a run of the playground: Control and Enter.
const START: &str = "\u{e009}\u{e006}";
const ESCAPE: &str = "\u{e00c}";
/// Script that returns whether a completion is done.
const DONE: &str = "document.getElementById('status').textContent == 'Done.'";

/// Script that returns by how many pixels the content is wider than the page.
const OVERFLOW: &str = "document.documentElement.scrollWidth - document.documentElement.clientWidth";

/// A browser with one page.
struct Browser {
    port: SocketAddr,
    session: String,
    _driver: Program,
}

impl Browser {
    /// Starts a browser. Returns `None` if none is installed.
    fn start(dark: bool) -> Option<Self> {
        let required = std::env::var_os("WEIR_REQUIRE_BROWSER").is_some_and(|value| value == "1");
        if !Path::new("/usr/bin/chromedriver").is_file() {
            assert!(!required, "chromedriver is required, and not installed");
            eprintln!("skipped: chromedriver is not installed");
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let driver = Program::start(Command::new("/usr/bin/chromedriver").arg(format!("--port={}", port.port())));
        let end = Instant::now() + TIMEOUT;
        while TcpStream::connect(port).is_err() {
            assert!(Instant::now() < end, "chromedriver does not listen: {}", driver.stderr());
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut browser = Self { port, session: String::new(), _driver: driver };
        let theme = if dark { "--force-dark-mode" } else { "--disable-gpu" };
        let args = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,1000", theme];
        let wanted = json!({ "browserName": "chrome", "goog:chromeOptions": { "args": args },
            "goog:loggingPrefs": { "browser": "ALL" } });
        let session = browser.ask("POST", "/session", &json!({ "capabilities": { "alwaysMatch": wanted } }));
        session["sessionId"].as_str().unwrap().clone_into(&mut browser.session);
        Some(browser)
    }

    /// Sends one WebDriver command and returns its value.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let mut stream = TcpStream::connect(self.port).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let host = self.port;
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        // Chromedriver does not close the connection.
        let mut answer = BufReader::new(stream);
        let mut head = String::new();
        let mut length = 0;
        while !head.ends_with("\r\n\r\n") {
            let from = head.len();
            assert!(answer.read_line(&mut head).unwrap() > 0, "it closed: {head}");
            let line = head[from..].to_ascii_lowercase();
            length = line.strip_prefix("content-length:").map_or(length, |value| value.trim().parse().unwrap());
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{method} {path}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice::<Value>(&body).unwrap()["value"].take()
    }

    fn page_command(&self, method: &str, path: &str, body: &Value) -> Value {
        self.ask(method, &format!("/session/{}{path}", self.session), body)
    }

    fn open(&self, url: &str) {
        self.page_command("POST", "/url", &json!({ "url": url }));
    }

    fn element(&self, selector: &str) -> String {
        let element = self.page_command("POST", "/element", &json!({ "using": "css selector", "value": selector }));
        format!("/element/{}", element.as_object().unwrap().values().next().unwrap().as_str().unwrap())
    }

    fn click(&self, selector: &str) {
        self.page_command("POST", &format!("{}/click", self.element(selector)), &json!({}));
    }

    fn keys(&self, selector: &str, keys: &str) {
        self.page_command("POST", &format!("{}/value", self.element(selector)), &json!({ "text": keys }));
    }

    fn evaluate(&self, script: &str) -> Value {
        self.page_command("POST", "/execute/sync", &json!({ "script": format!("return {script}"), "args": [] }))
    }

    fn text(&self, selector: &str) -> String {
        let script = format!("document.querySelector({}).textContent", json!(selector));
        self.evaluate(&script).as_str().unwrap().to_owned()
    }

    /// Waits until a script returns true.
    fn until(&self, script: &str) {
        let end = Instant::now() + TIMEOUT;
        while self.evaluate(script) != true {
            assert!(Instant::now() < end, "never: {script}; the page says {:?}", self.text("#status"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Gives the page this width in CSS pixels.
    fn set_width(&self, width: u32) {
        let params = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        let command = json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": params });
        self.page_command("POST", "/goog/cdp/execute", &command);
    }

    /// Replaces the page's requests: each gets this response.
    fn answer_with(&self, response: &str) {
        self.evaluate(&format!(
            "window.asks = window.asks || window.fetch, window.fetch = async () => {response}, null"
        ));
    }

    /// Ends [`answer_with`](Self::answer_with).
    fn answer_no_more(&self) {
        self.evaluate("window.fetch = window.asks, null");
    }

    fn picture(&self, name: &str) {
        if let Some(folder) = std::env::var_os("WEIR_SCREENSHOTS") {
            let picture = self.page_command("GET", "/screenshot", &Value::Null);
            let bytes = STANDARD.decode(picture.as_str().unwrap()).unwrap();
            std::fs::write(Path::new(&folder).join(name), bytes).unwrap();
        }
    }

    /// Returns the severe entries of the page's log: policy violations and failed scripts.
    fn severe_log_entries(&self) -> Vec<Value> {
        let log = self.page_command("POST", "/se/log", &json!({ "type": "browser" }));
        let severe = |entry: &&Value| entry["level"] == "SEVERE";
        log.as_array().unwrap().iter().filter(severe).cloned().collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.page_command("DELETE", "", &Value::Null);
        }
    }
}

fn url(server: &Server) -> String {
    format!("http://{}/", server.program.listener("playground"))
}

/// Starts a server of a pooled and an unpooled model.
fn two_models() -> Server {
    let models = ["whitespaces", "vanilla"].map(|case| converted(case).to_string_lossy().into_owned());
    Server::start(&["--http-listen", "127.0.0.1:0", "--threads", "1", "--model", &models[0], "--model", &models[1]])
}
