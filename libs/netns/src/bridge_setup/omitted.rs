//! What plugins left in a namespace and no guest gets, in words.
//!
//! A guest gets the addresses of its links and the plain routes of the main table. Plugins for
//! policy routing leave more: rules, routes of other tables, addresses elsewhere.
//!
//! Invariant: nothing is changed; each sentence is short, and what does not fit is counted. Routes
//! that the kernel made for addresses do not count.
//! Failure: the kernel's error.

use std::net::IpAddr;

use super::{Error, LinkRecord};
use crate::netlink::{Link, LinkKind, Netlink, Route, SCOPE_GLOBAL};

/// Things that one sentence names.
const MOST: usize = 6;

/// A sentence for each kind of thing that the guest with these links does not get. To be called
/// before [`super::apply`].
///
/// # Errors
/// When the kernel does not list what is there.
pub async fn omitted(net: &impl Netlink, records: &[LinkRecord]) -> Result<Vec<String>, Error> {
    let mut routes = Vec::new();
    let mut addresses = Vec::new();
    for record in records {
        let link = &record.link;
        let other = record
            .routes
            .iter()
            .filter(|r| r.table != Route::MAIN_TABLE);
        routes.extend(other.map(|route| in_words(route, link)));
        let local = record.addresses.iter().filter(|a| a.scope != SCOPE_GLOBAL);
        addresses.extend(local.map(|a| format!("{} on {link}, not of global scope", a.net)));
    }
    for link in net.links().await? {
        if records.iter().any(|record| record.link == link.name) {
            continue;
        }
        let name = format!("{:?}", link.name);
        let found = net.addresses(link.index).await?;
        let found = found.iter().filter(|a| !is_usual(&link, a.net.addr()));
        addresses.extend(found.map(|a| format!("{} on {name}", a.net)));
        let found = net.routes(link.index).await?;
        let found = found
            .iter()
            .filter(|r| r.protocol != Route::PROTOCOL_KERNEL);
        routes.extend(found.map(|route| in_words(route, &name)));
    }
    routes.extend(net.special_routes().await?);
    let rules = net.rules().await?;
    let rules = rules
        .iter()
        .map(|rule| format!("priority {} to table {}", rule.priority, rule.table))
        .collect();
    let kinds = [
        ("policy routing rules of the pod's network", rules),
        ("routes that are none of the main table on a NIC", routes),
        ("addresses that a NIC cannot have", addresses),
    ];
    Ok(kinds
        .into_iter()
        .filter_map(|(what, found)| sentence(what, &found))
        .collect())
}

fn in_words(route: &Route, link: &str) -> String {
    let Route { dst, table, .. } = route;
    match route.gateway {
        Some(gateway) => format!("{dst} via {gateway} on {link} in table {table}"),
        None => format!("{dst} on {link} in table {table}"),
    }
}

/// Whether every namespace has the address.
fn is_usual(link: &Link, address: IpAddr) -> bool {
    link.kind == LinkKind::Loopback && address.is_loopback()
}

fn sentence(what: &str, found: &[String]) -> Option<String> {
    if found.is_empty() {
        return None;
    }
    let named: Vec<&str> = found.iter().take(MOST).map(String::as_str).collect();
    let named = named.join(", ");
    let more = match found.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "{what} do not reach the guest: {named}{more}; configure them in the guest"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge_setup::survey;
    use crate::netlink::Rule;
    use crate::netlink::fake::Fake;

    fn route(dst: &str, gateway: Option<&str>, table: u32, protocol: u8) -> Route {
        Route {
            dst: dst.parse().unwrap(),
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            source: None,
            metric: 0,
            scope: 0,
            protocol,
            table,
            onlink: false,
        }
    }

    #[tokio::test]
    async fn an_ordinary_network_has_nothing_that_a_guest_does_not_get() {
        let fake = Fake::new();
        let kernel = route(
            "10.1.0.0/24",
            None,
            Route::MAIN_TABLE,
            Route::PROTOCOL_KERNEL,
        );
        let default = route("0.0.0.0/0", Some("10.1.0.1"), Route::MAIN_TABLE, 3);
        fake.add("eth0", LinkKind::Veth, &["10.1.0.5/24"], &[kernel, default]);
        let records = survey(&fake).await.unwrap();
        assert_eq!(omitted(&fake, &records).await.unwrap(), [""; 0]);
    }

    #[tokio::test]
    async fn what_is_outside_of_the_main_table_and_the_links_is_named() {
        let fake = Fake::new();
        let policy = route("0.0.0.0/0", Some("10.2.0.1"), 100, 3);
        fake.add("eth0", LinkKind::Veth, &["10.1.0.5/24"], &[]);
        fake.add("net1", LinkKind::Veth, &["10.2.0.5/24"], &[policy]);
        let onward = route("192.0.2.0/24", None, Route::MAIN_TABLE, 3);
        fake.add("tunl0", LinkKind::Tunnel, &["192.0.2.7/32"], &[onward]);
        fake.rules.lock().unwrap().push(Rule {
            priority: 1000,
            table: 100,
        });
        let special = "blackhole 198.51.100.0/24 in table 254".to_owned();
        fake.special.lock().unwrap().push(special);
        let records = survey(&fake).await.unwrap();
        let text = omitted(&fake, &records).await.unwrap().join("\n");
        for part in [
            "priority 1000 to table 100",
            "0.0.0.0/0 via 10.2.0.1 on net1 in table 100",
            "192.0.2.0/24 on \"tunl0\" in table 254",
            "blackhole 198.51.100.0/24",
            "192.0.2.7/32 on \"tunl0\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("10.1.0.5"), "{text}");
    }

    #[test]
    fn a_sentence_counts_what_it_does_not_name() {
        let found: Vec<String> = (0..9).map(|n| n.to_string()).collect();
        let text = sentence("routes", &found).unwrap();
        assert!(text.contains("0, 1, 2, 3, 4, 5 and 3 more;"), "{text}");
        assert_eq!(sentence("routes", &[]), None);
    }
}
