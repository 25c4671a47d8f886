//! Every row of the table in the module's header, and what must not be concluded while a peer is
//! away.
//!
//! Invariant: time does not advance unless a test moves it.
//! Failure: the step that was chosen is shown.

use crds::{TaskKind, VirtualMachineTaskSpec};
use nodeapi::v1::task_status::State;

use super::*;

const KEEP: Duration = Duration::from_secs(600);

fn kinds() -> Vec<String> {
    vec!["reset".to_owned()]
}

fn world<'a>(kinds: Option<&'a [String]>) -> World<'a> {
    World {
        listed: true,
        daemon: kinds,
        progress: Duration::from_secs(5),
        keep: KEEP,
        now: Instant::now(),
        wall: "2026-01-02T03:04:05Z".parse().unwrap(),
    }
}

fn object() -> Object {
    Object {
        uid: "t-1".to_owned(),
        namespace: "ns".to_owned(),
        name: "task".to_owned(),
        machine: None,
        spec: Ok(VirtualMachineTaskSpec::new(
            "n1",
            TaskKind::Reset,
            "vm",
            "u-1",
        )),
        status: VirtualMachineTaskStatus::default(),
        made: 0,
        going: false,
        ours: false,
    }
}

fn entry() -> Entry {
    Entry {
        object: Some(object()),
        ..Entry::default()
    }
}

fn cancelled() -> Object {
    let mut object = object();
    object.spec.as_mut().unwrap().cancel = true;
    object
}

fn reported(state: State, percent: u32) -> Option<TaskStatus> {
    Some(TaskStatus {
        uid: "t-1".to_owned(),
        state: state.into(),
        progress_percent: percent,
        started_ms: 1_000,
        ..TaskStatus::default()
    })
}

fn step(entry: &Entry) -> Next {
    next("t-1", entry, &world(Some(&kinds())))
}

fn recorded(next: Next) -> VirtualMachineTaskStatus {
    match next {
        Next::Record(status) => *status,
        other => panic!("{other:?}"),
    }
}

fn ended_at(time: &str) -> VirtualMachineTaskStatus {
    VirtualMachineTaskStatus {
        state: Some(TaskState::Success),
        completion_time: serde_json::from_value(time.into()).unwrap(),
        ..VirtualMachineTaskStatus::default()
    }
}

#[tokio::test]
async fn a_new_task_runs_once_the_daemon_has_listed_its_tasks() {
    let entry = entry();
    assert_eq!(next("t-1", &entry, &world(None)), Next::Idle);
    let Next::Run(request) = step(&entry) else {
        panic!("not run")
    };
    assert_eq!(
        (request.uid.as_str(), request.vm_uid.as_str()),
        ("t-1", "u-1")
    );
}

#[tokio::test]
async fn one_step_at_a_time_and_pauses_are_kept() {
    let mut entry = entry();
    entry.busy = true;
    assert_eq!(step(&entry), Next::Idle);
    entry.busy = false;
    entry.backoff.failed(Instant::now());
    assert!(matches!(step(&entry), Next::At(_)));
}

#[tokio::test]
async fn what_cannot_be_run_ends_in_an_error_that_is_not_transient() {
    let other = ["save".to_owned()];
    let status = recorded(next("t-1", &entry(), &world(Some(&other))));
    assert_eq!(status.state, Some(TaskState::Error));
    assert!(
        !status.transient && status.message.contains("Reset"),
        "{status:?}"
    );
    assert!(status.completion_time.is_some());

    let mut refused = entry();
    refused.refused = Some("the daemon refuses this task: no".to_owned());
    assert_eq!(recorded(step(&refused)).state, Some(TaskState::Error));

    let mut odd = entry();
    odd.object.as_mut().unwrap().spec = Err("unknown variant `Teleport`".to_owned());
    assert!(recorded(step(&odd)).message.contains("Teleport"));
}

#[tokio::test]
async fn a_task_that_was_cancelled_before_it_began_never_begins() {
    let mut entry = entry();
    entry.object = Some(cancelled());
    assert_eq!(
        next("t-1", &entry, &world(None)),
        Next::Idle,
        "the daemon may have it"
    );
    let status = recorded(step(&entry));
    assert_eq!(status.state, Some(TaskState::Cancelled));
}

