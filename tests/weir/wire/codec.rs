//! Compression of texts over gRPC, and its limits.

use super::*;
use crate::support::configured;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio_stream::wrappers::UnboundedReceiverStream;
use weir_proto::{
    CodecEvent,
    v1::{
        CodecSummary, CompressOptions, CompressRequest, CompressResponse, DecompressOptions, DecompressRequest,
        compress_request, decompress_request,
    },
};

pub(super) const TEXT: &str = "a weir pools a stream and lets it flow on ";

async fn served(folder: &Path) -> (Running, Handle) {
    let engine = Handle::start(load(folder, &settings()).unwrap(), Limits::default()).unwrap();
    (Running::start(vec![engine.clone()], TransportConfig::default()).await, engine)
}

pub(super) fn codec_client(running: &Running) -> CodecClient<Channel> {
    CodecClient::new(running.channel.clone())
}

pub(super) fn to_compress(options: CompressOptions, text: &str) -> Vec<CompressRequest> {
    let text = text.as_bytes().chunks(10).map(|part| compress_request::Part::Text(part.to_vec()));
    let parts = [compress_request::Part::Options(options)].into_iter().chain(text);
    parts.map(|part| CompressRequest { part: Some(part) }).collect()
}

pub(super) fn to_decompress(data: &[u8]) -> Vec<DecompressRequest> {
    let data = data.chunks(7).map(|part| decompress_request::Part::Data(part.to_vec()));
    let parts = [decompress_request::Part::Options(DecompressOptions::default())].into_iter().chain(data);
    parts.map(|part| DecompressRequest { part: Some(part) }).collect()
}

/// Reads a response to its end. Returns its output and its summary.
pub(super) async fn read<M: Into<Option<CodecEvent>> + 'static>(
    mut stream: Streaming<M>,
) -> Result<(Vec<u8>, CodecSummary), Status> {
    let mut output = Vec::new();
    while let Some(message) = stream.next().await {
        match message?.into().unwrap() {
            CodecEvent::Output(more) => output.extend(more),
            CodecEvent::Summary(summary) => return Ok((output, summary)),
            CodecEvent::Progress(_) => panic!("progress that no client asked for"),
        }
    }
    panic!("no summary")
}

pub(super) async fn compress(
    client: &mut CodecClient<Channel>,
    options: CompressOptions,
    text: &str,
) -> Result<(Vec<u8>, CodecSummary), Status> {
    read(client.compress(tokio_stream::iter(to_compress(options, text))).await?.into_inner()).await
}

async fn decompress(client: &mut CodecClient<Channel>, data: &[u8]) -> Result<(Vec<u8>, CodecSummary), Status> {
    read(client.decompress(tokio_stream::iter(to_decompress(data))).await?.into_inner()).await
}

/// Waits until no block runs or holds memory. A block whose call failed ends within a step.
pub(super) async fn freed(engine: &Handle) {
    while engine.load().running > 0 || engine.load().queued > 0 || engine.memory().in_use > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_come_back_and_damaged_data_do_not() {
    let (running, engine) = served(&converted("whitespaces")).await;
    let mut client = codec_client(&running);
    let text = TEXT.repeat(6);
    let options = CompressOptions { block_chars: Some(40), text_bytes: Some(text.len() as u64), ..Default::default() };
    let (data, summary) = compress(&mut client, options.clone(), &text).await.unwrap();
    assert_eq!((summary.chars, summary.blocks), (text.len() as u64, text.len().div_ceil(40) as u64));
    assert_eq!((summary.compressed_bytes, summary.text_bytes), (data.len() as u64, text.len() as u64));
    let (back, totals) = decompress(&mut client, &data).await.unwrap();
    assert_eq!((String::from_utf8(back).unwrap(), totals), (text.clone(), summary));
    for damaged in [&data[..data.len() - 1], &data[..70], b"text", &[&data[..], b"x"].concat(), &{
        let mut flipped = data.clone();
        flipped[90] ^= 4;
        flipped
    }] {
        let status = decompress(&mut client, damaged).await.unwrap_err();
        assert_refused(&status, Code::InvalidArgument, "DAMAGED");
    }
    let mut foreign = data.clone();
    foreign[12] ^= 1;
    let status = decompress(&mut client, &foreign).await.unwrap_err();
    assert_refused(&status, Code::FailedPrecondition, "COMPRESSED_WITH");
    let wrong_length = CompressOptions { text_bytes: Some(1), ..options };
    let status = compress(&mut client, wrong_length, &text).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "BAD_OPTION");
    freed(&engine).await;
}

