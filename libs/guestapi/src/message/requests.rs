//! Requests that are no commands, and their answers.

use super::facts::{Facts, few, text};
use super::session::Setting;
use crate::SESSIONS;

/// Requests one action that is no command. The host has one answer for each.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// The number of the request, which is that of no other one and of no session.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// What is requested; `None` is an action of a later version.
    #[prost(oneof = "request::Action", tags = "2, 3, 4, 5, 6, 7")]
    pub action: Option<request::Action>,
}

/// The actions of [`Request`].
pub mod request {
    /// One of the actions.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Action {
        /// Report [`Facts`](super::Facts).
        #[prost(message, tag = "2")]
        ReportFacts(super::ReportFacts),
        /// Set the clock.
        #[prost(message, tag = "3")]
        SetTime(super::SetTime),
        /// Write and stop all file systems.
        #[prost(message, tag = "4")]
        Freeze(super::Freeze),
        /// Let file systems go on.
        #[prost(message, tag = "5")]
        Thaw(super::Thaw),
        /// Report [`Usage`](super::Usage) of kept sessions (since version 2).
        #[prost(message, tag = "6")]
        ReportUsage(super::ReportUsage),
        /// Change the limits of a kept session (since version 3).
        #[prost(message, tag = "7")]
        SetLimits(super::SetLimits),
    }
}

/// See [`request::Action`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ReportFacts {}

/// See [`request::Action`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SetTime {
    /// Nanoseconds since the epoch.
    #[prost(int64, tag = "1")]
    pub nanoseconds: i64,
}

/// See [`request::Action`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Freeze {
    /// After so many seconds the guest thaws them by itself; at most
    /// [`LONGEST_FREEZE`](crate::LONGEST_FREEZE).
    #[prost(uint32, tag = "1")]
    pub seconds: u32,
}

/// See [`request::Action`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Thaw {}

/// See [`request::Action`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReportUsage {
    /// Names of kept sessions; all without.
    #[prost(string, repeated, tag = "1")]
    pub keep: Vec<String>,
}

/// See [`request::Action`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetLimits {
    /// The name of the session.
    #[prost(string, tag = "1")]
    pub keep: String,
    /// Files of cgroup v2. When one cannot be written, those before it have their new values.
    #[prost(message, repeated, tag = "2")]
    pub limits: Vec<Setting>,
}

/// What the processes of a kept session use.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Usage {
    /// The name of the session.
    #[prost(string, tag = "1")]
    pub keep: String,
    /// CPU time of its processes, the ended ones that were waited for included, in nanoseconds.
    #[prost(uint64, tag = "2")]
    pub cpu: u64,
    /// Bytes of memory: those of its cgroup, files in the page cache included, or of the resident
    /// memory of its processes, where shared pages count once for each.
    #[prost(uint64, tag = "3")]
    pub memory: u64,
    /// How many processes there are.
    #[prost(uint32, tag = "4")]
    pub processes: u32,
    /// Bytes of memory without files that were not used for some time (since version 3).
    #[prost(uint64, tag = "5")]
    pub working_set: u64,
    /// Bytes of memory that are not of files (since version 3).
    #[prost(uint64, tag = "6")]
    pub anonymous: u64,
}

/// The answer to a [`Request`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Answer {
    /// The number of the request.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Why it was not done, for people; empty when it was done.
    #[prost(string, tag = "2")]
    pub error: String,
    /// What was requested by [`ReportFacts`].
    #[prost(message, optional, tag = "3")]
    pub facts: Option<Facts>,
    /// File systems that are frozen, or were thawed.
    #[prost(uint32, tag = "4")]
    pub file_systems: u32,
    /// What was requested by [`ReportUsage`]; at most [`SESSIONS`].
    #[prost(message, repeated, tag = "5")]
    pub usage: Vec<Usage>,
}

impl Answer {
    /// The same within the bounds of an answer, see [`Facts::bounded`]. The reason of a refusal stays
    /// as it is: it is bounded where it is shown.
    #[must_use]
    pub fn bounded(self) -> Self {
        let named = |usage: Usage| Usage {
            keep: text(usage.keep),
            ..usage
        };
        Self {
            facts: self.facts.map(Facts::bounded),
            usage: few(self.usage, SESSIONS, named),
            ..self
        }
    }
}
