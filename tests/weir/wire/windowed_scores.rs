//! Windowed scores: texts far longer than the model's limit, scored in the memory of one window.

use super::{Running, Server, details, eventually, fake_model::MAX_SYMBOLS, reason};
use crate::support::{Dice, converted, fixture, settings, storms};
use std::{f64::consts::LN_2, sync::Arc};
use tokio_stream::StreamExt;
use tonic::{Code, transport::Channel};
use weir::{
    config::TransportConfig,
    decode::{
        contract::{BoundaryMode, BoundaryOptions, Model, Noise},
        evaluate::{WindowScore, score_window, windows},
        options::WindowOptions,
    },
    engine::{Handle, Limits},
    family::load::{Settings, load},
};
use weir_proto::v1::{self, generation_client::GenerationClient, score_response::Event};

/// Maximum characters of a chunk, as documented in the proto file.
const CHUNK: usize = 512;

fn request(text: &str, of: WindowOptions) -> v1::ScoreRequest {
    let windows = v1::Windows { length: of.length as u32, stride: of.stride as u32 };
    v1::ScoreRequest { text: text.into(), windows: Some(windows), ..Default::default() }
}

/// Returns the summary of a score, and calls `each` with the characters of each chunk.
async fn score(
    channel: Channel,
    request: v1::ScoreRequest,
    mut each: impl FnMut(&[v1::Character]),
) -> v1::ScoreSummary {
    let mut stream = GenerationClient::new(channel).score(request).await.unwrap().into_inner();
    while let Some(message) = stream.next().await {
        match message.unwrap().event.unwrap() {
            Event::Chunk(chunk) => {
                assert!((1..=CHUNK).contains(&chunk.characters.len()));
                each(&chunk.characters);
            }
            Event::Summary(summary) => {
                assert!(stream.next().await.is_none());
                return summary;
            }
        }
    }
    panic!("no summary");
}

/// Runs the evaluation of the command line, and returns its sum and its number of segments.
fn evaluated(
    model: &dyn Model,
    symbols: &[u32],
    of: WindowOptions,
    boundaries: &BoundaryOptions,
) -> (WindowScore, u64) {
    let mut sum = WindowScore::default();
    let mut segments = 0;
    for window in windows(symbols.len(), of) {
        sum += score_window(model, symbols, window, boundaries, &mut |_, _, mark| {
            segments += u64::from(mark.boundary);
            Ok(())
        })
        .unwrap();
    }
    (sum, segments)
}

