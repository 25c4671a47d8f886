//! Bad input is refused with a clear error and leaves nothing behind.
//!
//! Invariant: the daemon and the tapmanager continue serving.
//! Failure: a wrong code, an error without the text that helps, or a leftover.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use e2e::conversation::{Line, Question};
use e2e::{PodOptions, Stack, cases, program, v1};
use http::{HeaderName, HeaderValue};
use tonic::{Code, Status};

/// A line for each method of the protocol, among others.
const PROTOCOL: &str = include_str!("../../../fixtures/cri-fields.tsv");

#[tokio::test]
#[ignore = "needs root"]
async fn what_cannot_be_done_is_refused_and_leaves_nothing() -> Result<()> {
    let stack = Stack::up()?;
    cases!(
        &stack,
        [
            images_that_cannot_be_had_are_refused_by_name,
            bad_requests_are_refused_and_leave_nothing,
            a_plugin_chain_that_fails_half_way_is_undone,
            noise_on_the_socket_has_no_effect,
            another_user_gets_nothing_even_through_an_open_socket
        ]
    );
    stack.down()
}

async fn bad_requests_are_refused_and_leave_nothing(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let pod = PodOptions::named("refused", stack);

    expect(
        cri.run(v1::PodSandboxConfig::default()).await,
        Code::InvalidArgument,
        "metadata",
    )?;
    let no_config = v1::RunPodSandboxRequest::default();
    let answer = cri
        .runtime
        .clone()
        .run_pod_sandbox(no_config)
        .await
        .map(drop);
    expect(answer, Code::InvalidArgument, "config")?;
    let mut host = pod.sandbox();
    host.linux = Some(host_network());
    expect(cri.run(host).await, Code::InvalidArgument, "network")?;

    let unknown = format!("{}766d6c74", "0".repeat(56));
    let create = Box::pin(cri.create(&unknown, pod.container(&image, 0), pod.sandbox()));
    expect(create.await, Code::NotFound, "sandbox")?;
    expect(cri.start(&unknown).await, Code::NotFound, "container")?;
    expect(cri.container(&unknown).await, Code::NotFound, "container")?;
    expect(cri.sandbox(&unknown).await, Code::NotFound, "sandbox")?;
    cri.stop(&unknown, 0).await?;
    cri.remove(&unknown).await?;
    cri.stop_pod(&unknown).await?;
    cri.remove_pod(&unknown).await?;

    let annotated = [
        ("vmlet.dev/vcpu-count", "minus one"),
        ("VirtletVCPUCount", "-1"),
        ("vmlet.dev/memory", "a lot"),
    ];
    for (name, value) in annotated {
        let mut pod = PodOptions::named("annotated", stack);
        pod.annotations = [(name.to_owned(), value.to_owned())].into();
        let sandbox = cri.run(pod.sandbox()).await?;
        let create = Box::pin(cri.create(&sandbox, pod.container(&image, 0), pod.sandbox()));
        let error = expect(create.await, Code::InvalidArgument, name)?;
        ensure!(error.contains(value), "{error}");
        cri.remove_pod(&sandbox).await?;
    }
    let sandbox = cri.run(pod.sandbox()).await?;
    let mut mounted = pod.container(&image, 0);
    let off = ("vmlet.dev/shares".to_owned(), "off".to_owned());
    mounted.annotations = [off].into();
    mounted.mounts = vec![v1::Mount {
        container_path: "/data".to_owned(),
        host_path: "/srv".to_owned(),
        ..v1::Mount::default()
    }];
    let create = Box::pin(cri.create(&sandbox, mounted, pod.sandbox()));
    let error = expect(
        create.await,
        Code::InvalidArgument,
        "/data (/srv of the node)",
    )?;
    ensure!(error.contains("volumeMode: Block"), "{error}");
    cri.remove_pod(&sandbox).await?;
    let mut future = PodOptions::named("future", stack);
    let board = (
        "vmlet.dev/machine-type".to_owned(),
        "pc-q35-99.0".to_owned(),
    );
    future.annotations = [board].into();
    let sandbox = cri.run(future.sandbox()).await?;
    let create = Box::pin(cri.create(&sandbox, future.container(&image, 0), future.sandbox()));
    let error = expect(create.await, Code::FailedPrecondition, "pc-q35-99.0")?;
    ensure!(error.contains("ask for pc-q35-"), "{error}");
    cri.remove_pod(&sandbox).await?;

    let sandbox = cri.run(pod.sandbox()).await?;
    let create = Box::pin(cri.create(&sandbox, pod.container("absent", 0), pod.sandbox()));
    expect(create.await, Code::NotFound, "absent")?;
    let nameless = v1::ContainerConfig::default();
    let create = Box::pin(cri.create(&sandbox, nameless, pod.sandbox()));
    expect(create.await, Code::InvalidArgument, "metadata")?;
    cri.remove_pod(&sandbox).await?;
    ensure!(cri.containers().await?.is_empty());
    methods_that_a_machine_cannot_have(stack).await?;
    stack.await_clean().await
}

