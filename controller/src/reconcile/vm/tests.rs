//! The reconciler against an API server in memory: one test for each branch of each workflow, by
//! its name.
//!
//! Invariant: the double keeps the API's rules for versions, preconditions, finalizers, field
//! owners and sizes, so that a write which the real server would refuse is refused here, too.
//! Failure: the name of a test states which branch it is about.

#![allow(
    clippy::needless_pass_by_value,
    reason = "tests write values where they are used"
)]

mod api;
mod apply;
mod back_off;
mod backup_claim_rows;
mod backup_deletion_rows;
mod backup_rows;
mod backup_schedule_rows;
mod bench;
mod bounds;
mod cache_rows;
mod claim_freeze_rows;
mod claim_snapshot_rows;
mod clone_rows;
mod clone_running_rows;
mod config_rows;
mod count;
mod create_rows;
mod data_volume_rows;
mod delete_rows;
mod disk_backup_rows;
mod edit_rows;
mod firmware_rows;
mod given_up_rows;
mod group_rows;
mod handover;
mod image_rows;
mod image_update_rows;
mod left_disk_rows;
mod memory_snapshot_rows;
mod network_rows;
mod normal_rows;
mod power_rows;
mod pre_pull_rows;
mod probe_rows;
mod promotion_online_rows;
mod promotion_rows;
mod quota_rows;
mod reconcile_rows;
mod replica_claim_rows;
mod replica_set_rows;
mod requests;
mod restart_rows;
mod revert_rows;
mod root_claim_revert_rows;
mod root_claim_rows;
mod root_disk_rows;
mod saved_rows;
mod scenarios;
mod simulation;
mod snapshot_lag_rows;
mod snapshot_outage_rows;
mod snapshot_rows;
mod starts;
mod state;
mod status_rows;
mod update_rows;
mod word_rows;
