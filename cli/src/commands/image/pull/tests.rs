use clap::FromArgMatches as _;
use serde_json::json;

use super::*;

fn parsed(line: &str) -> Result<PullArgs, clap::Error> {
    let command = PullArgs::augment_args(clap::Command::new("pull"));
    let matches = command.try_get_matches_from(line.split(' '))?;
    PullArgs::from_arg_matches(&matches)
}

fn status(desired: u32, ready: u32, pulling: u32, failed: u32) -> PrePullStatus {
    PrePullStatus {
        observed_generation: 3,
        desired,
        ready,
        pulling,
        failed,
        message: "node n2: answered 404".to_owned(),
        ..PrePullStatus::default()
    }
}

#[test]
fn exactly_one_of_nodes_all_nodes_and_stop_is_needed() {
    let all = parsed("pull debian --all-nodes").unwrap();
    assert!(all.all_nodes && all.nodes.is_none() && !all.no_wait);
    let some = parsed("pull debian --nodes pool=db,zone=a --no-wait --scope cluster").unwrap();
    assert_eq!(some.scope, Some(Scope::Cluster));
    let labels = some.nodes.unwrap().0;
    assert_eq!(json!(labels), json!({ "pool": "db", "zone": "a" }));
    assert!(parsed("pull debian --stop").unwrap().stop);
    for line in [
        "pull debian",
        "pull --all-nodes",
        "pull debian --all-nodes --stop",
        "pull debian --all-nodes --nodes a=b",
        "pull debian --stop --no-wait",
        "pull debian --nodes pool",
    ] {
        assert!(parsed(line).is_err(), "{line}");
    }
}

#[test]
fn a_selector_has_labels_as_kubernetes_has_them() {
    for good in ["a=b", "a=", "example.com/pool=x_1.y", "a=b,c=d"] {
        assert!(selector(good).is_ok(), "{good}");
    }
    for bad in [
        "", "a", "=b", "a!=b", "a==b", "a in (b)", "a=b,", "a=b,a=c", "A/b/c=d", "a=-b", "a=b c",
    ] {
        assert!(selector(bad).is_err(), "{bad}");
    }
    let long = format!("a={}", "x".repeat(64));
    assert!(selector(&long).is_err());
}

#[test]
fn a_request_replaces_the_previous_one_of_the_same_object() {
    let request = |text: &str| Request::for_nodes(Some(&selector(text).unwrap()), false);
    let all = Request::for_nodes(None, false);
    let test = json!({ "op": "test", "path": "/metadata/uid", "value": "u" });
    let patch = all.patch("u", None).unwrap();
    let add = json!({ "op": "add", "path": "/spec/prePull", "value": {} });
    assert_eq!(patch, json!([test, add]));
    let Request::Pull(present) = request("a=b") else {
        unreachable!()
    };
    assert_eq!(request("a=b").patch("u", Some(&present)), None);
    let patch = request("a=c").patch("u", Some(&present)).unwrap();
    assert_eq!(patch[1]["value"], json!({ "nodeSelector": { "a": "c" } }));
    assert_eq!(Request::for_nodes(None, true).patch("u", None), None);
    let patch = Request::for_nodes(None, true)
        .patch("u", Some(&present))
        .unwrap();
    assert_eq!(patch[1], json!({ "op": "remove", "path": "/spec/prePull" }));
}

#[test]
fn the_wait_ends_when_all_nodes_have_the_image_or_none_pulls_any_more() {
    let of = |status: Option<PrePullStatus>| {
        let state = State {
            is_requested: true,
            status,
        };
        verdict("debian", 3, &state)
    };
    assert_eq!(of(None), Verdict::Wait);
    let mut old = status(2, 2, 0, 0);
    old.observed_generation = 2;
    assert_eq!(of(Some(old)), Verdict::Wait, "it is about another request");
    assert_eq!(of(Some(status(2, 2, 0, 0))), Verdict::Done);
    assert_eq!(of(Some(status(3, 1, 1, 1))), Verdict::Wait, "one pulls");
    assert_eq!(
        of(Some(status(3, 1, 0, 1))),
        Verdict::Wait,
        "one is to begin"
    );
    let Verdict::Failed(error) = of(Some(status(3, 2, 0, 1))) else {
        panic!("it failed")
    };
    let words = "1 of 3 nodes failed to pull image debian: node n2: answered 404";
    assert_eq!(error.to_string(), words);
    let Verdict::Failed(error) = of(Some(status(0, 0, 0, 0))) else {
        panic!("no node is desired")
    };
    assert!(matches!(error, PullError::None { .. }));
    // The request stays.
    let words = "`vmletctl image pull debian --stop` withdraws the request";
    assert!(error.to_string().ends_with(words), "{error}");
    let withdrawn = verdict("debian", 3, &State::default());
    assert!(matches!(
        withdrawn,
        Verdict::Failed(PullError::Withdrawn(_))
    ));
}

#[test]
fn a_line_says_how_far_the_nodes_are() {
    let percents = [("n3".to_owned(), 40), ("n4".to_owned(), 15)];
    assert_eq!(
        line(&status(5, 2, 2, 1), &percents),
        "2 of 5 nodes; pulling: n3 40%, n4 15%; 1 failed: node n2: answered 404"
    );
    assert_eq!(line(&status(5, 2, 2, 0), &[]), "2 of 5 nodes; 2 pulling");
    assert_eq!(line(&status(5, 2, 0, 0), &[]), "2 of 5 nodes");
    assert_eq!(nodes(&status(1, 1, 0, 0)), "is on 1 node");
    assert_eq!(
        unavailable(1),
        "1 node is not available and gets the image later"
    );
    assert_eq!(
        unavailable(2),
        "2 nodes are not available and get the image later"
    );
}
