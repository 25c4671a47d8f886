use std::collections::BTreeMap;
use std::fs::File;

use tapmanager::wire::{Address, Dns, Nic};

use super::super::model::{Device, LinuxResources, Mount, Unused};
use super::*;
use crate::block::Number;
use crate::foreign::Foreign;
use crate::images::{Boot, Format, boot_of};
use crate::sandbox::DnsConfig;

fn texts(pod: &SandboxConfig, config: &ContainerConfig) -> Vec<String> {
    let found = of_request(pod, config, &Given::default());
    assert!(found.iter().all(|finding| !finding.loses_data));
    found.into_iter().map(|finding| finding.text).collect()
}

#[test]
fn an_ordinary_pod_uses_no_unsupported_field() {
    let pod = SandboxConfig {
        annotations: BTreeMap::from([
            ("vmlet.dev/vcpu-count".to_owned(), "2".to_owned()),
            ("kubernetes.io/config.source".to_owned(), "api".to_owned()),
        ]),
        ..SandboxConfig::default()
    };
    let config = ContainerConfig {
        resources: LinuxResources {
            hugepage_limits: vec![("2Mi".to_owned(), 0)],
            ..LinuxResources::default()
        },
        ..ContainerConfig::default()
    };
    assert_eq!(texts(&pod, &config), Vec::<String>::new());
}

