//! Converts the vocabulary of an official checkpoint to a tokenizer: fairseq's dictionary, `dict.txt`, and a SentencePiece model.
//!
//! Ids are those of the dictionary: four special symbols, then its lines. Without a dictionary they are those of SentencePiece,
//! with the four special symbols in place of its own three. A dictionary of single characters needs no SentencePiece model:
//! fairseq writes one for `--bpe characters`, with a space as `▁`.

use crate::{
    error::{Error, Result},
    family::{
        checkpoint::json::read_limited,
        convert::{
            converted::only_file,
            sentencepiece::{self, Algorithm, SentencePiece, metaspace, normalizer},
        },
    },
    text::{BLANK, SubwordTokenizer},
};
use serde_json::{Value as Json, json};
use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
};

const DICTIONARY_FILE: &str = "dict.txt";
const MAX_BYTES: u64 = 64 << 20;
/// fairseq's special symbols, which have the first ids.
const MARKS: [&str; 4] = ["<s>", "<pad>", "</s>", "<unk>"];
const UNKNOWN: usize = 3;
/// Score of a piece that only the dictionary contains, below that of the model's rarest piece.
const MISSING_PENALTY: f32 = 1e6;

/// Reads the tokenizer of `size` ids from the files in `dir`, if any. Fails if a file is malformed or of another model.
pub(super) fn read(dir: &Path, size: usize) -> Result<Option<Arc<SubwordTokenizer>>> {
    let dictionary = dir.join(DICTIONARY_FILE);
    let model = only_file(dir, "model", "one .model of SentencePiece")?;
    let has_dictionary = dictionary.exists();
    let lines = if has_dictionary { Some(lines(&read_limited(&dictionary, MAX_BYTES)?, &dictionary)?) } else { None };
    let json = match (lines, model) {
        (lines, Some(file)) => {
            let model = sentencepiece::read(&read_limited(&file, MAX_BYTES)?, &file)?;
            if model.byte_fallback {
                // the dictionary has no ids for the bytes
                return Err(Error::checkpoint(file, "trainer_spec.byte_fallback", "false", "true"));
            }
            let lines = lines.unwrap_or_else(|| model.all.clone());
            pieces(&lines, &model, &file)?
        }
        (Some(lines), None) if lines.iter().all(|line| is_character(line)) => characters(&lines),
        // A dictionary of pieces does not define how text is split into them.
        _ => return Ok(None),
    };
    let named = if has_dictionary { dictionary } else { dir.to_path_buf() };
    let subwords = SubwordTokenizer::parse(json.to_string().as_bytes()).map_err(|error| error.in_file(&named))?;
    if subwords.len() > size {
        let expected = format!(
            "at most {} pieces, since the model has {size} ids and {} of them are special symbols",
            size - MARKS.len().min(size),
            MARKS.len()
        );
        return Err(Error::checkpoint(&named, "the file", expected, (subwords.len() - MARKS.len()).to_string()));
    }
    Ok(Some(Arc::new(subwords)))
}

/// Parses a dictionary: lines of a symbol, a space and a count.
fn lines(bytes: &[u8], file: &Path) -> Result<Vec<String>> {
    let wrong = |key: String, expected: &str, found: String| Error::checkpoint(file, key, expected, found);
    let text = std::str::from_utf8(bytes).map_err(|error| wrong("the file".into(), "UTF-8", error.to_string()))?;
    let mut seen = HashMap::new();
    let mut symbols = Vec::new();
    for (number, line) in (1_usize..).zip(text.lines()) {
        let key = || format!("line {number}");
        let line = line.strip_suffix(" #fairseq:overwrite").unwrap_or(line);
        let symbol = match line.rsplit_once(' ') {
            Some((symbol, count)) if !symbol.is_empty() && count.parse::<u64>().is_ok() => symbol.to_owned(),
            _ => return Err(wrong(key(), "a symbol, a space and its count", format!("{line:?}"))),
        };
        if let Some(first) = seen.insert(symbol.clone(), number) {
            let found = format!("{symbol:?}, as in line {first}");
            return Err(wrong(key(), "a symbol that is not yet in the list", found));
        }
        symbols.push(symbol);
    }
    Ok(symbols)
}

fn is_character(line: &str) -> bool {
    // fairseq fills dictionaries up with these
    line.chars().count() == 1 || line.starts_with("madeupword")
}

fn marks() -> Vec<Json> {
    let mark = |(id, content): (usize, &&str)| {
        json!({ "id": id, "content": content, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false })
    };
    MARKS.iter().enumerate().map(mark).collect()
}

fn tokenizer(normalizer: Json, pre_tokenizer: Json, decoder: Json, model: Json) -> Json {
    json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": marks(), "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": decoder, "model": model })
}

