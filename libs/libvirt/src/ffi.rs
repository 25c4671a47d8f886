//! The few functions of libvirt that the `virt` crate does not bind.
//!
//! Invariant: this module and its children hold the crate's only `unsafe`; C never owns memory of
//! ours and never gets a pointer to any.
//! Failure: libvirt's own error, taken on the thread that made the call.
#![allow(
    unsafe_code,
    reason = "calls into C; every block states why its obligations hold"
)]

mod block_jobs;
mod callbacks;
mod disk_errors;
mod domain;
mod snapshot;
mod stats;

pub(crate) use block_jobs::{block_job, commit, end_block_job, pull};
pub(crate) use callbacks::{Signal, Subscription};
pub(crate) use disk_errors::failed_disks;
pub(crate) use domain::{abort_job, save, set_agent_timeout, state};
pub(crate) use snapshot::{switch_disks, switch_with_memory};
pub(crate) use stats::all as all_stats;
