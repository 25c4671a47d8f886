//! What the guest reports about itself.
//!
//! Invariant: a report fits into a message: lists and texts are bounded.
//! Failure: none; what cannot be read is empty or 0.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use guestapi::{
    FILE_SYSTEMS, Facts, FileSystem, INTERFACES, Interface, PUBLISHED, REPORT_TEXT as TEXT,
};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrLike;
use nix::sys::statvfs::statvfs;
use nix::sys::utsname::uname;

/// Where programs of the guest publish values.
const PUBLISHED_FILE: &str = "/run/vmlet/guestinfo";
/// Where the boot script of the cloud-init disk names the shares that it could not mount, and the
/// files that it could not write.
const NOT_MOUNTED_FILE: &str = "/run/vmlet/not-mounted";
/// Nanoseconds of a tick, in which the kernel counts CPU time for programs.
const TICK: u64 = 10_000_000;

/// The report of this guest.
pub(crate) fn facts() -> Facts {
    let proc = Path::new("/proc");
    let names = uname().ok();
    let name = |name: Option<&std::ffi::OsStr>| text(&name.unwrap_or_default().to_string_lossy());
    let os = os_release(Path::new("/"));
    let of_os = |key| os.get(key).map(|value| text(value)).unwrap_or_default();
    let memory = read(&proc.join("meminfo"));
    let memory = meminfo(&memory);
    let bytes = |key| memory.get(key).copied().unwrap_or_default();
    let mut all = mounts(&read(&proc.join("self/mounts")));
    all.retain(|mount| mount.is_reported());
    Facts {
        host_name: name(names.as_ref().map(nix::sys::utsname::UtsName::nodename)),
        os_id: of_os("ID"),
        os_name: of_os("PRETTY_NAME"),
        os_version: of_os("VERSION_ID"),
        kernel: name(names.as_ref().map(nix::sys::utsname::UtsName::release)),
        uptime: uptime(&read(&proc.join("uptime"))),
        cpu: busy(&read(&proc.join("stat"))),
        memory: bytes("MemTotal"),
        memory_available: bytes("MemAvailable"),
        swap: bytes("SwapTotal"),
        swap_free: bytes("SwapFree"),
        file_systems: all.iter().filter_map(usage).take(FILE_SYSTEMS).collect(),
        interfaces: interfaces(),
        published: beginning(Path::new(PUBLISHED_FILE)).into(),
        not_mounted: beginning(Path::new(NOT_MOUNTED_FILE)).into(),
    }
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    device: String,
    pub(crate) point: String,
    pub(crate) kind: String,
}

impl Mount {
    /// Whether it is on a block device.
    fn is_on_disk(&self) -> bool {
        self.device.starts_with("/dev/")
    }

    fn is_reported(&self) -> bool {
        self.is_on_disk() || self.point == "/"
    }
}

/// The mounts of a table such as `/proc/self/mounts`, each device once, at its first mount.
pub(crate) fn mounts(table: &str) -> Vec<Mount> {
    let mut all: Vec<Mount> = Vec::new();
    for line in table.lines() {
        let mut fields = line.split(' ').map(unescaped);
        let Some(device) = fields.next() else {
            continue;
        };
        let Some(point) = fields.next() else {
            continue;
        };
        let Some(kind) = fields.next() else {
            continue;
        };
        let mount = Mount {
            device,
            point,
            kind,
        };
        // A later mount over the root is the root.
        all.retain(|other| other.point != mount.point);
        if !mount.is_on_disk() || all.iter().all(|other| other.device != mount.device) {
            all.push(mount);
        }
    }
    all
}

/// Spaces, tabs, newlines and backslashes are in octal.
pub(crate) fn unescaped(field: &str) -> String {
    let escapes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let mut plain = field.to_owned();
    for (escape, character) in escapes {
        plain = plain.replace(escape, character);
    }
    plain
}

fn usage(mount: &Mount) -> Option<FileSystem> {
    let found = statvfs(mount.point.as_str()).ok()?;
    let unit = found.fragment_size();
    let blocks = found.blocks();
    let free = found.blocks_free();
    Some(FileSystem {
        mount_point: text(&mount.point),
        device: text(&mount.device),
        kind: text(&mount.kind),
        size: blocks.saturating_mul(unit),
        used: blocks.saturating_sub(free).saturating_mul(unit),
        inodes: found.files(),
        inodes_used: found.files().saturating_sub(found.files_free()),
    })
}

fn interfaces() -> Vec<Interface> {
    let mut all: BTreeMap<String, Interface> = BTreeMap::new();
    for found in getifaddrs().into_iter().flatten() {
        if found.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            continue;
        }
        let name = text(&found.interface_name);
        let of_name = all.entry(name.clone()).or_default();
        of_name.name = name;
        let link = found
            .address
            .as_ref()
            .and_then(|address| address.as_link_addr()?.addr());
        if let Some(mac) = link {
            let octets = mac.map(|octet| format!("{octet:02x}"));
            of_name.mac = octets.join(":");
        }
        if let Some(address) = address(&found)
            && of_name.addresses.len() < INTERFACES
        {
            of_name.addresses.push(address);
        }
    }
    all.into_values().take(INTERFACES).collect()
}

