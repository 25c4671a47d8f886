//! What the memory knows, forgets and answers, in one process and across restarts.
//!
//! Invariant: every expectation is one of kubelet's: an object must not vanish because its backend
//! does.
//! Failure: panics name the expectation that does not hold.

mod map;
mod recall;
mod state;

use std::time::Duration;

use bytes::Bytes;
use cri_proto::v1;
use prost::Message as _;
use tempfile::TempDir;

use super::*;

const VM: BackendIndex = BackendIndex(1);
const TAG: &str = "766d6c74";

pub(super) fn specs() -> Vec<BackendSpec> {
    let spec = |name: &str, id_suffix: Option<&str>| BackendSpec {
        name: name.into(),
        id_suffix: id_suffix.map(Into::into),
    };
    vec![spec("containerd", None), spec("vmlet", Some(TAG))]
}

pub(super) fn open(dir: &TempDir, boot: &str) -> Memory {
    Memory::open(dir.path(), &specs(), boot).unwrap()
}

/// A directory and its memory in the boot "boot-1".
fn fresh() -> (TempDir, Memory) {
    let dir = TempDir::new().unwrap();
    let memory = open(&dir, "boot-1");
    (dir, memory)
}

pub(super) fn flush(memory: &Memory) {
    assert!(
        memory.flush(Duration::from_secs(20)),
        "the writer does not come to an end"
    );
}

pub(super) fn sandbox(id: &str) -> v1::PodSandbox {
    v1::PodSandbox {
        id: id.into(),
        metadata: Some(v1::PodSandboxMetadata {
            name: "pod".into(),
            uid: format!("uid-{id}"),
            namespace: "default".into(),
            attempt: 0,
        }),
        ..Default::default()
    }
}

pub(super) fn sandboxes(ids: &[&str]) -> Bytes {
    let items = ids.iter().copied().map(sandbox).collect();
    v1::ListPodSandboxResponse { items }.encode_to_vec().into()
}

fn containers(entries: &[(&str, v1::ContainerState)]) -> Bytes {
    let containers = entries
        .iter()
        .map(|(id, state)| v1::Container {
            id: (*id).into(),
            state: (*state).into(),
            ..Default::default()
        })
        .collect();
    v1::ListContainersResponse { containers }
        .encode_to_vec()
        .into()
}

fn images(entries: &[(&str, &str)]) -> Bytes {
    let images = entries
        .iter()
        .map(|(id, tag)| v1::Image {
            id: (*id).into(),
            repo_tags: vec![(*tag).into()],
            ..Default::default()
        })
        .collect();
    v1::ListImagesResponse { images }.encode_to_vec().into()
}

pub(super) fn container_status(id: &str, state: v1::ContainerState) -> Bytes {
    let status = v1::ContainerStatus {
        id: id.into(),
        state: state.into(),
        ..Default::default()
    };
    v1::ContainerStatusResponse {
        status: Some(status),
        info: Default::default(),
    }
    .encode_to_vec()
    .into()
}

#[test]
fn names_that_are_no_directory_are_refused() {
    let dir = TempDir::new().unwrap();
    for name in [
        "",
        "..",
        ".",
        "a/b",
        "boot",
        "-x",
        "\u{e4}",
        &"x".repeat(64),
    ] {
        let specs = [BackendSpec {
            name: name.into(),
            id_suffix: None,
        }];
        let error = Memory::open(dir.path(), &specs, "b").unwrap_err();
        assert!(matches!(error, Error::Name(_)), "{name}: {error}");
    }
    let twice = [specs()[0].clone(), specs()[0].clone()];
    assert!(matches!(
        Memory::open(dir.path(), &twice, "b"),
        Err(Error::SameName(_))
    ));
}
