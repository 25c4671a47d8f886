//! Which methods of the CRI the daemon has: its own services, asked for every method that the protocol lists.
//!
//! Invariant: helpers are away, so that requests without content reach nothing outside the scratch directory.
//! Failure: the methods that are missing from one of the lists are named.

use clap::Parser as _;
use http::header;
use http_body_util::Full;
use hyper::body::Bytes;
use tower::{Service as _, ServiceExt as _};

use super::*;
use crate::config::{self, Args};

const FACTS: &str = include_str!("../../../tests/fixtures/cri-fields.tsv");

/// What the generated code says for a method that a service does not have.
const MISSING: &str = "Not yet implemented";

/// Methods that the daemon does not have.
const ABSENT: [&str; 10] = [
    "RuntimeService/StreamPodSandboxes",
    "RuntimeService/StreamContainers",
    "RuntimeService/StreamContainerStats",
    "RuntimeService/StreamPodSandboxStats",
    "RuntimeService/CheckpointContainer",
    "RuntimeService/GetContainerEvents",
    "RuntimeService/ListMetricDescriptors",
    "RuntimeService/ListPodSandboxMetrics",
    "RuntimeService/StreamPodSandboxMetrics",
    "ImageService/StreamImages",
];

/// Methods that the daemon has only to say what serves instead.
const REFUSED: [&str; 3] = [
    "RuntimeService/Exec",
    "RuntimeService/Attach",
    "RuntimeService/PortForward",
];

/// `Service/Method` for each method of the protocol.
fn protocol() -> Vec<String> {
    let methods = FACTS.lines().filter_map(|line| {
        let (service, rest) = line.strip_prefix("rpc\t")?.split_once('\t')?;
        Some(format!("{service}/{}", rest.split_once('\t')?.0))
    });
    methods.collect()
}

/// A daemon on its own: no libvirt, no tapmanager.
fn alone_in(dir: &Path) -> Config {
    let at = |name: &str| dir.join(name).display().to_string();
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid());
    let words = [
        ("--config", "/dev/null".to_owned()),
        ("--listen", at("vmlet.sock")),
        ("--state-dir", at("state")),
        (
            "--libvirt-uri",
            format!("qemu+unix:///system?socket={}", at("none")),
        ),
        ("--network-tapmanager-socket", at("none")),
        ("--node-endpoint", at("node.sock")),
        ("--vm-accelerator", "tcg".to_owned()),
        (
            "--vm-user",
            user.unwrap().expect("our user has a name").name,
        ),
    ];
    let words = words
        .iter()
        .flat_map(|(flag, value)| [*flag, value.as_str()]);
    let args = Args::try_parse_from(["vmlet"].into_iter().chain(words)).unwrap();
    config::load(&args, |_| None).unwrap().config
}

/// The outcome of a request without content.
async fn outcome(channel: &mut Channel, method: &str) -> Option<Status> {
    let empty = Full::new(Bytes::from_static(&[0; 5]));
    let request = http::Request::post(format!("http://localhost/runtime.v1.{method}"))
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .body(tonic::body::Body::new(empty))
        .unwrap();
    let answer = channel.ready().await.unwrap().call(request).await.unwrap();
    // A refusal comes at once, without a body.
    Status::from_header_map(answer.headers())
}

#[tokio::test]
async fn the_daemon_has_every_method_but_those_of_the_lists() {
    let state = tempfile::tempdir().unwrap();
    let config = alone_in(state.path());
    let app = App::start(&config).await.unwrap();
    let runtime = runtime::Runtime::new(app.clone(), &config);
    let server = Server::of(runtime, image::Images::new(app), DEADLINE).await;
    let ask = async {
        let mut channel = connect(&server.path).await;
        let (mut absent, mut refused) = (Vec::new(), Vec::new());
        for method in protocol() {
            match outcome(&mut channel, &method).await {
                Some(status) if status.code() != Code::Unimplemented => {}
                None => {}
                Some(status) if status.message() == MISSING => absent.push(method),
                Some(_) => refused.push(method),
            }
        }
        (absent, refused)
    };
    let (absent, refused) = tokio::time::timeout(DEADLINE, ask).await.unwrap();
    assert_eq!((absent, refused), (named(&ABSENT), named(&REFUSED)));
    server.stop().await;
}

fn named(methods: &[&str]) -> Vec<String> {
    methods.iter().map(|&method| method.to_owned()).collect()
}
