//! Programs in the pod of Vmlet on a node: the way to a node that the API server alone gives.
//!
//! Invariant: what a program writes arrives complete, or reading it is an error; nothing waits for
//! a connection that is silent for [`SILENCE`].
//! Failure: [`NodePodError`] with what the user can do; [`Lost`] when the connection ends early.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{Api, AttachParams, AttachedProcess, ListParams};
use kube::client::UpgradeConnectionError;
use kube::{Client, ResourceExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};

use super::ClusterError;

/// Time without a byte after which a connection counts as lost. The node's programs write more
/// often.
const SILENCE: Duration = Duration::from_secs(60);

/// Bytes of each stream that wait for us.
const BUFFER: usize = 1 << 20;

/// Most of what a program says of its failure.
const WORDS: usize = 4096;

/// The pods, and the container with the daemon.
const LABEL: &str = "app.kubernetes.io/name=vmlet-node";
const CONTAINER: &str = "daemon";

/// A node that cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodePodError {
    #[error(
        "node {node} has no running pod vmlet-node in namespace {namespace}: it cannot be reached now \
         (kubectl get pods -n {namespace} -o wide)"
    )]
    None { node: String, namespace: String },
    #[error(
        "not allowed: to run a program in pod {pod} needs create and get on pods/exec in namespace {namespace}"
    )]
    Forbidden { pod: String, namespace: String },
    #[error("failed to reach pod {pod} by the API server, which answers {code}")]
    Away { pod: String, code: u16 },
    #[error("failed to run a program in pod {pod}")]
    Exec {
        pod: String,
        #[source]
        source: ClusterError,
    },
}

impl NodePodError {
    /// Whether the same request may succeed later.
    pub(crate) const fn is_passing(&self) -> bool {
        matches!(self, Self::None { .. } | Self::Away { .. })
    }
}

/// A connection that has ended early.
#[derive(Debug)]
pub(crate) enum Lost {
    Closed,
    Silent,
}

impl std::error::Error for Lost {}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the connection to the node was closed"),
            Self::Silent => write!(f, "the node was silent for {} s", SILENCE.as_secs()),
        }
    }
}

/// How a program has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    /// With this exit code, if it is known, and these words.
    Failure(Option<i32>, String),
}

/// The pod of a node.
pub(crate) struct NodePod {
    pods: Api<Pod>,
    namespace: String,
    name: String,
}

/// A program that runs.
pub(crate) struct Program {
    /// What it reads.
    pub(crate) input: Box<dyn AsyncWrite + Send + Unpin>,
    /// What it writes.
    pub(crate) output: Output,
    errors: JoinHandle<String>,
    /// Ends the connection when it is dropped.
    _process: AttachedProcess,
}

type Ended = Pin<Box<dyn Future<Output = Option<Status>> + Send>>;

/// What a program writes, until it ends.
pub(crate) struct Output {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    ended: Option<Ended>,
    status: Option<Status>,
    silence: Pin<Box<Sleep>>,
}

impl NodePod {
    /// The nodes that have one, and whether it runs now.
    pub(crate) async fn nodes(
        client: Client,
        namespace: &str,
    ) -> Result<BTreeMap<String, bool>, ClusterError> {
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let found = pods.list(&ListParams::default().labels(LABEL)).await;
        let found = found.map_err(|error| ClusterError::about(namespace, "", error))?;
        let mut nodes = BTreeMap::new();
        for pod in found.items {
            let is_running = runs(&pod);
            if let Some(node) = pod.spec.and_then(|spec| spec.node_name) {
                *nodes.entry(node).or_default() |= is_running;
            }
        }
        Ok(nodes)
    }

    /// Looks for the pod of a node.
    pub(crate) async fn find(
        client: Client,
        namespace: &str,
        node: &str,
    ) -> Result<Self, anyhow::Error> {
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let params = ListParams::default().labels(LABEL);
        let params = params.fields(&format!("spec.nodeName={node}"));
        let found = pods.list(&params).await;
        let found = found.map_err(|error| ClusterError::about(namespace, "", error))?;
        let mut running = found.items.iter().filter(|pod| runs(pod));
        let none = || NodePodError::None {
            node: node.to_owned(),
            namespace: namespace.to_owned(),
        };
        let name = running.next().ok_or_else(none)?.name_any();
        let namespace = namespace.to_owned();
        Ok(Self {
            pods,
            namespace,
            name,
        })
    }

    /// Starts a program.
    pub(crate) async fn start(&self, command: Vec<String>) -> Result<Program, NodePodError> {
        let params = AttachParams::default()
            .container(CONTAINER)
            .stdin(true)
            .stderr(true)
            .max_stdin_buf_size(BUFFER)
            .max_stdout_buf_size(BUFFER);
        let process = self.pods.exec(&self.name, command, &params).await;
        let mut process = process.map_err(|error| self.refused(error))?;
        let errors = process.stderr().map(words);
        let errors = tokio::spawn(async move {
            match errors {
                Some(errors) => errors.await,
                None => String::new(),
            }
        });
        let ended = process.take_status();
        let stream = process.stdout();
        Ok(Program {
            input: match process.stdin() {
                Some(input) => Box::new(input),
                None => Box::new(tokio::io::sink()),
            },
            output: Output {
                stream: match stream {
                    Some(stream) => Box::new(stream),
                    None => Box::new(tokio::io::empty()),
                },
                ended: ended.map(|ended| Box::pin(ended) as Ended),
                status: None,
                silence: Box::pin(tokio::time::sleep(SILENCE)),
            },
            errors,
            _process: process,
        })
    }

