//! Objects of the cluster with data for guests. kubelet mounts an object into the pod, and the
//! daemon reads the volume ([`mounted`]); where the pod has no such mount, the daemon lists what it
//! waits for, and the agent of the node answers.
//!
//! Invariant: an answer goes to the caller that waits for that very request of this process, and
//! nowhere else; what is in an object stays in memory and out of messages.
//! Failure: [`Error`]: a mount that cannot be read, the error of the agent, or no answer in time.
//! The request is removed when its caller is dropped.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use podspec::{Content, Source};
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

use crate::foreign::Foreign;

mod mounted;
mod volumes;

pub use mounted::Unreadable;
pub use volumes::{Files, VolumeError, has_files};

/// Timeout for an answer; kubelet's timeout of the call around it is two minutes.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Most bytes of an object: the API server keeps none that is larger.
pub const MOST_BYTES: usize = 2 * 1024 * 1024;

/// Why an object is not to be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// kubelet has mounted it, but the volume cannot be read.
    #[error("guest data from {wanted}: the mount at {}: {reason}", wanted.source.mount_path())]
    Mount {
        /// The object.
        wanted: Box<Wanted>,
        /// What is wrong with the mount.
        reason: Unreadable,
    },
    /// The agent reports why it is not.
    #[error("guest data from {wanted}: {reason}")]
    Refused {
        /// The object.
        wanted: Box<Wanted>,
        /// The agent's message.
        reason: String,
    },
    /// No agent has answered.
    #[error("guest data from {wanted}: the pod has no mount at {}, and no vmlet-agent of this node \
        has answered within {} s", wanted.source.mount_path(), TIMEOUT.as_secs())]
    NobodyAnswered {
        /// The object.
        wanted: Box<Wanted>,
    },
}

/// An object, and the pod or the task that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Namespace of the pod and of the object; empty for a task, whose namespace the agent knows.
    pub namespace: String,
    /// The pod's name; empty for a task.
    pub pod: String,
    /// The pod's UID; empty for a task.
    pub pod_uid: String,
    /// UID of the task that names the object, in place of a pod; else empty.
    pub task: String,
    /// The object.
    pub source: Source,
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Source { kind, .. } = &self.source;
        match self.namespace.as_str() {
            "" => write!(f, "{kind} {}", self.source.name()),
            namespace => write!(f, "{kind} {namespace}/{}", self.source.name()),
        }
    }
}

/// What the agent reports: what is in the object, or a sentence for people.
pub type Answer = Result<Content, String>;

/// The questions that are open.
#[derive(Debug)]
pub struct Sources {
    open: Mutex<BTreeMap<Uuid, Question>>,
    changes: watch::Sender<u64>,
    /// Of mounted volumes.
    reader: Foreign,
}

#[derive(Debug)]
struct Question {
    wanted: Wanted,
    answer: oneshot::Sender<Answer>,
}

/// Removes a request when its caller is dropped.
struct PendingRequest<'a>(&'a Sources, Uuid);

impl Default for Sources {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            changes: watch::Sender::new(0),
            reader: Foreign::default(),
        }
    }
}

impl Sources {
    /// What is in an object: from the volume that kubelet has mounted for it, at this path of the
    /// node, else from the agent.
    ///
    /// # Errors
    ///
    /// As [`Self::request`], and a mount that cannot be read.
    pub async fn get(&self, wanted: Wanted, mount: Option<String>) -> Result<Content, Error> {
        let Some(host) = mount else {
            return self.request(wanted).await;
        };
        let uid = wanted.pod_uid.clone();
        let kind = wanted.source.kind;
        let owner = host.clone();
        let read = move || mounted::read(&host, &uid, kind);
        let read = self.reader.look(&owner, read).await;
        let read = read.unwrap_or_else(|hung| Err(std::io::Error::other(hung).into()));
        read.map_err(|reason| Error::Mount {
            wanted: Box::new(wanted),
            reason,
        })
    }

