//! Damaged data are refused, or end in an error of the checksum.

use super::{compress, decompress, default_fixture, english};
use proptest::prelude::*;
use weir::error::Error;

#[test]
fn no_flipped_byte_gives_another_text() {
    let model = default_fixture();
    let text = english(&*model, 70);
    let data = compress(&*model, &text, 40, 2, 16).unwrap();
    assert_eq!(decompress(&*model, &data, 2).unwrap(), text);
    for position in 0..data.len() {
        for bits in [1 << (position % 8), 0xff] {
            let mut damaged = data.clone();
            damaged[position] ^= bits;
            // the last bits of a block's words may have no meaning
            match decompress(&*model, &damaged, 2) {
                Ok(same) => assert_eq!(same, text, "byte {position}"),
                Err(Error::Damaged { .. } | Error::CompressedWith { .. }) => {}
                Err(other) => panic!("byte {position}: {other}"),
            }
        }
    }
}

#[test]
fn no_part_of_the_data_is_a_text() {
    let model = default_fixture();
    let data = compress(&*model, &english(&*model, 70), 40, 2, 16).unwrap();
    for length in 0..data.len() {
        assert!(matches!(decompress(&*model, &data[..length], 2), Err(Error::Damaged { .. })), "{length} bytes");
    }
    assert!(decompress(&*model, &[&data[..], &data].concat(), 2).is_err());
}

#[test]
fn an_empty_text_comes_back() {
    let model = default_fixture();
    let data = compress(&*model, b"", 40, 2, 16).unwrap();
    assert_eq!(decompress(&*model, &data, 2).unwrap(), b"");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn random_changes_never_give_another_text(
        at in 0usize..200, removed in 0usize..9, added in proptest::collection::vec(any::<u8>(), 0..9),
    ) {
        let model = default_fixture();
        let text = english(&*model, 70);
        let mut data = compress(&*model, &text, 40, 2, 16).unwrap();
        let at = at.min(data.len());
        let end = (at + removed).min(data.len());
        data.splice(at..end, added);
        if let Ok(same) = decompress(&*model, &data, 2) {
            prop_assert_eq!(same, text);
        }
    }
}
