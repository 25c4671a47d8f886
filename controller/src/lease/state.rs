//! The state machine of the lease.
//!
//! ```text
//!            it has no holder, or it did not change for its whole duration
//! others' ─────────────────────────────────────────────────────────────► ours
//!    ▲                     it names another process                        │
//!    └─────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant: what is written carries the version that was read; time is an argument.
//! Failure: a lease without a duration counts as one of ours.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

/// What to do after a look at the lease.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Another process has it.
    Wait,
    /// There is none.
    Create(Box<Lease>),
    /// It is ours, or may be taken.
    Update(Box<Lease>),
}

/// The lease as one process knows it.
#[derive(Debug)]
pub(super) struct Election {
    identity: String,
    name: String,
    duration_secs: u32,
    /// The spec as it was last seen, and when it was first seen so.
    seen: Option<(LeaseSpec, Duration)>,
    held: Option<Lease>,
}

impl Election {
    pub(super) fn new(identity: &str, name: &str, duration_secs: u32) -> Self {
        Self {
            identity: identity.to_owned(),
            name: name.to_owned(),
            duration_secs,
            seen: None,
            held: None,
        }
    }

    /// What to do about the lease as it is now. `now` counts from any fixed moment, and never back.
    pub(super) fn observe(&mut self, found: Option<Lease>, now: Duration, wall: Timestamp) -> Step {
        let Some(mut lease) = found else {
            self.held = None;
            let metadata = ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            };
            let spec = Some(self.spec(&LeaseSpec::default(), wall));
            return Step::Create(Box::new(Lease { metadata, spec }));
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if *seen == spec => *since,
            _ => now,
        };
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let is_free = holder.is_empty() || now.saturating_sub(since) >= self.duration(&spec);
        let is_ours = holder == self.identity;
        let next = (is_ours || is_free).then(|| self.spec(&spec, wall));
        self.seen = Some((spec, since));
        match next {
            Some(next) => {
                lease.spec = Some(next);
                Step::Update(Box::new(lease))
            }
            None => {
                self.held = None;
                Step::Wait
            }
        }
    }

    /// The write succeeded; this is what the API server made of it.
    pub(super) fn written(&mut self, lease: Lease, now: Duration) {
        self.seen = Some((lease.spec.clone().unwrap_or_default(), now));
        self.held = Some(lease);
    }

    /// Whether it was ours at the last look.
    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// The lease without a holder, if it is ours.
    pub(super) fn release(&mut self) -> Option<Lease> {
        let mut lease = self.held.take()?;
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = None;
        spec.lease_duration_seconds = Some(1);
        Some(lease)
    }

    fn duration(&self, spec: &LeaseSpec) -> Duration {
        let stated = spec.lease_duration_seconds.map(u64::try_from);
        let own = u64::from(self.duration_secs);
        Duration::from_secs(stated.and_then(Result::ok).unwrap_or(own))
    }

    fn spec(&self, old: &LeaseSpec, wall: Timestamp) -> LeaseSpec {
        let is_ours = old.holder_identity.as_ref() == Some(&self.identity);
        let transitions = old.lease_transitions.unwrap_or_default();
        let acquired = old.acquire_time.clone().filter(|_| is_ours);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.duration_secs).ok(),
            acquire_time: Some(acquired.unwrap_or(MicroTime(wall))),
            renew_time: Some(MicroTime(wall)),
            lease_transitions: Some(if is_ours {
                transitions
            } else {
                transitions.saturating_add(1)
            }),
            ..LeaseSpec::default()
        }
    }
}
