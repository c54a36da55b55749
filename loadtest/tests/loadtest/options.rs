//! Options that would measure something else than intended, and files that are no reports, are refused.

use super::stub::Script;
use super::support::{script, serve};
use crate::*;

#[test]
fn refusals_name_the_option_and_its_limit_and_come_before_the_first_step() {
    let served = serve(vec![script("a"), script("b"), Script { summarizes: true, ..script("reader") }]);
    let folder = tempfile::tempdir().unwrap();
    let blank = folder.path().join("blank.txt");
    fs::write(&blank, " \n\t\n").unwrap();
    let mut lines = include_str!("refused.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut count = 0;
    while let Some(command) = lines.next() {
        let line = command.strip_prefix("$ weir-loadtest ").unwrap_or_else(|| panic!("{command}: no command"));
        let line = line.replace("{stub}", "@").replace("{blank}", blank.to_str().unwrap());
        let expected = lines.next().unwrap_or_else(|| panic!("{command}: no message"));
        let stderr = served.failure(&line);
        assert!(stderr.contains(expected), "{command}: {stderr}");
        count += 1;
    }
    assert!(count > 30, "{count} command lines");
    assert!(served.stub.answered() == 0, "no request was sent");
}

#[test]
fn files_that_are_no_reports_are_named_with_the_place_of_the_error() {
    let served = serve(Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let shown = file.to_str().unwrap();
    let example = fs::read_to_string(super::report::EXAMPLE).unwrap();
    for (text, place, found) in [
        ("".to_owned(), "", "found other JSON (EOF while parsing a value at line 1 column 0"),
        ("{}".to_owned(), "", "found other JSON (invalid type: map, expected a sequence"),
        ("[{}]".to_owned(), "[0]", "found other JSON (missing field"),
        ("[{\"format\": 1}]".to_owned(), "[0].format", "found other JSON (invalid type: integer `1`"),
        // another version is refused by its name, whatever keys it has
        ("[{\"format\": \"weir-loadtest/1\", \"seed\": 1}]".to_owned(), "format", "found \"weir-loadtest/1\""),
        (example.replace("weir-loadtest/2", "weir-loadtest/9"), "format", "found \"weir-loadtest/9\""),
        (example.replacen("\"seed\": 1", "\"seed\": \"x\"", 1), "[0].conditions.seed", "found other JSON"),
        (example.replacen("\"seed\": 1", "\"sead\": 1", 1), "[0].conditions", "found other JSON (missing field `seed`"),
    ] {
        fs::write(&file, text).unwrap();
        let stderr = served.failure(&format!("draw {shown}"));
        assert!(stderr.starts_with(&format!("weir-loadtest: {shown}: {place}")) && stderr.contains(found), "{stderr}");
    }
    let missing = served.failure("draw none.json");
    assert!(missing.starts_with("weir-loadtest: FILE: cannot read none.json: "), "{missing}");
}
