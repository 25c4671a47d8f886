//! Uploads to a cluster that the test plays.
//!
//! Invariant: the server answers every request; none reaches a node.
//! Failure: a test names the requests that the server received.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use clap::Parser;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::*;

/// What the API server has received: method, path and query.
type Requests = Arc<Mutex<Vec<String>>>;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    args: UploadArgs,
}

fn parsed(arguments: &[&str]) -> Result<UploadArgs, clap::Error> {
    let fixed = ["upload", "disk", "--name", "web"];
    let parsed = Command::try_parse_from(fixed.iter().chain(arguments));
    parsed.map(|command| command.args)
}

fn failure(code: StatusCode, reason: &str, message: &str) -> (StatusCode, Value) {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "reason": reason, "message": message, "code": code.as_u16()});
    (code, body)
}

/// Pods of three nodes, one of which has two, and one of which has none that runs; no user may execute a program in them.
fn answer(request: &Request<Incoming>, is_refused: bool) -> (StatusCode, Value) {
    let path = request.uri().path();
    if request.method() == Method::PATCH {
        if is_refused {
            return failure(
                StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid",
                "it is immutable",
            );
        }
        return (StatusCode::OK, object("VirtualMachineImage", "web", "r"));
    }
    if path.ends_with("/exec") {
        return failure(StatusCode::FORBIDDEN, "Forbidden", "pods/exec");
    }
    let pod = |node: &str, name: &str| {
        json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": []},
            "status": {"phase": "Running"}})
    };
    let query = request.uri().query().unwrap_or_default();
    let items = match query.split_once("nodeName%3D") {
        Some((_, rest)) => {
            let node = rest.split('&').next().unwrap_or_default();
            vec![pod(node, &format!("pod-{node}"))]
        }
        None => {
            let mut away = pod("n0", "pod-n0");
            away["status"]["phase"] = json!("Pending");
            vec![
                away,
                pod("n2", "pod-n2"),
                pod("n1", "pod-n1"),
                pod("n1", "old"),
            ]
        }
    };
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
    (StatusCode::OK, list)
}

/// Runs the command against a server; its error, and what the server received.
async fn refused(arguments: &[&str], is_refused: bool) -> (String, Vec<String>) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let requests = Requests::default();
    let received = Arc::clone(&requests);
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let received = Arc::clone(&received);
            let service = service_fn(move |request: Request<Incoming>| {
                let line = format!("{} {}", request.method(), request.uri());
                received.lock().unwrap().push(line);
                let (code, body) = answer(&request, is_refused);
                async move {
                    let response = Response::builder().status(code);
                    let response = response.header("content-type", "application/json");
                    let body = Full::new(Bytes::from(body.to_string()));
                    Ok::<_, Infallible>(response.body(body).unwrap())
                }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("d");
    std::fs::write(&file, "a disk").unwrap();
    let kubeconfig = dir.path().join("config");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}]});
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let mut args = parsed(arguments).unwrap();
    args.file = file;
    args.cluster.kubeconfig = Some(kubeconfig);
    let error = format!("{:#}", run(&args).await.unwrap_err());
    serving.abort();
    let requests = std::mem::take(&mut *requests.lock().unwrap());
    (error, requests)
}

#[test]
fn another_file_has_another_name() {
    let one = reference("team", "web", &"ab".repeat(32));
    assert_eq!(one, "vmlet.dev/upload.invalid/team/web:abababababab");
    assert_ne!(one, reference("team", "web", &"ac".repeat(32)));
}

#[test]
fn nodes_are_named_or_all_of_them() {
    let two = parsed(&["--node", "n1", "--node", "n2"]).unwrap();
    assert_eq!(two.node, ["n1", "n2"]);
    assert!(parsed(&["--all-nodes"]).unwrap().all_nodes);
    assert!(parsed(&[]).is_err());
    assert!(parsed(&["--all-nodes", "--node", "n1"]).is_err());
}

#[tokio::test]
async fn nothing_is_sent_for_an_object_that_the_api_server_refuses() {
    for nodes in [&["--node", "n1"][..], &["--node", "n1", "--node", "n2"]] {
        let (error, requests) = refused(nodes, true).await;
        assert!(error.contains("it is immutable"), "{error}");
        let patches = requests.iter().filter(|one| one.starts_with("PATCH "));
        let patches: Vec<_> = patches.collect();
        assert_eq!(patches.len(), 1, "{requests:?}");
        assert!(patches[0].contains("dryRun=All"), "{requests:?}");
        let of_node = requests.iter().any(|one| one.contains("/exec"));
        assert!(!of_node, "{requests:?}");
    }
}

#[tokio::test]
async fn a_node_that_fails_keeps_no_other_from_the_file_and_without_any_there_is_no_image() {
    let (error, requests) = refused(&["--all-nodes"], false).await;
    assert!(
        error.starts_with("failed to upload to 3 of 3 nodes: n1, n2, n0; "),
        "one that does not run is the last: {error}"
    );
    let of = |words: &str| requests.iter().filter(|one| one.contains(words)).count();
    for pod in ["pod-n1/exec", "pod-n2/exec", "pod-n0/exec"] {
        assert_eq!(of(pod), 1, "{requests:?}");
    }
    assert_eq!(of("PATCH "), 1, "no object is written: {requests:?}");
    assert_eq!(of("dryRun=All"), 1, "{requests:?}");
}

#[tokio::test]
async fn the_error_of_the_only_node_is_that_of_the_command() {
    let (error, requests) = refused(&["--node", "n1"], false).await;
    assert!(error.starts_with("not allowed: "), "{error}");
    assert_eq!(requests.len(), 3, "{requests:?}");
}
