//! Files of cloud-init disks.
//!
//! Invariant: networks are those that plugins make; what is compared is what a reader of YAML, JSON
//! or MIME has of the files.
//! Failure: a message with both.

use podspec::{CloudData, GuestFile, Layout, NetworkData, NetworkVersion};
use serde_json::{Value, json};
use tapmanager::wire::{Address, Dns, Network, Nic, Route};

use super::{links, network_config, vendor, volume};

mod networks;

fn nic(link: &str, addresses: &[&str], routes: &[(&str, Option<&str>)]) -> Nic {
    let address = |net: &&str| Address {
        net: net.parse().unwrap(),
        gateway: None,
    };
    let route = |(dst, gw): &(&str, Option<&str>)| Route {
        dst: dst.parse().unwrap(),
        gw: gw.map(|gw| gw.parse().unwrap()),
    };
    Nic {
        link: link.to_owned(),
        mac: format!("0a:58:0a:01:00:0{}", link.len()),
        mtu: 1450,
        bridge: "br0".to_owned(),
        tap: "tap0".to_owned(),
        addresses: addresses.iter().map(address).collect(),
        routes: routes.iter().map(route).collect(),
    }
}

fn network(nics: Vec<Nic>) -> Network {
    let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
    Network {
        id: "x".to_owned(),
        netns: "/run/netns/x".into(),
        nics,
        dns: Dns {
            servers: texts(&["10.96.0.10", "fd00:96::a", "nonsense"]),
            searches: texts(&["default.svc.cluster.local", "cluster.local"]),
            options: Vec::new(),
        },
        cni_network: "net".to_owned(),
        cni_result: Value::Null,
        detached: false,
        omitted: Vec::new(),
    }
}

/// A dual-stack NIC of the bridge plugin, one of another network, and one without an address.
fn several() -> Network {
    network(vec![
        nic(
            "eth0",
            &["10.1.0.5/24", "10.2.0.5/16", "fd00:1::5/64"],
            &[
                ("0.0.0.0/0", Some("10.1.0.1")),
                ("0.0.0.0/0", Some("10.1.0.2")),
                ("10.1.0.0/24", None),
                ("10.9.0.0/16", Some("10.2.0.1")),
                ("fd00:1::/64", None),
                ("::/0", Some("fe80::1")),
            ],
        ),
        nic("net12", &["192.168.7.2/24"], &[("192.168.7.0/24", None)]),
        nic("net123", &[], &[]),
    ])
}

/// What the ptp plugin makes: the router is no neighbour by the address.
fn ptp() -> Network {
    let routes = [
        ("169.254.1.1/32", None),
        ("0.0.0.0/0", Some("169.254.1.1")),
        ("fd00:1::1/128", None),
        ("::/0", Some("fd00:1::1")),
    ];
    network(vec![nic(
        "eth0",
        &["10.1.0.5/32", "fd00:1::5/128"],
        &routes,
    )])
}

fn v2(network: &Network, dhcp: bool) -> Value {
    let how = (NetworkVersion::V2, dhcp);
    network_config(Some(network), Layout::NoCloud, how)
}

fn v1(network: &Network, dhcp: bool) -> Value {
    let how = (NetworkVersion::V1, dhcp);
    network_config(Some(network), Layout::NoCloud, how)
}

fn openstack(network: &Network, dhcp: bool) -> Value {
    let how = (NetworkVersion::V2, dhcp);
    network_config(Some(network), Layout::ConfigDrive, how)
}

#[test]
fn version_2_has_each_nic_with_its_addresses_routes_and_mtu() {
    let wanted = json!({"version": 2, "ethernets": {
        "eth0": {
            "match": {"macaddress": "0a:58:0a:01:00:04"},
            "mtu": 1450,
            "addresses": ["10.1.0.5/24", "10.2.0.5/16", "fd00:1::5/64"],
            "accept-ra": false,
            "routes": [
                {"to": "0.0.0.0/0", "via": "10.1.0.1"},
                {"to": "10.9.0.0/16", "via": "10.2.0.1"},
                {"to": "::/0", "via": "fe80::1"},
            ],
            "nameservers": {
                "addresses": ["10.96.0.10", "fd00:96::a"],
                "search": ["default.svc.cluster.local", "cluster.local"],
            },
        },
        "net12": {
            "match": {"macaddress": "0a:58:0a:01:00:05"},
            "mtu": 1450,
            "addresses": ["192.168.7.2/24"],
            "accept-ra": false,
        },
        "net123": {
            "match": {"macaddress": "0a:58:0a:01:00:06"},
            "mtu": 1450,
            "dhcp4": true,
            "optional": true,
        },
    }});
    assert_eq!(v2(&several(), false), wanted);
}

