//! A segment's last hidden vector.

/// `out` = the last of `hidden`.
pub fn pool<'a>(hidden: impl Iterator<Item = &'a [f32]>, out: &mut [f32]) {
    if let Some(last) = hidden.last() {
        out.copy_from_slice(last);
    }
}
