//! Kernel settings of single links, written from inside their namespace.
//!
//! Invariant: a setting that the kernel does not have (no IPv6 compiled in, say) needs no change.
//! Failure: other write errors name the file.

use std::io;
use std::path::PathBuf;

/// A setting that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write {path}")]
pub struct Error {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// A setting of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// Whether the namespace itself speaks IPv6 on the link.
    Ipv6(bool),
    /// Whether the namespace itself takes addresses and routes from IPv6 router advertisements.
    RouterAdvertisements(bool),
    /// Whether IPv4 packets must come from where replies would go.
    ReversePathFilter(bool),
    /// Whether ARP requests for addresses of other links are answered.
    ArpForOthers(bool),
    /// Whether what crosses a bridge of the namespace passes iptables as if it were routed. Not of
    /// a link but of the namespace.
    BridgeFirewall(bool),
}

impl Setting {
    /// What must exist for the setting to make sense, the files below it, and what to write.
    fn place(self, link: &str) -> (&'static str, Vec<String>, &'static str) {
        let value = |on: bool| if on { "1" } else { "0" };
        let one = |name: &str| vec![format!("conf/{link}/{name}")];
        match self {
            Self::Ipv6(on) => ("ipv6", one("disable_ipv6"), value(!on)),
            Self::RouterAdvertisements(on) => ("ipv6", one("accept_ra"), value(on)),
            Self::ReversePathFilter(on) => ("ipv4", one("rp_filter"), value(on)),
            Self::ArpForOthers(on) => ("ipv4", one("arp_ignore"), value(!on)),
            Self::BridgeFirewall(on) => {
                let files = ["ip", "ip6", "arp"].map(|t| format!("bridge-nf-call-{t}tables"));
                ("bridge", files.to_vec(), value(on))
            }
        }
    }
}

/// Writes `setting` of `link` in the namespace of the calling thread. `all` is every link.
pub(crate) fn write(link: &str, setting: Setting) -> Result<(), Error> {
    let (family, files, value) = setting.place(link);
    let base = PathBuf::from("/proc/sys/net").join(family);
    for file in files {
        let path = base.join(file);
        match std::fs::write(&path, value) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && !base.exists() => {}
            Err(source) => return Err(Error { path, source }),
            Ok(()) => {}
        }
    }
    Ok(())
}
