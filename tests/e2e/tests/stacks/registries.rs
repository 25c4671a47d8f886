//! Disks from a real registry (Debian's `docker-registry`), with and without TLS and login.
//!
//! Invariant: a container disk boots as a file from a web server does; credentials are shown to the
//! registry and are nowhere on the node.
//! Failure: a wrong code, a guest that does not boot, a password in a file, or a leftover.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{PodOptions, REGISTRY, REGISTRY_WITH_LOGIN, Stack, await_text, v1};
use nix::sys::signal::Signal;
use tonic::{Code, Status};

const BOOT: Duration = Duration::from_secs(180);
/// The password of the registry, and what it is as base64 with the user's name.
const SECRETS: [&str; 2] = ["hush", "bWU6aHVzaA"];

fn login(password: &str) -> v1::AuthConfig {
    v1::AuthConfig {
        username: "me".to_owned(),
        password: password.to_owned(),
        ..v1::AuthConfig::default()
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_container_disk_of_a_registry_with_login_boots() -> Result<()> {
    let stack = Stack::up_with_registries()?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let image = format!("{REGISTRY_WITH_LOGIN}/disks/hello:1");
    refused(cri.pull(&image).await, Code::Unauthenticated, "401")?;
    let wrong = cri.pull_with(&image, login("wrong")).await;
    refused(wrong, Code::Unauthenticated, "401")?;
    let id = cri.pull_with(&image, login("hush")).await?;

    // Who knows its digest has no more than he had before, under this name or another one.
    let named = cri.image(&image).await?.context("image")?.repo_digests;
    let by_digest = named.first().context("digest")?;
    refused(cri.pull(by_digest).await, Code::Unauthenticated, "401")?;
    let elsewhere = format!("{REGISTRY}/disks/elsewhere@{id}");
    refused(cri.pull(&elsewhere).await, Code::NotFound, "404")?;
    let again = cri.pull_with(by_digest, login("hush")).await?;
    ensure!(again == id, "by digest, with the login");

    // The same disk by another registry, as an artifact, and from the web server: one image.
    let artifact = format!("{REGISTRY}/disks/artifact:1");
    ensure!(cri.pull(&artifact).await? == id, "artifact");
    ensure!(cri.pull(stack.image()?).await? == id, "web server");
    stack.kill("vmlet", Signal::SIGKILL).await?;
    stack.restart("vmlet")?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let status = cri.image(&image).await?.context("image")?;
    ensure!(status.repo_tags.len() == 3, "{status:?}");
    ensure!(
        status
            .repo_digests
            .iter()
            .all(|name| name.contains("@sha256:")),
        "{status:?}"
    );

    let pod = PodOptions::named("registry", &stack);
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    cri.stop(&container, 0).await?;
    cri.remove_pod(&sandbox).await?;
    // It came without a login, too, so that its digest needs none.
    let by_digest = status.repo_digests.first().context("digest")?;
    ensure!(cri.pull(by_digest).await? == id, "by digest");
    find(&stack.dir().join("state"), &SECRETS)?;
    find(&stack.dir().join("log"), &SECRETS)?;
    stack.await_clean().await?;
    stack.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn what_is_no_container_disk_is_refused_and_leaves_nothing() -> Result<()> {
    let stack = Stack::up_with_registries()?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let container_image = format!("{REGISTRY}/container-image:1");
    let pulled = cri.pull(&container_image).await;
    refused(pulled, Code::Unknown, "is no container disk")?;
    let missing = format!("{REGISTRY}/disks/hello:2");
    refused(cri.pull(&missing).await, Code::NotFound, "404")?;
    let digest = format!("{REGISTRY}/disks/hello@sha256:{}", "0".repeat(64));
    refused(cri.pull(&digest).await, Code::NotFound, "404")?;
    // A mirror that does not have it, and a registry that is out of reach.
    let elsewhere = cri.pull("gcr.io/disks/none:1").await;
    ensure!(elsewhere.is_err(), "{elsewhere:?}");
    for place in ["data", "partial"] {
        let dir = stack.dir().join("state/images").join(place);
        let left = fs::read_dir(&dir)?.count();
        ensure!(left == 0, "{left} files in {place}");
    }
    stack.down()
}

fn refused(pulled: Result<String, Status>, code: Code, words: &str) -> Result<()> {
    let Err(status) = pulled else {
        anyhow::bail!("pulled");
    };
    let is_so = status.code() == code && status.message().contains(words);
    ensure!(is_so, "{status:?}");
    let shown = SECRETS
        .iter()
        .any(|secret| status.message().contains(secret));
    ensure!(!shown, "{status:?}");
    Ok(())
}

/// Fails where a file below `dir` contains one of these texts. Disks of guests are left out.
fn find(dir: &Path, secrets: &[&str]) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        let path = entry.path();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            find(&path, secrets)?;
        } else if kind.is_file() && entry.metadata()?.len() < 16 << 20 {
            let bytes = fs::read(&path)?;
            for secret in secrets {
                let found = bytes
                    .windows(secret.len())
                    .any(|window| window == secret.as_bytes());
                ensure!(!found, "{} contains {secret}", path.display());
            }
        }
    }
    Ok(())
}