    /// Waits until the agent has said what is in an object.
    ///
    /// # Errors
    ///
    /// [`Error`] with the agent's message, or when it sends nothing for [`TIMEOUT`].
    pub async fn request(&self, wanted: Wanted) -> Result<Content, Error> {
        let (answer, answered) = oneshot::channel();
        // Never one that an earlier process gave out: its answer may still be on the way.
        let id = Uuid::new_v4();
        let question = Question {
            wanted: wanted.clone(),
            answer,
        };
        self.open().insert(id, question);
        self.changed();
        let _pending = PendingRequest(self, id);
        match tokio::time::timeout(TIMEOUT, answered).await {
            Ok(Ok(Ok(content))) => Ok(content),
            Ok(Ok(Err(reason))) => Err(Error::Refused {
                wanted: Box::new(wanted),
                reason,
            }),
            Ok(Err(_)) | Err(_) => Err(Error::NobodyAnswered {
                wanted: Box::new(wanted),
            }),
        }
    }

    /// All questions that are open.
    pub fn wanted(&self) -> BTreeMap<Uuid, Wanted> {
        let open = self.open();
        let each = open.iter();
        each.map(|(id, question)| (*id, question.wanted.clone()))
            .collect()
    }

    /// Answers a request; nothing happens when its caller does not wait any more.
    pub fn answer(&self, id: Uuid, answer: Answer) {
        let question = self.open().remove(&id);
        if let Some(question) = question {
            // The caller may have been dropped at this moment.
            let _ = question.answer.send(answer);
            self.changed();
        }
    }

    /// Changes whenever a question is asked, answered or forgotten.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<Uuid, Question>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let Self(sources, id) = self;
        if sources.open().remove(id).is_some() {
            sources.changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use podspec::SourceKind;

    use super::*;

    fn wanted(name: &str) -> Wanted {
        Wanted {
            namespace: "default".to_owned(),
            pod: "web".to_owned(),
            pod_uid: "u".to_owned(),
            task: String::new(),
            source: Source::new(SourceKind::Secret, name).unwrap(),
        }
    }

    fn content(value: &str) -> Content {
        Content([("k".to_owned(), value.as_bytes().to_vec())].into())
    }

    /// Asks in the background and returns the question's id.
    async fn requested(
        sources: &Arc<Sources>,
        name: &str,
    ) -> (Uuid, tokio::task::JoinHandle<Result<Content, Error>>) {
        let task = Arc::clone(sources);
        let wanted = wanted(name);
        let mut changes = sources.changes();
        let own = wanted.clone();
        let task = tokio::spawn(async move { task.request(own).await });
        loop {
            let open = sources.wanted();
            if let Some((id, _)) = open.iter().find(|(_, open)| **open == wanted) {
                return (*id, task);
            }
            changes.changed().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_goes_to_its_question_only() {
        let sources = Arc::new(Sources::default());
        let (one, first) = requested(&sources, "one").await;
        let (two, second) = requested(&sources, "two").await;
        sources.answer(two, Ok(content("2")));
        sources.answer(Uuid::new_v4(), Ok(content("x")));
        assert_eq!(second.await.unwrap().unwrap(), content("2"));
        assert_eq!(sources.wanted().len(), 1);
        sources.answer(one, Ok(content("1")));
        assert_eq!(first.await.unwrap().unwrap(), content("1"));
        assert!(sources.wanted().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_names_the_object_and_the_reason() {
        let sources = Arc::new(Sources::default());
        let (id, task) = requested(&sources, "seed").await;
        sources.answer(id, Err("it does not exist: create it".to_owned()));
        let error = task.await.unwrap().unwrap_err().to_string();
        assert_eq!(
            error,
            "guest data from secret default/seed: it does not exist: create it"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn every_wait_ends_at_its_timeout() {
        let sources = Sources::default();
        let error = sources.request(wanted("seed")).await.unwrap_err();
        assert!(error.to_string().contains("vmlet-agent"), "{error}");
        assert!(sources.wanted().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_mount_that_does_not_answer_is_waited_for_within_a_deadline() {
        let sources = Sources::default();
        let host = "/pods/u/volumes/kubernetes.io~secret/seed";
        let get = || sources.get(wanted("seed"), Some(host.to_owned()));
        let hung = sources.reader.hold(host.to_owned());
        let error = get().await.unwrap_err().to_string();
        assert!(error.contains("seed did not answer within"), "{error}");
        drop(hung);
        let error = get().await.unwrap_err().to_string();
        assert!(!error.contains("did not answer"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_removed_when_its_caller_is_dropped() {
        let sources = Arc::new(Sources::default());
        let (id, task) = requested(&sources, "seed").await;
        task.abort();
        task.await.unwrap_err();
        assert!(sources.wanted().is_empty());
        sources.answer(id, Ok(content("late")));
    }
}
