//! The playground in headless Chromium, controlled through WebDriver (W3C). The tests are skipped with a message if it is not
//! installed, unless `WEIR_REQUIRE_BROWSER=1`. `WEIR_SCREENSHOTS=FOLDER` saves screenshots there.

use crate::{process::Program, *};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use std::{io::BufRead as _, net::TcpStream};

/// Key codes of WebDriver.
const RIGHT: &str = "\u{e014}";

const HOME: &str = "\u{e011}";
const END: &str = "\u{e010}";

/// Keys that start a run of the playground: Control and Enter.
const START: &str = "\u{e009}\u{e006}";

const ESCAPE: &str = "\u{e00c}";

/// Script that returns whether a completion is done.
const DONE: &str = "at('status').textContent == 'Done.'";

/// Script that returns whether the page has both models of [`two_models`].
const SERVED: &str = "at('model-a').options.length == 2";

const IDLE: &str = "!generation.stopping";

/// A browser with one page, which may be a server's.
struct Browser {
    port: SocketAddr,
    session: String,
    _driver: Program,
    server: Option<Server>,
}

impl Browser {
    /// Starts a browser. Returns `None` if none is installed.
    fn start() -> Option<Self> {
        let required = std::env::var_os("WEIR_REQUIRE_BROWSER").is_some_and(|value| value == "1");
        if !Path::new("/usr/bin/chromedriver").is_file() {
            assert!(!required, "chromedriver is required, and not installed");
            eprintln!("skipped: chromedriver is not installed");
            return None;
        }
        // it prints the port that it was given to stdout
        let driver = Program::start(Command::new("sh").args(["-c", "exec /usr/bin/chromedriver --port=0 >&2"]));
        let port = driver.wait_for_line("ChromeDriver was started successfully on port ");
        let port = SocketAddr::from(([127, 0, 0, 1], port.trim_end_matches('.').parse().unwrap()));
        let mut browser = Self { port, session: String::new(), _driver: driver, server: None };
        let args =
            ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1200,1000"];
        let wanted = json!({ "browserName": "chrome", "goog:chromeOptions": { "args": args },
            "goog:loggingPrefs": { "browser": "ALL" } });
        let session = browser.ask("POST", "/session", &json!({ "capabilities": { "alwaysMatch": wanted } }));
        session["sessionId"].as_str().unwrap().clone_into(&mut browser.session);
        Some(browser)
    }

    /// Opens the page of a server of these models. `flags` are the server's, and `link` ends the URL.
    fn playground(models: &[PathBuf], flags: &[&str], link: &str) -> Option<Self> {
        let mut browser = Self::start()?;
        browser.server = Some(Server::of(models, flags));
        browser.open(&format!("{}{link}", browser.url()));
        Some(browser)
    }

