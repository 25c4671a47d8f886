//! Which nodes have an image, from the lists of images that kubelet writes to the nodes' statuses.
//!
//! Invariant: only names of ours and of image objects are checked; the watch of nodes keeps no
//! others, and begins when the image objects are known. Of a node that may have more images than
//! kubelet reports, one entry without a name is kept as a mark.
//! Failure: kubelet lists the 50 largest images of its node; a smaller one does not count. An image
//! that a node had before an object named it counts from the node's next report on, within minutes.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ContainerImage, Node};
use kube::ResourceExt;

use super::name;
use super::object::Object;
use crate::context::Stores;

/// What names of ours begin with.
const PREFIX: &str = "vmlet.dev/";
/// Most images that kubelet reports, unless its `nodeStatusMaxImages` is another number.
const MOST_REPORTED: usize = 50;

/// The nodes that have an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Holders {
    /// In alphabetical order.
    pub(crate) nodes: BTreeSet<String>,
    /// Digests of what they have.
    pub(crate) digests: BTreeSet<String>,
}

impl Holders {
    /// Those of the image that pods name so.
    pub(crate) fn of_image(stores: &Stores, name: &str) -> Self {
        let mut found = Self::default();
        for node in stores.nodes.state() {
            for image in images(&node).filter(|image| is_it(image, name)) {
                found.nodes.insert(node.name_any());
                found.digests.extend(digest(image, name));
            }
        }
        found
    }
}

/// The repositories of image objects that pods name as the registry does: with a port in it, or with
/// credentials.
pub(crate) fn foreign(stores: &Stores) -> BTreeSet<String> {
    let images = Object::all(stores).filter(|image| image.source().oci.is_some());
    let named = images.filter_map(|image| name::from_source(image.source()).ok());
    let named = named.filter(|named| !named.name.starts_with(PREFIX));
    named
        .map(|named| repository(&named.name).to_owned())
        .collect()
}

/// Removes images of other runtimes from a node, but those of `foreign` repositories: their names
/// are a third of the memory that a cluster takes here.
pub(crate) fn keep_ours(node: &mut Node, foreign: &BTreeSet<String>) {
    let images = node.status.as_mut().and_then(|s| s.images.as_mut());
    let Some(images) = images else {
        return;
    };
    let is_truncated = images.len() >= MOST_REPORTED;
    for image in &mut *images {
        if let Some(names) = &mut image.names {
            names.retain(|name| name.starts_with(PREFIX) || foreign.contains(repository(name)));
        }
        // It is of no use here, and would make each change of a size one of the node.
        image.size_bytes = None;
    }
    images.retain(|image| image.names.as_ref().is_some_and(|names| !names.is_empty()));
    if is_truncated {
        images.push(ContainerImage::default());
    }
}

/// Whether the node may have images that kubelet does not report.
pub(crate) fn is_truncated(node: &Node) -> bool {
    images(node).any(|image| image.names.is_none())
}

/// The names of a node's images.
pub(crate) fn names(node: &Node) -> BTreeSet<&str> {
    let names = images(node).flat_map(|image| image.names.iter().flatten());
    names.map(String::as_str).collect()
}

/// A name without its tag and digest.
pub(crate) fn repository(name: &str) -> &str {
    let name = name.split('@').next().unwrap_or(name);
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    match name[last..].find(':') {
        Some(colon) => &name[..last + colon],
        None => name,
    }
}

fn images(node: &Node) -> impl Iterator<Item = &ContainerImage> {
    let status = node.status.iter();
    status.flat_map(|status| status.images.iter().flatten())
}

/// By digest where the name has one, else by tag.
fn is_it(image: &ContainerImage, name: &str) -> bool {
    let wanted = match name.split_once('@') {
        Some((_, digest)) => format!("{}@{digest}", repository(name)),
        None if repository(name) == name => format!("{name}:latest"),
        None => name.to_owned(),
    };
    image.names.iter().flatten().any(|known| *known == wanted)
}