/// The model's normaliser would rewrite the text. Without it, the model lacks the letter.
#[tokio::test(flavor = "multi_thread")]
async fn a_letter_that_a_model_without_normaliser_lacks_is_named() {
    let folder = configured(&converted("whitespaces"), |config| config["normaliser"] = json!("none"));
    let (running, _) = served(folder.path()).await;
    let status = compress(&mut codec_client(&running), CompressOptions::default(), "a Weir").await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "UNKNOWN_SYMBOL");
    assert_eq!(status.message(), "text: expected symbols of the model's vocabulary, found 'W' at character 2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_ends_with_its_deadline_and_with_its_client() {
    let (running, engine) = served(&converted("whitespaces")).await;
    let text = TEXT.repeat(4000);
    let mut request = tonic::Request::new(tokio_stream::iter(to_compress(CompressOptions::default(), &text)));
    request.set_timeout(Duration::from_millis(300));
    let code = match codec_client(&running).compress(request).await {
        Ok(response) => {
            let mut stream = response.into_inner();
            loop {
                if let Err(status) = stream.next().await.expect("the deadline passes before the end") {
                    break status.code();
                }
            }
        }
        Err(status) => status.code(),
    };
    // the client's own timer reports CANCELLED
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&code), "{code:?}");
    // a request that never ends: its client goes away
    let parts =
        tokio_stream::iter(to_compress(CompressOptions { block_chars: Some(1000), ..Default::default() }, &text));
    let response = codec_client(&running).compress(parts.chain(tokio_stream::pending())).await.unwrap();
    let mut stream = response.into_inner();
    stream.next().await.unwrap().unwrap();
    drop(stream);
    freed(&engine).await;
}