#[test]
fn version_2_reaches_a_router_that_is_no_neighbour() {
    let config = v2(&ptp(), false);
    let wanted = json!([
        {"to": "0.0.0.0/0", "via": "169.254.1.1", "on-link": true},
        {"to": "::/0", "via": "fd00:1::1", "on-link": true},
    ]);
    assert_eq!(config["ethernets"]["eth0"]["routes"], wanted);
}

#[test]
fn version_1_has_the_routes_of_each_subnet() {
    let wanted = json!({"version": 1, "config": [
        {
            "type": "physical", "name": "eth0", "mac_address": "0a:58:0a:01:00:04", "mtu": 1450,
            "accept-ra": false,
            "subnets": [
                {
                    "type": "static", "address": "10.1.0.5", "netmask": "255.255.255.0",
                    "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.1.0.1"}],
                },
                {
                    "type": "static", "address": "10.2.0.5", "netmask": "255.255.0.0",
                    "routes": [{"network": "10.9.0.0", "netmask": "255.255.0.0", "gateway": "10.2.0.1"}],
                },
                {
                    "type": "static6", "address": "fd00:1::5/64",
                    "routes": [{"network": "::/0", "gateway": "fe80::1"}],
                },
            ],
        },
        {
            "type": "physical", "name": "net12", "mac_address": "0a:58:0a:01:00:05", "mtu": 1450,
            "accept-ra": false,
            "subnets": [{"type": "static", "address": "192.168.7.2", "netmask": "255.255.255.0"}],
        },
        {
            "type": "physical", "name": "net123", "mac_address": "0a:58:0a:01:00:06", "mtu": 1450,
            "subnets": [{"type": "dhcp4"}],
        },
        {
            "type": "nameserver", "address": ["10.96.0.10", "fd00:96::a"],
            "search": ["default.svc.cluster.local", "cluster.local"],
        },
    ]});
    assert_eq!(v1(&several(), false), wanted);
}

#[test]
fn what_a_format_cannot_express_comes_by_dhcp() {
    let subnets = json!([{"type": "dhcp4"}, {"type": "dhcp6"}]);
    assert_eq!(v1(&ptp(), false)["config"][0]["subnets"], subnets);
    let networks = json!([
        {"id": "network0", "network_id": "net-0", "link": "eth0", "type": "ipv4_dhcp"},
        {"id": "network1", "network_id": "net-1", "link": "eth0", "type": "ipv6_dhcp"},
    ]);
    assert_eq!(openstack(&ptp(), false)["networks"], networks);
}

#[test]
fn dhcp_may_be_forced_for_all_nics() {
    let config = v2(&several(), true);
    let wanted = json!({
        "match": {"macaddress": "0a:58:0a:01:00:04"}, "mtu": 1450, "dhcp4": true, "dhcp6": true,
    });
    assert_eq!(config["ethernets"]["eth0"], wanted);
    assert_eq!(config["ethernets"]["net12"]["dhcp4"], true);
    assert_eq!(config["ethernets"]["net12"].get("dhcp6"), None);
    let config = v1(&several(), true);
    let subnets = json!([{"type": "dhcp4"}, {"type": "dhcp6"}]);
    assert_eq!(config["config"][0]["subnets"], subnets);
    assert_eq!(config["config"].as_array().unwrap().len(), 3);
}

#[test]
fn a_guest_without_a_nic_has_an_empty_configuration() {
    let mut network = several();
    network.detached = true;
    assert_eq!(v2(&network, false), json!({"version": 2, "ethernets": {}}));
    assert_eq!(v1(&network, false), json!({"version": 1, "config": []}));
}

