//! What transfers of files from and to nodes have in common.
//!
//! Invariant: an attempt is repeated until none has brought anything for [`IDLE`], and only if the
//! next one may succeed.
//! Failure: [`NodeError`] with the sentence of the program on the node.

pub(super) mod backup;
mod claim;
pub(super) mod disk;
pub(super) mod fetch;
pub(super) mod line;
pub(super) mod progress;
pub(super) mod receive;
pub(super) mod send;

use std::io;
use std::time::Duration;

use anyhow::anyhow;
use tokio::time::Instant;

use self::progress::Progress;
use crate::cluster::ClusterError;
use crate::cluster::node_pod::{End, NodePodError, Program};

/// Time in which attempts that bring nothing are repeated: a daemon starts again in less.
const IDLE: Duration = Duration::from_secs(180);

/// Time between two of them.
const PAUSE: Duration = Duration::from_secs(2);

/// Exit code of a program on the node after which another attempt may succeed.
pub(super) const AGAIN: u8 = 3;

/// Exit codes of a program that got SIGKILL or SIGTERM, as when its container ends.
const KILLED: [i32; 2] = [137, 143];

/// Exit code of a program for a command line that it does not know.
const USAGE: i32 = 2;

/// What the program on the node says of its failure.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
struct NodeError {
    words: String,
    is_passing: bool,
}

/// A connection that was lost.
#[derive(Debug, thiserror::Error)]
#[error("failed to reach the program on the node")]
struct LostError(#[source] io::Error);

/// The attempts of a transfer.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// Bytes that were there when the last one ended.
    reached: u64,
    /// End of the first one since that number has changed.
    since: Option<Instant>,
    /// What was printed.
    said: String,
}

impl Attempts {
    /// Waits until it is time for the next attempt, after one that ended with this error when
    /// `reached` bytes were there; the error when none has changed that for [`IDLE`].
    pub(super) async fn again(
        &mut self,
        error: anyhow::Error,
        reached: u64,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        if reached != self.reached {
            self.reached = reached;
            self.since = None;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= IDLE {
            return Err(error);
        }
        let text = format!("{error:#}: trying again");
        if text != self.said {
            progress.say(&text);
            self.said = text;
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

/// Whether another attempt may succeed.
pub(super) fn is_passing(error: &anyhow::Error) -> bool {
    let passes = |cause: &(dyn std::error::Error + 'static)| {
        let cluster = cause.downcast_ref().is_some_and(ClusterError::is_transient);
        let node = cause.downcast_ref();
        let node = node.is_some_and(|node: &NodeError| node.is_passing);
        let pod = cause.downcast_ref().is_some_and(NodePodError::is_passing);
        cluster || node || pod || cause.is::<LostError>()
    };
    error.chain().any(passes)
}

/// Why the program on a node ended early; none: it succeeded.
pub(super) async fn failure(program: Program, node: &str) -> Option<anyhow::Error> {
    match program.end().await {
        Ok(End::Success) => None,
        Ok(End::Failure(code, words)) => Some(failed(code, &words, node)),
        Err(error) => Some(LostError(error).into()),
    }
}

/// What a program has said that ended with this exit code.
fn failed(code: Option<i32>, words: &str, node: &str) -> anyhow::Error {
    if code == Some(USAGE) {
        return anyhow!(
            "the Vmlet of node {node} is older than this program and transfers no files: upgrade the node"
        );
    }
    let is_passing = code.is_some_and(|code| code == i32::from(AGAIN) || KILLED.contains(&code));
    let words = words.trim_start_matches("error: ").to_owned();
    let error = anyhow::Error::from(NodeError { words, is_passing });
    error.context(format!("node {node}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_repeated_only_if_it_may_succeed() {
        for code in [AGAIN.into(), 137, 143] {
            assert!(is_passing(&failed(Some(code), "", "n1")), "{code}");
        }
        for code in [Some(1), Some(USAGE), None] {
            assert!(!is_passing(&failed(code, "", "n1")), "{code:?}");
        }
        let none = NodePodError::None {
            node: "n1".to_owned(),
            namespace: "vmlet-system".to_owned(),
        };
        assert!(is_passing(&none.into()), "its pod is replaced");
        let lost = LostError(io::ErrorKind::TimedOut.into());
        assert!(is_passing(&lost.into()));
        assert!(is_passing(&ClusterError::Unreachable(String::new()).into()));
        assert!(!is_passing(&anyhow!("other")));
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_end_when_none_has_brought_anything_for_a_while() {
        let progress = Progress::hidden();
        let lost = || anyhow!("lost");
        let mut attempts = Attempts::default();
        // The first attempt may take as long as the node needs for its file.
        tokio::time::sleep(4 * IDLE).await;
        for reached in 0..200 {
            attempts.again(lost(), reached, &progress).await.unwrap();
        }
        let begin = Instant::now();
        while attempts.again(lost(), 199, &progress).await.is_ok() {}
        let idle = begin.elapsed() + PAUSE;
        assert!(idle >= IDLE && idle < IDLE + 2 * PAUSE, "{idle:?}");
    }
}
