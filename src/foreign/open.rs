//! Files and directories that are open at an owner that may never answer.
//!
//! Invariant: their owner's thread does all that reaches the owner, the close included, which may
//! write to a server; so it delays no thread of the runtime, also when a future is dropped.
//! Failure: as of [`Foreign`].

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use super::{Error, Foreign};

/// Something that is open at an owner; clones share it, and the last one closes it.
#[derive(Debug)]
pub struct Open<T: Send + Sync + 'static> {
    /// `None` at its end only.
    value: Option<Arc<T>>,
    foreign: Foreign,
    owner: String,
}

impl Foreign {
    /// Keeps what was opened for an owner.
    pub fn keep<T: Send + Sync + 'static>(&self, owner: &str, value: T) -> Open<T> {
        Open {
            value: Some(Arc::new(value)),
            foreign: self.clone(),
            owner: owner.to_owned(),
        }
    }
}

impl<T: Send + Sync + 'static> Open<T> {
    /// Keeps what belongs to the same owner.
    pub fn keep<U: Send + Sync + 'static>(&self, value: U) -> Open<U> {
        self.foreign.keep(&self.owner, value)
    }

    /// The value, for calls that do not reach its owner, such as the duplicate of a descriptor.
    pub fn local(&self) -> &T {
        match &self.value {
            Some(value) => value,
            None => unreachable!("it is there until it is dropped"),
        }
    }

    /// Waits until it is closed, unless a clone of it is left.
    pub async fn close(self) -> Result<(), Error> {
        let foreign = self.foreign.clone();
        let owner = self.owner.clone();
        drop(self);
        foreign.look(&owner, || ()).await
    }

    /// As [`Foreign::look`].
    pub async fn look<R: Send + 'static>(
        &self,
        work: impl FnOnce(&T) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let this = self.clone();
        let work = move || work(this.local());
        self.foreign.look(&self.owner, work).await
    }

    /// As [`Foreign::run`].
    pub async fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce(&T) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let this = self.clone();
        let work = move || work(this.local());
        self.foreign.run(&self.owner, work).await
    }
}

impl Open<File> {
    /// Another descriptor of the file.
    pub fn duplicate(&self) -> io::Result<Self> {
        Ok(self.keep(self.local().try_clone()?))
    }
}

impl AsFd for Open<File> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.local().as_fd()
    }
}

impl AsRawFd for Open<File> {
    fn as_raw_fd(&self) -> RawFd {
        self.local().as_raw_fd()
    }
}

impl<T: Send + Sync + 'static> Clone for Open<T> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            foreign: self.foreign.clone(),
            owner: self.owner.clone(),
        }
    }
}

impl<T: Send + Sync + 'static> Drop for Open<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take().and_then(Arc::into_inner) {
            let owner = std::mem::take(&mut self.owner);
            self.foreign.turns.leave(owner, Box::new(value));
        }
    }
}
