//! Prefixes of names: what follows one in a name, and how good a match it is.
//!
//! Invariant: a prefix ends at a `/`; what only routes a name to this node makes a match neither longer nor shorter.
//! Failure: none here.

use crate::images::reference::without_routing;

/// How good a match a prefix is.
pub(super) type Rank = (usize, u8);

/// What follows the prefix in a name, and how good a match it is: a longer prefix is better, of
/// equal ones the one that is spelled as in the name.
pub(super) fn below<'a>(prefix: &str, given: &'a str, bare: &'a str) -> Option<(Rank, &'a str)> {
    let folder = folder(prefix);
    let short = without_routing(&folder);
    let rank = |rank| move |rest| ((short.len(), rank), rest);
    let as_spelled = given.strip_prefix(&folder).map(rank(2));
    as_spelled
        .or_else(|| bare.strip_prefix(&folder).map(rank(1)))
        .or_else(|| match short {
            // A rule for all names below `vmlet.dev/` leaves names alone that say where they are.
            "" => Some(bare).filter(|bare| !is_location(bare)).map(rank(0)),
            short => bare.strip_prefix(short).map(rank(0)),
        })
}

/// Whether a prefix is that of all names, less what only routes them here.
pub(super) fn is_for_all(prefix: &str) -> bool {
    without_routing(&folder(prefix)).is_empty()
}

pub(super) fn folder(prefix: &str) -> String {
    format!("{}/", prefix.trim_end_matches('/'))
}

/// Whether a name contains its location: a host with a dot or a port, and a path.
pub(super) fn is_location(name: &str) -> bool {
    if name.contains("://") {
        return true;
    }
    let host = name.split_once('/').map(|(host, _)| host);
    host.is_some_and(|host| host == "localhost" || host.contains(['.', ':']))
}
