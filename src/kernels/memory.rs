//! Large memory: mapped from the system in big pieces and cut into regions that lie one behind the other.
//!
//! What a decode step reads is tens to hundreds of megabytes of weights, keys and values. In pages of 4 KiB the processor
//! spends a third of that time on finding out where they lie, so pieces are aligned to, and asked to be backed by, huge
//! pages; where the system has none to give, they are ordinary memory.

use crate::error::{Error, Result};
use memmap2::MmapMut;
use std::{
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

/// A huge page of x86-64 and of most others: what pieces are aligned to.
const HUGE: usize = 2 << 20;
/// What regions are aligned to: a cache line.
const LINE: usize = 64;

/// A piece of mapped memory, zeroed, aligned to a huge page. It is only read and written through the regions cut from it.
struct Piece {
    /// Keeps the mapping alive.
    _map: MmapMut,
    start: NonNull<u8>,
}

// SAFETY: `start` points into the mapping that the piece owns; who reads and writes it is the regions' business.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

impl Piece {
    /// A piece of `bytes`.
    fn new(bytes: usize) -> Result<Self> {
        let padded = bytes.checked_add(HUGE).ok_or_else(|| too_much(bytes, "too many"))?;
        let mut map = MmapMut::map_anon(padded).map_err(|error| too_much(bytes, error))?;
        // only a wish: without huge pages everything works, more slowly
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let skip = map.as_ptr().align_offset(HUGE).min(HUGE);
        let start = NonNull::from(&mut map[skip..]).cast();
        Ok(Self { _map: map, start })
    }
}

fn too_much(bytes: usize, why: impl std::fmt::Display) -> Error {
    Error::Internal(format!("{bytes} bytes of memory cannot be had: {why}"))
}

/// A part of a piece: bytes that nobody else holds, aligned to a cache line, zeroed when cut.
pub struct Region {
    piece: Arc<Piece>,
    at: usize,
    len: usize,
}

impl Region {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: within the piece (the arena cut it so), initialised by the mapping, and no other region overlaps it, so
        // only `bytes_mut`, which borrows exclusively, writes it.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    /// Its bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; exclusive because the borrow of the region is.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the arena cut the region within the piece.
        unsafe { self.piece.start.as_ptr().add(self.at) }
    }

    /// Its numbers.
    pub fn numbers<T: Number>(&self) -> &[T] {
        let bytes = self.bytes();
        // SAFETY: `Number` promises that every bit pattern is a value; a region is aligned to a cache line.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
    }

    /// Its numbers, to write.
    pub fn numbers_mut<T: Number>(&mut self) -> &mut [T] {
        let bytes = self.bytes_mut();
        // SAFETY: as above; exclusive because the borrow of the region is.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) }
    }
}

/// What a region's bytes may be taken for.
///
/// # Safety
/// Every bit pattern must be a value, alignment at most a cache line, no padding.
pub unsafe trait Number: Copy {}
// SAFETY: a plain number.
unsafe impl Number for f32 {}
// SAFETY: a plain number.
unsafe impl Number for u16 {}
// SAFETY: a plain number.
unsafe impl Number for i8 {}

