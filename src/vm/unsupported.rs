//! Requests of a pod that a machine cannot honour.
//!
//! Invariant: what kubelet gives to every container (the token of the service account,
//! `/etc/hosts`, the termination log, variables of Services, huge pages of 0 bytes) does not count.
//! Values of variables are never kept or shown.
//! Failure: none here. What would lose data is refused as [`super::Error::Unsupported`] where
//! the node's setting requires it; the rest becomes an event of the pod, which the agent writes.

mod finding;
mod given;
mod mounts;
mod settings;

use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};

use podspec::{Annotations, Role, is_url_image_name, unknown_annotations};
use tapmanager::wire::Network;

use super::error::{Error, Result};
use super::lifecycle::request;
use super::model::{BlockDisk, ContainerConfig, Environment};
use super::service::Containers;
use super::settings::Unsupported;
use super::shares::{NINE_P, Protocol, Share, volumes};
use crate::images::{self, Locator};
use crate::platform::Platform;
use crate::sandbox::{Sandbox, SandboxConfig};
use finding::{Finding, LONGEST};
pub(in crate::vm) use given::Given;

/// Most findings of one container.
const MOST: usize = 32;
/// What kubelet gives to every pod with the cluster's name service.
const NDOTS: &str = "ndots:5";
/// Most names in one finding.
const NAMES: usize = 8;
/// Most pods of which it is remembered that their pull secrets were not used.
const MOST_PODS: usize = 1024;

impl<P: Platform> Containers<P> {
    /// A pod came with pull secrets, which no pull uses.
    pub fn secrets_unused(&self, pod_uid: &str) {
        let mut pods = self.pods_with_unused_secrets();
        if pod_uid.is_empty() || pods.iter().any(|known| known == pod_uid) {
            return;
        }
        if pods.len() >= MOST_PODS {
            pods.pop_front();
        }
        pods.push_back(pod_uid.chars().take(LONGEST).collect());
    }

    /// Refuses a container whose guest would write to something that is not there, unless the node
    /// allows that.
    pub(super) fn refuse_loss(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
        given: &Given,
    ) -> Result<()> {
        // What only holds the place of a machine has no guest.
        if request::instance(sandbox, config)?.role != Role::Machine {
            return Ok(());
        }
        let found = of_request(&sandbox.config, config, given);
        match lost(&found, self.settings.unsupported) {
            Some(text) => Err(Error::Unsupported(text)),
            None => Ok(()),
        }
    }

