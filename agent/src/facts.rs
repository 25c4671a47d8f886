//! Reports to the API server what the daemon knows of machines and guests: an annotation and
//! conditions on their pods.
//!
//! Invariant: a pod is written only when something changed; facts of one machine never reach
//! another one's pod.
//! Failure: a write that fails is repeated with growing pauses; a pod that no longer exists is left
//! alone.

mod machine;
mod pause;
mod pod;
mod publisher;

pub(crate) use publisher::Publisher;
