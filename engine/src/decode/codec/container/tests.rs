//! Compressed data in pieces of any size, damaged, and of other models.

use super::*;
use crate::{
    kernels::Isa,
    text::{TextNormaliser, Vocabulary},
};
use proptest::prelude::*;

fn card() -> Card {
    let vocabulary = Vocabulary::byte_level(TextNormaliser::None);
    Card { sha256: "0123456789abcdef".repeat(4), ..Card::for_tests(vocabulary) }
}

fn header() -> Header {
    Header::new(&card(), 4, WindowOptions { length: 8, stride: 6 }, Some(6)).unwrap()
}

fn parts() -> Vec<Part> {
    let end = End { text_bytes: 6, sha256: [7; DIGEST] };
    vec![
        Part::Header(header()),
        Part::Block { symbols: 4, data: vec![1, 2, 3, 4, 0, 1, 1, 1] },
        Part::Block { symbols: 2, data: Vec::new() },
        Part::End(end),
    ]
}

fn write(parts: &[Part]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        match part {
            Part::Header(header) => header.write(&mut out),
            Part::Block { symbols, data } => write_block(*symbols, data, &mut out),
            Part::End(end) => end.write(&mut out),
        }
    }
    out
}

fn read(data: &[u8], piece: usize) -> Result<Vec<Part>> {
    let mut reader = ContainerReader::default();
    let mut parts = Vec::new();
    for piece in data.chunks(piece) {
        reader.push(piece);
        while let Some(part) = reader.next()? {
            parts.push(part);
        }
    }
    reader.finish()?;
    Ok(parts)
}

#[test]
fn parts_come_back_however_the_data_are_split() {
    let data = write(&parts());
    for piece in 1..=data.len() {
        assert_eq!(read(&data, piece).unwrap(), parts());
    }
}

#[test]
fn incomplete_and_longer_data_are_refused() {
    let data = write(&parts());
    for length in 0..data.len() {
        assert!(read(&data[..length], 5).is_err(), "{length} bytes");
    }
    for piece in [1, 1000] {
        assert!(read(&[&data[..], &[0]].concat(), piece).is_err());
    }
}

#[test]
fn a_length_is_checked_before_its_data_arrive() {
    let mut data = Vec::new();
    header().write(&mut data);
    for (symbols, bytes) in [(0, 0), (5, 0), (4, max_block_bytes(4) + 1), (4, u32::MAX as usize)] {
        let front = [&[BLOCK][..], &word(symbols), &word(bytes)].concat();
        let mut reader = ContainerReader::default();
        reader.push(&[&data[..], &front].concat());
        assert!(matches!(reader.next(), Ok(Some(Part::Header(_)))));
        assert!(matches!(reader.next(), Err(Error::Damaged { .. })), "{symbols} symbols in {bytes} bytes");
    }
}

#[test]
fn foreign_data_are_refused_at_the_first_byte() {
    for foreign in [&b"PK\x03\x04"[..], b"\x89PNG\r\n\x1a\n", b"plain text", &[0]] {
        let mut reader = ContainerReader::default();
        reader.push(foreign);
        let message = reader.next().unwrap_err().to_string();
        assert_eq!(message, "the header: expected data that weir compressed, found other data");
    }
}

#[test]
fn another_model_dtype_or_rounding_is_refused() {
    header().check(&card()).unwrap();
    let refusal = |card: Card| header().check(&card).unwrap_err().to_string();
    let sha256 = refusal(Card { sha256: "ff".repeat(32), ..card() });
    assert!(sha256.contains("with the checkpoint with sha256 0123") && sha256.contains("has ffff"), "{sha256}");
    let dtype = refusal(Card { dtype: "int8", ..card() });
    assert!(dtype.contains("the dtype f32") && dtype.contains("has int8"), "{dtype}");
    // no processor without fused multiply-adds has anything to compare
    if Isa::detect().fuses() && !Isa::portable().fuses() {
        let rounding = refusal(Card { isa: Isa::portable(), ..card() });
        assert!(rounding.contains("multiply-adds that round once"), "{rounding}");
    }
}

#[test]
fn the_header_has_a_place_for_every_card() {
    for dtype in crate::kernels::Dtype::ALL {
        let card = Card { dtype: dtype.name(), ..card() };
        assert_eq!(Header::new(&card, 4, WindowOptions { length: 8, stride: 6 }, None).unwrap().dtype, card.dtype);
    }
    assert!(Header::new(&Card { dtype: "f16", ..card() }, 4, WindowOptions { length: 8, stride: 6 }, None).is_err());
    assert!(Header::new(&card(), 0, WindowOptions { length: 8, stride: 6 }, None).is_err());
    assert!(Header::new(&card(), MAX_BLOCK + 1, WindowOptions { length: 8, stride: 6 }, None).is_err());
    assert!(Header::new(&card(), 4, WindowOptions { length: 101, stride: 6 }, None).is_err());
}

proptest! {
    #[test]
    fn random_data_never_panic(
        data in proptest::collection::vec(any::<u8>(), 0..300), position in 0usize..200, piece in 1usize..50,
    ) {
        let mut damaged = write(&parts());
        let position = position.min(damaged.len());
        damaged.splice(position.., data.iter().copied());
        let _ = read(&damaged, piece);
        let _ = read(&data, piece);
    }
}

#[test]
fn windows_that_are_too_long_for_the_model_name_the_setting() {
    let header = header();
    let with = |max_symbols| Card { max_symbols, ..card() };
    header.check(&with(8)).unwrap();
    let error = header.check(&with(7)).unwrap_err();
    assert!(matches!(error, Error::CompressedWith { .. }), "{error:?}");
    let expected = "the data were compressed with windows of 8 symbols; \"m\" has at most 7, which --max-symbols sets";
    assert_eq!(error.to_string(), expected);
    for windows in [WindowOptions { length: 8, stride: 9 }, WindowOptions { length: 8, stride: 0 }] {
        let error = Header { windows, ..header.clone() }.check(&card()).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error:?}");
    }
}
