//! The prerequisites of a machine's creation and start.
//!
//! Invariant: every part is checked in every pass, so that a user sees all that is missing at
//! once; each part is the only writer of its condition.
//! Failure: the parts that are missing, together in one error.

mod bootstrap;
pub(super) mod cache;
mod class;
mod data_volumes;
mod image;
mod network;
mod root_claim;
mod source;
mod storage;
pub(super) mod unsupported;
mod volumes;

use crds::conditions::{self, Status};
use crds::{IpAssurance, VirtualMachineClass};
use lifecycle::Volumes;
use service::telemetry::one_line;

use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::again;
use crate::reconcile::vm::error::{Error, joined};
use crate::reconcile::vm::pass::Pass;

pub(crate) use bootstrap::{DEFAULT_KEY, NETWORK_KEY, inline};
pub(crate) use class::{Size, bytes, of_class, quantity, revision, thousandths};
pub(crate) use image::{Image, follows_tag, has_content};
pub(crate) use network::Attachments;
pub(crate) use root_claim::{
    VOLUME_MODE, is_clone as root_is_clone, is_own as is_made_root_claim, made as made_root_claim,
    named as named_root_claim,
};
pub(crate) use source::{OwnSnapshot, Source, disk_uid};
pub(crate) use volumes::{
    Disk, ROOT, SNAPSHOT, capacity as claim_capacity, disk_bytes, disks as claimed_disks,
};

/// A part that is missing: reason and message of its condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// No watch shows when the part is there.
    pub(crate) is_unwatched: bool,
    /// The part is a machine that runs on this node, of which a snapshot is to be taken first.
    pub(crate) needs_snapshot: Option<String>,
}

impl Missing {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            is_unwatched: false,
            needs_snapshot: None,
        }
    }

    /// The same, and only time shows when the part is there.
    pub(crate) fn unwatched(self) -> Self {
        Self {
            is_unwatched: true,
            ..self
        }
    }

    /// A read that failed, with the API server's response.
    pub(crate) fn read(what: &str, error: &kube::Error) -> Self {
        let reason = match error {
            kube::Error::Api(status) if status.code == 404 => "NotFound",
            kube::Error::Api(status) if status.code == 403 => "Forbidden",
            kube::Error::Api(status) if status.code >= 500 => "InternalError",
            _ => "GetError",
        };
        Self::new(reason, format!("{what}: {}", one_line(error))).unwatched()
    }
}

/// Everything that was found.
#[derive(Debug, Clone)]
pub(crate) struct Prerequisites {
    pub(crate) size: Size,
    pub(crate) image: Image,
    pub(crate) disks: Vec<Disk>,
    pub(crate) attachments: Attachments,
    pub(crate) ip_assurance: IpAssurance,
}

/// Looks at all parts and sets their conditions.
pub(crate) async fn all(pass: &mut Pass<'_>) -> Outcome<Prerequisites> {
    let size = class::check(pass);
    let size = report(pass, conditions::CLASS_READY, size);
    let image = image::check(pass);
    let image = report(pass, conditions::IMAGE_READY, image);
    let storage = storage::check(pass);
    let storage = report(pass, conditions::STORAGE_READY, storage);
    let bootstrap = match &pass.vm.spec.bootstrap {
        Some(_) => {
            let found = bootstrap::check(pass).await;
            if found.is_err() {
                pass.wait_for_secret();
            }
            report(pass, conditions::BOOTSTRAP_READY, found)
        }
        None => {
            pass.drop_condition(conditions::BOOTSTRAP_READY);
            Ok(())
        }
    };
    let network = network::check(pass).await;
    let attachments = report(pass, conditions::NETWORK_READY, network);
    if pass
        .vm
        .spec
        .network
        .as_ref()
        .is_none_or(|n| n.interfaces.is_empty())
    {
        pass.drop_condition(conditions::NETWORK_READY);
    }
    let mut errors = Vec::new();
    let size = keep(&mut errors, size);
    let image = keep(&mut errors, image);
    keep(&mut errors, storage);
    keep(&mut errors, bootstrap);
    let attachments = keep(&mut errors, attachments);
    if errors.is_empty()
        && let Some(size) = size
        && let Some(image) = image
        && let Some(attachments) = attachments
    {
        let disks = volumes::disks(pass);
        return Ok(Prerequisites {
            disks,
            ip_assurance: image.ip_assurance,
            size,
            image,
            attachments,
        });
    }
    Err(joined(errors).map_or(again(), PassError::Failed))
}

