//! Prints how surprising each character of a text is to the model, in bits, and the mean.
//!
//! ```sh
//! cargo run --release --example score -- "the history of the city"
//! ```
#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::{error::Error, f32::consts::LN_2};
use weir::engine::options::Score;
use weir::engine::{Event, Handle, Job, Limits};
use weir::models::checkpoint::CheckpointSource;
use weir::models::load::{Settings, load_as};

fn main() -> Result<(), Box<dyn Error>> {
    let text = std::env::args().nth(1).unwrap_or_else(|| "the history of the city".to_owned());
    let source = CheckpointSource::default();
    let model = load_as(&source, &source.name(), &Settings::default())?;
    let request = Score::from_text(&text, model.card())?;
    let vocabulary = model.card().vocabulary.clone();
    let engine = Handle::start(model, Limits::default())?;
    let mut events = engine.submit(Job::Score(request), None)?;
    let mut bits = Vec::new();
    while let Some(event) = events.blocking_recv() {
        let Event::Characters(characters) = event? else { continue };
        for character in characters {
            let symbol = vocabulary.decode(&[character.symbol]);
            match character.logprob {
                Some(logprob) => {
                    println!("{symbol:?} {:.2}", -logprob / LN_2);
                    bits.push(-logprob / LN_2);
                }
                // Most models cannot predict the first character.
                None => println!("{symbol:?} –"),
            }
        }
    }
    println!("{:.3} bits per symbol", bits.iter().sum::<f32>() / bits.len() as f32);
    Ok(())
}
