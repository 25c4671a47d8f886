//! The image of a pull, of the namespace or of the cluster.
//!
//! Invariant: without a scope the image of the namespace is meant first, as by machines.
//! Failure: the cluster's; tasks that may not be listed have no percents.

use std::fmt::Debug;

use clap::ValueEnum;
use crds::guard::Guarded;
use crds::{
    ClusterVirtualMachineImage, ImageUpdate, PrePull, PrePullStatus, TaskKind, VirtualMachineImage,
    VirtualMachineImageStatus, VirtualMachineTask,
};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::core::ObjectMeta;
use serde::Serialize;
use serde_json::{Value, json};

use super::about;
use super::request::Request;
use crate::cluster::{Cluster, ClusterError};

/// Which image is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::commands::image) enum Scope {
    /// The image of the namespace.
    Namespace,
    /// The image of the cluster.
    Cluster,
}

/// The image, as it was when the command began.
pub(in crate::commands::image) struct Target {
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
    pub(in crate::commands::image) async fn find(
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
    pub(in crate::commands::image) fn title(&self) -> String {
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
        let meta = self.patch(&patch).await?;
        Ok(meta.generation.unwrap_or_default())
    }

    pub(super) async fn state(&self) -> Result<State, ClusterError> {
        let (_, present, status) = self.read().await?;
        Ok(State {
            is_requested: present.is_some(),
            status,
        })
    }

    /// How the image follows its tag, and what is known of it.
    pub(in crate::commands::image) async fn versions(
        &self,
    ) -> Result<(Option<ImageUpdate>, VirtualMachineImageStatus), ClusterError> {
        let read = match self.scope {
            Scope::Namespace => self.own().get(&self.name).await.map(|image| {
                let status = image.status.unwrap_or_default();
                (image.spec.update, status)
            }),
            Scope::Cluster => self.shared().get(&self.name).await.map(|image| {
                let status = image.status.unwrap_or_default();
                (image.spec.update, status)
            }),
        };
        read.map_err(|error| about(self, error))
    }

    /// Changes fields of `spec.update`. One that was made again meanwhile is not changed.
    pub(in crate::commands::image) async fn edit_update(
        &self,
        update: &Value,
    ) -> Result<(), ClusterError> {
        let patch = json!({ "metadata": { "uid": self.uid }, "spec": { "update": update } });
        self.patch(&Patch::Merge(patch)).await.map(drop)
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

    /// Writes to the image; its metadata afterwards.
    async fn patch<P: Serialize + Debug>(
        &self,
        patch: &Patch<P>,
    ) -> Result<ObjectMeta, ClusterError> {
        let params = PatchParams {
            field_manager: Some("vmletctl".to_owned()),
            ..PatchParams::default()
        };
        let written = match self.scope {
            Scope::Namespace => {
                let written = self.own().patch(&self.name, &params, patch).await;
                written.map(|image| image.metadata)
            }
            Scope::Cluster => {
                let written = self.shared().patch(&self.name, &params, patch).await;
                written.map(|image| image.metadata)
            }
        };
        written.map_err(|error| about(self, error))
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
