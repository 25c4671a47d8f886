//! Checks whether the network of a sandbox is unchanged.
//!
//! Invariant: nothing is changed. Plugins are not asked: they would look for the addresses on their
//! own link, and those are the guest's now.
//! Failure: the first difference is named.

use netns::Namespace;
use netns::netlink::{Kernel, Link, Netlink};

use super::{Live, Sandboxes, up};
use crate::failure::Failure;

impl Sandboxes {
    /// Success when namespace, links, bridges and taps are there and wired.
    ///
    /// # Errors
    /// [`Failure::Changed`] with the first difference.
    pub(crate) async fn check(&self, id: &str) -> Result<(), Failure> {
        let slot = self.lock(id).await?;
        up(&slot, id)?;
        let Some(Live { entry, servers, .. }) = slot.as_ref() else {
            return Err(Failure::NotFound(id.to_owned()));
        };
        let changed = |what: String| Err(Failure::Changed(what));
        let Some(ns) = Namespace::open(&entry.netns)? else {
            return changed("the namespace is gone".to_owned());
        };
        if servers.is_none() {
            return changed("its servers of addresses do not run".to_owned());
        }
        let kernel = Kernel::open(&ns).await?;
        let links = kernel.links().await?;
        let find = |name: &str| links.iter().find(|link| link.name == name);
        for record in &entry.links {
            let Some(bridge) = find(&record.bridge) else {
                return changed(format!("bridge {} is gone", record.bridge));
            };
            let port = |link: &&Link| link.bridge == Some(bridge.index) && link.up;
            for name in [&record.link, &record.tap] {
                if find(name).filter(port).is_none() {
                    return changed(format!("{name} is no running port of {}", record.bridge));
                }
            }
            if find(&record.link).is_some_and(|link| link.mac != Some(record.port_mac)) {
                return changed(format!("{} has another MAC address", record.link));
            }
        }
        Ok(())
    }
}
