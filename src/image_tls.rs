//! The certificates for the server of an image, from a Secret that a pod or a task names.
//!
//! Invariant: each pull reads the Secret again, so that a rotation counts at once; its content stays
//! in memory for the length of the pull, and out of rows, logs and messages.
//! Failure: [`Error`] names the Secret, and what is wrong with it; a later pull may succeed.

use podspec::{Source, SourceKind};

use crate::images::{Images, ServerTls};
use crate::sources::{self, Sources, TIMEOUT, Wanted};

/// Why there are no certificates.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The agent could not read the Secret.
    #[error("certificates for the image's server: {wanted}: {reason}")]
    Refused {
        /// The Secret.
        wanted: Box<Wanted>,
        /// The agent's message.
        reason: String,
    },
    /// No agent has answered.
    #[error("certificates for the image's server: {wanted}: no vmlet-agent of this node has \
        answered within {} s", TIMEOUT.as_secs())]
    NoAnswer {
        /// The Secret.
        wanted: Box<Wanted>,
    },
    /// The Secret has other content.
    #[error("certificates for the image's server: {wanted}: {reason}")]
    Unusable {
        /// The Secret.
        wanted: Box<Wanted>,
        /// What is wrong; it repeats nothing of the content.
        reason: String,
    },
}

/// The Secret of this name, as a task requests it.
///
/// # Errors
///
/// A sentence when no Secret can have that name.
pub fn of_task(task: &str, secret: &str) -> Result<Wanted, &'static str> {
    Ok(Wanted {
        namespace: String::new(),
        pod: String::new(),
        pod_uid: String::new(),
        task: task.to_owned(),
        source: Source::new(SourceKind::Secret, secret)?,
    })
}

/// Reads a Secret by the agent, and checks it.
///
/// # Errors
///
/// [`Error`] when it cannot be read, or has no certificates that can be used.
pub async fn read(sources: &Sources, images: &Images, wanted: Wanted) -> Result<ServerTls, Error> {
    let boxed = || Box::new(wanted.clone());
    let content = sources.request(wanted.clone()).await;
    let content = content.map_err(|error| match error {
        sources::Error::Refused { reason, .. } => Error::Refused {
            wanted: boxed(),
            reason,
        },
        sources::Error::NobodyAnswered { .. } | sources::Error::Mount { .. } => {
            Error::NoAnswer { wanted: boxed() }
        }
    })?;
    let checked = images.server_tls(content).await;
    checked.map_err(|reason| Error::Unusable {
        wanted: boxed(),
        reason,
    })
}
