//! A guest that floods its DHCP server, beside one that needs its address.
//!
//! Invariant: each guest has a NIC and a lease of its own; the servers of both share two threads,
//! as those of a node do.
//! Failure: the other guest gets no lease in time. The output has the cost of the flood.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use netns::bridge_setup::{self, LinkRecord};
use netns::dhcp::{Lease, Server};
use netns::netlink::Kernel;
use netns::{Guard, Namespace, open_tap};

use crate::frames::{BROADCAST, ether, ip4, udp};
use crate::guest::{Guest, Scratch, run};

/// A pod that is ready for a guest.
struct Pod {
    namespace: Namespace,
    record: LinkRecord,
}

impl Pod {
    async fn new(scratch: &Scratch, name: &str) -> Self {
        let namespace = Namespace::create(scratch.path(), name).await.unwrap();
        run(
            &namespace,
            "ip link add eth0 type veth peer name out0 && ip link set out0 up && ip link set eth0 up \
             && ip addr add 10.1.2.5/24 dev eth0",
        )
        .await;
        let kernel = Kernel::open(&namespace).await.unwrap();
        bridge_setup::prepare(&kernel).await.unwrap();
        let mut records = bridge_setup::survey(&kernel).await.unwrap();
        records.retain(|record| record.link == "eth0");
        let own = Guard::Own(vec![Ipv4Addr::new(10, 1, 2, 5).into()]);
        bridge_setup::apply(&kernel, &records, &[own])
            .await
            .unwrap();
        let record = records.remove(0);
        Self { namespace, record }
    }

    fn lease(&self) -> (String, Lease) {
        let lease = Lease {
            mac: self.record.mac,
            address: "10.1.2.5/24".parse().unwrap(),
            gateway: None,
            routes: Vec::new(),
            mtu: 1500,
            dns: Vec::new(),
            searches: Vec::new(),
            hostname: None,
        };
        (self.record.bridge.clone(), lease)
    }
}

/// A DISCOVER of that NIC as QEMU writes it to a tap.
fn discover(mac: [u8; 6]) -> Vec<u8> {
    let mut body = vec![0_u8; 236];
    body[..8].copy_from_slice(&[1, 1, 6, 0, 1, 2, 3, 4]);
    body[28..34].copy_from_slice(&mac);
    body.extend([99, 130, 83, 99, 53, 1, 1, 255]);
    let packet = ip4("0.0.0.0", "255.255.255.255", 17, 0, &udp(68, 67, &body));
    let frame = ether(mac, BROADCAST, 0x800, &packet);
    [&[0; 10][..], &frame[..]].concat()
}

#[test]
#[ignore = "needs root"]
fn a_flood_of_one_guest_keeps_no_other_from_its_address() {
    let servers = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("servers")
        .enable_all()
        .build()
        .unwrap();
    let guests = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let scratch = Scratch::new();
    let (hostile, other) = guests.block_on(async {
        let hostile = Pod::new(&scratch, "hostile").await;
        (hostile, Pod::new(&scratch, "other").await)
    });
    let served = servers.block_on(async {
        let first = Server::start(&hostile.namespace, vec![hostile.lease()]).await;
        let second = Server::start(&other.namespace, vec![other.lease()]).await;
        (first.unwrap(), second.unwrap())
    });
    let tap = guests
        .block_on(open_tap(&hostile.namespace, &hostile.record.tap))
        .unwrap();
    let stop = Arc::new(AtomicBool::default());
    let sent = Arc::new(AtomicU64::new(0));
    let flood = std::thread::spawn({
        let stop = Arc::clone(&stop);
        let sent = Arc::clone(&sent);
        let frame = discover(hostile.record.mac.bytes());
        move || {
            // What comes back is not read: the tap drops it.
            while !stop.load(Ordering::Relaxed) {
                nix::unistd::write(&tap, &frame).unwrap();
                sent.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    // The flood is in full spate before the other guest begins.
    while sent.load(Ordering::Relaxed) < 10_000 {
        std::thread::yield_now();
    }
    let begun = (netns::answers(), sent.load(Ordering::Relaxed), used());
    let since = std::time::Instant::now();
    let bound = guests.block_on(async {
        let tap = open_tap(&other.namespace, &other.record.tap).await.unwrap();
        let mac = other.record.mac.to_string();
        let guest = Guest::plug(scratch.path(), "guest", tap, &mac).await;
        guest.lease("").await
    });
    stop.store(true, Ordering::Relaxed);
    flood.join().unwrap();
    let answered = netns::answers().dhcp4 - begun.0.dhcp4;
    let sent = sent.load(Ordering::Relaxed) - begun.1;
    println!(
        "{sent} requests and {answered} answers in {:?}, {} ms of processor time in the servers",
        since.elapsed(),
        used() - begun.2
    );
    assert_eq!(bound.get("ip").map(String::as_str), Some("10.1.2.5"));
    drop(served);
}

/// Processor time of the servers' threads until now, in milliseconds.
fn used() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let ticks = tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        let (name, rest) = stat.split_once(") ")?;
        let mut fields = rest.split(' ').skip(11);
        let ticks = |field: Option<&str>| field?.parse::<u64>().ok();
        name.contains("(servers")
            .then(|| Some(ticks(fields.next())? + ticks(fields.next())?))?
    });
    ticks.sum::<u64>() * 10
}
