//! A machine is reached from outside of its cluster: console, ports, ssh and scp, with the API server alone.
//!
//! Invariant: the commands run where no address of the pod network is reachable, as a service account that has
//! `pods/attach` and `pods/portforward` and may read nothing. ssh and scp are those of OpenSSH, and a real server of
//! ssh runs in the guest.
//! Failure: what the command printed, or what the terminal showed.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::machines::machine;
use e2e::{Cluster, Terminal, eventually, in_time, program};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

const UP: Duration = Duration::from_secs(300);
const DOWN: Duration = Duration::from_secs(180);
/// What the guest serves on port 80: its host name.
const PAGE: &str = "web";
/// The server of ssh, and the libraries that the guest does not have for its own programs.
const SERVER: &str = "/usr/sbin/dropbear";
/// Where they are in the guest.
const PLACE: &str = "/run/ssh";

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_is_reached_by_the_api_server_alone() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.machine_basics()?;
    cluster.await_inspected(UP).await?;
    cluster.apply(&machine("web", &json!({ "runStrategy": "Always" })))?;
    cluster.await_boots("web", &[1], UP).await?;
    cluster.await_commands("web", UP).await?;
    let scratch = tempfile::tempdir()?;
    let allowed = Laptop::new(&cluster, scratch.path(), "reader", true)?;
    let refused = Laptop::new(&cluster, scratch.path(), "stranger", false)?;
    without_rights(&refused).context("without rights")?;
    page(&allowed).context("port-forward --stdio")?;
    login(&cluster, &allowed).context("ssh")?;
    console(&cluster, &allowed).await.context("console")?;
    ports(&cluster, &allowed).await.context("port-forward")?;
    cluster.delete("vm/web", DOWN)?;
    cluster.await_clean().await?;
    cluster.down()
}

/// A computer outside of the cluster, with the kubeconfig of one user.
struct Laptop {
    kubeconfig: PathBuf,
    path: String,
    /// Keys and files of ssh.
    home: PathBuf,
}

impl Laptop {
    fn new(cluster: &Cluster, scratch: &Path, account: &str, has_rights: bool) -> Result<Self> {
        cluster.kubectl(&["create", "serviceaccount", account])?;
        if has_rights {
            let resources = "--resource=pods/attach,pods/portforward";
            cluster.kubectl(&["create", "role", account, "--verb=get,create", resources])?;
            let role = format!("--role={account}");
            let subject = format!("--serviceaccount=default:{account}");
            cluster.kubectl(&["create", "rolebinding", account, &role, &subject])?;
        }
        let token = cluster.kubectl(&["create", "token", account])?;
        let config = cluster.kubectl(&["config", "view", "--raw", "--flatten", "-o", "json"])?;
        let mut config: Value = serde_json::from_str(&config)?;
        for user in config["users"].as_array_mut().into_iter().flatten() {
            user["user"] = json!({ "token": token });
        }
        let home = scratch.join(account);
        fs::create_dir(&home)?;
        let kubeconfig = home.join("kubeconfig");
        fs::write(&kubeconfig, config.to_string())?;
        Ok(Self {
            kubeconfig,
            path: cluster.stack().var("PATH")?.to_owned(),
            home,
        })
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("PATH", &self.path)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::null());
        command
    }

    fn vmletctl(&self, line: &str) -> Command {
        let words: Vec<_> = line.split_whitespace().collect();
        self.command("vmletctl", &words)
    }

    /// A command with options of ssh, which leaves nothing in the home directory of this computer.
    fn with_ssh(&self, line: &str) -> Command {
        let home = self.home.display();
        let options = [
            "-F/dev/null".to_owned(),
            "-oBatchMode=yes".to_owned(),
            "-oStrictHostKeyChecking=accept-new".to_owned(),
            format!("-oUserKnownHostsFile={home}/known_hosts"),
            format!("-oIdentityFile={home}/key"),
        ];
        // A command of the guest has all that stands behind its first word.
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut command = self.vmletctl(verb);
        command.args(options.map(|option| format!("--local-ssh-opts={option}")));
        command.args(rest.split_whitespace());
        command
    }

    fn file(&self, name: &str) -> String {
        self.home.join(name).display().to_string()
    }
}

