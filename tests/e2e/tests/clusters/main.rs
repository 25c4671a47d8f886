//! Tests with whole Kubernetes clusters whose kubelets call `vmlet-criproxy`; [`e2e::Cluster`]
//! starts them.
//!
//! Invariant: one program, so that the harness and its libraries are linked once. A test starts
//! what it needs and stops it; it depends on no other test.
//! Failure: see each module.

mod absent_node;
mod agent;
mod agent_life;
mod api_away;
mod backups;
mod basic;
mod chaos;
mod claim_snapshots;
mod claims;
mod class_edits;
mod clones;
mod conversation;
mod critest;
mod deploy;
mod events;
mod failures;
mod golden_files;
mod golden_images;
mod groups;
mod guest_data;
mod guest_reboot;
mod hooks;
mod image_caches;
mod image_gc;
mod images;
mod import;
mod left_disk;
mod logs;
mod lost_node;
mod machines;
mod mappings;
mod namespaces;
mod network;
mod node_configs;
mod node_probes;
mod node_programs;
mod placement;
mod plugins;
mod pods;
mod probes;
mod processes;
mod promotion;
mod proxy;
mod reach;
mod reboot;
mod recovery;
mod registries;
mod replica_sets;
mod resize;
mod resources;
mod restarts;
mod saved_devices;
mod sessions;
mod snapshots;
mod storm;
mod thirty;
mod traces;
mod unsupported;
mod versions;
mod volumes;
mod workloads;
