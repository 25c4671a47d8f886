//! The image of a pull, of the namespace or of the cluster.
//!
//! Invariant: without a scope the image of the namespace is meant first, as by machines.
//! Failure: the cluster's; tasks that may not be listed have no percents.

use clap::ValueEnum;
use crds::guard::Guarded;
use crds::{
    ClusterVirtualMachineImage, PrePull, PrePullStatus, TaskKind, VirtualMachineImage,
    VirtualMachineTask,
};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::core::ObjectMeta;

use super::about;
use super::request::Request;
use crate::cluster::{Cluster, ClusterError};

/// Which image is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Scope {
    /// The image of the namespace.
    Namespace,
    /// The image of the cluster.
    Cluster,
}

/// The image, as it was when the command began.
pub(super) struct Target {
    cluster: Cluster,
    scope: Scope,
    name: String,
    uid: String,
    generation: i64,
    present: Option<PrePull>,
}

/// The image, as it is.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) is_requested: bool,
    pub(super) status: Option<PrePullStatus>,
}

impl Target {
    pub(super) async fn find(
        cluster: &Cluster,
        name: &str,
        scope: Option<Scope>,
    ) -> Result<Self, ClusterError> {
        let mut target = Self {
            cluster: cluster.clone(),
            scope: scope.unwrap_or(Scope::Namespace),
            name: name.to_owned(),
            uid: String::new(),
            generation: 0,
            present: None,
        };
        let first = target.read().await;
        let (meta, present, _) = match first {
            Err(ClusterError::NoImage { namespace, name }) if scope.is_none() => {
                target.scope = Scope::Cluster;
                let missing = ClusterError::NoImage { namespace, name };
                target.read().await.map_err(|error| match error {
                    ClusterError::NoImage { .. } => missing,
                    other => other,
                })?
            }
            found => found?,
        };
        target.uid = meta.uid.unwrap_or_default();
        target.generation = meta.generation.unwrap_or_default();
        target.present = present;
        Ok(target)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Empty for an image of the cluster.
    pub(super) fn namespace(&self) -> &str {
        match self.scope {
            Scope::Namespace => &self.cluster.namespace,
            Scope::Cluster => "",
        }
    }

    /// Kind and name, as kubectl prints them.
    pub(super) fn title(&self) -> String {
        let kind = match self.scope {
            Scope::Namespace => "virtualmachineimage",
            Scope::Cluster => "clustervirtualmachineimage",
        };
        format!("{kind}.vmlet.dev/{}", self.name)
    }

    /// Writes the request; the generation of the image that has it.
    pub(super) async fn write(&self, request: &Request) -> Result<i64, ClusterError> {
        let Some(patch) = request.patch(&self.uid, self.present.as_ref()) else {
            return Ok(self.generation);
        };
        let patch: Patch<()> = Patch::Json(
            serde_json::from_value(patch)
                .map_err(|error| ClusterError::Other(Box::new(kube::Error::SerdeError(error))))?,
        );
        let params = PatchParams {
            field_manager: Some("vmletctl".to_owned()),
            ..PatchParams::default()
        };
        let written = match self.scope {
            Scope::Namespace => self
                .own()
                .patch(&self.name, &params, &patch)
                .await
                .map(|i| i.metadata),
            Scope::Cluster => self
                .shared()
                .patch(&self.name, &params, &patch)
                .await
                .map(|i| i.metadata),
        };
        let meta = written.map_err(|error| about(self, error))?;
        Ok(meta.generation.unwrap_or_default())
    }

    pub(super) async fn state(&self) -> Result<State, ClusterError> {
        let (_, present, status) = self.read().await?;
        Ok(State {
            is_requested: present.is_some(),
            status,
        })
    }

    /// The percents of the tasks in progress, by node.
    pub(super) async fn percents(&self) -> Vec<(String, u32)> {
        // Those of images of the cluster are in the namespace of the controller.
        let tasks = self
            .cluster
            .api_of::<Guarded<VirtualMachineTask>>(self.scope == Scope::Cluster);
        let tasks = tasks.list(&ListParams::default()).await;
        let is_ours = |task: &&VirtualMachineTask| {
            task.spec.kind == TaskKind::PullImage
                && task.spec.vm_uid == self.uid
                && !task.is_final()
        };
        let percent = |task: &VirtualMachineTask| {
            let status = task.status.as_ref();
            let percent = status.map_or(0, |status| status.progress_percent);
            (task.spec.node_name.clone(), percent)
        };
        let tasks = tasks.map(|list| list.items).unwrap_or_default();
        let tasks = tasks.iter().flat_map(|task| &task.0);
        let mut all: Vec<_> = tasks.filter(is_ours).map(percent).collect();
        all.sort();
        all
    }

    async fn read(
        &self,
    ) -> Result<(ObjectMeta, Option<PrePull>, Option<PrePullStatus>), ClusterError> {
        let read = match self.scope {
            Scope::Namespace => self.own().get(&self.name).await.map(|image| {
                let pulls = image.status.and_then(|status| status.pre_pull);
                (image.metadata, image.spec.pre_pull, pulls)
            }),
            Scope::Cluster => self.shared().get(&self.name).await.map(|image| {
                let pulls = image.status.and_then(|status| status.pre_pull);
                (image.metadata, image.spec.pre_pull, pulls)
            }),
        };
        read.map_err(|error| about(self, error))
    }

    fn own(&self) -> Api<VirtualMachineImage> {
        self.cluster.api()
    }

    fn shared(&self) -> Api<ClusterVirtualMachineImage> {
        Api::all(self.cluster.client.clone())
    }
}
