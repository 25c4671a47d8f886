//! The NetworkPolicies of `deploy/`, and the listeners of the programs that they are for.
//!
//! Invariant: a listener that other hosts reach has a named port, and each such port has a decision
//! here on who reaches it, which is what a policy allows. Where pods use the node's network,
//! policies have no effect: they listen on loopback, or behind a proxy that authorises.
//! Failure: a sentence for each contradiction.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Namespaces whose pods reach a port of that name.
const DECISIONS: [(&str, &[&str]); 2] = [("metrics", &["monitoring"]), ("health", &[])];
/// Option of a proxy that lets only those in whom the API server authorises.
const AUTHORISED: &str = "--secure-listen-address=";

/// The files of `deploy/`, by their path in it.
type Files = BTreeMap<String, String>;

/// A DaemonSet or a Deployment.
struct Workload<'a> {
    object: &'a Value,
    files: &'a Files,
}

fn read() -> Files {
    fn walk(root: &Path, folder: &Path, files: &mut Files) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, files);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                let name = path.strip_prefix(root).unwrap().to_string_lossy();
                files.insert(name.into_owned(), text);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let mut files = Files::new();
    walk(&root, &root, &mut files);
    // Copies of the other files.
    files.retain(|name, _| !name.starts_with("chart/"));
    files
}

/// What `kubectl apply -k` reads of a folder.
fn objects(files: &Files, folder: &str) -> Vec<Value> {
    let path = |name: &str| {
        let path: PathBuf = Path::new(folder).join(name);
        path.to_string_lossy().into_owned()
    };
    let documents = |name: &str| {
        let text = files.get(name).expect(name);
        let parts = text.split("\n---\n").map(serde_saphyr::from_str::<Value>);
        parts.map(Result::unwrap).collect::<Vec<_>>()
    };
    let kustomization = documents(&path("kustomization.yaml")).remove(0);
    let mut all = Vec::new();
    for name in texts(&kustomization["resources"]) {
        if files.contains_key(&path(name)) {
            all.extend(documents(&path(name)));
        } else {
            all.extend(objects(files, &path(name)));
        }
    }
    all.push(kustomization);
    all
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Whether `labels` have all that is to match.
fn matches(wanted: &Value, labels: &Value) -> bool {
    let wanted = wanted.as_object().filter(|all| !all.is_empty());
    wanted.is_some_and(|all| all.iter().all(|(key, value)| labels[key] == *value))
}

impl Workload<'_> {
    fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap()
    }

    fn pod(&self) -> &Value {
        &self.object["spec"]["template"]["spec"]
    }

    fn labels(&self) -> &Value {
        &self.object["spec"]["template"]["metadata"]["labels"]
    }

    fn is_on_the_nodes_network(&self) -> bool {
        self.pod()["hostNetwork"] == true
    }

    /// Names of ports, by number.
    fn ports(&self) -> BTreeMap<u64, &str> {
        let ports = items(&self.pod()["containers"]).flat_map(|one| items(&one["ports"]));
        let named = ports.map(|port| {
            let name = port["name"].as_str().unwrap_or_default();
            (port["containerPort"].as_u64().unwrap(), name)
        });
        named.collect()
    }

    /// Each setting of an address that other hosts reach, with the port.
    fn listeners(&self, generated: &Value) -> Vec<(String, u64)> {
        let containers = items(&self.pod()["containers"]);
        let words = containers.flat_map(|one| texts(&one["command"]).chain(texts(&one["args"])));
        let words: Vec<_> = words.map(str::to_owned).collect();
        let volumes = items(&self.pod()["volumes"]);
        let maps: Vec<_> = volumes.map(|one| &one["configMap"]["name"]).collect();
        let maps = items(generated).filter(|map| maps.contains(&&map["name"]));
        let lines = maps
            .flat_map(|map| texts(&map["files"]))
            .flat_map(|file| self.files[file].lines())
            .map(|line| line.replace([' ', '"'], ""));
        let settings = words.into_iter().chain(lines);
        settings.filter_map(|setting| listener(&setting)).collect()
    }
}

