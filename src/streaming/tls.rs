//! TLS of the streaming server.
//!
//! Invariant: the certificate and its key are read once, at the start; a key that does not belong
//! to the certificate is refused then.
//! Failure: [`Error`] names the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// The files of a server with TLS, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// Certificates: that of the server first.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

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

impl Files {
    /// What accepts connections.
    pub(super) async fn acceptor(&self) -> Result<TlsAcceptor, Error> {
        let pem = |path: &Path, what| Error::Pem {
            path: path.to_owned(),
            what,
        };
        let certificates = read(&self.certificate).await?;
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(&certificates)
            .collect::<Result<_, _>>()
            .ok()
            .filter(|all: &Vec<_>| !all.is_empty())
            .ok_or_else(|| pem(&self.certificate, "certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key).await?)
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

async fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let read = tokio::fs::read(path).await;
    read.map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}
