//! Former versions of a file on a web server, which has one version of it.
//!
//! Invariant: machines use a former version only as long as a node has it: no server has it for another node, and
//! what the server has now says nothing about it.
//! Failure: `Ready` of the image is False (`VersionGone`), with what to do.

use crate::context::Context;
use crate::reconcile::image::cache;
use crate::reconcile::image::name::Named;
use crate::reconcile::image::nodes::Holders;
use crate::reconcile::image::object::Object;

/// Why new machines cannot use the version with this name.
pub(in crate::reconcile::image) fn absent(
    ctx: &Context,
    object: &Object,
    named: &Named,
) -> Option<String> {
    if !object.has_former_file() {
        return None;
    }
    let digest = object.version()?;
    let all = object.versions();
    if !all.iter().any(|version| version.digest == digest) {
        return Some(format!(
            "spec.update.digest names version {digest}, which is none of status.versions: a web server has one \
             version of a file; name one of the list, or remove the field"
        ));
    }
    if is_on_a_node(ctx, object, named) {
        return None;
    }
    let advice = match object.update().and_then(|update| update.digest.as_ref()) {
        Some(_) => "name another one of status.versions in spec.update.digest, or remove the field",
        None => "machines wait until nodes have pulled the newest one",
    };
    Some(format!(
        "no node has version {digest}, and the web server has another one: it has one version of a file; {advice}"
    ))
}

/// By what kubelet reports, and by the cache of the image.
fn is_on_a_node(ctx: &Context, object: &Object, named: &Named) -> bool {
    if !Holders::of(&ctx.stores, &named.name).nodes.is_empty() {
        return true;
    }
    let cached = cache::find(ctx, object).filter(|c| cache::is_of(c, object, &named.name));
    cached.is_some_and(|cached| cache::nodes_with(&cached).next().is_some())
}
