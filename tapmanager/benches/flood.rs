//! Processor time of the program while a guest floods its DHCP server, and what another guest
//! notices: `flood SECONDS`.
//!
//! Invariant: the program, plugins, namespaces and taps are real. Both halves take the same time on
//! one node, first without the flood; prints one JSON object.
//! Failure: panics with the program's log.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests fail by panicking
#![allow(clippy::print_stdout, reason = "the samples are this program's output")]
#![allow(
    clippy::disallowed_methods,
    reason = "a guest that renews its lease each second waits in between"
)]

#[allow(dead_code, reason = "tests use the rest")]
#[path = "../../libs/netns/tests/netns/frames.rs"]
mod frames;
#[allow(dead_code, reason = "tests use the rest")]
#[path = "../../libs/netns/tests/netns/guest.rs"]
mod guest;
#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/real/node.rs"]
mod node;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{read, write};
use serde_json::json;
use tapmanager::wire::HandoffReply;

use crate::frames::{BROADCAST, ether, ip4, mac, udp};
use crate::node::{Node, pod};

/// What precedes a frame of a tap, for offloads.
const OFFLOADS: usize = 10;
/// Where the DHCP message of a frame begins.
const MESSAGE: usize = OFFLOADS + 14 + 20 + 8;
/// Length of a message's fixed part, with the cookie.
const FIXED: usize = 240;
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A NIC without a guest behind it.
struct Nic {
    tap: OwnedFd,
    mac: [u8; 6],
}

impl Nic {
    async fn add(node: &Node, id: &str) -> Self {
        node.client().add(pod(id)).await.unwrap();
        let (reply, mut taps) = node.redeem(&node.token(id).await).await;
        let HandoffReply::Ok { nics } = reply else {
            panic!("{reply:?}");
        };
        Self {
            tap: taps.remove(0),
            mac: mac(&nics[0].mac),
        }
    }

    /// A message as QEMU writes it to the tap.
    fn message(&self, kind: u8, number: u32, more: &[u8]) -> Vec<u8> {
        let mut body = vec![0; FIXED - 4];
        body[..4].copy_from_slice(&[1, 1, 6, 0]);
        body[4..8].copy_from_slice(&number.to_be_bytes());
        body[28..34].copy_from_slice(&self.mac);
        body.extend([99, 130, 83, 99, 53, 1, kind]);
        body.extend(more);
        body.push(255);
        let packet = ip4("0.0.0.0", "255.255.255.255", 17, 0, &udp(68, 67, &body));
        let frame = ether(self.mac, BROADCAST, 0x800, &packet);
        [&[0; OFFLOADS][..], &frame].concat()
    }

    /// Sends a message until the answer of that kind is there; returns the address in it.
    fn exchange(&self, message: &[u8], number: u32, kind: u8) -> [u8; 4] {
        let since = Instant::now();
        write(&self.tap, message).unwrap();
        loop {
            let left = PATIENCE.checked_sub(since.elapsed()).expect("no answer");
            let wait = PollTimeout::try_from(left).unwrap();
            poll(
                &mut [PollFd::new(self.tap.as_fd(), PollFlags::POLLIN)],
                wait,
            )
            .unwrap();
            let mut frame = [0; 2048];
            match read(&self.tap, &mut frame) {
                Ok(length) => match answer(&frame[..length], number, kind) {
                    Some(address) => return address,
                    None => continue,
                },
                Err(Errno::EAGAIN) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Gets a lease; returns how long that took.
    fn lease(&self, number: u32) -> Duration {
        let since = Instant::now();
        let discover = self.message(DISCOVER, number, &[]);
        let address = self.exchange(&discover, number, OFFER);
        let option = [&[50, 4][..], &address].concat();
        let request = self.message(REQUEST, number, &option);
        assert_eq!(self.exchange(&request, number, ACK), address);
        since.elapsed()
    }
}

/// The address in a frame, if that is the answer of this kind to this number.
fn answer(frame: &[u8], number: u32, kind: u8) -> Option<[u8; 4]> {
    let message = frame.get(MESSAGE..)?;
    let is_it = is_of_kind(message.get(FIXED..)?, kind) && message[4..8] == number.to_be_bytes();
    is_it.then(|| [message[16], message[17], message[18], message[19]])
}

/// Whether the options of a message have this type of message.
fn is_of_kind(mut options: &[u8], kind: u8) -> bool {
    while let [code, length, rest @ ..] = options {
        let Some((value, next)) = rest.split_at_checked(usize::from(*length)) else {
            return false;
        };
        if *code == 53 {
            return value == [kind];
        }
        options = next;
    }
    false
}

/// Processor time of all threads of a process, in seconds.
fn used(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    let nanos: u64 = tasks.flatten().filter_map(of).sum();
    Duration::from_nanos(nanos).as_secs_f64()
}

/// One half: a lease each second.
fn half(seconds: u32, pid: u32, nic: &Nic, samples: &mut BTreeMap<String, Vec<f64>>, name: &str) {
    let since = Instant::now();
    let before = used(pid);
    let mut add = |what: &str, value: f64| {
        let name = format!("{what}_{name}");
        samples.entry(name).or_default().push(value);
    };
    for number in 1..=seconds {
        add("lease", nic.lease(number).as_secs_f64() * 1e3);
        let next = Duration::from_secs(number.into());
        sleep(next.saturating_sub(since.elapsed()));
    }
    add("cpu", used(pid) - before);
    add("seconds", since.elapsed().as_secs_f64());
}

/// Kinds of requests, in turn.
fn flood(nic: &Nic, stop: &AtomicBool, sent: &AtomicU64) {
    let frames = [
        nic.message(DISCOVER, 7, &[]),
        nic.message(REQUEST, 7, &[50, 4, 10, 88, 7, 2]),
    ];
    // What comes back is not read: the tap drops it.
    for frame in frames.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        write(&nic.tap, frame).unwrap();
        sent.fetch_add(1, Ordering::Relaxed);
    }
}

fn main() {
    let seconds = std::env::args().filter_map(|word| word.parse().ok()).next();
    let seconds = seconds.expect("flood SECONDS");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (node, hostile, other) = runtime.block_on(async {
        let node = Node::start_with_log("info").await;
        let hostile = Nic::add(&node, "hostile").await;
        let other = Nic::add(&node, "other").await;
        (node, hostile, other)
    });
    let mut samples = BTreeMap::new();
    // The first lease is not counted.
    other.lease(0);
    half(seconds, node.pid(), &other, &mut samples, "quiet");
    let stop = Arc::new(AtomicBool::default());
    let sent = Arc::new(AtomicU64::new(0));
    let flooding = std::thread::spawn({
        let stop = Arc::clone(&stop);
        let sent = Arc::clone(&sent);
        move || flood(&hostile, &stop, &sent)
    });
    half(seconds, node.pid(), &other, &mut samples, "flood");
    stop.store(true, Ordering::Relaxed);
    flooding.join().unwrap();
    let sent = sent.load(Ordering::Relaxed);
    samples.insert(
        "frames".to_owned(),
        vec![f64::from(u32::try_from(sent).unwrap())],
    );
    println!("{}", json!({ "samples": samples, "facts": {} }));
    runtime.block_on(async {
        for id in ["hostile", "other"] {
            node.client().del(id).await.unwrap();
        }
    });
}
