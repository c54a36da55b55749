//! Checked arithmetic for what requests and cache entries hold. An overflow would make a limit meaningless, so it panics in
//! every build; the worker then starts over with empty accounts.

/// Adds to an account. Panics if the sum overflows.
pub(crate) fn add(account: &mut usize, amount: usize) {
    let sum = account.checked_add(amount);
    assert!(sum.is_some(), "an account of {account} overflows by {amount} more");
    *account = sum.unwrap_or(usize::MAX);
}

/// Subtracts from an account what was added before. Panics if it holds less.
pub(crate) fn subtract(account: &mut usize, amount: usize) {
    assert!(*account >= amount, "an account of {account} gives back {amount}");
    *account = account.saturating_sub(amount);
}

/// Replaces an amount within an account. Panics as [`add`] and [`subtract`] do.
pub(crate) fn replace(account: &mut usize, before: usize, after: usize) {
    subtract(account, before);
    add(account, after);
}

/// Returns the part of `limit` that a caller may hold while the others hold `others`: half of what they leave, or `smallest` if
/// that is more and is left. If every caller takes its maximum, their parts converge.
pub fn share(limit: usize, others: usize, smallest: usize) -> usize {
    let left = limit.saturating_sub(others);
    left.div_ceil(2).max(smallest.min(left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn each_caller_leaves_half_to_the_next() {
        let mut held = 0;
        for expected in [32, 16, 8, 4, 2, 1, 1, 0] {
            let share = share(64, held, 0);
            assert_eq!(share, expected);
            held += share;
        }
        assert_eq!(share(64, 40, 20), 20);
        assert_eq!(share(64, 50, 20), 14);
        assert_eq!(share(64, usize::MAX, 20), 0);
    }

    #[test]
    fn overflows_panic_in_every_build() {
        let mut account = 5;
        add(&mut account, 2);
        replace(&mut account, 7, 3);
        subtract(&mut account, 3);
        assert_eq!(account, 0);
        assert!(catch_unwind(|| subtract(&mut 2, 3)).is_err());
        assert!(catch_unwind(|| add(&mut (usize::MAX - 1), 2)).is_err());
    }
}
