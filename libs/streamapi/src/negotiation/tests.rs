//! Requests as clients send them.
//!
//! Invariant: none.
//! Failure: the assertion names the request.

use rstest::rstest;

use super::*;

const KEY: (&str, &str) = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
const VERSION: &str = "x-stream-protocol-version";

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(*name, value.parse().unwrap());
    }
    map
}

fn websocket(offered: &[&'static str]) -> HeaderMap {
    let mut pairs = vec![
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        KEY,
    ];
    pairs.extend(offered.iter().map(|one| ("sec-websocket-protocol", *one)));
    headers(&pairs)
}

#[rstest]
#[case::newest(&["v4.channel.k8s.io"], "v4.channel.k8s.io")]
#[case::order(&["v5.channel.k8s.io, v3.channel.k8s.io", "v4.channel.k8s.io"], "v3.channel.k8s.io")]
#[case::oldest(&["channel.k8s.io"], "channel.k8s.io")]
fn the_first_version_of_the_client_that_is_known_counts(
    #[case] offered: &[&'static str],
    #[case] expected: &str,
) {
    let mut pairs = vec![
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "spdy/3.1"),
    ];
    pairs.extend(offered.iter().map(|version| (VERSION, *version)));
    let found = negotiate(&Method::POST, &headers(&pairs), Service::RemoteCommand).unwrap();
    assert_eq!(
        (found.version, found.transport),
        (expected, Transport::Spdy)
    );
}

#[rstest]
#[case::newest(&["v5.channel.k8s.io"], "v5.channel.k8s.io", true, Results::Json)]
#[case::order(
    &["v6.channel.k8s.io, v4.base64.channel.k8s.io", "v5.channel.k8s.io"],
    "v4.base64.channel.k8s.io", false, Results::Json
)]
#[case::oldest(&["base64.channel.k8s.io"], "base64.channel.k8s.io", false, Results::Text)]
#[case::none(&[], "", false, Results::Text)]
fn a_websocket_has_channels(
    #[case] offered: &[&'static str],
    #[case] expected: &str,
    #[case] closes: bool,
    #[case] results: Results,
) {
    let found = negotiate(&Method::GET, &websocket(offered), Service::RemoteCommand).unwrap();
    let Transport::Channels(Channels { has_close, .. }) = found.transport else {
        panic!("{found:?}");
    };
    assert_eq!(
        (found.version, has_close, found.results),
        (expected, closes, results)
    );
    assert!(found.has_resize);
}

#[test]
fn port_forward_has_a_tunnel_and_channels() {
    let found = |offered: &'static str| {
        let found = negotiate(&Method::GET, &websocket(&[offered]), Service::PortForward);
        found
            .map(|agreed| agreed.transport)
            .map_err(|refusal| refusal.status)
    };
    assert_eq!(found("SPDY/3.1+portforward.k8s.io"), Ok(Transport::Tunnel));
    for (version, closes) in [("v5.channel.k8s.io", true), ("v4.channel.k8s.io", false)] {
        let channels = Transport::Channels(Channels {
            coding: Coding::Binary,
            has_close: closes,
        });
        assert_eq!(found(version), Ok(channels), "{version}");
    }
    assert_eq!(found("v6.channel.k8s.io"), Err(StatusCode::FORBIDDEN));
}

#[rstest]
#[case::no_upgrade(Method::GET, &[(VERSION, "v4.channel.k8s.io")], StatusCode::BAD_REQUEST)]
#[case::no_key(
    Method::GET,
    &[("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")],
    StatusCode::BAD_REQUEST
)]
#[case::old_websocket(
    Method::GET,
    &[("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "8"), KEY],
    StatusCode::BAD_REQUEST
)]
#[case::posted_websocket(
    Method::POST,
    &[("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13"), KEY],
    StatusCode::METHOD_NOT_ALLOWED
)]
#[case::no_version(
    Method::GET,
    &[("connection", "upgrade"), ("upgrade", "SPDY/3.1"), (VERSION, " ")],
    StatusCode::BAD_REQUEST
)]
#[case::other_version(
    Method::GET,
    &[("connection", "upgrade"), ("upgrade", "SPDY/3.1"), (VERSION, "v5.channel.k8s.io")],
    StatusCode::FORBIDDEN
)]
#[case::method(Method::PUT, &[], StatusCode::METHOD_NOT_ALLOWED)]
fn other_requests_are_refused(
    #[case] method: Method,
    #[case] pairs: &[(&'static str, &'static str)],
    #[case] expected: StatusCode,
) {
    let refused = negotiate(&method, &headers(pairs), Service::RemoteCommand).unwrap_err();
    assert_eq!(refused.status, expected);
}

#[test]
fn a_path_has_a_kind_and_a_token() {
    assert_eq!(path("/exec/abc"), Some(("exec", "abc")));
    for odd in ["/exec/", "/exec", "exec/a", "/exec/a/b", "/"] {
        assert_eq!(path(odd), None, "{odd}");
    }
}

#[test]
fn ports_are_in_the_query() {
    assert_eq!(ports("port=80&x=1&port=443"), Ok(vec![80, 443]));
    assert_eq!(ports("port=80,443%2C8080"), Ok(vec![80, 443, 8080]));
    assert_eq!(ports(""), Ok(Vec::new()));
    let many = vec!["port=1"; MOST_PORTS + 1].join("&");
    for odd in ["port=0", "port=", "port=65536", "port=80,", many.as_str()] {
        assert_eq!(
            ports(odd).unwrap_err().status,
            StatusCode::BAD_REQUEST,
            "{odd}"
        );
    }
}
