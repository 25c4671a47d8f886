//! Installs our kinds, our policies and the rights of our programs, from `deploy/`.
//!
//! Invariant: what is applied is what operators apply; only the workloads are left out, since they
//! run as processes here.
//! Failure: kubectl's own message.

use anyhow::{Context, Result};

use super::{Node, commands};
use crate::{run, workspace};

/// What `kubectl apply` is given, one after the other.
const PARTS: &[&[&str]] = &[
    &["-k", "crds"],
    &["-k", "admission"],
    &[
        "-f",
        "namespace.yaml",
        "-f",
        "users.yaml",
        "-f",
        "controller/serviceaccount.yaml",
    ],
    &[
        "-f",
        "agent/serviceaccount.yaml",
        "-f",
        "agent/node-limits.yaml",
    ],
];

/// Applies all of it.
pub(super) fn kinds_and_rights(node: &Node) -> Result<()> {
    let deploy = workspace::root().join("deploy");
    for part in PARTS {
        let mut kubectl = commands::kubectl(node);
        kubectl.args(["apply", "--server-side"]);
        let present = part.chunks(2).filter(|pair| deploy.join(pair[1]).exists());
        let mut is_empty = true;
        for pair in present {
            kubectl.arg(pair[0]).arg(deploy.join(pair[1]));
            is_empty = false;
        }
        if !is_empty {
            run::output(&mut kubectl).with_context(|| format!("install {}", part.join(" ")))?;
        }
    }
    Ok(())
}
