//! The commands of a boot that mount the shares.
//!
//! Invariant: a share that is mounted is not mounted again.
//! Failure: none here; in the guest a share that cannot be mounted is named on the console, and in a
//! file that the guest's agent reports.

use super::vendor::quoted;
use crate::vm::shares::{NINE_P, Protocol, Share};

/// A line for each share.
pub(super) fn mounts(shares: &[Share]) -> String {
    let mut text = String::new();
    for share in shares.iter().filter(|share| !share.is_of_pod()) {
        let access = if share.read_only { "ro" } else { "rw" };
        let tag = &share.tag;
        let path = quoted(&share.path);
        text += &match share.protocol {
            Protocol::Virtiofs => format!("share {tag} {access} {path}\n"),
            Protocol::NineP => format!("share {tag} {access},{NINE_P} {path} 9p\n"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_mounted_at_the_path_of_the_pod() {
        let share = |tag: &str, path: &str, read_only| Share {
            tag: tag.to_owned(),
            host_path: "/var/lib/kubelet/x".to_owned(),
            path: path.to_owned(),
            read_only,
            protocol: Protocol::Virtiofs,
        };
        let shares = [
            Share::of_pod(),
            share("vmlet-0", "/srv/it's", false),
            share("vmlet-1", "/conf", true),
        ];
        let lines = "share vmlet-0 rw '/srv/it'\\''s'\nshare vmlet-1 ro '/conf'\n";
        assert_eq!(mounts(&shares), lines);
        let by_9p = Share {
            protocol: Protocol::NineP,
            ..share("vmlet-2", "/srv", true)
        };
        let line = "share vmlet-2 ro,trans=virtio,version=9p2000.L,msize=131072 '/srv' 9p\n";
        assert_eq!(mounts(&[by_9p]), line);
        assert_eq!(mounts(&[]), "");
    }
}
