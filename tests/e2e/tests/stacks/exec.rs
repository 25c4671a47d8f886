//! Commands in a real guest: what kubelet's exec probes and hooks need.
//!
//! Invariant: what is proved about the guest is read in the guest.
//! Failure: answer, code or process that differs.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{Console, Cri, PodOptions, Stack, await_text, cases, eventually, in_time, scaled};
use tonic::Code;

const MIB: usize = 1 << 20;
const USER_DATA: &str = "runcmd:\n- [echo, ä]\n";
const SOON: Duration = Duration::from_secs(180);

/// How many machines the cases start; the agent of each may go while it is known.
const MACHINES: usize = 6;

/// A machine without a port for `vmlet-guest`: the QEMU guest agent runs its commands.
const QEMU: &str = "off";
/// A machine whose commands `vmlet-guest` runs, once it is connected.
const OURS: &str = "image";

/// Init starts the agent again only while its port has a name. SIGKILL: the handler of SIGTERM takes
/// a lock of the main loop, which it may have interrupted, and hangs then.
const END_QEMU_AGENT: &str =
    "mv /dev/virtio-ports/org.qemu.guest_agent.0 /tmp/port; kill -9 $(pidof qemu-ga)";

async fn guest(stack: &Stack, name: &str, agent: &str) -> Result<(Cri, String)> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let mut pod = PodOptions::named(name, stack);
    let user_data = ("vmlet.dev/cloud-init-user-data", USER_DATA);
    let keys = ("VirtletSSHKeys", "ssh-ed25519 AAAA a\n");
    for (key, value) in [user_data, keys, ("vmlet.dev/guest-agent", agent)] {
        pod.annotations.insert(key.to_owned(), value.to_owned());
    }
    let (_, container) = Box::pin(cri.boot(&pod, &image)).await?;
    cri.await_agent(&container).await?;
    Ok((cri, container))
}

