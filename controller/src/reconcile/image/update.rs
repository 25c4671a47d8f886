//! Images that follow a tag, or a file of a web server: a node checks it, nodes pull a new version, then new
//! machines use it.
//!
//! ```text
//! due ─► task on one node ─ same digest ─► time recorded
//!          │       └─ another digest ─► version Pulling ─► tasks of nodes ─ all, or late ─► Ready ─► current
//!          └─ Error ─► recorded; the former version stays current; after a while another node
//! ```
//!
//! Invariant: the version of new machines changes only by the write of the status that names it, and
//! never to one that no node could read. What a check found is recorded before its task is deleted. A web server
//! has the newest version alone: a former one is of use where nodes have it.
//! Failure: shows in `UpToDate`; new machines use the former version.

mod check;
mod events;
mod first;
mod former;
mod pulls;
mod schedule;
mod verdict;
pub(super) mod versions;

use std::time::Duration;

use crds::{ImageUpdate, ImageUpdateStatus, ImageVersion, InspectedImage, PrePullStatus, TaskKind};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use self::check::Check;
pub(super) use self::events::record as record_events;
pub(super) use self::former::{Absence, absent};
use self::schedule::Due;
pub(crate) use self::verdict::UP_TO_DATE;
pub(super) use self::verdict::Verdict;
use super::name::{self, Named};
use super::nodes::Holders;
use super::object::Object;
use super::{LONGEST, RECHECK};
use crate::context::Context;
use crate::flow::Outcome;

/// Seconds for which a version waits for the last of its nodes.
const LIMIT: i64 = 3600;
/// Longest time until an image is checked for what its schedule requires: the clock may be set.
const LONGEST_WAIT: i64 = 3600;

/// What is known of the versions of an image.
#[derive(Debug, Clone, Default)]
pub(super) struct Updates {
    /// None without `spec.update`.
    pub(super) status: Option<ImageUpdateStatus>,
    pub(super) versions: Vec<ImageVersion>,
    /// None without `spec.update`.
    pub(super) verdict: Option<Verdict>,
    /// Name of the image in checks.
    checked: Option<String>,
    /// Name of the version that nodes pull.
    pulled: Option<String>,
    /// When the image is to be checked again.
    pub(super) again: Option<Duration>,
}

impl Updates {
    /// Whether a look at this image is a check.
    pub(super) fn checks(&self, image: Option<&str>) -> bool {
        image.is_some() && image == self.checked.as_deref()
    }

    /// Whether a pull of this image is one of the update.
    pub(super) fn pulls(&self, image: Option<&str>) -> bool {
        image.is_some() && image == self.pulled.as_deref()
    }

    fn refused(verdict: Verdict) -> Self {
        Self {
            verdict: Some(verdict),
            ..Self::default()
        }
    }
}

/// One check of an image, from what is on record.
struct Step<'a> {
    ctx: &'a Context,
    object: &'a Object,
    update: &'a ImageUpdate,
    tag: Named,
    now: Time,
}

/// What a check has shown of the version that new machines use, if that is not on record yet. A former
/// version that no node has may be gone from the registry: a node reads it again.
pub(super) fn known(ctx: &Context, object: &Object, named: &Named) -> Option<InspectedImage> {
    let digest = object.version().filter(|_| !object.is_answered())?;
    let all = object.versions();
    let version = all.iter().find(|version| version.digest == digest)?;
    let is_newest = all.first().is_some_and(|newest| newest.digest == digest);
    // A former version of a file that no node has is refused before.
    let is_there = is_newest
        || object.source().http.is_some()
        || !Holders::of_image(&ctx.stores, &named.name).nodes.is_empty();
    is_there.then(|| version.image.clone())
}

/// Its state; begins what is next.
pub(super) async fn observe(ctx: &Context, object: &Object) -> Outcome<Updates> {
    let Some(update) = object.update() else {
        return Ok(Updates::default());
    };
    match name::of_followed(object.source(), update) {
        Ok(tag) => {
            let step = Step {
                ctx,
                object,
                update,
                tag,
                now: (ctx.clock)(),
            };
            step.run().await
        }
        Err(refused) => Ok(Updates::refused(Verdict::not_supported(refused.0))),
    }
}

