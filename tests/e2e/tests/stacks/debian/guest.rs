//! A guest of Debian in a pod, and what it says about itself.
//!
//! Invariant: user data end with a script that prints each fact on the serial console, as
//! `FACT name value`, and then `FACTS END`; so they are there when cloud-init has applied all of
//! them.
//! Failure: the end of the console.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, PodOptions, Stack, await_text, eventually};
use nix::sys::signal::Signal;

/// A boot takes three minutes under software emulation when others use both processors, too.
const BOOT: Duration = Duration::from_secs(420);
const END: &str = "FACTS END";

/// Where the mount of a guest is, its one file, and what that contains.
pub(super) const MOUNTED: [&str; 3] = ["/etc/demo", "greeting", "hello from a ConfigMap"];

/// What a case wants of its guest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// Annotations of the pod, beside the user data.
    pub(super) annotations: &'a [(&'a str, &'a str)],
    /// Environment of the container.
    pub(super) environment: &'a [(&'a str, &'a str)],
    /// Files that cloud-init writes: path and content.
    pub(super) files: &'a [(&'a str, &'a str)],
    /// Names, and lines of shell whose output is the value.
    pub(super) facts: &'a [(&'a str, &'a str)],
}

/// A running guest.
#[derive(Debug)]
pub(super) struct Debian {
    cri: Cri,
    pod: PodOptions,
    image: String,
    sandbox: String,
    container: String,
}

impl Debian {
    /// Pulls the image, and starts a pod with it.
    pub(super) async fn boot(stack: &Stack, name: &str, wanted: &Wanted<'_>) -> Result<Self> {
        let cri = stack.cri().await?;
        cri.await_ready().await?;
        let image = stack.var("VMLET_DEBIAN_IMAGE")?;
        cri.pull(image).await?;
        let mut pod = PodOptions::named(name, stack);
        pod.memory_mib = Some(1024);
        let user_data = user_data(wanted);
        let annotations = [
            ("vmlet.dev/vcpu-count", "2"),
            ("vmlet.dev/cloud-init-user-data", user_data.as_str()),
        ];
        for (name, value) in annotations.iter().chain(wanted.annotations) {
            pod.annotations
                .insert((*name).to_owned(), (*value).to_owned());
        }
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pod.environment = wanted.environment.iter().map(owned).collect();
        let [folder, file, text] = MOUNTED;
        pod.mount_config(stack, folder, file, text)?;
        let data = stack.dir().join("data-of").join(name);
        fs::create_dir_all(&data)?;
        fs::set_permissions(&data, fs::Permissions::from_mode(0o777))?;
        let claim = stack.dir().join("claim-of").join(name);
        fs::create_dir_all(&claim)?;
        pod.writable = vec![
            (data, "/srv/data".to_owned()),
            (claim, "/claims/data".to_owned()),
        ];
        let (sandbox, container) = cri.boot(&pod, image).await?;
        Ok(Self {
            cri,
            pod,
            image: image.to_owned(),
            sandbox,
            container,
        })
    }

    /// Waits until cloud-init has applied the user data.
    pub(super) async fn facts(&self) -> Result<Facts> {
        await_text(&self.pod.log(0), END, BOOT).await.map(Facts)
    }

    /// A file of the directory that the guest writes to, as the node sees it.
    pub(super) fn shared(&self, name: &str) -> Result<String> {
        let (data, _) = self.pod.writable.first().context("no directory")?;
        Ok(fs::read_to_string(data.join(name))?)
    }

    /// The address of the pod.
    pub(super) async fn ip(&self) -> Result<String> {
        Ok(self.cri.ip(&self.sandbox).await?)
    }

    /// Runs a line of shell in the guest, once its agent takes commands.
    pub(super) async fn run(&self, line: &str) -> Result<String> {
        self.cri.await_agent(&self.container).await?;
        self.cri.shell(&self.container, line).await
    }

    /// Kills daemon and tapmanager, and starts them again.
    pub(super) async fn crash(&mut self, stack: &Stack) -> Result<()> {
        for program in ["vmlet", "vmlet-tapmanager"] {
            stack.kill(program, Signal::SIGKILL).await?;
        }
        stack.restart("vmlet-tapmanager")?;
        self.revived(stack).await
    }

    /// Starts the daemon, which has died.
    pub(super) async fn revived(&mut self, stack: &Stack) -> Result<()> {
        stack.restart("vmlet")?;
        self.cri = stack.cri().await?;
        self.cri.await_ready().await
    }

    /// Changes the mounted file, as kubelet does, and waits until the guest has the new one.
    pub(super) async fn update(&self, text: &str) -> Result<()> {
        let [folder, file, _] = MOUNTED;
        self.pod.update_config(file, text)?;
        eventually(BOOT, "the new text in the guest", || async {
            let found = self.run(&format!("cat {folder}/{file}")).await?;
            ensure!(found == text, "{found}");
            Ok(())
        })
        .await
    }

    /// Stops the container with grace and boots the next one of the pod.
    pub(super) async fn restart(&mut self) -> Result<()> {
        self.cri.stop(&self.container, 120).await?;
        let config = self.pod.container(&self.image, 1);
        let created = Box::pin(self.cri.create(&self.sandbox, config, self.pod.sandbox()));
        self.container = created.await?;
        self.cri.start(&self.container).await?;
        await_text(&self.pod.log(1), "login:", BOOT).await.map(drop)
    }

    /// Removes the pod.
    pub(super) async fn end(self) -> Result<()> {
        Ok(self.cri.remove_pod(&self.sandbox).await?)
    }
}

/// What a guest printed.
#[derive(Debug)]
pub(super) struct Facts(String);

impl Facts {
    /// The value of a fact.
    pub(super) fn value(&self, name: &str) -> Result<&str> {
        let mark = format!("FACT {name} ");
        let line = self.0.lines().find_map(|line| line.split_once(&mark));
        let value = line.with_context(|| format!("the guest did not print {name}"))?;
        Ok(value.1.trim())
    }
}

/// The user data of a case. Only one kind of host key: making an RSA key takes ten seconds under
/// software emulation.
fn user_data(wanted: &Wanted<'_>) -> String {
    let mut script = "exec >/dev/console\n".to_owned();
    for (name, command) in wanted.facts {
        let _ = writeln!(script, "echo \"FACT {name} $({command})\"");
    }
    let _ = writeln!(script, "echo {END}");
    let mut text = "ssh_genkeytypes: [ed25519]\nwrite_files:\n".to_owned();
    for (path, content) in wanted
        .files
        .iter()
        .chain(&[("/opt/facts", script.as_str())])
    {
        let content = content.replace('\n', "\n    ");
        let _ = writeln!(text, "- path: {path}\n  content: |-\n    {content}");
    }
    text + "runcmd: [[sh, /opt/facts]]\n"
}