/// The port of a setting such as `--health-listen=0.0.0.0:9623` or `listen=:9650`.
fn listener(setting: &str) -> Option<(String, u64)> {
    let (key, address) = setting.split_once('=')?;
    let (host, port) = address.rsplit_once(':')?;
    let is_local = host.starts_with("127.") || host == "[::1]" || host == "localhost";
    let port = port
        .parse()
        .ok()
        .filter(|_| key.contains("listen") && !is_local)?;
    Some((setting.to_owned(), port))
}

/// Namespaces that a policy's rule names; none for a rule that allows anything else, too.
fn namespaces(rule: &Value) -> Option<BTreeSet<String>> {
    let peers = rule["from"].as_array().filter(|all| !all.is_empty())?;
    let of = |peer: &Value| {
        let fields = peer.as_object().filter(|fields| fields.len() == 1)?;
        let labels = fields.get("namespaceSelector")?["matchLabels"].as_object()?;
        let name = labels.get("kubernetes.io/metadata.name")?.as_str()?;
        (labels.len() == 1).then(|| name.to_owned())
    };
    peers.iter().map(of).collect()
}

/// What contradicts the invariant.
fn contradictions(files: &Files) -> Vec<String> {
    let mut all = objects(files, "");
    let generated = all.last().map(|k| k["configMapGenerator"].clone());
    let generated = generated.unwrap_or_default();
    all.extend(objects(files, "prometheus/scrape"));
    let of_kind = |kinds: &[&str]| {
        let is = |one: &&Value| kinds.iter().any(|kind| one["kind"] == *kind);
        all.iter().filter(is).collect::<Vec<_>>()
    };
    let workloads = of_kind(&["DaemonSet", "Deployment"]);
    let workloads = workloads
        .into_iter()
        .map(|object| Workload { object, files });
    let workloads: Vec<_> = workloads.collect();
    let policies = of_kind(&["NetworkPolicy"]);
    let mut found = Vec::new();
    for policy in &policies {
        let selector = &policy["spec"]["podSelector"]["matchLabels"];
        let selected = workloads.iter().filter(|w| matches(selector, w.labels()));
        let selected: Vec<_> = selected.collect();
        let name = policy["metadata"]["name"].as_str().unwrap_or_default();
        if selected.is_empty() {
            found.push(format!("policy {name} selects no pods: {selector}"));
        }
        if policy["spec"]["policyTypes"] != serde_json::json!(["Ingress"]) {
            found.push(format!("policy {name} is not one of ingress alone"));
        }
        let rules = items(&policy["spec"]["ingress"]);
        for port in rules.flat_map(|rule| items(&rule["ports"])) {
            for workload in &selected {
                if !workload.ports().values().any(|name| port["port"] == *name) {
                    let has = workload.name();
                    found.push(format!("policy {name}: {has} has no port {}", port["port"]));
                }
            }
        }
    }
    for workload in &workloads {
        found.extend(of_workload(workload, &policies, &generated));
    }
    found
}

fn of_workload(workload: &Workload<'_>, policies: &[&Value], generated: &Value) -> Vec<String> {
    let name = workload.name();
    let mut found = Vec::new();
    let ports = workload.ports();
    let listeners = workload.listeners(generated);
    if !matches(
        &workload.object["spec"]["selector"]["matchLabels"],
        workload.labels(),
    ) {
        found.push(format!("{name} does not select its own pods"));
    }
    for (setting, port) in &listeners {
        if !ports.contains_key(port) {
            found.push(format!("{name}: {setting} has no port in the pod template"));
        }
        if workload.is_on_the_nodes_network() && !setting.starts_with(AUTHORISED) {
            found.push(format!("{name}: every host reaches {setting}"));
        }
    }
    for (number, port) in &ports {
        if !listeners.iter().any(|(_, listener)| listener == number) {
            found.push(format!("{name}: nothing listens on port {port}, {number}"));
        }
    }
    if workload.is_on_the_nodes_network() {
        return found;
    }
    for port in ports.values() {
        let Some((_, decided)) = DECISIONS.iter().find(|(name, _)| name == port) else {
            found.push(format!("{name}: no decision on who reaches port {port}"));
            continue;
        };
        match reached_from(workload, port, policies) {
            Some(from) if from.iter().eq(decided.iter()) => {}
            from => found.push(format!(
                "{name}: {from:?} reach port {port}, not {decided:?}"
            )),
        }
    }
    found
}

