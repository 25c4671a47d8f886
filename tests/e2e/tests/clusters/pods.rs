//! What pods of machines have of Kubernetes, as pods of containers do, on one node whose programs no
//! case disturbs.
//!
//! Invariant: the cases run side by side, since each mostly waits, and their objects have different
//! names.
//! Failure: the case is named; pods, events and the ends of logs follow.

use anyhow::Result;
use e2e::{Cluster, side_by_side};
use serde_json::json;

use super::{logs, network, volumes, workloads};

#[tokio::test]
#[ignore = "needs root"]
async fn logs_volumes_services_and_workloads_are_those_of_containers() -> Result<()> {
    let cluster = Cluster::up()?;
    // The log of a machine is rotated within a test.
    cluster.configure_kubelet(|settings| settings["containerLogMaxSize"] = json!("64Ki"))?;
    side_by_side!(
        &cluster,
        [
            logs::people_see_of_a_machine_what_they_see_of_a_container,
            network::services_dns_and_host_ports_work_for_machines_and_containers_alike,
            volumes::a_guest_has_the_volumes_of_its_pod_and_sees_their_updates,
            workloads::workloads_of_every_kind_run_as_virtual_machines,
        ]
    )?;
    cluster.await_clean().await?;
    cluster.down()
}