/// Standard output of a command that succeeds.
fn ok(mut command: Command) -> Result<String> {
    let output = program::output(&mut command)?;
    ensure!(output.status.success(), "{command:?}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Standard error of a command that fails.
fn failed(mut command: Command) -> Result<String> {
    let output = program::output(&mut command)?;
    ensure!(!output.status.success(), "{command:?}: {output:?}");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Each verb says which right is missing.
fn without_rights(laptop: &Laptop) -> Result<()> {
    fs::write(laptop.home.join("file"), "x")?;
    let copy = format!("scp {} root@web:/tmp/", laptop.file("file"));
    for (command, right) in [
        (laptop.vmletctl("console web"), "pods/attach"),
        (
            laptop.vmletctl("port-forward web --stdio 80"),
            "pods/portforward",
        ),
        (laptop.vmletctl("port-forward web :80"), "pods/portforward"),
        (laptop.with_ssh("ssh root@web true"), "pods/portforward"),
        (laptop.with_ssh(&copy), "pods/portforward"),
    ] {
        let words = failed(command)?;
        let sentence = format!("needs the rights get and create on {right} in namespace default");
        ensure!(words.contains(&sentence), "{words}");
    }
    let listed = failed(laptop.vmletctl("ssh-config"))?;
    ensure!(listed.contains("not allowed"), "{listed}");
    Ok(())
}

/// The page of the guest by standard input and output, and a port on which nothing listens.
fn page(laptop: &Laptop) -> Result<()> {
    let mut get = laptop.vmletctl("port-forward vm/web --stdio 80");
    let mut child = get.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    // The end of the input reaches the guest, and its answer still arrives.
    let mut stdin = child.stdin.take().context("no input")?;
    stdin.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    drop(stdin);
    let Output { status, stdout, .. } = program::ended("the page", child)?;
    let page = String::from_utf8_lossy(&stdout);
    ensure!(status.success() && page.contains(PAGE), "{status} {page}");
    let words = failed(laptop.vmletctl("port-forward web --stdio 81"))?;
    ensure!(words.contains("port 81 of web: connect to"), "{words}");
    let words = failed(laptop.vmletctl("port-forward wbe --stdio 80"))?;
    ensure!(words.contains("no pod wbe in namespace default"), "{words}");
    Ok(())
}

/// A command, files both ways, a block for ~/.ssh/config, and another host key of the same machine.
fn login(cluster: &Cluster, laptop: &Laptop) -> Result<()> {
    let key = laptop.file("key");
    ok(laptop.command("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &key]))?;
    install_server(cluster, laptop)?;
    start_server(cluster, "first")?;
    let name = ok(laptop.with_ssh("ssh root@web hostname"))?;
    ensure!(name.trim() == "web", "{name:?}");
    let mut shell = laptop.with_ssh("ssh root@web");
    shell.args(["--", "-T", "echo $((6 * 7)); exit 3"]);
    let output = program::output(&mut shell)?;
    ensure!(
        output.status.code() == Some(3) && output.stdout == b"42\n",
        "{output:?}"
    );

    let tree = laptop.home.join("tree");
    fs::create_dir_all(tree.join("a b"))?;
    let mut content = vec![0; 200_000];
    fastrand::fill(&mut content);
    fs::write(tree.join("a b/large"), &content)?;
    let there = format!(
        "scp --local-ssh-opts=-O -r {} root@web:/tmp/",
        laptop.file("tree")
    );
    ok(laptop.with_ssh(&there))?;
    let back = format!(
        "scp --local-ssh-opts=-O -r root@web:/tmp/tree {}",
        laptop.file("back")
    );
    ok(laptop.with_ssh(&back))?;
    let returned = fs::read(laptop.home.join("back/a b/large"))?;
    ensure!(returned == content, "{} bytes came back", returned.len());

    // Who may read the machine has its key by its UID.
    let uid = cluster.vm("web")?["metadata"]["uid"]
        .as_str()
        .context("no UID")?
        .to_owned();
    let known = fs::read_to_string(laptop.home.join("known_hosts"))?;
    ensure!(
        known.contains("/default/web ") && !known.contains(&uid),
        "{known}"
    );
    let mut config = laptop.vmletctl("ssh-config");
    config.env("KUBECONFIG", cluster.stack().var("KUBECONFIG")?);
    let block = ok(config)?;
    ensure!(block.starts_with("Host web.default.vmlet\n"), "{block}");
    ensure!(
        block.contains(&format!("HostKeyAlias vmlet.dev/{uid}\n")),
        "{block}"
    );
    let file = laptop.file("config");
    let known = laptop.file("known_hosts_of_config");
    fs::write(&file, block.replace("~/.ssh/vmlet_known_hosts", &known))?;
    let options = format!("-F {file} -i {key} -oBatchMode=yes -oStrictHostKeyChecking=accept-new");
    let options: Vec<_> = options.split(' ').collect();
    let mut ssh = laptop.command("ssh", &options);
    ssh.args(["root@web.default.vmlet", "hostname"]);
    ssh.env("KUBECONFIG", cluster.stack().var("KUBECONFIG")?);
    ensure!(ok(ssh)?.trim() == "web");
    let known = fs::read_to_string(known)?;
    ensure!(known.contains(&uid), "{known}");

    start_server(cluster, "second")?;
    let words = failed(laptop.with_ssh("ssh root@web hostname"))?;
    ensure!(words.contains("HOST IDENTIFICATION HAS CHANGED"), "{words}");
    Ok(())
}

/// Copies a server of ssh into the guest, with two host keys and the key of the user.
fn install_server(cluster: &Cluster, laptop: &Laptop) -> Result<()> {
    let files = laptop.home.join("ssh");
    fs::create_dir(&files)?;
    let linked = ok(laptop.command("ldd", &[SERVER]))?;
    let libraries = linked.lines().filter_map(|line| {
        let (name, rest) = line.trim().split_once(" => ")?;
        // The guest has the C library.
        (!name.starts_with("libc.so")).then(|| (name, rest.split(' ').next().unwrap_or_default()))
    });
    for (name, path) in libraries {
        fs::copy(path, files.join(name)).context(path.to_owned())?;
    }
    fs::copy(SERVER, files.join("dropbear"))
        .context("is dropbear-bin installed: cargo xtask setup")?;
    fs::copy("/usr/bin/scp", files.join("scp"))?;
    for host in ["first", "second"] {
        let path = files.join(host).display().to_string();
        ok(laptop.command("dropbearkey", &["-t", "ed25519", "-f", &path]))?;
    }
    fs::copy(laptop.home.join("key.pub"), files.join("authorized_keys"))?;
    let from = files.display().to_string();
    cluster.kubectl(&["cp", &from, &format!("web:{PLACE}")])?;
    let script = format!(
        "mkdir -p /root/.ssh && chmod 700 /root /root/.ssh && cp {PLACE}/authorized_keys /root/.ssh/ && \
         chmod 600 /root/.ssh/authorized_keys && mkdir -p /usr/bin && cp {PLACE}/scp /usr/bin/ && \
         cp {PLACE}/scp /bin/ && chmod 755 /bin/scp /usr/bin/scp {PLACE}/dropbear"
    );
    cluster
        .kubectl(&["exec", "web", "--", "sh", "-c", &script])
        .map(drop)
}

/// Starts the server with one of its host keys, in the place of one that runs.
fn start_server(cluster: &Cluster, host: &str) -> Result<()> {
    let script = format!(
        "killall dropbear 2>/dev/null; while pidof dropbear >/dev/null; do sleep 0.1; done; \
         cd {PLACE} && LD_LIBRARY_PATH={PLACE} setsid ./dropbear -F -E -r {PLACE}/{host} -p 22 \
         </dev/null >/run/dropbear.log 2>&1 & \
         until grep -q ':0016 [0-9A-F]*:0000 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done"
    );
    cluster
        .kubectl(&["exec", "web", "--", "sh", "-c", &script])
        .map(drop)
}

/// A terminal has the console over restarts of daemon, kubelet, proxy and machine; a pipe has it, too.
async fn console(cluster: &Cluster, laptop: &Laptop) -> Result<()> {
    let mut terminal = Terminal::start(&laptop.vmletctl("console web"))?;
    answered(&mut terminal, 1).await?;
    for (turn, program) in [(2, "vmlet"), (3, "kubelet")] {
        cluster.stack().kill(program, Signal::SIGKILL).await?;
        seen(&mut terminal, "no console: ").await?;
        cluster.stack().restart(program)?;
        answered(&mut terminal, turn).await.context(program)?;
    }
    cluster
        .stack()
        .kill("vmlet-criproxy", Signal::SIGKILL)
        .await?;
    cluster.stack().restart("vmlet-criproxy")?;
    terminal.keys("echo still-$((6 * 7))\r").await?;
    seen(&mut terminal, "still-42")
        .await
        .context("after a restart of the proxy")?;
    restart(cluster)?;
    seen(&mut terminal, "no console: ").await?;
    answered(&mut terminal, 4).await.context("a new instance")?;
    terminal.keys("\u{1d}").await?;
    let status = terminal.end().await?;
    ensure!(status.success(), "{status}");

    let mut pipe = tokio::process::Command::from(laptop.vmletctl("console web"));
    pipe.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut pipe = pipe.kill_on_drop(true).spawn()?;
    let mut stdin = pipe.stdin.take().context("no input")?;
    let mut shown = BufReader::new(pipe.stdout.take().context("no output")?).lines();
    stdin.write_all(b"echo piped-$((6 * 7))\r").await?;
    let answer = async {
        while let Some(line) = shown.next_line().await? {
            if line.contains("piped-42") {
                return Ok(());
            }
        }
        bail!("the console ended")
    };
    in_time(UP, "an answer to a pipe", answer).await?;
    // The end of the input ends the command, when the guest is silent.
    drop(stdin);
    let end = async {
        while shown.next_line().await?.is_some() {}
        Ok(pipe.wait().await?)
    };
    let status = in_time(UP, "the end of the pipe", end).await?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// Waits until the terminal is connected, and the guest's shell has answered.
async fn answered(terminal: &mut Terminal, turn: u32) -> Result<()> {
    seen(terminal, "connected to web; Ctrl-] leaves").await?;
    // A guest that still boots takes no keys.
    seen(terminal, "VMLET-TICK").await?;
    terminal
        .keys(&format!("echo turn-{turn}-$((6 * 7))\r"))
        .await?;
    seen(terminal, &format!("turn-{turn}-42")).await
}

/// A new instance of the machine, at once.
fn restart(cluster: &Cluster) -> Result<()> {
    let mut restart = cluster.stack().command("vmletctl");
    restart.args(["restart", "web", "--force"]);
    ok(restart).map(drop)
}

async fn seen(terminal: &mut Terminal, text: &str) -> Result<()> {
    in_time(UP, text, async { terminal.until(text).await.map(drop) }).await
}

/// A port of this computer outlives an instance of the machine.
async fn ports(cluster: &Cluster, laptop: &Laptop) -> Result<()> {
    let mut forward = tokio::process::Command::from(laptop.vmletctl("port-forward web :80"));
    let forward = forward.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut forward = forward.kill_on_drop(true).spawn()?;
    let output = forward.stdout.take().context("no output")?;
    let mut lines = BufReader::new(output).lines();
    let line = in_time(UP, "the port", async { Ok(lines.next_line().await?) }).await?;
    let line = line.context("port-forward ended")?;
    let address = line.split(" -> ").next().context("no address")?;
    let url = format!("http://{address}/");
    let fetch = || async {
        let page = ok(laptop.command("curl", &["-sS", "-m", "120", &url]))?;
        ensure!(page.contains(PAGE), "{page}");
        Ok(())
    };
    eventually(UP, "the page", fetch).await?;
    let before = cluster.pod_uid("web")?;
    restart(cluster)?;
    eventually(UP, "a new instance", || async {
        ensure!(cluster.pod_uid("web")? != before);
        Ok(())
    })
    .await?;
    eventually(UP, "the page of the new instance", fetch).await?;
    ensure!(forward.try_wait()?.is_none(), "port-forward ended");
    Ok(())
}
