//! Checks of settings that depend on each other, and of ranges.
//!
//! Invariant: settings that pass can be used.
//! Failure: a sentence that names the keys.

use service::settings::Timespan;

use super::Config;

/// Longest path of a Unix socket that the kernel takes, in bytes.
const LONGEST_SOCKET: usize = 107;

/// The user IDs that machines may have begin here, and end before [`END_OF_UIDS`], from where on
/// helper programs have them.
const FIRST_UID: u32 = 65_536;
const END_OF_UIDS: u32 = crate::helper::FIRST_USER;

/// Minimum and maximum of all timeouts.
const TIMEOUTS: std::ops::RangeInclusive<Timespan> =
    Timespan::from_secs(1)..=Timespan::from_secs(86_400);

/// The most targets of backups.
const BACKUP_TARGETS: usize = 16;

/// Between a pull and the creation of a container an image has no user.
const SHORTEST_AGE: Timespan = Timespan::from_secs(300);

pub(super) fn check(config: &Config) -> Result<(), String> {
    timeouts(config)?;
    collection(config)?;
    uids(config)?;
    shares(config)?;
    streaming(config)?;
    sockets(config)?;
    backup(config)?;
    tracing(config, cfg!(feature = "otel"))
}

/// Each is a feature in the node's lease.
fn backup(config: &Config) -> Result<(), String> {
    let targets = &config.backup.targets;
    if targets.len() > BACKUP_TARGETS {
        let count = targets.len();
        return Err(format!(
            "backup.targets has {count} entries, at most {BACKUP_TARGETS} are allowed"
        ));
    }
    for (i, target) in targets.iter().enumerate() {
        if targets[..i]
            .iter()
            .any(|other| other.name() == target.name())
        {
            let name = target.name();
            return Err(format!("backup.targets has the name {name} twice"));
        }
    }
    Ok(())
}

/// `has_traces`: whether this build can export them.
pub(super) fn tracing(config: &Config, has_traces: bool) -> Result<(), String> {
    let rate = config.tracing.sampling_rate_per_million;
    if rate > 1_000_000 {
        return Err(format!(
            "tracing.sampling_rate_per_million is {rate}, must be from 0 to 1000000"
        ));
    }
    match &config.tracing.endpoint {
        None if rate > 0 => Err(format!(
            "tracing.sampling_rate_per_million is {rate}, but there are no traces without \
             tracing.endpoint: set both"
        )),
        Some(endpoint) if !has_traces => Err(format!(
            "tracing.endpoint is {endpoint}, but this build has no OpenTelemetry support; build \
             with --features otel"
        )),
        _ => Ok(()),
    }
}

/// kubelet gets the address in a URL, to which it connects.
fn streaming(config: &Config) -> Result<(), String> {
    let address = config.streaming.listen;
    if address.ip().is_unspecified() {
        return Err(format!(
            "streaming.listen is {address}, which no client can connect to: use 127.0.0.1:0"
        ));
    }
    let files = [&config.streaming.tls_cert, &config.streaming.tls_key].map(|file| file.is_some());
    match files {
        [true, true] => Ok(()),
        [false, false] if address.ip().is_loopback() => Ok(()),
        [false, false] => Err(format!(
            "streaming.listen is {address}, which other hosts reach: set streaming.tls_cert and \
             streaming.tls_key, or use 127.0.0.1:0"
        )),
        _ => Err("streaming.tls_cert and streaming.tls_key belong together: set both".to_owned()),
    }
}

fn timeouts(config: &Config) -> Result<(), String> {
    let libvirt = &config.libvirt;
    let images = &config.images;
    let all = [
        ("libvirt.call_timeout", libvirt.call_timeout),
        ("libvirt.start_timeout", libvirt.start_timeout),
        ("network.timeout", config.network.timeout),
        ("images.stall_timeout", images.stall_timeout),
        ("shutdown.timeout", config.shutdown.timeout),
    ];
    match all.iter().find(|(_, timeout)| !TIMEOUTS.contains(timeout)) {
        None => Ok(()),
        Some((key, timeout)) => Err(format!(
            "{key} is {timeout}, must be from {} to {}",
            TIMEOUTS.start(),
            TIMEOUTS.end()
        )),
    }
}

fn collection(config: &Config) -> Result<(), String> {
    let images = &config.images;
    let high = images.high_water_percent;
    let low = images.low_water_percent;
    if high > 100 {
        return Err(format!(
            "images.high_water_percent is {high}, must be from 0 to 100"
        ));
    }
    if high > 0 && low >= high {
        return Err(format!(
            "images.low_water_percent is {low}, must be below images.high_water_percent, which is \
             {high}"
        ));
    }
    let age = images.max_unused_age;
    if !age.is_zero() && age < SHORTEST_AGE {
        return Err(format!(
            "images.max_unused_age is {age}, must be 0s or at least {SHORTEST_AGE}"
        ));
    }
    Ok(())
}

fn shares(config: &Config) -> Result<(), String> {
    let all = [
        ("shares.uid", config.shares.uid),
        ("shares.gid", config.shares.gid),
    ];
    // The kernel takes the highest number for "no change".
    match all.iter().find(|(_, id)| [0, u32::MAX].contains(id)) {
        None => Ok(()),
        Some((key, id)) => Err(format!(
            "{key} is {id}: processes that serve directories to guests never run as root"
        )),
    }
}

/// Checks the user IDs of machines: below them, distributions number accounts and services.
fn uids(config: &Config) -> Result<(), String> {
    let first = config.vm.first_uid;
    let count = config.vm.uid_count;
    let last = first.checked_add(count);
    if count > 0 && !(FIRST_UID <= first && last.is_some_and(|last| last <= END_OF_UIDS)) {
        return Err(format!(
            "vm.first_uid is {first} and vm.uid_count {count}: user IDs of machines lie between \
             {FIRST_UID} and {END_OF_UIDS}"
        ));
    }
    Ok(())
}

fn sockets(config: &Config) -> Result<(), String> {
    let sockets = [
        ("listen", &config.listen),
        ("node.endpoint", &config.node.endpoint),
        (
            "network.tapmanager_socket",
            &config.network.tapmanager_socket,
        ),
        ("network.handoff_socket", &config.network.handoff_socket),
    ];
    for (i, (key, path)) in sockets.iter().enumerate() {
        if path.as_os_str().len() > LONGEST_SOCKET {
            return Err(format!(
                "{key} is longer than {LONGEST_SOCKET} bytes: {path}"
            ));
        }
        if let Some((other, _)) = sockets[..i].iter().find(|(_, p)| p == path) {
            return Err(format!("{other} and {key} are the same socket: {path}"));
        }
    }
    Ok(())
}
