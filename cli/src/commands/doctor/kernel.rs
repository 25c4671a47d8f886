//! Features of the running kernel, found without changing it.
//!
//! Invariant: a feature counts as present when the kernel holds it now, as available when a module
//! can provide it, and as unknown when the node does not show it.
//! Failure: files that cannot be read leave the answer open.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Whether the kernel has a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Feature {
    Present,
    /// A module that is loaded on demand.
    Loadable,
    Absent,
    Unknown,
}

/// Whether a device serves us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Device {
    Usable,
    Missing,
    Denied,
    Broken(String),
}

/// Files in which a kernel lists its features.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// Loaded modules, one a line.
    modules: Option<String>,
    /// Symbols of the kernel and of loaded modules.
    symbols: Option<String>,
    /// Modules that are part of the kernel, by path.
    builtin: Option<String>,
    /// Modules that can be loaded, by path.
    loadable: Option<String>,
}

impl Sources {
    pub(super) fn read() -> Self {
        let read = |path: &str| -> Option<String> {
            fs::read(path)
                .ok()
                .map(|b| String::from_utf8_lossy(&b).into_owned())
        };
        let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
        let module = |file: &str| read(&format!("/lib/modules/{}/{file}", release.trim()));
        Self {
            modules: read("/proc/modules"),
            symbols: read("/proc/kallsyms"),
            builtin: module("modules.builtin"),
            loadable: module("modules.dep"),
        }
    }

    /// `symbol` is a function that only this feature brings.
    pub(super) fn feature(&self, module: &str, symbol: &str) -> Feature {
        let word = |text: &Option<String>, word: &str, column: usize| {
            text.as_ref().is_some_and(|t| {
                t.lines()
                    .any(|l| l.split_whitespace().nth(column) == Some(word))
            })
        };
        let path = |text: &Option<String>| {
            let file = format!("/{module}.ko");
            text.as_ref()
                .is_some_and(|t| t.lines().any(|l| l.contains(&file)))
        };
        if word(&self.modules, module, 0) || word(&self.symbols, symbol, 2) || path(&self.builtin) {
            Feature::Present
        } else if path(&self.loadable) {
            Feature::Loadable
        } else if self.builtin.is_some() && self.loadable.is_some() {
            Feature::Absent
        } else {
            Feature::Unknown
        }
    }
}

/// Opens a device for reading and writing, and nothing else.
pub(super) fn device(path: &Path) -> Device {
    match fs::File::options().read(true).write(true).open(path) {
        Ok(_) => Device::Usable,
        Err(error) => match error.kind() {
            ErrorKind::NotFound => Device::Missing,
            ErrorKind::PermissionDenied => Device::Denied,
            _ => Device::Broken(error.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_found_loaded_built_in_or_loadable() {
        let sources = Sources {
            modules: Some("veth 45056 0 - Live 0x0\nveth_x 1 0 - Live 0x0\n".into()),
            symbols: Some("0000000000000000 T nft_do_chain\t[nf_tables]\n0 t br_x\n".into()),
            builtin: Some("kernel/drivers/net/tun.ko\n".into()),
            loadable: Some("kernel/net/bridge/bridge.ko.xz: kernel/net/llc/llc.ko.xz\n".into()),
        };
        assert_eq!(sources.feature("veth", "?"), Feature::Present);
        assert_eq!(
            sources.feature("nf_tables", "nft_do_chain"),
            Feature::Present
        );
        assert_eq!(sources.feature("tun", "?"), Feature::Present);
        assert_eq!(
            sources.feature("bridge", "br_add_bridge"),
            Feature::Loadable
        );
        assert_eq!(sources.feature("vxlan", "?"), Feature::Absent);
        assert_eq!(Sources::default().feature("vxlan", "?"), Feature::Unknown);
    }

    #[test]
    fn devices_are_classified_by_the_error_of_open() {
        assert_eq!(device(Path::new("/dev/null")), Device::Usable);
        assert_eq!(device(Path::new("/dev/no-such-device")), Device::Missing);
        assert!(matches!(device(Path::new("/dev")), Device::Broken(_)));
    }
}
