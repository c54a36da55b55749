//! `/v1/compress` and `/v1/decompress`: one call of `weir.v1.Codec` whose input is the body. Options are in the query, so that a file
//! can be sent as it is. The answer is the output as bytes, or server-sent events with the progress.

use crate::{
    call::{COMPRESS, Call, ClientContext, DECOMPRESS},
    calls::Calls,
    grpc::{
        codec::CodecRequest,
        request_parts::RequestParts,
        response::{TaskResponse, log_rejection},
    },
    http::{
        error::ApiError,
        response::{self, EventSource, event_line},
        state::{ApiState, BYTES},
    },
    middleware::{
        CallResponse,
        limits::{GuardedBody, RequestMemory, Reservation},
    },
};
use axum::{
    Extension,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, write::GzEncoder};
use lzma_rust2::{XzOptions, XzWriter};
use percent_encoding::percent_decode_str;
use prost::Message;
use serde_json::{Value, json};
use std::{
    collections::HashSet,
    io::{self, Write},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use weir_kernels::error::{Error, Result, quoted};
use weir_proto::{
    CodecEvent,
    v1::{self, compress_request, decompress_request},
};

pub(crate) async fn compress(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Response {
    client.with_request_id(handle(state, &client, request, true).await.into_response())
}

pub(crate) async fn decompress(
    State(state): State<ApiState>,
    Extension(client): Extension<ClientContext>,
    request: Request,
) -> Response {
    client.with_request_id(handle(state, &client, request, false).await.into_response())
}

async fn handle(
    state: ApiState,
    client: &ClientContext,
    request: Request,
    compresses: bool,
) -> Result<Response, ApiError> {
    let head = state.check_head(client, &request, BYTES)?;
    let tenant = Arc::clone(&head.tenant);
    let options = CodecOptions::of_query(request.uri(), compresses)?;
    let body = state.read_body_after(head, request).await?;
    let bytes = state.parse(body, Ok).await?;
    let others = if options.compare { Some(others(&state, &tenant, &bytes)?) } else { None };
    let output = if compresses {
        let parts = [compress_request::Part::Options(options.compression()), compress_request::Part::Text(bytes)];
        let messages = parts.map(|part| v1::CompressRequest { part: Some(part) });
        state.calls.code(COMPRESS, client, messages).await?
    } else {
        let parts = [decompress_request::Part::Options(options.decompression()), decompress_request::Part::Data(bytes)];
        let messages = parts.map(|part| v1::DecompressRequest { part: Some(part) });
        state.calls.code(DECOMPRESS, client, messages).await?
    };
    if options.stream {
        let events = CodecEventStream { output, others, is_complete: false };
        return response::response(events, state.calls.jobs.late_headers).await;
    }
    collect(output, &state, &tenant).await
}

/// Returns the output as the body of a response.
async fn collect(mut output: CodecOutputs, state: &ApiState, tenant: &Arc<str>) -> Result<Response, ApiError> {
    let mut size = state.collected.begin(tenant, "add stream=true to the query");
    let mut bytes = Vec::new();
    let mut is_complete = false;
    while let Some(part) = output.next().await.transpose()? {
        match part {
            CodecEvent::Output(more) => {
                size.grow_to(bytes.len() + more.len())?;
                bytes.extend(more);
            }
            CodecEvent::Summary(_) => is_complete = true,
            CodecEvent::Progress(_) => {}
        }
    }
    if !is_complete {
        return Err(response::ended_early().into());
    }
    let response = ([(CONTENT_TYPE, BYTES)], bytes).into_response();
    Ok(response.map(|body| Body::new(GuardedBody::new(body, size))))
}

/// The options in a query.
#[derive(Default)]
struct CodecOptions {
    model: Option<String>,
    normalise: bool,
    stream: bool,
    /// True if the stream also has the sizes that gzip and xz reach.
    compare: bool,
}

impl CodecOptions {
    /// Reads the options. Fails for an unknown name, for one that is there twice, and for a flag that is neither true nor false.
    fn of_query(uri: &Uri, compresses: bool) -> Result<Self> {
        let mut options = Self::default();
        let mut names = HashSet::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, "true"));
            let value = percent_decode_str(value).decode_utf8_lossy();
            if !names.insert(name) {
                return Err(Error::bad_option("query", format!("{} twice", quoted(name)), "each name once"));
            }
            match name {
                "model" => options.model = Some(value.into_owned()),
                "stream" => options.stream = flag("stream", &value)?,
                "normalise" if compresses => options.normalise = flag("normalise", &value)?,
                "compare" if compresses => options.compare = flag("compare", &value)?,
                _ => {
                    let known = if compresses { "model, stream, normalise or compare" } else { "model or stream" };
                    return Err(Error::bad_option("query", quoted(name), known));
                }
            }
        }
        if options.compare && !options.stream {
            return Err(Error::bad_option("compare", "true", "false without stream=true, whose events have the sizes"));
        }
        Ok(options)
    }

    fn compression(&self) -> v1::CompressOptions {
        v1::CompressOptions {
            model: self.model.clone(),
            normalise: Some(self.normalise),
            progress: Some(self.stream),
            ..Default::default()
        }
    }

    fn decompression(&self) -> v1::DecompressOptions {
        v1::DecompressOptions { model: self.model.clone(), priority: None, progress: Some(self.stream) }
    }
}

