//! The text of the packet filter.
//!
//! Invariant: a frame of a guest passes only if a rule allows it: a frame, or a part of one, that
//! cannot be read is dropped. Frames are checked before the bridge processes them, so no host,
//! neighbour or namespace, receives a forbidden frame.
//! Failure: none; names of links must be plain (see `bridge_setup`), the rest is numbers.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::TABLE;
use crate::mac::Mac;

/// The chain for parts of IPv6 packets. A first part must show what it is of: what follows it in
/// the frame need not be of the packet, and receivers would continue with the next part (RFC 7112,
/// RFC 6980).
const PARTS: &str = "  chain parts {
    ip6 nexthdr != 44 drop
    frag nexthdr { 0, 43, 44, 51, 60, 135, 139, 140 } drop
    frag frag-off 0 frag nexthdr 58 icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect } drop
  }
";

/// What a guest may claim to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// The MAC address of its NIC, these addresses, and the IPv6 link-local address that belongs to
    /// the MAC address.
    Own(Vec<IpAddr>),
    /// Anything: it routes or bridges for others, who may even be configured by it.
    Open,
}

/// The parts of one NIC that the rules name.
pub(crate) struct Port<'a> {
    pub(crate) link: &'a str,
    pub(crate) tap: &'a str,
    /// The guest's.
    pub(crate) mac: Mac,
    pub(crate) bridge_mac: Mac,
    pub(crate) guard: &'a Guard,
}

/// What is in force in the namespace already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// Nothing: the namespace is new. Rules that turn out to be there are an error.
    Nothing,
    /// Rules, or none. `nft` ends only when the kernel has removed the old ones, about 10 ms later, even
    /// where there were none.
    Rules,
}

/// The rules for these ports, and for them alone.
pub(crate) fn rules<'a>(before: Before, ports: impl Iterator<Item = Port<'a>>) -> String {
    let mut guards = String::new();
    let mut requests = String::new();
    let mut crossing = String::new();
    let mut input = String::new();
    let mut own = String::new();
    for (number, port) in ports.enumerate() {
        let Port { link, tap, .. } = port;
        let bridge_mac = port.bridge_mac;
        // Writing to a String cannot fail.
        if let Guard::Own(addresses) = port.guard {
            guards.push_str(&guard(number, port.mac, addresses));
            let _ = writeln!(requests, "    iifname \"{tap}\" jump guest{number}");
        }
        let _ = writeln!(
            requests,
            "    iifname \"{tap}\" ether type ip udp dport 67 meta pkttype set host ether daddr \
             set {bridge_mac} accept"
        );
        let _ = write!(
            crossing,
            "    oifname \"{link}\" udp dport {{ 67, 547 }} drop\n\
             \x20   oifname \"{link}\" icmpv6 type nd-router-solicit drop\n\
             \x20   iifname \"{link}\" udp dport {{ 68, 546 }} drop\n\
             \x20   iifname \"{link}\" icmpv6 type nd-router-advert drop\n"
        );
        let _ = write!(
            input,
            "    iifname \"{tap}\" ether type arp accept\n\
             \x20   iifname \"{tap}\" ether type ip udp dport 67 accept\n\
             \x20   iifname {{ \"{tap}\", \"{link}\" }} drop\n"
        );
        let _ = writeln!(own, "    oifname \"{link}\" drop");
    }
    let begin = match before {
        Before::Nothing => format!("create table bridge {TABLE}\n"),
        Before::Rules => format!("table bridge {TABLE}\ndelete table bridge {TABLE}\n"),
    };
    format!(
        "{begin}\
         table bridge {TABLE} {{\n{PARTS}{guards}\
         \x20 chain requests {{\n    type filter hook prerouting priority -300;\n{requests}  }}\n\
         \x20 chain crossing {{\n    type filter hook forward priority -200;\n{crossing}  }}\n\
         \x20 chain stack {{\n    type filter hook input priority -200;\n{input}  }}\n\
         \x20 chain own {{\n    type filter hook output priority -200;\n{own}  }}\n\
         }}\n"
    )
}

