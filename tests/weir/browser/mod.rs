//! The playground in headless Chromium, controlled through WebDriver (W3C). The tests are skipped with a message if it is not
//! installed, unless `WEIR_REQUIRE_BROWSER=1`. `WEIR_SCREENSHOTS=FOLDER` saves screenshots there.

use super::{
    process::{Program, Server},
    summaries,
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
    format!("http://{}/", server.program.wait_for_line("completions over HTTP on "))
}

/// Starts a server of a pooled and an unpooled model.
fn two_models() -> Server {
    let models = ["whitespaces", "vanilla"].map(|case| converted(case).to_string_lossy().into_owned());
    Server::start(&["--http-listen", "127.0.0.1:0", "--threads", "1", "--model", &models[0], "--model", &models[1]])
}

#[test]
fn the_playground_generates_and_shows_details() {
    let Some(browser) = Browser::start(false) else { return };
    let server = two_models();
    browser.open(&url(&server));
    browser.until("document.getElementById('model-a').options.length == 2");
    browser.evaluate("document.getElementById('model-a').value = 'whitespaces'");
    browser.evaluate("document.getElementById('model-b').value = 'vanilla'");
    browser.click("#go");
    browser.until("document.getElementById('status').textContent == 'Done.'");
    // Both models show the prompt and 300 characters, and a dot for each observed gap.
    for panel in [1, 2] {
        let panel_element =
            |what: &str| browser.evaluate(&format!("document.querySelector('.panel:nth-child({panel}) {what}"));
        assert_eq!(panel_element(".text').textContent.length"), 319);
        let plotted = panel_element("svg').querySelectorAll('circle').length").as_u64().unwrap();
        let together = panel_element("dl').lastElementChild.lastElementChild.textContent");
        assert_eq!(plotted + together.as_str().unwrap().parse::<u64>().unwrap(), 299);
    }
    // Segments of the pooled model end with spaces, where the colour changes.
    let ends = browser
        .evaluate("[...document.querySelectorAll('.panel:first-child .ends')].map(end => end.textContent).join('')");
    assert!(ends.as_str().unwrap().chars().all(|end| end == ' ') && !ends.as_str().unwrap().is_empty(), "{ends}");
    let colours = browser.evaluate(
        "[...document.querySelectorAll('.panel:first-child .text span')].slice(3, 5).map(element => element.className[1])",
    );
    assert_eq!(colours, json!(["0", "1"]));
    assert_eq!(browser.evaluate("document.querySelectorAll('.panel:nth-child(2) .ends').length"), 0);
    // The keyboard selects the second character.
    browser.click(".text");
    browser.keys(".text", HOME);
    browser.keys(".text", RIGHT);
    let about = browser.text(".panel .about");
    assert!(about.starts_with("\"h\" · log-probability -") && about.contains("within a segment"), "{about}");
    browser.picture("playground-light.png");
    // A long text scrolls to the character that the keyboard selects.
    browser.evaluate("document.querySelector('.text').style.maxHeight = '3rem'");
    for key in [END, HOME] {
        browser.keys(".text", key);
        let seen = browser.evaluate(
            "[document.querySelector('.text'), document.querySelector('.here')].map(element => element.getBoundingClientRect())
                .reduce((box, here) => here.top >= box.top - 1 && here.bottom <= box.bottom + 1)",
        );
        assert_eq!(seen, true);
    }
}

#[test]
fn the_playground_can_be_stopped_and_shows_errors() {
    let Some(browser) = Browser::start(false) else { return };
    let server = two_models();
    browser.open(&url(&server));
    browser.until("document.getElementById('model-a').options.length == 2");
    // The keyboard alone can start and stop a run.
    browser.evaluate("document.getElementById('max').value = 1900");
    browser.keys("#prompt", "\u{e009}\u{e006}");
    browser.until("document.querySelectorAll('.text span').length > 30");
    browser.keys("#prompt", "\u{e00c}");
    browser.until("['Stopped.', 'Done.'].includes(document.getElementById('status').textContent)");
    // A second request during a run is ignored, and the run can be stopped.
    browser.evaluate(
        "window.calls = 0, window.asks = window.fetch, window.fetch = (_, { signal }) => new Promise((_, refuse) => {
            window.calls += 1;
            signal.addEventListener('abort', () => refuse(signal.reason));
        }), null",
    );
    browser.keys("#prompt", "\u{e009}\u{e006}");
    browser.keys("#prompt", "\u{e009}\u{e006}");
    assert_eq!(browser.evaluate("window.calls"), 1);
    browser.keys("#prompt", "\u{e00c}");
    browser.until("document.getElementById('status').textContent == 'Stopped.'");
    browser.evaluate("window.fetch = window.asks, null");
    // An invalid option shows an error.
    browser.evaluate("document.getElementById('max').value = 1000000000");
    browser.click("#go");
    browser.until("document.getElementById('status').textContent.startsWith('max_tokens: 1000000000')");
    // The log contains only the server's refusal.
    let log_errors = browser.severe_log_entries();
    assert!(log_errors.iter().all(|entry| entry["message"].as_str().unwrap().contains("400")), "{log_errors:?}");
}

