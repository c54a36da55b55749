//! The partial files of a command. A signal that ends the command removes them.

use crate::error::{Error, Result};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::runtime::Runtime;

/// Exit code of a process that a signal ends, minus the signal's number: the convention of shells.
const SIGNALLED: i32 = 128;

/// Files that are not complete yet. The task that waits for signals shares the list.
#[derive(Debug, Clone, Default)]
pub(super) struct PartialFiles {
    paths: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl PartialFiles {
    /// Creates an empty list. When SIGINT or SIGTERM arrives, a task on `runtime` removes the listed files and ends the process. Fails
    /// if the operating system refuses the handlers.
    pub(super) fn watched(runtime: &Runtime) -> Result<Self> {
        let files = Self::default();
        let _context = runtime.enter();
        let signal = signal().map_err(|error| Error::Internal(format!("cannot wait for signals: {error}")))?;
        let listed = files.clone();
        runtime.spawn(async move {
            let number = signal.await;
            // held until the process ends, so that no file is created after the others are removed
            let paths = listed.lock();
            for path in &*paths {
                // a file that cannot be removed is visibly partial
                let _ = fs::remove_file(path);
            }
            exit(SIGNALLED + number)
        });
        Ok(files)
    }

    /// Creates a file. Fails if it exists.
    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        let mut paths = self.lock();
        let file = File::create_new(path)?;
        paths.insert(path.to_owned());
        Ok(file)
    }

    /// Renames a file that is complete. It is removed if that fails.
    pub(super) fn complete(&self, path: &Path, name: &Path) -> io::Result<()> {
        let mut paths = self.lock();
        paths.remove(path);
        fs::rename(path, name).inspect_err(|_| {
            let _ = fs::remove_file(path);
        })
    }

    /// Removes a file.
    pub(super) fn remove(&self, path: &Path) {
        self.lock().remove(path);
        let _ = fs::remove_file(path);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the process without waiting for any other thread.
#[expect(clippy::disallowed_methods, reason = "another thread may wait for input that never comes")]
fn exit(code: i32) -> ! {
    std::process::exit(code)
}

/// Returns a future that ends with the number of the first signal.
#[cfg(unix)]
fn signal() -> io::Result<impl Future<Output = i32> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
        }
    })
}

/// Returns a future that ends with the number of SIGINT on Ctrl-C.
#[cfg(not(unix))]
fn signal() -> io::Result<impl Future<Output = i32> + Send + 'static> {
    const INTERRUPT: i32 = 2;
    Ok(async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        INTERRUPT
    })
}