fn flag(name: &'static str, value: &str) -> Result<bool> {
    value.parse().map_err(|_| Error::bad_option(name, quoted(value), "true or false"))
}

type CodecOutputs = CallResponse<TaskResponse<CodecEvent>>;

impl Calls {
    /// Begins a codec call of the method at `path`, whose options and input have arrived.
    async fn code<R: CodecRequest + Message>(
        &self,
        path: &'static str,
        client: &ClientContext,
        messages: [R; 2],
    ) -> Result<CodecOutputs> {
        let bytes = messages.iter().map(Message::encoded_len).sum();
        let handler = async |call: Call, memory: RequestMemory| {
            let parts = RequestParts::new(tokio_stream::iter(messages).map(Ok), Some(memory));
            self.jobs.start_code(parts, call).await.inspect_err(log_rejection)
        };
        self.begin(path, client, bytes, handler).await
    }
}

/// The sizes that other programs reach, once they are known.
type Others = Pin<Box<dyn Future<Output = Result<OtherSizes>> + Send>>;

/// Sizes of a text in bytes, as gzip and xz compress it.
struct OtherSizes {
    gzip: u64,
    xz: u64,
}

/// Returns the sizes that gzip and xz reach, which a worker finds out once they are awaited. Fails if the memory of requests has no room
/// for the two, or too little of the tenant's share is left.
fn others(state: &ApiState, tenant: &Arc<str>, text: &[u8]) -> Result<Others> {
    let options = xz_options(text.len());
    let xz_bytes = (options.lzma_options.get_memory_usage() as usize).saturating_mul(1 << 10);
    let reserved = Reservation::new(Arc::clone(&state.calls.jobs.memory), Arc::clone(tenant));
    reserved.add_leaving_a_message(text.len().saturating_add(xz_bytes).saturating_add(GZIP_BYTES))?;
    let workers = state.comparisons.clone();
    let tenant = Arc::clone(tenant);
    let text = text.to_vec();
    let gone = CancellationToken::new();
    let work = {
        let gone = gone.clone();
        move || {
            let sizes = sizes_of_others(&text, options, &|| gone.is_cancelled());
            drop(reserved);
            sizes
        }
    };
    let gone = gone.drop_guard();
    Ok(Box::pin(async move {
        let _gone = gone;
        workers.run_on_worker(&tenant, work).await?
    }))
}

/// Bytes of memory that gzip takes at its highest level, at most.
const GZIP_BYTES: usize = 1 << 20;

/// Minimum dictionary of xz.
const MIN_DICTIONARY: usize = 4096;

/// Maximum dictionary of xz: its default, for which it takes about 100 MB.
const MAX_DICTIONARY: usize = 8 << 20;