    fn url(&self) -> String {
        format!("http://{}/", self.server.as_ref().unwrap().http())
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

    fn count(&self, selector: &str) -> Value {
        self.evaluate(&format!("document.querySelectorAll({}).length", json!(selector)))
    }

    fn value(&self, id: &str) -> Value {
        self.evaluate(&format!("at('{id}').value"))
    }

    /// Sets the value of an input to the value of a script.
    fn set(&self, id: &str, script: &str) {
        self.evaluate(&format!("(at('{id}').value = {script}, null)"));
    }

    /// Waits until the text of an element begins with `text`.
    fn says(&self, id: &str, text: &str) {
        self.until(&format!("at('{id}').textContent.startsWith({})", json!(text)));
    }

    /// Waits until a script returns true.
    fn until(&self, script: &str) {
        let end = Instant::now() + TIMEOUT;
        while self.evaluate(script) != true {
            assert!(Instant::now() < end, "never: {script}; the page says {:?}", self.text("#status"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Gives the page this width and asserts that nothing is wider.
    fn assert_fits(&self, width: u32) {
        self.set_width(width);
        let overflow = self.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth");
        assert!(overflow.as_i64() <= Some(0), "something is wider than {width} pixels, by {overflow}");
    }

    /// Gives the page this width in CSS pixels.
    fn set_width(&self, width: u32) {
        let params = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        let command = json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": params });
        self.page_command("POST", "/goog/cdp/execute", &command);
    }

    /// Shows the page in this theme, as the system's setting would.
    fn set_theme(&self, theme: &str) {
        let params = json!({ "features": [{ "name": "prefers-color-scheme", "value": theme }] });
        let command = json!({ "cmd": "Emulation.setEmulatedMedia", "params": params });
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
            fs::write(Path::new(&folder).join(format!("{name}.png")), bytes).unwrap();
        }
    }

    /// Asserts that the page's log has no severe entries (policy violations and failed scripts), or only entries of this status.
    fn check_log(&self, status: &str) {
        let log = self.page_command("POST", "/se/log", &json!({ "type": "browser" }));
        let expected = |entry: &Value| !status.is_empty() && entry["message"].as_str().unwrap().contains(status);
        assert!(log.as_array().unwrap().iter().all(|entry| entry["level"] != "SEVERE" || expected(entry)), "{log}");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.page_command("DELETE", "", &Value::Null);
        }
    }
}

/// The link to the panel that generates.
const RACE: &str = "#tab=race";

/// Opens the page of a pooled and an unpooled model.
fn two_models(link: &str) -> Option<Browser> {
    let browser = Browser::playground(&[converted("whitespaces"), converted("vanilla")], &[], link)?;
    browser.until(SERVED);
    Some(browser)
}

/// Opens the page of a model that summarizes.
fn reader(more: &[PathBuf]) -> Option<(TempDir, Browser)> {
    let folder = TempDir::new().unwrap();
    let model = PathBuf::from(write_random_model(folder.path()));
    let browser = Browser::playground(&[&[model], more].concat(), &[], "")?;
    browser.until("at('summary-model').options.length == 1");
    Some((folder, browser))
}

/// Opens the page of a model that completes.
fn writer(flags: &[&str], link: &str) -> Option<Browser> {
    Browser::playground(&[converted("whitespaces")], flags, link)
}

/// Starts both models' run of `characters` and waits for its end.
fn compare(browser: &Browser, characters: u32) {
    browser.until("at('model-a').options.length == 2");
    browser.set("model-a", "'whitespaces'");
    browser.set("model-b", "'vanilla'");
    browser.set("max", &characters.to_string());
    browser.click("#go");
    browser.until(DONE);
}

/// The prompt of the tests that count characters.
const PROMPT: &str = "the history of the ";

#[test]
fn the_playground_generates_and_shows_details() {
    let Some(browser) = two_models(RACE) else { return };
    assert_eq!(browser.value("model-b"), "vanilla", "the page races against the model that does not pool");
    browser.set("prompt", &json!(PROMPT).to_string());
    compare(&browser, 300);
    assert_eq!(browser.evaluate("at('sampling').open"), false, "the answer takes the place of the settings");
    browser.evaluate("document.querySelectorAll('#panels details').forEach(details => details.open = true), null");
    browser.until("document.querySelectorAll('#panels svg text').length > 8");
    // Both models show the prompt and 300 characters, and a dot for each observed gap.
    for panel in [1, 2] {
        let panel_element =
            |what: &str| browser.evaluate(&format!("document.querySelector('#panels > :nth-child({panel}) {what}"));
        assert_eq!(panel_element(".text').textContent.length"), 319);
        let dots = ".reduce((sum, path) => sum + path.getAttribute('d').split('M').length - 1, 0)";
        let plotted =
            browser.evaluate(&format!("[...document.querySelectorAll('#panels > :nth-child({panel}) .dots')]{dots}"));
        let plotted = plotted.as_u64().unwrap();
        let together = panel_element("dl').lastElementChild.lastElementChild.textContent");
        assert_eq!(plotted + together.as_str().unwrap().parse::<u64>().unwrap(), 299);
    }
    // Both plots have one scale, and words say which model is faster.
    let scales = browser.evaluate(
        "[...document.querySelectorAll('#panels svg')].map(svg => [...svg.querySelectorAll('text')].map(text => text.textContent).join())",
    );
    assert_eq!(scales[0], scales[1]);
    let words = browser.text("#verdict .words");
    assert!(words.contains("as many characters a second"), "{words}");
    let facts = browser.text("#facts");
    assert!(facts.contains("whitespaces") && facts.contains(" parameters · f32 · up to "), "{facts}");
    // Segments of the pooled model end with spaces, where the colour changes.
    let ends = browser.evaluate(
        "[...document.querySelectorAll('#panels .panel:first-child .ends')].map(end => end.textContent).join('')",
    );
    assert!(ends.as_str().unwrap().chars().all(|end| end == ' ') && !ends.as_str().unwrap().is_empty(), "{ends}");
    let colours = browser.evaluate(
        "[...document.querySelectorAll('#panels .panel:first-child .text span')].slice(3, 5).map(element => element.className[1])",
    );
    assert_eq!(colours, json!(["0", "1"]));
    assert_eq!(browser.count("#panels > :nth-child(2) .ends"), 0);
    // The keyboard selects the second character.
    browser.click(".text");
    browser.keys(".text", HOME);
    browser.keys(".text", RIGHT);
    let about = browser.text("#panels .about");
    assert!(about.starts_with("\"h\" · log-probability -") && about.contains("within a segment"), "{about}");
    browser.picture("playground");
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
    browser.assert_fits(420);
    let places = browser.evaluate(
        "['.lead', '#verdict', '#panels .text', '#form']
            .map(part => document.querySelector(`#racing ${part}`).getBoundingClientRect().top)",
    );
    let places: Vec<_> = places.as_array().unwrap().iter().map(|place| place.as_f64().unwrap()).collect();
    assert!(places.is_sorted(), "the answer comes before the form: {places:?}");
    browser.picture("playground-narrow");
}

/// Colours are chunks of the second level, shades chunks of the first.
#[test]
fn the_playground_shades_nested_chunks() {
    let models = [checkpoint("hnet", "two_stage")];
    let Some(browser) = Browser::playground(&models, &[], RACE) else { return };
    browser.until("at('model-a').options.length == 1");
    browser.set("max", "60");
    let prompt = "Chunks of été, 東京, begin where bytes differ.";
    browser.set("prompt", &json!(prompt).to_string());
    browser.click("#go");
    browser.until(DONE);
    // a byte shows its character, and the text is copied as it is
    let text = "document.querySelector('#panels .text').textContent";
    assert_eq!(browser.evaluate(&format!("{text}.slice(0, {})", prompt.chars().count())), prompt);
    browser.evaluate("window.copy = async text => { window.copied = text; }, null");
    browser.click("#panels .title button");
    assert_eq!(browser.evaluate(&format!("window.copied === {text} && !{text}.includes('\\\\x')")), true);
    let words = r#"[['bytes:\\xc3', 'é'], ['bytes:\\xe2\\x80'], ['a', 'a']].map(([token, letters]) => symbolWords(token, letters))"#;
    assert_eq!(browser.evaluate(words), json!(["byte C3 of \"é\"", "bytes E2 80", "\"a\""]));
    // the depth of each character as its classes show it, with colour and shade
    let characters = || {
        let shown = browser.evaluate(
            "[...document.querySelectorAll('#panels .text span')].map(span => [
                span.classList.contains('d2') ? 2 : span.classList.contains('d1') ? 1 : 0, span.className.split(' ')[0],
                span.className.split(' ')[1], getComputedStyle(span).backgroundColor])",
        );
        shown.as_array().unwrap().clone()
    };
    let shown = characters();
    assert!(shown.len() > 60, "{shown:?}");
    let count = |depth| shown.iter().filter(|character| character[0].as_u64().unwrap() >= depth).count();
    assert!(count(1) > count(2) && count(2) > 1, "{shown:?}");
    for theme in ["light", "dark"] {
        browser.set_theme(theme);
        for pair in characters().windows(2) {
            let [before, after] = pair else { panic!() };
            assert_eq!(before[1] != after[1], after[0] == 2, "the colour changes with a segment of level 2: {pair:?}");
            assert_eq!(before[2] != after[2], after[0].as_u64() > Some(0), "the shade with any chunk: {pair:?}");
            assert_eq!(before[3] != after[3], after[0].as_u64() > Some(0), "and so what is seen: {pair:?}");
        }
    }
    let figures = browser.text("#panels dl");
    assert!(figures.contains(&format!("{} · {}", count(1), count(2))), "{figures}");
    let key = browser.text("#panels .levels");
    assert!(key.contains("a segment of level 1 begins") && key.contains("a segment of level 2 begins"), "{key}");
    browser.click(".text");
    browser.keys(".text", HOME);
    assert!(browser.text("#panels .about").contains("begins a segment of levels 1 to 2"));
    browser.picture("playground-chunks");
    browser.check_log("");
}

#[test]
fn the_playground_keeps_settings_in_links_and_texts_in_a_history() {
    let Some(browser) = two_models(RACE) else { return };
    browser.click("#prompts button");
    browser.set("top-p", "'0.5'");
    compare(&browser, 9);
    browser.set("stop-strings", "'zq\\\\n\\n&x'");
    let text = browser.text("#panels .text");
    browser.click("#sampling summary");
    browser.click("#link");
    browser.until("at('status').textContent.includes('the prompt and the settings')");
    let link = browser.evaluate("location.href");
    // The link fills the same settings in another page, and the history shows the text again.
    browser.open("about:blank");
    browser.open(link.as_str().unwrap());
    browser.until("at('model-b').value == 'vanilla'");
    let settings = "['prompt', 'model-a', 'max', 'top-p', 'seed', 'stop-strings'].map(id => at(id).value)";
    assert_eq!(
        browser.evaluate(settings),
        json!(["The President of the United States ", "whitespaces", "9", "0.5", "1", "zq\\n\n&x"])
    );
    assert_eq!(browser.evaluate("stopStrings()"), json!(["zq\n", "&x"]));
    // The form keeps its spaces, and an expression may begin with ` {2}`.
    let schema = " {\"type\": \"null\"}";
    for (form, expected) in
        [(" {2}a ", json!({ "regex": " {2}a " })), (schema, json!({ "json": schema })), ("", Value::Null)]
    {
        browser.set("text-form", &json!(form).to_string());
        assert_eq!(browser.evaluate("textForm()"), expected);
    }
    browser.click("#history summary");
    browser.click("#runs button");
    browser.until("document.querySelectorAll('#panels .text').length == 2");
    assert_eq!(browser.text("#panels .text"), text);
    // A link can name a model that is not served.
    browser.open("about:blank");
    browser.open(&format!("{}#tab=generate&model=gone&temperature=0.2", browser.url()));
    browser.until("!at('link-problem').hidden");
    let problem = "This server does not have the model gone: the page uses whitespaces.";
    assert_eq!(browser.text("#link-problem"), problem);
    assert_eq!(browser.evaluate("['temperature', 'model-a'].map(id => at(id).value)"), json!(["0.2", "whitespaces"]));
    // The history has at most 20 texts, and can be deleted.
    browser.evaluate("writeHistory(Array(30).fill(readHistory()[0])), null");
    assert_eq!(browser.evaluate("readHistory().length"), 20);
    browser.click("#history summary");
    browser.click("#forget");
    assert_eq!(browser.evaluate("[readHistory().length, document.querySelectorAll('#runs li').length]"), json!([0, 0]));
    browser.check_log("");
}

#[test]
fn the_playground_can_be_stopped_and_shows_errors() {
    let Some(mut browser) = two_models(RACE) else { return };
    // The keyboard alone can start and stop a run.
    browser.set("max", "1900");
    browser.keys("#prompt", START);
    browser.until("document.querySelectorAll('.text span').length > 30");
    browser.keys("#prompt", ESCAPE);
    browser.until("['Stopped.', 'Done.'].includes(at('status').textContent)");
    // A second request during a run is ignored, and the run can be stopped.
    browser.evaluate(
        "window.calls = 0, window.asks = window.fetch, window.fetch = (_, { signal, body = '{}' }) => new Promise((_, refuse) => {
            // The editor may still ask for its ghost text, and which words are misspelt.
            window.calls += JSON.parse(body).echo ? 1 : 0;
            signal.addEventListener('abort', () => refuse(signal.reason));
        }), null",
    );
    browser.keys("#prompt", START);
    browser.keys("#prompt", START);
    assert_eq!(browser.evaluate("window.calls"), 1);
    browser.keys("#prompt", ESCAPE);
    browser.says("status", "Stopped.");
    browser.answer_no_more();
    // An invalid option shows an error, and its input is marked.
    browser.set("max", "1000000000");
    browser.click("#go");
    browser.says("status", "Characters: enter a whole number from 0 to ");
    assert_eq!(browser.evaluate("document.querySelector('[aria-invalid]').id"), "max");
    browser.set("max", "300");
    // The log contains only the server's refusal.
    browser.check_log("400");
    // Other failures have words of the page.
    let refusal = |status: u32, rest: &str| {
        format!("new Response('{{\"error\": {{\"message\": \"m\"}}}}', {{ status: {status}, {rest} }})")
    };
    let lists = r#"{"tokens": ["a", "<img src=x>"], "text_offset": [0, 1], "token_logprobs": [], "boundaries": [], "boundary_probabilities": [], "top_logprobs": []}"#;
    let failing = r#"new Response('data: {"error": {"message": "m", "type": "server_error"}}\n\n')"#.to_owned();
    let cut = format!(r#"new Response('data: {{"choices": [{{"text": "a<img src=x>", "logprobs": {lists}}}]}}\n\n')"#);
    for (response, words) in [
        (
            refusal(429, "headers: { 'retry-after': '2' }"),
            "The server is busy and takes no more requests now. Try again in 2 seconds.",
        ),
        (refusal(503, ""), "The server takes no requests now: it is starting, stopping or full. Try again later."),
        (refusal(500, ""), "The server failed: m."),
        ("new Response('<html>', { status: 502 })".into(), "The server answered with status 502 and no reason."),
        (failing, "The server ended the text early: m."),
        (cut, "The connection to the server broke. The text is incomplete."),
    ] {
        browser.answer_with(&response);
        browser.keys("#prompt", START);
        browser.until(&format!("at('status').textContent == {}", json!(words)));
    }
    // Whatever a model writes is text.
    assert_eq!(browser.text("#panels .text"), "a<img src=x>");
    assert_eq!(browser.count("img"), 0);
    browser.answer_no_more();
    let server = browser.server.as_mut().unwrap();
    server.program.signal("KILL");
    server.program.wait();
    browser.keys("#prompt", START);
    browser.says("status", "No server answers at 127.0.0.1");
}

