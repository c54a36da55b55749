//! The service `Codec`: compresses and decompresses texts that arrive in parts.

use super::{
    codec_call::CodecCall,
    codec_engine::CodecEngine,
    codec_messages::Messages,
    convert,
    document_upload::incomplete,
    generation::{JobService, terms},
    response_stream::reject,
    task_response::TaskResponse,
};
use crate::{
    decode::codec::{Compressor, Decompressor, Totals},
    engine::Terms,
    error::{Error, Result},
    serve::{
        call::{Call, Reply},
        middleware::body_limits::RequestMemory,
        registry::{abilities::continues_text, engines::Lease},
    },
};
use std::sync::Arc;
use tonic::{Request, Response, Streaming};
use weir_proto::v1::{
    self, codec_server, compress_request, compress_response, decompress_request, decompress_response,
};

/// The messages of `Compress`.
pub(crate) struct Compress;

/// The messages of `Decompress`.
pub(crate) struct Decompress;

impl Messages for Compress {
    type Request = v1::CompressRequest;
    type Response = v1::CompressResponse;

    fn bytes(request: v1::CompressRequest) -> Result<Vec<u8>> {
        match request.part {
            Some(compress_request::Part::Text(text)) => Ok(text),
            Some(compress_request::Part::Options(_)) => Err(second_options()),
            None => Err(Error::bad_option("part", "nothing", "options or text")),
        }
    }

    fn output(bytes: Vec<u8>) -> v1::CompressResponse {
        v1::CompressResponse { event: Some(compress_response::Event::Data(bytes)) }
    }

    fn summary(totals: Totals) -> v1::CompressResponse {
        v1::CompressResponse { event: Some(compress_response::Event::Summary(summary(totals))) }
    }
}

impl Messages for Decompress {
    type Request = v1::DecompressRequest;
    type Response = v1::DecompressResponse;

    fn bytes(request: v1::DecompressRequest) -> Result<Vec<u8>> {
        match request.part {
            Some(decompress_request::Part::Data(data)) => Ok(data),
            Some(decompress_request::Part::Options(_)) => Err(second_options()),
            None => Err(Error::bad_option("part", "nothing", "options or data")),
        }
    }

    fn output(bytes: Vec<u8>) -> v1::DecompressResponse {
        v1::DecompressResponse { event: Some(decompress_response::Event::Text(bytes)) }
    }

    fn summary(totals: Totals) -> v1::DecompressResponse {
        v1::DecompressResponse { event: Some(decompress_response::Event::Summary(summary(totals))) }
    }
}

impl JobService {
    fn codec_engine(&self, engine: Lease, terms: Terms) -> CodecEngine {
        CodecEngine::new(engine, terms, Arc::clone(&self.memory))
    }

    async fn start_compress(
        &self,
        mut parts: Streaming<v1::CompressRequest>,
        memory: Option<RequestMemory>,
        call: Call,
    ) -> Result<TaskResponse<v1::CompressResponse>> {
        let permit = self.gate.enter()?;
        let first = parts.message().await.map_err(incomplete)?;
        let Some(compress_request::Part::Options(options)) = first.and_then(|first| first.part) else {
            return Err(no_options());
        };
        let engine = self.engines.find_able("model", options.model.as_deref(), continues_text)?;
        takes_texts("Compress", &engine)?;
        let terms = terms(&call, options.priority);
        let options = convert::compress_options(&options, engine.card());
        // created here too, so that a call that cannot succeed fails before its response
        Compressor::new(engine.card(), options)?;
        let codec = CodecCall::<Compress>::new(parts, memory, self.codec_engine(engine, terms));
        let engine = codec.engine();
        let stall = engine.limits().stall;
        Ok(TaskResponse::spawn([permit, self.gate.enter()?], call, stall, move |output| async move {
            codec.run(Compressor::new(engine.card(), options)?, output).await
        }))
    }

    async fn start_decompress(
        &self,
        mut parts: Streaming<v1::DecompressRequest>,
        memory: Option<RequestMemory>,
        call: Call,
    ) -> Result<TaskResponse<v1::DecompressResponse>> {
        let permit = self.gate.enter()?;
        let first = parts.message().await.map_err(incomplete)?;
        let Some(decompress_request::Part::Options(options)) = first.and_then(|first| first.part) else {
            return Err(no_options());
        };
        let engine = self.engines.find_able("model", options.model.as_deref(), continues_text)?;
        takes_texts("Decompress", &engine)?;
        let terms = terms(&call, options.priority);
        Decompressor::new(engine.card())?;
        let codec = CodecCall::<Decompress>::new(parts, memory, self.codec_engine(engine, terms));
        let engine = codec.engine();
        let stall = engine.limits().stall;
        Ok(TaskResponse::spawn([permit, self.gate.enter()?], call, stall, move |output| async move {
            codec.run(Decompressor::new(engine.card())?, output).await
        }))
    }
}

/// Rejects a model that summarizes.
fn takes_texts(call: &'static str, engine: &Lease) -> Result<()> {
    if continues_text(engine) {
        return Ok(());
    }
    let card = engine.card();
    let found = format!("a model that summarizes (use Summarize): {}", card.shape);
    Err(Error::WrongKind { call, model: card.name.clone(), wanted: "reads texts symbol by symbol", found })
}

fn no_options() -> Error {
    Error::bad_option("options", "none", "options in the first part of the request")
}

fn second_options() -> Error {
    Error::bad_option("options", "another message of options", "options in the first part only")
}

fn summary(totals: Totals) -> v1::CodecSummary {
    v1::CodecSummary {
        text_bytes: totals.text_bytes,
        chars: totals.symbols,
        compressed_bytes: totals.compressed_bytes,
        blocks: totals.blocks,
        bits_per_char: totals.bits_per_symbol(),
    }
}

#[tonic::async_trait]
impl codec_server::Codec for JobService {
    type CompressStream = TaskResponse<v1::CompressResponse>;
    type DecompressStream = TaskResponse<v1::DecompressResponse>;

    async fn compress(&self, mut request: Request<Streaming<v1::CompressRequest>>) -> Reply<Self::CompressStream> {
        let call = Call::of(&request);
        let memory = RequestMemory::take(&mut request);
        let response = self.start_compress(request.into_inner(), memory, call.clone()).await;
        response.map_err(reject(&call))?.buffered(usize::from(self.late_headers)).await.map(Response::new)
    }

    async fn decompress(
        &self,
        mut request: Request<Streaming<v1::DecompressRequest>>,
    ) -> Reply<Self::DecompressStream> {
        let call = Call::of(&request);
        let memory = RequestMemory::take(&mut request);
        let response = self.start_decompress(request.into_inner(), memory, call.clone()).await;
        response.map_err(reject(&call))?.buffered(usize::from(self.late_headers)).await.map(Response::new)
    }
}
