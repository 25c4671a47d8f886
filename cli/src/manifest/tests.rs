//! Manifests that people write, and what is wrong with them.
//!
//! Invariant: every refusal names its field.
//! Failure: none.

use super::*;

const HELLO: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: hello-vm
  namespace: demo
  labels: {app: hello}
  annotations:
    vmlet.dev/vcpu-count: "2"
  creationTimestamp: null
spec:
  runtimeClassName: vmlet
  restartPolicy: Never
  terminationGracePeriodSeconds: 7
  dnsPolicy: None
  dnsConfig:
    nameservers: [10.0.0.10]
    searches: [svc.example]
    options: [{name: ndots, value: "5"}, {name: rotate}]
  containers:
  - name: vm
    image: vmlet.dev/127.0.0.1:8080/guest.img
    imagePullPolicy: IfNotPresent
    livenessProbe: {exec: {command: ["true"]}}
    ports:
    - {name: http, containerPort: 80, hostPort: 8080, protocol: TCP, hostIP: 127.0.0.1}
    - {containerPort: 443}
    env:
    - {name: A, value: "1"}
    - {name: EMPTY}
    resources:
      limits: {cpu: 1.5, memory: 128Mi}
      requests: {cpu: 500m, memory: 134217728, example.com/gpu: 1}
"#;

#[test]
fn an_ordinary_manifest_is_understood_whole() {
    let pod = PodManifest::parse(HELLO).unwrap();
    let container = ContainerManifest {
        name: "vm".into(),
        image: "vmlet.dev/127.0.0.1:8080/guest.img".into(),
        pull: PullPolicy::IfNotPresent,
        command: vec![],
        args: vec![],
        env: vec![("A".into(), "1".into()), ("EMPTY".into(), String::new())],
        stdin: false,
        tty: false,
        cpu: Share {
            request: Some(500),
            limit: Some(1500),
        },
        memory: Share {
            request: Some(1 << 27),
            limit: Some(1 << 27),
        },
        ports: vec![Port {
            protocol: Protocol::Tcp,
            container: 80,
            host: 8080,
            host_ip: "127.0.0.1".into(),
        }],
    };
    let expected = PodManifest {
        name: "hello-vm".into(),
        namespace: "demo".into(),
        uid: pod.uid.clone(),
        labels: BTreeMap::from([("app".into(), "hello".into())]),
        annotations: BTreeMap::from([("vmlet.dev/vcpu-count".into(), "2".into())]),
        runtime_handler: "vmlet".into(),
        hostname: "hello-vm".into(),
        dns: Some(Dns {
            servers: vec!["10.0.0.10".into()],
            searches: vec!["svc.example".into()],
            options: vec!["ndots:5".into(), "rotate".into()],
        }),
        grace: 7,
        container,
        warnings: vec![
            "metadata.creationTimestamp is not acted on".into(),
            "spec.containers[0].livenessProbe is not acted on".into(),
            "spec.containers[0].resources.requests.example.com/gpu is not acted on".into(),
        ],
    };
    assert_eq!(pod, expected);
    assert_ne!(
        pod.uid,
        PodManifest::parse(HELLO).unwrap().uid,
        "every run is a pod of its own"
    );
}

#[test]
fn the_least_manifest_gets_kubernetes_defaults() {
    let pod = minimal("", "");
    assert_eq!(
        (pod.namespace.as_str(), pod.runtime_handler.as_str()),
        ("default", "")
    );
    assert_eq!((pod.grace, pod.dns, pod.warnings), (30, None, vec![]));
    assert_eq!(pod.container.cpu, Share::default());
}

#[test]
fn the_pull_policy_follows_the_tag() {
    for (image, policy) in [
        ("a/b", PullPolicy::Always),
        ("a:5000/b", PullPolicy::Always),
        ("a/b:latest", PullPolicy::Always),
        ("a/b:1", PullPolicy::IfNotPresent),
        ("a/b@sha256:00", PullPolicy::IfNotPresent),
    ] {
        let text = base("", "").replace("image: i", &format!("image: {image}"));
        assert_eq!(
            PodManifest::parse(&text).unwrap().container.pull,
            policy,
            "{image}"
        );
    }
}

