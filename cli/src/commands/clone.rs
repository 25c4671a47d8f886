//! `clone`: creates a virtual machine whose root disk is a copy of that of another one.
//!
//! Invariant: the new object has the specification of the machine as it is now, without what identifies a machine and
//! without its other disks; it is created once.
//! Failure: the cluster's; with `--watch` also what the controller reports when it cannot copy the disk.

use std::process::ExitCode;

use clap::Args;
use crds::conditions::{CREATED, SOURCE_READY, find, is_true};
use crds::vm::{CloneSource, SourceReference};
use crds::{PowerState, VirtualMachine, VirtualMachineSpec};
use kube::ResourceExt;

use super::requested;
use crate::cluster::{Cluster, ClusterArgs, ClusterError, Names};

/// Machine to clone, and the name of the clone.
#[derive(Debug, Args)]
pub(crate) struct CloneArgs {
    /// Name of the virtual machine to clone. Without --snapshot one that runs is copied as after a power failure, and one
    /// that is off must stay off until its disk is copied.
    #[arg(value_name = "NAME")]
    machine: String,
    /// Name of the new virtual machine.
    #[arg(value_name = "CLONE")]
    clone: String,
    /// Copy this snapshot of the machine, which may run.
    #[arg(long, value_name = "SNAPSHOT")]
    snapshot: Option<String>,
    /// Wait until the disk is copied.
    #[arg(short, long, alias = "wait")]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &CloneArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let machine = Names::machine(&args.machine);
    let found = cluster.find(machine).await?;
    let draft = Draft::of_machine(&found.vm, &args.clone, args.snapshot.as_deref());
    let uid = create(&cluster, &draft.vm).await?;
    if !draft.left_out.is_empty() {
        eprintln!("left out: {}", draft.left_out.join(", "));
    }
    let name = &args.clone;
    if args.watch {
        let cluster = args.cluster.connect_to_watch().await?;
        made(&cluster, name, &uid).await?;
        super::print(&format!("virtualmachine.vmlet.dev/{name} cloned\n"))?;
    } else {
        super::print(&format!("virtualmachine.vmlet.dev/{name} created\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A clone that is to be created.
#[derive(Debug)]
struct Draft {
    vm: VirtualMachine,
    /// Fields that it does not have from its source.
    left_out: Vec<&'static str>,
}

impl Draft {
    fn of_machine(source: &VirtualMachine, name: &str, snapshot: Option<&str>) -> Self {
        let named = |name: &str| SourceReference {
            name: name.to_owned(),
        };
        let machine = source.name_any();
        let of = CloneSource {
            snapshot: snapshot.map(named),
            virtual_machine: snapshot.is_none().then(|| named(&machine)),
            backup: None,
        };
        let spec = &source.spec;
        Self {
            vm: VirtualMachine::new(name, without_identity(spec, of)),
            left_out: left_out(spec),
        }
    }
}

/// Fields that are set, and that a copy of a machine does not have.
pub(super) fn left_out(spec: &VirtualMachineSpec) -> Vec<&'static str> {
    let left_out = [
        ("volumes", !spec.volumes.is_empty()),
        (
            "dataVolumeTemplates",
            !spec.data_volume_templates.is_empty(),
        ),
        ("groupName", spec.group_name.is_some()),
    ];
    let left_out = left_out.into_iter().filter(|(_, is_set)| *is_set);
    left_out.map(|(field, _)| field).collect()
}

/// The specification of a clone.
pub(super) fn without_identity(
    spec: &VirtualMachineSpec,
    source: CloneSource,
) -> VirtualMachineSpec {
    let mut spec = spec.clone();
    if let Some(network) = &mut spec.network {
        network.host_name = None;
        for interface in &mut network.interfaces {
            interface.mac_addr = None;
            interface.addresses.clear();
        }
    }
    let cloud_init = spec.bootstrap.as_mut().and_then(|b| b.cloud_init.as_mut());
    if let Some(cloud_init) = cloud_init {
        cloud_init.instance_id = None;
    }
    let suspended = Some(PowerState::Suspended);
    VirtualMachineSpec {
        source: Some(source),
        image: None,
        image_name: None,
        power_state: match spec.power_state {
            state if state == suspended => Some(PowerState::PoweredOff),
            state => state,
        },
        paused: false,
        next_restart_time: None,
        current_snapshot_name: None,
        bios_uuid: None,
        instance_uuid: None,
        // The size of the source: a capacity below that of an image counts for nothing, and is refused for a clone.
        boot_disk_capacity: None,
        group_name: None,
        volumes: Vec::new(),
        data_volume_templates: Vec::new(),
        ..spec
    }
}

/// Creates the object, and returns its UID.
pub(super) async fn create(cluster: &Cluster, vm: &VirtualMachine) -> Result<String, ClusterError> {
    requested::create(cluster, vm, "machine").await
}

/// Waits until the machine has its disk, and says meanwhile what it waits for.
pub(super) async fn made(cluster: &Cluster, name: &str, uid: &str) -> anyhow::Result<()> {
    let deleted = format!("{name} was deleted before its disk was made");
    requested::follow(cluster.machines(), name, uid, &deleted, |vm, said| {
        let conditions = vm
            .status
            .as_ref()
            .map_or(&[][..], |status| &status.conditions);
        if is_true(conditions, CREATED) {
            return Ok(true);
        }
        let failed = find(conditions, CREATED).filter(|one| one.status == "False");
        if let Some(shown) = failed.or_else(|| find(conditions, SOURCE_READY)) {
            said.say(&shown.message);
        }
        Ok(false)
    })
    .await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_clone_has_the_size_of_its_source_and_no_part_of_its_identity() {
        let source: VirtualMachine = serde_json::from_value(json!({
            "metadata": { "name": "web", "uid": "u", "labels": { "a": "b" } },
            "spec": {
                "imageName": "debian", "className": "small", "powerState": "Suspended",
                "bootDiskCapacity": "10Gi", "paused": true, "groupName": "g",
                "biosUUID": "0f0f0f0f-0000-4000-8000-000000000001",
                "instanceUUID": "0f0f0f0f-0000-4000-8000-000000000002",
                "bootstrap": { "cloudInit": { "instanceID": "i", "sshKeys": ["k"] } },
                "network": { "hostName": "web", "interfaces": [
                    { "name": "eth0", "macAddr": "52:54:00:12:34:56", "addresses": ["10.0.0.5/24"] },
                ] },
                "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "d" } }],
            },
        }))
        .unwrap();
        let draft = Draft::of_machine(&source, "copy", Some("snap"));
        assert_eq!(draft.left_out, ["volumes", "groupName"]);
        let made = serde_json::to_value(&draft.vm).unwrap();
        assert_eq!(made["metadata"], json!({ "name": "copy" }));
        let spec = made["spec"].clone();
        assert_eq!(spec["source"], json!({ "snapshot": { "name": "snap" } }));
        assert_eq!(spec["powerState"], "PoweredOff");
        assert_eq!(spec["paused"], false);
        assert_eq!(spec["className"], "small");
        let cloud_init = &spec["bootstrap"]["cloudInit"];
        assert_eq!(*cloud_init, json!({ "sshKeys": ["k"] }));
        let interfaces = &spec["network"]["interfaces"];
        assert_eq!(*interfaces, json!([{ "name": "eth0" }]));
        for gone in [
            "imageName",
            "biosUUID",
            "instanceUUID",
            "groupName",
            "volumes",
            "bootDiskCapacity",
        ] {
            assert!(spec.get(gone).is_none(), "{gone}");
        }
        let draft = Draft::of_machine(&source, "copy", None);
        let made = serde_json::to_value(&draft.vm.spec).unwrap();
        assert_eq!(
            made["source"],
            json!({ "virtualMachine": { "name": "web" } })
        );
    }
}
