//! Brings the images of ordinary pods into a node's containerd.
//!
//! Invariant: there is no registry; whatever a test's container runs on is imported here.
//! Failure: ctr's own message.

use anyhow::{Context, Result};

use super::containerd_socket;
use crate::stack::Layout;
use crate::{pod_images, run, workspace};

/// Imports all of them.
pub(super) fn import(layout: &Layout) -> Result<()> {
    for archive in [pod_images::pause_image()?, pod_images::tool_image()?] {
        let mut ctr = run::command(workspace::tools_bin().join("ctr"));
        ctr.arg("--address").arg(containerd_socket(layout));
        ctr.args(["--namespace", "k8s.io", "images", "import", "--local"]);
        run::output(ctr.arg(&archive)).with_context(|| format!("import {}", archive.display()))?;
    }
    Ok(())
}
