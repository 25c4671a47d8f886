//! A client of the daemon's node API with the calls that tests need in one line each.
//!
//! Invariant: requests look like the agent's.
//! Failure: the daemon's gRPC status, or a task that did not end as expected, with its message.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nodeapi::v1::{self, node_client::NodeClient, run_task_request::Kind, task_status::State};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::wait::{eventually, in_time};

/// A connection to the node API.
#[derive(Debug, Clone)]
pub struct NodeApi {
    /// The service.
    pub node: NodeClient<Channel>,
}

/// Tasks of one test, with distinct UIDs.
pub fn uid(number: u32) -> String {
    format!("7b0e4a7e-2a61-4d0e-8a53-0c7a{number:08x}")
}

impl NodeApi {
    /// Connects to the socket; waits a moment for the daemon to listen.
    pub async fn connect(socket: &Path) -> Result<Self> {
        let uri = format!("unix://{}", socket.display());
        let channel = eventually(Duration::from_secs(60), "the node API", || async {
            Ok(Endpoint::try_from(uri.clone())?.connect().await?)
        });
        Ok(Self {
            node: NodeClient::new(channel.await?),
        })
    }

    /// Sends a task; returns its state.
    pub async fn send(&self, task: &str, vm: &str, kind: Kind) -> Result<v1::TaskStatus, Status> {
        let request = v1::RunTaskRequest {
            uid: task.to_owned(),
            vm_uid: vm.to_owned(),
            kind: Some(kind),
        };
        Ok(self.node.clone().run_task(request).await?.into_inner())
    }

    /// Sends a task and waits for its end, whatever that is.
    pub async fn end(
        &self,
        task: &str,
        vm: &str,
        kind: Kind,
        within: Duration,
    ) -> Result<v1::TaskStatus> {
        eventually(within, "the end of the task", || async {
            let status = self.send(task, vm, kind.clone()).await?;
            ensure!(
                !matches!(status.state(), State::Queued | State::Running),
                "{status:?}"
            );
            Ok(status)
        })
        .await
    }

    /// The same; an error unless it succeeded.
    pub async fn done(&self, task: &str, vm: &str, kind: Kind, within: Duration) -> Result<()> {
        let status = self.end(task, vm, kind, within).await?;
        ensure!(status.state() == State::Success, "{status:?}");
        Ok(())
    }

    /// Sends a task and follows it to its end; the time that it took. An error unless it succeeded.
    pub async fn timed(
        &self,
        task: &str,
        vm: &str,
        kind: Kind,
        within: Duration,
    ) -> Result<Duration> {
        let request = v1::WatchTasksRequest {};
        let events = self.node.clone().watch_tasks(request).await?;
        let mut events = events.into_inner();
        let begun = Instant::now();
        self.send(task, vm, kind).await?;
        let status = in_time(within, "the end of the task", async {
            loop {
                let event = events.message().await?.context("the stream ended")?;
                let its = event.task.filter(|status| status.uid == task);
                if let Some(status) = its
                    && !matches!(status.state(), State::Queued | State::Running)
                {
                    return Ok(status);
                }
            }
        })
        .await?;
        ensure!(status.state() == State::Success, "{status:?}");
        Ok(begun.elapsed())
    }

    /// All disks.
    pub async fn disks(&self) -> Result<Vec<v1::Disk>> {
        let request = v1::ListDisksRequest {};
        Ok(self
            .node
            .clone()
            .list_disks(request)
            .await?
            .into_inner()
            .disks)
    }

    /// All tasks that the daemon knows.
    pub async fn tasks(&self) -> Result<Vec<v1::TaskStatus>> {
        let request = v1::WatchTasksRequest {};
        let mut events = self.node.clone().watch_tasks(request).await?.into_inner();
        let mut tasks = Vec::new();
        loop {
            let event = events.message().await?.context("the stream ended")?;
            tasks.extend(event.task);
            if event.synced {
                return Ok(tasks);
            }
        }
    }

    /// Every machine as it is now.
    pub async fn machines(&self) -> Result<Vec<v1::Machine>> {
        let request = v1::WatchMachinesRequest {};
        let mut events = self
            .node
            .clone()
            .watch_machines(request)
            .await?
            .into_inner();
        let mut machines = Vec::new();
        loop {
            let event = events.message().await?.context("the stream ended")?;
            machines.extend(event.machine);
            if event.synced {
                return Ok(machines);
            }
        }
    }

    /// Forgets a task that ended.
    pub async fn forget(&self, task: &str) -> Result<(), Status> {
        let uid = task.to_owned();
        let request = v1::ForgetTaskRequest { uid };
        self.node.clone().forget_task(request).await.map(drop)
    }
}

/// A disk that is based on this image.
pub fn provision(image: &str) -> Kind {
    Kind::Provision(v1::Provision {
        image: image.to_owned(),
        size_bytes: 0,
        mode: v1::provision::Mode::Linked.into(),
        vm_name: "default/vm".to_owned(),
        image_url: String::new(),
        image_tls_secret: String::new(),
    })
}