/// With the length of its prefix.
fn address(found: &InterfaceAddress) -> Option<String> {
    let address = found.address.as_ref()?;
    let mask = found.netmask.as_ref()?;
    if let Some(ip) = address.as_sockaddr_in()
        && let Some(mask) = mask.as_sockaddr_in()
    {
        let prefix = u32::from(mask.ip()).leading_ones();
        return Some(format!("{}/{prefix}", ip.ip()));
    }
    let ip = address.as_sockaddr_in6()?;
    let mask = mask.as_sockaddr_in6()?;
    let prefix = u128::from(mask.ip()).leading_ones();
    (address.len() > 0).then(|| format!("{}/{prefix}", ip.ip()))
}

fn beginning(file: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(file) {
        // Of a file that cannot be read, what was read of it counts.
        let _ = file.take(PUBLISHED as u64).read_to_end(&mut bytes);
    }
    bytes
}

fn read(file: &Path) -> String {
    let bytes = fs::read(file).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn text(text: &str) -> String {
    let mut end = text.len().min(TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// The values of `os-release`.
fn os_release(root: &Path) -> BTreeMap<String, String> {
    let files = ["etc/os-release", "usr/lib/os-release"].map(|file| read(&root.join(file)));
    let file = files.into_iter().find(|file| !file.is_empty());
    let file = file.unwrap_or_default();
    let pairs = file.lines().filter_map(|line| line.split_once('='));
    pairs
        .map(|(key, value)| (key.to_owned(), value.trim_matches(['"', '\'']).to_owned()))
        .collect()
}

/// The figures of `/proc/meminfo`, in bytes, by name.
fn meminfo(file: &str) -> BTreeMap<&str, u64> {
    let of_line = |line| {
        let (name, value): (&str, &str) = str::split_once(line, ':')?;
        let kibibytes: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
        Some((name, kibibytes.saturating_mul(1024)))
    };
    file.lines().filter_map(of_line).collect()
}

/// Nanoseconds since the boot.
fn uptime(file: &str) -> u64 {
    let seconds = file
        .split(' ')
        .next()
        .and_then(|seconds| seconds.parse().ok());
    let uptime = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    uptime.map_or(0, |uptime| {
        u64::try_from(uptime.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// Nanoseconds that the processors were neither idle nor waiting for input.
fn busy(file: &str) -> u64 {
    let line = file.lines().find_map(|line| line.strip_prefix("cpu "));
    let ticks = line.unwrap_or_default().split_whitespace();
    let ticks: Vec<u64> = ticks.map(|ticks| ticks.parse().unwrap_or(0)).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
    let busy = ticks
        .iter()
        .enumerate()
        .take(8)
        .filter(|(field, _)| !matches!(field, 3 | 4));
    busy.fold(0_u64, |sum, (_, ticks)| sum.saturating_add(*ticks))
        .saturating_mul(TICK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let stat = "cpu  100 2 30 4000 50 6 7 8 90 10\ncpu0 1 1\n";
        assert_eq!(busy(stat), 153 * TICK);
        assert_eq!(uptime("12.50 3.00\n"), 12_500_000_000);
        assert_eq!(uptime(""), 0);
        let memory = meminfo("MemTotal:     2048 kB\nHugePages_Total:  3\n");
        assert_eq!(memory, BTreeMap::from([("MemTotal", 2 << 20)]));
    }

    #[test]
    fn each_device_is_reported_once_and_a_later_root_replaces_the_first() {
        let table = "rootfs / rootfs rw 0 0\n/dev/vda1 / ext4 rw,relatime 0 0\n\
                     proc /proc proc rw 0 0\n/dev/vdb /mnt/a\\040b iso9660 ro 0 0\n\
                     /dev/vda1 /var/lib ext4 rw 0 0\nodd\n";
        let found = mounts(table);
        let found: Vec<_> = found
            .iter()
            .filter(|mount| mount.is_reported())
            .map(|mount| (mount.point.as_str(), mount.kind.as_str()))
            .collect();
        assert_eq!(found, [("/", "ext4"), ("/mnt/a b", "iso9660")]);
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = facts();
        assert!(
            !facts.kernel.is_empty() && facts.uptime > 0 && facts.cpu > 0,
            "{facts:?}"
        );
        assert!(facts.memory_available > 0 && facts.memory_available < facts.memory);
        let root = facts.file_systems.iter().find(|fs| fs.mount_point == "/");
        assert!(
            root.is_some_and(|root| root.used > 0 && root.used <= root.size),
            "{facts:?}"
        );
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(text(&"ä".repeat(TEXT)).len(), TEXT);
        assert_eq!(text(&format!("a{}", "ä".repeat(TEXT))).len(), TEXT - 1);
    }
}
