//! Measures what libvirt says to QEMU before the guest runs.
//!
//! Invariant: times are those of libvirt's own log, to a millisecond; QEMU counts as executed when
//! vmwrapper has got its descriptors, which is the last thing before.
//! Failure: a start whose messages are not in the log.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use e2e::bench::{Stack, stamp};
use e2e::samples::Samples;
use jiff::Timestamp;
use tokio::process::Command;

/// What makes libvirtd log every message of a monitor, and what it logs otherwise.
const ALL: (&str, &str) = ("1:qemu.qemu_monitor", "1:stderr");
const NORMAL: (&str, &str) = ("", "3:stderr");
/// The command that lets the guest run.
const LAST: &str = "cont";

/// A command with its answer.
#[derive(Debug, PartialEq)]
struct Exchange {
    command: String,
    sent: Timestamp,
    answered: Timestamp,
}

/// `count` starts after one that is not counted.
pub(crate) async fn measure(stack: &Stack, count: u32) -> Result<Samples> {
    let cri = stack.cri_with_image().await?;
    log(stack, ALL).await?;
    let mut samples = Samples::default();
    for number in 0..=count {
        let seen = (
            stack.log_size("libvirtd")?,
            stack.log_size("vmlet-tapmanager")?,
        );
        let pod = stack.pod(&format!("monitor-{number}"));
        let (booted, _) = stack.boot(&cri, &pod).await?;
        let text = stack.log_from("libvirtd", seen.0)?;
        let tapmanager = stack.log_from("vmlet-tapmanager", seen.1)?;
        stack.remove(&cri, &booted.sandbox).await?;
        if number > 0 {
            let executed = stamp(&tapmanager, &booted.sandbox, "tap descriptors handed over")?;
            add(&mut samples, &text, executed)?;
        }
    }
    log(stack, NORMAL).await?;
    Ok(samples)
}

fn add(samples: &mut Samples, text: &str, executed: Timestamp) -> Result<()> {
    let all = exchanges(text)?;
    let last = all.iter().position(|exchange| exchange.command == LAST);
    let last = last.context("no command cont")?;
    ensure!(last > 0, "cont is the first command");
    let first = &all[0];
    let cont = &all[last];
    let millis = |from: Timestamp, to: Timestamp| from.duration_until(to).as_secs_f64() * 1e3;
    samples.number("until_cont", millis(executed, cont.sent));
    // libvirt connects and sends the first one before QEMU exists.
    samples.number("until_first", millis(executed, first.answered));
    samples.number("cont", millis(cont.sent, cont.answered));
    let mut kinds: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    let mut waited = 0.0;
    for exchange in &all[1..last] {
        let took = millis(exchange.sent, exchange.answered);
        let kind = kinds.entry(&exchange.command).or_default();
        *kind = (kind.0 + 1.0, kind.1 + took);
        waited += took;
    }
    samples.number("round_trips", f64::from(u32::try_from(last - 1)?));
    samples.number("waited", waited);
    for (command, (calls, took)) in kinds {
        samples.number(format!("calls {command}"), calls);
        samples.number(format!("took {command}"), took);
    }
    Ok(())
}

/// The commands of one monitor in the order of the log.
fn exchanges(text: &str) -> Result<Vec<Exchange>> {
    let mut all = Vec::new();
    let mut open: Option<(String, Timestamp)> = None;
    for line in text.lines() {
        let is_answer = line.contains("QEMU_MONITOR_RECV_REPLY");
        if line.contains("QEMU_MONITOR_SEND_MSG") {
            let command = line.split_once("\"execute\":\"");
            let command = command.and_then(|(_, rest)| rest.split('"').next());
            let command = command.context("a message without a command")?;
            open = Some((command.to_owned(), time(line)?));
        } else if is_answer && let Some((command, sent)) = open.take() {
            let answered = time(line)?;
            all.push(Exchange {
                command,
                sent,
                answered,
            });
        }
    }
    ensure!(!all.is_empty(), "libvirt logged no message of a monitor");
    Ok(all)
}

/// libvirt writes `2026-11-25 07:15:46.340+0000: …`.
fn time(line: &str) -> Result<Timestamp> {
    let end = line.find(": ").context("a line without a time")?;
    let text = &line[..end];
    let read = jiff::fmt::strtime::parse("%Y-%m-%d %H:%M:%S%.f%z", text);
    let read = read.and_then(|time| time.to_timestamp());
    read.with_context(|| format!("no time: {text}"))
}

/// Changes what a running libvirtd logs.
async fn log(stack: &Stack, (filters, outputs): (&str, &str)) -> Result<()> {
    let socket = stack.path("libvirt/sock/libvirt-admin-sock");
    let uri = format!("libvirtd+unix:///system?socket={}", socket.display());
    for arguments in [
        ["daemon-log-outputs", outputs],
        ["daemon-log-filters", filters],
    ] {
        let mut command = Command::new("virt-admin");
        let output = command.args(["-q", "-c", &uri]).args(arguments).output();
        let output = output.await.context("start virt-admin")?;
        let reported = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{arguments:?}: {reported}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_with_its_answer() {
        let text = "2026-11-25 07:15:46.340+0000: 7: info : qemuMonitorSend:850 : QEMU_MONITOR_SEND_MSG: mon=0x1 msg={\"execute\":\"cont\",\"id\":\"libvirt-9\"}\n\
             2026-11-25 07:15:46.341+0000: 7: debug : other\n\
             2026-11-25 07:15:46.350+0000: 8: info : qemuMonitorJSONIOProcessLine:210 : QEMU_MONITOR_RECV_REPLY: mon=0x1 reply={\"return\": {}}\n";
        let all = exchanges(text).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].command, "cont");
        assert_eq!(all[0].sent.duration_until(all[0].answered).as_millis(), 10);
        assert!(exchanges("").is_err());
    }
}