/// Writes a file of keys.
fn keys(folder: &TempDir) -> String {
    let keys = folder.path().join("keys");
    fs::write(&keys, "alice:a-key-that-alice-has\n").unwrap();
    keys.to_str().unwrap().to_owned()
}

/// Asserts that neither the page's link nor its storage has the key.
fn assert_key_is_not_stored(browser: &Browser) {
    let stored = browser.evaluate("JSON.stringify(localStorage) + location.href");
    assert!(!stored.as_str().unwrap().contains("alice"), "{stored}");
}

#[test]
fn the_playground_asks_for_a_key_and_has_a_dark_theme() {
    let folder = TempDir::new().unwrap();
    let Some(browser) = writer(&["--api-keys", &keys(&folder)], "") else { return };
    browser.says("edit-status", "This server needs an API key");
    browser.keys("#key", "another\t");
    browser.says("edit-status", "The server does not accept this API key");
    browser.set("key", "''");
    browser.keys("#key", "a-key-that-alice-has\t");
    browser.until("at('model-a').options.length == 1");
    browser.click("#tab-race");
    browser.click("#go");
    browser.until(DONE);
    browser.click("#sampling summary");
    browser.click("#link");
    assert_key_is_not_stored(&browser);
    browser.set_theme("dark");
    let dark = browser.evaluate("getComputedStyle(document.body).backgroundColor");
    assert_eq!(dark, "rgb(17, 20, 23)");
    browser.picture("playground");
    // The other tab shows that no model fits it.
    browser.click("#tab-summarize");
    let shown =
        "['summary-form', 'form'].map(id => [at(id).hidden, document.querySelector(`:has(> #${id}) > .needs`).hidden])";
    assert_eq!(browser.evaluate(shown), json!([[true, false], [false, false]]));
    // One model generates without a rival.
    assert_eq!(browser.evaluate("[at('go').textContent, at('model-b').checkVisibility()]"), json!(["Generate", false]));
    browser.picture("playground-summary");
}

#[test]
fn links_are_applied_once_and_hold_whole_prompts() {
    let Some(browser) = two_models(RACE) else { return };
    // What the user writes after copying a link stays when the page reads the models again.
    browser.set("prompt", "'first'");
    browser.click("#link");
    browser.until("location.hash.includes('prompt=first')");
    browser.set("prompt", "'later'");
    browser.evaluate("chosen().run(models), null");
    browser.until(IDLE);
    assert_eq!(browser.value("prompt"), "later");
    // A link without the whole prompt is not made.
    browser.set("prompt", "'a'.repeat(20001)");
    browser.click("#link");
    browser.says("status", "The prompt has 20,001 characters: links hold at most 20,000.");
    assert!(browser.evaluate("location.hash").as_str().unwrap().contains("prompt=first"));
    browser.evaluate("location.hash = 'tab=generate&seed=5&prompt=' + 'b'.repeat(20002), null");
    browser.until("!at('link-problem').hidden");
    assert_eq!(browser.text("#link-problem"), "The link's prompt has 20,002 characters: links hold at most 20,000.");
    assert_eq!(browser.evaluate("['prompt', 'seed'].map(id => at(id).value.length)"), json!([20001, 1]));
    // The next link has no problem.
    browser.evaluate("location.hash = 'tab=generate&seed=7', null");
    browser.until("at('link-problem').hidden && at('seed').value == '7'");
}

#[test]
fn inputs_in_closed_sections_are_shown_if_they_are_refused() {
    let link = "#tab=generate&temperature=200&max_tokens=3&seed=17657090610222322651";
    let Some(browser) = two_models(link) else { return };
    browser.until("at('temperature').value == '200'");
    browser.evaluate("at('sampling').open = false, null");
    browser.click("#go");
    let refused = "Temperature: enter a number from 0 to 100, or nothing for the model's default.";
    browser.says("status", refused);
    assert_eq!(browser.evaluate("at('sampling').open"), true);
    let marks = "['aria-invalid', 'aria-describedby'].map(name => at('temperature').getAttribute(name))";
    assert_eq!(browser.evaluate(marks), json!(["true", "status"]));
    // Half of a number is not an empty field.
    browser.set("temperature", "''");
    browser.keys("#temperature", "e");
    browser.evaluate("at('status').textContent = ''");
    browser.click("#go");
    browser.says("status", refused);
    // Seeds have 64 bits.
    browser.set("temperature", "''");
    browser.evaluate(
        "window.bodies = [], window.asks = window.fetch, window.fetch = (path, options) => {
            const body = path === '/v1/completions' ? JSON.parse(options.body) : {};
            // The editor may still ask for its ghost text.
            if (body.max_tokens === 3) window.bodies.push(body);
            return window.asks(path, options);
        }, null",
    );
    browser.click("#go");
    browser.until(DONE);
    let seeds = browser.evaluate("window.bodies.map(body => body.seed)");
    assert_eq!(seeds, json!(["17657090610222322651", "17657090610222322651"]));
    assert_eq!(browser.evaluate(marks), json!([null, null]));
    browser.answer_no_more();
    browser.set("key", "'schlüssel'");
    browser.evaluate("chosen().run(models), null");
    browser.says("status", "An API key has ASCII characters only. Check the field in the menu.");
    browser.set("key", "''");
}

#[test]
fn the_history_keeps_other_runs_and_waits_for_the_running_one() {
    let Some(browser) = two_models(RACE) else { return };
    browser.set("max", "3");
    for runs in 1..=2 {
        browser.click("#go");
        browser.until(&format!("{IDLE} && readHistory().length == {runs}"));
    }
    // The prompt is stored once for each model, and not a second time with the settings.
    assert_eq!(browser.evaluate("readHistory().map(run => run.settings.includes('prompt'))"), json!([false, false]));
    // A long run leaves the others.
    let long = "remember(readSettings('tab-race'),
        [{ model: 'm', promptTokens: 0, characters: [{ text: 'x'.repeat(60000) }], speed: () => 1 }])";
    let words = browser.evaluate(long);
    let words = words.as_str().unwrap();
    assert!(
        words.starts_with(" The history does not keep this run of 60,") && words.ends_with("limit is 50,000."),
        "{words}"
    );
    assert_eq!(browser.evaluate("readHistory().length"), 2);
    // Another tab has added a run: the button deletes its own.
    browser.evaluate(
        "localStorage.setItem(HISTORY, JSON.stringify([{ ...readHistory()[0], at: 'new' }, ...readHistory()])), null",
    );
    let kept = browser.evaluate("['new', readHistory()[2].at]");
    browser.click("#history summary");
    browser.click("#runs li button:last-child");
    assert_eq!(browser.evaluate("readHistory().map(run => run.at)"), kept);
    // A prompt that no link holds comes back.
    browser.evaluate("writeHistory(readHistory().map(run => ({ ...run, results: [{ ...run.results[0], prompt: 'y'.repeat(21000) }] }))), null");
    browser.click("#runs button");
    assert_eq!(browser.evaluate("at('prompt').value.length"), 21000);
    // A running completion stays on the page.
    browser.evaluate(
        "window.asks = window.fetch, window.fetch = (_, { signal }) => new Promise((_, refuse) => {
            signal.addEventListener('abort', () => refuse(signal.reason));
        }), null",
    );
    browser.keys("#prompt", START);
    browser.click("#runs button");
    browser.says("status", "Stop the run first.");
    browser.keys("#prompt", ESCAPE);
    browser.says("status", "Stopped.");
    // Two completions, one of which came in one message.
    let verdict = browser.evaluate(
        "verdictOf([['a', NaN], ['b', 5]].map(([model, speed]) => ({ model, speed: () => speed, textCharacters: 50 })))",
    );
    assert_eq!(verdict, "No comparison: the characters of a came in one message, so their speed is unknown.");
    // Parts of a document that end within a character.
    let document = "(() => {
        const view = new DocumentView('\\ufeffé');
        view.layers = [{ layer: 1, spans: [{ byte_start: 0, byte_end: 4 }], tokens: 1 }];
        view.render(1);
        return at('read').textContent;
    })()";
    assert_eq!(browser.evaluate(document), "\u{feff}é");
    browser.check_log("");
}

