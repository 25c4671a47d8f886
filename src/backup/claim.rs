//! Targets that are claims: a pod of the claim's namespace has one mounted on this node.
//!
//! Invariant: what names a claim in a request is its UID, so that a later claim of the same name is another target. A claim
//! is a target for machines of its namespace alone, and only while its pod runs. What is opened is a mount below the
//! directories of that pod, without a link in between: never a directory of the node itself.
//! Failure: [`Error`](super::Error); a pod that goes makes the claim unreachable, and the next pod reachable again.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use podspec::VmUid;
use podspec::names::CLAIM_TARGET;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::THREADS;
use super::directory::Directory;
use super::error::Result;

/// A claim, as a request to a node names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimTarget(Uuid);

/// Where a claim is mounted on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    /// The directory with the pods of this node, as this process reaches it. Its path is the operator's.
    pub pods: PathBuf,
    /// The mount below it, which has no link on the way.
    pub mount: PathBuf,
}

/// The pods of this node that have claims mounted.
pub trait Claims: fmt::Debug + Send + Sync {
    /// Where a pod that runs in this namespace has the claim mounted.
    fn mounted(&self, claim: Uuid, namespace: &str) -> Option<MountPoint>;
}

/// The most threads of this node that work on claims: users say how many there are, and where their servers are.
const MOST: usize = 4 * THREADS;

/// The claims of this node; clones share what waits for them.
#[derive(Debug, Clone)]
pub(super) struct ClaimTargets {
    pods: Option<Arc<dyn Claims>>,
    /// Places of the threads that work on each.
    threads: Arc<Mutex<HashMap<Uuid, Arc<Semaphore>>>>,
    /// Places of the threads that work on all.
    all: Arc<Semaphore>,
}

/// A target that is a directory, and the places of the threads that work on it.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) root: Root,
    pub(super) threads: Arc<Semaphore>,
    /// Places that it shares with other targets, if it does.
    pub(super) shared: Option<Arc<Semaphore>>,
}

/// Where the directory of a target is.
#[derive(Debug, Clone)]
pub(super) enum Root {
    /// At a path that the operator has named.
    Directory(PathBuf),
    /// Where a pod has a claim mounted.
    Claim(MountPoint),
}

impl ClaimTarget {
    /// UID of the claim.
    pub const fn uid(self) -> Uuid {
        self.0
    }
}

impl FromStr for ClaimTarget {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let uid = text.strip_prefix(CLAIM_TARGET).ok_or(())?;
        let uid: VmUid = uid.parse().map_err(|_| ())?;
        Ok(Self(uid.uuid()))
    }
}

impl Default for ClaimTargets {
    fn default() -> Self {
        Self {
            pods: None,
            threads: Arc::default(),
            all: Arc::new(Semaphore::new(MOST)),
        }
    }
}

impl ClaimTargets {
    pub(super) fn new(pods: Arc<dyn Claims>) -> Self {
        Self {
            pods: Some(pods),
            ..Self::default()
        }
    }

    /// Where a claim is for machines of a namespace.
    pub(super) fn find(&self, claim: ClaimTarget, namespace: &str) -> Option<Found> {
        let pods = self.pods.as_ref()?;
        let mount = pods.mounted(claim.0, namespace)?;
        let mut all = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Of claims without a thread at work nothing is kept.
        all.retain(|uid, threads| *uid == claim.0 || threads.available_permits() < THREADS);
        let threads = all.entry(claim.0);
        let threads = threads.or_insert_with(|| Arc::new(Semaphore::new(THREADS)));
        Some(Found {
            root: Root::Claim(mount),
            threads: Arc::clone(threads),
            shared: Some(Arc::clone(&self.all)),
        })
    }
}

impl Root {
    /// Opens it. Blocks.
    pub(super) fn open(&self) -> Result<Directory> {
        match self {
            Self::Directory(path) => Directory::open(path),
            Self::Claim(MountPoint { pods, mount }) => Directory::open(pods)?.mounted(mount),
        }
    }

    /// Its path, for people.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::Directory(path) => path.clone(),
            Self::Claim(MountPoint { pods, mount }) => pods.join(mount),
        }
    }
}

/// The namespace of `namespace/name`.
pub(super) fn namespace_of(machine: &str) -> &str {
    let whole = machine.split_once('/');
    whole.map_or("", |whole| whole.0)
}

impl MountPoint {
    /// The mount of a volume of the pod with this UID, by its path on the node; none: it is no volume that a claim can be.
    /// `root`: the node, as this process reaches it.
    pub fn of_volume(root: &Path, path: &str, pod_uid: &str) -> Option<Self> {
        let volumes = format!("{pod_uid}/volumes/");
        let at = path.find(&format!("/pods/{volumes}"))?;
        let (pods, volume) = path.split_at(at);
        let volume = volume.strip_prefix("/pods/")?;
        let mut parts = volume.strip_prefix(&*volumes)?.split('/');
        let is_of_pod = |plugin: &str| OF_PODS.contains(&plugin);
        let is_plain = |part: &str| !["", ".", ".."].contains(&part);
        let has_plugin = parts
            .next()
            .is_some_and(|one| is_plain(one) && !is_of_pod(one));
        let names: Vec<_> = parts.collect();
        let is_volume = !names.is_empty() && names.iter().all(|part| is_plain(part));
        (has_plugin && is_volume).then(|| Self {
            pods: root.join(pods.trim_start_matches('/')).join("pods"),
            mount: PathBuf::from(volume),
        })
    }
}

/// Plugins of volumes that end with their pod, as kubelet names their directories.
const OF_PODS: [&str; 6] = [
    "kubernetes.io~configmap",
    "kubernetes.io~downward-api",
    "kubernetes.io~empty-dir",
    "kubernetes.io~git-repo",
    "kubernetes.io~projected",
    "kubernetes.io~secret",
];

#[cfg(test)]
mod tests;
