//! The mounts of the containers of `deploy/node`, and their resolver.
//!
//! Invariant: the daemon sees the directories of its settings' defaults that an administrator of the
//! node writes, at the same paths, and cannot change them. No mount is inside of a read-only one: a
//! runtime could not create the place for it.
//! Failure: the test names container and path.

use std::path::Path;

use serde_json::Value;

const SETTINGS: [&str; 2] = ["registries_dir", "translations_dir"];

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    std::fs::read_to_string(path).expect(name)
}

/// The specification of the node's pods.
fn pod() -> Value {
    let text = read("deploy/node/daemonset.yaml");
    let mut objects = text
        .split("\n---\n")
        .map(|part| serde_saphyr::from_str::<Value>(part).unwrap());
    let found = objects.find(|object| object["kind"] == "DaemonSet");
    found.unwrap()["spec"]["template"]["spec"].clone()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn named<'a>(all: &'a [Value], name: &str) -> &'a Value {
    all.iter().find(|one| one["name"] == name).expect(name)
}

/// The default of a setting, by the table of all settings.
fn default_of(setting: &str) -> String {
    let table = read("docs/configuration.md");
    let start = format!("| `{setting}` | `\"");
    let row = table.lines().find_map(|line| line.strip_prefix(&start));
    let (default, _) = row.expect(setting).split_once('"').unwrap();
    default.to_owned()
}

#[test]
fn the_daemon_reads_the_directories_of_the_administrator() {
    let pod = pod();
    let daemon = named(list(&pod, "containers"), "daemon");
    for setting in SETTINGS {
        let path = default_of(setting);
        let mut mounts = list(daemon, "volumeMounts").iter();
        let mount = mounts.find(|mount| mount["mountPath"] == path.as_str());
        let mount = mount.expect(&path);
        assert_eq!(mount["readOnly"], true, "{path}");
        let volume = named(list(&pod, "volumes"), mount["name"].as_str().unwrap());
        assert_eq!(volume["hostPath"]["path"], path.as_str());
        assert_eq!(volume["hostPath"]["type"], "DirectoryOrCreate", "{path}");
    }
    let config = list(daemon, "volumeMounts").iter();
    let config: Vec<_> = config.filter(|mount| mount["name"] == "config").collect();
    let file = config[0]["mountPath"].as_str().unwrap();
    let command = list(daemon, "command");
    assert!(command.iter().any(|word| word == file), "{file}");
}

/// Without this a pod on the node's network has the node's resolver, which knows no Services.
#[test]
fn the_daemon_resolves_the_names_of_services() {
    let pod = pod();
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(pod["dnsPolicy"], "ClusterFirstWithHostNet");
}

#[test]
fn no_mount_is_inside_of_a_read_only_mount() {
    let pod = pod();
    let mut checked = 0;
    for container in list(&pod, "initContainers")
        .iter()
        .chain(list(&pod, "containers"))
    {
        let path = |mount: &Value| mount["mountPath"].as_str().unwrap().to_owned();
        let mounts = list(container, "volumeMounts");
        checked += mounts.len();
        for outer in mounts {
            let folder = path(outer) + "/";
            for inner in mounts
                .iter()
                .filter(|inner| path(inner).starts_with(&folder))
            {
                assert_ne!(
                    outer["readOnly"],
                    true,
                    "{}: {}",
                    container["name"],
                    path(inner)
                );
            }
        }
    }
    assert!(checked > 10, "{checked} mounts");
}