/// Replaces the page's requests: `send` sends an event of a response, and stopping the request breaks it.
const STREAM: &str = "window.asks = window.asks || window.fetch, window.fetch = async (_, { signal }) => new Response(new ReadableStream({
    start(stream) {
        window.send = event => stream.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(event)}\n\n`));
        signal.addEventListener('abort', () => stream.error(signal.reason));
    },
})), null";

/// Script that returns what the page shows of a document: its parts with their texts, the bar's parts with their shares in percent, the
/// names of the parts with their swatches, and the bar's accessible properties.
const SHOWN: &str = "({
    text: [...document.querySelectorAll('#read > .cut, #read > span > *')].filter(part => part.textContent)
        .map(part => [part.className, part.textContent]),
    bar: [...document.querySelectorAll('#bar rect')].map(part => [part.getAttribute('class').slice('part-'.length),
        Number(part.getAttribute('width')) / 10]),
    shares: [...document.querySelectorAll('#shares li')].map(share => share.textContent),
    role: at('bar').role,
    label: at('bar').ariaLabel,
    value: at('bar').ariaValueNow,
    words: at('bar').ariaValueText,
})";

/// Starts a summary of a text whose response the test sends.
fn start(browser: &Browser, text: &str) {
    browser.set("document", &json!(text).to_string());
    browser.evaluate("delete window.send, null");
    browser.evaluate(STREAM);
    browser.keys("#document", START);
    browser.until("window.send !== undefined");
}

/// Sends an event, waits until the status begins with `status`, and returns what the page then shows.
fn sent(browser: &Browser, event: &Value, status: &str) -> Value {
    browser.evaluate(&format!("window.send({event}), null"));
    shown(browser, status)
}

/// Waits until the status begins with `status`, and returns what the page shows once it has drawn all changes.
fn shown(browser: &Browser, status: &str) -> Value {
    let status = json!(status);
    browser.until(&format!("at('summary-status').textContent.startsWith({status})"));
    browser.evaluate(&format!(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done({SHOWN}))))"
    ))
}

fn progress(encoded: u32, total: Option<u32>, document_bytes: u32, cut: bool) -> Value {
    let stage = if Some(encoded) == total { "done" } else { "layer" };
    json!({ "progress": { "stage": stage, "layer": 0, "tokens_read": document_bytes, "blocks_encoded": encoded, "blocks_total": total,
        "document_bytes": document_bytes, "cut": cut } })
}

#[test]
fn the_playground_summarizes() {
    let Some((folder, browser)) = reader(&[converted("whitespaces")]) else { return };
    // Each tab lists only its kind of models.
    assert_eq!(browser.evaluate("at('model-a').options.length"), 1);
    // The keyboard switches to the other tab.
    browser.keys("#tab-race", RIGHT);
    browser.until("at('racing').hidden && !at('summarizing').hidden");
    assert_eq!(browser.evaluate("document.activeElement.id"), "tab-summarize");
    // The server refuses an empty document, after its first event. The page shows the reason at the document, and no empty result.
    browser.set("document", "''");
    browser.click("#summary-go");
    browser.until("document.querySelector('#summary-status.error') !== null");
    assert_eq!(browser.text("#summary-status"), "Document: enter a text, or choose a file.");
    assert_eq!(browser.evaluate("document.querySelector('[aria-invalid]').id"), "document");
    assert_eq!(browser.evaluate("at('results').hidden"), true);
    // The document comes from a file.
    let file = folder.path().join("document.txt");
    let text = "the café is pooling, the rest is going.";
    fs::write(&file, text).unwrap();
    browser.keys("#file", file.to_str().unwrap());
    browser.until("at('document').value.length > 0");
    browser.click("#summary-options summary");
    browser.set("min-tokens", "5");
    browser.set("max-tokens", "9");
    browser.click("#summary-go");
    let done = "at('summary-status').textContent == 'Done.'";
    browser.until(done);
    assert_eq!(browser.text("#read"), text, "the whole document is shown, whatever was kept of it");
    assert!(!browser.text("#summary").is_empty());
    let shares = browser.text("#shares");
    assert!(!shares.contains("not read"), "{shares}");
    assert_eq!(browser.evaluate("at('bar').role"), "img");
    // Each pooling keeps a part of the spans that the previous pooling kept.
    let kept = "[...document.querySelectorAll('#read mark')].map(mark => mark.textContent).join('').length";
    let layers = browser.count("#layers input").as_u64().unwrap();
    assert!(layers >= 1);
    let mut before = u64::MAX;
    for layer in 1..=layers {
        browser.click(&format!("#layers label:nth-of-type({layer}) input"));
        // the page draws in its next frame, before this one's callback
        browser.evaluate("(window.drawn = false, requestAnimationFrame(() => { window.drawn = true; }))");
        browser.until("window.drawn");
        let now = browser.evaluate(kept).as_u64().unwrap();
        assert!(now > 0 && now <= before, "layer {layer} keeps {now} of {before}");
        before = now;
    }
    browser.picture("playground-summary");
    // A document of a hundred times the limit: the page shows that nearly nothing was read.
    browser.set("document", "'the rest is '.repeat(600)");
    browser.keys("#document", START);
    browser.until(&format!("{done} && document.querySelector('.cut').textContent != ''"));
    assert_eq!(browser.evaluate("at('read').textContent.length"), 7200);
    let cut = browser.evaluate("document.querySelector('.cut').textContent.length").as_f64().unwrap();
    // A part of less than half a percent is "under 1 %", and counts as nothing.
    let shares = browser.text("#shares").replace("under 1 %", "0 %");
    let shares: Vec<f64> = shares.split(" %").filter_map(|part| part.rsplit(' ').next()?.parse().ok()).collect();
    assert_eq!(shares.iter().sum::<f64>(), 100.0, "{shares:?}");
    assert!((shares[shares.len() - 1] - cut / 72.0).abs() < 1.0, "{cut} of {shares:?}");
    assert!(cut > 7000.0 && cut < 7200.0, "{cut}");
    let drawn = browser.evaluate("Number(document.querySelector('#bar .part-cut').getAttribute('width'))");
    assert!((drawn.as_f64().unwrap() - cut / 7.2).abs() < 0.01, "{drawn}");
    browser.assert_fits(420);
    browser.picture("playground-summary-narrow");
    // An invalid option shows an error.
    browser.set("max-tokens", "1000000");
    browser.keys("#document", START);
    browser.says("summary-status", "Maximum tokens: enter a whole number from 1 to ");
    browser.check_log("400");
}

/// Returns the summed texts of the parts of a kind, and their share of the bar in percent.
fn part(shown: &Value, kind: &str) -> (String, f64) {
    let of_kind = |list: &str| -> Vec<Value> {
        let all = shown[list].as_array().unwrap().iter();
        all.filter(|part| part[0] == kind).map(|part| part[1].clone()).collect()
    };
    let text = of_kind("text").iter().map(|text| text.as_str().unwrap()).collect();
    (text, of_kind("bar").iter().map(|share| share.as_f64().unwrap()).sum())
}

/// Checks that the bar is as long as the document, and that its accessible properties have the same parts.
fn assert_consistent(shown: &Value) {
    let bar = shown["bar"].as_array().unwrap().iter();
    let whole: f64 = bar.map(|part| part[1].as_f64().unwrap()).sum();
    assert!((whole - 100.0).abs() < 1e-6, "{shown}");
    let shares: Vec<&str> = shown["shares"].as_array().unwrap().iter().map(|share| share.as_str().unwrap()).collect();
    let words = shares.join(", ");
    if shown["role"] == "progressbar" {
        assert_eq!(shown["words"], words.as_str());
        let value: f64 = shown["value"].as_str().unwrap().parse().unwrap();
        assert!((value - part(shown, "read").1).abs() < 0.01, "{shown}");
    } else {
        assert_eq!((&shown["role"], &shown["value"], &shown["words"]), (&json!("img"), &Value::Null, &Value::Null));
        assert!(shown["label"].as_str().unwrap().ends_with(&words), "{shown}");
    }
}

#[test]
fn the_page_marks_what_was_read_so_far() {
    let Some((_folder, browser)) = reader(&[]) else { return };
    browser.click("#tab-summarize");
    // 300 bytes, of which the model reads half
    let text = "aé".repeat(100);
    for end in ["stop", "error"] {
        start(&browser, &text);
        let none = shown(&browser, "Sending the document");
        assert_eq!(none["text"], json!([["ahead", text]]), "nothing is read");
        assert_consistent(&none);
        // the number of blocks, and the cut, are not known yet
        let early = sent(&browser, &progress(1, None, 90, false), "90 tokens received, 1 block encoded");
        assert_eq!((part(&early, "ahead"), &early["value"]), ((text.clone(), 100.0), &json!("0")));
        // 37 of 150 bytes: whole characters are marked
        let quarter = sent(&browser, &progress(1, Some(4), 150, true), "150 tokens received, 1 of 4 blocks");
        assert_consistent(&quarter);
        assert_eq!(part(&quarter, "read").0, "aé".repeat(12) + "a");
        assert!((part(&quarter, "read").1 - 37.0 / 3.0).abs() < 1e-6, "{quarter}");
        assert_eq!(part(&quarter, "cut"), ("aé".repeat(50), 50.0));
        assert_eq!(part(&quarter, "ahead").0, "é".to_owned() + &"aé".repeat(37));
        assert_eq!(quarter["shares"], json!(["read: 12 %", "not read yet: 38 %", "cut off, not read: 50 %"]));
        if end == "stop" {
            browser.picture("playground-summary-reading");
        }
        let half = sent(&browser, &progress(2, Some(4), 150, true), "150 tokens received, 2 of 4 blocks");
        assert_consistent(&half);
        assert_eq!(part(&half, "read"), ("aé".repeat(25), 25.0));
        let ended = if end == "stop" {
            browser.keys("#document", ESCAPE);
            shown(&browser, "Stopped.")
        } else {
            let error = json!({ "error": { "message": "m", "type": "server_error" } });
            sent(&browser, &error, "The server ended the text early: m.")
        };
        assert_consistent(&ended);
        assert_eq!(
            ended["text"],
            json!([["read", "aé".repeat(25)], ["unread", "aé".repeat(25)], ["cut", "aé".repeat(50)]])
        );
        assert_eq!(ended["shares"], json!(["read: 25 %", "not read: 25 %", "cut off, not read: 50 %"]));
        let lead = if end == "stop" { "Stopped" } else { "The request failed" };
        let outcome = format!("{lead} after the model had read 25 % of the document. It did not read the rest.");
        assert_eq!(browser.text("#outcome"), outcome);
        assert_eq!(browser.evaluate("at('results').hidden"), false);
    }
    // A run that is stopped at once has read nothing.
    start(&browser, &text);
    browser.keys("#document", ESCAPE);
    assert_eq!(shown(&browser, "Stopped.")["text"], json!([["unread", text]]));
    assert_eq!(browser.text("#outcome"), "Stopped before the model had read any of the document.");
    browser.check_log("");
}

#[test]
fn read_cut_and_dropped_parts_look_different() {
    let Some((_folder, browser)) = reader(&[]) else { return };
    browser.click("#tab-summarize");
    let text = "0123456789".repeat(100);
    start(&browser, &text);
    sent(&browser, &progress(1, Some(4), 10, true), "10 tokens received, 1 of 4 blocks");
    // A pooling has compared all that the model reads, and keeps two characters of it.
    let spans = [2, 7].map(|start| json!({ "byte_start": start, "byte_end": start + 1, "score": 1.0 }));
    let selected = json!({ "selected": { "layer": 0, "tokens": 2, "spans": spans } });
    let kept = sent(&browser, &selected, "10 tokens received");
    assert_consistent(&kept);
    let parts = [["dropped", "01"], ["kept", "2"], ["dropped", "3456"], ["kept", "7"], ["dropped", "89"]];
    assert_eq!(kept["text"].as_array().unwrap()[..5], parts.map(|part| json!(part)));
    assert_eq!(part(&kept, "cut"), (text[10..].to_owned(), 99.0));
    let shares = ["kept at layer 0: under 1 %", "read, not kept: 1 %", "cut off, not read: 99 %"];
    assert_eq!(kept["shares"], json!(shares));
    for theme in ["light", "dark"] {
        browser.set_theme(theme);
        let colours = browser.evaluate(
            "['mark', '.dropped', '.cut'].map(part => getComputedStyle(document.querySelector(`#read ${part}`)).backgroundColor)",
        );
        let colours = colours.as_array().unwrap();
        assert!(colours[0] != colours[1] && colours[1] != colours[2] && colours[2] != colours[0], "{colours:?}");
    }
    let usage = json!({ "document_tokens": 11, "cut": true, "document_bytes": 10 });
    let finished = json!({ "finished": { "reason": "end_of_text", "usage": usage, "timing": {} } });
    browser.evaluate(&format!("window.send({finished}), null"));
    browser.until("at('summary-figures').children.length > 0");
    assert_eq!(browser.evaluate(SHOWN)["bar"], kept["bar"], "the end changes nothing");
    browser.set_width(1280);
    browser.picture("playground-summary-cut");
    browser.assert_fits(420);
    browser.picture("playground-summary-cut-narrow");
}