/// Each method of the protocol, with a message of no bytes: the daemon has it, or states that it
/// does not.
async fn methods_that_a_machine_cannot_have(stack: &Stack) -> Result<()> {
    let line = Line::connect(&stack.dir().join("run/vmlet.sock")).await?;
    let methods = PROTOCOL.lines().filter_map(|line| {
        let (service, rest) = line.strip_prefix("rpc\t")?.split_once('\t')?;
        Some((service, rest.split_once('\t')?.0))
    });
    let mut refused = Vec::new();
    for (service, method) in methods.chain([("RuntimeService", "LaterMethod")]) {
        // Its stream has no end: `events.rs` has it.
        if method == "GetContainerEvents" {
            continue;
        }
        let headers = [("content-type", "application/grpc"), ("te", "trailers")];
        let headers = headers.map(|(name, value)| {
            let value = HeaderValue::from_static(value);
            (HeaderName::from_static(name), value)
        });
        let question = Question {
            uri: format!("http://localhost/runtime.v1.{service}/{method}"),
            headers: headers.into_iter().collect(),
            data: Bytes::from_static(&[0; 5]),
        };
        let answer = line.call(&question).await?;
        let metadata = answer.trailers.as_ref().unwrap_or(&answer.headers);
        let status = Status::from_header_map(metadata).context(method)?;
        ensure!(status.code() != Code::Internal, "{method}: {status:?}");
        if status.code() == Code::Unimplemented {
            let words = status.message();
            let reason = words
                .strip_prefix(method)
                .and_then(|w| w.strip_prefix(": "));
            ensure!(reason.is_some_and(|r| r.contains(' ')), "{method}: {words}");
            refused.push(method);
        }
    }
    ensure!(refused.contains(&"CheckpointContainer"), "{refused:?}");
    ensure!(refused.last() == Some(&"LaterMethod"), "{refused:?}");
    Ok(())
}

async fn images_that_cannot_be_had_are_refused_by_name(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    let url = stack.var("VMLET_TEST_IMAGE_URL")?.to_owned();
    let wrong = format!("{url}@sha256:{}", "0".repeat(64));
    let error = cri
        .pull(&wrong)
        .await
        .err()
        .map(|e| e.to_string())
        .unwrap_or_default();
    ensure!(
        error.contains("digest") && error.contains(&"0".repeat(64)),
        "{error}"
    );
    let (base, _) = url.rsplit_once('/').unwrap_or_default();
    let error = cri.pull(&format!("{base}/nothing")).await.err();
    ensure!(
        error
            .as_ref()
            .is_some_and(|e| e.code() == Code::NotFound && e.message().contains("404")),
        "{error:?}"
    );
    let error = cri.pull("Not A Name").await.err();
    ensure!(
        error
            .as_ref()
            .is_some_and(|e| e.code() == Code::InvalidArgument),
        "{error:?}"
    );
    ensure!(cri.image_ids().await?.is_empty(), "an image is left");
    Ok(())
}

async fn a_plugin_chain_that_fails_half_way_is_undone(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let file = stack.dir().join("cni/conf/10-vmlet.conflist");
    let good = std::fs::read_to_string(&file)?;
    let mut broken: serde_json::Value = serde_json::from_str(&good)?;
    let failing = serde_json::json!({"type": "tuning", "sysctl": {"net.ipv4.no_such_knob": "1"}});
    if let Some(plugins) = broken["plugins"].as_array_mut() {
        plugins.push(failing);
    }
    std::fs::write(&file, broken.to_string())?;
    let pod = PodOptions::named("half", stack);
    let error = cri.run(pod.sandbox()).await.err();
    ensure!(
        error
            .as_ref()
            .is_some_and(|e| e.message().contains("tuning")),
        "{error:?}"
    );
    ensure!(cri.sandboxes().await?.is_empty(), "a sandbox is left");
    stack.await_clean().await?;
    std::fs::write(&file, "{ not json")?;
    let error = cri.run(pod.sandbox()).await.err();
    ensure!(
        error
            .as_ref()
            .is_some_and(|e| e.code() == Code::Unavailable),
        "{error:?}"
    );
    std::fs::write(&file, good)?;
    let sandbox = cri.run(pod.sandbox()).await?;
    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await
}

