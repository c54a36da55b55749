//! Options that would measure something else than intended, and files that are no reports, are refused.

use super::{
    stub::Script,
    support::{script, serve},
};
use crate::*;

/// Command lines, and what their errors say: the option, the value, and the limit. `@` stands for the server's address, `BLANK` for
/// a file without text. The server has the models `a` and `b`, which write texts, and `reader`, which summarizes.
const REFUSED: [(&str, &str); 62] = [
    ("run 127.0.0.1:99999", "ADDRESS: expected a port from 1 to 65535, found \"127.0.0.1:99999\""),
    ("run :1", "127.0.0.1:1: no server listens there"),
    ("run @ --model c", "--model: expected one of a, b, reader, found \"c\""),
    ("run @ --requests 1", "--model: expected one of a, b, reader, found no name"),
    ("run @ --model a --concurrency 0", "--concurrency: expected 1 to 65536, found 0"),
    ("run @ --model a --rate 0", "--rate: expected 0.001 to 1000000 requests/s, found 0"),
    ("run @ --model a --rate nan", "--rate: expected 0.001 to 1000000 requests/s, found NaN"),
    ("run @ --model a --concurrency 1 --rate 2", "cannot be used with '--rate"),
    ("run @ --model a --duration 5", "'5' for '--duration <TIME>': expected a number with its unit, ns, us"),
    ("run @ --model a --warm-up -1s", "'-1s' for '--warm-up <TIME>': expected a number with its unit"),
    ("run @ --model a --cancel-share 2", "--cancel-share: expected 0 to 1, found 2"),
    ("run @ --model a --threads 0", "--threads: expected 1 to 256, found 0"),
    ("run @ --model a --arrivals often", "[possible values: constant, poisson, bursty]"),
    ("run @ --model a --concurrency 5 --arrivals bursty", "--arrivals: expected no value without an open loop"),
    ("run @ --model a --burst 4", "--burst: expected no value without an open loop (use --rate without --concurrency)"),
    ("run @ --model a --rate 5 --burst 4", "--burst: expected no value without --arrivals bursty, found 4"),
    ("run @ --model a --rate 5 --arrivals bursty --burst 0", "--burst: expected 1 to 65536, found 0"),
    ("run @ --model a --objective speed=5ms", "expected one of ttfc, total, char, gap_p50"),
    ("run @ --model a --objective ttfc", "expected NAME=TIME, found \"ttfc\""),
    ("run @ --model a --objective ttfc=3", "ttfc: expected a number with its unit"),
    ("run @ --model a --json - --html -", "--html: expected a file because --json writes to stdout, found \"-\""),
    ("run @ --model a --json /none/there", "--json: cannot write /none/there: "),
    ("run @ --model a --html /none/there", "--html: cannot write /none/there: "),
    ("run @ --model a --prompts /none/there", "--prompts: cannot read /none/there: "),
    ("run @ --model a --prompts BLANK", "a blank file"),
    ("run @ --model a --output-chars 2000000", "in characters from 1 to 1048576"),
    ("run @ --model a --output-chars 1000000 --prompt-chars 100000", "the model's limit (limits.max_symbols)"),
    ("run @ --model a --prefixes 3", "--prefixes: expected 1 unless --shared-prefix gives the length"),
    ("run @ --model a --temperature 101", "--temperature: expected 0 to 100, found 101"),
    ("run @ --model a --beam 2", "--beam: expected no value without a workload that requests summaries"),
    ("run @ --model a --workload kind=dance", "--workload kind: expected one of generate, summarize, edit"),
    ("run @ --model a --workload weight=0", "--workload weight: expected a number above 0, found 0"),
    ("run @ --model a --workload name=x --workload name=x", "--workload name: expected a name of its own"),
    ("run @ --model a --workload model=c", "model: expected one of a, b, reader, found \"c\""),
    ("run @ --model a --workload size=3", "expected a key of a workload, found \"size\""),
    ("run @ --model a --workload kind=summarize", "kind: expected generate (what a does), found \"summarize\""),
    ("run @ --model a --workload kind=summarize,model=b", "kind: expected generate (what b does), found \"summarize\""),
    ("run @ --model a --workload kind=edit,model=reader", "model: expected one that continues text for kind=edit"),
    ("run @ --model a --workload prefixes=3", "prefixes: expected no value unless shared-prefix gives the length"),
    ("run @ --model a --workload beam=2", "beam: expected no value without kind=summarize"),
    ("run @ --model a --workload rate=5", "rate: expected no value without kind=edit"),
    ("run @ --model a --workload prompts=BLANK,prompt-chars=documents", "a blank file"),
    ("run @ --model a --workload prompt-chars=documents", "--prompts: expected files, because the prompts"),
    ("run @ --model a --workload kind=edit,until=page", "until: expected one of word, line, segment, max_chars"),
    ("run @ --model a --workload kind=edit,count=17", "--workload count: expected 1 to 16, found 17"),
    ("run @ --model a --workload kind=edit,rate=0", "--workload rate: expected 0.1 to 1000 keystrokes/s, found 0"),
    ("run @ --model a --workload kind=edit,rate=NaN", "--workload rate: expected 0.1 to 1000 keystrokes/s, found NaN"),
    ("run @ --model a --workload kind=edit,temperature=0.5", "temperature: expected no value (kind=edit asks for"),
    ("run @ --model a --temperature 0.5 --workload kind=edit", "--temperature: expected no value (kind=edit asks for"),
    ("run @ --model a --workload kind=edit,prompt-chars=lines", "--prompt-chars: expected a length for kind=edit"),
    ("run @ --model a --workload kind=edit,output-chars=700", "--timeout: expected more than 70 s for a session"),
    ("sweep @ --model a --rates -1,2", "--rates: expected 0.001 to 1000000 requests/s, found -1"),
    ("sweep @ --model a --from 5 --to 2", "--from: expected at most 2 (the value of --to), found 5"),
    ("sweep @ --model a --burst 4", "--burst: expected no value without --arrivals bursty, found 4"),
    ("sweep @ --model a --concurrency 5 --arrivals bursty", "--arrivals: expected no value without an open loop"),
    ("report @ --cancel-share NaN", "--cancel-share: expected 0 to 1, found NaN"),
    ("report @ --models a,b --beam 2", "--beam: expected no value without a workload that requests summaries"),
    ("compare @ --models a,c", "--models: expected one of a, b, reader, found \"c\""),
    ("compare @ --models a,b,a", "--models: expected each model once (a model compared with itself"),
    ("compare @ --models a", "--models: expected 2 to 8 models, found 1; to compare, serve another model as well"),
    ("compare @", "reader summarizes documents and a does not"),
    ("compare @ --models a,b --workload name=x,model=a", "--workload x: model=a: a comparison sends the same"),
];

