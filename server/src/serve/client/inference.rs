//! Calls of a server's inference services, with the messages of `weir.v1`.

use super::connection::{Peer, ServerEndpoint, TIMEOUT, authorization, connect};
use crate::{
    decode::usage::{LevelCounts, Timing, Usage},
    error::{Error, Result},
};
use tonic::{
    Request, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};
pub use weir_proto::v1::{
    Character, Details, Finished, GenerateRequest, GenerateResponse, LevelUsage, Model, Piece, Sampling, ScoreRequest,
    ScoreResponse, ScoreSummary, Segment, SegmentRequest, SegmentResponse, Stopping, Windows,
    generate_response::Event as GenerateEvent, score_response::Event as ScoreEvent,
};
use weir_proto::v1::{
    FinishReason, GetModelRequest, ListModelsRequest, generation_client::GenerationClient, models_client::ModelsClient,
};

/// Maximum bytes of a message: the models' vocabularies, the segments of a long text, or a summary.
pub(super) const MESSAGE_BYTES: usize = 64 << 20;

/// A connection to a server's inference services, with the API key that its calls carry. Clones share the connection.
#[derive(Clone)]
pub struct InferenceClient {
    pub(super) peer: Peer,
    pub(super) channel: Channel,
    pub(super) authorization: Option<MetadataValue<Ascii>>,
}

impl InferenceClient {
    /// Connects to a server. Fails if the address or the key is invalid, or the server is unreachable.
    pub async fn connect(server: ServerEndpoint, key: Option<&str>) -> Result<Self> {
        let authorization = key.map(authorization).transpose()?;
        let channel = connect(&server).await?;
        Ok(Self { channel, peer: Peer { server, has_key: authorization.is_some() }, authorization })
    }

    /// Returns the description of a model. Without a name, returns that of the model that continues and scores texts if exactly
    /// one model can answer the call, otherwise `None`.
    pub async fn text_model(&self, name: Option<String>) -> Result<Option<Model>> {
        let mut models = ModelsClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES);
        if name.is_some() {
            let mut request = self.request(GetModelRequest { name });
            request.set_timeout(TIMEOUT);
            return match models.get_model(request).await {
                Ok(model) => Ok(Some(model.into_inner())),
                Err(status) => Err(self.peer.call_error(&status).await),
            };
        }
        let mut request = self.request(ListModelsRequest {});
        request.set_timeout(TIMEOUT);
        match models.list_models(request).await {
            Ok(list) => Ok(only_text_model(list.into_inner().models)),
            Err(status) => Err(self.peer.call_error(&status).await),
        }
    }

    /// Returns the error of a response that ended without a part that every complete response has, for example "an end".
    pub fn incomplete(&self, missing: &str) -> Error {
        self.peer.incomplete(missing)
    }

    /// Returns the server's address.
    pub fn address(&self) -> &str {
        &self.peer.server.address
    }

    /// Starts a generation.
    pub async fn generate(&self, request: GenerateRequest) -> Result<MessageStream<GenerateResponse>> {
        self.stream(self.generation().generate(self.request(request)).await).await
    }

    /// Starts to score a text.
    pub async fn score(&self, request: ScoreRequest) -> Result<MessageStream<ScoreResponse>> {
        self.stream(self.generation().score(self.request(request)).await).await
    }

    /// Splits a text into segments.
    pub async fn segment(&self, request: SegmentRequest) -> Result<SegmentResponse> {
        match self.generation().segment(self.request(request)).await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(self.peer.call_error(&status).await),
        }
    }

    fn generation(&self) -> GenerationClient<Channel> {
        GenerationClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES)
    }

    /// Builds a request with the API key.
    pub(super) fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        request
    }

    /// Returns the messages of a call's response.
    pub(super) async fn stream<M>(
        &self,
        response: Result<tonic::Response<Streaming<M>>, tonic::Status>,
    ) -> Result<MessageStream<M>> {
        match response {
            Ok(response) => Ok(MessageStream { peer: self.peer.clone(), messages: response.into_inner() }),
            Err(status) => Err(self.peer.call_error(&status).await),
        }
    }
}

/// The messages of a response.
pub struct MessageStream<M> {
    peer: Peer,
    messages: Streaming<M>,
}

