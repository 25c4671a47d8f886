//! `image update`: requests a check of the tag or the file, or pins a version for new machines.
//!
//! Invariant: one edit of `spec.update`; an image that follows neither is not changed.
//! Failure: the cluster's; [`PinError`] for a digest that means no version, or several.

use std::process::ExitCode;

use clap::Args;
use crds::ImageVersion;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::pull::target::{Scope, Target};
use super::versions::NotFollowing;
use crate::cluster::ClusterArgs;

/// Image to update, and what is changed.
#[derive(Debug, Args)]
pub(crate) struct UpdateArgs {
    /// Name of the image.
    #[arg(value_name = "NAME")]
    name: String,
    /// Let new virtual machines use this version in place of the newest: a digest of `image
    /// versions`, or the first characters of one.
    #[arg(long, value_name = "DIGEST", conflicts_with = "unpin")]
    pin: Option<String>,
    /// Let new virtual machines use the newest version again.
    #[arg(long)]
    unpin: bool,
    /// Scope of the image [default: the image of the namespace if there is one, else the image of
    /// the cluster].
    #[arg(long, value_enum, value_name = "SCOPE")]
    scope: Option<Scope>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// A digest that cannot be pinned.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum PinError {
    #[error(
        "no version of image {name} has the digest {digest}: `vmletctl image versions {name}` lists them"
    )]
    Unknown { name: String, digest: String },
    #[error(
        "several versions of image {name} have a digest that begins with {digest}: give more of it"
    )]
    Ambiguous { name: String, digest: String },
}

pub(crate) async fn run(args: &UpdateArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let target = Target::find(&cluster, &args.name, args.scope).await?;
    let (update, status) = target.versions().await?;
    if update.is_none() {
        return Err(NotFollowing(args.name.clone()).into());
    }
    let pin = args.pin.as_deref();
    let pin = pin.map(|digest| pinned(&args.name, &status.versions, digest));
    let pin = pin.transpose()?;
    let change = change(pin, args.unpin, Timestamp::now());
    target.edit_update(&change).await?;
    let done = match (pin, args.unpin) {
        (Some(digest), _) => format!("pinned to {digest}"),
        (None, true) => "unpinned".to_owned(),
        (None, false) => "check requested".to_owned(),
    };
    crate::commands::print(&format!("{} {done}\n", target.title()))?;
    Ok(ExitCode::SUCCESS)
}

/// The fields of `spec.update` that change.
fn change(pin: Option<&str>, is_unpinned: bool, now: Timestamp) -> Value {
    match (pin, is_unpinned) {
        (Some(digest), _) => json!({ "digest": digest }),
        (None, true) => json!({ "digest": null }),
        (None, false) => json!({ "checkRequest": now.to_string() }),
    }
}

/// The version that a digest, or its beginning, means.
fn pinned<'a>(name: &str, versions: &'a [ImageVersion], digest: &str) -> Result<&'a str, PinError> {
    let has_beginning = |version: &&ImageVersion| {
        let (algorithm, known) = version.digest.split_once(':').unwrap_or_default();
        let digits = match digest.split_once(':') {
            Some((of, digits)) if of == algorithm => digits,
            Some(_) => "",
            None => digest,
        };
        !digits.is_empty() && known.starts_with(digits)
    };
    let mut found = versions.iter().filter(has_beginning);
    let name = || name.to_owned();
    match (found.next(), found.next()) {
        (Some(version), None) => Ok(&version.digest),
        (None, _) => Err(PinError::Unknown {
            name: name(),
            digest: digest.to_owned(),
        }),
        (Some(_), Some(_)) => Err(PinError::Ambiguous {
            name: name(),
            digest: digest.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_a_version_by_its_digest_or_the_beginning_of_it() {
        let version = |digits: &str| -> ImageVersion {
            serde_json::from_value(json!({
                "digest": format!("sha256:{digits}{}", "0".repeat(60)), "state": "Ready",
                "foundTime": "2026-01-01T00:00:00Z", "image": { "format": "qcow2" },
            }))
            .unwrap()
        };
        let all = [version("ab01"), version("ab02"), version("cd03")];
        let full = all[0].digest.clone();
        for digest in [full.as_str(), "sha256:ab01", "ab01"] {
            assert_eq!(pinned("i", &all, digest), Ok(full.as_str()), "{digest}");
        }
        let several = pinned("i", &all, "ab").unwrap_err();
        assert!(matches!(several, PinError::Ambiguous { .. }), "{several}");
        for digest in ["ef", "", ":", "sha256:", "sha512:ab01", "sha256"] {
            let unknown = pinned("i", &all, digest).unwrap_err();
            assert!(matches!(unknown, PinError::Unknown { .. }), "{unknown}");
        }
        let mut long = version("ab01");
        long.digest = format!("sha512:ab01{}", "0".repeat(124));
        let all = [version("ab02"), long];
        for digest in ["sha512:ab", "ab01"] {
            let found = pinned("i", &all, digest);
            assert_eq!(found, Ok(all[1].digest.as_str()), "{digest}");
        }
    }

    #[test]
    fn one_field_changes() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let digest = json!({ "digest": "sha256:a" });
        assert_eq!(change(Some("sha256:a"), false, now), digest);
        assert_eq!(change(None, true, now), json!({ "digest": null }));
        let request = json!({ "checkRequest": "2026-01-01T00:00:00Z" });
        assert_eq!(change(None, false, now), request);
    }
}
