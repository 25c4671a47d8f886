//! The errors of image pulls.
//!
//! Invariant: no text holds a query string or credentials; a text starts with what is wrong.
//! Failure: errors are values; callers that share one download get clones of the same error.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::checksum::Checksum;
use super::digest::Digest;
use crate::metadata;

/// Longest reason of an error about the content of an image, in characters.
const LONGEST_REASON: usize = 400;

/// A failed step of an image request.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The text cannot be an image's name. The caller's mistake.
    #[error("invalid image name {name:?}: it {reason}")]
    InvalidName {
        /// The text without credentials and query, shortened.
        name: String,
        /// What is wrong, as the rest of a sentence about the name.
        reason: Cow<'static, str>,
    },
    /// The directory of the cluster's mappings failed.
    #[error("keep the image mappings of the cluster")]
    Mappings(#[source] Arc<io::Error>),
    /// A translation rule cannot work. The node's configuration is wrong.
    #[error("invalid image translation for {pattern:?}: {reason}")]
    Translation {
        /// The rule's name, prefix or expression.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No image of the store has this name or id.
    #[error("no image {reference:?} in the store; pull it first")]
    Absent {
        /// What was requested.
        reference: String,
    },
    /// A file of a client, which no server has.
    #[error(
        "image {name} was uploaded to other nodes, and no server has it: upload it to this node, too, or run the machine \
         on a node that has it"
    )]
    Uploaded {
        /// The image's name.
        name: String,
    },
    /// A sandbox's image was lost from disk behind our back; pulling the same content brings it
    /// back.
    #[error("image {digest}, pinned for {owner}, is gone from disk")]
    Vanished {
        /// The owner of the pin.
        owner: String,
        /// The image.
        digest: Digest,
    },
    /// The server has no such file: 404 or 410.
    #[error("not found: {location} answered {status}")]
    NotFound {
        /// Host and path.
        location: String,
        /// Status code and its usual text.
        status: String,
    },
    /// The server refuses: another status that will not change by asking again.
    #[error("refused: {location} answered {status}")]
    Refused {
        /// Host and path.
        location: String,
        /// Status code: 401 and 403 speak of the credentials.
        code: u16,
        /// Status code and its usual text.
        status: String,
    },
    /// The URL, or a redirect from it, leads to an address that images are not fetched from. The
    /// text is the same for all such addresses and says nothing about what listens there.
    #[error(
        "refused: {location} leads to an address that this node fetches no images from; an \
         administrator may list it in images.allowed_addresses"
    )]
    Address {
        /// Host and path of the URL.
        location: String,
    },
    /// The server has troubles: 5xx, after all retries.
    #[error("unavailable: {location} answered {status}")]
    Unavailable {
        /// Host and path.
        location: String,
        /// Status code and its usual text.
        status: String,
    },
    /// No connection, or a broken one, after all retries.
    #[error("failed to fetch {location}: {reason}")]
    Fetch {
        /// Host and path.
        location: String,
        /// The innermost cause: the others name the steps of the client.
        reason: String,
    },
    /// The server's certificate comes from no authority that this node trusts, or is for another
    /// host.
    #[error("untrusted: failed to fetch {location}: {reason}")]
    Untrusted {
        /// Host and path.
        location: String,
        /// What is wrong with the certificate.
        reason: String,
    },
    /// Too many redirects, or one that would give up encryption.
    #[error("misdirected: failed to fetch {location}: {reason}")]
    Redirect {
        /// Host and path of the first request.
        location: String,
        /// Which of both.
        reason: String,
    },
    /// The server sent nothing for the stall time, after all retries.
    #[error("stalled: {location} sent nothing for {seconds} s")]
    Stalled {
        /// Host and path.
        location: String,
        /// The limit.
        seconds: u64,
    },
    /// The download took longer than the transport of its rule allows. What arrived is kept for the
    /// next pull.
    #[error(
        "timed out: the download of {location} took longer than {ms} ms, the timeout of its transport"
    )]
    Overdue {
        /// Host and path.
        location: String,
        /// The limit.
        ms: u64,
    },
    /// The body ended early, after all retries. What arrived is kept for the next pull.
    #[error("truncated: {location} sent {received} of {total} bytes")]
    Truncated {
        /// Host and path.
        location: String,
        /// Bytes in the partial file.
        received: u64,
        /// Bytes announced by the server.
        total: u64,
    },
    /// The reply makes no sense: encoded body, wrong range.
    #[error("unusable reply from {location}: {reason}")]
    Reply {
        /// Host and path.
        location: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// The file is larger than downloads may be.
    #[error("too large: {location} has more than {limit} bytes")]
    TooLarge {
        /// Host and path.
        location: String,
        /// The limit.
        limit: u64,
    },
    /// The content does not match the digest in the name.
    #[error("digest mismatch: {location} has {actual}, expected {expected}")]
    Digest {
        /// Host and path.
        location: String,
        /// From the name.
        expected: Box<Checksum>,
        /// Of the file.
        actual: Box<Checksum>,
    },
    /// A file of checksums does not say what the image is.
    #[error("unusable checksums from {location}: {reason} {file}")]
    Checksums {
        /// Host and path.
        location: String,
        /// What is wrong, up to the name of the file.
        reason: &'static str,
        /// The name at the end of the image's URL.
        file: String,
    },
    /// The content is not a disk that may be used.
    #[error("unusable image from {location}: {reason}")]
    Format {
        /// Host and path.
        location: String,
        /// What is wrong.
        #[source]
        reason: super::format::Error,
    },
    /// The file, or what a registry says of the image, is not as such files are.
    #[error("unusable image from {location}: {reason}")]
    Content {
        /// Host and path.
        location: String,
        /// What is wrong.
        reason: String,
    },
    /// The image could not be converted to qcow2. The download is kept for the next pull.
    #[error("cannot convert the image from {location}: {reason}")]
    Convert {
        /// Host and path.
        location: String,
        /// What `qemu-img` or the kernel reported.
        reason: String,
    },
    /// The server sends too slowly. What arrived is kept for the next pull.
    #[error("too slow: {location} sends less than {limit} bytes per second (images.min_rate)")]
    Slow {
        /// Host and path.
        location: String,
        /// The least rate.
        limit: u64,
    },
    /// Other downloads take all that downloads may take.
    #[error(
        "too many downloads: those in progress take the {limit} bytes of images.max_partial; pull \
         again when they have ended"
    )]
    Crowded {
        /// The limit.
        limit: u64,
    },
    /// What the node's configuration says of a registry cannot be used.
    #[error("invalid registry configuration {}: {reason}", path.display())]
    Registry {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The disk of the store is full; the partial file was removed.
    #[error("no space left in {}{because}", dir.display())]
    NoSpace {
        /// The store's directory.
        dir: PathBuf,
        /// Empty, or the reserve that the node keeps free.
        because: String,
        /// Bytes that must be free for the file; 0: unknown.
        required: u64,
    },
    /// The file system failed.
    #[error("{action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: Arc<io::Error>,
    },
    /// The process that unpacks a file failed, or the file cannot be read: nothing is known of its content.
    #[error("failed to unpack {location}: {reason}")]
    Decoder {
        /// Host and path, without query and credentials.
        location: String,
        /// What failed.
        reason: String,
    },
    /// The daemon stops; the next pull continues.
    #[error("the daemon is stopping; pull again")]
    Stopping,
    /// The root certificates or the HTTP client's settings are unusable.
    #[error("set up the HTTP client")]
    Client(#[source] Arc<reqwest::Error>),
    /// The database failed; the request changed nothing that matters.
    #[error("record images")]
    Record(#[source] Arc<metadata::Error>),
    /// The daemon is going down, or a thread of ours failed.
    #[error("interrupted")]
    Interrupted(#[source] Arc<tokio::task::JoinError>),
}

/// Outcome of an image request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// [`Self::Digest`], of the file at that host and path.
    pub(super) fn digest(
        location: String,
        expected: impl Into<Checksum>,
        actual: impl Into<Checksum>,
    ) -> Self {
        Self::Digest {
            location,
            expected: Box::new(expected.into()),
            actual: Box::new(actual.into()),
        }
    }

    /// Whether the network, the server or a process of the node has troubles, so that the same request may succeed a
    /// moment later.
    pub const fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Fetch { .. }
                | Self::Unavailable { .. }
                | Self::Stalled { .. }
                | Self::Slow { .. }
                | Self::Overdue { .. }
                | Self::Truncated { .. }
                | Self::Decoder { .. }
        )
    }

    /// The error for content that is not as it must be. `reason` may repeat what is in it.
    pub(super) fn content(location: impl Into<String>, reason: &str) -> Self {
        Self::Content {
            location: location.into(),
            reason: printable(reason),
        }
    }

    /// The error for a file that its decoder did not unpack. `reason` may repeat what is in it.
    pub(super) fn decoder(location: impl Into<String>, reason: &str) -> Self {
        Self::Decoder {
            location: location.into(),
            reason: printable(reason),
        }
    }

    /// The error for an image that could not be converted. `reason` may repeat what is in it.
    pub(super) fn convert(location: impl Into<String>, reason: &str) -> Self {
        Self::Convert {
            location: location.into(),
            reason: printable(reason),
        }
    }

    /// Makes errors of file operations, for `map_err`.
    pub(super) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            path,
            source: Arc::new(source),
        }
    }
}

/// A text that may repeat words of a server: printable, on one line, short.
fn printable(text: &str) -> String {
    let shown = text.chars().take(LONGEST_REASON);
    shown
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

impl From<metadata::Error> for Error {
    fn from(source: metadata::Error) -> Self {
        Self::Record(Arc::new(source))
    }
}

impl From<tokio::task::JoinError> for Error {
    fn from(source: tokio::task::JoinError) -> Self {
        Self::Interrupted(Arc::new(source))
    }
}
