//! Former versions of a file on a web server, which has one version of it.
//!
//! Invariant: machines use a former version only as long as a node may have it: no server has it for another node, and
//! what the server has now says nothing about it. A node whose list of images is not whole may have any.
//! Failure: `Ready` of the image is False (`VersionGone`), with what to do, or Unknown (`VersionNotSeen`), with the nodes
//! that may have it.

use crds::InspectedImage;
use kube::ResourceExt;

use crate::context::Context;
use crate::reconcile::image::cache;
use crate::reconcile::image::name::Named;
use crate::reconcile::image::nodes::{self, Holders};
use crate::reconcile::image::object::Object;

/// Most nodes that a message names.
const MOST_NAMED: usize = 5;

/// What is known of a version that no node reports.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::reconcile::image) enum Absence {
    /// No node has it, and why new machines cannot use it.
    Gone(String),
    /// Which nodes may have it, and what a check has shown of it.
    NotSeen(String, InspectedImage),
}

/// What is known of the version with this name, if no node reports it and no server has it.
pub(in crate::reconcile::image) fn absent(
    ctx: &Context,
    object: &Object,
    named: &Named,
) -> Option<Absence> {
    if !object.has_former_file() {
        return None;
    }
    let digest = object.version()?;
    let mut all = object.versions().iter();
    let Some(version) = all.find(|version| version.digest == digest) else {
        return Some(Absence::Gone(format!(
            "spec.update.digest names version {digest}, which is none of status.versions: a web server has one \
             version of a file; name one of the list, or remove the field"
        )));
    };
    if is_on_a_node(ctx, object, named) {
        return None;
    }
    let advice = match object.update().and_then(|update| update.digest.as_ref()) {
        Some(_) => "name another one of status.versions in spec.update.digest, or remove the field",
        None => "machines wait until nodes have pulled the newest one",
    };
    let unknown = with_other_images(ctx);
    if unknown.is_empty() {
        return Some(Absence::Gone(format!(
            "no node has version {digest}, and the web server has another one: it has one version of a file; {advice}"
        )));
    }
    let mut names = unknown
        .iter()
        .take(MOST_NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if let more @ 1.. = unknown.len().saturating_sub(MOST_NAMED) {
        names = format!("{names} and {more} more");
    }
    let text = format!(
        "no node reports version {digest}, and the web server has another one. Nodes that may have it, since kubelet reports \
         only the largest of their images (nodeStatusMaxImages): {names}"
    );
    Some(Absence::NotSeen(text, version.image.clone()))
}

/// By what kubelet reports, and by the cache of the image.
fn is_on_a_node(ctx: &Context, object: &Object, named: &Named) -> bool {
    if !Holders::of_image(&ctx.stores, &named.name).nodes.is_empty() {
        return true;
    }
    let cached = cache::find(ctx, object).filter(|c| cache::is_of(c, object, &named.name));
    cached.is_some_and(|cached| cache::nodes_with(&cached).next().is_some())
}

/// The nodes with an agent that may have images which kubelet does not report, in alphabetical order.
pub(super) fn with_other_images(ctx: &Context) -> Vec<String> {
    let known = ctx.stores.agents.known();
    let all = ctx.stores.nodes.state().into_iter();
    let all = all.filter(|node| nodes::is_truncated(node));
    let mut names: Vec<_> = all.map(|node| node.name_any()).collect();
    names.retain(|name| known.contains(name));
    names.sort();
    names
}
