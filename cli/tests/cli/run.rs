//! `run`: the order of requests, and that nothing stays behind however it ends.
//!
//! Invariant: after a run that was not detached, the runtime has no sandbox of it.
//! Failure: none.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

use super::*;

fn interrupt(child: &Child) {
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGINT).unwrap();
}

#[tokio::test]
async fn a_pod_runs_to_its_end_shows_its_console_and_is_removed() {
    let node = Node::start(Scenario {
        ends_with: Some(0),
        ..Default::default()
    });
    let output = finished(node.spawn_run(&[])).await;
    assert_eq!(
        (output.code, output.out.as_str()),
        (Some(0), "guest: hello\nguest: bye\n"),
        "{output:?}"
    );
    let steps = [
        "RunPodSandbox",
        "PullImage",
        "CreateContainer",
        "StartContainer",
        "StopPodSandbox",
        "RemovePodSandbox",
    ];
    assert_eq!(node.fake.changes(), steps);
    assert_eq!(node.log_directories(), 0);
    // Seconds, however many.
    for step in ["sandbox  ", "image    ", "create   ", "start    "] {
        let mut taken = output.err.lines().filter_map(|line| line.split_once(step));
        let taken = taken.any(|(_, time)| time.starts_with(|c: char| c.is_ascii_digit()));
        assert!(taken, "{step}: {}", output.err);
    }
    assert!(output.err.contains("address  10.88.0.7"), "{}", output.err);
    assert!(
        output.err.contains("ended: Completed (exit code 0)"),
        "{}",
        output.err
    );
}

#[tokio::test]
async fn the_guests_outcome_is_the_exit_code() {
    let node = Node::start(Scenario {
        ends_with: Some(137),
        ..Default::default()
    });
    assert_eq!(finished(node.spawn_run(&[])).await.code, Some(137));
}

#[tokio::test]
async fn whatever_step_fails_is_named_and_what_was_made_is_removed() {
    for method in [
        "RunPodSandbox",
        "PullImage",
        "CreateContainer",
        "StartContainer",
    ] {
        let node = Node::start(Scenario {
            refuse: Some(method),
            ..Default::default()
        });
        let output = finished(node.spawn_run(&["--keep"])).await;
        let expected = format!("error: {method}: {method} is out of order (Internal)");
        assert_eq!(
            (output.code, output.out.as_str()),
            (Some(1), ""),
            "{method}: {output:?}"
        );
        assert!(output.err.contains(&expected), "{}", output.err);
        assert!(node.fake.sandbox_configs().is_empty(), "{method}");
        assert_eq!(node.log_directories(), 0, "{method}");
    }
}

#[tokio::test]
async fn a_pod_that_cannot_be_removed_is_named_with_the_command_for_it() {
    let scenario = Scenario {
        refuse: Some("RemovePodSandbox"),
        ends_with: Some(0),
        ..Default::default()
    };
    let output = finished(Node::start(scenario).spawn_run(&[])).await;
    assert_eq!(output.code, Some(0));
    assert!(
        output
            .err
            .contains("repeat with: vmletctl rm -f -n default hello"),
        "{}",
        output.err
    );
}

#[tokio::test]
async fn an_interrupt_stops_the_vm_with_the_pods_grace_period() {
    let node = Node::start(Scenario::default());
    let child = node.spawn_run(&[]);
    node.fake.called("ContainerStatus").await;
    interrupt(&child);
    let output = finished(child).await;
    assert_eq!(
        (output.code, output.out.as_str()),
        (Some(0), "guest: hello\nguest: bye\n"),
        "{output:?}"
    );
    let last = ["StopContainer 7", "StopPodSandbox", "RemovePodSandbox"];
    assert!(
        node.fake.changes().ends_with(&last.map(str::to_owned)),
        "{:?}",
        node.fake.changes()
    );
}

