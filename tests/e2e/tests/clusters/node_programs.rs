//! What kubelet and its users see of a node while the programs of that node end and start again.
//!
//! Invariant: one case after the other, because each of them restarts programs; each leaves the
//! settings of kubelet as the next one needs them.
//! Failure: the case and its step are named; pods, events and the ends of logs follow.

use anyhow::Result;
use e2e::{Cluster, cases};

use super::{events, processes, sessions, traces};

// The collector of traces receives on another thread while a case waits for kubectl.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "needs root"]
async fn events_sessions_processes_and_traces_outlive_the_programs_of_a_node() -> Result<()> {
    let cluster = Cluster::up()?;
    cases!(
        &cluster,
        [
            events::a_kubelet_follows_pods_by_their_events,
            sessions::kubectl_has_sessions_in_a_machine_across_restarts_of_every_program,
            processes::kubectl_sees_the_containers_of_one_machine,
            traces::requests_and_their_steps_are_in_the_traces_of_kubelet,
        ]
    );
    cluster.await_clean().await?;
    cluster.down()
}
