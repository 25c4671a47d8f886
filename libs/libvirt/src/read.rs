//! Lenient readers for the little that is read back from libvirt's XML.
//!
//! Invariant: what is not asked for is skipped, so that a newer libvirt never breaks a reader.
//! Failure: `None` for text that is not XML or lacks what is asked for.

use serde::Deserialize;

/// Our metadata element, whatever prefix libvirt gives it.
#[derive(Debug, Deserialize)]
struct Metadata {
    #[serde(rename = "@container")]
    container: Option<String>,
}

/// The attribute `container` of our metadata element; empty when it has none.
pub(crate) fn container(xml: &str) -> Option<String> {
    let element: Metadata = quick_xml::de::from_str(xml).ok()?;
    Some(element.container.unwrap_or_default())
}

/// What the fake keeps of a definition.
#[cfg(feature = "fake")]
#[derive(Debug, Deserialize)]
pub(crate) struct Definition {
    uuid: String,
    pub(crate) name: String,
    #[serde(default)]
    metadata: Option<Extensions>,
}

#[cfg(feature = "fake")]
#[derive(Debug, Deserialize)]
struct Extensions {
    #[serde(rename = "vm")]
    vm: Option<Metadata>,
}

#[cfg(feature = "fake")]
impl Definition {
    /// Reads a domain definition.
    pub(crate) fn parse(xml: &str) -> Option<Self> {
        quick_xml::de::from_str(xml).ok()
    }

    /// Its UUID, if it is one.
    pub(crate) fn uuid(&self) -> Option<uuid::Uuid> {
        self.uuid.parse().ok()
    }

    /// The attribute `container` of our metadata element; `None` when the domain is not ours.
    pub(crate) fn container(&self) -> Option<String> {
        let vm = self.metadata.as_ref()?.vm.as_ref()?;
        Some(vm.container.clone().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_is_found_with_and_without_a_prefix() {
        let plain = r#"<vm container="c1" sandbox="s1"/>"#;
        let prefixed = r#"<vmlet:vm xmlns:vmlet="https://vmlet.dev/domain/1" container="c1"/>"#;
        assert_eq!(container(plain).as_deref(), Some("c1"));
        assert_eq!(container(prefixed).as_deref(), Some("c1"));
    }

    #[test]
    fn an_element_of_another_version_is_still_ours() {
        assert_eq!(container("<vm new='x'><more/></vm>").as_deref(), Some(""));
        assert_eq!(container("not xml at all <"), None);
    }
}