#[test]
fn each_thing_that_is_not_given_is_named() {
    let pod = SandboxConfig {
        annotations: BTreeMap::from([("vmlet.dev/vcpus-count".to_owned(), "2".to_owned())]),
        ..SandboxConfig::default()
    };
    let config = ContainerConfig {
        unused: Unused {
            variables: vec!["A".to_owned(), "B".to_owned()],
            command: true,
            cdi_devices: vec!["example.org/gpu=0".to_owned()],
            security: vec!["readOnlyRootFilesystem".to_owned()],
        },
        resources: LinuxResources {
            hugepage_limits: vec![("2Mi".to_owned(), 1)],
            cpuset_mems: "0-1".to_owned(),
            ..LinuxResources::default()
        },
        annotations: BTreeMap::from([("VirtletDiskDriver".to_owned(), "scsi".to_owned())]),
        ..ContainerConfig::default()
    };
    let words = [
        "command, arguments",
        "guest: A, B; it has no cloud-init disk",
        "CDI devices do not reach the guest: example.org/gpu=0",
        "security context has no effect inside of a guest: readOnlyRootFilesystem",
        "huge pages",
        "memory nodes 0-1",
        "vmlet.dev/vcpus-count is not known; is vmlet.dev/vcpu-count meant?",
        "VirtletDiskDriver is not known and has no effect",
    ];
    let found = texts(&pod, &config);
    assert_eq!(found.len(), words.len(), "{found:?}");
    for (text, words) in found.iter().zip(words) {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn the_url_of_an_image_needs_an_image_name_made_of_it() {
    let url = (
        "vmlet.dev/image-url".to_owned(),
        "https://h.org/a".to_owned(),
    );
    let pod = SandboxConfig {
        annotations: BTreeMap::from([url]),
        ..SandboxConfig::default()
    };
    let with_name = |name: &str| {
        let mut config = ContainerConfig::default();
        config.image.image = "sha256:0123".to_owned();
        config.image.user_specified_image = name.to_owned();
        texts(&pod, &config)
    };
    let name = podspec::url_image_name("https://h.org/a");
    assert_eq!(with_name(&name), Vec::<String>::new());
    let found = with_name("h.org/a");
    assert!(
        found[0].contains("vmlet.dev/image-url is not used"),
        "{found:?}"
    );
}

#[test]
fn names_and_findings_are_bounded_and_printable() {
    let names = |count: usize| (0..count).map(|n| format!("N{n}")).collect::<Vec<_>>();
    assert_eq!(listed(&names(0)), None);
    assert_eq!(listed(&names(8)).unwrap(), "N0, N1, N2, N3, N4, N5, N6, N7");
    assert!(listed(&names(9)).unwrap().ends_with("N7 and 1 more"));
    let annotations = (0..100).map(|n| {
        (
            format!("vmlet.dev/{n}{}\u{1b}", "x".repeat(500)),
            String::new(),
        )
    });
    let pod = SandboxConfig {
        annotations: annotations.collect(),
        ..SandboxConfig::default()
    };
    let found = texts(&pod, &ContainerConfig::default());
    assert_eq!(found.len(), MOST);
    assert!(
        found
            .iter()
            .all(|text| text.len() == LONGEST && !text.contains('\u{1b}'))
    );
}

#[test]
fn a_device_that_is_no_disk_is_named() {
    let device = |path: &str| Device {
        container_path: path.to_owned(),
        ..Device::default()
    };
    let config = ContainerConfig {
        devices: vec![device("/dev/data"), device("/dev/fuse")],
        ..ContainerConfig::default()
    };
    let disk = BlockDisk {
        device: Number { major: 7, minor: 0 },
        path: "/dev/data".to_owned(),
        read_only: false,
    };
    let found = of_devices(&config, std::slice::from_ref(&disk)).unwrap();
    assert!(found.text.ends_with("guest: /dev/fuse"), "{found}");
    assert_eq!(of_devices(&ContainerConfig::default(), &[disk]), None);
}

#[test]
fn only_lost_data_is_refused_and_only_if_the_node_is_configured_so() {
    let finding = |text: &str, loses_data| Finding {
        loses_data,
        ..Finding::new(text)
    };
    let all = [finding("a", false), finding("b", true), finding("c", true)];
    let refused = |found: &[Finding]| lost(found, Unsupported::Refuse);
    assert_eq!(refused(&all).as_deref(), Some("b (and 1 more)"));
    assert_eq!(refused(&all[..2]).as_deref(), Some("b"));
    assert_eq!(refused(&all[..1]), None);
    assert_eq!(lost(&all, Unsupported::Warn), None);
}

#[test]
fn kernel_parameters_are_named() {
    let pod = SandboxConfig {
        sysctls: [("kernel.sem".to_owned(), "1 2 3 4".to_owned())].into(),
        ..SandboxConfig::default()
    };
    let found = of_pod(&pod);
    assert_eq!(found.len(), 1);
    assert!(found[0].text.contains("not set in the guest: kernel.sem;"));
}

#[test]
fn what_dhcp_cannot_carry_is_named() {
    let with = |options: &[&str]| SandboxConfig {
        dns: Some(DnsConfig {
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            ..DnsConfig::default()
        }),
        ..SandboxConfig::default()
    };
    let texts = |pod: &SandboxConfig| {
        let found = of_pod(pod).into_iter();
        found.map(|finding| finding.text).collect::<Vec<_>>()
    };
    assert_eq!(texts(&with(&["ndots:5"])), Vec::<String>::new());
    let reported = texts(&with(&["ndots:5", "timeout:1"]));
    assert!(
        reported.len() == 1 && reported[0].ends_with(": timeout:1"),
        "{reported:?}"
    );

    let address = |net: &str| Address {
        net: net.parse().unwrap(),
        gateway: None,
    };
    let nic = |addresses: &[&str]| Nic {
        link: "eth0".to_owned(),
        mac: "0a:58:0a:58:00:05".to_owned(),
        mtu: 1500,
        bridge: "br0".to_owned(),
        tap: "tap0".to_owned(),
        addresses: addresses.iter().map(|net| address(net)).collect(),
        routes: Vec::new(),
    };
    let network = |addresses: &[&str]| Network {
        id: "x".to_owned(),
        netns: "/run/netns/x".into(),
        nics: vec![nic(addresses)],
        dns: Dns::default(),
        cni_network: "net".to_owned(),
        cni_result: serde_json::Value::Null,
        detached: false,
        omitted: Vec::new(),
    };
    assert_eq!(
        of_network(&network(&["10.0.0.5/24", "fd00::5/64", "fd00::6/64"])),
        []
    );
    let mut searching = network(&["10.0.0.5/24"]);
    assert_eq!(of_searches(&searching), None);
    searching.dns.searches = vec!["cluster.local".to_owned()];
    let found = of_searches(&searching).unwrap();
    assert!(
        found.text.contains("no place for it: cluster.local;"),
        "{found}"
    );

    let mut routed = network(&["10.0.0.5/24"]);
    assert_eq!(of_omitted(&routed), []);
    routed.omitted = vec!["policy routing rules do not reach the guest".to_owned()];
    assert_eq!(of_omitted(&routed)[0].text, routed.omitted[0]);
    routed.detached = true;
    assert_eq!(of_omitted(&routed), []);

    let found = of_network(&network(&["10.0.0.5/24", "fd00::5/64", "10.0.0.6/24"]));
    assert_eq!(found.len(), 1);
    assert!(
        found[0].text.contains("eth0") && found[0].text.contains("10.0.0.6/24"),
        "{}",
        found[0]
    );
}

#[tokio::test]
async fn a_raw_disk_that_cannot_boot_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let found = async |content: &[u8], format| {
        std::fs::write(file.path(), content).unwrap();
        let path = file.path().to_owned();
        let look = move || boot_of(&File::open(path).unwrap(), format);
        let boot = tokio::task::spawn_blocking(look).await.unwrap();
        boot.unwrap().and_then(Boot::problem).is_some()
    };
    let mut disk = vec![b'x'; 1024];
    assert!(found(&disk, Format::Raw).await);
    assert!(!found(&disk, Format::Qcow2).await);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    assert!(!found(&disk, Format::Raw).await);
    assert!(found(b"short", Format::Raw).await);
    disk[512..520].copy_from_slice(b"EFI PART");
    assert!(!found(&disk, Format::Raw).await);
    // Without boot code only UEFI boots from it.
    disk[..510].fill(0);
    assert!(found(&disk, Format::Raw).await);
    std::fs::write(file.path(), &disk).unwrap();
    let qcow2 = tempfile::NamedTempFile::new().unwrap();
    let mut convert = std::process::Command::new("qemu-img");
    convert.args(["convert", "-c", "-f", "raw", "-O", "qcow2"]);
    let made = convert.args([file.path(), qcow2.path()]).status();
    assert!(made.unwrap().success());
    let converted = std::fs::read(qcow2.path()).unwrap();
    assert!(found(&converted, Format::Qcow2).await);
    // Only partitioned.
    disk[512..520].fill(0);
    disk[450] = 0x83;
    assert!(found(&disk, Format::Raw).await);
    std::fs::remove_file(file.path()).unwrap();
}

#[tokio::test]
async fn what_the_cloud_init_disk_has_is_no_finding() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir
        .path()
        .join("pods/uid/volumes/kubernetes.io~secret/keys");
    std::fs::create_dir_all(&volume).unwrap();
    let mount = |inside: &str, host: &str| Mount {
        container_path: inside.to_owned(),
        host_path: host.to_owned(),
        readonly: true,
        ..Mount::default()
    };
    let mut pod = SandboxConfig::default();
    pod.metadata.uid = "uid".to_owned();
    let keys = "vmlet.dev/ssh-keys".to_owned();
    pod.annotations.insert(keys, "ssh-ed25519 A".to_owned());
    let config = ContainerConfig {
        unused: Unused {
            variables: vec!["A".to_owned(), "not.a.name".to_owned()],
            ..Unused::default()
        },
        mounts: vec![
            mount("/keys", volume.to_str().unwrap()),
            mount("/srv", "/srv/data"),
        ],
        ..ContainerConfig::default()
    };
    let given = Given::for_machine(&Foreign::default(), &pod, &config, &[], &[]).await;
    assert!(given.addresses && !given.no_searches);
    let found = of_request(&pod, &config, &given);
    let words = [
        "the mount /srv",
        "a shell does not know do not reach the guest: not.a.name",
    ];
    assert_eq!(found.len(), words.len(), "{found:?}");
    for (finding, words) in found.iter().zip(words) {
        assert!(finding.text.contains(words), "{finding}");
    }

    pod.annotations
        .insert("vmlet.dev/force-dhcp".to_owned(), "true".to_owned());
    assert!(
        !Given::for_machine(&Foreign::default(), &pod, &config, &[], &[])
            .await
            .addresses
    );
    let drive = ("vmlet.dev/cloud-init-image-type", "configdrive");
    pod.annotations.remove("vmlet.dev/force-dhcp");
    pod.annotations
        .extend([(drive.0.to_owned(), drive.1.to_owned())]);
    assert!(
        Given::for_machine(&Foreign::default(), &pod, &config, &[], &[])
            .await
            .no_searches
    );
    pod.annotations = [("vmlet.dev/cloud-init".to_owned(), "off".to_owned())].into();
    let given = Given::for_machine(&Foreign::default(), &pod, &config, &[], &[]).await;
    assert_eq!(of_request(&pod, &config, &given).len(), 3);
}
