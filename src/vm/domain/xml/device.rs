//! The small devices that every guest has.
//!
//! Invariant: nothing here needs anything of the host but `/dev/urandom`.
//! Failure: none.

use serde::Serialize;

/// Seconds between two looks at the guest's memory figures.
const STATS_PERIOD: u8 = 10;

#[derive(Debug, Serialize)]
pub(super) struct Controller {
    #[serde(rename = "@type")]
    kind: &'static str,
    #[serde(rename = "@model")]
    model: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct Rng {
    #[serde(rename = "@model")]
    model: &'static str,
    backend: Backend,
}

#[derive(Debug, Serialize)]
struct Backend {
    #[serde(rename = "@model")]
    model: &'static str,
    #[serde(rename = "$text")]
    device: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct Balloon {
    #[serde(rename = "@model")]
    model: &'static str,
    #[serde(rename = "@freePageReporting")]
    free_page_reporting: &'static str,
    stats: Stats,
}

#[derive(Debug, Serialize)]
struct Stats {
    #[serde(rename = "@period")]
    period: u8,
}

impl Controller {
    /// libvirt adds a USB controller unless the XML forbids it.
    pub(super) const fn no_usb() -> Self {
        Self {
            kind: "usb",
            model: "none",
        }
    }
}

impl Default for Rng {
    fn default() -> Self {
        Self {
            model: "virtio",
            backend: Backend {
                model: "random",
                device: "/dev/urandom",
            },
        }
    }
}

impl Default for Balloon {
    /// Memory that the guest frees goes back to the host by itself; the size is never changed.
    fn default() -> Self {
        Self {
            model: "virtio",
            free_page_reporting: "on",
            stats: Stats {
                period: STATS_PERIOD,
            },
        }
    }
}
