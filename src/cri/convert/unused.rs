//! Parts of a request that a machine does not use; they are reported.
//!
//! Invariant: names only, bounded in number and length; the values of variables are dropped here.
//! Failure: none; what is too long is cut.

use std::collections::BTreeSet;

use cri_proto::v1;

/// Most names that are kept, and the longest one in characters.
const MOST: usize = 64;
const LONGEST: usize = 253;

/// Names of the environment variables that kubelet does not give to every container for the
/// Services of its namespace.
pub(super) fn variables(all: Vec<v1::KeyValue>) -> Vec<String> {
    let names: BTreeSet<String> = all.into_iter().map(|variable| variable.key).collect();
    let services: Vec<&str> = names
        .iter()
        .filter_map(|name| name.strip_suffix("_SERVICE_HOST"))
        .filter(|service| names.contains(&format!("{service}_SERVICE_PORT")))
        .collect();
    let of_a_service = |name: &str| {
        services.iter().any(|service| {
            let rest = name.strip_prefix(service).unwrap_or_default();
            ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"]
                .iter()
                .any(|part| rest.starts_with(part))
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
    fn names_are_bounded() {
        let many: Vec<_> = (0..100)
            .map(|n| format!("V{n}{}", "x".repeat(300)))
            .collect();
        let found = named(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(found.len(), MOST);
        assert!(found.iter().all(|name| name.len() == LONGEST));
    }
}