/// The chain that every frame of guest `number` passes. What it returns from may continue.
///
/// Frames of other kinds than ARP, IPv4 and IPv6 go nowhere: no VLAN tags, no spanning tree, no
/// LLDP.
fn guard(number: usize, mac: Mac, addresses: &[IpAddr]) -> String {
    let mut text = String::new();
    let _ = write!(
        text,
        "  chain udp{number} {{\n\
         \x20   ip frag-off & 0x1fff != 0 return\n\
         \x20   frag frag-off != 0 return\n\
         \x20   udp sport != {{ 67, 547 }} udp dport != {{ 68, 546 }} return\n\
         \x20   drop\n  }}\n"
    );
    let mut frames = String::new();
    let mut solicited = String::new();
    if let Some(own) = set(addresses.iter().filter(|ip| ip.is_ipv4()).copied()) {
        let _ = write!(
            text,
            "  chain arp{number} {{\n\
             \x20   arp htype 1 arp ptype ip arp hlen 6 arp plen 4 arp saddr ether {mac} arp saddr ip {own} return\n\
             \x20   arp htype 1 arp ptype ip arp hlen 6 arp plen 4 arp saddr ether {mac} arp saddr ip 0.0.0.0 arp operation request arp daddr ip {own} return\n\
             \x20   drop\n  }}\n"
        );
        let _ = write!(
            frames,
            "    ether type arp goto arp{number}\n\
             \x20   ether type ip ip saddr {own} meta l4proto udp goto udp{number}\n\
             \x20   ether type ip ip saddr {own} meta l4proto != udp return\n"
        );
    }
    // A guest without an address requests one; the request never leaves the pod.
    let _ = writeln!(
        frames,
        "    ether type ip ip saddr 0.0.0.0 udp sport 68 udp dport 67 return"
    );
    let link_local = IpAddr::V6(mac.link_local());
    let six = addresses.iter().filter(|ip| ip.is_ipv6()).copied();
    if let Some(own) = set(six.clone().chain([link_local]))
        && let Some(targets) = raw_set(six.chain([link_local]))
    {
        let _ = write!(
            text,
            "  chain icmp{number} {{\n\
             \x20   frag frag-off != 0 return\n\
             \x20   icmpv6 type nd-neighbor-advert @th,64,128 {targets} return\n\
             \x20   icmpv6 type != {{ nd-router-advert, nd-neighbor-advert, nd-redirect }} return\n\
             \x20   drop\n  }}\n"
        );
        let _ = write!(
            frames,
            "    ether type ip6 ip6 saddr {own} meta l4proto vmap {{ udp : goto udp{number}, icmpv6 : goto icmp{number} }}\n\
             \x20   ether type ip6 ip6 saddr {own} meta l4proto != {{ udp, icmpv6 }} return\n"
        );
        let _ = writeln!(
            solicited,
            "    ether type ip6 ip6 saddr :: icmpv6 type nd-neighbor-solicit @th,64,128 {targets} \
             return"
        );
    }
    // Guests choose other link-local addresses, too. They may ask us and join groups with them, no
    // more.
    let _ = write!(
        solicited,
        "    ether type ip6 ip6 saddr {{ ::, fe80::/10 }} icmpv6 type {{ nd-router-solicit, mld-listener-report, mld-listener-done, mld2-listener-report }} return\n\
         \x20   ether type ip6 ip6 saddr fe80::/10 udp sport 546 udp dport 547 return\n"
    );
    let _ = write!(
        text,
        "  chain guest{number} {{\n\
         \x20   ether saddr != {mac} drop\n\
         \x20   ether daddr & ff:ff:ff:ff:ff:f0 == 01:80:c2:00:00:00 drop\n\
         \x20   ether type ip6 exthdr frag exists jump parts\n\
         {frames}{solicited}    drop\n  }}\n"
    );
    text
}

