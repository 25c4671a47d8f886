//! Where a placeholder is, and whether its node has shown that it has the image.
//!
//! Invariant: reads the pod alone.
//! Failure: none; a pod that is no placeholder, that ends, or that has no node is nowhere.

use k8s_openapi::api::core::v1::Pod;

use super::pods;

/// The place of a placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    pub(crate) node: &'a str,
    /// It has started, for which kubelet needs the image.
    pub(crate) has_image: bool,
    /// When it came there, in seconds since the Unix epoch; 0 if that is not known.
    pub(crate) since: i64,
}

/// Its place, if it is a placeholder of a machine with that image.
pub(crate) fn place<'a>(pod: &'a Pod, image: &str) -> Option<Place<'a>> {
    let is_placeholder = pods::role(pod) == pods::PROVISION && pods::image(pod) == Some(image);
    if !is_placeholder || pods::is_deleting(pod) || pods::phase(pod) == "Failed" {
        return None;
    }
    Some(Place {
        node: pods::node(pod)?,
        has_image: pods::runs(pod) || pods::phase(pod) == "Succeeded",
        since: since(pod),
    })
}

fn since(pod: &Pod) -> i64 {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let mut scheduled = conditions.into_iter().flatten();
    let scheduled = scheduled.find(|c| c.type_ == "PodScheduled" && c.status == "True");
    let at = scheduled.and_then(|condition| condition.last_transition_time.as_ref());
    let at = at.or(pod.metadata.creation_timestamp.as_ref());
    at.map_or(0, |at| at.0.as_second())
}