#[test]
fn a_config_drive_has_openstacks_links_networks_and_services() {
    let wanted = json!({
        "links": [
            {"id": "eth0", "type": "phy", "ethernet_mac_address": "0a:58:0a:01:00:04", "mtu": 1450},
            {"id": "net12", "type": "phy", "ethernet_mac_address": "0a:58:0a:01:00:05", "mtu": 1450},
            {"id": "net123", "type": "phy", "ethernet_mac_address": "0a:58:0a:01:00:06", "mtu": 1450},
        ],
        "networks": [
            {
                "id": "network0", "network_id": "net-0", "link": "eth0", "type": "ipv4",
                "ip_address": "10.1.0.5", "netmask": "255.255.255.0",
                "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.1.0.1"}],
            },
            {
                "id": "network1", "network_id": "net-1", "link": "eth0", "type": "ipv4",
                "ip_address": "10.2.0.5", "netmask": "255.255.0.0",
                "routes": [{"network": "10.9.0.0", "netmask": "255.255.0.0", "gateway": "10.2.0.1"}],
            },
            {
                "id": "network2", "network_id": "net-2", "link": "eth0", "type": "ipv6",
                "ip_address": "fd00:1::5", "netmask": "ffff:ffff:ffff:ffff::",
                "routes": [{"network": "::", "netmask": "::", "gateway": "fe80::1"}],
            },
            {
                "id": "network3", "network_id": "net-3", "link": "net12", "type": "ipv4",
                "ip_address": "192.168.7.2", "netmask": "255.255.255.0", "routes": [],
            },
            {"id": "network4", "network_id": "net-4", "link": "net123", "type": "ipv4_dhcp"},
        ],
        "services": [
            {"type": "dns", "address": "10.96.0.10"}, {"type": "dns", "address": "fd00:96::a"},
        ],
    });
    assert_eq!(openstack(&several(), false), wanted);
}

fn data(layout: Layout) -> CloudData {
    let file = |path: &str, mode| GuestFile {
        path: path.to_owned(),
        mode,
        content: path.as_bytes().to_vec(),
    };
    CloudData {
        layout,
        meta_data: b"{}".to_vec(),
        user_data: b"#cloud-config\n{}\n".to_vec(),
        network: NetworkData::Given(b"{\"version\": 2}".to_vec()),
        files: vec![file("/etc/it's", 0o600), links::file("#!/bin/sh\n")],
    }
}

fn names(layout: Layout) -> Vec<String> {
    let files = volume::files(data(layout), &[], None).into_iter();
    files.map(|file| file.name).collect()
}

#[test]
fn each_layout_has_the_names_of_its_data_source() {
    let boot = [
        "vmlet/boot.sh",
        "vmlet/shares.sh",
        "vmlet/files.sh",
        "vmlet/files/0",
        "vmlet/files/1",
    ];
    let no_cloud = ["meta-data", "user-data", "vendor-data", "network-config"];
    assert_eq!(names(Layout::NoCloud), [&no_cloud[..], &boot].concat());
    let config_drive = [
        "openstack/latest/meta_data.json",
        "openstack/latest/user_data",
        "openstack/latest/vendor_data.json",
        "openstack/latest/network_data.json",
    ];
    assert_eq!(
        names(Layout::ConfigDrive),
        [&config_drive[..], &boot].concat()
    );
    assert_eq!(volume::label(Layout::NoCloud), "cidata");
    assert_eq!(volume::label(Layout::ConfigDrive), "config-2");
}

#[test]
fn vendor_data_apply_the_network_at_each_boot_and_have_no_lists_of_the_users() {
    let text = vendor::vendor_data(Layout::NoCloud);
    let (head, parts) = text.split_once("\n\n--vmlet-vendor-data\n").unwrap();
    assert!(head.contains("MIME-Version: 1.0"), "{head}");
    let parts: Vec<_> = parts.split("--vmlet-vendor-data").collect();
    let [config, hook, "--\n"] = parts.as_slice() else {
        panic!("{parts:?}");
    };
    let (head, config) = config.split_once("\n\n").unwrap();
    assert!(
        head.starts_with("Content-Type: text/cloud-config"),
        "{head}"
    );
    let config: Value = serde_json::from_str(config.split_once('\n').unwrap().1).unwrap();
    let events = json!(["boot-new-instance", "boot"]);
    assert_eq!(config, json!({"updates": {"network": {"when": events}}}));
    let (head, hook) = hook.split_once("\n\n").unwrap();
    assert!(head.contains("Content-Type: text/cloud-boothook"), "{head}");
    assert!(hook.starts_with("#cloud-boothook\n#!/bin/sh\n"), "{hook}");
    assert!(hook.contains("findfs LABEL=cidata"), "{hook}");

    let drive = volume::files(data(Layout::ConfigDrive), &[], None);
    let vendor: Value = serde_json::from_slice(&drive[2].content).unwrap();
    let text = vendor["cloud-init"].as_str().unwrap();
    assert_eq!(text, vendor::vendor_data(Layout::ConfigDrive));
    assert!(text.contains("findfs LABEL=config-2"), "{text}");
}