/// Fills inputs, starts a run of a tab, whose ids have a prefix, waits for its end, and returns the status.
fn run(browser: &Browser, tab: &str, values: &[(&str, &str)]) -> String {
    for (id, value) in values {
        browser.set(id, &json!(value).to_string());
    }
    browser.evaluate(&format!("(showFacts(), at('{tab}go').click(), null)"));
    browser.until("!generation.stopping && !summary.stopping");
    browser.text(&format!("#{tab}status"))
}

/// Returns the id of the marked input.
fn marked(browser: &Browser) -> Value {
    browser.evaluate("[...document.querySelectorAll('[aria-invalid]')].map(input => input.id).join()")
}

#[test]
fn refused_settings_of_a_completion_have_the_pages_words() {
    let Some(browser) = two_models(RACE) else { return };
    let limit = browser.evaluate("shown(served.get('whitespaces').max_model_len, 0)");
    let limit = limit.as_str().unwrap();
    let length = format!("Characters: enter a whole number from 0 to {limit}.");
    let top_p = "Top-p: enter a number from 0 to 1, or nothing for the model's default.";
    let seed = "Seed: enter a whole number from 0 to 18,446,744,073,709,551,615, or nothing for a random one.";
    let long_prompt = format!("Prompt: too long. The server takes at most {limit} symbols");
    let usual =
        [("prompt", "the "), ("max", "5"), ("temperature", ""), ("top-p", ""), ("seed", "1"), ("stop-strings", "")];
    for (id, value, words) in [
        ("max", "", length.as_str()),
        ("max", "-1", &length),
        ("max", "1.5", &length),
        ("max", "1000000", &length),
        ("temperature", "-1", "Temperature: enter a number from 0 to 100, or nothing for the model's default."),
        ("top-p", "-0.1", top_p),
        ("top-p", "1.01", top_p),
        ("seed", "18446744073709551616", seed),
        ("stop-strings", &"a\n".repeat(17), "Stop strings: enter at most 16 lines, not 17."),
        ("stop-strings", &"a".repeat(257), "Stop strings: enter at most 256 characters a line, not 257."),
        // What only the server knows.
        ("prompt", "", "Prompt: enter a text that the model continues."),
        ("prompt", &"a".repeat(20_000), &long_prompt),
    ] {
        let status = run(&browser, "", &[&usual[..], &[(id, value)]].concat());
        assert!(status.starts_with(words), "{id} {value:.20}: {status}");
        assert_eq!(marked(&browser), id);
        assert_eq!(browser.evaluate("document.activeElement.id"), id);
        assert_eq!(browser.count("#panels > *"), 0, "an empty result stays");
        assert_eq!(browser.evaluate("at('hint').hidden"), true);
    }
    let status = run(&browser, "", &[&usual[..], &[("seed", "18446744073709551615")]].concat());
    assert_eq!((status.as_str(), marked(&browser)), ("Done.", json!("")));
    // A length that both models have.
    browser.evaluate("(at('model-b').value = 'vanilla', served.get('vanilla').max_model_len = 7, null)");
    let status = run(&browser, "", &[("max", "8")]);
    assert_eq!(status, "Characters: enter a whole number from 0 to 7.");
    // Rules that the page does not know.
    let words = |message: &str, code: &str, field: &str| {
        browser.evaluate(&format!("refusalWords({}, {field})", json!({ "message": message, "code": code })))
    };
    let prompt = "GENERATION_FIELDS.prompt";
    for (message, code, field, expected) in [
        (
            "prompt: expected symbols of the model's vocabulary, found 'é' at character 5",
            "unknown_symbol",
            prompt,
            "Prompt: the model has no symbol for 'é' (character 6).",
        ),
        (
            "max_tokens: expected 0 to 4096, found 9000",
            "bad_option",
            prompt,
            "Prompt: the server takes 0 to 4,096, not 9,000.",
        ),
        (
            "logprobs: expected 0 to 2, found 3",
            "bad_option",
            "undefined",
            "The server refused the request: logprobs: expected 0 to 2, found 3.",
        ),
    ] {
        assert_eq!(words(message, code, field), expected);
    }
}

#[test]
fn refused_settings_of_a_summary_have_the_pages_words() {
    let Some((_folder, browser)) = reader(&[]) else { return };
    browser.set("long-documents", "'refuse'");
    let longest = browser.evaluate("String([...served.values()][0].documents.max_summary_tokens)");
    let most = browser.evaluate("[...served.values()][0].documents.max_tokens");
    let longest = longest.as_str().unwrap();
    let facts = browser.text("#facts");
    assert!(facts.contains(&format!("documents of up to {most} tokens, plus the end token")), "{facts}");
    let usual = [("document", "the rest is"), ("beam", ""), ("min-tokens", ""), ("max-tokens", "3")];
    let minimum =
        format!("Minimum tokens: enter a whole number from 0 to {longest}, or nothing for the model's default.");
    let long = format!("Document: too long. The server takes at most {most} tokens");
    for (id, value, words) in [
        ("beam", "0", "Beam: enter a whole number of at least 1, or nothing for the model's default."),
        ("beam", "1000", "Beam: the server takes 1 to "),
        ("min-tokens", "1000", &minimum),
        ("min-tokens", "4", "Minimum tokens: the server takes 0 to 3, not 4."),
        ("document", &"the rest is ".repeat(600), &long),
    ] {
        let status = run(&browser, "summary-", &[&usual[..], &[(id, value)]].concat());
        assert!(status.starts_with(words), "{id} {value:.20}: {status}");
        assert_eq!((marked(&browser), browser.evaluate("at('results').hidden")), (json!(id), json!(true)));
    }
    // A document that is read to the limit: the figure is the one that the model's facts state.
    browser.set("long-documents", "'cut'");
    let text = "the rest is ".repeat(600);
    let whole = [&usual[..], &[("document", text.as_str())]].concat();
    assert_eq!(run(&browser, "summary-", &whole), "Done.");
    let figures = browser.text("#summary-figures");
    assert!(figures.contains(&format!("document tokens read{most}, the model's limit")), "{figures}");
    let percents = "[[4, 497, 499], [995, 5, 0], [1, 1, 1], [0, 9, 0], [29, 35, 37]].map(wholePercents)";
    let expected = json!([
        ["under 1 %", "50 %", "50 %"],
        ["over 99 %", "under 1 %", "0 %"],
        ["34 %", "33 %", "33 %"],
        ["0 %", "100 %", "0 %"],
        ["29 %", "35 %", "36 %"]
    ]);
    assert_eq!(browser.evaluate(percents), expected);
}

