//! A terminal in raw mode, for as long as a console session lasts.
//!
//! Invariant: the terminal has its old settings again when the guard no longer exists, also after a
//! panic.
//! Failure: the settings cannot be read or written; then nothing has changed.

use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

/// Restores the terminal when dropped.
#[derive(Debug)]
pub(crate) struct RawMode(Arc<Saved>);

#[derive(Debug)]
struct Saved {
    terminal: OwnedFd,
    settings: Mutex<Option<Termios>>,
}

impl Saved {
    fn restore(&self) {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(settings) = settings.take() {
            // A terminal that has disconnected needs no settings.
            let _ = tcsetattr(&self.terminal, SetArg::TCSADRAIN, &settings);
        }
    }
}

impl RawMode {
    /// Nothing when `fd` is no terminal.
    pub(crate) fn enter(fd: BorrowedFd<'_>) -> nix::Result<Option<Self>> {
        if !fd.is_terminal() {
            return Ok(None);
        }
        let settings = tcgetattr(fd)?;
        let mut raw = settings.clone();
        cfmakeraw(&mut raw);
        let terminal = fd
            .try_clone_to_owned()
            .map_err(|e| nix::Error::from_raw(e.raw_os_error().unwrap_or(0)))?;
        tcsetattr(terminal.as_fd(), SetArg::TCSADRAIN, &raw)?;
        let saved = Arc::new(Saved {
            terminal,
            settings: Mutex::new(Some(settings)),
        });
        // Release builds abort on panic, so that no destructor runs.
        let for_panic = Arc::downgrade(&saved);
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if let Some(saved) = for_panic.upgrade() {
                saved.restore();
            }
            previous(info);
        }));
        Ok(Some(Self(saved)))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        self.0.restore();
    }
}

#[cfg(test)]
mod tests {
    use nix::pty::openpty;
    use nix::sys::termios::LocalFlags;

    use super::*;

    #[test]
    fn a_terminal_is_raw_during_the_session_and_as_before_after_it() {
        let pty = openpty(None, None).unwrap();
        let echoes = || {
            let flags = tcgetattr(&pty.slave).unwrap().local_flags;
            flags.contains(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG)
        };
        assert!(echoes());
        let guard = RawMode::enter(pty.slave.as_fd()).unwrap().unwrap();
        assert!(!echoes());
        drop(guard);
        assert!(echoes());
    }

    #[test]
    fn a_file_is_left_alone() {
        let file = tempfile::tempfile().unwrap();
        assert!(RawMode::enter(file.as_fd()).unwrap().is_none());
    }
}
