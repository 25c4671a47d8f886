//! An OVF package, as another hypervisor exports it, becomes a machine on a deployed node.
//!
//! Invariant: the package is made of the disk of a guest that has booted once, so that the imported machine
//! shows its content by its second boot.
//! Failure: what the command printed, or the log of the guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Cluster, program};

const READY: Duration = Duration::from_secs(600);
const NAME: &str = "imported";

/// `disk`: a qcow2 file.
pub(super) async fn a_package_becomes_a_machine(cluster: &Cluster, disk: &Path) -> Result<()> {
    let package = package(cluster, disk)?;
    let dry = import(cluster, &package, &["--dry-run"])?;
    let manifest = String::from_utf8_lossy(&dry.stdout);
    ensure!(
        dry.status.success() && manifest.contains("memory: 128Mi"),
        "{dry:?}"
    );
    let report = String::from_utf8_lossy(&dry.stderr);
    for words in [
        "1 CPUs, 128 MiB of memory",
        "CD or DVD drive CD-ROM 1",
        "model VmxNet3: it is a virtio NIC",
        "images.convert must list \"vmdk\"",
    ] {
        ensure!(report.contains(words), "{words:?} is not in {report}");
    }

    let node = cluster.stack().var("VMLET_CLUSTER_NODE")?;
    let flags = ["--node", node, "--run-strategy", "Always", "--watch"];
    let imported = import(cluster, &package, &flags)?;
    ensure!(imported.status.success(), "{imported:?}");
    cluster.await_boots(NAME, &[2], READY).await?;
    let again = import(cluster, &package, &flags)?;
    let words = String::from_utf8_lossy(&again.stderr);
    ensure!(
        !again.status.success() && words.contains("already"),
        "{again:?}"
    );
    cluster.delete(&format!("vm/{NAME}"), READY)?;
    cluster.delete(&format!("vmimage/{NAME}"), READY)
}

fn import(cluster: &Cluster, package: &Path, flags: &[&str]) -> Result<Output> {
    let mut command = cluster.stack().command("vmletctl");
    command.args(["import", "--name", NAME]).args(flags);
    program::output(command.arg(package))
}

/// A descriptor, a manifest and a VMDK in one archive.
fn package(cluster: &Cluster, disk: &Path) -> Result<PathBuf> {
    let dir = cluster.stack().dir().join("package");
    fs::create_dir_all(&dir)?;
    let vmdk = dir.join("guest-disk1.vmdk");
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "qcow2", "-O", "vmdk"]);
    convert.args(["-o", "subformat=streamOptimized"]);
    run(convert.arg(disk).arg(&vmdk))?;
    let size = fs::metadata(&vmdk)?.len();
    fs::write(dir.join("guest.ovf"), descriptor(size))?;
    let names = ["guest.ovf", "guest-disk1.vmdk"];
    let mut manifest = String::new();
    for name in names {
        let sums = run(Command::new("sha256sum").arg(dir.join(name)))?;
        let digits = sums.split_whitespace().next().unwrap_or_default();
        manifest.push_str(&format!("SHA256({name})= {digits}\n"));
    }
    fs::write(dir.join("guest.mf"), manifest)?;
    let archive = cluster.stack().dir().join("guest.ova");
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&dir).arg("--format=ustar").arg("-cf");
    run(tar.arg(&archive).arg("guest.mf").args(names))?;
    Ok(archive)
}

fn descriptor(size: u64) -> String {
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"
 xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData">
 <References><File ovf:id="file1" ovf:href="guest-disk1.vmdk" ovf:size="{size}"/></References>
 <DiskSection><Info/><Disk ovf:diskId="vmdisk1" ovf:fileRef="file1"/></DiskSection>
 <VirtualSystem ovf:id="guest"><Info/>
  <VirtualHardwareSection><Info/>
   <Item><rasd:ElementName>cpu</rasd:ElementName><rasd:InstanceID>1</rasd:InstanceID>
    <rasd:ResourceType>3</rasd:ResourceType><rasd:VirtualQuantity>1</rasd:VirtualQuantity></Item>
   <Item><rasd:AllocationUnits>byte * 2^20</rasd:AllocationUnits><rasd:ElementName>memory</rasd:ElementName>
    <rasd:InstanceID>2</rasd:InstanceID><rasd:ResourceType>4</rasd:ResourceType>
    <rasd:VirtualQuantity>128</rasd:VirtualQuantity></Item>
   <Item><rasd:ElementName>CD-ROM 1</rasd:ElementName><rasd:InstanceID>3</rasd:InstanceID>
    <rasd:ResourceType>15</rasd:ResourceType></Item>
   <Item><rasd:ElementName>disk</rasd:ElementName><rasd:HostResource>ovf:/disk/vmdisk1</rasd:HostResource>
    <rasd:InstanceID>4</rasd:InstanceID><rasd:ResourceType>17</rasd:ResourceType></Item>
   <Item><rasd:Connection>VM Network</rasd:Connection><rasd:ElementName>nic</rasd:ElementName>
    <rasd:InstanceID>5</rasd:InstanceID><rasd:ResourceSubType>VmxNet3</rasd:ResourceSubType>
    <rasd:ResourceType>10</rasd:ResourceType></Item>
  </VirtualHardwareSection>
 </VirtualSystem>
</Envelope>
"#
    )
}

fn run(command: &mut Command) -> Result<String> {
    let output = program::output(command)?;
    ensure!(output.status.success(), "{command:?}: {output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
