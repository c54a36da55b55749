//! Measures latency as users of the server see it: sends requests, reads the responses, and returns their duration.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::time::Instant;
use tonic::transport::Channel;
use weir_proto::v1::{self, generate_response::Event, generation_client::GenerationClient};

/// A connection to a server.
pub struct Client(GenerationClient<Channel>);

/// A `Generate` request with defaults for everything else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptRequest {
    /// The prompt.
    pub prompt: String,
    /// The seed of sampling.
    pub seed: u64,
    /// Maximum characters.
    pub chars: u32,
}

/// The responses to several concurrent requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedResponses {
    /// Nanoseconds from the first request to the end of the last stream.
    pub ns: u64,
    /// The text of each stream, in the order of the requests.
    pub texts: Vec<String>,
    /// Messages of all streams.
    pub messages: usize,
    /// Prompt characters that the server had cached, over all streams.
    pub cached_chars: u64,
}

impl Client {
    /// Connects to `host:port`. Fails with [`Error::Setting`] if no server answers there.
    pub async fn connect(address: &str) -> Result<Self> {
        let wrong = |error: tonic::transport::Error| Error::Setting(format!("{address}: {error}"));
        let channel = Channel::from_shared(format!("http://{address}"));
        let channel = channel.map_err(|error| Error::Setting(format!("{address}: {error}")))?.tcp_nodelay(true);
        Ok(Self(GenerationClient::new(channel.connect().await.map_err(wrong)?)))
    }

    /// Sends all requests at once and reads each stream to its end. Fails with [`Error::Setting`], which holds the
    /// server's answer, if the server rejects a request.
    pub async fn generate(&self, requests: Vec<PromptRequest>) -> Result<TimedResponses> {
        let begun = Instant::now();
        let spawn = |request| tokio::spawn(read_stream(self.0.clone(), request));
        let streams: Vec<_> = requests.into_iter().map(spawn).collect();
        let mut read = TimedResponses::default();
        for stream in streams {
            let lost = |error| Error::Internal(format!("a stream's reader: {error}"));
            let StreamResult { text, messages, cached_chars } = stream.await.map_err(lost)??;
            read.texts.push(text);
            read.messages += messages;
            read.cached_chars += cached_chars;
        }
        read.ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(read)
    }
}

#[derive(Default)]
struct StreamResult {
    text: String,
    messages: usize,
    cached_chars: u64,
}

async fn read_stream(mut client: GenerationClient<Channel>, request: PromptRequest) -> Result<StreamResult> {
    let refused =
        |status: tonic::Status| Error::Setting(format!("the server answered {}: {}", status.code(), status.message()));
    let PromptRequest { prompt, seed, chars } = request;
    let sampling = Some(v1::Sampling { seed: Some(seed), ..Default::default() });
    let stopping = Some(v1::Stopping { max_chars: Some(chars), ..Default::default() });
    let request = v1::GenerateRequest { prompt, sampling, stopping, ..Default::default() };
    let mut stream = client.generate(request).await.map_err(refused)?.into_inner();
    let mut result = StreamResult::default();
    while let Some(message) = stream.message().await.map_err(refused)? {
        result.messages += 1;
        match message.event {
            Some(Event::Started(started)) => result.cached_chars = started.cached_chars,
            Some(Event::Piece(piece)) => result.text += &piece.text,
            Some(Event::Finished(_)) | None => {}
        }
    }
    Ok(result)
}
