//! Rows about the calls of a pod's life.
//!
//! Invariant: a ratio is ours over containerd's, of the medians of one run.
//! Failure: a sample that is missing is named.

use anyhow::Result;

use super::super::samples::Samples;
use super::super::table::{Figure, Row};

const PART: &str = "cycles";

/// Calls, names of their samples, and the budget of the ratio.
const CALLS: [(&str, &str, Option<f64>); 10] = [
    ("RunPodSandbox", "run", Some(0.5)),
    ("CreateContainer", "create", None),
    ("StartContainer", "start", None),
    ("PodSandboxStatus", "sandbox_status", None),
    ("ContainerStatus", "container_status", None),
    ("ListPodSandbox", "list_sandboxes", None),
    ("StopContainer", "stop", None),
    ("StopPodSandbox", "stop_pod", Some(0.8)),
    ("RemoveContainer", "remove", None),
    ("RemovePodSandbox", "remove_pod", None),
];

/// Steps of StopPodSandbox, each with those that are part of it below it.
const STEPS: [(&str, &str); 9] = [
    ("StopPodSandbox in vmlet", "step_all"),
    ("  machines", "step_machines"),
    ("  network: call of the tapmanager", "step_network"),
    ("    in the tapmanager", "step_removal"),
    ("      CNI DEL", "step_plugins"),
    ("      journal, with its fsyncs", "step_journal"),
    ("      bridge and tap, links put back", "step_links"),
    ("      network namespace, with nftables", "step_namespace"),
    ("StopContainer: libvirt destroys the domain", "step_destroy"),
];

/// Both runtimes and their ratio for each call.
pub(super) fn calls(samples: &Samples) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (call, name, budget) in CALLS {
        let ours = samples.series(PART, &format!("{name}_vmlet"))?;
        let theirs = samples.series(PART, &format!("{name}_containerd"))?;
        let ratio = ours.p50() / theirs.p50();
        rows.push(Row::many(format!("{call}: vmlet"), "ms", ours));
        rows.push(Row::many("  containerd", "ms", theirs));
        let row = Row::one("  ratio of p50", "×", ratio);
        rows.push(match budget {
            Some(most) => row.within(Figure::P50, most, why(samples, name)?),
            None => row,
        });
    }
    Ok(rows)
}

/// What each step of the teardown took.
pub(super) fn teardown(samples: &Samples) -> Result<Vec<Row>> {
    let row = |(what, name): (&str, &str)| -> Result<Row> {
        Ok(Row::many(what, "ms", samples.series(PART, name)?))
    };
    STEPS.into_iter().map(row).collect()
}

/// Where the time goes, as far as the programs log it.
fn why(samples: &Samples, name: &str) -> Result<String> {
    let p50 = |name: &str| Ok::<_, anyhow::Error>(samples.series(PART, name)?.p50());
    Ok(if name == "stop_pod" {
        format!(
            "CNI DEL {:.0} ms, fsyncs of the journal {:.0} ms, links {:.0} ms, rows {:.0} ms",
            p50("step_plugins")?,
            p50("step_journal")?,
            p50("step_links")?,
            p50("step_all")? - p50("step_network")? - p50("step_machines")?,
        )
    } else {
        "CNI ADD, fsyncs of journal and rows, and the filter of the pod".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Samples {
        let mut numbers = serde_json::Map::new();
        for (_, name, _) in CALLS {
            numbers.insert(format!("{name}_vmlet"), serde_json::json!([2.0, 3.0]));
            numbers.insert(format!("{name}_containerd"), serde_json::json!([3.0]));
        }
        for (_, name) in STEPS {
            numbers.insert(name.to_owned(), serde_json::json!([1.0]));
        }
        let printed = serde_json::json!({ "samples": numbers, "facts": {} }).to_string();
        let mut samples = Samples::default();
        samples.add(PART, &printed).unwrap();
        samples
    }

    #[test]
    fn a_ratio_is_compared_with_its_budget() {
        let rows = calls(&samples()).unwrap();
        let ratio = |call: &str| {
            let at = CALLS.iter().position(|(name, ..)| *name == call).unwrap();
            rows[3 * at + 2].to_json()
        };
        let run = ratio("RunPodSandbox");
        assert_eq!(run["verdict"], "over");
        assert!(run["why"].as_str().unwrap().contains("CNI ADD"));
        assert_eq!(ratio("StopPodSandbox")["verdict"], "within");
        assert_eq!(ratio("CreateContainer")["verdict"], "");
    }

    #[test]
    fn every_step_has_a_row() {
        assert_eq!(teardown(&samples()).unwrap().len(), STEPS.len());
        assert!(teardown(&Samples::default()).is_err());
    }
}