/// What a clone is copied from.
pub(crate) fn source(pass: &Pass<'_>) -> Result<Source, Missing> {
    source::check(pass)
}

/// Shows that in its condition.
pub(crate) fn show_source(pass: &mut Pass<'_>, found: &Result<Source, Missing>) {
    let kind = conditions::SOURCE_READY;
    match found {
        Ok(source) => pass.condition(kind, Status::True, "", &source.words),
        Err(missing) => {
            pass.condition(kind, Status::False, missing.reason, &missing.message);
        }
    }
}

/// The class, whatever else is missing.
pub(crate) fn class(
    pass: &Pass<'_>,
) -> Result<Option<std::sync::Arc<VirtualMachineClass>>, Missing> {
    class::find(pass)
}

/// The image as it is now, if there is one.
pub(crate) fn image(pass: &Pass<'_>) -> Option<Image> {
    image::check(pass).ok()
}

/// The networks alone: the one part that a configuration waits for.
pub(crate) async fn networks(pass: &mut Pass<'_>) -> Result<(), Missing> {
    let found = network::check(pass).await;
    report(pass, conditions::NETWORK_READY, found)
        .map(|_| ())
        .map_err(|_| {
            let all = pass.seen().map(|s| s.conditions.as_slice());
            let condition = all.and_then(|c| conditions::find(c, conditions::NETWORK_READY));
            Missing::new("NotReady", condition.map_or("", |c| &c.message))
        })
}

/// The state of the disks; makes the claim of the root disk and data volumes that are missing.
pub(crate) async fn disks(pass: &mut Pass<'_>) -> Outcome<Volumes> {
    let root = root_claim::make(pass).await?;
    let made = data_volumes::check(pass).await?;
    let found = volumes::check(pass);
    let all = [made, root, found].into_iter();
    Ok(all.fold(Volumes::Ready, |worst, one| match worst {
        Volumes::Ready => one,
        worst => worst,
    }))
}

/// Which claims of the machine do not exist, in words; `None`: all do.
pub(crate) fn missing_claims(pass: &Pass<'_>) -> Option<String> {
    let missing = volumes::missing(pass).into_iter();
    let all: Vec<_> = missing
        .map(|name| format!("claim {name} does not exist"))
        .collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Whether a claim does not exist that the machine names and that is not made with it.
pub(crate) fn foreign_claim_is_missing(pass: &Pass<'_>) -> bool {
    let own = pass.own_root_claim();
    let templates = &pass.vm.spec.data_volume_templates;
    let is_made = |name: &String| {
        own.as_ref() == Some(name) || templates.iter().any(|template| template.name == *name)
    };
    volumes::missing(pass).iter().any(|name| !is_made(name))
}

/// Whether CDI waits for a pod that uses a claim of the machine, before it fills it.
pub(crate) fn wait_for_consumer(pass: &Pass<'_>) -> bool {
    data_volumes::wait_for_consumer(pass)
}

/// Whether nothing but that keeps the data volumes of the machine from being filled.
pub(crate) fn only_wait_for_consumer(pass: &Pass<'_>) -> bool {
    wait_for_consumer(pass) && data_volumes::others_are_filled(pass)
}

fn report<T>(pass: &mut Pass<'_>, kind: &str, found: Result<T, Missing>) -> anyhow::Result<T> {
    match found {
        Ok(value) => {
            pass.condition(kind, Status::True, "", "");
            Ok(value)
        }
        Err(missing) => {
            pass.condition(kind, Status::False, missing.reason, &missing.message);
            let is_unwatched = missing.is_unwatched;
            let error = if is_unwatched {
                Error::Unwatched(missing.message)
            } else {
                Error::NotReady(missing.message)
            };
            Err(error.into())
        }
    }
}

fn keep<T>(errors: &mut Vec<anyhow::Error>, found: anyhow::Result<T>) -> Option<T> {
    found.map_err(|error| errors.push(error)).ok()
}