/// Returns the options of xz at its highest level for a text of `bytes` bytes. A dictionary that is longer than the text finds nothing
/// more, but takes ten times its size in memory.
fn xz_options(bytes: usize) -> XzOptions {
    let mut options = XzOptions::with_preset(9);
    options.lzma_options.dict_size = bytes.clamp(MIN_DICTIONARY, MAX_DICTIONARY) as u32;
    options
}

/// Bytes that are compressed between two looks whether the client is gone.
const COMPARED_BYTES: usize = 1 << 16;

/// Compresses a text with gzip and xz at their highest levels. Fails once `is_gone` returns true.
fn sizes_of_others(text: &[u8], options: XzOptions, is_gone: &dyn Fn() -> bool) -> Result<OtherSizes> {
    let failed = |error: io::Error| Error::Internal(format!("gzip or xz: {error}"));
    let mut gzip = GzEncoder::new(Counted(0), Compression::best());
    let mut xz = XzWriter::new(Counted(0), options).map_err(failed)?;
    for part in text.chunks(COMPARED_BYTES) {
        if is_gone() {
            return Err(Error::Internal("nobody waits for the sizes of gzip and xz".into()));
        }
        gzip.write_all(part).map_err(failed)?;
        xz.write_all(part).map_err(failed)?;
    }
    Ok(OtherSizes { gzip: gzip.finish().map_err(failed)?.0, xz: xz.finish().map_err(failed)?.0 })
}

/// Counts bytes instead of writing them.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The output as server-sent events.
struct CodecEventStream {
    output: CodecOutputs,
    /// The sizes that gzip and xz reach, until they are sent.
    others: Option<Others>,
    is_complete: bool,
}

impl EventSource for CodecEventStream {
    type Message = Value;

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Value>>> {
        if let Some(others) = &mut self.others
            && let Poll::Ready(sizes) = others.as_mut().poll(cx)
        {
            self.others = None;
            let event =
                sizes.map(|OtherSizes { gzip, xz }| json!({ "compared": { "gzip_bytes": gzip, "xz_bytes": xz } }));
            return Poll::Ready(Some(event));
        }
        // The stream ends with the summary.
        let output = match self.is_complete {
            true if self.others.is_some() => return Poll::Pending,
            true => None,
            false => ready!(Pin::new(&mut self.output).poll_next(cx)),
        };
        self.is_complete |= matches!(output, Some(Ok(CodecEvent::Summary(_))));
        Poll::Ready(output.map(|output| output.map(output_json)))
    }

    fn event(&mut self, event: Value) -> Option<Bytes> {
        Some(event_line(&event))
    }

    fn is_complete(&self) -> bool {
        self.is_complete && self.others.is_none()
    }
}

fn output_json(output: CodecEvent) -> Value {
    match output {
        CodecEvent::Output(bytes) => json!({ "data": STANDARD.encode(bytes) }),
        CodecEvent::Progress(progress) => json!({ "progress": progress }),
        CodecEvent::Summary(summary) => json!({ "summary": summary }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_programs_find_repetitions() {
        let text = b"a weir pools a stream and lets it flow on. ".repeat(1000);
        let sizes = |text: &[u8], is_gone: bool| sizes_of_others(text, xz_options(text.len()), &|| is_gone);
        let OtherSizes { gzip, xz } = sizes(&text, false).unwrap();
        assert!((60..600).contains(&gzip) && (60..300).contains(&xz), "gzip {gzip}, xz {xz}");
        assert!(sizes(b"", false).is_ok_and(|sizes| sizes.gzip > 0 && sizes.xz > 0));
        assert!(sizes(&text, true).is_err(), "the client is gone");
    }

    /// Memory stays within ten times the text and some MB, and below 110 MB.
    #[test]
    fn memory_of_xz_is_bounded() {
        for (bytes, limit) in [(0, 4), (1 << 20, 20), (4 << 20, 60), (1 << 30, 110)] {
            let kilobytes = xz_options(bytes).lzma_options.get_memory_usage();
            assert!(kilobytes < limit << 10, "{kilobytes} KiB for {bytes} bytes");
        }
    }
}
