//! Tests with single node stacks, without Kubernetes; [`e2e::Stack`] starts them.
//!
//! Invariant: one program, so that the harness and its libraries are linked once. A test starts
//! what it needs and stops it; it depends on no other test.
//! Failure: see each module.

mod backup_exports;
mod backups;
mod backups_bucket;
mod block;
mod crictl;
mod crictl_commands;
mod debian;
mod disks;
mod doctor;
mod events;
mod exec;
mod exports;
mod faults;
mod file_disks;
mod full_disk;
mod guest_agent;
mod hung_volume;
mod ipv6;
mod isolation;
mod kubelet_needs;
mod linked_disk;
mod lost_shares;
mod machine;
mod many_stops;
mod memory_snapshots;
mod network;
mod nine_p;
mod node_address;
mod node_api;
mod node_crashes;
mod own_kvm;
mod planted_leaks;
mod power_loss;
mod process_refusals;
mod process_surroundings;
mod process_volumes;
mod processes;
mod promotion;
mod reboot;
mod refusals;
mod registries;
mod resize;
mod shares;
mod snapshot_exports;
mod snapshots;
mod stats;
mod storm;
mod streaming;
mod survival;
mod sysprep;
mod uefi;
mod versions;
