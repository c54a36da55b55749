//! Texts scored in windows: far longer than the model's longest sequence, in the memory of one window.

use super::{Running, Server, details, eventually, fake_model::MAX_SYMBOLS};
use crate::support::{Dice, converted, fixture, settings, storms};
use std::{f64::consts::LN_2, sync::Arc};
use tokio_stream::StreamExt;
use tonic::{Code, transport::Channel};
use weir::{
    config::Wire,
    decode::{
        contract::{BoundaryMode, BoundaryOptions, Model, Noise},
        evaluate::{WindowScore, score_window_with, windows},
        options::Windows,
    },
    engine::{Handle, Limits},
    family::load::{Settings, load},
};
use weir_proto::v1::{self, generation_client::GenerationClient, score_response::Event};

/// Characters of one chunk, as the proto file says.
const CHUNK: usize = 512;

fn request(text: &str, of: Windows) -> v1::ScoreRequest {
    let windows = v1::Windows { length: of.length as u32, stride: of.stride as u32 };
    v1::ScoreRequest { text: text.into(), windows: Some(windows), ..Default::default() }
}

/// What a score says in sum; `each` sees the characters as they come.
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

/// The evaluation that the command line runs: its sum, and how many segments it tells of.
fn evaluated(model: &dyn Model, symbols: &[u32], of: Windows, boundaries: &BoundaryOptions) -> (WindowScore, u64) {
    let (mut sum, mut segments) = (WindowScore::default(), 0);
    for window in windows(symbols.len(), of) {
        sum += score_window_with(model, symbols, window, boundaries, &mut |_, _, mark| {
            segments += u64::from(mark.boundary);
            Ok(())
        })
        .unwrap();
    }
    (sum, segments)
}

fn agree(name: &str, summary: &v1::ScoreSummary, expected: (WindowScore, u64), symbols: usize) {
    let (sum, segments) = expected;
    let bits = sum.nats / sum.scored as f64 / LN_2;
    assert_eq!(summary.scored_chars, sum.scored as u64, "{name}");
    // each log-probability is rounded to f32
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
    let of = Windows { length: 300, stride: 250 };
    let (mut told, mut most, mut sum) = (String::new(), 0, 0.0);
    let summary = score(server.channel.clone(), request(&text, of), |characters| {
        told.extend(characters.iter().map(|character| character.text.as_str()));
        sum -= characters.iter().filter_map(|character| character.logprob).map(f64::from).sum::<f64>();
        most = most.max(server.engine.load().bytes);
    })
    .await;
    assert!(told == text, "the characters are those of the text, in its order");
    assert!((1..=of.length).contains(&most), "{most} bytes, one a character");
    let symbols = server.engine.card().vocabulary.encode("text", &text, usize::MAX).unwrap();
    assert!(symbols.len() > 1000 * MAX_SYMBOLS);
    let expected = evaluated(&*server.model, &symbols, of, &BoundaryOptions::default());
    assert!((sum - expected.0.nats).abs() < 1e-6 * sum);
    agree("fake", &summary, expected, symbols.len());
    server.at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_of_every_kind_of_model_equal_the_evaluation() {
    for (case, of) in [
        ("vanilla", Windows { length: 64, stride: 64 }),
        ("fixed_sf3", Windows { length: 70, stride: 16 }),
        ("whitespaces", Windows { length: 90, stride: 40 }),
        ("entropy", Windows { length: 33, stride: 5 }),
        ("gumbel", Windows { length: 50, stride: 49 }),
    ] {
        let roomy = fixture(case);
        // what the model itself holds, and one window's worth; a companion's pool is as large
        let memory_bytes = settings().memory_bytes - roomy.memory().limit + roomy.bytes_for(of.length);
        let model = load(&converted(case), &Settings { memory_bytes, ..settings() }).unwrap();
        let engine = Handle::start(Arc::clone(&model), Limits::default()).unwrap();
        let running = Running::start(vec![engine], Wire::default()).await;
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
            assert!(marks.pop() == Some(None) && marks.iter().all(Option::is_some), "all but the last one's are told");
            let name = format!("{case}, {:?}", boundaries.mode.unwrap_or(BoundaryMode::Given));
            agree(&name, &summary, evaluated(&*roomy, &symbols, of, &boundaries), symbols.len());
        }
        // what a row held goes after its last word
        eventually("everything is given back", || model.memory().in_use == 0).await;
    }
}

#[tokio::test]
async fn windows_have_bounds() {
    let server = Server::new().await;
    let most = MAX_SYMBOLS as u32;
    let wrong = [
        (0, 0, "windows.length", "1 to 2000"),
        (most + 1, 1, "windows.length", "1 to 2000"),
        (u32::MAX, u32::MAX, "windows.length", "1 to 2000"),
        (10, 0, "windows.stride", "1 to length, 10"),
        (10, 11, "windows.stride", "1 to length, 10"),
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
    let whole = Windows { length: MAX_SYMBOLS, stride: MAX_SYMBOLS };
    for text in ["a", "ab"] {
        let summary = score(server.channel.clone(), request(text, whole), |_| ()).await;
        assert_eq!(summary.scored_chars, text.len() as u64 - 1);
    }
    let status = server.generation().score(request("", whole)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}
