//! The proxy's own end and start.
//!
//! Invariant: what was known before is known after, at once.
//! Failure: the assertion shows what was forgotten.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use cri_proto::v1;
use tonic::Code;

use crate::environment::{Cri, FANOUT, TestEnvironment};

impl TestEnvironment {
    /// Stops the proxy and the secondary, spoils what was written about it, and starts the proxy.
    pub(crate) async fn lose_memory(&mut self) -> Cri {
        self.stop_proxy().await;
        self.secondary.kill();
        spoil(&self.config.state_dir.join("vmlet"));
        self.start_proxy().await
    }
}

/// Cuts every file that holds something.
fn spoil(dir: &Path) {
    let mut spoiled = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        if path.to_string_lossy().contains("list") || bytes.len() > 200 {
            std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
            spoiled += 1;
        }
    }
    assert!(spoiled > 0, "nothing to spoil in {}", dir.display());
}

#[tokio::test]
async fn after_a_restart_a_secondary_that_is_away_is_still_known() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let vm = cri.run("vmlet", "").await.unwrap();
    let container = cri.container(&vm).await.unwrap();
    cri.sandboxes().await.unwrap();
    cri.containers().await.unwrap();
    cri.container_status(&container).await.unwrap();
    env.secondary.kill();
    let started = Instant::now();
    env.stop_proxy().await;
    let mut cri = env.start_proxy().await;
    assert_eq!(cri.sandboxes().await.unwrap(), std::slice::from_ref(&vm));
    assert!(started.elapsed() < FANOUT, "{:?}", started.elapsed());
    assert_eq!(
        cri.containers().await.unwrap(),
        std::slice::from_ref(&container)
    );
    assert_eq!(
        cri.container_status(&container).await.unwrap().id,
        container
    );
    assert_eq!(
        cri.exec(&container).await.unwrap_err().code(),
        Code::Unavailable
    );
}

#[tokio::test]
async fn after_a_reboot_the_machines_of_a_secondary_that_is_away_have_ended() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let vm = cri.run("vmlet", "").await.unwrap();
    let container = cri.container(&vm).await.unwrap();
    cri.sandboxes().await.unwrap();
    cri.containers().await.unwrap();
    cri.container_status(&container).await.unwrap();
    env.secondary.kill();
    env.stop_proxy().await;
    std::fs::write(&env.config.boot_id_file, "second\n").unwrap();
    let mut cri = env.start_proxy().await;
    let list = cri
        .runtime
        .list_pod_sandbox(v1::ListPodSandboxRequest::default())
        .await
        .unwrap();
    let items = list.into_inner().items;
    assert_eq!(
        items[0].state,
        i32::from(v1::PodSandboxState::SandboxNotready)
    );
    let status = cri.container_status(&container).await.unwrap();
    assert_eq!(status.state, i32::from(v1::ContainerState::ContainerExited));
}

#[tokio::test]
async fn an_endless_call_does_not_delay_the_end() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    env.primary.mood(crate::fake::Mood::Hung);
    let call = tokio::spawn(async move { cri.run("", "").await });
    crate::environment::eventually("the call to arrive", async || {
        env.primary.was_called("RunPodSandbox")
    })
    .await;
    let started = Instant::now();
    env.stop_proxy().await;
    assert!(
        started.elapsed() < Duration::from_secs(30),
        "{:?}",
        started.elapsed()
    );
    assert!(!env.config.listen.exists());
    drop(call);
}

#[tokio::test]
async fn only_its_own_user_can_reach_the_socket_and_a_second_proxy_is_refused() {
    let (env, _cri) = TestEnvironment::start().await;
    let mode = std::fs::metadata(&env.config.listen)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = criproxy::serve(env.config.clone(), std::future::pending()).await;
    assert!(
        second
            .unwrap_err()
            .to_string()
            .contains("another server answers")
    );
}

#[tokio::test]
async fn check_reports_which_runtimes_respond() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    cri.run("vmlet", "").await.unwrap();
    let report = criproxy::check::report(&env.config).await;
    assert!(report.well, "{}", report.text);
    for part in [
        "containerd 1",
        "vmlet 1",
        "RuntimeReady=true",
        "1 sandboxes",
        "ids that end with",
    ] {
        assert!(report.text.contains(part), "{part}: {}", report.text);
    }
    env.secondary.kill();
    cri.sandboxes().await.unwrap();
    env.stop_proxy().await;
    let report = criproxy::check::report(&env.config).await;
    assert!(!report.well);
    for part in ["does not answer", "1 sandboxes, 0 containers, 0 images"] {
        assert!(report.text.contains(part), "{part}: {}", report.text);
    }
    spoil(&env.config.state_dir.join("vmlet"));
    let report = criproxy::check::report(&env.config).await;
    assert!(report.text.contains("sandboxes lost"), "{}", report.text);
}

#[tokio::test]
async fn check_reports_a_runtime_that_never_connected() {
    let mut env = TestEnvironment::new();
    env.secondary.kill();
    env.start_proxy().await;
    let report = criproxy::check::report(&env.config).await;
    let expected = "nothing: it was never connected";
    assert!(report.text.contains(expected), "{}", report.text);
}
