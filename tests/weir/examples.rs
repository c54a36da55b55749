//! The Rust examples, run as a user runs them. cargo builds them with the tests.

use crate::*;
use std::env;

/// Runs an example with arguments. Returns its output.
fn output(example: &str, arguments: &[&str]) -> String {
    let tests = env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("examples").join(example);
    assert!(
        program.is_file(),
        "`cargo test` builds the examples; for one test binary, run `cargo build --examples` first"
    );
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{example}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn embed_generates_text() {
    let output = output("embed", &["the history of "]);
    let lines: Vec<_> = output.lines().collect();
    assert!(lines[0].starts_with("the history of ") && lines[0].len() == 95, "{output}");
    assert!(lines[1].starts_with("80 symbols in "), "{output}");
}

#[test]
fn stream_continues_all_prompts() {
    let output = output("stream", &["the river ", "the castle "]);
    for (index, prompt) in ["0: the river", "1: the castle"].into_iter().enumerate() {
        let number = format!("{index}: ");
        let of_prompt: Vec<_> = output.lines().filter(|line| line.starts_with(&number)).collect();
        assert!(of_prompt[0].starts_with(prompt) && of_prompt.len() > 2, "{output}");
    }
}

#[test]
fn score_prints_bits() {
    let output = output("score", &["the city"]);
    let lines: Vec<_> = output.lines().collect();
    assert_eq!((lines.len(), lines[0]), (9, "\"t\" –"), "{output}");
    let mean: f32 = lines[8].strip_suffix(" bits per symbol").unwrap().parse().unwrap();
    assert!((0.5..4.0).contains(&mean), "{output}");
}
