//! Metrics: what programs register is what the pages list, and dashboards and alerts use no other.
//!
//! Invariant: the sources are read, so that a metric without a series counts, too.
//! Failure: the test names the metrics that differ.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The sources of each program's metrics; names of one program have one prefix.
const PROGRAMS: [&[&str]; 5] = [
    &["src/metrics.rs"],
    &["tapmanager/src/metrics.rs"],
    &["criproxy/src/metrics.rs"],
    &["agent/src/metrics.rs"],
    &[
        "controller/src/metrics.rs",
        "controller/src/metrics/queue.rs",
        "controller/src/metrics/machines.rs",
        "controller/src/metrics/machines/images.rs",
    ],
];

/// Pages with tables of metrics.
const PAGES: [&str; 4] = [
    "docs/observability.md",
    "docs/criproxy.md",
    "docs/agent.md",
    "docs/operations.md",
];

/// What follows the name of a histogram.
const HISTOGRAM: [&str; 3] = ["_bucket", "_sum", "_count"];

fn read(path: impl AsRef<Path>) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = root.join(path);
    let text = std::fs::read_to_string(&path);
    text.with_context(|| path.display().to_string()).unwrap()
}

fn files(folder: &str, end: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let entries = std::fs::read_dir(root.join(folder)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(end));
    assert!(!files.is_empty(), "no {end} in {folder}");
    files
}

/// Names that programs register, without what the text format appends.
fn registered() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for sources in PROGRAMS {
        let texts = sources.iter().map(|path| {
            let text = read(path);
            let code = text.split("#[cfg(test)]\nmod tests {").next();
            code.unwrap_or_default().to_owned()
        });
        let text: String = texts.collect();
        let (_, prefix) = text.split_once("with_prefix(\"").expect("a prefix");
        let prefix = prefix.split('"').next().unwrap();
        let before = all.len();
        for marker in [".register(", " gauges("] {
            for call in text.split(marker).skip(1) {
                let call = call.split(';').next().unwrap_or_default();
                // The definition of a function and a call without a name have no text.
                let Some((_, rest)) = call.split_once('"') else {
                    continue;
                };
                let name = rest.split('"').next().unwrap();
                assert!(
                    name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
                    "{name}"
                );
                all.insert(format!("{prefix}_{name}"));
            }
        }
        assert!(all.len() > before + 4, "{sources:?}");
    }
    all
}

/// Each name of the tables, and whether it is a histogram.
fn documented() -> BTreeMap<String, bool> {
    let mut all = BTreeMap::new();
    for page in PAGES {
        let page = read(page);
        for row in page.lines().filter(|line| line.starts_with("| `vmlet_")) {
            let (cell, rest) = row[2..].split_once(" | ").unwrap();
            for name in cell.split('`').filter(|part| part.starts_with("vmlet_")) {
                let name = name.split('{').next().unwrap();
                let old = all.insert(name.to_owned(), rest.contains("histogram"));
                assert_eq!(old, None, "{name} is listed twice");
            }
        }
    }
    all
}

/// Names in a text.
fn names(text: &str) -> BTreeSet<String> {
    let word = |c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let words = text.split(word).filter(|word| word.starts_with("vmlet_"));
    words.map(str::to_owned).collect()
}

#[test]
fn every_metric_is_documented_and_no_other_is() {
    let documented = documented();
    let documented = documented
        .keys()
        .map(|name| name.trim_end_matches("_total"));
    let documented: BTreeSet<_> = documented.map(str::to_owned).collect();
    let registered = registered();
    let missing: Vec<_> = registered.difference(&documented).collect();
    let stale: Vec<_> = documented.difference(&registered).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "in no table: {missing:?}; not registered: {stale:?}"
    );
}

#[test]
fn dashboards_and_alerts_use_metrics_that_exist() {
    let documented = documented();
    let mut exist = BTreeSet::new();
    for (name, is_histogram) in &documented {
        if *is_histogram {
            exist.extend(HISTOGRAM.map(|end| format!("{name}{end}")));
        } else {
            exist.insert(name.clone());
        }
    }
    let mut charts = BTreeSet::new();
    for path in files("deploy/grafana", ".json") {
        let board: serde_json::Value = serde_json::from_str(&read(&path)).unwrap();
        let mut used = BTreeSet::new();
        for panel in board["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let expression = target["expr"].as_str().unwrap();
                let here = names(expression);
                assert!(!here.is_empty(), "{}: {expression}", path.display());
                used.extend(here);
            }
        }
        for variable in board["templating"]["list"].as_array().unwrap() {
            used.extend(names(variable["query"].as_str().unwrap()));
        }
        let unknown: Vec<_> = used.difference(&exist).collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", path.display());
        charts.extend(used);
    }
    for path in files("deploy/prometheus", "-rules.yaml") {
        let text = read(&path);
        let lines = text
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'));
        let used = names(&lines.collect::<Vec<_>>().join("\n"));
        let unknown: Vec<_> = used.difference(&exist).collect();
        assert!(
            !used.is_empty() && unknown.is_empty(),
            "{}: {unknown:?}",
            path.display()
        );
    }
    // Every metric of the node's programs has a chart.
    let of_node = documented.iter().filter(|(name, _)| {
        [
            "vmlet_tapmanager_",
            "vmlet_criproxy_",
            "vmlet_agent_",
            "vmlet_cri_",
            "vmlet_libvirt_",
        ]
        .iter()
        .any(|prefix| name.starts_with(prefix))
    });
    let without: Vec<_> = of_node
        .filter(|(name, _)| !charts.iter().any(|used| used.starts_with(name.as_str())))
        .collect();
    assert!(without.is_empty(), "in no dashboard: {without:?}");
}

/// The addresses after `key` in a text, without quotation marks.
fn addresses<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    let of = move |line: &'a str| line.split_once(key).map(|(_, rest)| rest);
    let end = |c: char| !(c.is_ascii_digit() || c == '.' || c == ':');
    text.lines()
        .filter_map(of)
        .filter_map(move |rest| rest.split(end).next())
}

#[test]
fn what_the_scrape_component_forwards_to_is_where_the_programs_listen() {
    let component = read("deploy/prometheus/scrape/daemonset.yaml");
    let forwarded: BTreeSet<_> = addresses(&component, "--upstream=http://").collect();
    let settings = [
        "deploy/node/vmlet.toml",
        "deploy/node/tapmanager.toml",
        "docs/criproxy-configuration.md",
    ]
    .map(|path| {
        let text = read(path);
        let (_, section) = text.rsplit_once("[metrics]\n").expect(path);
        let mut listen = addresses(section, "listen = \"");
        listen.next().expect(path).to_owned()
    });
    let listening: BTreeSet<_> = settings.iter().map(String::as_str).collect();
    assert_eq!(forwarded, listening);
}

#[test]
fn monitors_name_ports_that_pods_have() {
    let pods = [
        "deploy/prometheus/scrape/daemonset.yaml",
        "deploy/agent/daemonset.yaml",
        "deploy/controller/deployment.yaml",
    ]
    .map(read);
    for line in read("deploy/prometheus/podmonitor.yaml").lines() {
        if let Some((_, port)) = line.split_once("port: ") {
            let named = format!("- {{name: {port}, containerPort: ");
            assert!(pods.iter().any(|pod| pod.contains(&named)), "{port}");
        }
        if let Some((_, app)) = line.split_once("matchLabels: {") {
            let label = app.trim_end_matches('}');
            assert!(pods.iter().any(|pod| pod.contains(label)), "{label}");
        }
    }
}
