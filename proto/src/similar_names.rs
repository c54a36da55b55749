//! The name that a mistyped one stands for.

/// Returns the name that begins with `found`, or differs from it in few letters.
pub(crate) fn similar<'a>(known: &[&'a str], found: &str) -> Option<&'a str> {
    let is_start = |name: &&&str| found.len() > 1 && name.starts_with(found);
    let nearest = || known.iter().map(|name| (edits(name, found), *name)).min().filter(|(edits, _)| *edits < 3);
    let near = nearest().filter(|(edits, _)| edits * 2 <= found.chars().count()).map(|(_, name)| name);
    known.iter().find(is_start).copied().or(near)
}

/// Counts the letters that must be inserted, removed or replaced to make `b` of `a`.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (index, letter) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        assert_eq!((edits("", "ab"), edits("kitten", "sitting"), edits("ab", "")), (2, 3, 2));
    }

    #[test]
    fn only_near_names_are_similar() {
        let similar = |found| similar(&["run", "read", "group"], found);
        assert_eq!((similar("rea"), similar("raed"), similar("gruop")), (Some("read"), Some("read"), Some("group")));
        assert_eq!((similar("nosuch"), similar("g")), (None, None));
    }
}
