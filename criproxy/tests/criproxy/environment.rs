//! Two runtimes, the proxy in front of them, and a client.
//!
//! Invariant: everything lives in one directory and ends with the test.
//! Failure: a deadline of a minute for whatever is awaited.

use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, Instant};

use cri_proto::v1;
use cri_proto::v1::image_service_client::ImageServiceClient;
use cri_proto::v1::runtime_service_client::RuntimeServiceClient;
use criproxy::config::{Config, Limits};
use futures_util::poll;
use service::settings::Timespan;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

use crate::fake::Fake;

/// The end of the secondary's ids.
pub(crate) const TAG: &str = "766d6c74";

/// Longest wait for a secondary: longer than any that is well takes, also while the machine stands
/// still for a moment.
pub(crate) const FANOUT: Duration = Duration::from_secs(20);

/// Of a proxy whose clock a test sets forward: the longest that there is.
pub(crate) const LONG: Duration = Duration::from_secs(60);

const TARGET: &str = "kubernetes.io/target-runtime";

pub(crate) struct TestEnvironment {
    pub(crate) primary: Fake,
    pub(crate) secondary: Fake,
    pub(crate) config: Config,
    /// The configuration as a file.
    pub(crate) file: PathBuf,
    _dir: TempDir,
    proxy: Option<Serving>,
}

/// What ends the proxy, and how it ended.
type Serving = (oneshot::Sender<()>, JoinHandle<Result<(), criproxy::Error>>);

pub(crate) struct Cri {
    pub(crate) runtime: RuntimeServiceClient<Channel>,
    pub(crate) images: ImageServiceClient<Channel>,
}

impl TestEnvironment {
    /// Both runtimes run, the proxy does not.
    pub(crate) fn new() -> Self {
        let _ = tracing_subscriber::fmt()
            .with_test_writer()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .try_init();
        let dir = tempfile::tempdir().unwrap();
        let mut primary = Fake::new(dir.path(), "containerd", "");
        let mut secondary = Fake::new(dir.path(), "vmlet", TAG);
        primary.start();
        secondary.start();
        std::fs::write(dir.path().join("boot_id"), "first\n").unwrap();
        let at = dir.path().display();
        let text = format!(
            r#"
            listen = "{at}/proxy.sock"
            status_listen = "{at}/agent/status.sock"
            state_dir = "{at}/state"
            boot_id_file = "{at}/boot_id"
            [primary]
            name = "containerd"
            socket = "{at}/containerd.sock"
            [[secondary]]
            name = "vmlet"
            socket = "{at}/vmlet.sock"
            handlers = ["vmlet"]
            target_runtimes = ["vmlet", "virtlet.cloud"]
            image_prefixes = ["vmlet.dev/", "virtlet.cloud/"]
            id_suffix = "{TAG}"
            [limits]
            fanout_timeout = "{}ms"
            breaker_open = "200ms"
            empty_grace = "10m"
            "#,
            FANOUT.as_millis()
        );
        let config = toml::from_str(&text).unwrap();
        let file = dir.path().join("criproxy.toml");
        std::fs::write(&file, &text).unwrap();
        Self {
            primary,
            secondary,
            config,
            file,
            _dir: dir,
            proxy: None,
        }
    }

    /// Everything runs, and the proxy knows both runtimes.
    pub(crate) async fn start() -> (Self, Cri) {
        Self::start_with(|_| {}).await
    }

    /// As [`TestEnvironment::start`], with a proxy that waits [`LONG`] for a secondary, and leaves
    /// it alone for as long.
    pub(crate) async fn start_patient() -> (Self, Cri) {
        Self::start_with(|limits| {
            limits.fanout_timeout = Timespan::from_secs(60);
            limits.breaker_open = Timespan::from_secs(60);
        })
        .await
    }

    /// As [`TestEnvironment::start`], with other limits.
    pub(crate) async fn start_with(change: impl FnOnce(&mut Limits)) -> (Self, Cri) {
        let mut env = Self::new();
        change(&mut env.config.limits);
        let cri = env.start_proxy().await;
        env.met().await;
        (env, cri)
    }

    /// Waits until the proxy has learned what both runtimes have.
    pub(crate) async fn met(&self) {
        eventually("the proxy to meet both runtimes", async || {
            self.primary.was_called("ListImages") && self.secondary.was_called("RuntimeConfig")
        })
        .await;
    }

    pub(crate) async fn start_proxy(&mut self) -> Cri {
        self.config.refuse_contradictions().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = criproxy::serve(self.config.clone(), async {
            let _ = stopped.await;
        });
        self.proxy = Some((stop, tokio::spawn(served)));
        self.connect().await
    }