#[test]
fn refusals_name_the_option_and_its_limit_and_come_before_the_first_step() {
    let served = serve(vec![script("a"), script("b"), Script { summarizes: true, ..script("reader") }]);
    let folder = tempfile::tempdir().unwrap();
    let blank = folder.path().join("blank.txt");
    fs::write(&blank, " \n\t\n").unwrap();
    for (line, expected) in REFUSED {
        let stderr = served.failure(&line.replace("BLANK", blank.to_str().unwrap()));
        assert!(stderr.contains(expected) && !stderr.contains("step"), "{line}: {stderr}");
    }
    assert!(served.stub.answered() == 0, "no request was sent");
}

/// Every numeric flag takes a negative number as its value, so that the error can name the limit.
#[test]
fn negative_numbers_are_values_of_their_flags() {
    let served = serve(vec![script("a")]);
    let flags = "concurrency rate connections threads shared-prefix prefixes temperature chunk-chars beam seed requests \
                 max-in-flight cancel-share burst prompt-chars output-chars duration timeout wait";
    let of_run = flags.split_whitespace().map(|flag| ("run", flag));
    for (command, flag) in of_run.chain([("report", "concurrency"), ("compare", "rounds")]) {
        let stderr = served.failure(&format!("{command} @ --{flag} -1"));
        let named = [format!("--{flag}: expected "), format!("invalid value '-1' for '--{flag} <")];
        assert!(named.iter().any(|named| stderr.contains(named)), "{stderr}");
    }
}

#[test]
fn files_that_are_no_reports_are_named_with_the_place_of_the_error() {
    let served = serve(Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let shown = file.to_str().unwrap();
    let example = fs::read_to_string(super::report::EXAMPLE).unwrap();
    for (text, place, found) in [
        ("".to_owned(), "", "found an empty file"),
        ("{\"a\":\n ".to_owned(), "", "found a syntax error (EOF while parsing a value at line 2 column 1)"),
        ("{}".to_owned(), "", "found other JSON (invalid type: map, expected a sequence"),
        ("[{}]".to_owned(), "[0]", "found other JSON (missing field"),
        ("[{\"format\": 1}]".to_owned(), "[0].format", "found other JSON (invalid type: integer `1`"),
        // another version is refused by its name, whatever keys it has
        ("[{\"format\": \"weir-loadtest/1\", \"seed\": 1}]".to_owned(), "format", "found \"weir-loadtest/1\""),
        (example.replace("weir-loadtest/2", "weir-loadtest/9"), "format", "found \"weir-loadtest/9\""),
        (example.replacen("\"seed\": 1", "\"seed\": \"x\"", 1), "[0].conditions.seed", "found other JSON"),
        (example.replacen("\"seed\": 1", "\"sead\": 1", 1), "[0].conditions", "found other JSON (unknown field `sead`"),
    ] {
        fs::write(&file, text).unwrap();
        let stderr = served.failure(&format!("draw {shown}"));
        assert!(stderr.starts_with(&format!("weir-loadtest: {shown}: {place}")) && stderr.contains(found), "{stderr}");
    }
    let missing = served.failure("draw none.json");
    assert!(missing.starts_with("weir-loadtest: FILE: cannot read none.json: "), "{missing}");
}