async fn clean(stack: &Stack, cri: &Cri) -> Result<()> {
    for sandbox in cri.sandboxes().await? {
        cri.remove_pod(&sandbox.id).await?;
    }
    stack.await_clean().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root"]
async fn commands_run_in_guests_with_either_agent() -> Result<()> {
    let stack = Stack::up()?;
    cases!(
        &stack,
        [
            a_command_comes_back_byte_for_byte,
            a_command_that_is_given_up_is_killed_with_all_that_it_started,
            an_agent_that_hangs_delays_neither_other_guests_nor_its_own_end
        ]
    );
    // Commands to agents of guests that boot are not sent: libvirt logs an error for each.
    let log = stack.log("libvirtd");
    let errors = log.matches("guest agent is not connected").count();
    ensure!(errors <= MACHINES, "{errors} errors of {MACHINES} machines");
    stack.down()
}

async fn a_command_comes_back_byte_for_byte(stack: &Stack) -> Result<()> {
    let (cri, id) = guest(stack, "exact", QEMU).await?;
    exact(stack, &cri, &id, "exact").await?;
    let left = cri.shell(&id, "pidof vmlet-guest || true").await?;
    ensure!(left.is_empty(), "vmlet-guest runs without a port: {left}");
    for sandbox in cri.sandboxes().await? {
        cri.remove_pod(&sandbox.id).await?;
    }

    let (_, id) = guest(stack, "ours", OURS).await?;
    // From here on there is no other agent. Typed: the command could come by the agent that it ends.
    let log = PodOptions::named("ours", stack).log(0);
    let mut console = Console::open(stack, &id)?;
    console.type_line(&format!("{END_QEMU_AGENT} && echo it-has-ended-$((40+2))"))?;
    await_text(&log, "it-has-ended-42", SOON).await?;
    cri.await_agent(&id).await?;
    cri.shell(&id, "rm /tmp/port").await?;
    exact(stack, &cri, &id, "ours").await?;
    clean(stack, &cri).await
}

/// What holds for every agent.
async fn exact(stack: &Stack, cri: &Cri, id: &str, name: &str) -> Result<()> {
    let line = r"printf 'out\r\n\000\377'; printf 'err\n\001' >&2; exit 7";
    let answer = cri.command(id, &["sh", "-c", line]).await?;
    ensure!(answer.stdout == b"out\r\n\0\xff", "{:?}", answer.stdout);
    ensure!(answer.stderr == b"err\n\x01", "{:?}", answer.stderr);
    ensure!(answer.exit_code == 7, "{}", answer.exit_code);

    // Arguments are passed as they are, without a shell; built-ins of a shell are no programs.
    let words = ["echo", "-n", "$HOME", "a b", "'\"`*", "ä\n"];
    let answer = cri.command(id, &words).await?;
    ensure!(
        answer.stdout == "$HOME a b '\"`* ä\n".as_bytes(),
        "{answer:?}"
    );
    for (command, code) in [(["true"].as_slice(), 0), (&["false"], 1)] {
        let answer = cri.command(id, command).await?;
        ensure!(answer.exit_code == code && answer.stdout.is_empty() && answer.stderr.is_empty());
    }
    let killed = cri.command(id, &["sh", "-c", "kill -9 $$"]).await?;
    ensure!(
        killed.exit_code == 137 && killed.stderr.is_empty(),
        "{killed:?}"
    );
    for missing in ["no-such-command", "/tmp", "cd"] {
        let refused = cri.command(id, &[missing]).await.err();
        let refused = refused.with_context(|| format!("{missing} ran"))?;
        ensure!(refused.code() == Code::InvalidArgument, "{refused:?}");
        ensure!(refused.message().contains(missing), "{refused:?}");
    }
    let empty = cri.command(id, &[]).await.err().context("no command")?;
    ensure!(empty.code() == Code::InvalidArgument, "{empty:?}");

    // A process group of its own: the agent lives on.
    let answer = cri.command(id, &["sh", "-c", "kill -TERM 0"]).await?;
    ensure!(
        answer.exit_code == 143 || answer.exit_code == 137,
        "{answer:?}"
    );
    cri.shell(id, "true").await?;

    seed(stack, cri, id, name).await?;
    long_output(cri, id).await?;
    crictl(stack, id, name)
}

/// What cloud-init would read is on a disk of its own, which the guest cannot write.
async fn seed(stack: &Stack, cri: &Cri, id: &str, name: &str) -> Result<()> {
    let user_data = cri.command(id, &["cat", "/run/seed/user-data"]).await?;
    let wanted = format!("#cloud-config\n{USER_DATA}");
    ensure!(user_data.stdout == wanted.as_bytes(), "{user_data:?}");
    let meta_data = cri.command(id, &["cat", "/run/seed/meta-data"]).await?;
    let meta_data: serde_json::Value = serde_json::from_slice(&meta_data.stdout)?;
    let wanted = serde_json::json!({
        "instance-id": format!("{name}.default"), "local-hostname": name, "public-keys": ["ssh-ed25519 AAAA a"],
    });
    ensure!(meta_data == wanted, "{meta_data}");
    let disk = "sed -n 's,^\\([^ ]*\\) /run/seed iso9660 ro.*,\\1,p' /proc/mounts";
    let disk = cri.shell(id, disk).await?;
    let write = format!("dd if=/dev/zero of={} bs=512 count=1", disk.trim());
    let write = cri.command(id, &["sh", "-c", &write]).await?;
    ensure!(write.exit_code != 0, "{disk} was written to: {write:?}");

    let folder = stack.dir().join("state/seeds");
    let images: Vec<_> = std::fs::read_dir(&folder)
        .with_context(|| folder.display().to_string())?
        .collect::<std::io::Result<_>>()?;
    ensure!(images.len() == 1, "{images:?}");
    let mode = images[0].metadata()?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    Ok(())
}

async fn long_output(cri: &Cri, id: &str) -> Result<()> {
    let line = "head -c 1048576 /dev/urandom >/tmp/m; cat /tmp/m; cat /tmp/m >&2";
    let answer = cri.command(id, &["sh", "-c", line]).await?;
    ensure!(answer.stdout.len() == MIB && answer.stdout == answer.stderr);

    // Beyond what the agent carries at once, and with an odd end.
    let line = "cat /tmp/m /tmp/m; printf x; exit 3";
    let long = cri.command(id, &["sh", "-c", line]).await?;
    ensure!(long.exit_code == 3 && long.stdout.len() == 2 * MIB + 1);
    ensure!(long.stdout[..MIB] == answer.stdout && long.stdout[MIB..2 * MIB] == answer.stdout);
    ensure!(long.stdout[2 * MIB] == b'x' && long.stderr.is_empty());
    let left = cri.shell(id, "ls -A /tmp").await?;
    ensure!(left == "m", "{left}");

    // More than the limit: the command is not stopped by it, and the answer fits into a message.
    let line = "head -c 20000000 /dev/zero && echo all >/tmp/done";
    let answer = cri.command(id, &["sh", "-c", line]).await?;
    let size = answer.stdout.len();
    ensure!(
        size > 15 * MIB && size < 16 * MIB && answer.exit_code == 0,
        "{size}"
    );
    ensure!(cri.shell(id, "cat /tmp/done; rm /tmp/done /tmp/m").await? == "all");
    Ok(())
}

fn crictl(stack: &Stack, id: &str, name: &str) -> Result<()> {
    let reported = stack.crictl(&["exec", "-s", id, "hostname"])?;
    ensure!(reported == name, "{reported}");
    let export = stack.dir().join("checkpoint").display().to_string();
    let refused = stack.crictl(&["checkpoint", "--export", &export, id]);
    let refused = refused.err().context("a checkpoint")?.to_string();
    ensure!(
        refused.contains("Unimplemented") && refused.contains("suspend a VirtualMachine"),
        "{refused}"
    );
    Ok(())
}

async fn a_command_that_is_given_up_is_killed_with_all_that_it_started(
    stack: &Stack,
) -> Result<()> {
    let (cri, id) = guest(stack, "limits", QEMU).await?;
    limits(&cri, &id).await?;
    let (_, ours) = guest(stack, "ours", OURS).await?;
    limits(&cri, &ours).await?;
    without_an_agent(stack, &cri, &id).await?;
    clean(stack, &cri).await
}

/// Time-outs, clients that disconnect, and commands at once.
async fn limits(cri: &Cri, id: &str) -> Result<()> {
    let sleepers = async || {
        cri.shell(id, "ps -o args | grep '^sleep 7[0-9][0-9]' || true")
            .await
    };
    let none_sleep = async || {
        eventually(SOON, "no sleepers", || async {
            let left = sleepers().await?;
            ensure!(left.is_empty(), "{left}");
            Ok(())
        })
        .await
    };

    let line = "sleep 701 & (setsid sleep 702) & echo begun; sleep 703";
    // A slow guest needs some of it to start the command at all.
    let timeout = i64::try_from(scaled(Duration::from_secs(4))?.as_secs())?;
    let late = cri.exec(id, &["sh", "-c", line], timeout).await.err();
    let late = late.context("it ended in time")?;
    ensure!(late.code() == Code::DeadlineExceeded, "{late:?}");
    ensure!(late.message().contains("was killed"), "{late:?}");
    ensure!(sleepers().await?.is_empty(), "killed before the answer");

    // The client disconnects, as soon as its command runs.
    let seen = async {
        eventually(SOON, "a sleeper", || async {
            ensure!(sleepers().await?.contains("sleep 704"), "not yet");
            Ok(())
        })
        .await
    };
    tokio::select! {
        ended = cri.exec(id, &["sh", "-c", "sleep 704 & sleep 705"], 0) => bail!("{ended:?}"),
        seen = seen => seen?,
    }
    none_sleep().await?;

    // Eight at once in one machine: each ends when all have begun.
    let clients = (0..8).map(|n| {
        let cri = cri.clone();
        let id = id.to_owned();
        let line = format!(
            "mkdir -p /run/all && echo >/run/all/{n}; \
             until [ $(ls /run/all | wc -l) = 8 ]; do sleep 0.2; done; echo {n}"
        );
        tokio::spawn(async move { cri.shell(&id, &line).await })
    });
    let clients: Vec<_> = clients.collect();
    for (n, client) in clients.into_iter().enumerate() {
        ensure!(client.await?? == n.to_string());
    }
    Ok(())
}

async fn without_an_agent(stack: &Stack, cri: &Cri, id: &str) -> Result<()> {
    // Typed: no command has to be answered by what it ends.
    let mut console = Console::open(stack, id)?;
    console.type_line(END_QEMU_AGENT)?;
    let refused = eventually(SOON, "a guest without an agent", || async {
        let refused = cri.exec(id, &["true"], 5).await.err();
        let refused = refused.context("there is an agent")?;
        ensure!(refused.code() == Code::FailedPrecondition, "{refused:?}");
        Ok(refused)
    });
    let refused = refused.await?;
    let sentence = "install the package qemu-guest-agent or vmlet-guest in the guest and start it";
    ensure!(refused.message().contains(sentence), "{refused:?}");

    // The power button serves then.
    cri.stop(id, 600).await?;
    ensure!(cri.container(id).await?.exit_code == 0);
    let refused = cri.exec(id, &["true"], 5).await.err();
    let refused = refused.context("a machine that is off runs commands")?;
    ensure!(refused.code() == Code::FailedPrecondition, "{refused:?}");
    ensure!(refused.message().contains("is exited"), "{refused:?}");
    let unknown = cri.exec(&"0".repeat(64), &["true"], 5).await.err();
    ensure!(
        unknown
            .context("commands run in a container that does not exist")?
            .code()
            == Code::NotFound
    );
    Ok(())
}

async fn an_agent_that_hangs_delays_neither_other_guests_nor_its_own_end(
    stack: &Stack,
) -> Result<()> {
    let (cri, mute) = guest(stack, "mute", QEMU).await?;
    let (_, well) = Box::pin(cri.boot(&PodOptions::named("well", stack), stack.image()?)).await?;
    cri.await_agent(&well).await?;
    let mut console = Console::open(stack, &mute)?;
    // The sum distinguishes its output from what was typed.
    console.type_line("kill -STOP $(pidof qemu-ga) && echo it-stands-still-$((40+2))")?;
    let log = PodOptions::named("mute", stack).log(0);
    await_text(&log, "it-stands-still-42", SOON).await?;

    // A guest that hangs is one whose probe fails, not one without an agent.
    let late = cri.exec(&mute, &["true"], 3).await.err();
    let late = late.context("it answers")?;
    ensure!(late.code() == Code::DeadlineExceeded, "{late:?}");
    let sentence = "did not start the command within 3 s";
    ensure!(late.message().contains(sentence), "{late:?}");

    // The daemon gives each of them up after a while: there are always some in progress.
    let clients = (0..12).map(|_| tokio::spawn(ask_to_the_end(cri.clone(), mute.clone())));
    let clients: Vec<_> = clients.collect();
    for n in 0..5 {
        ensure!(cri.shell(&well, &format!("echo {n}")).await? == n.to_string());
    }
    let waiting = clients.iter().filter(|client| !client.is_finished());
    ensure!(waiting.count() == 12, "a client of the mute agent ended");
    cri.stop(&mute, 0).await?;
    ensure!(cri.container(&mute).await?.exit_code == 137);
    let ended = async {
        for client in clients {
            client.await??;
        }
        Ok(())
    };
    in_time(SOON, "the end of all commands", ended).await?;
    clean(stack, &cri).await
}

/// Runs a command in a machine with an unresponsive agent, again and again until the machine is
/// off.
async fn ask_to_the_end(cri: Cri, mute: String) -> Result<()> {
    loop {
        let answer = cri.exec(&mute, &["true"], 60).await;
        let refused = answer.err().context("a command ran")?;
        if refused.message().contains("is exited") {
            return Ok(());
        }
    }
}
