//! Notifies followers of writes to their file.
//!
//! One inotify instance and one thread serve the whole process: instances are few (128 for all
//! programs of a user, by default), watches are many.
//!
//! Invariant: a write after [`Watch::on`] returned makes [`Watch::changed`] return once more; a
//! descriptor is in the table as long as a follower watches it.
//! Failure: an error of creating a watch names the cause. Events that the kernel had to drop wake
//! all followers.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::sync::Notify;

static HUB: Mutex<Option<Arc<Hub>>> = Mutex::new(None);

type Table = HashMap<WatchDescriptor, Vec<Arc<Notify>>>;

#[derive(Debug)]
struct Hub {
    inotify: Inotify,
    table: Mutex<Table>,
}

/// Interest in one file. Dropping it ends the interest.
#[derive(Debug)]
pub(super) struct Watch {
    hub: Arc<Hub>,
    descriptor: WatchDescriptor,
    changed: Arc<Notify>,
}

impl Watch {
    /// Watches this very file, whatever its name does.
    pub(super) fn on(file: &File) -> io::Result<Self> {
        let hub = hub()?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let changed = Arc::new(Notify::new());
        let mut table = hub.table();
        let descriptor = hub
            .inotify
            .add_watch(path.as_str(), AddWatchFlags::IN_MODIFY)?;
        table
            .entry(descriptor)
            .or_default()
            .push(Arc::clone(&changed));
        drop(table);
        Ok(Self {
            hub,
            descriptor,
            changed,
        })
    }

    /// Returns after the next write, or at once when there was one since the last call. One waiter
    /// at a time.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut table = self.hub.table();
        let Some(waiters) = table.get_mut(&self.descriptor) else {
            return;
        };
        waiters.retain(|waiter| !Arc::ptr_eq(waiter, &self.changed));
        if waiters.is_empty() {
            table.remove(&self.descriptor);
            // Fails when the file no longer exists, and the kernel's watch with it.
            let _ = self.hub.inotify.rm_watch(self.descriptor);
        }
    }
}

impl Hub {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, events: &[InotifyEvent]) {
        let table = self.table();
        for event in events {
            if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                table
                    .values()
                    .flatten()
                    .for_each(|waiter| waiter.notify_one());
            } else if let Some(waiters) = table.get(&event.wd) {
                waiters.iter().for_each(|waiter| waiter.notify_one());
            }
        }
    }

    fn serve(&self) {
        loop {
            match self.inotify.read_events() {
                Ok(events) => self.wake(&events),
                Err(Errno::EINTR) => {}
                Err(errno) => {
                    tracing::error!(error = %errno, "console watch failed: logs are not updated");
                    return;
                }
            }
        }
    }
}

fn hub() -> io::Result<Arc<Hub>> {
    let mut current = HUB.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(hub) = &*current {
        return Ok(Arc::clone(hub));
    }
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    let hub = Arc::new(Hub {
        inotify,
        table: Mutex::default(),
    });
    let served = Arc::clone(&hub);
    std::thread::Builder::new()
        .name("console-watch".into())
        .stack_size(128 * 1024)
        .spawn(move || served.serve())?;
    *current = Some(Arc::clone(&hub));
    Ok(hub)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::time::timeout;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn each_of_two_watches_sees_a_write_and_the_second_survives_the_first() {
        let mut file = tempfile::tempfile().unwrap();
        let first = Watch::on(&file).unwrap();
        let second = Watch::on(&file).unwrap();
        assert!(first.changed().now_or_never().is_none());
        file.write_all(b"x").unwrap();
        timeout(LONG, first.changed()).await.unwrap();
        timeout(LONG, second.changed()).await.unwrap();
        drop(first);
        file.write_all(b"y").unwrap();
        timeout(LONG, second.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn a_write_before_the_wait_is_not_missed() {
        let mut file = tempfile::tempfile().unwrap();
        let watch = Watch::on(&file).unwrap();
        let mut other_file = tempfile::tempfile().unwrap();
        let other = Watch::on(&other_file).unwrap();
        file.write_all(b"x").unwrap();
        // The second file's event comes behind the first's in the same queue.
        other_file.write_all(b"x").unwrap();
        timeout(LONG, other.changed()).await.unwrap();
        assert!(watch.changed().now_or_never().is_some());
    }
}