#[test]
fn changed_characters_of_a_prompt_are_counted() {
    let english = concat!(env!("CARGO_MANIFEST_DIR"), "/models/compared/hourglass-whitespace-english").into();
    let models = [english, converted("whitespaces")];
    let Some(browser) = Browser::playground(&models, &[], RACE) else { return };
    browser.until(SERVED);
    let usual =
        [("model-a", "hourglass-whitespace-english"), ("model-b", "hourglass-whitespace-english"), ("max", "300")];
    let prompt = |text| [&usual[..], &[("prompt", text)]].concat();
    assert_eq!(run(&browser, "", &prompt("The Old City ")), "Done.");
    let notes = "[...document.querySelectorAll('#panels .changed')].map(note => note.textContent)";
    let three = "3 characters of the prompt were replaced or dropped to fit the model's alphabet.";
    assert_eq!(browser.evaluate(notes), json!([three, three]));
    assert!(browser.text("#panels .text").starts_with("The Old City "), "the prompt is shown as it was sent");
    // The edges of segments at the ends of lines are within the text.
    for width in [420, 700, 1280] {
        browser.assert_fits(width);
        let bar = "[...document.querySelectorAll('#panels .text')].map(text => text.offsetHeight - text.clientHeight)";
        assert_eq!(browser.evaluate(bar), json!([2, 2]), "a horizontal scrollbar at {width} pixels");
    }
    run(&browser, "", &prompt("The old "));
    let one = "1 character of the prompt was replaced or dropped to fit the model's alphabet.";
    assert_eq!(browser.evaluate(notes), json!([one, one]));
    run(&browser, "", &prompt("the old "));
    assert_eq!(browser.evaluate(notes), json!(["", ""]));
    browser.check_log("");
}

const TAB: &str = "\u{e004}";
const ALT: &str = "\u{e00a}";
const DOWN: &str = "\u{e015}";
const CONNECTED: &str = "at('edit-status').textContent.startsWith('Connected')";
const GHOST: &str = "document.querySelector('.ghost') !== null && editor.asked.id === editor.work.id";
const SCORED: &str = "editor.pieces.length > 0 && editor.pieces.every(piece => piece.start + piece.read === piece.end) && editor.pieces.at(-1).end === editor.area.value.length";

/// Removes the text with which the editor opens, and lets the ghost text be the best completion alone.
fn empty_editor(browser: &Browser) {
    browser.until(CONNECTED);
    browser.evaluate(
        "(editor.extend = () => {}, editor.area.value = '', editor.area.dispatchEvent(new Event('input')), null)",
    );
}

fn value(browser: &Browser) -> String {
    browser.evaluate("editor.area.value").as_str().unwrap().to_owned()
}

/// Waits for completions, and returns their texts.
fn completions(browser: &Browser) -> Vec<String> {
    browser.until(GHOST);
    serde_json::from_value(browser.evaluate("editor.items.map(item => item.text)")).unwrap()
}

#[test]
fn the_editor_completes_what_is_typed() {
    let Some(browser) = writer(&[], "") else { return };
    empty_editor(&browser);
    browser.keys("#editor", "the history of the ci");
    let items = completions(&browser);
    assert_eq!((items.len(), browser.text(".ghost")), (3, items[0].clone()));
    let shown =
        browser.evaluate("[...document.querySelectorAll('#alternatives .words')].map(words => words.textContent)");
    assert_eq!(shown, json!(items.iter().map(|item| format!("ci{item}")).collect::<Vec<_>>()));
    assert_eq!(browser.evaluate("editor.times.length > 0"), true, "keystrokes are timed");
    // Tab does not replace selected text, which has no completions.
    let tab = "editor.area.dispatchEvent(new KeyboardEvent('keydown', { key: 'Tab', cancelable: true }))";
    let end = "editor.area.selectionEnd";
    let is_left = browser.evaluate(&format!("(editor.area.setSelectionRange(18, {end}), {tab})"));
    assert_eq!((is_left, value(&browser)), (json!(true), "the history of the ci".to_owned()));
    browser.until("editor.items.length === 0 && editor.asked.id === 0");
    browser.evaluate(&format!("(editor.area.setSelectionRange({end}, {end}), null)"));
    assert_eq!(completions(&browser), items);
    // Escape drops the completions, also for screen readers. Then Tab leaves the text.
    browser.says("edit-spoken", "Completion");
    browser.keys("#editor", ESCAPE);
    assert_eq!(browser.text("#edit-spoken"), "");
    assert_eq!(browser.count(".ghost, #alternatives button"), 0);
    browser.keys("#editor", TAB);
    assert_eq!(browser.evaluate("document.activeElement.id !== 'editor'"), true);
    assert_eq!(value(&browser), "the history of the ci");
    // Tab takes the ghost text.
    browser.keys("#editor", "t");
    let items = completions(&browser);
    browser.keys("#editor", TAB);
    let mut text = format!("the history of the cit{}", items[0]);
    assert_eq!((value(&browser), browser.evaluate("document.activeElement.id")), (text.clone(), json!("editor")));
    // Alt and an arrow choose another one, Alt and a number or a click take one.
    browser.keys("#editor", " ");
    text.push(' ');
    let items = completions(&browser);
    browser.keys("#editor", &format!("{ALT}{DOWN}"));
    assert_eq!(browser.text(".ghost"), items[1]);
    browser.keys("#editor", &format!("{ALT}3"));
    text.push_str(&items[2]);
    assert_eq!(value(&browser), text);
    browser.keys("#editor", " ");
    text.push(' ');
    let items = completions(&browser);
    browser.picture("playground-editor");
    browser.click("#alternatives button:nth-child(2)");
    text.push_str(&items[1]);
    assert_eq!(value(&browser), text);
    // The heat map is shown first, and shades another way.
    browser.until(SCORED);
    assert_ne!(browser.count("#mirror .h1, #mirror .h2, #mirror .h3"), 0);
    browser.click("#heat");
    assert_ne!(browser.count("#mirror [class^=s]"), 0);
    // Segments end with spaces, and the mirror has the same text.
    browser.keys("#editor", ESCAPE);
    let marks = browser
        .evaluate("[...document.querySelectorAll('#mirror .end-mark')].map(mark => mark.textContent.at(-1)).join('')");
    assert_eq!(marks, " ".repeat(text.matches(' ').count()));
    assert_eq!(browser.text("#mirror"), format!("{text}\u{200b}"));
    browser.keys("#editor", " a");
    browser.until(&format!("{GHOST} && {SCORED}"));
    browser.assert_fits(420);
    let heights = "[editor.mirror, editor.area].map(box => [box.scrollHeight, box.clientWidth])";
    let heights = browser.evaluate(heights);
    assert_eq!(heights[0], heights[1], "the lines of both wrap at the same places");
    browser.picture("playground-editor-narrow");
    browser.check_log("");
}

/// The editor connects at once, with another model, and still shows that the link's is not served.
#[test]
fn a_link_to_a_model_that_is_not_served_is_reported() {
    let Some(browser) = writer(&[], "#tab=edit&model=gone&until=never") else { return };
    browser.until(CONNECTED);
    let problem = "This server does not have the model gone: the page uses whitespaces.";
    assert_eq!(browser.text("#link-problem"), problem);
    assert_eq!(browser.value("edit-model"), "whitespaces");
    // A model that replaces none also has a sentence.
    browser.evaluate("location.hash = 'tab=generate&compare=other&model=whitespaces', null");
    browser.until("at('link-problem').textContent.includes('other')");
    assert_eq!(browser.text("#link-problem"), "This server does not have the model other.");
}

/// Replaces a part of the editor's text, as typing does.
fn change(browser: &Browser, start: u32, end: u32, text: &str) {
    let script = format!(
        "(editor.area.setRangeText({}, {start}, {end}, 'end'), editor.area.dispatchEvent(new Event('input')), null)",
        json!(text)
    );
    browser.evaluate(&script);
}

