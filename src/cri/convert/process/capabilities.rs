//! Capabilities of a process.
//!
//! Invariant: the default set is that of containerd; what is added and dropped applies to it, and
//! what is added wins, as `ALL` with exceptions requires.
//! Failure: [`Invalid`] for a name that Linux does not have.

use std::collections::BTreeSet;
use std::str::FromStr;

use caps::Capability;
use cri_proto::v1;

use crate::cri::convert::{Invalid, Result};

const FIELD: &str = "config.linux.security_context.capabilities";
const ALL: &str = "ALL";

/// What a container has without a request.
const DEFAULT: [Capability; 14] = [
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_FSETID,
    Capability::CAP_FOWNER,
    Capability::CAP_MKNOD,
    Capability::CAP_NET_RAW,
    Capability::CAP_SETGID,
    Capability::CAP_SETUID,
    Capability::CAP_SETFCAP,
    Capability::CAP_SETPCAP,
    Capability::CAP_NET_BIND_SERVICE,
    Capability::CAP_SYS_CHROOT,
    Capability::CAP_KILL,
    Capability::CAP_AUDIT_WRITE,
];

/// The numbers of all capabilities, and of the ambient ones.
pub(super) fn sets(given: &v1::Capability) -> Result<(Vec<u32>, Vec<u32>)> {
    let (adds_all, added) = named("add_capabilities", &given.add_capabilities)?;
    let (drops_all, dropped) = named("drop_capabilities", &given.drop_capabilities)?;
    let (_, ambient) = named("add_ambient_capabilities", &given.add_ambient_capabilities)?;
    let mut set: BTreeSet<u32> = match (adds_all, drops_all) {
        (true, _) => caps::all().into_iter().map(number).collect(),
        (false, true) => BTreeSet::new(),
        (false, false) => DEFAULT.into_iter().map(number).collect(),
    };
    set.retain(|number| !dropped.contains(number));
    set.extend(&added);
    set.extend(&ambient);
    Ok((set.into_iter().collect(), ambient.into_iter().collect()))
}

/// Whether all are named, and the numbers of those that are.
fn named(list: &str, names: &[String]) -> Result<(bool, BTreeSet<u32>)> {
    let is_all = |name: &&String| name.eq_ignore_ascii_case(ALL);
    let all = names.iter().any(|name| is_all(&name));
    let others = names.iter().filter(|name| !is_all(name));
    let numbers = others.map(|name| {
        let upper = name.to_ascii_uppercase();
        let full = if upper.starts_with("CAP_") {
            upper
        } else {
            format!("CAP_{upper}")
        };
        let known = Capability::from_str(&full);
        known.map(number).map_err(|_| {
            let reason = format!("{full:.40} is no capability of Linux");
            Invalid::new(format!("{FIELD}.{list}"), reason)
        })
    });
    Ok((all, numbers.collect::<Result<_>>()?))
}

fn number(capability: Capability) -> u32 {
    u32::from(capability.index())
}
