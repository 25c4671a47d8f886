//! The translations of images that the cluster gives.
//!
//! Invariant: the answer has a result for each of them, in their order.
//! Failure: `INTERNAL` when they cannot be kept; none of them has changed then.

use nodeapi::v1;
use tonic::Status;

use super::Service;
use crate::images::ClusterMapping;
use crate::platform::Platform;

impl<P: Platform> Service<P> {
    pub(super) async fn replace_mappings(
        &self,
        given: Vec<v1::ImageMapping>,
    ) -> Result<Vec<v1::ImageMappingResult>, Status> {
        let mappings = given.into_iter();
        let mapping = |v1::ImageMapping { name, rules, keep }| ClusterMapping {
            name,
            rules: (!keep).then_some(rules),
        };
        let mappings: Vec<_> = mappings.map(mapping).collect();
        let names: Vec<_> = mappings.iter().map(|m| m.name.clone()).collect();
        let replaced = self
            .services
            .images
            .replace_cluster_mappings(mappings)
            .await;
        let refused = replaced.map_err(|e| Status::internal(crate::one_line(&e)))?;
        let results = names.into_iter().zip(refused);
        let results = results.map(|(name, refused)| v1::ImageMappingResult {
            name,
            error: refused.unwrap_or_default(),
        });
        Ok(results.collect())
    }
}
