//! The limit of open files of this process.
//!
//! Invariant: only the soft limit changes, which needs no capability.
//! Failure: the limit stays as it was.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The limit could not be read or raised.
#[derive(Debug, thiserror::Error)]
#[error("raise the limit of open files")]
pub struct Error(#[source] io::Error);

/// Raises the limit of open files to what the process is allowed, and returns it.
///
/// # Errors
///
/// [`Error`], the limit is then as it was.
pub fn raise() -> Result<u64, Error> {
    let failed = |errno: nix::errno::Errno| Error(errno.into());
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(failed)?;
    }
    Ok(hard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, hard.min(512), hard).unwrap();
        assert_eq!(raise().unwrap(), hard);
        let raised = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(raised, (hard, hard));
    }
}
