//! The disks of a package beside its boot disk.
//!
//! Invariant: an image makes one disk, so that no other one is sent. Each is a claim that the user names, or
//! a line of the report.
//! Failure: a disk that the package does not have, or has twice by that name; a disk with two claims, and a
//! claim of two disks.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::report::{Fate, Report};
use super::super::shown;
use super::{Attached, Choice, PlanError, name, quantity};

/// The volumes of the machine; none without a claim.
pub(super) fn of_others(
    all: &[Attached<'_>],
    boot: usize,
    choice: &Choice,
    report: &mut Report,
) -> Result<Option<Value>, PlanError> {
    let claims = claims(all, boot, choice)?;
    let mut volumes = Vec::new();
    for (place, other) in all.iter().enumerate() {
        if place == boot {
            continue;
        }
        let Some(claim) = claims.get(&place) else {
            report.add(Fate::LeftOut, &name(other), left_out(other));
            continue;
        };
        volumes.push(json!({
            "name": format!("disk{}", volumes.len() + 1),
            "persistentVolumeClaim": {"claimName": claim},
        }));
        let claim = shown(claim);
        let text = match other.file {
            Some(_) => format!("it is the claim {claim}: copy its content there before the start"),
            None => format!("it is the claim {claim}"),
        };
        report.add(Fate::Changed, &name(other), text);
    }
    Ok((!volumes.is_empty()).then(|| volumes.into()))
}

/// The claims by the places of their disks.
fn claims<'a>(
    all: &[Attached<'_>],
    boot: usize,
    choice: &'a Choice,
) -> Result<BTreeMap<usize, &'a str>, PlanError> {
    let mut claims = BTreeMap::new();
    for (named, claim) in &choice.volumes {
        let others = || all.iter().enumerate().filter(|(place, _)| *place != boot);
        let mut meant = others().filter(|(_, other)| other.is_called(named));
        let Some((place, disk)) = meant.next() else {
            let names: Vec<_> = others().map(|(_, other)| called(other)).collect();
            let names = shown(&names.join(", "));
            return Err(PlanError::UnknownVolume(shown(named), names));
        };
        if meant.next().is_some() {
            return Err(PlanError::AmbiguousVolume(shown(named)));
        }
        if claims.values().any(|other| other == claim) {
            return Err(PlanError::SameClaim(shown(claim)));
        }
        if claims.insert(place, claim.as_str()).is_some() {
            return Err(PlanError::TwoClaims(shown(&name(disk))));
        }
    }
    Ok(claims)
}

fn left_out(other: &Attached<'_>) -> String {
    let capacity = other.disk.and_then(|disk| disk.capacity);
    let capacity = capacity.map_or_else(|| "of unknown size".into(), quantity);
    match other.file {
        Some(_) => {
            "an image makes one disk: copy it into a claim, and name that by --volume DISK=CLAIM"
                .to_owned()
        }
        None => format!("it is empty ({capacity}): name an empty claim by --volume DISK=CLAIM"),
    }
}

/// The name by which `--volume` takes it.
fn called<'a>(one: &Attached<'a>) -> &'a str {
    let file = one.file.map(|file| file.href.as_str());
    let disk = one.disk.map(|disk| disk.id.as_str());
    file.or(disk).unwrap_or_default()
}