#[test]
fn the_boot_puts_each_file_in_its_place() {
    let volume = tempfile::tempdir().unwrap();
    let guest = tempfile::tempdir().unwrap();
    let inside = |name: &str| format!("{}/{name}", guest.path().display());
    std::fs::create_dir(inside("taken")).unwrap();
    let mut data = data(Layout::NoCloud);
    let paths = ["a b/it's", "taken", "z"].map(inside);
    data.files = paths
        .iter()
        .zip([0o600, 0o644, 0o755])
        .map(|(path, mode)| GuestFile {
            path: path.clone(),
            mode,
            content: path.as_bytes().to_vec(),
        })
        .collect();
    for file in volume::files(data, &[], None) {
        let path = volume.path().join(&file.name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, file.content).unwrap();
    }
    // Twice: a later boot replaces what an earlier one wrote.
    for _ in 0..2 {
        let output = std::process::Command::new("sh")
            .arg(volume.path().join("vmlet/boot.sh"))
            .arg(volume.path())
            .output()
            .unwrap();
        let reported = String::from_utf8(output.stderr).unwrap();
        assert_eq!(reported, format!("vmlet: file not written: {}\n", paths[1]));
        for (path, mode) in [(&paths[0], 0o600), (&paths[2], 0o755)] {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(&std::fs::read_to_string(path).unwrap(), path);
            let found = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode, "{path}");
        }
    }
}

/// A pod's token is in `/var/run`, which is a link in most guests.
#[test]
fn the_boot_leaves_a_share_alone_that_is_mounted_at_the_end_of_links() {
    let guest = tempfile::tempdir().unwrap();
    let real = guest.path().join("run of it");
    std::fs::create_dir_all(real.join("token")).unwrap();
    std::os::unix::fs::symlink(&real, guest.path().join("var")).unwrap();
    let place = std::fs::canonicalize(real.join("token")).unwrap();
    let place = place.to_str().unwrap().replace(' ', "\\040");
    let mounts = guest.path().join("mounts");
    std::fs::write(&mounts, format!("vmlet-0 {place} virtiofs rw 0 0\n")).unwrap();
    let seed = guest.path().join("seed/vmlet");
    std::fs::create_dir_all(&seed).unwrap();
    let line = |path: &str| format!("share vmlet-0 rw '{}/{path}'\n", guest.path().display());
    std::fs::write(seed.join("files.sh"), "").unwrap();
    let failed = guest.path().join("run/not-mounted");
    let boot = include_str!("boot.sh")
        .replace("/proc/mounts", mounts.to_str().unwrap())
        .replace("/run/vmlet/not-mounted", failed.to_str().unwrap());
    let run = |path: &str| {
        std::fs::write(seed.join("shares.sh"), line(path)).unwrap();
        let mut shell = std::process::Command::new("sh");
        // No mount of this machine is touched.
        shell.arg("-c").arg(format!("mount() {{ false; }}; {boot}"));
        let output = shell.arg("boot.sh").arg(guest.path().join("seed")).output();
        String::from_utf8(output.unwrap().stderr).unwrap()
    };
    let reported = || std::fs::read_to_string(&failed).unwrap_or_default();
    let line_of = |path: &str| format!("{}/{path}\n", guest.path().display());
    assert_eq!(run("var/token"), "");
    assert_eq!(reported(), "");
    assert!(run("var/other").contains("not mounted by virtiofs"));
    assert_eq!(reported(), line_of("var/other"));
    std::fs::write(guest.path().join("file"), "").unwrap();
    assert!(run("file/x").contains("not mounted by virtiofs"));
    assert_eq!(reported(), line_of("file/x"), "of this boot only");
    assert_eq!(run("var/token"), "");
    assert_eq!(reported(), "");
    // A file whose place is a directory is reported like a share.
    let put = format!("put 0 0600 '{}/run of it'\n", guest.path().display());
    std::fs::write(seed.join("files.sh"), put).unwrap();
    assert!(run("var/token").contains("vmlet: file not written: "));
    assert_eq!(reported(), line_of("run of it"));
}