/// The namespaces whose pods reach a port; `None`: others do, too.
fn reached_from(
    workload: &Workload<'_>,
    port: &str,
    policies: &[&Value],
) -> Option<BTreeSet<String>> {
    let own = policies.iter().filter(|policy| {
        let selector = &policy["spec"]["podSelector"]["matchLabels"];
        matches(selector, workload.labels())
    });
    let own: Vec<_> = own.collect();
    if own.is_empty() {
        return None;
    }
    let mut from = BTreeSet::new();
    for rule in own
        .iter()
        .flat_map(|policy| items(&policy["spec"]["ingress"]))
    {
        let is_for_all = rule["ports"].as_array().is_none_or(Vec::is_empty);
        if is_for_all || items(&rule["ports"]).any(|one| one["port"] == port) {
            from.extend(namespaces(rule)?);
        }
    }
    Some(from)
}

#[test]
fn each_listener_is_reached_by_those_whom_a_policy_lets_in() {
    let files = read();
    assert_eq!(contradictions(&files), Vec::<String>::new());
    let policies = files
        .values()
        .filter(|text| text.contains("kind: NetworkPolicy"));
    let listed = objects(&files, "").into_iter();
    let listed = listed.filter(|one| one["kind"] == "NetworkPolicy");
    assert_eq!(
        policies.count(),
        listed.count(),
        "not in kustomization.yaml"
    );
}

/// A rule that cannot fail would let any of these through.
#[rstest::rstest]
#[case::another_label_of_the_pods(
    "controller/deployment.yaml",
    "name: vmlet-controller\nspec",
    "name: vmlet-control\nspec",
    "selects no pods"
)]
#[case::another_label_of_the_policy(
    "agent/networkpolicy.yaml",
    "name: vmlet-agent}",
    "name: vmlet-agents}",
    "selects no pods"
)]
#[case::another_name_of_the_port(
    "agent/daemonset.yaml",
    "name: metrics,",
    "name: prometheus,",
    "vmlet-agent has no port \"metrics\""
)]
#[case::another_name_in_the_policy(
    "controller/networkpolicy.yaml",
    "port: metrics",
    "port: metric",
    "vmlet-controller has no port \"metric\""
)]
#[case::another_port_in_the_arguments(
    "agent/daemonset.yaml",
    "listen=0.0.0.0:9624",
    "listen=0.0.0.0:9625",
    "listen=0.0.0.0:9625 has no port"
)]
#[case::another_port_in_the_settings(
    "controller/controller.toml",
    ":9631",
    ":9632",
    "nothing listens on port health"
)]
#[case::health_for_the_monitoring(
    "controller/networkpolicy.yaml",
    "port: metrics",
    "port: health",
    "reach port health"
)]
#[case::another_namespace(
    "agent/networkpolicy.yaml",
    "name: monitoring",
    "name: default",
    "reach port metrics"
)]
#[case::a_rule_for_all(
    "agent/networkpolicy.yaml",
    "matchLabels: {kubernetes.io/metadata.name: monitoring}",
    "matchLabels: {}",
    "reach port metrics"
)]
#[case::no_policy(
    "kustomization.yaml",
    "  - agent/networkpolicy.yaml\n",
    "",
    "vmlet-agent: None reach port metrics"
)]
#[case::a_listener_on_the_nodes_network(
    "node/vmlet.toml",
    "127.0.0.1:9640",
    "0.0.0.0:9640",
    "every host reaches listen=0.0.0.0:9640"
)]
#[case::a_new_listener(
    "agent/daemonset.yaml",
    "            - --metrics-listen",
    "            - --debug-listen=0.0.0.0:9625\n            - --metrics-listen",
    "--debug-listen=0.0.0.0:9625 has no port"
)]
#[case::a_new_port(
    "controller/deployment.yaml",
    "            - {name: metrics,",
    "            - {name: debug, containerPort: 9632}\n            - {name: metrics,",
    "no decision on who reaches port debug"
)]
fn a_manifest_that_differs_is_noticed(
    #[case] file: &str,
    #[case] old: &str,
    #[case] new: &str,
    #[case] noticed: &str,
) {
    let mut files = read();
    let text = files.get_mut(file).unwrap();
    assert!(text.contains(old), "{file} does not contain {old}");
    *text = text.replace(old, new);
    let found = contradictions(&files);
    assert!(found.iter().any(|one| one.contains(noticed)), "{found:#?}");
}
