//! Applies settings of the cluster to the services that run.
//!
//! Invariant: each setting that a cluster can give has its service here; what began with earlier
//! ones, such as a machine that runs, stays as it is.
//! Failure: an accelerator that no longer works is probed again by each round of the daemon.

use std::sync::Arc;

use service::telemetry::Level;

use super::{Containers, settings};
use crate::config::Config;
use crate::images::Images;
use crate::node_settings::Target;

/// The services that have settings of the cluster.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) containers: Arc<Containers>,
    pub(super) images: Arc<Images>,
    pub(super) level: Option<Level>,
}

#[tonic::async_trait]
impl Target for Running {
    async fn try_accelerator(&self, config: &Config) -> Result<(), String> {
        let setting = settings::accelerator(config);
        let found = self.containers.try_accelerator(setting).await;
        found.map(drop)
    }

    async fn apply(&self, config: &Config) {
        if let Some(level) = &self.level {
            level.set(&config.log.level);
        }
        self.images.adjust(settings::adjustable_images(config));
        self.containers.set_defaults(settings::defaults(config));
        let setting = settings::accelerator(config);
        self.containers.switch_accelerator(setting).await;
    }
}
