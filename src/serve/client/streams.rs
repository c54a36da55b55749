//! A client of this server, for measuring what its users see: it asks, reads to the end, and says how long that took.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::time::Instant;
use tonic::transport::Channel;
use weir_proto::v1::{self, generate_response::Event, generation_client::GenerationClient};

/// A connection.
pub struct Client(GenerationClient<Channel>);

/// A request that leaves everything else to the defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The prompt.
    pub prompt: String,
    /// Seeds the draws.
    pub seed: u64,
    /// The most characters.
    pub chars: u32,
}

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// From the first request to the end of the last stream.
    pub ns: u64,
    /// What each stream said, in the order of the requests.
    pub texts: Vec<String>,
    /// Messages of all streams together.
    pub messages: usize,
    /// Characters of prompts that the server had cached, of all streams together.
    pub cached_chars: u64,
}

impl Client {
    /// Connects to `host:port`.
    ///
    /// # Errors
    /// [`Error::Setting`] if nobody answers there.
    pub async fn connect(address: &str) -> Result<Self> {
        let wrong = |error: tonic::transport::Error| Error::Setting(format!("{address}: {error}"));
        let channel = Channel::from_shared(format!("http://{address}"));
        let channel = channel.map_err(|error| Error::Setting(format!("{address}: {error}")))?.tcp_nodelay(true);
        Ok(Self(GenerationClient::new(channel.connect().await.map_err(wrong)?)))
    }

    /// Generates for all requests at once, each on a stream of its own.
    ///
    /// # Errors
    /// [`Error::Setting`] with the server's answer where it refuses one.
    pub async fn generate(&self, requests: Vec<Request>) -> Result<Read> {
        let begun = Instant::now();
        let started = requests.into_iter().map(|request| tokio::spawn(stream(self.0.clone(), request)));
        let streams: Vec<_> = started.collect();
        let mut read = Read::default();
        for stream in streams {
            let lost = |error| Error::Internal(format!("a stream's reader: {error}"));
            let Told { text, messages, cached_chars } = stream.await.map_err(lost)??;
            read.texts.push(text);
            read.messages += messages;
            read.cached_chars += cached_chars;
        }
        read.ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(read)
    }
}

/// What one stream told.
#[derive(Default)]
struct Told {
    text: String,
    messages: usize,
    cached_chars: u64,
}

/// Reads one stream to its end.
async fn stream(mut client: GenerationClient<Channel>, request: Request) -> Result<Told> {
    let refused =
        |status: tonic::Status| Error::Setting(format!("the server said {}: {}", status.code(), status.message()));
    let Request { prompt, seed, chars } = request;
    let sampling = Some(v1::Sampling { seed: Some(seed), ..Default::default() });
    let stopping = Some(v1::Stopping { max_chars: Some(chars), ..Default::default() });
    let request = v1::GenerateRequest { prompt, sampling, stopping, ..Default::default() };
    let mut stream = client.generate(request).await.map_err(refused)?.into_inner();
    let mut told = Told::default();
    while let Some(message) = stream.message().await.map_err(refused)? {
        told.messages += 1;
        match message.event {
            Some(Event::Started(started)) => told.cached_chars = started.cached_chars,
            Some(Event::Piece(piece)) => told.text += &piece.text,
            Some(Event::Finished(_)) | None => {}
        }
    }
    Ok(told)
}
