use kube::core::Status;
use kube::{Client, Config};

use super::*;

/// A way by an API server that no test asks.
fn reach() -> Reach {
    // An error means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = Config::new("http://127.0.0.1:1".parse().unwrap());
    // The certificates of this computer take no part.
    config.root_cert = Some(Vec::new());
    Reach {
        cluster: Cluster {
            client: Client::try_from(config).unwrap(),
            namespace: "team".to_owned(),
            server: "127.0.0.1:1".to_owned(),
        },
        name: "web".to_owned(),
        answer: None,
        was_allowed: Arc::default(),
    }
}

fn answer(code: u16, message: &str) -> kube::Error {
    let status: Status = serde_json::from_value(serde_json::json!({
        "status": "Failure", "message": message, "code": code, "details": {"name": "web"},
    }))
    .unwrap();
    kube::Error::Api(Box::new(status))
}

#[tokio::test]
async fn a_pod_without_a_node_is_waited_for_and_a_bad_request_is_not() {
    let reach = reach();
    let unplaced = answer(400, "pod web does not have a host assigned");
    let unplaced = reach.refused(Line::Port, unplaced);
    assert!(matches!(unplaced, ReachError::Away { .. }), "{unplaced}");
    assert!(unplaced.is_passing());
    let bad = answer(400, "container x is not valid for pod web");
    let bad = reach.refused(Line::Console, bad);
    assert!(matches!(bad, ReachError::Refused { .. }), "{bad}");
    assert!(!bad.is_passing());
}

#[tokio::test]
async fn an_object_is_hidden_by_a_missing_right_alone() {
    let reach = reach();
    let seen = |code| reach.seen::<Pod>(Err(answer(code, "words")));
    assert!(matches!(seen(403), Ok(Seen::Hidden)));
    assert!(matches!(seen(404), Ok(Seen::Absent)));
    let passing = seen(503).unwrap_err();
    assert!(passing.is_passing(), "{passing}");
    let lasting = seen(401).unwrap_err();
    assert!(!lasting.is_passing(), "{lasting}");
}

#[test]
fn a_name_may_have_its_kind_before_it_and_is_no_option_and_no_path() {
    for word in [
        "web",
        "vm/web",
        "vmi/web",
        "pod/web",
        "virtualmachine.vmlet.dev/web",
    ] {
        assert_eq!(name(word).unwrap(), "web", "{word}");
    }
    for word in [
        "",
        "-oProxyCommand=x",
        "node/web",
        "../web",
        "a b",
        "vm/",
        "we\u{1b}b",
    ] {
        assert!(name(word).is_err(), "{word:?}");
    }
}

#[test]
fn a_console_waits_for_a_pod_and_not_for_a_right() {
    let namespace = || "default".to_owned();
    let name = || "web".to_owned();
    let gone = ReachError::NoPod {
        namespace: namespace(),
        name: name(),
    };
    assert!(gone.is_passing());
    let away = ReachError::Connect {
        name: name(),
        source: ClusterError::Unreachable("refused".to_owned()),
    };
    assert!(away.is_passing());
    let forbidden = ReachError::Forbidden {
        verb: Line::Console.verb(),
        resource: Line::Console.resource(),
        namespace: namespace(),
    };
    assert!(!forbidden.is_passing());
    let words = forbidden.to_string();
    assert!(
        words.contains("get and create on pods/attach in namespace default"),
        "{words}"
    );
}