#[test]
fn the_playground_summarizes() {
    let Some(browser) = Browser::start(false) else { return };
    let folder = tempfile::tempdir().unwrap();
    let reader = summaries::write_random_model(folder.path());
    let writer = converted("whitespaces").to_string_lossy().into_owned();
    let flags = ["--http-listen", "127.0.0.1:0", "--threads", "1", "--model", &reader, "--model", &writer];
    let server = Server::start(&flags);
    browser.open(&url(&server));
    browser.until("document.getElementById('summary-model').options.length == 1");
    // Each tab lists only its kind of models.
    assert_eq!(browser.evaluate("document.getElementById('model-a').options.length"), 1);
    // The keyboard switches to the other tab.
    browser.keys("#tab-generate", RIGHT);
    browser.until("document.getElementById('generating').hidden && !document.getElementById('summarizing').hidden");
    assert_eq!(browser.evaluate("document.activeElement.id"), "tab-summarize");
    // The document comes from a file.
    let file = folder.path().join("document.txt");
    let text = "the café is pooling, the rest is going.";
    std::fs::write(&file, text).unwrap();
    browser.keys("#file", file.to_str().unwrap());
    browser.until("document.getElementById('document').value.length > 0");
    browser.evaluate("document.getElementById('min-tokens').value = 5");
    browser.evaluate("document.getElementById('max-tokens').value = 9");
    browser.click("#summary-go");
    browser.until("document.getElementById('summary-status').textContent == 'Done.'");
    assert_eq!(browser.text("#read"), text, "the whole document is shown, whatever was kept of it");
    assert!(!browser.text("#summary").is_empty());
    assert_eq!(browser.evaluate("document.getElementById('progress').value"), 1);
    // Each pooling keeps a part of the spans that the previous pooling kept.
    let kept = "[...document.querySelectorAll('#read mark')].map(mark => mark.textContent).join('').length";
    let layers = browser.evaluate("document.querySelectorAll('#layers input').length").as_u64().unwrap();
    assert!(layers >= 1);
    let mut before = u64::MAX;
    for layer in 1..=layers {
        browser.click(&format!("#layers label:nth-of-type({layer}) input"));
        let now = browser.evaluate(kept).as_u64().unwrap();
        assert!(now > 0 && now <= before, "layer {layer} keeps {now} of {before}");
        before = now;
    }
    browser.picture("playground-summary-light.png");
    // An invalid option shows an error.
    browser.evaluate("document.getElementById('max-tokens').value = 1000000");
    browser.keys("#document", "\u{e009}\u{e006}");
    browser.until("document.getElementById('summary-status').textContent.startsWith('max_tokens: 1000000')");
    let log_errors = browser.severe_log_entries();
    assert!(log_errors.iter().all(|entry| entry["message"].as_str().unwrap().contains("400")), "{log_errors:?}");
}

#[test]
fn the_playground_asks_for_a_key_and_has_a_dark_theme() {
    let Some(browser) = Browser::start(true) else { return };
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "alice:a-key-that-alice-has\n").unwrap();
    let model = converted("whitespaces").to_string_lossy().into_owned();
    let keys = keys.to_string_lossy().into_owned();
    let server =
        Server::start(&["--http-listen", "127.0.0.1:0", "--threads", "1", "--model", &model, "--api-keys", &keys]);
    browser.open(&url(&server));
    browser.until("document.getElementById('status').textContent.startsWith('unauthenticated')");
    browser.keys("#key", "a-key-that-alice-has\t");
    browser.until("document.getElementById('model-a').options.length == 1");
    browser.click("#go");
    browser.until("document.getElementById('status').textContent == 'Done.'");
    let dark = browser.evaluate("getComputedStyle(document.body).backgroundColor");
    assert_eq!(dark, "rgb(22, 24, 27)");
    browser.picture("playground-dark.png");
    // The other tab shows that no model fits it.
    browser.click("#tab-summarize");
    assert_eq!(browser.evaluate("document.getElementById('no-readers').hidden"), false);
    browser.picture("playground-summary-dark.png");
}