fn digest(image: &ContainerImage, name: &str) -> Option<String> {
    let mut names = image.names.iter().flatten();
    let of = |known: &String| {
        let (repository_of, digest) = known.split_once('@')?;
        (repository_of == repository(name)).then(|| digest.to_owned())
    };
    names.find_map(of)
}

#[cfg(test)]
mod tests {
    use crds::VirtualMachineImage;
    use kube::runtime::watcher;
    use serde_json::json;

    use super::*;

    fn image(names: &[&str]) -> ContainerImage {
        ContainerImage {
            names: Some(names.iter().map(ToString::to_string).collect()),
            size_bytes: Some(7),
        }
    }

    #[test]
    fn an_image_is_known_by_its_tag_or_by_the_digest_that_it_is_named_with() {
        let url = image(&["vmlet.dev/url/00@sha256:aa", "vmlet.dev/url/00:latest"]);
        assert!(is_it(&url, "vmlet.dev/url/00"));
        assert!(is_it(&url, "vmlet.dev/url/00@sha256:aa"));
        assert!(!is_it(&url, "vmlet.dev/url/00@sha256:bb"));
        assert!(!is_it(&url, "vmlet.dev/url/0"));
        assert_eq!(digest(&url, "vmlet.dev/url/00").unwrap(), "sha256:aa");
        let moved = image(&["vmlet.dev/url/00@sha256:aa"]);
        assert!(
            !is_it(&moved, "vmlet.dev/url/00"),
            "another content has the tag"
        );
        let tagged = image(&["vmlet.dev/r.example/d:12"]);
        assert!(is_it(&tagged, "vmlet.dev/r.example/d:12"));
        assert!(!is_it(&tagged, "vmlet.dev/r.example/d"));
        assert_eq!(digest(&tagged, "vmlet.dev/r.example/d:12"), None);
    }

    #[test]
    fn only_names_of_ours_are_kept() {
        let mut node = Node::default();
        let status = node.status.insert(Default::default());
        status.images = Some(vec![
            image(&["registry.example/pause:1", "vmlet.dev/a:latest"]),
            image(&["registry.example/big:1"]),
        ]);
        keep_ours(&mut node, &BTreeSet::new());
        assert_eq!(names(&node), BTreeSet::from(["vmlet.dev/a:latest"]));
        assert_eq!(images(&node).count(), 1);
    }

    #[test]
    fn images_that_keep_the_name_of_their_registry_are_counted() {
        let (stores, mut feeds) = Stores::new();
        for (object, oci) in [
            ("port", json!({ "reference": "r.example:5000/d:12" })),
            (
                "private",
                json!({ "reference": "r.example/p", "pullSecret": "s" }),
            ),
            ("plain", json!({ "reference": "r.example/plain:1" })),
        ] {
            let object: VirtualMachineImage = serde_json::from_value(json!({
                "metadata": { "name": object, "namespace": "ns" },
                "spec": { "source": { "oci": oci } },
            }))
            .unwrap();
            feeds.images.apply(watcher::Event::Apply(object));
        }
        let foreign = foreign(&stores);
        let expected = ["r.example/p", "r.example:5000/d"].map(str::to_owned);
        assert_eq!(foreign, BTreeSet::from(expected));

        let mut node = Node::default();
        node.metadata.name = Some("n1".to_owned());
        let status = node.status.insert(Default::default());
        status.images = Some(vec![
            image(&["r.example:5000/d@sha256:aa", "r.example:5000/d:12"]),
            image(&["r.example/p@sha256:bb", "r.example/p:latest"]),
            image(&["r.example/plain:1"]),
        ]);
        keep_ours(&mut node, &foreign);
        assert_eq!(images(&node).count(), 2);
        feeds.nodes.apply(watcher::Event::Apply(node));
        let held = |name: &str| {
            let holders = Holders::of_image(&stores, name);
            (holders.nodes.len(), holders.digests.into_iter().next())
        };
        assert_eq!(
            held("r.example:5000/d:12"),
            (1, Some("sha256:aa".to_owned()))
        );
        assert_eq!(held("r.example/p"), (1, Some("sha256:bb".to_owned())));
        assert_eq!(held("r.example:5000/d:13"), (0, None));
    }
}
