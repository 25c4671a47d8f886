//! Replies of the QEMU guest agent and of the emulator, and what guests report about themselves.
//!
//! Invariant: a reply counts only with a content, which an independent reader finds, too; an error
//! is one bounded line. Bytes of a guest are those that its base64 means. Reported facts are
//! bounded and printable, addresses can be parsed.
//! Failure: a panic.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use daemon::fuzzing::{Interface, Reply, gather, of_vmlet_guest};
use libvirt::fuzzing::{agent_reply, monitor_reply};
use libvirt::guest::{self, How, Process};
use libvirt::{Error, FakeHypervisor, Hypervisor};
use prost::Message;
use serde_json::Value;
use uuid::Uuid;

const ID: Uuid = Uuid::from_u128(7);
const SOON: Duration = Duration::from_secs(1);
/// Longest reason in an error, in characters, with the words around it.
const LONGEST_REASON: usize = 1024 + 200;
/// Longest text of a fact, in characters.
const LONGEST_FACT: usize = 253;
/// Bytes of a file that are requested.
const MOST: usize = 64;

/// Replies in lines.
///
/// # Panics
///
/// When a reply is read in another way than it is meant, or an error is no bounded line.
pub fn agent_replies(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    for line in text.lines().take(8) {
        let read: Option<Value> = serde_json::from_str(line).ok();
        match agent_reply(line) {
            Ok(content) => assert_eq!(read.as_ref().and_then(|r| r.get("return")), Some(&content)),
            Err(error) => is_line(&error),
        }
        match monitor_reply(line) {
            Ok(content) => assert_eq!(read.as_ref().and_then(|r| r.get("return")), Some(&content)),
            Err(error) => {
                assert!(read.is_none_or(|reply| reply.get("return").is_none()));
                is_line(&error);
            }
        }
    }
    let contents: Vec<Value> = text
        .lines()
        .take(8)
        .filter_map(|line| agent_reply(line).ok())
        .collect();
    finished(async {
        status(&contents).await;
        file(&contents).await;
        vcpus(&contents).await;
    });
}

/// How a program ended.
async fn status(contents: &[Value]) {
    let Some(reply) = contents.first() else {
        return;
    };
    let guest = guest_with(contents).await;
    let process = Process { pid: 1 };
    let ended = match guest::exec_status(&guest, ID, process, SOON).await {
        Ok(Some(ended)) => ended,
        Ok(None) => return assert_eq!(reply["exited"], false),
        Err(error) => return is_line(&error),
    };
    assert_eq!(reply["exited"], true);
    match ended.how {
        How::Code(code) => assert_eq!(reply["exitcode"], code),
        How::Signal(signal) => {
            assert_eq!(reply["signal"], signal);
            assert!((1..=64).contains(&signal), "{signal}");
        }
    }
    for (key, bytes) in [("out-data", &ended.out), ("err-data", &ended.err)] {
        let data = reply[key].as_str().unwrap_or_default();
        assert_eq!(STANDARD.encode(bytes), data, "{key}");
    }
    let is_cut = |key: &str| reply[key] == true;
    assert_eq!(
        ended.truncated,
        is_cut("out-truncated") || is_cut("err-truncated")
    );
}

/// A file: its handle, its content, and the reply to the end.
async fn file(contents: &[Value]) {
    let guest = guest_with(contents).await;
    match guest::read_file(&guest, ID, "/run/x", MOST, SOON).await {
        // A malformed reply counts as none.
        Ok(None) => {}
        Ok(Some(bytes)) => {
            assert!(bytes.len() <= MOST);
            let data = contents[1]["buf-b64"].as_str().unwrap_or_default();
            let whole = STANDARD.decode(data).unwrap_or_default();
            assert!(whole.starts_with(&bytes) && (bytes.len() == MOST || whole == bytes));
        }
        Err(error) => is_line(&error),
    }
    // What the agent has opened is closed again.
    let commands = guest.agent_commands();
    let sent = |name: &str| commands.iter().filter(|c| c["execute"] == name).count();
    assert_eq!(sent("guest-file-read"), sent("guest-file-close"));
}

/// Virtual CPUs: the list before, the reply to the change, the list after.
async fn vcpus(contents: &[Value]) {
    let guest = guest_with(contents).await;
    if let Ok(online) = guest::use_vcpus(&guest, ID, 2, SOON).await {
        assert!(online <= 255, "{online}");
    }
    for command in guest.agent_commands() {
        if command["execute"] == "guest-set-vcpus" {
            let changes = command["arguments"]["vcpus"].as_array();
            let changes = changes.map(Vec::as_slice).unwrap_or_default();
            assert!((1..=255).contains(&changes.len()), "{}", changes.len());
            let lists = contents[0].as_array();
            for change in changes {
                let listed = lists.into_iter().flatten().any(|vcpu| {
                    vcpu["logical-id"] == change["logical-id"] && vcpu["online"] != change["online"]
                });
                assert!(listed, "{change}");
            }
        }
    }
}