/// `None` of no addresses, for which there is no notation.
fn set(addresses: impl Iterator<Item = IpAddr>) -> Option<String> {
    join(addresses.map(|ip| ip.to_string()))
}

/// The same for a place in a packet that has no name.
fn raw_set(addresses: impl Iterator<Item = IpAddr>) -> Option<String> {
    join(addresses.map(|ip| match ip {
        IpAddr::V4(ip) => format!("{:#x}", u32::from(ip)),
        IpAddr::V6(ip) => format!("{:#x}", u128::from(ip)),
    }))
}

fn join(mut words: impl Iterator<Item = String>) -> Option<String> {
    let mut text = format!("{{ {}", words.next()?);
    for word in words {
        text.push_str(", ");
        text.push_str(&word);
    }
    Some(text + " }")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bridge_setup::is_plain;

    const MAC: Mac = Mac::new([2, 0, 0, 0, 0, 1]);

    fn text(guard: &Guard) -> String {
        rules(
            Before::Rules,
            std::iter::once(Port {
                link: "eth0",
                tap: "vmtap0",
                mac: MAC,
                bridge_mac: Mac::new([2, 0, 0, 0, 0, 9]),
                guard,
            }),
        )
    }

    #[test]
    fn rules_name_each_port_in_each_chain() {
        let text = text(&Guard::Own(vec![[10, 1, 2, 3].into()]));
        assert!(text.contains("iifname \"vmtap0\" jump guest0"), "{text}");
        assert!(text.contains("ether daddr set 02:00:00:00:00:09"), "{text}");
        assert!(text.contains("arp saddr ip { 10.1.2.3 } return"), "{text}");
        assert!(text.contains("{ fe80::ff:fe00:1 }"), "{text}");
        assert_eq!(text.matches("oifname \"eth0\"").count(), 3, "{text}");
    }

    #[test]
    fn an_open_guest_is_not_judged_but_kept_from_the_namespace() {
        let text = text(&Guard::Open);
        assert!(!text.contains("guest0"), "{text}");
        assert!(text.contains("iifname { \"vmtap0\", \"eth0\" } drop"));
    }

    #[test]
    fn a_guest_without_ipv4_has_no_arp() {
        let text = text(&Guard::Own(vec![
            "fd00::5".parse().unwrap_or([0; 16].into()),
        ]));
        assert!(!text.contains("arp saddr"), "{text}");
        assert!(
            text.contains("0xfd000000000000000000000000000005"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn a_link_with_a_plain_name_is_only_a_word_in_quotes(
            name in prop_oneof!["[a-zA-Z0-9@._-]{1,15}", "[ -~\n]{1,15}"],
            tap in "vmtap[0-9]{1,3}",
            addresses in prop::collection::vec(any::<IpAddr>(), 0..4),
            is_open: bool,
        ) {
            prop_assume!(is_plain(&name));
            let guard = if is_open { Guard::Open } else { Guard::Own(addresses) };
            let of = |link: &str| rules(Before::Rules, std::iter::once(Port {
                link,
                tap: &tap,
                mac: MAC,
                bridge_mac: MAC,
                guard: &guard,
            }));
            // Another name changes nothing but the words in quotes.
            let text = of(&name);
            let neutral = of("\u{1}");
            let words: Vec<_> = text.split('"').collect();
            let others: Vec<_> = neutral.split('"').collect();
            prop_assert_eq!(words.len(), others.len());
            for (at, (word, other)) in words.iter().zip(&others).enumerate() {
                let expected = if *other == "\u{1}" { &name } else { *other };
                prop_assert_eq!(*word, expected);
                prop_assert!(at % 2 == 1 || !other.contains('\u{1}'), "not in quotes");
            }
            let count = |c: char| text.matches(c).count();
            prop_assert_eq!(count('{'), count('}'));
        }
    }
}
