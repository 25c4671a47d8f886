//! The conformance suite against containerd ends as it does without the proxy, specification for
//! specification.
//!
//! Invariant: both runs are of one cluster and one order. What fails directly, because it wants
//! another image or because this kernel or this root cannot do it, must fail through the proxy too.
//! Failure: the specifications that ended otherwise.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Options, program};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Their subject is an image from the Internet: pulling it, or the web server in it, for which each
/// waits a minute.
const FOREIGN_IMAGES: &str =
    "Image (Manager|Consistency|Identifier)|port mapping|portforward|HostNetwork|support network$";
/// Fewer have run when something about the choice is wrong.
const AT_LEAST: usize = 50;

#[tokio::test]
#[ignore = "needs root"]
async fn critest_of_containerd_ends_the_same_through_the_proxy() -> Result<()> {
    let cluster = Cluster::with(Options {
        no_vmlet: true,
        ..Options::default()
    })?;
    // It would remove the suite's pods, which the API server knows nothing of.
    cluster.stack().kill("kubelet", Signal::SIGTERM).await?;
    // Registries are out of reach. That shows at once, instead of after a minute for each image.
    let mut route = cluster.stack().command("ip");
    let route = program::output(route.args(["route", "replace", "unreachable", "default"]))?;
    ensure!(route.status.success(), "{route:?}");
    let mut direct = critest(&cluster, "VMLET_CONTAINERD_ENDPOINT", "")?;
    let mut proxied = critest(&cluster, "VMLET_PROXY_ENDPOINT", "")?;
    // On a busy machine either may be late for once. What the proxy changes, it changes again.
    let again = otherwise(&direct, &proxied);
    if !again.is_empty() {
        eprintln!("once more: {again:#?}");
        let only: Vec<_> = again.keys().map(|spec| literally(spec)).collect();
        let only = only.join("|");
        for (all, endpoint) in [
            (&mut direct, "VMLET_CONTAINERD_ENDPOINT"),
            (&mut proxied, "VMLET_PROXY_ENDPOINT"),
        ] {
            let mut ended = critest(&cluster, endpoint, &only)?;
            ended.retain(|spec, _| again.contains_key(spec));
            all.extend(ended);
        }
    }
    let other = otherwise(&direct, &proxied);
    ensure!(other.is_empty(), "{other:#?}");
    ensure!(direct.len() == proxied.len(), "{direct:?}, {proxied:?}");
    let passed = direct.values().filter(|state| *state == "passed").count();
    eprintln!("{} specifications the same, {passed} passed", direct.len());
    ensure!(passed >= AT_LEAST, "{direct:#?}");
    cluster.stack().restart("kubelet")?;
    cluster.await_clean().await?;
    cluster.down()
}

/// The specifications that ended otherwise through the proxy, and how.
fn otherwise(
    direct: &BTreeMap<String, String>,
    proxied: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let differ = |(spec, state): &(&String, &String)| proxied.get(*spec) != Some(*state);
    let words = |(spec, state): (&String, &String)| {
        let through = proxied.get(spec);
        (spec.clone(), format!("{state} directly, {through:?}"))
    };
    direct.iter().filter(differ).map(words).collect()
}

/// A regular expression for exactly this text.
fn literally(text: &str) -> String {
    let mut expression = String::new();
    for letter in text.chars() {
        if letter.is_ascii_punctuation() {
            expression.push('\\');
        }
        expression.push(letter);
    }
    expression
}

/// How each specification ended whose name has `only` in it.
fn critest(cluster: &Cluster, endpoint: &str, only: &str) -> Result<BTreeMap<String, String>> {
    let stack = cluster.stack();
    let images = stack.dir().join("images.yaml");
    let report = stack.dir().join("critest.json");
    let image = stack.var("VMLET_TOOL_IMAGE")?;
    let names = format!("defaultTestContainerImage: {image}\nwebServerTestImage: {image}\n");
    std::fs::write(&images, names)?;
    let mut critest = stack.command_inside("critest")?;
    critest.args(["-runtime-endpoint", stack.var(endpoint)?]);
    critest.args(["-test-images-file", path(&images)]);
    critest.args(["-ginkgo.json-report", path(&report)]);
    critest.args(["-ginkgo.skip", FOREIGN_IMAGES, "-ginkgo.seed", "1"]);
    critest.args(["-ginkgo.no-color", "-ginkgo.v=false"]);
    if !only.is_empty() {
        critest.args(["-ginkgo.focus", only]);
    }
    let output = program::output(&mut critest)?;
    let text = std::fs::read_to_string(&report).with_context(|| {
        let words = String::from_utf8_lossy(&output.stdout);
        format!(
            "critest ended with {} and no report: {words}",
            output.status
        )
    })?;
    std::fs::remove_file(&report)?;
    let suites: Value = serde_json::from_str(&text)?;
    let specs = suites[0]["SpecReports"].as_array().context("SpecReports")?;
    let specs = specs.iter().filter(|spec| spec["LeafNodeType"] == "It");
    Ok(specs
        .map(|spec| {
            let words = spec["ContainerHierarchyTexts"].as_array().into_iter();
            let words = words.flatten().chain([&spec["LeafNodeText"]]);
            let words: Vec<_> = words.filter_map(Value::as_str).collect();
            let state = spec["State"].as_str().unwrap_or_default();
            (words.join(" "), state.to_owned())
        })
        .collect())
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}