#[tokio::test]
async fn a_second_interrupt_kills_a_vm_that_does_not_go_down() {
    let node = Node::start(Scenario {
        stubborn: true,
        ..Default::default()
    });
    let child = node.spawn_run(&[]);
    node.fake.called("ContainerStatus").await;
    interrupt(&child);
    node.fake.called("StopContainer 7").await;
    interrupt(&child);
    let output = finished(child).await;
    assert_eq!(output.code, Some(137), "{output:?}");
    assert!(node.fake.changes().contains(&"StopContainer 0".to_owned()));
    assert!(node.fake.sandbox_configs().is_empty());
}

#[tokio::test]
async fn a_restart_of_the_daemon_does_not_end_a_run() {
    let mut node = Node::start(Scenario::default());
    let child = node.spawn_run(&[]);
    node.fake.called("ContainerStatus").await;
    node.restart();
    node.fake.called("ContainerStatus").await;
    interrupt(&child);
    let output = finished(child).await;
    assert_eq!(
        (output.code, output.out.as_str()),
        (Some(0), "guest: hello\nguest: bye\n"),
        "{output:?}"
    );
}

#[tokio::test]
async fn an_interrupt_breaks_off_a_pull_whose_progress_was_watched() {
    let node = Node::start(Scenario {
        endless_pull: true,
        ..Default::default()
    });
    let child = node.spawn_run(&[]);
    node.fake.called("ImageStatus verbose").await;
    interrupt(&child);
    let output = finished(child).await;
    assert_eq!(output.code, Some(130), "{output:?}");
    node.fake.called("PullImage abandoned").await;
    assert!(node.fake.sandbox_configs().is_empty());
}

#[tokio::test]
async fn a_detached_pod_is_announced_in_one_line_and_left_running() {
    let node = Node::start(Scenario::default());
    let output = finished(node.spawn_run(&["--detach"])).await;
    assert_eq!(
        (output.code, output.out.as_str()),
        (Some(0), "pod hello id 0000000000000 ip 10.88.0.7\n")
    );
    assert_eq!(node.fake.changes().last().unwrap(), "StartContainer");

    let again = finished(node.spawn_run(&["--detach"])).await;
    assert_eq!(again.code, Some(1));
    assert!(
        again.err.contains("pod default/hello exists already"),
        "{}",
        again.err
    );
    assert_eq!(
        node.fake.sandbox_configs().len(),
        1,
        "the first one is not touched"
    );
}

#[tokio::test]
async fn a_kept_pod_stays_after_its_end() {
    let node = Node::start(Scenario {
        ends_with: Some(0),
        ..Default::default()
    });
    let output = finished(node.spawn_run(&["--keep"])).await;
    assert_eq!(
        (output.code, node.fake.sandbox_configs().len()),
        (Some(0), 1),
        "{output:?}"
    );
    assert_eq!(node.log_directories(), 1);
}

#[tokio::test]
async fn requests_carry_the_manifest_under_the_names_of_kubelet() {
    let node = Node::start(Scenario::default());
    assert_eq!(finished(node.spawn_run(&["--detach"])).await.code, Some(0));
    let sandbox = node.fake.sandbox_configs().remove(0);
    let uid = sandbox.metadata.as_ref().unwrap().uid.clone();
    let labels = [
        ("app", "web"),
        ("io.kubernetes.pod.name", "hello"),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", &uid),
    ];
    assert_eq!(
        sandbox.labels,
        labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    );
    assert_eq!(sandbox.annotations["vmlet.dev/vcpu-count"], "2");
    assert_eq!(sandbox.port_mappings[0].host_port, 8080);
    let logs = node.path("logs").join(format!("default_hello_{uid}"));
    assert_eq!(PathBuf::from(sandbox.log_directory), logs);

    let container = node.fake.container_configs().remove(0);
    let image = container.image.unwrap();
    assert_eq!(
        (image.image.as_str(), image.user_specified_image.as_str()),
        ("sha256:feed", "vmlet.dev/hello")
    );
    assert_eq!(container.labels["io.kubernetes.container.name"], "vm");
    assert_eq!(container.log_path, "vm/0.log");
    let resources = container.linux.unwrap().resources.unwrap();
    assert_eq!(
        (resources.cpu_quota, resources.memory_limit_in_bytes),
        (100_000, 128 << 20)
    );
}
