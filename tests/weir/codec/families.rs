//! Every configuration of the conformance suite whose card is `bitwise` gives back its blocks.

use super::{Code, CodeInput, Coded, Running, WINDOWS, code_blocks, compress, decompress, run_batch};
use crate::{conformance::configurations, support::Dice};
use weir::decode::{
    codec::request::check_model,
    contract::{Exactness, SequenceRow, advance},
};

fn compressing(symbols: &[u32]) -> Code {
    Code { input: CodeInput::Compress(symbols.to_vec()), windows: WINDOWS }
}

fn decompressing(symbols: usize, coded: &Coded) -> Code {
    let Coded::Data(data) = coded else { panic!("{coded:?}") };
    Code { input: CodeInput::Decompress { symbols, data: data.clone() }, windows: WINDOWS }
}

/// Blocks of one symbol, of less than a window, of exactly one, and of several.
const LENGTHS: [usize; 5] = [1, 20, 32, 100, 63];

#[test]
fn blocks_come_back_in_every_family_dtype_and_batch() {
    for (index, configuration) in configurations().into_iter().enumerate() {
        let model = &*configuration.model;
        let name = &configuration.name;
        let is_bitwise = model.card().exactness == Exactness::Bitwise;
        if let Err(error) = check_model("the codec", model.card()) {
            let reason = if is_bitwise { "reads subwords" } else { "computes the same bits" };
            assert!(error.to_string().contains(reason), "{name}: {error}");
            continue;
        }
        assert!(is_bitwise, "{name} is accepted");
        let ids: Vec<u32> = model.card().vocabulary.text_ids().collect();
        let mut dice = Dice::new(index as u64 + 1);
        let texts = LENGTHS.map(|length| (0..length).map(|_| ids[dice.below(ids.len())]).collect::<Vec<u32>>());
        let blocks = || texts.iter().map(|text| compressing(text)).collect::<Vec<_>>();
        let together = code_blocks(model, blocks(), LENGTHS.len(), 64).unwrap();
        let alone = code_blocks(model, blocks(), 1, 1).unwrap();
        assert!(together == alone, "{name}: a stepped encoder alone writes other data");
        let data =
            || texts.iter().zip(&alone).map(|(text, coded)| decompressing(text.len(), coded)).collect::<Vec<_>>();
        for rows in [1, LENGTHS.len()] {
            let symbols = code_blocks(model, data(), rows, 64).unwrap();
            let expected: Vec<_> = texts.iter().map(|text| Coded::Symbols(text.clone())).collect();
            assert!(symbols == expected, "{name}: {rows} rows");
        }
        if model.card().vocabulary.is_bytes() {
            let file: Vec<u8> = (0..=255).rev().collect();
            let data = compress(model, &file, 100, 3, 16).unwrap();
            assert!(decompress(model, &data, 2).unwrap() == file, "{name}: another file");
        }
    }
}

/// The engine takes rows away from requests when memory is short.
#[test]
fn a_block_that_loses_its_row_comes_back() {
    let model = super::default_fixture();
    let text: Vec<u32> = (0..130).map(|index| index * 7 % 27).collect();
    let coded = code_blocks(&*model, vec![compressing(&text)], 1, 16).unwrap();
    for request in [compressing(&text), decompressing(text.len(), &coded[0])] {
        let mut running = Running::new(&*model, request).unwrap();
        for step in 0..60 {
            running.session.feed(&mut running.row, 3);
            let rows = std::slice::from_mut(&mut running.row);
            advance(&*model, rows, &[0], &mut model.scratch()).unwrap();
            running.session.absorb(&mut running.row).unwrap();
            if let Some(coded) = running.session.take_coded() {
                running.coded = Some(coded);
                break;
            }
            if step % 13 == 12 {
                running.session.rewind();
                running.row = SequenceRow::new(model.begin(running.session.boundaries().clone()).unwrap());
            }
        }
        let result = run_batch(&*model, vec![running], 16).unwrap().remove(0);
        assert!(result == coded[0] || result == Coded::Symbols(text.clone()));
    }
}
