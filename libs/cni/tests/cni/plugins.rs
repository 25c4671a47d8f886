//! The reference plugins in two fresh network namespaces: one plays the node, one the pod.
//!
//! Invariant: the node's namespace belongs to the thread that runs the test and the plugins, the
//! pod's to a second thread; both vanish with their threads, and no name or mount is made for
//! either.
//! Failure: everything on disk is below a scratch directory, so nothing stays behind.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use cni::{Attachment, Error, Failure, NetworkConfig, Runtime, Settings};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

const V4: &str = "10.88.7.0/24";
const V6: &str = "fd00:88:7::/64";

const SOON: Duration = Duration::from_secs(60);

/// Runs `test` in a network namespace of its own, with an asynchronous runtime on this very thread:
/// its children are born there.
fn on_a_fresh_node<F: Future<Output = ()>>(test: impl FnOnce(Scratch) -> F + Send + 'static) {
    let node = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let scratch = Scratch {
            dir: tempfile::tempdir().unwrap(),
        };
        runtime.block_on(async { tokio::time::timeout(6 * SOON, test(scratch)).await.unwrap() });
    });
    if let Err(panic) = node.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A network namespace that lives as long as its thread.
struct Pod {
    path: PathBuf,
    jobs: mpsc::Sender<Box<dyn FnOnce() + Send>>,
    thread: JoinHandle<()>,
}

impl Pod {
    fn new() -> Self {
        let (jobs, queue) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (send, received) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let process = std::process::id();
            let thread = nix::unistd::gettid();
            send.send(format!("/proc/{process}/task/{thread}/ns/net"))
                .unwrap();
            queue.iter().for_each(|job| job());
        });
        Self {
            path: received.recv_timeout(SOON).unwrap().into(),
            jobs,
            thread,
        }
    }

    /// Runs `job` in the namespace.
    fn inside<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (send, received) = mpsc::channel();
        self.jobs
            .send(Box::new(move || send.send(job()).unwrap()))
            .unwrap();
        received.recv_timeout(SOON).unwrap()
    }

    fn vanish(self) {
        drop(self.jobs);
        self.thread.join().unwrap();
    }
}

struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    fn runtime(&self) -> Runtime {
        Runtime::new(Settings {
            conf_dir: self.dir.path().join("conf"),
            bin_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
            cache_dir: self.dir.path().join("cache"),
            timeout: SOON,
        })
    }

    /// A pod gets one address per subnet.
    fn bridge(&self, subnets: &[&str]) -> NetworkConfig {
        let ranges: Vec<Value> = subnets.iter().map(|net| json!([{"subnet": net}])).collect();
        let config = json!({"cniVersion": "1.0.0", "name": "test-net", "plugins": [
            {"type": "bridge", "bridge": "cbr0", "isGateway": true, "ipMasq": true, "mtu": 1400,
             "ipam": {"type": "host-local", "dataDir": self.dir.path().join("ipam"),
                      "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]},
             "dns": {"nameservers": ["10.88.0.10"]}},
            {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
        ]});
        NetworkConfig::parse(config.to_string().as_bytes()).unwrap()
    }

    /// Addresses that host-local has given away.
    fn reserved(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.dir.path().join("ipam/test-net")) else {
            return Vec::new();
        };
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        names
            .filter(|name| name.parse::<IpAddr>().is_ok() || name.contains("fd00"))
            .collect()
    }
}

fn attachment(container: &str, netns: &Path) -> Attachment {
    Attachment {
        container_id: container.into(),
        netns: netns.into(),
        ifname: "eth0".into(),
        args: vec![("IgnoreUnknown".into(), "1".into())],
        capabilities: BTreeMap::from([(
            "portMappings".into(),
            json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]),
        )]),
    }
}

/// What a program prints, run in the namespace of the calling thread.
fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Names of all links but the loopback, in the namespace of the calling thread.
fn links() -> Vec<String> {
    let list: Value = serde_json::from_str(&output("ip", &["-j", "link"])).unwrap();
    let names = list
        .as_array()
        .unwrap()
        .iter()
        .map(|l| l["ifname"].as_str().unwrap().to_owned());
    names.filter(|name| name != "lo").collect()
}

fn nat_rules() -> String {
    output("iptables", &["-t", "nat", "-S"])
}

