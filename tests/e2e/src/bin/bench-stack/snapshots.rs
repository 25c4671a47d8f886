//! Measures snapshots of a running guest, as the guest notices them, reverts and clones.
//!
//! Two things could hold a guest up: QEMU stops it, which its events `STOP` and `RESUME` say, or its writes wait,
//! which the guest measures by its own clock in hundredths of a second. The same is measured without a snapshot:
//! an emulated guest needs a while for each write.
//!
//! Invariant: the guest writes and syncs without a pause, one block after the other, before, during and after: the
//! snapshot begins after the guest has said that it writes, and is taken before the last write.
//! Failure: a task that failed, or took longer than the guest wrote, or a guest that says nothing.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::bench::Stack;
use e2e::{NodeApi, PodOptions, await_text, eventually, uid};
use nodeapi::v1::{self, run_task_request::Kind};

use crate::samples::Samples;

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
/// A machine that gets a copy.
const CLONE: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1b";
const TASK: Duration = Duration::from_secs(300);
const LISTENS: Duration = Duration::from_secs(60);
/// Number of snapshots with memory.
const WITH_MEMORY: u32 = 3;
/// For how long the guest writes in one measurement, in hundredths of a second of its own clock.
const WRITING: u32 = 500;
/// A guest that writes less often in this time measures nothing.
const FEWEST: u32 = 5;
/// What the guest writes on its console when it begins, with the number of the measurement.
const BEGUN: &str = "BENCH-WRITES";
/// Bytes of the disk: more than the image has.
const SIZE: u64 = 128 << 20;
/// What the guest prints when it has written enough.
const LONGEST: &str = "longest ";

/// Measures `count` snapshots, and as many reverts and clones, and [`WITH_MEMORY`] snapshots with memory.
pub(crate) async fn measure(stack: &Stack, count: u32) -> Result<Samples> {
    let cri = stack.cri_with_image().await?;
    let node = stack.node().await?;
    let mut tasks = Tasks { node, next: 0 };
    let disk = v1::Provision {
        image: stack.image().to_owned(),
        size_bytes: SIZE,
        vm_name: "default/vm".to_owned(),
        ..v1::Provision::default()
    };
    tasks.run(Kind::Provision(disk)).await?;
    let mut pod = stack.pod("snapshots");
    let disk = ("vmlet.dev/vm-disk".to_owned(), VM.to_owned());
    pod.annotations.extend([disk]);
    let booted = stack.boot(&cri, &pod).await?.0;
    cri.await_agent(&booted.container).await?;
    let domain = format!("vmlet-{VM}");
    let mut events = Events::follow(stack, &domain).await?;
    let mut samples = Samples::default();
    let guest = Guest {
        cri: &cri,
        container: &booted.container,
        pod: &pod,
    };
    for number in 0..=count {
        let without = guest.longest_write(2 * number).await?.longest;
        if number == 0 {
            // The last events of the proof have come by now.
            events.forget()?;
        }
        let take = Kind::Snapshot(v1::Snapshot {
            uid: uid(1000 + number),
            quiesce_seconds: 0,
            memory: false,
        });
        let taken = async {
            guest.await_begun(2 * number + 1).await?;
            let took = tasks.run(take).await?;
            let ended = Instant::now();
            Ok::<_, anyhow::Error>(Taken { took, ended })
        };
        let both = tokio::try_join!(guest.longest_write(2 * number + 1), taken)?;
        ensure!(
            both.1.ended < both.0.ended,
            "snapshot {number} took {:?}, longer than the guest wrote",
            both.1.took
        );
        if number > 0 {
            samples.time("write_without", without);
            samples.time("write_with", both.0.longest);
            samples.time("snapshot", both.1.took);
        }
    }
    samples.number("stopped", events.stopped()?);
    for number in 0..WITH_MEMORY {
        events.forget()?;
        let take = Kind::Snapshot(v1::Snapshot {
            uid: uid(2000 + number),
            quiesce_seconds: 0,
            memory: true,
        });
        samples.time("memory", tasks.run(take).await?);
        samples.number("memory_stopped", events.resumed().await?);
    }
    drop(events);
    stack.remove(&cri, &booted.sandbox).await?;
    for number in 0..=count {
        let revert = Kind::Revert(v1::Revert {
            uid: uid(1000 + number),
            memory: false,
        });
        samples.time("revert", tasks.run(revert).await?);
        let clone = Kind::CloneDisk(v1::CloneDisk {
            source_vm_uid: VM.to_owned(),
            snapshot_uid: uid(1000 + number),
            vm_name: "default/clone".to_owned(),
            ..v1::CloneDisk::default()
        });
        samples.time("clone", tasks.run_for(CLONE, clone).await?);
        let delete = Kind::DeleteDisk(v1::DeleteDisk {});
        tasks.run_for(CLONE, delete).await?;
    }
    tasks.run(Kind::DeleteDisk(v1::DeleteDisk {})).await?;
    Ok(samples)
}