    /// What the guest of a container does not get, in sentences for the pod's events.
    pub(super) fn unsupported(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
        blocks: &[BlockDisk],
        (boots_not, given): (Option<&'static str>, Given),
    ) -> Vec<String> {
        let mut found = of_request(&sandbox.config, config, &given);
        found.extend(of_pod(&sandbox.config));
        found.extend(of_shares(&given));
        found.extend(of_devices(config, blocks));
        let is_own = given.root_file || blocks.iter().any(BlockDisk::is_root);
        let annotations = request::annotations(sandbox, config);
        found.extend(settings::of_root_size(&annotations).filter(|_| is_own));
        found.extend(settings::of_cpu_model(
            &annotations,
            self.accelerator().as_ref(),
        ));
        let network = sandbox.network.iter().filter(|_| given.no_searches);
        found.extend(network.filter_map(of_searches));
        let network = sandbox.network.iter().filter(|_| !given.addresses);
        found.extend(network.flat_map(of_network));
        found.extend(sandbox.network.iter().flat_map(of_omitted));
        let uid = &sandbox.config.metadata.uid;
        if self.pods_with_unused_secrets().contains(uid) {
            found.push(of_pull_secrets());
        }
        found.extend(boots_not.map(Finding::new));
        found.into_iter().map(|finding| finding.text).collect()
    }

    /// What a process of a pod machine does not get.
    pub(super) fn unsupported_by_process(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
    ) -> Result<Vec<String>> {
        let given = self.given_to_process(sandbox, config)?;
        let mut found = of_request(&sandbox.config, config, &given);
        found.extend(of_devices(config, &[]));
        if !config.resources.cpuset_cpus.is_empty() {
            found.push(Finding::new(format!(
                "CPU set {} is not used: processes run on all virtual CPUs of the pod machine",
                config.resources.cpuset_cpus
            )));
        }
        if self
            .pods_with_unused_secrets()
            .contains(&sandbox.config.metadata.uid)
        {
            found.push(of_pull_secrets());
        }
        Ok(found.into_iter().map(|finding| finding.text).collect())
    }

    /// What a process has of its request: no volumes in a pod whose machine has no share for them.
    pub(super) fn given_to_process(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
    ) -> Result<Given> {
        let machine = self.pod_machine(&sandbox.id);
        let has_share = machine.is_none_or(|machine| volumes::has_pod_share(&machine));
        Ok(if has_share && volumes::are_shared(sandbox, config)? {
            Given::of_process(config)
        } else {
            Given::default()
        })
    }

    fn pods_with_unused_secrets(&self) -> MutexGuard<'_, VecDeque<String>> {
        let pods = self.unused_secrets.lock();
        pods.unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known before anything is done for the container.
pub(super) fn of_request(
    pod: &SandboxConfig,
    config: &ContainerConfig,
    given: &Given,
) -> Vec<Finding> {
    let others = config.mounts.iter();
    let of_guest_data = given::mounts_of_the_daemon(pod, config);
    let others = others.filter(|mount| {
        let path = &mount.container_path;
        !of_guest_data.contains(path) && !given.mounts.contains(path)
    });
    let mut all = mounts::findings(&pod.metadata.uid, others);
    let shared = config.mounts.iter();
    all.extend(shared.filter_map(|mount| {
        let share = given.shares.get(&mount.container_path)?;
        mounts::of_propagation(mount, share.protocol)
    }));
    let unused = &config.unused;
    if unused.command {
        all.push(Finding::new(
            "command, arguments and working directory are not used: the guest runs what is in its \
             image",
        ));
    }
    all.extend(of_variables(&unused.variables, given));
    if let Some(names) = listed(&unused.cdi_devices) {
        all.push(Finding::new(format!(
            "CDI devices do not reach the guest: {names}"
        )));
    }
    if let Some(names) = listed(&unused.security) {
        all.push(Finding::new(format!(
            "the security context has no effect inside of a guest: {names}"
        )));
    }
    let resources = &config.resources;
    if resources
        .hugepage_limits
        .iter()
        .any(|(_, limit)| *limit > 0)
    {
        all.push(Finding::new(
            "huge pages are not used: the guest's memory is ordinary memory of the node",
        ));
    }
    if !resources.cpuset_mems.is_empty() {
        all.push(Finding::new(format!(
            "memory nodes {} are not used: the kernel places the guest's memory",
            resources.cpuset_mems
        )));
    }
    all.extend(of_image_url(pod, config));
    for annotations in [&pod.annotations, &config.annotations] {
        all.extend(unknown_annotations(annotations).into_iter().map(|unknown| {
            let name = unknown.name;
            Finding::new(match unknown.nearest {
                Some(nearest) => format!("annotation {name} is not known; is {nearest} meant?"),
                None => format!("annotation {name} is not known and has no effect"),
            })
        }));
    }
    all.dedup();
    all.truncate(MOST);
    all
}

/// Variables that no file of the guest has.
fn of_variables(names: &[String], given: &Given) -> Option<Finding> {
    if !given.environment {
        let names = listed(names)?;
        return Some(Finding::new(format!(
            "environment variables do not reach the guest: {names}; it has no cloud-init disk"
        )));
    }
    let unfit = names.iter().filter(|name| !Environment::is_name(name));
    let names = listed(&unfit.cloned().collect::<Vec<_>>())?;
    Some(Finding::new(format!(
        "environment variables whose names a shell does not know do not reach the guest: {names}"
    )))
}

/// Shares that nothing in the guest mounts.
fn of_shares(given: &Given) -> Vec<Finding> {
    let unmounted = given.shares.iter().filter(|_| !given.environment);
    let finding = |(path, share): (&String, &Share)| {
        let kind = share.protocol.name();
        let tag = &share.tag;
        let options = match share.protocol {
            Protocol::Virtiofs => String::new(),
            Protocol::NineP => format!(" -o {NINE_P}"),
        };
        Finding::new(format!(
            "the directory {path} is not mounted in the guest, which has no cloud-init disk: mount it \
             there by mount -t {kind}{options} {tag} {path}"
        ))
    };
    unmounted.map(finding).collect()
}

/// What a pod requests for each container, and a machine does not get.
pub(super) fn of_pod(pod: &SandboxConfig) -> Vec<Finding> {
    let mut all = Vec::new();
    let options = pod.dns.iter().flat_map(|dns| &dns.options);
    let options: Vec<_> = options.filter(|option| *option != NDOTS).cloned().collect();
    if let Some(options) = listed(&options) {
        all.push(Finding::new(format!(
            "resolver options do not reach the guest, since DHCP has none: {options}"
        )));
    }
    let parameters: Vec<_> = pod.sysctls.keys().cloned().collect();
    if let Some(names) = listed(&parameters) {
        all.push(Finding::new(format!(
            "kernel parameters are not set in the guest: {names}; set them by \
             vmlet.dev/cloud-init-user-data or in the image"
        )));
    }
    all
}

/// A URL of an image beside an image name that is not made of a URL.
fn of_image_url(pod: &SandboxConfig, config: &ContainerConfig) -> Option<Finding> {
    let image = &config.image;
    let names = [&image.user_specified_image, &image.image];
    let url = match Annotations::new(&pod.annotations).image_url() {
        Ok(url) => url?,
        // Too long to be of use for any name.
        Err(_) => "",
    };
    // A disk that is ready was made of the image at the URL.
    let is_used = |name: &&String| {
        images::is_none(name)
            || is_url_image_name(name)
            || Locator::new(name, Some(url)).check().is_ok()
    };
    (!names.iter().any(is_used)).then(|| {
        Finding::new(
            "annotation vmlet.dev/image-url is not used: it needs an image name vmlet.dev/url/HASH, \
             HASH being the SHA-256 of the URL, or the value oci:// and the name of the image",
        )
    })
}

/// A search list that a config drive cannot give.
fn of_searches(network: &Network) -> Option<Finding> {
    let names = listed(&network.dns.searches).filter(|_| !network.guest_nics().is_empty())?;
    Some(Finding::new(format!(
        "the search list does not reach the guest, since a config drive has no place for it: {names}; \
         vmlet.dev/force-dhcp gives it by DHCP"
    )))
}

/// What plugins left in the pod's namespace beside its NICs; a guest without NICs misses nothing.
fn of_omitted(network: &Network) -> Vec<Finding> {
    let omitted = network.omitted.iter().filter(|_| !network.detached);
    omitted.map(Finding::new).collect()
}

/// Addresses that DHCP cannot give.
fn of_network(network: &Network) -> Vec<Finding> {
    let nics = network.guest_nics().iter();
    let further = nics.filter_map(|nic| {
        let addresses = nic.addresses.iter().map(|address| address.net);
        let further: Vec<_> = addresses
            .filter(|net| net.addr().is_ipv4())
            .skip(1)
            .map(|net| net.to_string())
            .collect();
        let names = listed(&further)?;
        let nic = &nic.link;
        Some(Finding::new(format!(
            "DHCP gives {nic} its first IPv4 address only: configure {names} in the guest, for instance by \
             vmlet.dev/cloud-init-network-config"
        )))
    });
    further.collect()
}

/// Why the container is refused, if it is.
fn lost(found: &[Finding], setting: Unsupported) -> Option<String> {
    let mut lost = found.iter().filter(|finding| finding.loses_data);
    let first = lost.next().filter(|_| setting == Unsupported::Refuse)?;
    Some(match lost.count() {
        0 => first.to_string(),
        more => format!("{first} (and {more} more)"),
    })
}

/// Devices of the request that are no disks of the guest.
pub(super) fn of_devices(config: &ContainerConfig, blocks: &[BlockDisk]) -> Option<Finding> {
    let is_disk = |path: &str| blocks.iter().any(|disk| disk.path == path);
    let others = config.devices.iter().map(|device| &device.container_path);
    let others: Vec<_> = others.filter(|path| !is_disk(path)).cloned().collect();
    let names = listed(&others)?;
    Some(Finding::new(format!(
        "devices that are no block devices do not reach the guest: {names}"
    )))
}

/// The pull secrets of a pod whose image was pulled.
pub(super) fn of_pull_secrets() -> Finding {
    Finding::new("image pull secrets are not used: images are fetched by HTTP without credentials")
}

fn listed(names: &[String]) -> Option<String> {
    let shown = names
        .iter()
        .take(NAMES)
        .map(String::as_str)
        .collect::<Vec<_>>();
    let more = names.len().saturating_sub(NAMES);
    match (shown.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(shown.join(", ")),
        (false, more) => Some(format!("{} and {more} more", shown.join(", "))),
    }
}

#[cfg(test)]
mod tests;
