//! The environment of the process, for libraries that have no other setting.

/// Sets a variable, unless it is set to a text that is not empty. Does nothing if other threads run, because they could read the
/// environment at the same time. Does nothing on systems other than Linux, which do not list the threads of a process.
///
/// # Panics
///
/// Panics if `name` is empty or has `=`, or if one of the texts has a zero byte.
#[expect(clippy::disallowed_methods, reason = "a library reads its only setting from the environment")]
pub fn set_default(name: &str, value: &str) {
    let is_single = std::fs::read_dir("/proc/self/task")
        .is_ok_and(|mut threads| matches!((threads.next(), threads.next()), (Some(Ok(_)), None)));
    if is_single && std::env::var_os(name).is_none_or(|value| value.is_empty()) {
        // SAFETY: `/proc` lists this thread only, and no other can start before the call returns.
        unsafe { std::env::set_var(name, value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn nothing_changes_while_other_threads_run() {
        let (sender, receiver) = mpsc::sync_channel::<()>(1);
        let other = std::thread::spawn(move || receiver.recv());
        set_default("WEIR_TEST_OF_THE_ENVIRONMENT", "a");
        assert_eq!(std::env::var_os("WEIR_TEST_OF_THE_ENVIRONMENT"), None);
        drop(sender);
        assert!(other.join().unwrap().is_err());
    }
}
