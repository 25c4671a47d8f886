//! The guest's DHCPv6 client: a distribution package, downloaded and unpacked, never installed,
//! because on installation it would run on this machine. (busybox has a client, but distributions
//! build it without.)
//!
//! Invariant: of the packages, only the program and its own library are copied.
//! Failure: names the file that the packages lack.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{fresh_folder, kernel};
use crate::{packages, run};

const PACKAGES: [&str; 2] = ["wide-dhcpv6-client", "libfl2"];
/// Where a file is in the guest, and where in the packages.
const FILES: [(&str, &str); 2] = [
    ("bin/dhcp6c", "usr/sbin/dhcp6c"),
    ("lib/libfl.so.2", "usr/lib/x86_64-linux-gnu/libfl.so.2"),
];

/// Downloads and unpacks the client below `work`; returns files with their places in the guest.
pub(super) fn fetch(work: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let folder = fresh_folder(work.join("packages"))?;
    let names = PACKAGES.map(ToOwned::to_owned);
    if let Err(error) = kernel::download(&folder, &names) {
        // The lists may be older than the archive: refresh them and try again.
        packages::update().context(error)?;
        kernel::download(&folder, &names)?;
    }
    let root = fresh_folder(work.join("client"))?;
    for package in kernel::files(&folder)? {
        run::output(run::command("dpkg-deb").arg("-x").args([&package, &root]))?;
    }
    let found = |(place, file): (&'static str, &str)| {
        let file = root.join(file);
        let whole = file
            .canonicalize()
            .with_context(|| format!("find {}", file.display()))?;
        Ok((place, whole))
    };
    FILES.into_iter().map(found).collect()
}
