//! Converts the task status of the daemon to the status of the object.
//!
//! Invariant: a status has whole seconds, at most 1 KiB of printable message and at most 100
//! percent, so that it compares equal after it was stored. A task never goes back to an earlier
//! state while one connection lasts.
//! Failure: a state of a newer daemon is taken for `Running`: nothing final is made up.

use crds::{InspectedImage, TakenBackup, TakenSnapshot, TaskState, VirtualMachineTaskStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodeapi::v1::task_status::State;
use nodeapi::v1::{self, TaskStatus};

const MESSAGE: usize = 1024;
/// Longest name of a format.
const FORMAT: usize = 32;
/// Longest reason of a backup of a whole disk.
const REASON: usize = 256;
/// Longest UID.
const UID: usize = 64;

/// What the object should say about a task.
pub(super) fn status(reported: &TaskStatus) -> VirtualMachineTaskStatus {
    let state = match State::try_from(reported.state) {
        Ok(State::Queued) => TaskState::Queued,
        Ok(State::Running) | Err(_) => TaskState::Running,
        Ok(State::Success) => TaskState::Success,
        Ok(State::Error) => TaskState::Error,
        Ok(State::Cancelled) => TaskState::Cancelled,
    };
    VirtualMachineTaskStatus {
        state: Some(state),
        transient: state == TaskState::Error && reported.transient,
        message: crds::text::printable(&reported.message, MESSAGE),
        progress_percent: reported.progress_percent.min(100),
        start_time: time(reported.started_ms),
        completion_time: time(reported.completed_ms).filter(|_| state.is_final()),
        image: reported
            .image
            .as_ref()
            .filter(|_| state == TaskState::Success)
            .map(image),
        snapshot: reported
            .snapshot
            .as_ref()
            .filter(|_| state == TaskState::Success || is_frozen(state, reported))
            .map(snapshot),
        backup: reported
            .backup
            .as_ref()
            .filter(|_| state == TaskState::Success)
            .map(backup),
    }
}

/// Whether a task has the guest frozen: it reports since when before it ends.
fn is_frozen(state: TaskState, reported: &TaskStatus) -> bool {
    state == TaskState::Running && reported.kind == "freeze"
}

fn backup(taken: &v1::DiskBackup) -> TakenBackup {
    TakenBackup {
        full: taken.full,
        full_reason: crds::text::printable(&taken.full_reason, REASON),
        parent_uid: Some(taken.parent_uid.clone()).filter(|uid| is_uid(uid)),
        stored_bytes: bytes(taken.file_bytes),
        read_bytes: bytes(taken.read_bytes),
        virtual_bytes: bytes(taken.virtual_bytes),
        manifest_sha256: Some(taken.sha256.clone()).filter(|digits| is_sha256(digits)),
        quiesced: taken.quiesced,
        running: taken.running,
        created_time: time(taken.created_ms),
    }
}

/// What the schema of the object accepts.
fn is_uid(text: &str) -> bool {
    let is_plain = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'z');
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= UID
        && ends.iter().all(|end| end.is_some_and(|b| is_plain(*b)))
        && bytes.iter().all(|b| is_plain(*b) || *b == b'-')
}

fn snapshot(taken: &v1::DiskSnapshot) -> TakenSnapshot {
    TakenSnapshot {
        quiesced: taken.quiesced,
        running: taken.running,
        virtual_bytes: bytes(taken.virtual_bytes),
        used_bytes: bytes(taken.used_bytes),
        memory_bytes: bytes(taken.memory_bytes),
        created_time: time(taken.created_ms),
    }
}

fn bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn image(found: &v1::InspectedImage) -> InspectedImage {
    InspectedImage {
        format: crds::text::printable(&found.format, FORMAT),
        virtual_bytes: bytes(found.virtual_bytes),
        file_bytes: bytes(found.file_bytes),
        bootable: found.bootable,
        firmware: Some(crds::text::printable(&found.firmware, FORMAT)).filter(|f| !f.is_empty()),
        digest: Some(found.digest.clone()).filter(|digest| is_digest(digest)),
    }
}

/// What the schema of the object accepts.
fn is_digest(text: &str) -> bool {
    match text.split_once(':') {
        Some(("sha256", digits)) => is_sha256(digits),
        Some(("sha512", digits)) => is_hex(digits, 128),
        _ => false,
    }
}

fn is_sha256(digits: &str) -> bool {
    is_hex(digits, 64)
}

fn is_hex(digits: &str, length: usize) -> bool {
    let is_digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    digits.len() == length && digits.bytes().all(is_digit)
}

/// The end of a task that the daemon never ran.
pub(super) fn ended(state: TaskState, message: &str, now: Timestamp) -> VirtualMachineTaskStatus {
    VirtualMachineTaskStatus {
        state: Some(state),
        transient: false,
        message: crds::text::printable(message, MESSAGE),
        progress_percent: 0,
        start_time: None,
        completion_time: seconds(now.as_second()),
        image: None,
        snapshot: None,
        backup: None,
    }
}

/// The newer of two reports of one connection.
pub(super) fn advance(known: TaskStatus, reported: TaskStatus) -> TaskStatus {
    if rank(&known) > rank(&reported) {
        known
    } else {
        reported
    }
}

/// Whether the daemon is done with it.
pub(super) fn is_final(reported: &TaskStatus) -> bool {
    rank(reported) == 2
}

fn rank(reported: &TaskStatus) -> u8 {
    match State::try_from(reported.state) {
        Ok(State::Queued) => 0,
        Ok(State::Running) | Err(_) => 1,
        Ok(State::Success | State::Error | State::Cancelled) => 2,
    }
}

fn time(ms: i64) -> Option<Time> {
    (ms != 0).then(|| seconds(ms.div_euclid(1000))).flatten()
}