#[test]
fn the_editor_follows_any_change_and_opens_again() {
    let folder = TempDir::new().unwrap();
    let Some(browser) = writer(&["--api-keys", &keys(&folder)], "#tab=edit&until=segment") else { return };
    browser.says("edit-status", "This server needs an API key");
    browser.keys("#key", "a-key-that-alice-has\t");
    empty_editor(&browser);
    assert_eq!(browser.value("until"), "segment");
    // Changes anywhere, of characters that take one to four bytes.
    browser.keys("#editor", "one two");
    browser.keys("#editor", &format!("{HOME}zero "));
    assert_eq!(value(&browser), "zero one two");
    change(&browser, 5, 8, "é€😀");
    change(&browser, 7, 9, "😁");
    change(&browser, 0, 12, "the city and");
    browser.until(&format!("editor.session.text === editor.area.value && {SCORED}"));
    assert!(browser.evaluate(CONNECTED) == true, "{}", browser.text("#edit-status"));
    // Scores of an earlier text are not shown.
    browser.evaluate("(editor.session.answer = () => new Promise(resolve => (window.late = resolve)), null)");
    change(&browser, 0, 0, "a ");
    browser.until("window.late !== undefined");
    change(&browser, 0, 0, "a ");
    browser.evaluate("(editor.surprises.find = async () => (window.isFound = true), null)");
    browser.evaluate("(window.late({ scores: { characters: [{ logprob: -1 }], start_bytes: [0] } }), null)");
    assert_eq!(browser.evaluate("[editor.pieces.map(piece => piece.read), window.isFound]"), json!([[0], null]));
    browser.evaluate("(delete editor.surprises.find, null)");
    // The document opens again with its text when the connection ends.
    browser.evaluate("(window.before = editor.session, editor.work = null, editor.session.socket.close(), null)");
    browser.until(&format!("editor.session !== null && editor.session !== window.before && {CONNECTED}"));
    browser.keys("#editor", " x");
    browser.until("editor.session.text === editor.area.value && editor.session.revision === 2");
    browser.until("editor.work !== null && editor.work.id === editor.asked.id && editor.work.revision === 2");
    // Disconnecting ends it, and starting connects again.
    browser.evaluate("(at('edit-stop').click(), null)");
    browser.until("at('edit-status').textContent === 'Stopped.' && editor.session === null");
    browser.evaluate("(at('edit-go').click(), null)");
    browser.until(CONNECTED);
    assert_key_is_not_stored(&browser);
    // The log has only the refusal without a key.
    browser.check_log("401");
}

#[test]
fn the_editor_refuses_texts_that_are_too_long() {
    let Some(browser) = writer(&[], "#tab=edit") else { return };
    empty_editor(&browser);
    // Laying out megabytes without a space takes the browser many seconds.
    browser.evaluate("(document.querySelector('.editor').hidden = true, null)");
    // A text that the server refuses is shown as an error of the text, and a shorter one is taken.
    browser.evaluate("(editor.area.value = 'a'.repeat(1048577), editor.area.dispatchEvent(new Event('input')), null)");
    browser.until("document.querySelector('#edit-status.error') !== null");
    assert_eq!(
        browser.text("#edit-status"),
        "Text: too long. The server takes at most 1,048,576 bytes of text. Shorten it."
    );
    change(&browser, 0, 1_048_577, "a b");
    browser.until(&format!("{CONNECTED} && editor.session.text === 'a b'"));
    // A text that does not fit into one message is not sent again and again.
    browser.evaluate("(editor.area.value = 'a'.repeat(4200000), editor.area.dispatchEvent(new Event('input')), null)");
    browser.says("edit-status", "Text: too long for one message.");
    change(&browser, 0, 4_200_000, "a b");
    browser.until(&format!("{CONNECTED} && editor.session.text === 'a b'"));
}

/// The functions that find a change, and the characters that a model has read in place of others.
#[test]
fn changes_and_normalised_characters_are_found() {
    let Some(browser) = writer(&[], "") else { return };
    let wrong = browser.evaluate(
        "(() => {
            const letters = ['a', 'b', 'é', '😀', '😁', '\\n'];
            let state = 1;
            const draw = (limit) => (state = (state * 48271) % 2147483647) % limit;
            const text = () => Array.from({ length: draw(8) }, () => letters[draw(letters.length)]).join('');
            const inside = (whole, place) => isLow(whole.charCodeAt(place));
            for (let round = 0; round < 20000; round++) {
                const [before, after] = [text(), text()];
                const { start, end, text: added } = replacement(before, after);
                const done = before.slice(0, start) + added + before.slice(end);
                if (done !== after || inside(before, start) || inside(before, end)) return [before, after, start, end, added];
            }
            return null;
        })()",
    );
    assert_eq!(wrong, Value::Null);
    let parts = |text: &str, start: usize, offsets: &[usize]| {
        browser.evaluate(&format!(
            "readParts({}, {start}, {{ characters: {offsets:?}.map(() => ({{ logprob: -Math.LN2 }})), start_bytes: {offsets:?} }})
                .map(part => [part.length, part.bits])",
            json!(text)
        ))
    };
    assert_eq!(parts("A\nb", 7, &[7, 8, 9]), json!([[1, 1], [1, 1], [1, 1]]));
    // One character was read as three, and the next two were dropped.
    assert_eq!(parts("a1- b", 0, &[0, 1, 1, 1, 4]), json!([[1, 1], [3, 3], [1, 1]]));
    assert_eq!(parts("é😀", 0, &[0, 0, 2, 2, 2, 2]), json!([[1, 2], [2, 4]]));
    assert_eq!(parts("- a", 0, &[2]), json!([[2, null], [1, 1]]));
}

/// The model that the program contains.
fn english() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/models/hourglass-english").into()
}

#[test]
fn the_editor_underlines_surprising_words_and_offers_likelier_ones() {
    let Some(browser) = Browser::playground(&[english()], &[], "") else { return };
    // The page opens with a text that has typing errors.
    let likelier = |word: &str, other: &str| {
        browser.until(&format!(
            "editor.surprises.words.some(word => word.text === '{word}' && word.alternatives[0] === '{other}')"
        ));
    };
    let words = [
        ("Presidnet", "President"),
        ("goverment", "government"),
        ("recieve", "receive"),
        ("thier", "their"),
        ("there", "their"),
    ];
    for (word, other) in words {
        likelier(word, other);
    }
    let marked =
        browser.evaluate("[...document.querySelectorAll('#mirror .odd')].map(mark => mark.textContent).join('')");
    assert!(marked.as_str().unwrap().contains("goverment"), "{marked}");
    // The ghost text has two or three words.
    browser.until("editor.tail !== ''");
    let words = browser.text(".ghost").split_whitespace().count();
    assert!((2..=4).contains(&words), "{}", browser.text(".ghost"));
    browser.picture("playground-surprises");
    // A narrow or low text area shows the whole ghost text.
    let is_whole = "(() => {
        const { bottom, right } = editor.area.getBoundingClientRect();
        return [...document.querySelector('.ghost').getClientRects()].every(line => line.bottom <= bottom && line.right <= right);
    })()";
    browser.set_width(420);
    browser.until(is_whole);
    browser.picture("playground-surprises-narrow");
    let low = "(editor.area.style.minHeight = editor.area.style.height = '7rem', editor.area.scrollTop = 1e4, editor.reveal(), null)";
    browser.evaluate(low);
    browser.until(is_whole);
    browser.evaluate("(editor.area.style.minHeight = editor.area.style.height = '', null)");
    browser.set_width(1200);
    // The keyboard opens the list at a word, and takes the first.
    let place = value(&browser).find("goverment").unwrap() + 3;
    browser.evaluate(&format!("(editor.area.focus(), editor.area.setSelectionRange({place}, {place}), null)"));
    browser.keys("#editor", &format!("{ALT}\u{e006}"));
    browser.until("document.activeElement.closest('#fixes') !== null");
    // Other marks stay, before the server has read the text again.
    let marked = "editor.surprises.words.map(word => word.text)";
    let marks = browser.evaluate(&format!(
        "(before => (document.activeElement.click(), [before.filter(text => text !== 'goverment'), {marked}]))({marked})"
    ));
    assert!(marks[0].as_array().is_some_and(|marks| marks.len() > 3) && marks[0] == marks[1], "{marks}");
    assert!(value(&browser).contains("The government did not"), "{}", value(&browser));
    browser.until(&format!("editor.surprises.words.every(word => word.text !== 'goverment') && {SCORED}"));
    // Most words have three likelier ones.
    browser.until("editor.surprises.words.filter(word => word.alternatives.length === 3).length > editor.surprises.words.length / 2");
    // The mouse shows a list too, and Escape closes it.
    browser.evaluate(
        "(() => {
            const { left, top } = document.querySelector('#mirror .odd').getClientRects()[0];
            editor.area.dispatchEvent(new MouseEvent('mousemove', { clientX: left + 2, clientY: top + 2 }));
        })(), null",
    );
    browser.until("!at('fixes').hidden");
    browser.keys("#editor", ESCAPE);
    assert_eq!(browser.evaluate("at('fixes').hidden"), true);
    // Spellings are compared as whole words, and names are left alone. A click on a replacement takes it.
    let text = "In the morning I saw teh old man and Siobhan, and we all went to the city. ";
    browser.evaluate(&format!("(editor.area.focus(), editor.area.select(), editor.insert('{text}'), null)"));
    likelier("teh", "the");
    browser.until(SCORED);
    let surprises = browser.text("#surprises");
    assert!(surprises.contains("teh → the") && !surprises.contains("Siobhan"), "{surprises}");
    let chips = "[...document.querySelectorAll('#surprises button')]";
    browser.evaluate(&format!("({chips}.find(chip => chip.textContent.startsWith('teh')).click(), null)"));
    assert_eq!(value(&browser), text.replace("teh", "the"));
    // The first word of a text is checked as well.
    browser.evaluate("(editor.area.focus(), editor.area.select(), editor.insert('Untill now nobody knew it. '), null)");
    likelier("Untill", "Until");
    browser.check_log("");
}