    fn refused(&self, error: kube::Error) -> NodePodError {
        let pod = self.name.clone();
        let code = match &error {
            kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(code)) => {
                code.as_u16()
            }
            // Where the answer has a reason.
            kube::Error::Api(status) => status.code,
            _ => 0,
        };
        match code {
            401 | 403 => NodePodError::Forbidden {
                pod,
                namespace: self.namespace.clone(),
            },
            404 | 429 | 500.. => NodePodError::Away { pod, code },
            _ => NodePodError::Exec {
                source: ClusterError::about(&self.namespace, &pod, error),
                pod,
            },
        }
    }
}

impl Program {
    /// How it has ended. What it still writes is read and dropped.
    pub(crate) async fn end(mut self) -> io::Result<End> {
        tokio::io::copy(&mut self.output, &mut tokio::io::sink()).await?;
        let status = match (self.output.status.take(), self.output.ended.take()) {
            (Some(status), _) => Some(status),
            (None, Some(ended)) => ended.await,
            (None, None) => None,
        };
        let status = status.ok_or_else(|| io::Error::other(Lost::Closed))?;
        if status.status.as_deref() == Some("Success") {
            return Ok(End::Success);
        }
        let words = self.errors.await.unwrap_or_default();
        Ok(failure(&status, words))
    }
}

impl AsyncRead for Output {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(context, buffer) {
            this.silence.as_mut().reset(Instant::now() + SILENCE);
            return Poll::Ready(read);
        }
        if let Some(ended) = &mut this.ended
            && let Poll::Ready(status) = ended.as_mut().poll(context)
        {
            this.ended = None;
            this.status = status;
            if this.status.is_none() {
                return Poll::Ready(Err(io::Error::other(Lost::Closed)));
            }
        }
        match this.silence.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::other(Lost::Silent))),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn runs(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

/// The beginning of what a program says.
async fn words(mut from: impl AsyncRead + Unpin) -> String {
    let mut text = Vec::new();
    // A part is better than nothing.
    let _ = (&mut from).take(WORDS as u64).read_to_end(&mut text).await;
    let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    printable(&String::from_utf8_lossy(&text))
}

/// The beginning of a text, without what a terminal would obey.
fn printable(text: &str) -> String {
    text.chars()
        .take(WORDS)
        .filter(|c| !c.is_control() || *c == '\n')
        .collect::<String>()
        .trim()
        .to_owned()
}

/// How a program has failed that has said this; the node's words where it has said nothing.
fn failure(status: &Status, words: String) -> End {
    let words = if words.is_empty() {
        printable(status.message.as_deref().unwrap_or_default())
    } else {
        words
    };
    End::Failure(exit_code(status), words)
}

fn exit_code(status: &Status) -> Option<i32> {
    let causes = status.details.as_ref()?.causes.as_ref()?;
    let cause = causes
        .iter()
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"))?;
    cause.message.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use serde_json::json;

    use super::*;

    fn output(bytes: &'static [u8], closed: bool, ended: Ended) -> Output {
        let stream: Box<dyn AsyncRead + Send + Unpin> = if closed {
            Box::new(bytes)
        } else {
            Box::new(bytes.chain(Never))
        };
        Output {
            stream,
            ended: Some(ended),
            status: None,
            silence: Box::pin(tokio::time::sleep(SILENCE)),
        }
    }

    /// A stream that stays open.
    struct Never;

    impl AsyncRead for Never {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    async fn read(mut output: Output) -> (Vec<u8>, Option<String>) {
        let mut bytes = Vec::new();
        let read = output.read_to_end(&mut bytes).await;
        (bytes, read.err().map(|error| error.to_string()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_breaks_off_is_no_end() {
        let success = || Box::pin(ready(Some(Status::default()))) as Ended;
        let complete = read(output(b"all", true, success())).await;
        assert_eq!(complete, (b"all".to_vec(), None));
        let lost = read(output(b"a part", false, Box::pin(ready(None)))).await;
        let words = lost.1.unwrap();
        assert!(
            lost.0 == b"a part" && words.contains("was closed"),
            "{words}"
        );
        let silent = read(output(b"a part", false, Box::pin(pending()))).await;
        let words = silent.1.unwrap();
        assert!(
            silent.0 == b"a part" && words.contains("silent for 60 s"),
            "{words}"
        );
    }

    #[test]
    fn the_exit_code_is_among_the_causes() {
        let status = json!({"status": "Failure", "reason": "NonZeroExitCode", "message": "x",
            "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}});
        let status: Status = serde_json::from_value(status).unwrap();
        assert_eq!(exit_code(&status), Some(3));
        assert_eq!(exit_code(&Status::default()), None);
    }

    #[tokio::test]
    async fn words_of_a_program_are_bounded_and_printable() {
        assert_eq!(
            words(&b"error: \x1b[2Jno disk\n"[..]).await,
            "error: [2Jno disk"
        );
        let long = vec![b'x'; 3 * WORDS];
        assert_eq!(words(&long[..]).await.len(), WORDS);
        let message = format!("\x1b[2J{}", "x".repeat(3 * WORDS));
        let status = Status {
            message: Some(message),
            ..Status::default()
        };
        let End::Failure(_, text) = failure(&status, String::new()) else {
            panic!("a failure");
        };
        assert!(text.starts_with("[2Jx") && text.len() < WORDS, "{text}");
        let own = failure(&status, "own".to_owned());
        assert_eq!(own, End::Failure(None, "own".to_owned()));
    }
}
