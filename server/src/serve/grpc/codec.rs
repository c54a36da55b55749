//! The service `Codec`: compresses and decompresses texts that arrive in parts.

use super::{
    codec_call::CodecCall,
    codec_engine::CodecEngine,
    codec_messages::Messages,
    convert,
    generation::{JobService, terms},
    request_parts::RequestParts,
    response_stream::{Buffered, buffered, reject},
    task_response::TaskResponse,
};
use crate::{
    decode::codec::{Compressor, Decompressor, Totals},
    error::{Error, Result},
    serve::{
        call::{Call, Reply},
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
    async fn start_compress(
        &self,
        mut parts: RequestParts<v1::CompressRequest>,
        call: Call,
    ) -> Result<TaskResponse<v1::CompressResponse>> {
        let permit = self.gate.enter()?;
        let Some(compress_request::Part::Options(options)) = parts.next().await?.and_then(|first| first.part) else {
            return Err(no_options());
        };
        let codec =
            self.codec_call::<Compress>("Compress", options.model.as_deref(), parts, &call, options.priority)?;
        let engine = codec.engine();
        let options = convert::compress_options(&options, engine.card());
        // created here too, so that a call that cannot succeed fails before its response
        Compressor::new(engine.card(), options)?;
        let stall = engine.limits().stall;
        Ok(TaskResponse::spawn([permit, self.gate.enter()?], call, stall, move |output| async move {
            codec.run(Compressor::new(engine.card(), options)?, output).await
        }))
    }

    async fn start_decompress(
        &self,
        mut parts: RequestParts<v1::DecompressRequest>,
        call: Call,
    ) -> Result<TaskResponse<v1::DecompressResponse>> {
        let permit = self.gate.enter()?;
        let Some(decompress_request::Part::Options(options)) = parts.next().await?.and_then(|first| first.part) else {
            return Err(no_options());
        };
        let codec =
            self.codec_call::<Decompress>("Decompress", options.model.as_deref(), parts, &call, options.priority)?;
        let engine = codec.engine();
        Decompressor::new(engine.card())?;
        let stall = engine.limits().stall;
        Ok(TaskResponse::spawn([permit, self.gate.enter()?], call, stall, move |output| async move {
            codec.run(Decompressor::new(engine.card())?, output).await
        }))
    }

    /// Finds the model for a call of this method. Fails if it summarizes.
    fn codec_call<M: Messages>(
        &self,
        method: &'static str,
        model: Option<&str>,
        parts: RequestParts<M::Request>,
        call: &Call,
        priority: Option<i32>,
    ) -> Result<CodecCall<M>> {
        let engine = self.engines.find_able("model", model, continues_text)?;
        takes_texts(method, &engine)?;
        Ok(CodecCall::new(parts, CodecEngine::new(engine, terms(call, priority), Arc::clone(&self.memory))))
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
    type CompressStream = Buffered<TaskResponse<v1::CompressResponse>>;
    type DecompressStream = Buffered<TaskResponse<v1::DecompressResponse>>;

    async fn compress(&self, request: Request<Streaming<v1::CompressRequest>>) -> Reply<Self::CompressStream> {
        let call = Call::of(&request);
        let response = self.start_compress(RequestParts::of(request), call.clone()).await;
        buffered(response.map_err(reject(&call))?, usize::from(self.late_headers)).await.map(Response::new)
    }

    async fn decompress(&self, request: Request<Streaming<v1::DecompressRequest>>) -> Reply<Self::DecompressStream> {
        let call = Call::of(&request);
        let response = self.start_decompress(RequestParts::of(request), call.clone()).await;
        buffered(response.map_err(reject(&call))?, usize::from(self.late_headers)).await.map(Response::new)
    }
}