#[test]
fn what_would_be_missed_is_refused_by_name() {
    for (spec, container, expected) in [
        (
            "volumes: [{name: v, emptyDir: {}}]",
            "",
            "spec.volumes is not supported",
        ),
        (
            "initContainers: [{name: i}]",
            "",
            "spec.initContainers is not supported",
        ),
        ("hostNetwork: true", "", "spec.hostNetwork is not supported"),
        ("hostPID: true", "", "spec.hostPID is not supported"),
        (
            "dnsConfig: {nameservers: [1.1.1.1]}",
            "",
            "spec.dnsConfig is not supported",
        ),
        (
            "dnsPolicy: None",
            "",
            "spec.dnsPolicy = \"None\": it needs spec.dnsConfig.nameservers",
        ),
        (
            "terminationGracePeriodSeconds: -1",
            "",
            "spec.terminationGracePeriodSeconds = \"-1\"",
        ),
        (
            "hostname: Web",
            "",
            "spec.hostname = \"Web\": lower-case letters",
        ),
        (
            "",
            "volumeMounts: [{name: v}]",
            "spec.containers[0].volumeMounts is not supported",
        ),
        (
            "",
            "envFrom: [{}]",
            "spec.containers[0].envFrom is not supported",
        ),
        (
            "",
            "env: [{name: X, valueFrom: {}}]",
            "spec.containers[0].env[X].valueFrom is not",
        ),
        (
            "",
            "imagePullPolicy: Sometimes",
            "spec.containers[0].imagePullPolicy = \"Sometimes\"",
        ),
        (
            "",
            "ports: [{containerPort: 0}]",
            "spec.containers[0].ports[0].containerPort = \"0\"",
        ),
        (
            "",
            "ports: [{containerPort: 1, hostPort: 70000}]",
            "ports[0].hostPort = \"70000\"",
        ),
        (
            "",
            "ports: [{containerPort: 1, protocol: ICMP}]",
            "ports[0].protocol = \"ICMP\"",
        ),
        (
            "",
            "ports: [{containerPort: 1, hostIP: here}]",
            "ports[0].hostIP = \"here\"",
        ),
        (
            "",
            "resources: {limits: {cpu: lots}}",
            "resources.limits.cpu = \"lots\"",
        ),
        (
            "",
            "resources: {limits: {memory: -1}}",
            "resources.limits.memory = \"-1\"",
        ),
        (
            "",
            "resources: {limits: {memory: 8Ei}}",
            "resources.limits.memory = \"8Ei\": too large",
        ),
        (
            "",
            "resources: {limits: {cpu: 1}, requests: {cpu: 2}}",
            "must not exceed its limit",
        ),
    ] {
        let error = PodManifest::parse(&base(spec, container))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{spec}{container}: {error}");
    }
}

#[test]
fn a_pod_has_one_container() {
    let two = base("", "").replace("- {name: c", "- {name: d, image: j}\n  - {name: c");
    let error = PodManifest::parse(&two).unwrap_err().to_string();
    assert!(
        error.starts_with("spec.containers is not supported"),
        "{error}"
    );
    let none = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}";
    let error = PodManifest::parse(none).unwrap_err().to_string();
    assert!(error.contains("name one container"), "{error}");
}

#[test]
fn names_cannot_leave_their_directory() {
    for name in ["../etc", "a/b", "A", "", "a..b", "-a", ".."] {
        let text = base("", "").replace("name: p", &format!("name: {name:?}"));
        let error = PodManifest::parse(&text).unwrap_err().to_string();
        assert!(error.starts_with("metadata.name = "), "{name}: {error}");
    }
    let text = base("", "").replace("name: p", "name: p, uid: ../x");
    assert!(
        PodManifest::parse(&text)
            .unwrap_err()
            .to_string()
            .starts_with("metadata.uid = ")
    );
}

#[test]
fn other_kinds_and_other_texts_have_other_hashes() {
    let kind = PodManifest::parse("apiVersion: apps/v1\nkind: Deployment\nspec: {}").unwrap_err();
    assert!(matches!(kind, ManifestError::Kind { .. }), "{kind}");
    for text in [
        "",
        "- a\n- b",
        "{",
        "apiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Pod",
    ] {
        assert!(PodManifest::parse(text).is_err(), "{text}");
    }
    let error = PodManifest::parse(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}",
    );
    let ManifestError::Syntax(error) = error.unwrap_err() else {
        panic!("not a syntax error")
    };
    assert!(error.to_string().contains("image"), "{error}");
}

#[test]
fn a_file_that_is_absent_or_too_large_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pod.yaml");
    let error = PodManifest::load(&path).unwrap_err().to_string();
    assert!(error.starts_with("read manifest /"), "{error}");
    fs::write(&path, vec![b'#'; 1 << 21]).unwrap();
    let error = PodManifest::load(&path).unwrap_err().to_string();
    assert!(error.ends_with("is larger than 1024 KiB"), "{error}");
}

fn base(spec: &str, container: &str) -> String {
    let container = if container.is_empty() {
        String::new()
    } else {
        format!(", {container}")
    };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  {spec}\n  containers:\n  - \
         {{name: c, image: i{container}}}\n"
    )
}

fn minimal(spec: &str, container: &str) -> PodManifest {
    PodManifest::parse(&base(spec, container)).unwrap()
}

#[test]
fn several_documents_are_counted_and_one_between_marks_is_run() {
    let several = "# a pod\nkind: Secret\n---\n# and\n---\nkind: Pod\n--- # last\nkind: Service\n";
    let error = PodManifest::parse(several).unwrap_err().to_string();
    assert!(
        error.starts_with("manifest has 3 documents: only one Pod"),
        "{error}"
    );
    assert!(error.contains("kubectl apply -f"), "{error}");
    let pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: vm, image: b}]}\n";
    assert_eq!(PodManifest::parse(pod).unwrap().name, "a");
}