fn seconds(seconds: i64) -> Option<Time> {
    Timestamp::from_second(seconds).ok().map(Time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(state: State) -> TaskStatus {
        TaskStatus {
            state: state.into(),
            started_ms: 1_700_000_000_123,
            completed_ms: 1_700_000_001_999,
            progress_percent: 250,
            transient: true,
            message: format!("a\nb{}", "x".repeat(5000)),
            ..TaskStatus::default()
        }
    }

    #[test]
    fn a_status_is_the_same_after_it_was_stored() {
        let status = status(&reported(State::Error));
        let stored = serde_json::to_string(&status).unwrap();
        let read: VirtualMachineTaskStatus = serde_json::from_str(&stored).unwrap();
        assert_eq!(read, status);
        assert_eq!(status.message.len(), 1024);
        assert_eq!(status.progress_percent, 100);
        assert!(status.transient && status.completion_time.is_some());
    }

    #[test]
    fn only_an_error_is_transient_and_only_an_end_has_a_time() {
        let running = status(&reported(State::Running));
        assert!(!running.transient && running.completion_time.is_none());
        assert!(!status(&reported(State::Success)).transient);
        let odd = TaskStatus {
            state: 99,
            ..reported(State::Queued)
        };
        assert_eq!(status(&odd).state, Some(TaskState::Running));
    }

    #[test]
    fn an_image_is_reported_on_success_only_and_within_bounds() {
        let digested = |state, digit: char| {
            let image = v1::InspectedImage {
                format: format!("qcow2\n{}", "x".repeat(100)),
                virtual_bytes: u64::MAX,
                file_bytes: 7,
                bootable: true,
                firmware: "efi".to_owned(),
                digest: format!("sha256:{}", digit.to_string().repeat(64)),
            };
            status(&TaskStatus {
                image: Some(image),
                ..reported(state)
            })
            .image
        };
        for state in [
            State::Queued,
            State::Running,
            State::Error,
            State::Cancelled,
        ] {
            assert_eq!(digested(state, 'a'), None);
        }
        let image = digested(State::Success, 'a').unwrap();
        assert_eq!(image.digest, Some(format!("sha256:{}", "a".repeat(64))));
        let other = digested(State::Success, 'A').unwrap();
        assert_eq!(other.digest, None, "the object would be refused with it");
        assert!(image.format.starts_with("qcow2x") && image.format.len() == 32);
        let sizes = (image.virtual_bytes, image.file_bytes);
        assert_eq!((sizes, image.bootable), ((i64::MAX, 7), true));
        assert_eq!(image.firmware.as_deref(), Some("efi"));
    }

    #[test]
    fn a_snapshot_is_reported_on_success_only_and_within_bounds() {
        let taken = |state| {
            let snapshot = v1::DiskSnapshot {
                uid: "s-1".to_owned(),
                virtual_bytes: u64::MAX,
                used_bytes: 7,
                created_ms: 1_700_000_000_123,
                running: true,
                memory_bytes: 5,
                ..v1::DiskSnapshot::default()
            };
            status(&TaskStatus {
                snapshot: Some(snapshot),
                ..reported(state)
            })
            .snapshot
        };
        assert_eq!(taken(State::Error), None);
        let expected = TakenSnapshot {
            quiesced: false,
            running: true,
            virtual_bytes: i64::MAX,
            used_bytes: 7,
            memory_bytes: 5,
            created_time: seconds(1_700_000_000),
        };
        assert_eq!(taken(State::Success), Some(expected));
    }

    #[test]
    fn a_frozen_guest_is_reported_while_its_task_runs() {
        let found = |state, kind: &str| {
            let snapshot = v1::DiskSnapshot {
                created_ms: 1_700_000_000_123,
                quiesced: true,
                ..v1::DiskSnapshot::default()
            };
            let status = status(&TaskStatus {
                snapshot: Some(snapshot),
                kind: kind.to_owned(),
                ..reported(state)
            });
            status.snapshot.map(|taken| taken.created_time)
        };
        let since = Some(seconds(1_700_000_000));
        assert_eq!(found(State::Running, "freeze"), since);
        assert_eq!(found(State::Success, "freeze"), since);
        assert_eq!(found(State::Error, "freeze"), None);
        assert_eq!(found(State::Running, "snapshot"), None);
    }

    #[test]
    fn a_backup_is_reported_on_success_only_and_within_bounds() {
        let taken = |state, uid: &str| {
            let backup = v1::DiskBackup {
                full_reason: format!("a\nb{}", "x".repeat(500)),
                parent_uid: uid.to_owned(),
                file_bytes: u64::MAX,
                sha256: "A".repeat(64),
                ..v1::DiskBackup::default()
            };
            status(&TaskStatus {
                backup: Some(backup),
                ..reported(state)
            })
            .backup
        };
        assert_eq!(taken(State::Error, "b-1"), None);
        let backup = taken(State::Success, "b-1").unwrap();
        assert_eq!(backup.parent_uid.as_deref(), Some("b-1"));
        assert_eq!(backup.full_reason.len(), 256);
        assert_eq!(backup.stored_bytes, i64::MAX);
        assert_eq!(backup.manifest_sha256, None, "the object would be refused");
        let long = "u".repeat(65);
        for odd in ["", "-b", "b-", "B", "b/c", long.as_str()] {
            let backup = taken(State::Success, odd).unwrap();
            assert_eq!(backup.parent_uid, None, "{odd}");
        }
    }

    #[test]
    fn a_late_answer_does_not_undo_an_end() {
        let end = advance(reported(State::Success), reported(State::Queued));
        assert!(is_final(&end));
        let on = advance(reported(State::Queued), reported(State::Running));
        assert_eq!(on.state(), State::Running);
    }
}