/// Starts to compress a text in blocks of 500 characters. All of the text has arrived when the first output comes.
async fn begun(running: &Running, text: &str) -> Streaming<CompressResponse> {
    let options = CompressOptions { block_chars: Some(500), ..Default::default() };
    let text = compress_request::Part::Text(text.as_bytes().to_vec());
    let parts = [compress_request::Part::Options(options), text].map(|part| CompressRequest { part: Some(part) });
    let mut stream = codec_client(running).compress(tokio_stream::iter(parts)).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_finishes_while_the_server_drains() {
    let (mut running, engine) = served(&converted("whitespaces")).await;
    let text = TEXT.repeat(150);
    let stream = begun(&running, &text).await;
    running.shut_down();
    while engine.phase() == Phase::Open {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (_, summary) = read(stream).await.expect("all blocks of a running call are compressed");
    assert_eq!((summary.text_bytes, summary.blocks), (text.len() as u64, text.len().div_ceil(500) as u64));
}

async fn codec_limits_served(limits: Limits) -> (Running, Handle) {
    served_with(limits, TransportConfig::default()).await
}

async fn served_with(limits: Limits, config: TransportConfig) -> (Running, Handle) {
    let engine = Handle::start(load(&converted("whitespaces"), &settings()).unwrap(), limits).unwrap();
    (Running::start(vec![engine.clone()], config).await, engine)
}

/// Starts generations that their client does not read, until the queue has no room for another one.
async fn fill_queue(running: &Running) -> Vec<Streaming<GenerateResponse>> {
    let mut client = running.generation();
    let mut unread = Vec::new();
    loop {
        match client.generate(long("a", 8000)).await {
            Ok(response) => unread.push(response.into_inner()),
            Err(status) => {
                assert_eq!(reason(&status), "QUEUE_FULL", "{status:?}");
                return unread;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn later_blocks_wait_for_the_queue() {
    let (running, engine) = codec_limits_served(Limits { rows: 1, queue: 2, ..Limits::default() }).await;
    let block = |block_chars| CompressOptions { block_chars: Some(block_chars), ..Default::default() };
    let text = TEXT.repeat(10);
    let (first, rest): (Vec<_>, Vec<_>) =
        to_compress(block(100), &text).into_iter().enumerate().partition(|(part, _)| *part < 15);
    let (sender, parts) = mpsc::unbounded_channel::<CompressRequest>();
    let send_all =
        |parts: Vec<(usize, CompressRequest)>| parts.into_iter().for_each(|(_, part)| sender.send(part).unwrap());
    send_all(first);
    let mut stream = codec_client(&running).compress(UnboundedReceiverStream::new(parts)).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();
    freed(&engine).await;
    // The call has a block behind it. Others fill the row and the queue.
    let others = fill_queue(&running).await;
    let status = compress(&mut codec_client(&running), block(100), &text).await.unwrap_err();
    assert_refused(&status, Code::ResourceExhausted, "QUEUE_FULL");
    send_all(rest);
    drop(sender);
    let ended = timeout(Duration::from_millis(500), stream.next()).await;
    assert!(ended.is_err(), "a later block does not wait: {ended:?}");
    drop(others);
    assert_eq!(read(stream).await.unwrap().1.text_bytes, text.len() as u64);
    freed(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_stops_arriving_ends_after_the_stall_limit() {
    let (running, engine) =
        codec_limits_served(Limits { stall: Duration::from_millis(300), ..Limits::default() }).await;
    let parts = tokio_stream::iter(to_compress(CompressOptions::default(), TEXT)).chain(tokio_stream::pending());
    let status = match codec_client(&running).compress(parts).await {
        Ok(response) => read(response.into_inner()).await.unwrap_err(),
        Err(status) => status,
    };
    assert_refused(&status, Code::DeadlineExceeded, "DEADLINE");
    assert!(status.message().contains("while the request came in"), "{status:?}");
    freed(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_options_ends_after_the_upload_limit() {
    let config = TransportConfig { upload: Duration::from_millis(300), ..TransportConfig::default() };
    let (running, _engine) = served_with(Limits::default(), config).await;
    let call = codec_client(&running).compress(tokio_stream::pending()).await;
    let status = call.map(|_| ()).unwrap_err();
    assert_refused(&status, Code::DeadlineExceeded, "INCOMPLETE");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_not_read_ends_after_the_stall_limit() {
    let (running, engine) = codec_limits_served(Limits { stall: Duration::from_secs(1), ..Limits::default() }).await;
    let text = TEXT.repeat(40);
    let options = CompressOptions { block_chars: Some(50), ..Default::default() };
    let (data, _) = compress(&mut codec_client(&running), options, &text).await.unwrap();
    let body: Vec<u8> =
        to_decompress(&data).iter().flat_map(|part| connections::framed(&part.encode_to_vec())).collect();
    let sender = connections::connect(running.address, 64).await;
    let response = connections::called(sender, "/weir.v1.Codec/Decompress", body, &[]).await.unwrap();
    freed(&engine).await;
    // The error is not lost while the client still reads nothing.
    sleep(Duration::from_millis(2500)).await;
    let (bytes, status) = to_end(response).await;
    assert!(bytes.len() < text.len(), "{} bytes of a response that was dropped", bytes.len());
    assert_refused(&status, Code::ResourceExhausted, "STALLED");
}

/// Input that never completes a block counts, however slowly it arrives.
#[tokio::test(flavor = "multi_thread")]
async fn input_without_a_complete_block_counts_in_the_memory_of_requests() {
    let config = TransportConfig { message_bytes: 8 << 10, request_memory: 1 << 20, ..TransportConfig::default() };
    let (running, engine) = served_with(Limits::default(), config).await;
    let mut client = codec_client(&running);
    let text = TEXT.repeat(40_000 / TEXT.len());
    let mut held = Vec::new();
    let status = loop {
        let options = CompressOptions { block_chars: Some(1 << 20), ..Default::default() };
        let parts = tokio_stream::iter(to_compress(options, &text)).chain(tokio_stream::pending());
        let mut stream = client.compress(parts).await.unwrap().into_inner();
        match timeout(Duration::from_secs(1), stream.next()).await {
            Ok(message) => break message.unwrap().unwrap_err(),
            Err(_) => held.push(stream),
        }
        assert!(held.len() < 10, "no call was refused");
    };
    assert_refused(&status, Code::ResourceExhausted, "QUEUE_FULL");
    drop(held);
    let options = CompressOptions { block_chars: Some(100), ..Default::default() };
    let (_, summary) = compress(&mut client, options, &text).await.unwrap();
    assert_eq!(summary.text_bytes, text.len() as u64);
    freed(&engine).await;
}

/// The symbols of blocks in the engine count against the memory of requests.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_count_in_the_memory_of_requests() {
    let config = TransportConfig { message_bytes: 8 << 10, request_memory: 28 << 10, ..TransportConfig::default() };
    let (running, engine) = served_with(Limits::default(), config).await;
    let mut client = codec_client(&running);
    let with_blocks = |block_chars| CompressOptions { block_chars: Some(block_chars), ..Default::default() };
    let text = TEXT.repeat(150);
    // one block takes 20 KB
    let status = compress(&mut client, with_blocks(5000), &text).await.unwrap_err();
    assert_refused(&status, Code::OutOfRange, "OVERSIZED");
    // with 700, a block and its input take nearly all
    for block_chars in [500, 700] {
        let compressed = compress(&mut client, with_blocks(block_chars), &text).await;
        let (_, summary) = compressed.expect("the blocks wait for one another");
        assert_eq!(summary.text_bytes, text.len() as u64);
    }
    freed(&engine).await;
}

/// The type of a body that is sent as it is.
const BYTES: &str = "content-type: application/octet-stream";

#[tokio::test(flavor = "multi_thread")]
async fn a_text_comes_back_over_http() {
    let (running, engine) = served(&converted("whitespaces")).await;
    let text = TEXT.repeat(40);
    let compressed = exchange(running.port, "POST", "/v1/compress?stream=true&compare=true", &[BYTES], &text).await;
    let events = compressed.events();
    let find = |name: &'static str| events.iter().filter_map(move |event| event.get(name));
    let data: Vec<u8> = find("data").flat_map(|data| STANDARD.decode(data.as_str().unwrap()).unwrap()).collect();
    let summary = find("summary").next().unwrap();
    assert_eq!((&summary["text_bytes"], &summary["compressed_bytes"]), (&json!(text.len()), &json!(data.len())));
    // The progress grows, and its bits are nearly all of the data, which also has a header of 113 bytes.
    let progress: Vec<_> = find("progress").collect();
    assert!(
        progress.len() > 3 && progress.windows(2).all(|pair| pair[0]["chars"].as_u64() < pair[1]["chars"].as_u64())
    );
    let last = progress.last().unwrap();
    let bits = last["bits"].as_f64().unwrap() / last["chars"].as_f64().unwrap();
    assert!((bits - summary["bits_per_char"].as_f64().unwrap()).abs() < 0.7, "{last} {summary}");
    let others = find("compared").next().unwrap();
    assert!(
        others["xz_bytes"].as_u64() < Some(text.len() as u64) && others["gzip_bytes"].as_u64() > Some(20),
        "{others}"
    );
    let back = exchange(running.port, "POST", "/v1/decompress", &[BYTES], &data).await;
    assert_eq!((back.0, back.body()), (200, text.as_str()));
    let events = exchange(running.port, "POST", "/v1/decompress?stream=true", &[BYTES], &data).await.events();
    assert!(events.iter().filter(|event| event.get("progress").is_some()).count() > 3);
    let damaged = exchange(running.port, "POST", "/v1/decompress", &[BYTES], &data[..data.len() - 1]).await;
    assert_eq!((damaged.0, &damaged.json()["error"]["code"]), (400, &json!("damaged")));
    freed(&engine).await;
}
