//! A web server of a test: HTTP/1.1, one request a connection.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    path::PathBuf,
    sync::{Arc, Mutex},
};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A request.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) path: String,
    /// Its headers, in lower case.
    pub(super) headers: String,
}

/// A response.
pub(super) struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// The length that the server states. It may be a lie.
    length: usize,
    /// True if the body is repeated until the client closes the connection.
    endless: bool,
}

impl Answer {
    pub(super) fn bytes(body: Vec<u8>) -> Self {
        Self { status: 200, headers: Vec::new(), length: body.len(), body, endless: false }
    }

    pub(super) fn file(file: PathBuf) -> Self {
        fs::read(file).map_or_else(|_| Self::status(404), Self::bytes)
    }

    pub(super) fn status(status: u16) -> Self {
        Self { status, ..Self::bytes(Vec::new()) }
    }

    pub(super) fn redirect(to: &str) -> Self {
        Self::status(302).header("location", to)
    }

    pub(super) fn endless(body: Vec<u8>) -> Self {
        Self { endless: true, ..Self::bytes(body) }
    }

    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(super) fn length(self, length: usize) -> Self {
        Self { length, ..self }
    }

    /// Writes the response. The client may close the connection first.
    fn write(self, mut to: impl Write) -> std::io::Result<()> {
        let headers = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect::<String>();
        let length = if self.endless { String::new() } else { format!("content-length: {}\r\n", self.length) };
        write!(to, "HTTP/1.1 {} x\r\nconnection: close\r\n{length}{headers}\r\n", self.status)?;
        to.write_all(&self.body)?;
        to.flush()?;
        if !self.endless {
            return Ok(());
        }
        loop {
            to.write_all(&self.body)?;
        }
    }
}

/// A connection, with TLS or without.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A server on a free port. Its thread ends with the process of the test.
pub(super) struct WebServer {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl WebServer {
    pub(super) fn start(answer: impl Fn(&Request) -> Answer + Send + 'static) -> Self {
        Self::start_with(None, answer)
    }

    /// Starts a server, with TLS if there are settings of it.
    pub(super) fn start_with(
        tls: Option<Arc<ServerConfig>>,
        answer: impl Fn(&Request) -> Answer + Send + 'static,
    ) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let mut stream: Box<dyn Stream> = match &tls {
                    None => Box::new(stream),
                    Some(tls) => {
                        let connection = ServerConnection::new(Arc::clone(tls)).unwrap();
                        Box::new(StreamOwned::new(connection, stream))
                    }
                };
                let Some(request) = read(&mut stream) else { continue };
                seen.lock().unwrap().push(request.clone());
                // A client that has what it needs closes the connection.
                let _ = answer(&request).write(stream);
            }
        });
        Self { url, requests }
    }

    /// Serves the files of a folder under a path.
    pub(super) fn of_folder(path: &'static str, folder: PathBuf) -> Self {
        Self::start(move |request| match request.path.strip_prefix(path) {
            Some(file) => Answer::file(folder.join(file.trim_start_matches('/'))),
            None => Answer::status(404),
        })
    }

    pub(super) fn url(&self) -> String {
        self.url.clone()
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn read(stream: &mut impl Read) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    Some(Request { path, headers: lines.collect::<Vec<_>>().join("\n").to_lowercase() })
}
