//! The targets of the fuzzer, compiled by the stable compiler and without the fuzzer: `fuzz` itself is no
//! member of the workspace.
//!
//! Invariant: each check has a target that compiles and runs the check.
//! Failure: the compiler's, or the panic of a check.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unused_attributes,
    reason = "a test; a target says itself that it has no `main`"
)]

extern crate self as libfuzzer_sys;

use std::path::Path;

#[path = "../../../fuzz/targets/agent_replies.rs"]
mod agent_replies;
#[path = "../../../fuzz/targets/channels.rs"]
mod channels;
#[path = "../../../fuzz/targets/cri_requests.rs"]
mod cri_requests;
#[path = "../../../fuzz/targets/dhcp4.rs"]
mod dhcp4;
#[path = "../../../fuzz/targets/dhcp6.rs"]
mod dhcp6;
#[path = "../../../fuzz/targets/disks.rs"]
mod disks;
#[path = "../../../fuzz/targets/guest.rs"]
mod guest;
#[path = "../../../fuzz/targets/guest_data.rs"]
mod guest_data;
#[path = "../../../fuzz/targets/guest_facts.rs"]
mod guest_facts;
#[path = "../../../fuzz/targets/guest_info.rs"]
mod guest_info;
#[path = "../../../fuzz/targets/image_layers.rs"]
mod image_layers;
#[path = "../../../fuzz/targets/image_manifests.rs"]
mod image_manifests;
#[path = "../../../fuzz/targets/image_names.rs"]
mod image_names;
#[path = "../../../fuzz/targets/ipv6_frames.rs"]
mod ipv6_frames;
#[path = "../../../fuzz/targets/mapping_rules.rs"]
mod mapping_rules;
#[path = "../../../fuzz/targets/proxy_fields.rs"]
mod proxy_fields;
#[path = "../../../fuzz/targets/proxy_frames.rs"]
mod proxy_frames;
#[path = "../../../fuzz/targets/requests.rs"]
mod requests;
#[path = "../../../fuzz/targets/seed_images.rs"]
mod seed_images;
#[path = "../../../fuzz/targets/sizes.rs"]
mod sizes;
#[path = "../../../fuzz/targets/spdy_frames.rs"]
mod spdy_frames;
#[path = "../../../fuzz/targets/spdy_session.rs"]
mod spdy_session;

/// In the place of libFuzzer's macro of this name.
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: &[u8]| $body:expr) => {
        pub(super) fn run($input: &[u8]) {
            $body
        }
    };
}

const TARGETS: &[(&str, fuzzchecks::Check)] = &[
    ("agent_replies", agent_replies::run),
    ("channels", channels::run),
    ("cri_requests", cri_requests::run),
    ("dhcp4", dhcp4::run),
    ("dhcp6", dhcp6::run),
    ("disks", disks::run),
    ("guest", guest::run),
    ("guest_data", guest_data::run),
    ("guest_facts", guest_facts::run),
    ("guest_info", guest_info::run),
    ("image_layers", image_layers::run),
    ("image_manifests", image_manifests::run),
    ("image_names", image_names::run),
    ("ipv6_frames", ipv6_frames::run),
    ("mapping_rules", mapping_rules::run),
    ("proxy_fields", proxy_fields::run),
    ("proxy_frames", proxy_frames::run),
    ("requests", requests::run),
    ("seed_images", seed_images::run),
    ("sizes", sizes::run),
    ("spdy_frames", spdy_frames::run),
    ("spdy_session", spdy_session::run),
];

#[test]
fn each_target_runs_on_an_input_of_its_corpus() {
    let checks = fuzzchecks::CHECKS.iter().map(|(name, _)| *name);
    let targets = TARGETS.iter().map(|(name, _)| *name);
    assert_eq!(targets.collect::<Vec<_>>(), checks.collect::<Vec<_>>());
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in TARGETS {
        let mut inputs = std::fs::read_dir(corpus.join(name)).unwrap();
        let input = inputs.next().expect("an input").unwrap().path();
        target(&std::fs::read(input).unwrap());
    }
}

/// A target that cargo does not know is never fuzzed.
#[test]
fn each_target_is_in_the_manifest() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/Cargo.toml");
    let manifest = std::fs::read_to_string(manifest).unwrap();
    for (name, _) in TARGETS {
        let path = format!("name = \"{name}\"\npath = \"targets/{name}.rs\"\n");
        assert!(manifest.contains(&path), "{name}");
    }
    assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
}