#[tokio::test]
async fn a_cancel_is_passed_on_once() {
    let mut entry = entry();
    entry.object = Some(cancelled());
    entry.reported = reported(State::Running, 0);
    assert_eq!(step(&entry), Next::Cancel);
    entry.cancel_asked = true;
    assert!(matches!(step(&entry), Next::Record(_)), "the progress");
}

#[tokio::test(start_paused = true)]
async fn progress_is_written_when_it_moved_far_enough_and_long_enough_after_the_last_write() {
    let mut entry = entry();
    entry.reported = reported(State::Queued, 0);
    let queued = recorded(step(&entry));
    assert_eq!(queued.state, Some(TaskState::Queued));

    entry.written = Some(queued);
    entry.written_at = Some(Instant::now());
    assert_eq!(step(&entry), Next::Idle);
    entry.reported = reported(State::Running, 1);
    let running = recorded(step(&entry));
    assert_eq!(running.progress_percent, 1, "a state is written at once");

    entry.written = Some(running);
    entry.reported = reported(State::Running, 5);
    assert_eq!(step(&entry), Next::Idle, "four percent more");
    entry.reported = reported(State::Running, 6);
    assert!(matches!(step(&entry), Next::At(_)), "too soon");
    entry.written_at = Instant::now().checked_sub(Duration::from_secs(6));
    assert_eq!(recorded(step(&entry)).progress_percent, 6);
}

#[tokio::test]
async fn an_end_is_recorded_then_forgotten_then_deleted() {
    let mut entry = entry();
    entry.reported = reported(State::Success, 100);
    let status = recorded(next("t-1", &entry, &world(None)));
    assert_eq!(status.state, Some(TaskState::Success));
    assert!(status.completion_time.is_some(), "the daemon gave none");

    entry.written = Some(status);
    entry.object.as_mut().unwrap().ours = true;
    assert_eq!(next("t-1", &entry, &world(None)), Next::Idle);
    assert_eq!(step(&entry), Next::Forget);
    entry.reported = None;
    assert!(matches!(step(&entry), Next::At(_)));
    entry.written = None;
    entry.object.as_mut().unwrap().status = ended_at("2026-01-02T02:54:05Z");
    assert_eq!(step(&entry), Next::Delete);
}

#[tokio::test]
async fn a_task_that_ended_is_never_run_again_even_when_the_watch_is_behind() {
    let mut entry = entry();
    entry.written = Some(ended_at("2026-01-02T03:04:00Z"));
    entry.object.as_mut().unwrap().status.state = Some(TaskState::Running);
    assert!(!matches!(step(&entry), Next::Run(_)));
}

#[tokio::test]
async fn only_tasks_that_this_agent_ended_are_deleted() {
    let mut entry = entry();
    let object = entry.object.as_mut().unwrap();
    object.status = ended_at("2020-01-01T00:00:00Z");
    assert_eq!(step(&entry), Next::Idle);
    let object = entry.object.as_mut().unwrap();
    object.ours = true;
    object.status = ended_at("2026-01-02T09:00:00Z");
    let Next::At(at) = step(&entry) else {
        panic!("an end in the future")
    };
    assert!(at <= Instant::now() + KEEP);
}

#[tokio::test]
async fn a_task_without_object_is_cancelled_and_forgotten_but_only_after_a_whole_list() {
    let mut entry = Entry {
        reported: reported(State::Running, 0),
        ..Entry::default()
    };
    let kinds = kinds();
    let unlisted = World {
        listed: false,
        ..world(Some(&kinds))
    };
    assert_eq!(next("t-1", &entry, &unlisted), Next::Idle);
    assert_eq!(step(&entry), Next::Cancel);
    entry.cancel_asked = true;
    assert_eq!(step(&entry), Next::Idle);
    entry.reported = reported(State::Cancelled, 0);
    assert_eq!(next("t-1", &entry, &unlisted), Next::Idle);
    assert_eq!(step(&entry), Next::Forget);
    entry.reported = None;
    assert_eq!(step(&entry), Next::Drop);
}

#[tokio::test]
async fn work_whose_object_was_ended_by_another_actor_is_cancelled() {
    let mut entry = entry();
    entry.object.as_mut().unwrap().status = ended_at("2026-01-02T03:04:00Z");
    entry.reported = reported(State::Running, 0);
    assert_eq!(step(&entry), Next::Cancel);
}
