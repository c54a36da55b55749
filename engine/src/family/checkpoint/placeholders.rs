//! Placeholders in place of a file, which an error names: an empty file, zeros, a Git LFS pointer, a web page.

/// The first bytes of a Git LFS pointer.
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/";
/// Description of a file in a repository that was cloned without Git LFS.
pub(super) const LFS_POINTER: &str = "a Git LFS pointer (`git lfs pull` fetches the file)";
/// Description of a file that an interrupted download leaves.
pub(super) const ZEROS: &str = "only zeros (an interrupted download leaves such a file)";
/// Description of such a file if only its first bytes were read.
pub(super) const ZEROS_AT_START: &str = "zeros at its start (an interrupted download leaves such a file)";
/// Description of a file that a browser saved, or that a server sent in place of a missing one.
pub(super) const WEB_PAGE: &str = "a web page in HTML (`weir pull` downloads the files of a model)";

/// Returns true for the beginning of a web page.
pub fn is_web_page(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    let begins = |mark: &[u8]| text.get(..mark.len()).is_some_and(|start| start.eq_ignore_ascii_case(mark));
    begins(b"<html") || begins(b"<!doct")
}

/// Names what a file holds in place of its contents, if it is empty, only zeros, a Git LFS pointer, or a web page.
pub(super) fn placeholder(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [] => Some("an empty file"),
        bytes if bytes.starts_with(LFS) => Some(LFS_POINTER),
        bytes if is_web_page(bytes) => Some(WEB_PAGE),
        bytes if bytes.iter().all(|byte| *byte == 0) => Some(ZEROS),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_named() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n";
        assert_eq!(placeholder(pointer), Some(LFS_POINTER));
        assert_eq!(placeholder(b""), Some("an empty file"));
        assert_eq!(placeholder(&[0; 9]), Some(ZEROS));
        assert_eq!(placeholder(b"\n<!DOCTYPE html>"), Some(WEB_PAGE));
        assert_eq!(placeholder(b"<!doctype html>"), Some(WEB_PAGE));
        assert_eq!(placeholder(b"<HTML>"), Some(WEB_PAGE));
        assert_eq!(placeholder(b"{}"), None);
    }
}
