//! The upgrade of a request, and the results of commands, in the protocols of Kubernetes.
//!
//! Invariant: the version is the first one of the client's list that this server has.
//! Failure: [`Refusal`], the answer to the request.

use http::{HeaderMap, Method, StatusCode, header};
use serde_json::{Value, json};

/// Header with the versions of the protocol above SPDY.
pub(super) const VERSION: &str = "x-stream-protocol-version";
/// Header of a refusal with the versions that this server has.
pub(super) const ACCEPTED: &str = "x-accepted-stream-protocol-versions";
/// The value of `Upgrade`.
pub(super) const SPDY: &str = "SPDY/3.1";

/// Versions of `exec`, the newest first.
pub(super) const REMOTE_COMMAND: &[&str] = &[
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
];
/// Versions of `port-forward`.
pub(super) const PORT_FORWARD: &[&str] = &["portforward.k8s.io"];

/// Whether clients of this version send the size of their terminal.
pub(super) fn has_resize(version: &str) -> bool {
    REMOTE_COMMAND[..2].contains(&version)
}

/// A request that is no upgrade of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) message: &'static str,
}

const fn refused<T>(status: StatusCode, message: &'static str) -> Result<T, Refusal> {
    Err(Refusal { status, message })
}

/// Kind and token of the path `/KIND/TOKEN`.
pub(super) fn path(path: &str) -> Option<(&str, &str)> {
    let (kind, token) = path.strip_prefix('/')?.split_once('/')?;
    (!token.is_empty() && !token.contains('/')).then_some((kind, token))
}

/// The version that both sides have.
pub(super) fn negotiate(
    method: &Method,
    headers: &HeaderMap,
    known: &[&'static str],
) -> Result<&'static str, Refusal> {
    if method != Method::GET && method != Method::POST {
        return refused(StatusCode::METHOD_NOT_ALLOWED, "use GET or POST");
    }
    let has = |name, token: &str| items(headers, name).any(|item| item.eq_ignore_ascii_case(token));
    if !has(header::CONNECTION, "upgrade") || !has(header::UPGRADE, SPDY) {
        return refused(
            StatusCode::BAD_REQUEST,
            "this server needs an upgrade to SPDY/3.1",
        );
    }
    let name = header::HeaderName::from_static(VERSION);
    let mut offered = items(headers, name).peekable();
    if offered.peek().is_none() {
        return refused(
            StatusCode::BAD_REQUEST,
            "the header X-Stream-Protocol-Version is required",
        );
    }
    let common = offered.find_map(|version| known.iter().find(|own| **own == version));
    match common {
        Some(version) => Ok(version),
        None => refused(
            StatusCode::FORBIDDEN,
            "this server has none of the offered versions of the streaming protocol",
        ),
    }
}

/// The items of all headers of a name: each value may be a list.
fn items(headers: &HeaderMap, name: header::HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

/// The result of a command for the error stream: JSON in version 4; in older versions text, and
/// nothing for success.
pub(super) fn result(version: &str, outcome: &Result<i32, String>) -> Vec<u8> {
    let is_json = version == REMOTE_COMMAND[0];
    match outcome {
        Ok(0) if is_json => status(&json!({ "status": "Success" })),
        Ok(0) => Vec::new(),
        Ok(code) => {
            let message = format!("command terminated with exit code {code}");
            if !is_json {
                return message.into_bytes();
            }
            status(&json!({
                "status": "Failure",
                "message": message,
                "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }))
        }
        Err(message) if is_json => status(&json!({
            "status": "Failure",
            "message": message,
            "reason": "InternalError",
            "details": { "causes": [{ "message": message }] },
            "code": 500,
        })),
        Err(message) => message.clone().into_bytes(),
    }
}

/// A `Status` object of Kubernetes.
fn status(fields: &Value) -> Vec<u8> {
    let mut object = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {} });
    if let (Some(object), Some(fields)) = (object.as_object_mut(), fields.as_object()) {
        object.extend(fields.clone());
    }
    object.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    #[rstest]
    #[case::newest(&["v4.channel.k8s.io"], "v4.channel.k8s.io")]
    #[case::order_of_the_client(&["v5.channel.k8s.io, v3.channel.k8s.io", "v4.channel.k8s.io"], "v3.channel.k8s.io")]
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
        let found = negotiate(&Method::POST, &headers(&pairs), REMOTE_COMMAND);
        assert_eq!(found, Ok(expected));
    }

    #[rstest]
    #[case::no_upgrade(Method::GET, &[(VERSION, "v4.channel.k8s.io")], StatusCode::BAD_REQUEST)]
    #[case::websocket(
        Method::GET,
        &[("connection", "upgrade"), ("upgrade", "websocket"), (VERSION, "v4.channel.k8s.io")],
        StatusCode::BAD_REQUEST
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
        let refused = negotiate(&method, &headers(pairs), REMOTE_COMMAND).unwrap_err();
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
    fn results_have_the_form_of_the_version() {
        let read = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).unwrap();
        let new = REMOTE_COMMAND[0];
        assert_eq!(read(result(new, &Ok(0)))["status"], "Success");
        let failed = read(result(new, &Ok(3)));
        assert_eq!(failed["reason"], "NonZeroExitCode");
        assert_eq!(failed["details"]["causes"][0]["message"], "3");
        assert_eq!(read(result(new, &Err("x".to_owned())))["code"], 500);
        assert_eq!(result("v3.channel.k8s.io", &Ok(0)), b"");
        assert_eq!(result("v3.channel.k8s.io", &Err("x".to_owned())), b"x");
    }
}