#[test]
fn the_editor_reads_a_long_text_from_the_view_on() {
    let Some(browser) = Browser::playground(&[english()], &[], "") else { return };
    empty_editor(&browser);
    let text = "TEXTS[0][1].replace(/\\s+/g, ' ').repeat(12).slice(0, 12000)";
    browser.evaluate(&format!("(editor.area.focus(), editor.area.value = {text}, editor.area.setSelectionRange(12000, 12000), editor.area.scrollTop = 1e6, editor.area.dispatchEvent(new Event('input')), null)"));
    // The heat map comes in view first.
    let read = "editor.pieces.map(piece => piece.start + piece.read === piece.end)";
    browser.until(&format!("{read}.includes(true)"));
    assert_eq!(browser.evaluate(&format!("[{read}.at(-1), {read}[0], editor.pieces.length]")), json!([true, false, 5]));
    browser.until("document.querySelectorAll('#mirror .h1, #mirror .h2, #mirror .h3').length > 10");
    // Keystrokes are answered meanwhile, and change what was read only where they are.
    browser.keys("#editor", " a");
    browser.until(GHOST);
    assert_eq!(browser.evaluate("editor.pieces.at(-1).read > 1000"), true);
    browser.until(&format!("{read}.at(-1)"));
    change(&browser, 0, 0, "A ");
    assert_eq!(browser.evaluate(&format!("[{read}.at(-1), editor.pieces.at(-1).end]")), json!([true, 12_004]));
    browser.check_log("");
}

#[test]
fn a_text_is_compressed_and_comes_back() {
    let Some(browser) = Browser::playground(&[english()], &[], "#tab=compress") else { return };
    browser.until("at('compress-model').options.length == 1");
    browser.set("source", "TEXTS[0][1].slice(0, 1500)");
    browser.click("#compress-go");
    browser.until("at('compress-status').textContent == 'Done.'");
    let words = browser.text("#compress-words");
    assert!(words.contains("% of the text") && words.contains("times smaller than with xz"), "{words}");
    assert_eq!(browser.count("#sizes i"), 4);
    assert_eq!(browser.count("#curve .curve"), 1);
    browser.click("#restore");
    browser.until("at('restored').textContent != ''");
    assert_eq!(browser.text("#restored"), "All 1,500 bytes came back.");
    for width in [420, 1280] {
        browser.assert_fits(width);
        browser.picture(&format!("playground-compress-{width}"));
    }
    // A file of compressed data is restored, and saved.
    browser.evaluate("(window.save = (name, bytes) => { window.saved = [name, bytes.length]; }, null)");
    browser.evaluate("(takeFile(new File([compressed.bytes], 'a.txt.weir')), null)");
    browser.until("at('compress-go').textContent == 'Restore'");
    browser.click("#compress-go");
    browser.until("window.saved !== undefined");
    assert_eq!(browser.evaluate("window.saved"), json!(["a.txt", 1500]));
    // A file that is too large is not read.
    let large = "{ name: 'large', size: 5e6, arrayBuffer() { window.wasRead = true; return new ArrayBuffer(0); } }";
    browser.evaluate(&format!("(takeFile({large}), null)"));
    let refusal = "large has 5,000,000 bytes. This server takes at most 4,194,304 bytes in a request.";
    assert_eq!(browser.text("#file-refusal"), refusal);
    assert_eq!(browser.evaluate("window.wasRead === undefined"), true);
    // After a run the settings are folded from the start.
    browser.open("about:blank");
    browser.open(&browser.url());
    assert_eq!(browser.evaluate("[...document.querySelectorAll('.settings')].some(settings => settings.open)"), false);
    browser.check_log("");
}

/// Replaces the page's requests for completions by a stream of 20,000 characters, four in a message. While `held`, only 8,000 come.
const LONG_STREAM: &str = "window.later = window.setTimeout, window.asks = window.asks || window.fetch, window.fetch = async (path, { signal, ...rest }) => path !== '/v1/completions' ? window.asks(path, { signal, ...rest }) : new Response(new ReadableStream({
    start(stream) {
        this.place = 0;
        signal.addEventListener('abort', () => stream.error(signal.reason));
    },
    async pull(stream) {
        // A turn for the page, as the network gives it.
        do await new Promise(resolve => window.later(resolve)); while (window.held && this.place >= 8000);
        let lines = '';
        for (let count = 0; count < 100 && this.place < 20000; count++) {
            const tokens = [...'a bc'];
            const logprobs = {
                tokens, text_offset: tokens.map((_, index) => this.place + index), token_logprobs: tokens.map(() => -1),
                boundaries: tokens.map(token => token === ' '), boundary_probabilities: [],
                top_logprobs: tokens.map(token => ({ [token]: -1, x: -2, y: -3 })),
            };
            this.place += tokens.length;
            const usage = { prompt_tokens: 1, completion_text_chars: this.place, normalized_chars: 0 };
            lines += `data: ${JSON.stringify({ choices: [{ text: 'a bc', logprobs }], usage, elapsed_ns: this.place * 1e5 })}\\n\\n`;
        }
        if (this.place >= 20000) lines += 'data: [DONE]\\n\\n';
        stream.enqueue(new TextEncoder().encode(lines));
        if (this.place >= 20000) stream.close();
    },
})), null";

/// Longest frame in milliseconds: of the page's script with its layout, and of all work of its thread on average.
const MAX_FRAME: f64 = 50.0;

/// Returns the processor time of the page's thread in milliseconds.
fn thread_time(browser: &Browser) -> f64 {
    let command = json!({ "cmd": "Performance.getMetrics", "params": {} });
    let answer = browser.page_command("POST", "/goog/cdp/execute", &command);
    let mut metrics = answer["metrics"].as_array().unwrap().iter();
    let task = metrics.find(|metric| metric["name"] == "TaskDuration").unwrap();
    1000.0 * task["value"].as_f64().unwrap()
}

/// The machine may be busy: one of twelve runs must be fast.
#[test]
fn a_long_text_streams_without_long_frames_and_can_be_stopped() {
    let Some(browser) = two_models(RACE) else { return };
    browser.set("model-b", "''");
    browser.evaluate(LONG_STREAM);
    let clock = json!({ "cmd": "Performance.enable", "params": { "timeDomain": "threadTicks" } });
    browser.page_command("POST", "/goog/cdp/execute", &clock);
    let mut longest = f64::MAX;
    for _ in 0..12 {
        let before = thread_time(&browser);
        browser.evaluate("(at('go').click(), null)");
        browser.until("!generation.stopping");
        assert_eq!(browser.evaluate("document.querySelector('#panels .text').textContent.length"), 20_000);
        let frames = browser.evaluate("performance.getEntriesByName('frame', 'measure').map(frame => frame.duration)");
        let frames: Vec<f64> = serde_json::from_value(frames).unwrap();
        assert!(frames.len() > 20, "{}", frames.len());
        let spent = thread_time(&browser) - before;
        let all = spent / frames.len() as f64;
        assert!(all < MAX_FRAME, "{all} ms of each frame");
        // On a busy machine, the page's thread waits for a processor during a frame: only this share of the time is its own.
        let share = (spent / frames.iter().sum::<f64>()).min(1.0);
        longest = share * frames.into_iter().fold(0.0, f64::max);
        if longest < MAX_FRAME {
            break;
        }
    }
    assert!(longest < MAX_FRAME, "a frame of {longest} ms");
    // A run can be stopped while text arrives.
    browser.evaluate("(window.held = true, at('go').click(), null)");
    browser.until("document.querySelectorAll('#panels .text span').length > 1000");
    browser.click("#stop");
    browser.says("status", "Stopped.");
    assert!(browser.count("#panels .text span").as_u64() < Some(20_000));
    browser.evaluate("(window.held = false, null)");
    // A hidden page must wait for no timers, because browsers slow them down and the server would have to wait.
    browser.page_command("POST", "/window/minimize", &json!({}));
    browser.until("document.hidden");
    browser.evaluate(
        "(window.timers = 0, window.setTimeout = (...all) => (window.timers += 1, window.later(...all)), null)",
    );
    browser.evaluate("(at('go').click(), null)");
    browser.until("!generation.stopping");
    let read = browser.evaluate("[document.querySelector('#panels .text').textContent.length, window.timers]");
    assert_eq!(read, json!([20_000, 0]));
}