fn check_summary(name: &str, summary: &v1::ScoreSummary, sum: WindowScore, segments: u64, symbols: usize) {
    let bits = sum.nats / sum.scored as f64 / LN_2;
    assert_eq!(summary.scored_chars, sum.scored as u64, "{name}");
    // Each log-probability is rounded to f32.
    assert!((summary.bits_per_char.unwrap() - bits).abs() < 1e-6, "{name}: {bits}");
    let usage = summary.usage.unwrap();
    assert_eq!((usage.prompt_chars, usage.prompt_segments), (symbols as u64, segments), "{name}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_megabytes_are_scored_in_the_memory_of_a_window() {
    let server = Server::new().await;
    let text: String = {
        let mut dice = Dice::new(3);
        (0..2 << 20).map(|_| [' ', 'a', 'b', 'c', 'd', 'e'][dice.below(6)]).collect()
    };
    let options = WindowOptions { length: 300, stride: 250 };
    let mut scored_text = String::new();
    let mut max_bytes = 0;
    let mut nats = 0.0;
    let summary = score(server.channel.clone(), request(&text, options), |characters| {
        scored_text.extend(characters.iter().map(|character| character.text.as_str()));
        nats -= characters.iter().filter_map(|character| character.logprob).map(f64::from).sum::<f64>();
        max_bytes = max_bytes.max(server.engine.load().bytes);
    })
    .await;
    assert!(scored_text == text, "the characters are those of the text, in its order");
    assert!((1..=options.length).contains(&max_bytes), "{max_bytes} bytes, one per character");
    let symbols = server.engine.card().vocabulary.encode("text", &text, usize::MAX).unwrap();
    assert!(symbols.len() > 1000 * MAX_SYMBOLS);
    let (sum, segments) = evaluated(&*server.model, &symbols, options, &BoundaryOptions::default());
    assert!((nats - sum.nats).abs() < 1e-6 * nats);
    check_summary("fake", &summary, sum, segments, symbols.len());
    server.at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_of_every_kind_of_model_equal_the_evaluation() {
    for (case, of) in [
        ("vanilla", WindowOptions { length: 64, stride: 64 }),
        ("fixed_sf3", WindowOptions { length: 70, stride: 16 }),
        ("whitespaces", WindowOptions { length: 90, stride: 40 }),
        ("entropy", WindowOptions { length: 33, stride: 5 }),
        ("gumbel", WindowOptions { length: 50, stride: 49 }),
    ] {
        let unlimited = fixture(case);
        // The sum covers the model's own memory and that of one window; a companion's pool is as large.
        let memory_bytes = settings().memory_bytes - unlimited.memory().limit + unlimited.bytes_for(of.length);
        let model = load(&converted(case), &Settings { memory_bytes, ..settings() }).unwrap();
        let engine = Handle::start(Arc::clone(&model), Limits::default()).unwrap();
        let running = Running::start(vec![engine], TransportConfig::default()).await;
        let vocabulary = &model.card().vocabulary;
        let length = if storms() { 1 << 16 } else { 3000 };
        let text = vocabulary.decode(&Dice::new(7).text(length, vocabulary.len()));
        let symbols = vocabulary.encode("text", &text, usize::MAX).unwrap();
        for &mode in &model.card().boundary_modes {
            let boundaries = BoundaryOptions { mode: Some(mode), noise: Noise::Seeded(9), offset: 0 };
            let mode = Some(mode.name().to_owned());
            let request = v1::ScoreRequest { boundary_mode: mode, seed: Some(9), ..request(&text, of) };
            let mut marks = Vec::new();
            let summary = score(running.channel.clone(), request, |characters| {
                marks.extend(characters.iter().map(|character| character.boundary));
            })
            .await;
            assert!(
                marks.pop() == Some(None) && marks.iter().all(Option::is_some),
                "all boundaries except the last are reported"
            );
            let name = format!("{case}, {:?}", boundaries.mode.unwrap_or(BoundaryMode::Given));
            let (sum, segments) = evaluated(&*unlimited, &symbols, of, &boundaries);
            check_summary(&name, &summary, sum, segments, symbols.len());
        }
        // The row's memory is released after its last event.
        eventually("all memory is released", || model.memory().in_use == 0).await;
    }
}

#[tokio::test]
async fn invalid_windows_are_refused() {
    let server = Server::new().await;
    let max = MAX_SYMBOLS as u32;
    let wrong = [
        (0, 0, "windows.length", "1 to 2000"),
        (max + 1, 1, "windows.length", "1 to 2000"),
        (u32::MAX, u32::MAX, "windows.length", "1 to 2000"),
        (10, 0, "windows.stride", "1 to 10 (the length of a window)"),
        (10, 11, "windows.stride", "1 to 10 (the length of a window)"),
    ];
    for (length, stride, field, bound) in wrong {
        let request =
            v1::ScoreRequest { text: "a".into(), windows: Some(v1::Windows { length, stride }), ..Default::default() };
        let status = server.generation().score(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        let details = details(&status);
        assert_eq!(details.bad_request().unwrap().field_violations[0].field, field);
        assert!(status.message().contains(bound), "{status:?}");
    }
    let single_window = WindowOptions { length: MAX_SYMBOLS, stride: MAX_SYMBOLS };
    for text in ["a", "ab"] {
        let summary = score(server.channel.clone(), request(text, single_window), |_| ()).await;
        assert_eq!(summary.scored_chars, text.len() as u64 - 1);
    }
    let status = server.generation().score(request("", single_window)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

/// The default limits reject a stride that multiplies the work, and accept the longest text that a message holds.
#[tokio::test]
async fn windows_have_bounded_work() {
    let server = Server::new().await;
    let limit = Limits::default().request_work;
    let text = "ab ".repeat(100_000);
    let overlapping = WindowOptions { length: MAX_SYMBOLS, stride: 1 };
    let status = server.generation().score(request(&text, overlapping)).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, "TOO_MUCH_WORK"));
    let details = details(&status);
    assert_eq!(details.bad_request().unwrap().field_violations[0].field, "windows.stride");
    let metadata = &details.error_info().unwrap().metadata;
    let work = (text.len() - 1) * MAX_SYMBOLS;
    assert_eq!((&metadata["work"], &metadata["limit"]), (&work.to_string(), &limit.to_string()));
    assert_eq!(server.engine.counters().steps, 0, "nothing ran");

    let text = "ab ".repeat(((4 << 20) - 64) / 3);
    let single = WindowOptions { length: MAX_SYMBOLS, stride: MAX_SYMBOLS };
    let mut stream = server.generation().score(request(&text, single)).await.unwrap().into_inner();
    assert!(matches!(stream.message().await.unwrap().unwrap().event, Some(Event::Chunk(_))));
    drop(stream);
    server.at_rest().await;
}
