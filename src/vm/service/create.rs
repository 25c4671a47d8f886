//! The creation of a container, a machine or a process of one, up to the lock of its sandbox.
//!
//! Invariant: what takes long, the image and the objects of the cluster, comes before the lock; what makes rows
//! goes on when the caller gives up.
//! Failure: a request that is refused here has made nothing.

use std::sync::Arc;

use podspec::{ContainerId, SandboxId};

use super::Containers;
use crate::images;
use crate::platform::Platform;
use crate::vm::disks::seed::Surroundings;
use crate::vm::error::Result;
use crate::vm::lifecycle::Conflict;
use crate::vm::lifecycle::request::instance;
use crate::vm::model::{ContainerConfig, Environment};
use crate::vm::process::Process;
use crate::vm::shares::{Supplies, volumes};
use crate::vm::unsupported::Given;

impl<P: Platform> Containers<P> {
    /// Makes a container in a ready sandbox.
    pub async fn create(
        self: &Arc<Self>,
        sandbox: &SandboxId,
        mut config: ContainerConfig,
    ) -> Result<ContainerId> {
        let environment = std::mem::take(&mut config.environment);
        let ready = self.ready_sandbox(sandbox)?;
        let file_disks = self.wanted_file_disks(&ready, &config)?;
        let shares = self.wanted_shares(&ready, &config, &file_disks).await?;
        let given = Given::mounted(&config, &shares, &file_disks);
        self.refuse_loss(&ready, &config, &given)?;
        let has_image = !images::is_none(&config.image.user_specified_image);
        if has_image && instance(&ready, &config)?.vm.is_none() {
            self.bring_image(&ready, &config.image).await?;
        }
        let surroundings = Surroundings {
            environment,
            mounts: config.mounts.clone(),
            shares: shares.clone(),
            file_disks: file_disks.clone(),
        };
        let data = self.guest_data(&ready, &config, surroundings).await?;
        let supplies = Supplies {
            data,
            shares,
            file_disks,
        };
        let this = Arc::clone(self);
        let sandbox = sandbox.clone();
        let create = async move { this.create_to_end(&sandbox, config, supplies).await };
        let id = self.parts.tasks.finish(create).await?;
        // A caller that gave up does not get here.
        self.remember_answer(&id);
        Ok(id)
    }

    /// Makes a container that is a process of the pod machine.
    pub async fn create_in(
        self: &Arc<Self>,
        sandbox: &SandboxId,
        mut config: ContainerConfig,
        process: Process,
    ) -> Result<ContainerId> {
        // The process has them.
        config.environment = Environment::default();
        let ready = self.ready_sandbox(sandbox)?;
        Self::refuse_file_disks(&ready, &config)?;
        volumes::check(&config)?;
        let given = self.given_to_process(&ready, &config)?;
        self.refuse_loss(&ready, &config, &given)?;
        if instance(&ready, &config)?.vm.is_some() {
            return Err(Conflict::VmOfProcesses(sandbox.clone()).into());
        }
        self.bring_image(&ready, &config.image).await?;
        let files = self
            .guest_data(&ready, &config, Surroundings::default())
            .await?;
        let this = Arc::clone(self);
        let sandbox = sandbox.clone();
        let create = async move { this.create_process(&sandbox, config, process, files).await };
        let id = self.parts.tasks.finish(create).await?;
        self.remember_answer(&id);
        Ok(id)
    }
}