/// Tasks, one after the other.
struct Tasks {
    node: NodeApi,
    next: u32,
}

impl Tasks {
    async fn run(&mut self, kind: Kind) -> Result<Duration> {
        self.run_for(VM, kind).await
    }

    async fn run_for(&mut self, vm: &str, kind: Kind) -> Result<Duration> {
        self.next += 1;
        let task = uid(self.next);
        let took = self.node.timed(&task, vm, kind, TASK).await?;
        self.node.forget(&task).await?;
        Ok(took)
    }
}

/// A snapshot, and when it was complete.
struct Taken {
    took: Duration,
    ended: Instant,
}

/// The longest time from one write of the guest to the next, and when it wrote no more.
struct Wrote {
    longest: Duration,
    ended: Instant,
}

/// The guest that writes.
struct Guest<'a> {
    cri: &'a e2e::Cri,
    container: &'a str,
    pod: &'a PodOptions,
}

impl Guest<'_> {
    /// Lets the guest write, and measure that itself.
    async fn longest_write(&self, number: u32) -> Result<Wrote> {
        // Hundredths of a second, without the point.
        let line = format!(
            "now() {{ read -r up idle </proc/uptime; up=${{up%.*}}${{up#*.}}; }}; \
             write() {{ dd if=/dev/zero of=/dev/vda bs=512 seek=200000 count=1 conv=fsync,notrunc 2>/dev/null; }}; \
             write; echo {BEGUN} {number}. >/dev/console; \
             now; begun=$up; last=$up; long=0; n=0; \
             while [ $((up - begun)) -lt {WRITING} ]; do \
             write; now; took=$((up - last)); last=$up; [ $took -le $long ] || long=$took; n=$((n + 1)); \
             done; echo {LONGEST}$long $n"
        );
        let printed = self.cri.shell(self.container, &line).await?;
        let ended = Instant::now();
        let longest = hundredths(&printed)?;
        Ok(Wrote { longest, ended })
    }

    /// Waits until the guest writes.
    async fn await_begun(&self, number: u32) -> Result<()> {
        // A full stop ends the number: 1 is the beginning of 11.
        let begun = format!("{BEGUN} {number}.");
        await_text(&self.pod.log(0), &begun, LISTENS)
            .await
            .map(drop)
    }
}

/// What a guest printed: the longest time, and how often it wrote.
fn hundredths(printed: &str) -> Result<Duration> {
    let found = printed.lines().find_map(|line| line.strip_prefix(LONGEST));
    let numbers = found.and_then(|numbers| numbers.trim().split_once(' '));
    let (longest, writes) = numbers.with_context(|| printed.to_owned())?;
    let writes: u32 = writes.parse()?;
    ensure!(writes >= FEWEST, "only {writes} writes");
    Ok(Duration::from_millis(10 * longest.parse::<u64>()?))
}

/// QEMU's events about the processors of a machine, as virsh prints them.
struct Events {
    virsh: Child,
    printed: PathBuf,
    /// What the proof that virsh listens has caused.
    before: usize,
}

