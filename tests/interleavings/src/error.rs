//! The errors of the included files.

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug)]
pub enum Error {
    OutOfPages { needed: usize, limit: usize },
    Internal(String),
    Draining { retry: std::time::Duration },
    Broken,
    QueueFull { what: &'static str, limit: usize, retry: std::time::Duration },
    Deadline { stage: &'static str },
}
