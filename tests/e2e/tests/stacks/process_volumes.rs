//! Volumes of containers that are processes of one machine.
//!
//! Invariant: what a process does is compared with the directory on the node; what is mounted for a
//! pod is read from the mount table of its server.
//! Failure: the file, the property or the mount that differs.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use e2e::{Stack, cases, eventually, v1};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::processes::{Pod, SOON};
use crate::shares;

#[tokio::test]
#[ignore = "needs root"]
async fn processes_have_the_volumes_of_their_pods() -> Result<()> {
    let stack = Stack::up()?;
    cases!(
        &stack,
        [
            processes_have_the_volumes_of_their_containers,
            files_of_a_pod_with_a_user_belong_to_that_user,
            a_machine_without_a_share_for_volumes_loses_no_data
        ]
    );
    stack.down()
}

async fn processes_have_the_volumes_of_their_containers(stack: &Stack) -> Result<()> {
    let pod = Pod::with(stack, "volumes", |_| {}).await?;
    let volumes = Volumes::new(stack)?;
    roots_files_are_those_of_the_guest(&pod, &volumes).await?;
    access_is_that_of_the_mount(&pod, &volumes).await?;
    what_is_no_file_and_no_directory_is_refused(&pod, &volumes).await?;
    a_dead_daemon_loses_no_volume(&pod, &volumes).await?;
    let servers = shares::servers(stack)?;
    ensure!(servers.len() == 2, "{servers:?}");
    eventually(SOON, "no volume of a container that has ended", || async {
        let left = mounted(stack)?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await?;
    pod.remove().await?;
    shares::await_no_process(stack).await?;
    Ok(())
}

async fn files_of_a_pod_with_a_user_belong_to_that_user(stack: &Stack) -> Result<()> {
    let pod = Pod::with(stack, "owned", |_| {}).await?;
    let volumes = Volumes::new(stack)?;
    let data = volumes.directory("data", 0o2770)?;
    nix::unistd::chown(&data, Some(0.into()), Some(4321.into()))?;
    let script = "id -u; echo mine >/data/file; stat -c %u:%g /data/file /data";
    let mut config = with(pod.config("owner", script), vec![mount(&data, "/data")]);
    let id = |value| Some(v1::Int64Value { value });
    let linux = config.linux.get_or_insert_default();
    linux.security_context = Some(v1::LinuxContainerSecurityContext {
        run_as_user: id(1234),
        run_as_group: id(1235),
        supplemental_groups: vec![4321],
        ..v1::LinuxContainerSecurityContext::default()
    });
    let records = output(&pod, config, "owner").await?;
    let expected = ["1234", "1234:4321", "0:4321"].map(|line| format!("stdout F {line}"));
    ensure!(records == expected, "{records:?}");
    let file = fs::metadata(data.join("file"))?;
    ensure!((file.uid(), file.gid()) == (1234, 4321), "{file:?}");
    pod.remove().await?;
    Ok(())
}

async fn a_machine_without_a_share_for_volumes_loses_no_data(stack: &Stack) -> Result<()> {
    let volumes = Volumes::new(stack)?;
    let data = volumes.directory("data", 0o755)?;
    let off = |config: &mut v1::PodSandboxConfig| {
        let annotations = &mut config.annotations;
        annotations.insert("vmlet.dev/shares".to_owned(), "off".to_owned());
    };
    let refused = async |pod: &Pod<'_>| {
        let config = with(pod.config("lost", "true"), vec![mount(&data, "/data")]);
        let refused = pod.create(config).await.err().context("it is created")?;
        let words = "does not reach the guest, so what is written there is not kept";
        ensure!(refused.message().contains(words), "{refused}");
        anyhow::Ok(())
    };
    let pod = Pod::with(stack, "off", off).await?;
    refused(&pod).await?;
    pod.remove().await?;
    // The machine is a container, whose shares are fixed.
    let pod = Pod::with(stack, "machine", |_| {}).await?;
    let mut machine = pod.config("machine", "");
    machine.command.clear();
    pod.create(machine).await?;
    refused(&pod).await?;
    pod.remove().await?;
    Ok(())
}

/// What only root may enter has files that the guest's root reads and makes.
async fn roots_files_are_those_of_the_guest(pod: &Pod<'_>, volumes: &Volumes) -> Result<()> {
    let data = volumes.directory("private", 0o700)?;
    fs::write(data.join("old"), "of the node\n")?;
    fs::set_permissions(data.join("old"), fs::Permissions::from_mode(0o400))?;
    let file = volumes.0.join("one-file");
    fs::write(&file, "one file\n")?;
    let script = "pwd; cat old /etc/made/for/it; stat -c %u:%g .; echo new >made; \
                  echo more >>/etc/made/for/it; exec sleep 1000";
    let mounts = vec![mount(&file, "/etc/made/for/it"), mount(&data, "/srv/data")];
    let mut config = with(pod.config("root", script), mounts);
    config.working_dir = "/srv/data".to_owned();
    let id = pod.start(config).await?;
    let expected = ["/srv/data", "of the node", "one file", "0:0"];
    let expected = expected.map(|line| format!("stdout F {line}"));
    let made = data.join("made");
    eventually(SOON, "the files of the process", || async {
        ensure!(fs::read_to_string(&file)? == "one file\nmore\n");
        Ok(())
    })
    .await?;
    let records = pod.records("root")?;
    ensure!(records == expected, "{records:?}");
    ensure!(fs::read_to_string(&made)? == "new\n");
    ensure!(
        fs::metadata(&made)?.uid() == 0,
        "{:?}",
        fs::metadata(&made)?
    );
    // A command in it has them, too; the next container has not.
    let seen = pod.cri.shell(&id, "cat made; ls /srv/data").await?;
    ensure!(seen == "new\nmade\nold", "{seen}");
    let script = "ls -A /srv/data; cat /etc/made/for/it";
    let records = output(pod, pod.config("other", script), "other").await?;
    ensure!(records.is_empty(), "{records:?}");
    // It is served by a process without privileges.
    let confined = shares::servers(pod.stack)?;
    let confined = confined.iter().filter(|pid| shares::is_confined(pid));
    ensure!(confined.count() == 1);
    ensure!(mounted(pod.stack)?.len() == 2, "{:?}", mounted(pod.stack)?);
    pod.cri.stop(&id, 1).await?;
    Ok(())
}

async fn access_is_that_of_the_mount(pod: &Pod<'_>, volumes: &Volumes) -> Result<()> {
    let fixed = volumes.directory("fixed", 0o755)?;
    let inner = volumes.directory("inner", 0o755)?;
    fs::create_dir_all(fixed.join("inner"))?;
    let script = "touch /srv/fixed/new || echo fixed; echo x >/srv/fixed/inner/new && echo inner; \
                  mount -o remount,rw /srv/fixed; touch /srv/fixed/new || echo fixed";
    let read_only = v1::Mount {
        readonly: true,
        ..mount(&fixed, "/srv/fixed")
    };
    // The one below is mounted last, whatever the order.
    let mounts = vec![mount(&inner, "/srv/fixed/inner"), read_only];
    let mut records = output(pod, with(pod.config("access", script), mounts), "access").await?;
    records.retain(|record| record.starts_with("stdout"));
    let expected = ["fixed", "inner", "fixed"].map(|line| format!("stdout F {line}"));
    ensure!(records == expected, "{records:?}");
    ensure!(!fixed.join("new").exists() && inner.join("new").exists());
    Ok(())
}

async fn what_is_no_file_and_no_directory_is_refused(
    pod: &Pod<'_>,
    volumes: &Volumes,
) -> Result<()> {
    let socket = volumes.0.join("socket");
    let _listener = UnixListener::bind(&socket)?;
    for (name, path, word) in [
        ("socket", socket, "neither a file nor a directory"),
        ("missing", volumes.0.join("missing"), "No such file"),
    ] {
        let config = with(pod.config(name, "true"), vec![mount(&path, "/srv/x")]);
        let refused = pod.start(config).await.err().context("it is mounted")?;
        let status = refused.downcast_ref::<tonic::Status>();
        let status = status.with_context(|| format!("{refused:#}"))?;
        ensure!(status.code() == Code::FailedPrecondition, "{status}");
        let message = status.message();
        let has_path = message.contains(path.to_str().context("a path")?);
        ensure!(message.contains(word) && has_path, "{message}");
    }
    Ok(())
}

async fn a_dead_daemon_loses_no_volume(pod: &Pod<'_>, volumes: &Volumes) -> Result<()> {
    let stack = pod.stack;
    let data = volumes.directory("kept", 0o755)?;
    let script = "echo first >/srv/kept/first; exec sleep 1000";
    let config = with(pod.config("kept", script), vec![mount(&data, "/srv/kept")]);
    let id = pod.create(config).await?;
    stack.arm("process.start.volumes")?;
    ensure!(pod.cri.start(&id).await.is_err());
    stack.restart("vmlet")?;
    pod.cri.await_ready().await?;
    pod.cri.start(&id).await?;
    stack.kill("vmlet", Signal::SIGKILL).await?;
    stack.restart("vmlet")?;
    pod.cri.await_ready().await?;
    eventually(SOON, "the file of the process", || async {
        ensure!(fs::read_to_string(data.join("first"))? == "first\n");
        Ok(())
    })
    .await?;
    fs::write(data.join("second"), "second\n")?;
    let seen = pod.cri.shell(&id, "cat /srv/kept/second").await?;
    ensure!(seen == "second", "{seen}");
    // Mounted once, although the start was repeated.
    let of_this = mounted(stack)?.into_iter();
    let of_this = of_this.filter(|place| place.starts_with(&format!("/{}", &id[..20])));
    ensure!(of_this.count() == 1, "{:?}", mounted(stack)?);
    pod.cri.stop(&id, 1).await?;
    Ok(())
}

/// Directories of the node, for one test.
struct Volumes(PathBuf);

impl Volumes {
    fn new(stack: &Stack) -> Result<Self> {
        let path = stack.dir().join("volumes");
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn directory(&self, name: &str, mode: u32) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(path)
    }
}

fn mount(host: &Path, path: &str) -> v1::Mount {
    v1::Mount {
        host_path: host.to_string_lossy().into_owned(),
        container_path: path.to_owned(),
        ..v1::Mount::default()
    }
}

fn with(config: v1::ContainerConfig, mounts: Vec<v1::Mount>) -> v1::ContainerConfig {
    v1::ContainerConfig { mounts, ..config }
}

/// The output of a container that ends by itself.
async fn output(pod: &Pod<'_>, config: v1::ContainerConfig, name: &str) -> Result<Vec<String>> {
    let id = pod.start(config).await?;
    pod.cri.await_exit(&id, SOON).await?;
    pod.records(name)
}

/// The volumes that are mounted for the server of the stack's only pod.
fn mounted(stack: &Stack) -> Result<Vec<String>> {
    let servers = shares::servers(stack)?;
    let confined = servers.iter().find(|process| shares::is_confined(process));
    let table = confined.context("no server")?.join("mountinfo");
    let table = fs::read_to_string(table)?;
    let places = table.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(places
        .filter(|place| *place != "/")
        .map(str::to_owned)
        .collect())
}
