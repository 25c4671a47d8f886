//! The VM generation ID of a machine that starts.
//!
//! Invariant: a guest finds another ID if its disk is a copy, or an earlier one, than it knows, as far as the daemon can
//! know that; a restart of a guest changes nothing. Saved memory fits only the devices that it was saved with, and
//! earlier versions had none for this ID.
//! Failure: that of the disk's record.

use uuid::Uuid;

use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::vm::domain::VM_GENERATION_ID;
use crate::vm::error::Result;
use crate::vm::model::Container;
use crate::vm::service::Containers;

/// IDs that follow from a name are in a name space of their own: no guest has one of them as its UUID.
const NAMESPACE: Uuid = Uuid::from_u128(0x3f2b_77a1_5c0d_4e86_9b14_d7c8_60a9_e215);

impl<P: Platform> Containers<P> {
    /// The ID for a machine, if its guest has one. `saved`: the description that goes with the memory which it resumes.
    pub(super) async fn generation(
        &self,
        row: &Container,
        sandbox: &Sandbox,
        saved: Option<&str>,
    ) -> Result<Option<Uuid>> {
        let Some(vm) = row.vm() else {
            let namespace = &sandbox.config.metadata.namespace;
            return Ok(without_record(row, namespace));
        };
        if saved.is_some_and(|xml| !xml.contains(VM_GENERATION_ID)) {
            return Ok(None);
        }
        Ok(Some(self.parts.disks.generation(vm).await?))
    }
}

/// The ID for a root disk without a record. A disk of the pod goes with its sandbox. A disk on a volume outlives
/// the pod, and follows the VirtualMachine, and the volume that a revert gave it: other pods have none, since all
/// replicas of a template may have one UUID, and volumes that are copies of each other.
fn without_record(row: &Container, namespace: &str) -> Option<Uuid> {
    let is_on_volume = row.root_block().is_some() || row.root_file().is_some();
    let name = if is_on_volume {
        // Two namespaces may choose the same UUID.
        let machine = format!("{namespace}/{}", row.spec.instance.bios_uuid?);
        match row.spec.instance.disk_generation {
            Some(disk) => format!("{machine}/{disk}"),
            None => machine,
        }
    } else {
        row.sandbox.to_string()
    };
    Some(Uuid::new_v5(&NAMESPACE, name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use podspec::SandboxId;

    use super::*;
    use crate::block::Number;
    use crate::testkit::Node;
    use crate::vm::model::BlockDisk;
    use crate::vm::state::Phase;

    #[tokio::test]
    async fn a_guest_with_the_disk_of_its_pod_keeps_its_id_for_as_long_as_the_disk() {
        let node = Node::new().await;
        let first = node.started().await;
        let row = node.row(&first);
        let id = without_record(&row, "default").unwrap();
        let shown = |row: &Container| node.hypervisor.xml(row.domain()).unwrap();
        assert!(shown(&row).contains(&format!("guid={id}")));
        node.hypervisor.power_off(row.domain());
        node.until(&first, |row| row.phase == Phase::Exited).await;
        let second = node.containers.create(&row.sandbox, node.machine(1));
        let second = second.await.unwrap();
        node.containers.start(&second).await.unwrap();
        assert!(shown(&node.row(&second)).contains(&format!("guid={id}")));
        let other = node.annotated("other", &[]).await;
        let other = node.containers.create(&other, node.machine(0)).await;
        let other = without_record(&node.row(&other.unwrap()), "default");
        assert!(other.is_some_and(|other| other != id));
    }

    #[tokio::test]
    async fn a_guest_with_its_disk_on_a_volume_has_the_id_of_its_machine_in_every_pod() {
        let node = Node::new().await;
        let mut row = Container::clone(&node.row(&node.created().await));
        row.spec.blocks = vec![BlockDisk {
            device: Number { major: 7, minor: 0 },
            path: "/".to_owned(),
            read_only: false,
        }];
        let machine = Uuid::from_u128(7);
        row.spec.machine.system_uuid = Some(machine);
        let of_a_template = without_record(&row, "a");
        assert_eq!(of_a_template, None, "which disk it is nothing shows");
        row.spec.instance.bios_uuid = Some(machine);
        let id = without_record(&row, "a");
        assert!(id.is_some_and(|id| id != machine));
        assert_ne!(without_record(&row, "b"), id);
        row.sandbox = SandboxId::generate();
        assert_eq!(without_record(&row, "a"), id);
        row.spec.instance.disk_generation = Some(Uuid::from_u128(9));
        let reverted = without_record(&row, "a");
        assert!(reverted.is_some() && reverted != id);
        row.spec.instance.disk_generation = None;
        row.spec.instance.bios_uuid = Some(Uuid::from_u128(8));
        assert_ne!(without_record(&row, "a"), id);
    }
}
