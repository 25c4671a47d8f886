//! What a reboot means for lists and statuses from before it: nothing of a machine that went down
//! still runs.
//!
//! Invariant: sandboxes become not ready, containers that had not ended end now; every other byte
//! stays, fields that we do not know included. Doing it twice changes nothing.
//! Failure: [`Malformed`], for the caller to count the answer as lost.

use super::Kind;
use super::entries::{ITEM, STATUS_STATE, list_state};
use super::wire::{integer_of, put_bytes, put_integer};
use crate::wire::{Malformed, fields};

/// `SANDBOX_NOTREADY`.
const NOT_READY: u64 = 1;

/// `CONTAINER_EXITED`.
const EXITED: u64 = 2;

/// Exit code of a container that the reboot ended: its end was not observed, and the daemon reports
/// the same code.
const EXIT_CODE: u64 = 255;

/// Reason of a container that the reboot ended.
const REASON: &str = "Unknown";

const FINISHED_AT: u32 = 6;
const CODE: u32 = 7;
const WHY: u32 = 10;

/// Containers' statuses within a sandbox's status answer.
const CONTAINERS: u32 = 3;

/// A list answer from before the reboot, as it is true now.
pub(super) fn list(kind: Kind, response: &[u8]) -> Result<Vec<u8>, Malformed> {
    let Some(state) = list_state(kind) else {
        return Ok(response.to_vec());
    };
    let ended = ended(kind);
    map(response, |number, item| {
        if number != ITEM || integer(item, state)? == ended {
            return Ok(None);
        }
        let mut item = item.to_vec();
        put_integer(state, ended, &mut item);
        Ok(Some(item))
    })
}

/// A status answer from before the reboot, as it is true now. `now` in nanoseconds since the epoch.
pub(super) fn status(kind: Kind, response: &[u8], now: u64) -> Result<Vec<u8>, Malformed> {
    map(response, |number, part| match (kind, number) {
        (Kind::Sandbox, ITEM) if integer(part, STATUS_STATE)? != NOT_READY => {
            let mut part = part.to_vec();
            put_integer(STATUS_STATE, NOT_READY, &mut part);
            Ok(Some(part))
        }
        (Kind::Sandbox, CONTAINERS) | (Kind::Container, ITEM) => container(part, now),
        _ => Ok(None),
    })
}

const fn ended(kind: Kind) -> u64 {
    match kind {
        Kind::Container => EXITED,
        Kind::Sandbox | Kind::Image => NOT_READY,
    }
}

/// `None` when it had ended before.
fn container(status: &[u8], now: u64) -> Result<Option<Vec<u8>>, Malformed> {
    if integer(status, STATUS_STATE)? == EXITED {
        return Ok(None);
    }
    let mut rewritten = status.to_vec();
    put_integer(STATUS_STATE, EXITED, &mut rewritten);
    if integer(status, FINISHED_AT)? == 0 {
        put_integer(FINISHED_AT, now, &mut rewritten);
    }
    put_integer(CODE, EXIT_CODE, &mut rewritten);
    put_bytes(WHY, REASON.as_bytes(), &mut rewritten);
    Ok(Some(rewritten))
}

/// Replaces the messages for which `change` has something else.
fn map(
    message: &[u8],
    change: impl Fn(u32, &[u8]) -> Result<Option<Vec<u8>>, Malformed>,
) -> Result<Vec<u8>, Malformed> {
    let mut out = Vec::with_capacity(message.len() + 64);
    for field in fields(message) {
        let field = field?;
        let changed = match field.content {
            Some(bytes) => change(field.number, bytes)?,
            None => None,
        };
        match changed {
            Some(bytes) => put_bytes(field.number, &bytes, &mut out),
            None => out.extend_from_slice(field.raw),
        }
    }
    Ok(out)
}