#[test]
#[ignore = "needs root"]
fn a_pod_is_reached_through_bridge_and_port_mapping_and_nothing_is_left_of_it() {
    on_a_fresh_node(|scratch| async move {
        let runtime = scratch.runtime();
        let network = scratch.bridge(&[V4, V6]);
        let pod = Pod::new();
        runtime.status(&network).await.unwrap();
        let attachment = attachment("c1", &pod.path);
        let result = runtime.add(&network, &attachment).await.unwrap().parsed;

        let eth0 = result
            .interfaces
            .iter()
            .position(|i| i.sandbox.is_some())
            .unwrap();
        assert_eq!(result.interfaces[eth0].name, "eth0");
        assert_eq!(result.interfaces[eth0].mac.len(), 17);
        let ips: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
        assert_eq!(ips, ["10.88.7.2/24", "fd00:88:7::2/64"]);
        assert!(
            result
                .ips
                .iter()
                .all(|ip| ip.interface == u32::try_from(eth0).ok())
        );
        assert_eq!(result.ips[0].gateway, Some("10.88.7.1".parse().unwrap()));
        assert_eq!(result.dns.unwrap().nameservers, ["10.88.0.10"]);
        assert_eq!(pod.inside(links), ["eth0"]);
        assert_eq!(links().len(), 2, "bridge and one port");

        pod.inside(|| {
            let listener = TcpListener::bind("0.0.0.0:80").unwrap();
            std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"pod"));
        });
        let node: SocketAddr = "10.88.7.1:8080".parse().unwrap();
        let stream = TcpStream::connect_timeout(&node, SOON).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        assert_eq!(std::io::read_to_string(stream).unwrap(), "pod");

        runtime.del(&attachment, None).await.unwrap();
        assert!(pod.inside(links).is_empty());
        assert_eq!(links(), ["cbr0"]);
        assert!(scratch.reserved().is_empty(), "{:?}", scratch.reserved());
        assert!(!nat_rules().contains("10.88.7.2"), "{}", nat_rules());
        assert!(runtime.cached().await.unwrap().is_empty());
        runtime.del(&attachment, Some(&network)).await.unwrap();
        pod.vanish();
    });
}

#[test]
#[ignore = "needs root"]
fn check_sees_that_a_link_has_gone() {
    on_a_fresh_node(|scratch| async move {
        let runtime = scratch.runtime();
        let network = scratch.bridge(&[V4]);
        let pod = Pod::new();
        let mut attachment = attachment("c1", &pod.path);
        // With ports to map, portmap 1.1.1 looks for each rule in the tables of both families and
        // so fails every CHECK.
        attachment.capabilities.clear();
        runtime.add(&network, &attachment).await.unwrap();
        runtime.check(&attachment).await.unwrap();
        pod.inside(|| output("ip", &["link", "del", "eth0"]));
        let Err(Error::Plugin(error)) = runtime.check(&attachment).await else {
            panic!("the link is gone");
        };
        assert!(
            matches!(error.failure, Failure::Reported { .. }),
            "{error:?}"
        );
        assert_eq!((error.plugin.as_str(), error.command), ("bridge", "CHECK"));
        runtime.del(&attachment, None).await.unwrap();
        pod.vanish();
    });
}

#[test]
#[ignore = "needs root"]
fn the_address_of_a_pod_that_vanished_is_collected() {
    on_a_fresh_node(|scratch| async move {
        let runtime = scratch.runtime();
        let network = scratch.bridge(&[V4]);
        let gone = Pod::new();
        let stays = Pod::new();
        runtime
            .add(&network, &attachment("gone", &gone.path))
            .await
            .unwrap();
        let mut kept = attachment("stays", &stays.path);
        kept.capabilities.clear();
        runtime.add(&network, &kept).await.unwrap();
        assert_eq!(scratch.reserved().len(), 2);
        gone.vanish();
        let outcome = runtime.gc(Some(&network), &[kept.id()]).await.unwrap();
        assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
        assert_eq!(outcome.removed[0].id.container_id, "gone");
        assert_eq!(scratch.reserved().len(), 1);
        assert!(!nat_rules().contains("10.88.7.2:80"), "{}", nat_rules());
        runtime.check(&kept).await.unwrap();
        runtime.del(&kept, None).await.unwrap();
        assert!(scratch.reserved().is_empty());
        stays.vanish();
    });
}

#[test]
#[ignore = "needs root"]
fn a_chain_that_fails_in_its_middle_leaves_neither_link_nor_address() {
    on_a_fresh_node(|scratch| async move {
        let runtime = scratch.runtime();
        let network = scratch.bridge(&[V4]);
        let pod = Pod::new();
        let mut attachment = attachment("c1", &pod.path);
        attachment
            .capabilities
            .insert("portMappings".into(), json!("nonsense"));
        let Err(Error::Plugin(error)) = runtime.add(&network, &attachment).await else {
            panic!("portmap takes nonsense");
        };
        assert_eq!((error.plugin.as_str(), error.command), ("portmap", "ADD"));
        // The same nonsense keeps portmap from its DEL; bridge has had its turn all the same.
        assert!(pod.inside(links).is_empty());
        assert!(scratch.reserved().is_empty(), "{:?}", scratch.reserved());
        assert!(!runtime.cached().await.unwrap()[0].complete);
        pod.vanish();
    });
}

#[test]
#[ignore = "needs root"]
fn the_loopback_plugin_brings_the_loopback_up() {
    on_a_fresh_node(|scratch| async move {
        let pod = Pod::new();
        let config = br#"{"cniVersion":"0.3.1","name":"lo","type":"loopback"}"#;
        let network = NetworkConfig::parse(config).unwrap();
        let mut attachment = attachment("c1", &pod.path);
        attachment.ifname = "lo".into();
        let runtime = scratch.runtime();
        let result = runtime.add(&network, &attachment).await.unwrap();
        assert_eq!(result.raw["cniVersion"], "0.3.1");
        assert!(
            result
                .parsed
                .ips
                .iter()
                .any(|ip| ip.address.addr().is_loopback())
        );
        let state = || output("ip", &["link", "show", "lo"]);
        assert!(pod.inside(state).contains(",UP"));
        runtime.del(&attachment, None).await.unwrap();
        assert!(!pod.inside(state).contains(",UP"));
        pod.vanish();
    });
}
