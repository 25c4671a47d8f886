//! The records.
//!
//! Invariant: a record here is in the fixture of every version.
//! Failure: none.

use std::collections::BTreeMap;
use std::str::FromStr;

use podspec::{
    ContainerId, CpuModel, Defaults, Instance, Machine, Mib, PodResources, Role, SandboxId, Vcpus,
    VmUid,
};
use serde_json::json;

use crate::block::{Extent, Held, Number};
use crate::disk::{Disk, Memory, MemoryPhase, Phase as DiskPhase, SavedNic};
use crate::node::{Failure, State, Task, Work};
use crate::sandbox::state::Phase as SandboxPhase;
use crate::sandbox::{DnsConfig, PodMetadata, PortMapping, Protocol, Sandbox, SandboxConfig};
use crate::vm::state::Phase;
use crate::vm::{
    BlockDisk, Container, ContainerConfig, ContainerMetadata, Exit, FileDisk, ImageSpec,
    LinuxResources, Mount, Part, Share, Spec,
};

/// The image of web servers that all machines but the provisioned ones boot.
pub(crate) const DISK: &str =
    "sha256:3431383721510cf1c211de027cf958c183e16db5fabb6b230eb284c85e196aa9";

/// Nanoseconds since the epoch.
const CREATED: i64 = 1_764_200_000_000_000_000;
const SECOND: i64 = 1_000_000_000;

/// The machines that have a disk of their own: one runs, one is suspended, one has no pod.
pub(crate) const RUNNING_VM: &str = "11111111-1111-4111-8111-111111111111";
pub(crate) const SUSPENDED_VM: &str = "22222222-2222-4222-8222-222222222222";
pub(crate) const OFF_VM: &str = "33333333-3333-4333-8333-333333333333";

/// An id that begins with these two digits.
pub(crate) fn id<T: FromStr<Err: std::fmt::Debug>>(digits: &str) -> T {
    let text = digits.repeat(28) + podspec::TAG;
    text.parse().unwrap()
}