fn is_line(error: &Error) {
    let text = error.to_string();
    assert!(
        text.chars().count() <= LONGEST_REASON,
        "{} bytes",
        text.len()
    );
    assert!(!text.contains(char::is_control), "{text:?}");
}

#[allow(clippy::expect_used, reason = "the fake takes any definition")]
async fn guest_with(replies: &[Value]) -> FakeHypervisor {
    let guest = FakeHypervisor::default().agent_answering(replies.iter().cloned());
    let xml = format!("<domain><name>a</name><uuid>{ID}</uuid></domain>");
    guest.define(xml).await.expect("a domain");
    guest.start(ID).await.expect("a start");
    guest
}

#[allow(clippy::expect_used, reason = "the panic is the finding")]
fn finished(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("a runtime").block_on(work);
}

/// Replies in lines to the questions about facts, and the same bytes as a report of `vmlet-guest`.
///
/// # Panics
///
/// When a fact is longer than allowed, not printable, or not of its form.
pub fn guest_facts(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let replies: Vec<Value> = text
        .lines()
        .take(8)
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    finished(async {
        let guest = guest_with(&replies).await;
        are_bounded(&gather(&guest, ID).await);
    });
    if let Ok(facts) = guestapi::Facts::decode(input) {
        let reply = of_vmlet_guest(&facts);
        are_bounded(&reply);
        // Facts that are bounded already are reported as they are.
        let again = guestapi::Facts {
            host_name: reply.host_name.clone(),
            kernel: reply.kernel.clone(),
            interfaces: reply.interfaces.iter().map(wire).collect(),
            ..guestapi::Facts::default()
        };
        let again = of_vmlet_guest(&again);
        assert_eq!(again.host_name, reply.host_name);
        assert_eq!(again.kernel, reply.kernel);
        assert_eq!(again.interfaces, reply.interfaces);
    }
}

fn wire(nic: &Interface) -> guestapi::Interface {
    guestapi::Interface {
        name: nic.name.clone(),
        mac: nic.mac.clone(),
        addresses: nic.addresses.clone(),
    }
}

fn are_bounded(reply: &Reply) {
    for fact in [
        &reply.host_name,
        &reply.os_id,
        &reply.os_name,
        &reply.os_version,
        &reply.kernel,
    ] {
        is_fact(fact);
    }
    assert!(reply.interfaces.len() <= 16);
    for nic in &reply.interfaces {
        is_fact(&nic.name);
        assert!(!nic.name.is_empty());
        let mac: Result<netns::Mac, _> = nic.mac.parse();
        assert_eq!(mac.map(|mac| mac.to_string()), Ok(nic.mac.clone()));
        assert!(nic.addresses.len() <= 32);
        for address in &nic.addresses {
            let parts = address.split_once('/');
            let parts =
                parts.and_then(|(ip, prefix)| Some((ip.parse().ok()?, prefix.parse().ok()?)));
            let is_there = |(ip, prefix): (IpAddr, u8)| {
                prefix <= if ip.is_ipv4() { 32 } else { 128 } && !ip.is_loopback()
            };
            assert!(parts.is_some_and(is_there), "{address}");
        }
    }
    are_published(&reply.published);
}

fn is_fact(text: &str) {
    assert!(text.chars().count() <= LONGEST_FACT, "{} bytes", text.len());
    assert!(!text.contains(char::is_control), "{text:?}");
    assert_eq!(text.trim(), text);
}

/// The file in which a guest publishes values.
///
/// # Panics
///
/// When a value is published that the file does not have, or one that must not be shown.
pub fn guest_info(input: &[u8]) {
    let facts = guestapi::Facts {
        published: input.to_vec().into(),
        ..guestapi::Facts::default()
    };
    let values = of_vmlet_guest(&facts).published;
    are_published(&values);
    // By the rules of the file's description: the last line of a key counts.
    let text = String::from_utf8_lossy(input);
    for (key, value) in &values {
        let of_key = |line: &&str| line.split_once('=').is_some_and(|(k, _)| k.trim() == key);
        let mut lines = text
            .lines()
            .filter(of_key)
            .filter_map(|line| line.split_once('='));
        assert!(lines.any(|(_, written)| written.trim() == value), "{key}");
    }
    // The values, written as such a file, are read as the same.
    let file: String = values.iter().map(|(k, v)| format!("{k}={v}\n")).collect();
    let again = guestapi::Facts {
        published: file.into_bytes().into(),
        ..guestapi::Facts::default()
    };
    assert_eq!(of_vmlet_guest(&again).published, values);
}

fn are_published(values: &BTreeMap<String, String>) {
    assert!(values.len() <= 16);
    let size: usize = values.iter().map(|(k, v)| k.len() + v.len() + 1).sum();
    assert!(size <= 1024, "{size}");
    for (key, value) in values {
        let is_key = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        assert!(
            !key.is_empty() && key.len() <= 253 && key.chars().all(is_key),
            "{key}"
        );
        assert!(
            value.chars().all(|c| c.is_ascii_graphic() || c == ' '),
            "{value:?}"
        );
    }
}
