//! The address of the daemon, and the connection to it.
//!
//! Invariant: a connection that is handed out has answered `Version` within the deadline.
//! Failure: [`ConnectError`] states which socket, why it does not serve, and what to do.

use std::io::{Error as IoError, ErrorKind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint as Transport};

use crate::runtime::{CallError, Runtime};

/// How long the daemon may take to accept and to answer its first request.
const CONNECT: Duration = Duration::from_secs(5);

/// The socket of a CRI daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint(PathBuf);

/// A text that names no unix socket.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a socket: unix:///path/to/vmlet.sock is")]
pub(crate) struct EndpointError(String);

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let path = text
            .strip_prefix("unix://")
            .or_else(|| text.strip_prefix("unix:"));
        let path = Path::new(path.unwrap_or(text));
        if path.is_absolute() && path.file_name().is_some() {
            Ok(Self(path.to_owned()))
        } else {
            Err(EndpointError(text.to_owned()))
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("no daemon at {}: the socket does not exist", .0.display())]
    Missing(PathBuf),
    #[error("no daemon at {}: no process listens on the socket", .0.display())]
    Refused(PathBuf),
    #[error("no access to the daemon's socket {}", .0.display())]
    Denied(PathBuf),
    #[error("connect to {}", .path.display())]
    Connect {
        path: PathBuf,
        #[source]
        source: IoError,
    },
    #[error("the daemon at {} accepts, but does not answer within {} s", .0.display(), CONNECT.as_secs())]
    Silent(PathBuf),
    #[error("what listens at {} does not speak CRI", .path.display())]
    Protocol {
        path: PathBuf,
        #[source]
        source: CallError,
    },
    #[error("open a channel to {}", .path.display())]
    Channel {
        path: PathBuf,
        #[source]
        source: tonic::transport::Error,
    },
}

impl ConnectError {
    fn from_io(path: &Path, source: IoError) -> Self {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::NotFound => Self::Missing(path),
            ErrorKind::ConnectionRefused => Self::Refused(path),
            ErrorKind::PermissionDenied => Self::Denied(path),
            _ => Self::Connect { path, source },
        }
    }

    /// What the user can do, as one line.
    pub(crate) const fn advice(&self) -> &'static str {
        match self {
            Self::Missing(_) | Self::Connect { .. } | Self::Channel { .. } => {
                "start the daemon (systemctl start vmlet), or name its socket with --endpoint or \
                 CONTAINER_RUNTIME_ENDPOINT"
            }
            Self::Refused(_) => {
                "the daemon has ended: see its log (journalctl -u vmlet) and start it again \
                 (systemctl start vmlet)"
            }
            Self::Denied(_) => "only root may talk to the daemon: run this with sudo",
            Self::Silent(_) => {
                "the daemon hangs or is overloaded: see its log (journalctl -u vmlet); restarting \
                 it leaves VMs running"
            }
            Self::Protocol { .. } => {
                "name the daemon's own socket with --endpoint or CONTAINER_RUNTIME_ENDPOINT"
            }
        }
    }
}

/// What to do about an error, when it is one of those that know.
pub(crate) fn advice(error: &anyhow::Error) -> Option<&'static str> {
    error
        .chain()
        .find_map(|cause| cause.downcast_ref::<ConnectError>())
        .map(ConnectError::advice)
}

impl Endpoint {
    /// Connects and makes sure that a CRI runtime answers.
    pub(crate) async fn connect(&self) -> Result<Runtime, ConnectError> {
        let path = self.0.as_path();
        let silent = || ConnectError::Silent(path.to_owned());
        // The transport hides the kernel's reason, so the socket is tried by itself first.
        let probe = timeout(CONNECT, UnixStream::connect(path))
            .await
            .map_err(|_| silent())?;
        drop(probe.map_err(|e| ConnectError::from_io(path, e))?);

        let channel = |source| ConnectError::Channel {
            path: path.to_owned(),
            source,
        };
        let transport =
            Transport::from_shared(format!("unix://{}", path.display())).map_err(channel)?;
        let connected: Result<Channel, _> = timeout(CONNECT, transport.connect())
            .await
            .map_err(|_| silent())?;
        let runtime = Runtime::new(connected.map_err(channel)?);
        match runtime.version(CONNECT).await {
            Ok(_) => Ok(runtime),
            Err(CallError::Late { .. }) => Err(silent()),
            Err(source) => Err(ConnectError::Protocol {
                path: path.to_owned(),
                source,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn an_endpoint_is_an_absolute_path_with_or_without_scheme() {
        for text in ["unix:///run/a.sock", "unix:/run/a.sock", "/run/a.sock"] {
            assert_eq!(
                text.parse::<Endpoint>().unwrap().0,
                Path::new("/run/a.sock")
            );
        }
        for text in [
            "",
            "run/a.sock",
            "tcp://127.0.0.1:1",
            "unix://run/a.sock",
            "unix:///",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    async fn error_at(path: &Path) -> ConnectError {
        let endpoint: Endpoint = path.to_str().unwrap().parse().unwrap();
        endpoint.connect().await.unwrap_err()
    }

    #[tokio::test]
    async fn an_absent_daemon_differs_from_a_dead_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vmlet.sock");
        let missing = error_at(&path).await;
        assert!(
            missing
                .to_string()
                .ends_with("vmlet.sock: the socket does not exist"),
            "{missing}"
        );
        drop(UnixListener::bind(&path).unwrap());
        let refused = error_at(&path).await;
        assert!(
            refused
                .to_string()
                .ends_with("no process listens on the socket"),
            "{refused}"
        );
        assert_ne!(missing.advice(), refused.advice());
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_never_answers_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vmlet.sock");
        let _silent = UnixListener::bind(&path).unwrap();
        assert!(matches!(error_at(&path).await, ConnectError::Silent(_)));
    }

    #[test]
    fn advice_is_found_through_added_context() {
        let error = ConnectError::Denied("/run/x".into());
        let error = anyhow::Error::from(error).context("run pod");
        assert_eq!(
            advice(&error),
            Some("only root may talk to the daemon: run this with sudo")
        );
        assert_eq!(advice(&anyhow::anyhow!("other")), None);
    }
}