pub(crate) fn vm(uid: &str) -> VmUid {
    uid.parse().unwrap()
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn sandbox(digits: &str, name: &str, phase: SandboxPhase) -> Sandbox {
    let id: SandboxId = id(digits);
    let network = json!({
        "id": id.as_str(),
        "netns": format!("/run/netns/vmlet-{id}"),
        "nics": [{
            "link": "eth0", "mac": format!("02:00:00:00:00:{digits}"), "mtu": 1450,
            "bridge": "br0", "tap": "tap0",
            "addresses": [{ "net": "10.244.1.7/24", "gateway": "10.244.1.1" }],
            "routes": [{ "dst": "0.0.0.0/0", "gw": "10.244.1.1" }],
        }],
        "dns": { "servers": ["10.96.0.10"], "searches": ["svc.cluster.local"], "options": [] },
        "cni_network": "pods",
        "cni_result": { "cniVersion": "1.1.0", "ips": [{ "address": "10.244.1.7/24" }] },
    });
    let has_network = !matches!(phase, SandboxPhase::Creating | SandboxPhase::Stopped);
    Sandbox {
        id,
        phase,
        created_at: CREATED,
        config: SandboxConfig {
            metadata: PodMetadata {
                name: name.to_owned(),
                uid: format!("uid-of-{name}"),
                namespace: "default".to_owned(),
                attempt: 1,
            },
            hostname: name.to_owned(),
            log_directory: format!("/var/log/pods/default_{name}_uid-of-{name}"),
            dns: Some(DnsConfig {
                servers: vec!["10.96.0.10".to_owned()],
                searches: vec!["svc.cluster.local".to_owned()],
                options: vec!["ndots:5".to_owned()],
            }),
            port_mappings: vec![PortMapping {
                protocol: Protocol::Tcp,
                container_port: 80,
                host_port: 8080,
                host_ip: String::new(),
            }],
            labels: texts(&[("io.kubernetes.pod.name", name), ("app", "state")]),
            annotations: texts(&[("kubernetes.io/config.source", "api")]),
            runtime_handler: match name {
                "processes" => "vmlet-process".to_owned(),
                _ => "vmlet".to_owned(),
            },
            cgroup_parent: format!("/kubepods/burstable/pod-of-{name}"),
            resources: PodResources {
                cpu_quota: 100_000,
                cpu_period: 100_000,
                memory_limit: 256 << 20,
            },
            sysctls: texts(&[("net.ipv4.ip_forward", "1")]),
            memory_overhead: 160 << 20,
            ..SandboxConfig::default()
        },
        network: has_network.then(|| serde_json::from_value(network).unwrap()),
    }
}

/// All sandboxes.
pub(crate) fn sandboxes() -> Vec<Sandbox> {
    vec![
        sandbox("a1", "running", SandboxPhase::Ready),
        sandbox("a2", "on-disk", SandboxPhase::Ready),
        sandbox("a3", "suspended", SandboxPhase::Stopped),
        sandbox("a4", "exited", SandboxPhase::Ready),
        sandbox("a5", "processes", SandboxPhase::Ready),
        sandbox("a6", "block", SandboxPhase::Ready),
        sandbox("a7", "stopping", SandboxPhase::Ready),
    ]
}

fn container(digits: &str, sandbox: &str, phase: Phase) -> Container {
    let defaults = Defaults {
        vcpus: Vcpus::ONE,
        memory: Mib::new(64),
        cpu_model: CpuModel::Default,
    };
    let annotations = texts(&[("vmlet.dev/vcpu-count", "2"), ("vmlet.dev/memory", "96Mi")]);
    let machine = Machine::from_pod(&annotations, PodResources::default(), defaults).unwrap();
    let id: ContainerId = id(digits);
    let spec = Spec {
        config: ContainerConfig {
            metadata: ContainerMetadata {
                name: "vm".to_owned(),
                attempt: 2,
            },
            image: ImageSpec {
                image: DISK.to_owned(),
                user_specified_image: "images.example/disk".to_owned(),
                ..ImageSpec::default()
            },
            labels: texts(&[("io.kubernetes.container.name", "vm")]),
            annotations: texts(&[("io.kubernetes.container.hash", "d3b07384")]),
            mounts: vec![Mount {
                container_path: "/etc/settings".to_owned(),
                host_path: "/var/lib/kubelet/pods/x/volumes/settings".to_owned(),
                readonly: true,
                ..Mount::default()
            }],
            log_path: "vm/2.log".to_owned(),
            resources: LinuxResources {
                cpu_quota: 100_000,
                cpu_period: 100_000,
                memory_limit_in_bytes: 256 << 20,
                unified: texts(&[("memory.high", "max")]),
                hugepage_limits: vec![("2MB".to_owned(), 0)],
                ..LinuxResources::default()
            },
            ..ContainerConfig::default()
        },
        part: Part::Machine,
        machine,
        instance: Instance::default(),
        blocks: Vec::new(),
        file_disks: Vec::new(),
        shares: Vec::new(),
        seed: true,
        sysprep: false,
        uefi: false,
        user: Some(64_000),
        image_digest: DISK.to_owned(),
        log_path: "/var/log/pods/vm/2.log".into(),
        unsupported: vec!["readinessProbe is not served".to_owned()],
    };
    let mut row = Container::new(id, self::id(sandbox), spec);
    row.phase = phase;
    row.created_at = CREATED + SECOND;
    row
}

/// All containers; one of them, which is being stopped, has a time of its kill besides.
pub(crate) fn containers() -> Vec<Container> {
    let run = |row: &mut Container| {
        row.started_at = CREATED + 2 * SECOND;
        row.oom_kills = 3;
    };
    let mut running = container("b1", "a1", Phase::Running);
    run(&mut running);
    running.updated = Some(LinuxResources {
        cpu_quota: 200_000,
        ..running.spec.config.resources.clone()
    });
    running.wanted = Some(LinuxResources {
        cpu_quota: 300_000,
        ..running.spec.config.resources.clone()
    });
    running.spec.shares = vec![Share {
        tag: "vmlet-0".to_owned(),
        host_path: "/var/lib/kubelet/pods/x/volumes/data".to_owned(),
        path: "/data".to_owned(),
        read_only: true,
        protocol: crate::vm::Protocol::NineP,
    }];
    let mut on_disk = container("b2", "a2", Phase::Running);
    run(&mut on_disk);
    on_disk.spec.instance = Instance {
        vm: Some(vm(RUNNING_VM)),
        role: Role::Machine,
        instance_uuid: Some(vm(RUNNING_VM).uuid()),
        bios_uuid: Some(vm(OFF_VM).uuid()),
        ..Instance::default()
    };
    let mut suspended = container("b3", "a3", Phase::Exited);
    run(&mut suspended);
    suspended.finished_at = CREATED + 90 * SECOND;
    suspended.spec.instance.vm = Some(vm(SUSPENDED_VM));
    suspended.exit = Some(Exit {
        code: 0,
        reason: "Saved".to_owned(),
        message: String::new(),
    });
    let mut exited = container("b4", "a4", Phase::Exited);
    run(&mut exited);
    exited.finished_at = CREATED + 60 * SECOND;
    exited.exit = Some(Exit {
        code: 137,
        reason: "OOMKilled".to_owned(),
        message: "the node had no memory left".to_owned(),
    });
    let mut pod_machine = container("b5", "a5", Phase::Running);
    run(&mut pod_machine);
    pod_machine.spec.part = Part::PodMachine;
    let mut process = container("b6", "a5", Phase::Running);
    run(&mut process);
    process.spec.part = Part::Process {
        stdin_once: true,
        stop_signal: 15,
    };
    let mut block = container("b7", "a6", Phase::Running);
    run(&mut block);
    block.spec.blocks = vec![
        BlockDisk {
            device: Number {
                major: 253,
                minor: 7,
            },
            path: "/".to_owned(),
            read_only: false,
        },
        BlockDisk {
            device: Number {
                major: 253,
                minor: 8,
            },
            path: "/dev/data".to_owned(),
            read_only: true,
        },
    ];
    block.spec.file_disks = vec![FileDisk {
        mount: "/disks/data".to_owned(),
        directory: "/var/lib/kubelet/pods/x/volumes/disks".to_owned(),
        file: "data.raw".to_owned(),
        format: crate::images::Format::Raw,
        size: Some(1 << 20),
        path: "/dev/vdc".to_owned(),
        read_only: false,
    }];
    let mut stopping = container("b8", "a7", Phase::Stopping);
    run(&mut stopping);
    let created = container("b9", "a7", Phase::Created);
    vec![
        running,
        on_disk,
        suspended,
        exited,
        pod_machine,
        process,
        block,
        stopping,
        created,
    ]
}

/// All disks of machines.
pub(crate) fn disks() -> Vec<Disk> {
    let disk = |uid: &str, holder: Option<&str>, memory: Option<Memory>| Disk {
        vm: vm(uid),
        name: "default/web".to_owned(),
        phase: DiskPhase::Ready,
        image: "images.example/disk".to_owned(),
        digest: DISK.to_owned(),
        virtual_bytes: 1 << 20,
        linked: true,
        holder: holder.map(id),
        memory,
        layers: None,
        next_layer: None,
        generation: None,
    };
    let saved = Memory {
        phase: MemoryPhase::Whole,
        paused: true,
        nics: vec![SavedNic {
            mac: "02:00:00:00:00:a3".to_owned(),
            addresses: vec!["10.244.1.9".to_owned()],
        }],
        snapshot: None,
    };
    vec![
        disk(RUNNING_VM, Some("b2"), None),
        disk(SUSPENDED_VM, None, Some(saved)),
        disk(OFF_VM, None, None),
    ]
}

/// All devices that containers have.
pub(crate) fn devices() -> Vec<Held> {
    let held = |minor, read_only: bool| Held {
        device: Number { major: 253, minor },
        holder: id("b7"),
        read_only,
        readers: if read_only {
            vec![id("b1")]
        } else {
            Vec::new()
        },
        extent: (!read_only).then_some(Extent {
            offset: 1 << 20,
            size: 63 << 20,
        }),
    };
    vec![held(7, false), held(8, true)]
}

/// All tasks.
pub(crate) fn tasks() -> Vec<Task> {
    let task = |number: u64, work: Work, state: State| Task {
        uid: format!("{number:08}-5555-4555-8555-555555555555")
            .parse()
            .unwrap(),
        vm: vm(OFF_VM),
        work,
        state,
        cancelled: false,
        percent: 100,
        failure: (state == State::Error).then(|| Failure::new("the guest did not react", true)),
        image: None,
        snapshot: None,
        backup: None,
        order: number,
        created_at: CREATED,
        started_at: CREATED + SECOND,
        completed_at: CREATED + 2 * SECOND,
    };
    let provision = Work::Provision {
        image: "images.example/disk".to_owned(),
        url: Some("https://images.example/disk.qcow2".to_owned()),
        tls_secret: None,
        size: 1 << 20,
        linked: true,
        name: "default/web".to_owned(),
    };
    let inspect = Work::InspectImage {
        image: "images.example/other".to_owned(),
        url: None,
        tls_secret: None,
        checksum_url: None,
    };
    let inspected = json!({
        "format": "qcow2", "virtual_bytes": 1 << 20, "file_bytes": 4096, "bootable": true,
    });
    let mut inspect = task(4, inspect, State::Success);
    inspect.image = Some(serde_json::from_value(inspected).unwrap());
    vec![
        task(1, provision, State::Success),
        task(2, Work::GuestShutdown { timeout: 30 }, State::Error),
        task(3, Work::DeleteDisk, State::Cancelled),
        inspect,
    ]
}
