//! How much of a stream may be sent.
//!
//! Invariant: never more than [`WINDOW`], whatever the host acknowledges.
//! Failure: none; a closed window has no room.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use guestapi::WINDOW;

/// The room for one stream.
#[derive(Debug)]
pub(crate) struct Window {
    /// `None` when the stream is closed.
    room: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            room: Mutex::new(Some(WINDOW)),
            changed: Condvar::new(),
        }
    }
}

impl Window {
    /// Waits for room, and takes at most `most` of it; 0 when the stream is closed.
    pub(crate) fn take(&self, most: usize) -> usize {
        let room = self.lock();
        let waited = self.changed.wait_while(room, |room| *room == Some(0));
        let mut room = waited.unwrap_or_else(PoisonError::into_inner);
        let Some(left) = room.as_mut() else {
            return 0;
        };
        let taken = most.min(*left);
        *left -= taken;
        taken
    }

    /// Gives room back.
    pub(crate) fn give(&self, bytes: usize) {
        if let Some(left) = self.lock().as_mut() {
            *left = left.saturating_add(bytes).min(WINDOW);
        }
        self.changed.notify_all();
    }

    /// Ends all waiting.
    pub(crate) fn close(&self) {
        *self.lock() = None;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Option<usize>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn room_is_taken_up_to_the_window_and_waited_for() {
        let window = Window::default();
        assert_eq!(window.take(WINDOW - 10), WINDOW - 10);
        assert_eq!(window.take(100), 10);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| window.take(100));
            window.give(7);
            assert_eq!(waiting.join().unwrap(), 7);
            let waiting = scope.spawn(|| window.take(100));
            window.close();
            assert_eq!(waiting.join().unwrap(), 0);
        });
        window.give(7);
        assert_eq!(window.take(1), 0, "closed for good");
    }

    #[test]
    fn a_host_cannot_make_more_room_than_the_window() {
        let window = Window::default();
        window.give(usize::MAX);
        window.give(usize::MAX);
        assert_eq!(window.take(usize::MAX), WINDOW);
    }
}
