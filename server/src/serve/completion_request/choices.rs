//! The number of choices of a request.

use crate::error::{Error, Result};

/// Maximum choices of one request, of all prompts together.
pub(in crate::serve) const MAX_CHOICES: usize = 64;

/// Checks the number of choices for each of these prompts, of which there is at least one.
pub(in crate::serve) fn check_choices(n: usize, prompts: usize) -> Result<()> {
    if n > 0 && n.saturating_mul(prompts) <= MAX_CHOICES {
        return Ok(());
    }
    let bound = match prompts {
        1 => format!("1 to {MAX_CHOICES}"),
        _ => format!("1 to {} ({MAX_CHOICES} choices for {prompts} prompts together)", MAX_CHOICES / prompts),
    };
    Err(Error::bad_option("n", n.to_string(), bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_prompts_share_the_limit() {
        let error = |n, prompts| check_choices(n, prompts).unwrap_err().to_string();
        assert!(check_choices(64, 1).is_ok() && check_choices(1, 64).is_ok());
        assert_eq!(error(65, 1), "n: expected 1 to 64, found 65");
        assert_eq!(error(0, 1), "n: expected 1 to 64, found 0");
        assert_eq!(error(22, 3), "n: expected 1 to 21 (64 choices for 3 prompts together), found 22");
    }
}