impl Step<'_> {
    async fn run(self) -> Outcome<Updates> {
        let mut status = self.object.updates().cloned().unwrap_or_default();
        let mut versions = self.object.versions().to_vec();
        status.reference = self.object.followed().unwrap_or_default().to_owned();
        if status.last_check_time.is_some() && status.observed_checksum_url.is_none() {
            // A controller of an earlier version made the check: an edit from now on is seen.
            let list = self.update.checksum_url.clone();
            status.observed_checksum_url = list;
        }
        let busy_until = self.busy_until(&status, &versions);
        let due = schedule::due(self.update, &status, busy_until, self.now.0);
        let due = self.sooner(due, &status, &versions);
        let check = check::observe(self.ctx, self.object, &self.tag, &status, due).await?;
        let mut again = match &check {
            Check::Idle => self.wait_until(due),
            Check::Waiting { .. } | Check::NoNode => Some(RECHECK),
            // The event of the write wakes the image.
            Check::Found { .. } | Check::Failed(_) => None,
        };
        self.record(&check, &mut status, &mut versions);
        let mut version = None;
        let pulled = pulls::observe(&self, &status, &mut versions).await?;
        if let Some(pulled) = pulled {
            status.pulls = pulled.status;
            version = Some(pulled.name);
            again = [again, pulled.again].into_iter().flatten().min();
        }
        let is_known = self.tag.checksum_url.is_none() || !versions.is_empty();
        let pin = self.update.digest.as_deref().filter(|_| is_known);
        status.current = versions::current(&versions, pin).map(str::to_owned);
        let current = status.current.as_deref();
        versions::retain(&mut versions, self.update.retain, current);
        let problem = schedule::problem(self.update);
        let verdict = verdict::of_step(&check, problem, self.update, (&status, &versions));
        Ok(Updates {
            status: Some(status),
            versions,
            verdict: Some(verdict),
            checked: Some(self.tag.name),
            pulled: version,
            again,
        })
    }

    /// Takes up what a check has led to.
    fn record(
        &self,
        check: &Check,
        status: &mut ImageUpdateStatus,
        versions: &mut Vec<ImageVersion>,
    ) {
        match check {
            Check::Idle | Check::Waiting { .. } | Check::NoNode => return,
            Check::Found { digest, image } => {
                status.failed_checks = 0;
                status.message.clear();
                let is_another = versions.first().is_some_and(|v| v.digest != *digest);
                if is_another
                    && self.update.digest.is_none()
                    && first::is_out_of_reach(self, versions)
                    && first::is_unused(self)
                {
                    // The next one is the first.
                    versions.clear();
                }
                if is_another {
                    let nodes = status.pulls.as_ref().map_or(0, |pulls| pulls.ready);
                    versions::keep_pinned(versions, self.update.digest.as_deref(), nodes);
                }
                if versions::add(versions, digest, image, &self.now) {
                    status.pulls = None;
                }
            }
            Check::Failed(message) => {
                status.failed_checks = status.failed_checks.saturating_add(1);
                let end = message.floor_char_boundary(LONGEST);
                message[..end].clone_into(&mut status.message);
            }
        }
        status.last_check_time = Some(self.now.clone());
        let request = self.update.check_request.clone();
        status.observed_check_request = request;
        let list = self.update.checksum_url.clone();
        status.observed_checksum_url = list;
    }

    /// Until when nodes pull the newest version. A tag that moves more often than they can pull would
    /// otherwise never reach new machines.
    fn busy_until(&self, status: &ImageUpdateStatus, all: &[ImageVersion]) -> Option<i64> {
        let newest = all.first().filter(|newest| !versions::is_ready(newest))?;
        let pulls = status.pulls.as_ref();
        let is_stalled = pulls.is_some_and(PrePullStatus::is_stalled);
        (!is_stalled || self.is_pulled(newest)).then(|| newest.found_time.0.as_second() + LIMIT)
    }

    /// A version of a file that no node can pull may be gone: the server has another one then, which a check finds.
    fn sooner(&self, due: Due, status: &ImageUpdateStatus, all: &[ImageVersion]) -> Due {
        let Some(newest) = all.first().filter(|_| self.tag.checksum_url.is_some()) else {
            return due;
        };
        let is_stalled = if versions::is_ready(newest) {
            first::is_out_of_reach(self, all)
        } else {
            status.pulls.as_ref().is_some_and(PrePullStatus::is_stalled)
        };
        match &status.last_check_time {
            Some(last) if status.failed_checks == 0 && is_stalled => {
                due.or_at(schedule::least_after(last.0), self.now.0)
            }
            _ => due,
        }
    }

    /// Whether a node pulls this version now: a pull that is repeated counts as failed in the status.
    fn is_pulled(&self, version: &ImageVersion) -> bool {
        let named = name::of_version(self.object.source(), &version.digest);
        let tasks = self.ctx.stores.tasks_of(self.object.uid());
        tasks.iter().any(|task| {
            let is_open = task.spec.kind == TaskKind::PullImage && !task.is_final();
            let image = task.spec.image.as_ref();
            is_open && named.as_ref().is_ok_and(|named| image == Some(&named.name))
        })
    }

    fn wait_until(&self, due: Due) -> Option<Duration> {
        let Due::At(at) = due else { return None };
        let left = (at - self.now.0.as_second()).clamp(1, LONGEST_WAIT);
        u64::try_from(left).ok().map(Duration::from_secs)
    }
}