/// Returns a tokenizer of the dictionary's pieces that splits text as the model does.
fn pieces(lines: &[String], model: &SentencePiece, file: &Path) -> Result<Json> {
    let known: HashMap<&str, f32> = model.pieces.iter().map(|(piece, score)| (piece.as_str(), *score)).collect();
    if !lines.iter().any(|line| known.contains_key(line.as_str())) {
        return Err(Error::checkpoint(file, "the file", "the pieces of the dictionary next to it", "others"));
    }
    let normalizer = normalizer(model);
    let metaspace = metaspace("always");
    let model = match model.algorithm {
        Algorithm::Unigram => unigram(lines, &known),
        Algorithm::Bpe => bpe(vocabulary(lines), merges(lines, model, &known, file)?),
    };
    Ok(tokenizer(normalizer, metaspace.clone(), metaspace, model))
}

/// Returns a unigram model with the log-probabilities of `known`.
fn unigram(lines: &[String], known: &HashMap<&str, f32>) -> Json {
    let rarest = known.values().copied().fold(0.0, f32::min);
    let score = |line: &String| known.get(line.as_str()).copied().unwrap_or(rarest - MISSING_PENALTY);
    let mut vocab: Vec<Json> = MARKS.iter().map(|mark| json!([mark, 0.0])).collect();
    vocab.extend(lines.iter().map(|line| json!([line, score(line)])));
    json!({ "type": "Unigram", "unk_id": UNKNOWN, "vocab": vocab, "byte_fallback": false })
}

/// Returns the pairs of neighbours that BPE merges, the best first. SentencePiece has no such list: it merges the neighbours whose
/// piece has the best score. If three neighbours form the same piece in two ways, SentencePiece merges the left pair; this list
/// prefers the way with the longer first part.
fn merges(
    lines: &[String],
    model: &SentencePiece,
    known: &HashMap<&str, f32>,
    file: &Path,
) -> Result<Vec<(String, String)>> {
    let listed: HashSet<&str> = lines.iter().map(String::as_str).collect();
    if let Some((piece, _)) = model.pieces.iter().find(|(piece, _)| !listed.contains(piece.as_str())) {
        let expected =
            "pieces that are all in the dictionary next to it: a BPE model needs each on the way to longer ones";
        return Err(Error::checkpoint(file, "the file", expected, format!("{piece:?}")));
    }
    let mut sorted: Vec<_> = model.pieces.iter().collect();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
    let ways = |piece: &str| -> Vec<(String, String)> {
        let cuts = piece.char_indices().rev().filter(|(index, _)| *index > 0).map(|(index, _)| piece.split_at(index));
        let both = cuts.filter(|(left, right)| known.contains_key(left) && known.contains_key(right));
        both.map(|(left, right)| (left.to_owned(), right.to_owned())).collect()
    };
    Ok(sorted.into_iter().flat_map(|(piece, _)| ways(piece)).collect())
}

fn vocabulary(lines: &[String]) -> serde_json::Map<String, Json> {
    let all = MARKS.iter().copied().chain(lines.iter().map(String::as_str));
    all.zip(0..).map(|(symbol, id): (&str, usize)| (symbol.to_owned(), id.into())).collect()
}

fn bpe(vocab: serde_json::Map<String, Json>, merges: Vec<(String, String)>) -> Json {
    let fuse = !merges.is_empty();
    json!({ "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": fuse, "byte_fallback": false, "ignore_merges": false, "vocab": vocab,
        "merges": merges })
}

