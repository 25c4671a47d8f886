//! Tests against API servers without nodes; [`e2e::Control`] starts them.
//!
//! Invariant: one program, so that the harness and its libraries are linked once. A test starts
//! what it needs and stops it; it depends on no other test.
//! Failure: see each module.

mod agent;
mod agent_facts;
mod autoscalers;
mod backups;
mod clones;
mod data_volumes;
mod deletions;
mod disk_quota;
mod docs;
mod edits;
mod floods;
mod golden_images;
mod grouped;
mod groups;
mod helm;
mod hostile;
mod image_caches;
mod kinds;
mod late_kinds;
mod leader;
mod manifests;
mod node_configs;
mod node_labels;
mod orphans;
mod played;
mod priority;
mod protected;
mod recovered;
mod replica_sets;
mod requests;
mod rules;
mod snapshots;
mod spellings;
mod status;
mod trial;
mod tried;
mod uninstall;
mod users;
mod vmletctl;
