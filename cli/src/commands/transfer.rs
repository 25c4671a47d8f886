//! What transfers of files from and to nodes have in common.
//!
//! Invariant: an attempt is repeated while attempts bring something, and only if the next one may
//! succeed.
//! Failure: [`NodeError`] with the sentence of the program on the node.

pub(super) mod line;
pub(super) mod progress;

use std::io;
use std::time::Duration;

use anyhow::anyhow;

use crate::cluster::ClusterError;
use crate::cluster::node_pod::{End, NodePodError, Program};

/// Attempts in a row that bring nothing.
pub(super) const ATTEMPTS: u32 = 5;

/// Time between two of them.
pub(super) const PAUSE: Duration = Duration::from_secs(2);

/// Exit code of a program on the node after which another attempt may succeed.
pub(super) const AGAIN: u8 = 3;

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
    let (code, words) = match program.end().await {
        Ok(End::Success) => return None,
        Ok(End::Failure(code, words)) => (code, words),
        Err(error) => return Some(LostError(error).into()),
    };
    if code == Some(USAGE) {
        return Some(anyhow!(
            "the Vmlet of node {node} is older than this program and transfers no files: upgrade the node"
        ));
    }
    let is_passing = code == Some(AGAIN.into());
    let words = words.trim_start_matches("error: ").to_owned();
    let error = anyhow::Error::from(NodeError { words, is_passing });
    Some(error.context(format!("node {node}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_repeated_only_if_it_may_succeed() {
        let node = |is_passing| NodeError {
            words: String::new(),
            is_passing,
        };
        assert!(is_passing(
            &anyhow::Error::from(node(true)).context("node n1")
        ));
        assert!(!is_passing(&node(false).into()));
        let lost = LostError(io::ErrorKind::TimedOut.into());
        assert!(is_passing(&lost.into()));
        assert!(is_passing(&ClusterError::Unreachable(String::new()).into()));
        assert!(!is_passing(&anyhow!("other")));
    }
}