impl<M> MessageStream<M> {
    /// Waits for the next message; `None` at the end. Fails with the server's error.
    pub async fn next(&mut self) -> Result<Option<M>> {
        match self.messages.message().await {
            Ok(message) => Ok(message),
            Err(status) => Err(self.peer.call_error(&status).await),
        }
    }
}

/// Returns the only model that continues texts, or `None` if there are none or several.
fn only_text_model(models: Vec<Model>) -> Option<Model> {
    // Models with limits of documents summarize them.
    let mut texts = models.into_iter().filter(|model| model.documents.is_none());
    let only = texts.next();
    if texts.next().is_some() { None } else { only }
}

/// Returns why a generation ended, by the name that commands print.
pub fn reason_name(finished: &Finished) -> &'static str {
    match finished.reason() {
        FinishReason::MaxChars => "max_chars",
        FinishReason::MaxSegments => "max_segments",
        FinishReason::Stop => "stop",
        FinishReason::MaxContext => "max_context",
        FinishReason::EndOfText => "end_of_text",
        FinishReason::Unspecified => "end",
    }
}

/// Returns the counts of a request's response, whose levels of chunking are `levels`.
pub fn usage(wire: Option<weir_proto::v1::Usage>, levels: &[LevelUsage]) -> Usage {
    let wire = wire.unwrap_or_default();
    Usage {
        prompt_chars: size(wire.prompt_chars),
        cached_chars: size(wire.cached_chars),
        generated_chars: size(wire.generated_chars),
        prompt_segments: size(wire.prompt_segments),
        generated_segments: size(wire.generated_segments),
        nxt_steps: size(wire.nxt_steps),
        resumed_chars: size(wire.resumed_chars),
        drafted_chars: size(wire.drafted_chars),
        accepted_chars: size(wire.accepted_chars),
        levels: level_counts(levels, |level| level.chunks),
    }
}

fn level_counts(levels: &[LevelUsage], count: impl Fn(&LevelUsage) -> u64) -> LevelCounts {
    let counts: Vec<usize> = levels.iter().map(|level| size(count(level))).collect();
    LevelCounts::from(&*counts)
}

/// Returns the times of a request's response, whose levels of chunking are `levels`.
pub fn timing(wire: Option<weir_proto::v1::Timing>, levels: &[LevelUsage]) -> Timing {
    let wire = wire.unwrap_or_default();
    Timing {
        queue_ns: wire.queue_ns,
        prefill_ns: wire.prefill_ns,
        time_to_first_char_ns: wire.time_to_first_char_ns,
        decode_ns: wire.decode_ns,
        total_ns: wire.total_ns,
        steps: wire.steps,
        wait_steps: wire.wait_steps,
        middle_steps: wire.middle_steps,
        level_steps: level_counts(levels, |level| level.middle_steps),
        middle_ns: wire.middle_ns,
        unpooled: None,
    }
}

/// Narrows a count. Supported machines have at least 32 bits.
pub fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::options;
    use weir_proto::v1::Documents;

    #[test]
    fn reasons_have_the_names_of_the_engine() {
        use FinishReason::{EndOfText, MaxChars, MaxContext, MaxSegments, Stop, Unspecified};
        let pairs = [
            (MaxChars, options::FinishReason::MaxChars),
            (MaxSegments, options::FinishReason::MaxSegments),
            (Stop, options::FinishReason::Stop(0)),
            (MaxContext, options::FinishReason::MaxContext),
            (EndOfText, options::FinishReason::EndOfText),
            (Unspecified, options::FinishReason::End),
        ];
        for (wire, engine) in pairs {
            let finished = Finished { reason: wire.into(), ..Default::default() };
            assert_eq!(reason_name(&finished), engine.name());
        }
    }

    #[test]
    fn summarizers_do_not_continue_texts() {
        let model = |name: &str, summarizes: bool| Model {
            name: name.into(),
            documents: summarizes.then(Documents::default),
            ..Model::default()
        };
        let only = |models: &[Model]| only_text_model(models.to_vec()).map(|model| model.name);
        assert_eq!(only(&[model("s", true), model("a", false)]), Some("a".into()));
        assert_eq!(only(&[model("a", false), model("b", false)]), None);
        assert_eq!(only(&[model("s", true)]), None);
    }
}
