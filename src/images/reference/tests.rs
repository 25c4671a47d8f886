//! Names and how they are taken apart.
//!
//! Invariant: what is accepted can be written and read again.
//! Failure: refusals leave out secrets.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn name(text: &str) -> Name {
    match Reference::parse(text) {
        Ok(Reference::Named(name)) => name,
        other => panic!("{text}: {other:?}"),
    }
}

#[rstest]
#[case::short("debian-12", "debian-12", "debian-12:latest")]
#[case::short_tagged("debian:12", "debian", "debian:12")]
#[case::host(
    "example.org/x/a.qcow2",
    "example.org/x/a.qcow2",
    "example.org/x/a.qcow2:latest"
)]
#[case::port(
    "localhost:8080/a.img",
    "localhost:8080/a.img",
    "localhost:8080/a.img:latest"
)]
#[case::port_and_tag("h:80/a.img:v1.2-x", "h:80/a.img", "h:80/a.img:v1.2-x")]
#[case::upper_case(
    "h.org/Fedora_39.qcow2",
    "h.org/Fedora_39.qcow2",
    "h.org/Fedora_39.qcow2:latest"
)]
#[case::v6("[::1]:80/a.img:t", "[::1]:80/a.img", "[::1]:80/a.img:t")]
#[case::url(
    "https://h.org/a.img",
    "https://h.org/a.img",
    "https://h.org/a.img:latest"
)]
#[case::url_port("http://h:80/a/b:t", "http://h:80/a/b", "http://h:80/a/b:t")]
#[case::routed("vmlet.dev/h:80/a", "vmlet.dev/h:80/a", "vmlet.dev/h:80/a:latest")]
fn names_are_taken_apart(#[case] text: &str, #[case] repository: &str, #[case] whole: &str) {
    let name = name(text);
    assert_eq!(name.repository(), repository);
    assert_eq!(name.to_string(), whole);
}

#[rstest]
#[case("vmlet.dev/debian", "debian")]
#[case("virtlet.cloud/example.org/a.img", "example.org/a.img")]
#[case("example.org/vmlet.dev/a", "example.org/vmlet.dev/a")]
fn a_routing_prefix_is_not_part_of_the_place(#[case] text: &str, #[case] bare: &str) {
    assert_eq!(name(text).bare(), bare);
}

#[test]
fn a_digest_beats_the_tag_beside_it() {
    let name = name(&format!("h.org/a.img:t@sha256:{HEX}"));
    assert_eq!(name.to_string(), format!("h.org/a.img@sha256:{HEX}"));
    assert_eq!(name.digest(), Digest::from_hex(HEX).ok());
}

#[test]
fn a_file_may_be_named_by_its_sha512() {
    let text = format!("h.org/a.img@sha512:{HEX}{HEX}");
    let name = name(&text);
    assert_eq!(name.to_string(), text);
    assert_eq!(name.digest(), None, "the store knows files by SHA-256");
    assert_eq!(
        name.checksum().map(|c| c.to_string()),
        Some(format!("sha512:{HEX}{HEX}"))
    );
}

#[rstest]
#[case(HEX.to_owned())]
#[case(format!("sha256:{HEX}"))]
fn ids_are_recognised(#[case] text: String) {
    let id = Digest::from_hex(HEX).unwrap();
    assert_eq!(Reference::parse(&text).unwrap(), Reference::Id(id));
}

#[rstest]
#[case::empty("", "is empty")]
#[case::long(&"a".repeat(1025), "is longer")]
#[case::long_segment(&"a".repeat(256), "has a path segment of more")]
#[case::scheme("ftp://h.org/a", "has a scheme")]
#[case::query("h.org/a?token=hush", "has a query")]
#[case::fragment("h.org/a#hush", "has a query")]
#[case::credentials("http://me:hush@h.org/a", "has credentials")]
#[case::slash_in_credentials("http://me:hu/sh@h.org/a", "has credentials")]
#[case::odd_digest("h.org/hush@md5:00", "has a digest that is not")]
#[case::short_digest("h.org/a@sha256:00", "has a malformed digest")]
#[case::short_sha512(&format!("h.org/a@sha512:{HEX}"), "has a malformed digest")]
#[case::no_path("http://h.org", "has no path")]
#[case::empty_segment("h.org//a", "has an empty")]
#[case::end("h.org/a/", "has an empty")]
#[case::start("/a", "has an empty")]
#[case::up("h.org/../a", "has a dot")]
#[case::here("h.org/./a", "has a dot")]
#[case::escape("h.org/%2e%2e/a", "has characters")]
#[case::space("h.org/a b", "has characters")]
#[case::control("h.org/a\n", "has characters")]
#[case::not_ascii("h.org/ä", "has characters")]
#[case::tag("h.org/a:-x", "has a malformed tag")]
#[case::empty_tag("h.org/a:", "has a malformed tag")]
#[case::long_tag(&format!("a:{}", "t".repeat(129)), "has a malformed tag")]
#[case::port("h.org:0/a", "has a port")]
#[case::large_port("h.org:65536/a", "has a port")]
#[case::odd_port("h.org:8x/a", "has a malformed port")]
#[case::empty_host("http:///a", "has a malformed host")]
#[case::open_v6("[::1/a", "has a malformed host")]
#[case::odd_v6("http://[::g]/a", "has a malformed IPv6")]
fn what_is_no_name_is_refused(#[case] text: &str, #[case] expected: &str) {
    let Err(Error::InvalidName { name, reason }) = Reference::parse(text) else {
        panic!("accepted");
    };
    assert!(reason.starts_with(expected), "{reason}");
    assert!(!name.contains("sh@") && !name.contains("token"), "{name}");
    assert!(name.len() <= 512 && !name.contains('\n'));
}

#[rstest]
#[case("0123456789ab", Some("0123456789ab"))]
#[case("sha256:0123456789ab", Some("0123456789ab"))]
#[case("0123456789a", None)]
#[case("0123456789AB", None)]
#[case("debian-12-x86", None)]
fn a_shortened_id_has_twelve_digits_or_more(#[case] text: &str, #[case] digits: Option<&str>) {
    assert_eq!(Reference::id_prefix(text), digits);
}

#[test]
fn a_name_has_room_for_the_tag_that_it_gets() {
    let of = |length: usize| format!("h/{}", "a/".repeat(600))[..length].to_owned();
    let longest = name(&of(1017));
    assert_eq!(longest.to_string().len(), 1024);
    assert_eq!(name(&longest.to_string()), longest);
    assert!(Reference::parse(&of(1019)).is_err());
}

proptest! {
    #[test]
    fn what_is_accepted_survives_being_written(text in "(https?://)?[a-zA-Z0-9.:/@~_\\[\\]-]{1,40}") {
        if let Ok(Reference::Named(name)) = Reference::parse(&text) {
            prop_assert_eq!(Reference::parse(&name.to_string()).unwrap(), Reference::Named(name));
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = Reference::parse(&text);
    }
}