/// Returns a tokenizer of single characters, which are never merged.
fn characters(lines: &[String]) -> Json {
    let spaces = json!({ "type": "Replace", "pattern": { "String": sentencepiece::SPACE }, "content": " " });
    let decoder = json!({ "type": "Sequence", "decoders": [spaces, { "type": "Fuse" }] });
    // fairseq splits lines at whitespace; only the space has been replaced by then
    let blank = json!({ "type": "Replace", "pattern": { "Regex": BLANK }, "content": "" });
    tokenizer(blank, metaspace("never"), decoder, bpe(vocabulary(lines), Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    fn ids(subwords: &SubwordTokenizer, text: &str) -> Vec<u32> {
        subwords.encode(text).unwrap().iter().map(|piece| piece.id).collect()
    }

    #[test]
    fn characters_with_their_spaces() {
        let dir = TempDir::new().unwrap();
        assert!(read(dir.path(), 9).unwrap().is_none());
        fs::write(dir.path().join("dict.txt"), "▁ 90\na 7\nb 5\nmadeupword0000 0\n").unwrap();
        let subwords = read(dir.path(), 9).unwrap().unwrap();
        assert_eq!(ids(&subwords, "ab  xyb"), [5, 6, 4, 4, 3, 3, 6]);
        assert_eq!(subwords.decode(&[5, 6, 4, 4, 6, 2]), "ab  b");
        assert_eq!(ids(&subwords, "a\tb\u{a0} \r\nb\n"), [5, 6, 4, 6]);
        let places: Vec<_> = subwords.encode("a bé b").unwrap().iter().map(|piece| (piece.start, piece.end)).collect();
        assert_eq!(places, [(0, 1), (1, 2), (2, 3), (3, 5), (5, 6), (6, 7)]);
        let error = read(dir.path(), 7).unwrap_err().to_string();
        let expected = "at most 3 pieces, since the model has 7 ids and 4 of them are special symbols, found 4";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn pieces_have_the_dictionarys_ids_and_the_models_scores() {
        let dir = TempDir::new().unwrap();
        let pieces = [
            ("<unk>", 0.0, 2),
            ("<s>", 0.0, 3),
            ("</s>", 0.0, 3),
            ("▁", -3.0, 1),
            ("a", -3.0, 1),
            ("▁a", -1.0, 1),
            ("b", -3.0, 1),
        ];
        fs::write(dir.path().join("spm.model"), sentencepiece::written(&pieces, 1)).unwrap();
        // SentencePiece's piece p ≥ 3 is at p + 1
        let subwords = read(dir.path(), 100).unwrap().unwrap();
        assert_eq!(ids(&subwords, "a  ab "), [6, 6, 7]);
        fs::write(dir.path().join("dict.txt"), "b 9\n▁a 8\na 7\n▁ 6\nmadeupword0000 0\n").unwrap();
        let subwords = read(dir.path(), 100).unwrap().unwrap();
        assert_eq!(ids(&subwords, "a abb"), [5, 5, 4, 4]);
        assert_eq!(subwords.decode(&[5, 5, 4, 2]), "a ab");
        fs::write(dir.path().join("dict.txt"), "x 9\n").unwrap();
        assert!(read(dir.path(), 100).unwrap_err().to_string().contains("the pieces of the dictionary next to it"));
        let mut falls_back = sentencepiece::written(&pieces, 1);
        falls_back.extend([0x12, 3, 0x98, 2, 1]); // trainer_spec { byte_fallback: true }
        fs::write(dir.path().join("spm.model"), falls_back).unwrap();
        let error = read(dir.path(), 100).unwrap_err().to_string();
        assert!(error.contains("spm.model: trainer_spec.byte_fallback: expected false, found true"), "{error}");
        fs::write(dir.path().join("other.model"), "").unwrap();
        assert!(read(dir.path(), 100).unwrap_err().to_string().contains("one .model of SentencePiece, found 2"));
    }

    #[test]
    fn bpe_cuts_as_sentencepiece_does() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/sentencepiece");
        let dir = TempDir::new().unwrap();
        fs::copy(golden.join("bpe.model"), dir.path().join("bpe.model")).unwrap();
        let subwords = read(dir.path(), 401).unwrap().unwrap();
        let cases: Json = serde_json::from_slice(&fs::read(golden.join("bpe.json")).unwrap()).unwrap();
        for case in cases.as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let own = |id: &Json| match id.as_u64().unwrap() as u32 {
                0 => UNKNOWN as u32,
                id => id + 1,
            };
            let expected: Vec<u32> = case["ids"].as_array().unwrap().iter().map(own).collect();
            assert_eq!(ids(&subwords, text), expected, "{text}");
        }
        fs::write(dir.path().join("dict.txt"), "▁t 9\nt 8\n").unwrap();
        let error = read(dir.path(), 401).unwrap_err().to_string();
        assert!(error.contains("pieces that are all in the dictionary next to it"), "{error}");
    }

    #[test]
    fn files_that_are_no_vocabulary_are_rejected() {
        for (text, expected) in [
            ("a", "line 1: expected a symbol, a space and its count, found \"a\""),
            ("a 1\nb x", "line 2: expected"),
            ("a 1\na 2", "line 2: expected a symbol that is not yet in the list, found \"a\", as in line 1"),
        ] {
            let dir = TempDir::new().unwrap();
            fs::write(dir.path().join("dict.txt"), text).unwrap();
            let error = read(dir.path(), 9).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let of_kind_3 = sentencepiece::written(&[("a", 0.0, 1)], 3);
        for (bytes, expected) in [
            (vec![0xff; 9], "a SentencePiece model"),
            (of_kind_3, "a unigram or BPE model of SentencePiece, found model_type 3"),
        ] {
            let dir = TempDir::new().unwrap();
            fs::write(dir.path().join("m.model"), bytes).unwrap();
            let error = read(dir.path(), 9).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
