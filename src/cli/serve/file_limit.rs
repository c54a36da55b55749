//! The limit of open files, which must allow as many connections as the settings do.

/// Files besides those of open connections: handshakes, listeners, checkpoints, the log.
const OTHER_FILES: usize = 1024;

/// Raises the process's limit of open files to what this number of connections needs, up to the hard limit. Logs a warning if that
/// is not enough: further connections would wait until others close.
#[cfg(unix)]
pub(super) fn raise_for(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = connections.saturating_add(OTHER_FILES) as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` means no limit.
    let Some(current) = current.filter(|current| *current < needed) else { return };
    let raised = maximum.map_or(needed, |maximum| maximum.min(needed));
    let limit = match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }) {
        Ok(()) => raised,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files cannot be raised");
            current
        }
    };
    if limit < needed {
        tracing::warn!(limit, needed, "--max-connections needs a higher limit of open files (ulimit -n)");
    }
}

/// Does nothing: other systems have no such limit.
#[cfg(not(unix))]
pub(super) fn raise_for(_: usize) {}