impl Events {
    /// Listens from now on: a machine that is suspended and resumed proves it.
    async fn follow(stack: &Stack, domain: &str) -> Result<Self> {
        let printed = stack.path("qemu-events");
        // Line by line: virsh prints into a file in blocks.
        let mut command = Command::new("stdbuf");
        command.args(["--output=L", "virsh", "-c", &uri(stack)]);
        command.args(["qemu-monitor-event", "--loop"]);
        command.args(["--domain", domain]).stdin(Stdio::null());
        command.stdout(File::create(&printed)?);
        let mut this = Self {
            virsh: command.spawn().context("follow QEMU's events")?,
            printed,
            before: 0,
        };
        eventually(LISTENS, "virsh prints QEMU's events", || async {
            for verb in ["suspend", "resume"] {
                let mut virsh = Command::new("virsh");
                let done = virsh.args(["-c", &uri(stack), verb, domain]).output()?;
                ensure!(done.status.success(), "virsh {verb}: {done:?}");
            }
            ensure!(this.read()?.contains("event RESUME at "), "no event");
            Ok(())
        })
        .await?;
        this.forget()?;
        Ok(this)
    }

    fn read(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.printed)?)
    }

    /// What was printed until now does not count.
    fn forget(&mut self) -> Result<()> {
        self.before = self.read()?.len();
        Ok(())
    }

    /// Waits until the machine was stopped and resumed, and returns for how many milliseconds it was stopped.
    async fn resumed(&mut self) -> Result<f64> {
        let this = std::cell::RefCell::new(self);
        eventually(LISTENS, "virsh prints that the machine runs", || async {
            let stopped = this.borrow_mut().stopped()?;
            ensure!(stopped > 0.0, "the machine was not stopped");
            Ok(stopped)
        })
        .await
    }

    /// Milliseconds for which the machine was stopped, since [`Self::forget`].
    fn stopped(&mut self) -> Result<f64> {
        let ended = self.virsh.try_wait()?;
        ensure!(ended.is_none(), "virsh ended early: {ended:?}");
        let printed = self.read()?;
        stopped(printed.get(self.before..).unwrap_or_default())
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.virsh.kill();
        let _ = self.virsh.wait();
        let _ = std::fs::remove_file(&self.printed);
    }
}

fn uri(stack: &Stack) -> String {
    let socket = stack.path("libvirt/sock/libvirt-sock");
    format!("qemu+unix:///system?socket={}", socket.display())
}

/// The sum of the times between `STOP` and `RESUME`, by QEMU's own clock.
fn stopped(printed: &str) -> Result<f64> {
    let mut since = None;
    let mut sum = 0.0;
    for line in printed.lines() {
        let Some((event, rest)) = line
            .strip_prefix("event ")
            .and_then(|line| line.split_once(" at "))
        else {
            continue;
        };
        match (event, since) {
            ("STOP", None) => since = Some(milliseconds(rest)?),
            ("RESUME", Some(begin)) => {
                sum += milliseconds(rest)? - begin;
                since = None;
            }
            _ => {}
        }
    }
    ensure!(since.is_none(), "the machine was not resumed: {printed}");
    Ok(sum)
}

/// `1796017483.000626 for domain …`: seconds since the epoch.
fn milliseconds(event: &str) -> Result<f64> {
    let seconds = event.split_whitespace().next().context("no time")?;
    let seconds: f64 = seconds.parse().with_context(|| event.to_owned())?;
    Ok(seconds * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_between_stop_and_resume_are_added() {
        let line = |time: &str, event: &str| {
            format!("event {event} at 17960174{time} for domain 'vm': <null>\n")
        };
        let printed = [
            line("01.100000", "STOP"),
            line("01.150000", "RESUME"),
            line("02.000000", "BLOCK_JOB_COMPLETED"),
            line("03.000000", "STOP"),
            line("03.025000", "RESUME"),
        ];
        let sum = stopped(&printed.concat()).unwrap();
        assert!((sum - 75.0).abs() < 0.5, "{sum}");
        assert!(stopped(&printed[0]).is_err());
        assert_eq!(stopped("events received: 0\n").unwrap().to_bits(), 0);
    }

    #[test]
    fn a_guest_that_says_nothing_or_hardly_writes_is_no_measurement() {
        let longest = Duration::from_millis(120);
        assert_eq!(hundredths("longest 12 40\n").unwrap(), longest);
        assert!(hundredths("sh: dd: not found\n").is_err());
        assert!(hundredths("longest 12 1\n").is_err());
    }
}
