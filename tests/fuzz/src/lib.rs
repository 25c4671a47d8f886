//! What must hold for any bytes that a client, a guest, an image server or a runtime sends.
//!
//! Each check takes one input of the fuzzer (`fuzz/targets`, `cargo xtask fuzz`); the tests of this
//! crate run them on the inputs in `fuzz/corpus`.
//!
//! Invariant: a check has no state: the same input has the same result.
//! Failure: a panic; the fuzzer keeps the input.

mod addresses;
mod agents;
mod convertible_disks;
mod cri;
mod disks;
mod guest;
mod images;
mod layers;
mod manifests;
mod proxy;
mod requests;
mod seeds;
mod session;
mod spdy_frames;

pub use addresses::{dhcp4, dhcp6, ipv6_frames};
pub use agents::{agent_replies, guest_facts, guest_info};
pub use cri::cri_requests;
pub use disks::disks;
pub use guest::guest;
pub use images::{image_names, mapping_rules};
pub use layers::image_layers;
pub use manifests::image_manifests;
pub use proxy::{proxy_fields, proxy_frames};
pub use requests::{channels, requests, sizes};
pub use seeds::{guest_data, seed_images};
pub use session::session;
pub use spdy_frames::spdy_frames;

/// A check.
pub type Check = fn(&[u8]);

/// All checks, by the names of their targets.
pub const CHECKS: &[(&str, Check)] = &[
    ("agent_replies", agent_replies),
    ("channels", channels),
    ("cri_requests", cri_requests),
    ("dhcp4", dhcp4),
    ("dhcp6", dhcp6),
    ("disks", disks),
    ("guest", guest),
    ("guest_data", guest_data),
    ("guest_facts", guest_facts),
    ("guest_info", guest_info),
    ("image_layers", image_layers),
    ("image_manifests", image_manifests),
    ("image_names", image_names),
    ("ipv6_frames", ipv6_frames),
    ("mapping_rules", mapping_rules),
    ("proxy_fields", proxy_fields),
    ("proxy_frames", proxy_frames),
    ("requests", requests),
    ("seed_images", seed_images),
    ("sizes", sizes),
    ("spdy_frames", spdy_frames),
    ("spdy_session", session),
];

/// The input in pieces: each has the length of one of its own bytes, so that the fuzzer chooses
/// where the network cuts.
fn pieces(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = input.split_first()?;
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        input = rest;
        Some(piece)
    })
}