    pub(crate) async fn stop_proxy(&mut self) {
        if let Some((stop, served)) = self.proxy.take() {
            drop(stop);
            served.await.unwrap().unwrap();
        }
    }

    pub(crate) async fn connect(&self) -> Cri {
        let uri = format!("unix://{}", self.config.listen.display());
        let endpoint = Endpoint::try_from(uri).unwrap();
        let mut channel = None;
        eventually("the proxy to listen", async || {
            channel = endpoint.connect().await.ok();
            channel.is_some()
        })
        .await;
        let channel = channel.unwrap();
        Cri {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(cri_proto::MAX_MESSAGE),
            images: ImageServiceClient::new(channel),
        }
    }
}

impl Cri {
    /// Runs a sandbox with this handler and annotation; empty for none.
    pub(crate) async fn run(
        &mut self,
        handler: &str,
        target: &str,
    ) -> Result<String, tonic::Status> {
        let mut config = sandbox_config("uid");
        if !target.is_empty() {
            config.annotations.insert(TARGET.into(), target.into());
        }
        let request = v1::RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: handler.into(),
        };
        let answer = self.runtime.run_pod_sandbox(request).await?;
        Ok(answer.into_inner().pod_sandbox_id)
    }

    /// Creates and starts a container.
    pub(crate) async fn container(&mut self, sandbox: &str) -> Result<String, tonic::Status> {
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: "main".into(),
                attempt: 0,
            }),
            labels: [("pod".to_owned(), sandbox.to_owned())].into(),
            ..Default::default()
        };
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: None,
        };
        let container_id = self
            .runtime
            .create_container(request)
            .await?
            .into_inner()
            .container_id;
        let request = v1::StartContainerRequest {
            container_id: container_id.clone(),
        };
        self.runtime.start_container(request).await?;
        Ok(container_id)
    }

    /// The ids of all sandboxes.
    pub(crate) async fn sandboxes(&mut self) -> Result<Vec<String>, tonic::Status> {
        let request = v1::ListPodSandboxRequest::default();
        let answer = self.runtime.list_pod_sandbox(request).await?;
        Ok(answer
            .into_inner()
            .items
            .into_iter()
            .map(|s| s.id)
            .collect())
    }

    /// The ids of all containers.
    pub(crate) async fn containers(&mut self) -> Result<Vec<String>, tonic::Status> {
        let request = v1::ListContainersRequest::default();
        let answer = self.runtime.list_containers(request).await?;
        let containers = answer.into_inner().containers;
        Ok(containers.into_iter().map(|s| s.id).collect())
    }

    pub(crate) async fn exec(&mut self, container: &str) -> Result<Vec<u8>, tonic::Status> {
        let request = v1::ExecSyncRequest {
            container_id: container.into(),
            ..Default::default()
        };
        Ok(self.runtime.exec_sync(request).await?.into_inner().stdout)
    }

    pub(crate) async fn stop_sandbox(&mut self, id: &str) -> Result<(), tonic::Status> {
        let pod_sandbox_id = id.to_owned();
        let request = v1::StopPodSandboxRequest { pod_sandbox_id };
        self.runtime.stop_pod_sandbox(request).await.map(|_| ())
    }

    pub(crate) async fn container_status(
        &mut self,
        id: &str,
    ) -> Result<v1::ContainerStatus, tonic::Status> {
        let request = v1::ContainerStatusRequest {
            container_id: id.into(),
            verbose: false,
        };
        let answer = self.runtime.container_status(request).await?;
        Ok(answer.into_inner().status.unwrap_or_default())
    }
}

pub(crate) fn sandbox_config(uid: &str) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: "pod".into(),
            uid: uid.into(),
            namespace: "default".into(),
            attempt: 0,
        }),
        ..Default::default()
    }
}

/// Asks again and again, for a minute.
pub(crate) async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !check().await {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The answer to a call for which a patient proxy asks a secondary that does not answer. Its clock
/// is set forward, so that the wait ends when it should and not before.
pub(crate) async fn waited_out<T>(
    secondary: &Fake,
    method: &str,
    answer: impl Future<Output = T>,
) -> T {
    let mut answer = pin!(answer);
    secondary.calls();
    let queried = eventually("the secondary to be asked", async || {
        secondary.was_called(method)
    });
    tokio::select! {
        _ = &mut answer => panic!("{method} was answered without the secondary"),
        () = queried => {}
    }
    tokio::time::pause();
    tokio::time::advance(LONG / 2).await;
    for _ in 0..100 {
        assert!(
            poll!(&mut answer).is_pending(),
            "{method}: it has time left"
        );
        tokio::task::yield_now().await;
    }
    tokio::time::advance(LONG / 2).await;
    tokio::time::resume();
    answer.await
}