/// The last integer of that number, 0 when there is none.
fn integer(message: &[u8], number: u32) -> Result<u64, Malformed> {
    let mut value = 0;
    for field in fields(message) {
        value = integer_of(&field?, number).unwrap_or(value);
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use cri_proto::v1;
    use prost::Message as _;

    use super::*;

    fn running() -> v1::ContainerStatus {
        v1::ContainerStatus {
            id: "c1".into(),
            state: v1::ContainerState::ContainerRunning.into(),
            created_at: 5,
            started_at: 6,
            log_path: "/var/log/c1".into(),
            ..Default::default()
        }
    }

    #[test]
    fn a_running_container_ended_by_the_reboot() {
        let before = v1::ContainerStatusResponse {
            status: Some(running()),
            info: [("k".into(), "v".into())].into(),
        };
        let after = status(Kind::Container, &before.encode_to_vec(), 77).unwrap();
        let after = v1::ContainerStatusResponse::decode(&*after).unwrap();
        let expected = v1::ContainerStatus {
            state: v1::ContainerState::ContainerExited.into(),
            finished_at: 77,
            exit_code: 255,
            reason: "Unknown".into(),
            ..running()
        };
        assert_eq!(after.status, Some(expected));
        assert_eq!(after.info, before.info);
    }

    #[test]
    fn a_container_that_had_ended_keeps_every_byte() {
        let before = v1::ContainerStatusResponse {
            status: Some(v1::ContainerStatus {
                state: v1::ContainerState::ContainerExited.into(),
                finished_at: 9,
                exit_code: 3,
                reason: "Error".into(),
                ..running()
            }),
            info: Default::default(),
        };
        let bytes = before.encode_to_vec();
        assert_eq!(status(Kind::Container, &bytes, 77).unwrap(), bytes);
    }

    #[test]
    fn a_sandbox_is_not_ready_and_its_containers_have_ended() {
        let before = v1::PodSandboxStatusResponse {
            status: Some(v1::PodSandboxStatus {
                id: "s1".into(),
                ..Default::default()
            }),
            containers_statuses: vec![running()],
            ..Default::default()
        };
        let after = status(Kind::Sandbox, &before.encode_to_vec(), 77).unwrap();
        let after = v1::PodSandboxStatusResponse::decode(&*after).unwrap();
        let sandbox = after.status.unwrap();
        assert_eq!(sandbox.state(), v1::PodSandboxState::SandboxNotready);
        assert_eq!(sandbox.id, "s1");
        assert_eq!(
            after.containers_statuses[0].state(),
            v1::ContainerState::ContainerExited
        );
        assert_eq!(after.containers_statuses[0].finished_at, 77);
    }

    #[test]
    fn lists_are_rewritten_once_and_keep_unknown_fields() {
        let mut item = v1::Container {
            id: "c1".into(),
            ..running_entry()
        }
        .encode_to_vec();
        put_bytes(4000, b"from the future", &mut item);
        let mut before = Vec::new();
        put_bytes(ITEM, &item, &mut before);
        put_integer(999, 4, &mut before);
        let after = list(Kind::Container, &before).unwrap();
        let decoded = v1::ListContainersResponse::decode(&*after).unwrap();
        assert_eq!(
            decoded.containers[0].state(),
            v1::ContainerState::ContainerExited
        );
        assert_eq!(decoded.containers[0].image_ref, "sha256:1");
        assert!(after.windows(15).any(|part| part == b"from the future"));
        assert_eq!(
            integer_of(&fields(&after).last().unwrap().unwrap(), 999),
            Some(4)
        );
        assert_eq!(list(Kind::Container, &after).unwrap(), after);
    }

    fn running_entry() -> v1::Container {
        v1::Container {
            state: v1::ContainerState::ContainerRunning.into(),
            image_ref: "sha256:1".into(),
            ..Default::default()
        }
    }

    #[test]
    fn images_survive_a_reboot() {
        let images = v1::ListImagesResponse {
            images: vec![v1::Image {
                id: "sha256:1".into(),
                ..Default::default()
            }],
        };
        let bytes = images.encode_to_vec();
        assert_eq!(list(Kind::Image, &bytes).unwrap(), bytes);
    }
}
