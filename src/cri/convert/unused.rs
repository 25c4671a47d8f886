//! Parts of a request that a machine does not use; they are reported.
//!
//! Invariant: names only, bounded in number and length; the values of variables are dropped here.
//! Failure: none; what is too long is cut.

use std::collections::{BTreeSet, HashSet};

use cri_proto::v1;
use cri_proto::v1::security_profile::ProfileType;

/// Most names that are kept, and the longest one in characters.
const MOST: usize = 64;
const LONGEST: usize = 253;

/// Names of the environment variables that kubelet does not give to every container for the
/// Services of its namespace.
pub(super) fn variables(all: Vec<v1::KeyValue>) -> Vec<String> {
    let names: BTreeSet<String> = all.into_iter().map(|variable| variable.key).collect();
    let services: HashSet<&str> = names
        .iter()
        .filter_map(|name| name.strip_suffix("_SERVICE_HOST"))
        .filter(|service| names.contains(&format!("{service}_SERVICE_PORT")))
        .collect();
    // A name may have several of these parts, of which any can end the name of the service.
    let of_a_service = |name: &str| {
        let parts = ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"];
        let mut ends = parts.iter().flat_map(|part| name.match_indices(part));
        ends.any(|(end, _)| {
            name.get(..end)
                .is_some_and(|service| services.contains(service))
        })
    };
    let others = names.iter().filter(|name| !of_a_service(name));
    others.take(MOST).map(|name| short(name)).collect()
}

/// Names of CDI devices.
pub(super) fn cdi_devices(all: Vec<v1::CdiDevice>) -> Vec<String> {
    all.into_iter()
        .take(MOST)
        .map(|device| short(&device.name))
        .collect()
}

/// Fields of a security context that promise something to a process of the node. What only restricts
/// one holds for a machine, too.
pub(super) fn security(context: &v1::LinuxContainerSecurityContext) -> Vec<String> {
    let capabilities = context.capabilities.as_ref();
    let adds = capabilities.is_some_and(|sets| {
        !sets.add_capabilities.is_empty() || !sets.add_ambient_capabilities.is_empty()
    });
    let selinux = context.selinux_options.as_ref();
    let labels = selinux.is_some_and(|options| *options != v1::SeLinuxOption::default());
    let of_node = |profile: &Option<v1::SecurityProfile>| {
        let profile = profile.as_ref();
        profile.is_some_and(|profile| profile.profile_type() == ProfileType::Localhost)
    };
    let fields = [
        ("readOnlyRootFilesystem", context.readonly_rootfs),
        ("privileged", context.privileged),
        ("capabilities.add", adds),
        ("seLinuxOptions", labels),
        ("seccompProfile", of_node(&context.seccomp)),
        ("appArmorProfile", of_node(&context.apparmor)),
    ];
    let requested = fields.into_iter().filter(|(_, is_requested)| *is_requested);
    requested.map(|(name, _)| name.to_owned()).collect()
}

fn short(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(LONGEST)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<String> {
        let variable = |name: &&str| v1::KeyValue {
            key: (*name).to_owned(),
            value: b"hush".to_vec(),
        };
        variables(names.iter().map(variable).collect())
    }

    #[test]
    fn variables_of_services_do_not_count() {
        let services = [
            "KUBERNETES_SERVICE_HOST",
            "KUBERNETES_SERVICE_PORT",
            "KUBERNETES_SERVICE_PORT_HTTPS",
            "KUBERNETES_PORT",
            "KUBERNETES_PORT_443_TCP",
            "KUBERNETES_PORT_443_TCP_PROTO",
            "KUBERNETES_PORT_443_TCP_PORT",
            "KUBERNETES_PORT_443_TCP_ADDR",
        ];
        assert_eq!(named(&services), Vec::<String>::new());
        let mut more = services.to_vec();
        more.extend(["DB_PORT", "KUBERNETES", "MY_SERVICE_HOST", "A"]);
        assert_eq!(
            named(&more),
            ["A", "DB_PORT", "KUBERNETES", "MY_SERVICE_HOST"]
        );
    }

    #[test]
    fn what_a_security_context_promises_is_named_and_what_it_forbids_is_not() {
        let localhost = v1::SecurityProfile {
            profile_type: ProfileType::Localhost.into(),
            localhost_ref: "localhost/audit.json".to_owned(),
        };
        let restricted = v1::LinuxContainerSecurityContext {
            capabilities: Some(v1::Capability {
                drop_capabilities: vec!["ALL".to_owned()],
                ..v1::Capability::default()
            }),
            no_new_privs: true,
            seccomp: Some(v1::SecurityProfile::default()),
            masked_paths: vec!["/proc/kcore".to_owned()],
            ..v1::LinuxContainerSecurityContext::default()
        };
        assert_eq!(security(&restricted), Vec::<String>::new());
        // procMount: Unmasked. Nothing is masked in a guest.
        let unmasked = v1::LinuxContainerSecurityContext {
            masked_paths: Vec::new(),
            ..restricted.clone()
        };
        assert_eq!(security(&unmasked), Vec::<String>::new());
        let promises = v1::LinuxContainerSecurityContext {
            capabilities: Some(v1::Capability {
                add_capabilities: vec!["SYS_TIME".to_owned()],
                ..v1::Capability::default()
            }),
            privileged: true,
            readonly_rootfs: true,
            seccomp: Some(localhost),
            ..restricted
        };
        let names = [
            "readOnlyRootFilesystem",
            "privileged",
            "capabilities.add",
            "seccompProfile",
        ];
        assert_eq!(security(&promises), names);
    }

    #[test]
    fn a_service_may_be_called_as_a_part_of_a_variable() {
        let services = [
            "A_PORT_B_SERVICE_HOST",
            "A_PORT_B_SERVICE_PORT",
            "A_PORT_B_PORT_80_TCP_PORT",
        ];
        let mut more = services.to_vec();
        more.extend(["A_PORT_C", "A_PORT_B"]);
        assert_eq!(named(&more), ["A_PORT_B", "A_PORT_C"]);
    }

    #[test]
    fn many_services_do_not_multiply() {
        let variable = |key: String| v1::KeyValue {
            key,
            value: Vec::new(),
        };
        let of_one = |n: usize| {
            let parts = ["SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_80_TCP"];
            parts.map(|part| format!("S{n}_{part}"))
        };
        let all = (0..20_000).flat_map(of_one).map(variable);
        assert_eq!(variables(all.collect()), Vec::<String>::new());
    }

    #[test]
    fn names_are_bounded() {
        let many: Vec<_> = (0..100)
            .map(|n| format!("V{n}{}", "x".repeat(300)))
            .collect();
        let found = named(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(found.len(), MOST);
        assert!(found.iter().all(|name| name.len() == LONGEST));
    }
}