async fn noise_on_the_socket_has_no_effect(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let socket = stack.dir().join("run/vmlet.sock");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket)?.permissions());
    ensure!(mode & 0o777 == 0o600, "the socket has mode {mode:o}");
    for round in 0..1000_u32 {
        let mut stream = UnixStream::connect(&socket)?;
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        stream.set_read_timeout(Some(Duration::from_millis(20)))?;
        // A peer that hangs up while we write is an answer, too.
        let _ = stream.write_all(&noise(round));
        let _ = stream.read(&mut [0; 64]);
    }
    ensure!(stack.is_alive("vmlet"), "the daemon died");
    cri.await_ready().await?;
    Ok(())
}

async fn another_user_gets_nothing_even_through_an_open_socket(stack: &Stack) -> Result<()> {
    stack.cri().await?.await_ready().await?;
    let socket = stack.dir().join("run/vmlet.sock");
    for dir in [
        stack.dir().parent().unwrap_or(stack.dir()),
        stack.dir(),
        &stack.dir().join("run"),
    ] {
        open(dir, 0o755)?;
    }
    open(&socket, 0o666)?;
    // The program can be run, and it is served as the owner; nothing but the user differs.
    let words = ["--endpoint", &format!("unix://{}", socket.display()), "ps"];
    let as_stranger = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    for (how, arguments) in [(&[][..], &words[..]), (&as_stranger, &["--version"])] {
        let served = vmletctl(stack, how, arguments)?;
        ensure!(served.status.success(), "{how:?} {arguments:?}: {served:?}");
    }
    let word = "connection of another user";
    ensure!(!stack.log("vmlet").contains(word), "it was refused before");
    let refused = vmletctl(stack, &as_stranger, &words)?;
    ensure!(
        !refused.status.success() && refused.stdout.is_empty(),
        "a stranger was served: {refused:?}"
    );
    let log = stack.log("vmlet");
    let mut lines = log.lines().filter(|line| line.contains(word));
    ensure!(
        lines.any(|line| line.contains("65534") && line.contains("refused")),
        "refused for another reason: {refused:?}"
    );
    stack.cri().await?.await_ready().await?;
    Ok(())
}

/// Runs vmletctl as another user, by `setpriv`.
fn vmletctl(stack: &Stack, how: &[&str], arguments: &[&str]) -> Result<std::process::Output> {
    let vmletctl = stack.dir().join("bin/vmletctl");
    let mut command = std::process::Command::new("setpriv");
    program::output(command.args(how).arg(vmletctl).args(arguments))
}

fn open(path: &std::path::Path, mode: u32) -> Result<()> {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    Ok(std::fs::set_permissions(path, mode)?)
}

/// Bytes that look less and less like HTTP/2.
fn noise(round: u32) -> Vec<u8> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut bytes = if round.is_multiple_of(3) {
        Vec::new()
    } else {
        preface.to_vec()
    };
    let mut state = round.wrapping_mul(2_654_435_761).wrapping_add(1);
    for _ in 0..(round % 200) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        bytes.push(state.to_le_bytes()[0]);
    }
    bytes
}

fn host_network() -> v1::LinuxPodSandboxConfig {
    let options = v1::NamespaceOption {
        network: v1::NamespaceMode::Node.into(),
        ..Default::default()
    };
    let context = v1::LinuxSandboxSecurityContext {
        namespace_options: Some(options),
        ..Default::default()
    };
    v1::LinuxPodSandboxConfig {
        security_context: Some(context),
        ..Default::default()
    }
}

fn expect<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, word: &str) -> Result<String> {
    let Err(status) = answer else {
        anyhow::bail!("{answer:?} instead of {code:?}")
    };
    ensure!(status.code() == code, "{status:?} instead of {code:?}");
    ensure!(
        status.message().contains(word),
        "{status:?} does not say {word:?}"
    );
    Ok(status.message().to_owned())
}
