//! Which methods of the CRI the daemon has: its own services, requested every method that the
//! protocol lists.
//!
//! Invariant: helpers are away, so that requests without content reach nothing outside the scratch
//! directory.
//! Failure: the methods that differ from the list are named, and a refusal that does not say what
//! it refuses.

use clap::Parser as _;
use http::header;
use http_body_util::Full;
use hyper::body::Bytes;
use service::admin_http::Endpoint;
use service::settings::{Flags, layered};
use tokio_util::sync::CancellationToken;
use tower::{Service as _, ServiceExt as _};

use super::*;
use crate::config::Config;
use crate::streaming::Streaming;

const FACTS: &str = include_str!("../../../tests/fixtures/cri-fields.tsv");

/// Methods that the daemon has only to say what serves instead.
const REFUSED: [&str; 1] = ["RuntimeService/CheckpointContainer"];

/// `Service/Method` for each method of the protocol.
fn protocol() -> Vec<String> {
    let methods = FACTS.lines().filter_map(|line| {
        let (service, rest) = line.strip_prefix("rpc\t")?.split_once('\t')?;
        Some(format!("{service}/{}", rest.split_once('\t')?.0))
    });
    methods.collect()
}

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    settings: Flags<Config>,
}

/// A daemon on its own: no libvirt, no tapmanager.
pub(super) fn alone_in(dir: &Path) -> Config {
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
    let line = Line::try_parse_from(["vmlet"].into_iter().chain(words)).unwrap();
    layered(&line.settings, []).unwrap().config
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
async fn the_daemon_has_every_method_except_those_that_it_refuses() {
    let state = tempfile::tempdir().unwrap();
    let config = alone_in(state.path());
    let app = App::start(&config).await.unwrap();
    let streaming = Streaming::bind(config.streaming.listen, None)
        .await
        .unwrap();
    let gate = streaming.gate();
    let runtime = runtime::Runtime::new(app.clone(), &config, gate);
    let metrics = Arc::clone(app.containers.metrics());
    let page = state.path().join("metrics.sock");
    let endpoint = Endpoint::Unix(page.clone());
    let stop = CancellationToken::new();
    let pages = crate::metrics::serve(&endpoint, app.clone(), stop.clone());
    let pages = tokio::spawn(pages.await.unwrap());
    let images = image::Images::new(app);
    let server = Server::counted(runtime, images, DEADLINE, metrics).await;
    let ask = async {
        let mut channel = connect(&server.path).await;
        let mut refused = Vec::new();
        for method in protocol() {
            if let Some(status) = outcome(&mut channel, &method).await
                && status.code() == Code::Unimplemented
            {
                assert!(names(&status, &method), "{method}: {status:?}");
                refused.push(method);
            }
        }
        for method in ["RuntimeService/Levitate", "NoService/Version"] {
            let status = outcome(&mut channel, method).await.unwrap();
            assert_eq!(status.code(), Code::Unimplemented);
            assert!(names(&status, method), "{method}: {status:?}");
        }
        refused
    };
    let refused = tokio::time::timeout(DEADLINE, ask).await.unwrap();
    assert_eq!(refused, REFUSED);
    counted(&page).await;
    stop.cancel();
    pages.await.unwrap();
    server.stop().await;
}

/// The requests are on the page of the metrics, those of no known method under one name.
async fn counted(socket: &Path) {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut page = String::new();
    let reading = stream.read_to_string(&mut page);
    let read = tokio::time::timeout(DEADLINE, reading).await;
    read.unwrap().unwrap();
    for line in [
        r#"vmlet_cri_requests_total{method="Version",code="OK"} 1"#,
        r#"vmlet_cri_requests_total{method="CheckpointContainer",code="UNIMPLEMENTED"} 1"#,
        // The name that no method has; the method of an unknown service has a known one.
        r#"vmlet_cri_requests_total{method="other",code="UNIMPLEMENTED"} 1"#,
        "vmlet_libvirt_connected 0",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    assert!(!page.contains("Levitate"), "{page}");
}

/// Whether a refusal begins with the method's own name, and continues.
fn names(status: &Status, method: &str) -> bool {
    let name = method.rsplit('/').next().unwrap();
    let rest = status.message().strip_prefix(name);
    rest.is_some_and(|rest| rest.starts_with(": ") && rest.len() > 10)
}
