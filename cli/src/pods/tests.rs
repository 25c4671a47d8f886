//! Look-up by name and id.
//!
//! Invariant: what the user types is matched against names first.
//! Failure: none.

use cri_proto::v1::PodSandboxMetadata;

use super::*;

fn sandbox(id: &str, namespace: &str, name: &str, created_at: i64) -> PodSandbox {
    PodSandbox {
        id: id.into(),
        metadata: Some(PodSandboxMetadata {
            name: name.into(),
            namespace: namespace.into(),
            ..Default::default()
        }),
        created_at,
        ..Default::default()
    }
}

fn container(id: &str, sandbox: &str, state: ContainerState, created_at: i64) -> Container {
    Container {
        id: id.into(),
        pod_sandbox_id: sandbox.into(),
        state: state.into(),
        created_at,
        ..Default::default()
    }
}

fn pods() -> Vec<Pod> {
    join(
        vec![
            sandbox("aaaa1", "default", "web", 1),
            sandbox("aaaa2", "other", "web", 2),
            sandbox("bbbb1", "default", "twice", 3),
            sandbox("bbbb2", "default", "twice", 4),
            sandbox("cccc1", "default", "aaaa", 5),
        ],
        vec![
            container("dddd1", "aaaa1", ContainerState::ContainerExited, 1),
            container("dddd2", "aaaa1", ContainerState::ContainerRunning, 2),
        ],
    )
}

fn selected(wanted: &str, namespace: &str) -> Result<String, SelectError> {
    select(pods(), wanted, namespace).map(|pod| pod.id().to_owned())
}

#[test]
fn a_name_is_resolved_in_its_namespace() {
    assert_eq!(selected("web", "default").unwrap(), "aaaa1");
    assert_eq!(selected("web", "other").unwrap(), "aaaa2");
    assert!(matches!(
        selected("web", "third"),
        Err(SelectError::Unknown(..))
    ));
}

#[test]
fn an_id_prefix_finds_the_pod_in_any_namespace() {
    assert_eq!(selected("aaaa2", "default").unwrap(), "aaaa2");
    assert_eq!(selected("dddd1", "third").unwrap(), "aaaa1");
    assert_eq!(selected("cc", "third").unwrap(), "cccc1");
}

#[test]
fn a_name_wins_over_an_id_that_begins_alike() {
    assert_eq!(selected("aaaa", "default").unwrap(), "cccc1");
}

#[test]
fn a_doubtful_name_lists_the_candidates() {
    let error = selected("twice", "default").unwrap_err().to_string();
    assert_eq!(
        error,
        "\"twice\" may be any of these, name one by its id:\n  bbbb2  default/twice  Ready\n  \
         bbbb1  default/twice  Ready"
    );
    assert!(matches!(
        selected("aaaa", "third"),
        Err(SelectError::Ambiguous(..))
    ));
    assert!(matches!(
        selected("", "default"),
        Err(SelectError::Unknown(..))
    ));
}

#[test]
fn the_newest_container_gives_the_state() {
    let pod = select(pods(), "web", "default").unwrap();
    assert_eq!(
        (pod.state(), pod.container().unwrap().id.as_str()),
        ("Running", "dddd2")
    );
    assert_eq!(pod.running().count(), 1);
}
