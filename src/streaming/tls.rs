//! TLS of the streaming server.
//!
//! Invariant: the certificate and its key serve the first connection after they change; a key that
//! does not belong to the certificate never serves.
//! Failure: [`Error`] names the file, at the start. Later, files that do not serve are reported
//! once, and the certificate of before stays.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::foreign::Foreign;

/// Time for a look at the files.
const LOOK: Duration = Duration::from_secs(2);

/// The files of a server with TLS, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// Certificates: that of the server first.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The certificate of now.
#[derive(Debug)]
pub(super) struct Tls {
    files: Files,
    reader: Foreign<()>,
    current: Mutex<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    /// The files that it was made of.
    seen: Stamp,
    /// Files that do not serve, and were reported.
    refused: Option<Stamp>,
}

/// What changes with a file: inode, time of the last change, length; of certificate and key.
type Stamp = [Option<(u64, i64, i64, u64)>; 2];

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// A file has no certificate, or no key.
    #[error("{path} has no {what} in PEM")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should have.
        what: &'static str,
    },
    /// Certificate and key do not serve.
    #[error("use the certificate {path}")]
    Use {
        /// The file with the certificate.
        path: PathBuf,
        /// The reason.
        #[source]
        source: rustls::Error,
    },
}

impl Tls {
    /// Reads the files for the first time.
    pub(super) async fn load(files: Files) -> Result<Self, Error> {
        let to_read = files.clone();
        let read = move || (to_read.stamp(), to_read.acceptor());
        let read = tokio::task::spawn_blocking(read).await;
        let (seen, acceptor) = read.map_err(|ended| Error::Read {
            path: files.certificate.clone(),
            source: std::io::Error::other(ended),
        })?;
        let current = Current {
            acceptor: acceptor?,
            seen,
            refused: None,
        };
        Ok(Self {
            files,
            reader: Foreign::default(),
            current: Mutex::new(current),
        })
    }

    /// What accepts a connection now.
    pub(super) async fn acceptor(&self) -> TlsAcceptor {
        let files = self.files.clone();
        let seen = self.current().seen;
        let look = move || {
            // Before the files, so that a change meanwhile is noticed the next time.
            let stamp = files.stamp();
            (stamp != seen).then(|| (stamp, files.acceptor()))
        };
        let changed = self.reader.read((), LOOK, look).await.flatten();
        let mut current = self.current();
        match changed {
            Some((seen, Ok(acceptor))) => {
                let path = self.files.certificate.display();
                tracing::info!(%path, "streaming certificate changed");
                *current = Current {
                    acceptor,
                    seen,
                    refused: None,
                };
            }
            Some((stamp, Err(error))) if current.refused != Some(stamp) => {
                let error = crate::one_line(&error);
                tracing::warn!(error, "streaming certificate not changed");
                current.refused = Some(stamp);
            }
            _ => {}
        }
        current.acceptor.clone()
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Current")
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl Files {
    fn stamp(&self) -> Stamp {
        [&self.certificate, &self.key].map(|path| {
            let is = std::fs::metadata(path).ok()?;
            Some((is.ino(), is.mtime(), is.mtime_nsec(), is.len()))
        })
    }

    /// What accepts connections. Blocks.
    fn acceptor(&self) -> Result<TlsAcceptor, Error> {
        let pem = |path: &Path, what| Error::Pem {
            path: path.to_owned(),
            what,
        };
        let certificates = read(&self.certificate)?;
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(&certificates)
            .collect::<Result<_, _>>()
            .ok()
            .filter(|all: &Vec<_>| !all.is_empty())
            .ok_or_else(|| pem(&self.certificate, "certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?)
            .map_err(|_| pem(&self.key, "private key"))?;
        let refused = |source| Error::Use {
            path: self.certificate.clone(),
            source,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(refused)?
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .map_err(refused)?;
        Ok(Arc::new(config).into())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}