/// The same bytes of a larger buffer, as other numbers.
///
/// # Panics
/// If they do not start at a multiple of the number's alignment.
pub fn cast<T: Number>(bytes: &[u8]) -> &[T] {
    assert!(bytes.as_ptr().cast::<T>().is_aligned());
    // SAFETY: aligned as just checked; `Number` promises that every bit pattern is a value.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// The same, to write.
///
/// # Panics
/// If they do not start at a multiple of the number's alignment.
pub fn cast_mut<T: Number>(bytes: &mut [u8]) -> &mut [T] {
    assert!(bytes.as_ptr().cast::<T>().is_aligned());
    // SAFETY: as above; exclusive because the borrow of `bytes` is.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// Cuts regions, one behind the other: what is asked for in the order in which a step reads it is one stream of memory.
pub struct Arena {
    /// Bytes of a piece.
    size: usize,
    open: Mutex<Option<(Arc<Piece>, usize)>>,
}

impl Arena {
    /// An arena that maps `size` bytes at a time, or as many as a region needs.
    pub fn new(size: usize) -> Self {
        Self { size: size.max(1).next_multiple_of(HUGE), open: Mutex::new(None) }
    }

    /// A region of `bytes`.
    ///
    /// # Errors
    /// [`Error::Internal`] if the system has no more memory to map.
    pub fn cut(&self, bytes: usize) -> Result<Region> {
        let taken = bytes.checked_next_multiple_of(LINE).ok_or_else(|| too_much(bytes, "too many"))?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((piece, at)) = open.as_mut().filter(|(_, at)| self.size - *at >= taken) {
            let region = Region { piece: piece.clone(), at: *at, len: bytes };
            *at += taken;
            return Ok(region);
        }
        let piece = Arc::new(Piece::new(taken.max(self.size))?);
        // a region that fills its piece leaves the open one open
        if taken < self.size {
            *open = Some((piece.clone(), taken));
        }
        Ok(Region { piece, at: 0, len: bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_zeroed_and_apart() {
        let arena = Arena::new(1 << 20);
        let mut regions: Vec<Region> =
            [1, 63, 64, 65, 1 << 20, 5 << 20, 7].iter().map(|&bytes| arena.cut(bytes).unwrap()).collect();
        for (index, region) in regions.iter_mut().enumerate() {
            assert_eq!(region.bytes().as_ptr().align_offset(LINE), 0);
            assert!(region.bytes().iter().all(|&byte| byte == 0));
            region.bytes_mut().fill(index as u8 + 1);
        }
        for (index, region) in regions.iter().enumerate() {
            assert!(region.bytes().iter().all(|&byte| byte == index as u8 + 1));
        }
        let lengths: Vec<_> = regions.iter().map(|region| region.bytes().len()).collect();
        assert_eq!(lengths, [1, 63, 64, 65, 1 << 20, 5 << 20, 7]);
    }

    #[test]
    fn a_region_outlives_its_arena() {
        let mut region = Arena::new(1).cut(8).unwrap();
        region.numbers_mut::<f32>().copy_from_slice(&[1.0, 2.0]);
        assert_eq!(region.numbers::<f32>(), [1.0, 2.0]);
    }

    #[test]
    fn too_much_is_an_error() {
        for bytes in [usize::MAX / 2, usize::MAX - 63, usize::MAX] {
            assert!(Arena::new(1).cut(bytes).is_err());
        }
    }

    fn start(region: &Region) -> usize {
        region.bytes().as_ptr() as usize
    }

    #[test]
    fn regions_lie_one_behind_the_other_and_large_ones_leave_the_row_open() {
        let arena = Arena::new(1);
        let first = arena.cut(65).unwrap();
        assert!(start(&first).is_multiple_of(HUGE));
        // a piece of its own, at the start of which it lies
        let large = arena.cut(HUGE).unwrap();
        assert!(start(&large).is_multiple_of(HUGE));
        let (second, empty, third) = (arena.cut(1).unwrap(), arena.cut(0).unwrap(), arena.cut(64).unwrap());
        assert_eq!((start(&second), start(&third)), (start(&first) + 2 * LINE, start(&first) + 3 * LINE));
        assert!(empty.bytes().is_empty() && Arc::ptr_eq(&first.piece, &third.piece));
    }

    #[test]
    fn a_piece_is_filled_to_its_end_and_then_a_new_one_is_begun() {
        let arena = Arena::new(1);
        let rest = HUGE - LINE;
        let (first, second) = (arena.cut(LINE).unwrap(), arena.cut(rest).unwrap());
        assert!(Arc::ptr_eq(&first.piece, &second.piece) && start(&second) + rest == start(&first) + HUGE);
        let third = arena.cut(1).unwrap();
        assert!(!Arc::ptr_eq(&first.piece, &third.piece) && start(&third).is_multiple_of(HUGE));
    }

    #[test]
    fn memory_goes_back_once_no_part_of_it_is_held() {
        let arena = Arena::new(1);
        let (first, second) = (arena.cut(HUGE / 2).unwrap(), arena.cut(HUGE / 2).unwrap());
        let piece = Arc::downgrade(&first.piece);
        let _next = arena.cut(LINE).unwrap();
        drop(first);
        assert!(piece.upgrade().is_some(), "a part of it is held");
        drop(second);
        assert!(piece.upgrade().is_none(), "nothing of it is held");
        // an arena that is gone keeps nothing either
        let region = arena.cut(LINE).unwrap();
        let piece = Arc::downgrade(&region.piece);
        drop((arena, region, _next));
        assert!(piece.upgrade().is_none());
    }

    #[test]
    fn casts_take_whole_aligned_numbers() {
        let mut region = Arena::new(1).cut(11).unwrap();
        cast_mut::<u16>(region.bytes_mut()).copy_from_slice(&[1, 2, 3, 4, 5]);
        assert_eq!((cast::<u16>(region.bytes()), cast::<f32>(region.bytes()).len()), (&[1, 2, 3, 4, 5][..], 2));
        assert!(std::panic::catch_unwind(|| cast::<f32>(&region.bytes()[1..]).len()).is_err());
    }
}
