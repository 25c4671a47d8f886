//! The names of all metrics, and the page over the real listener.
//!
//! Invariant: each metric is counted once, so that the page has a series of each.
//! Failure: the names that differ.

use std::collections::BTreeSet;

use libvirt::Observer as _;

use super::*;

#[test]
fn the_page_has_the_metrics_of_the_documentation() {
    let metrics = Metrics::default();
    metrics.requested("Status", "OK", Duration::from_millis(3));
    metrics.booted(Instant::now(), true);
    metrics.booted(Instant::now(), false);
    metrics.lost_share();
    metrics.pulled(false);
    metrics.received(7);
    metrics.collected("unused", 512);
    metrics.translation_files(TranslationFiles {
        current: 2,
        outdated: 1,
        refused: 0,
    });
    metrics.called("define", Duration::from_millis(2), "ok");
    metrics.begin("exec").end(true);
    drop(metrics.begin("exec"));
    let _open = metrics.begin("attach");
    let census = Census {
        sandboxes: vec!["Ready".to_owned()],
        machines: vec!["Running".to_owned(), "Running".to_owned()],
        tasks: vec![("Save".to_owned(), "Queued".to_owned())],
        connected: true,
        unreadable: BTreeMap::from([("containers", 1)]),
        landlock: 6,
    };
    let page = metrics.text(&census);
    for line in [
        r#"vmlet_cri_requests_total{method="Status",code="OK"} 1"#,
        r#"vmlet_machines{phase="Running"} 2"#,
        r#"vmlet_boots_total{outcome="failed"} 1"#,
        "vmlet_boot_seconds_count 1",
        "vmlet_pull_bytes_total 7",
        r#"vmlet_images_collected_total{reason="unused"} 1"#,
        "vmlet_image_collected_bytes_total 512",
        r#"vmlet_image_translation_files{state="outdated"} 1"#,
        r#"vmlet_libvirt_calls_total{call="define",outcome="ok"} 1"#,
        r#"vmlet_unreadable_records{table="containers"} 1"#,
        "vmlet_landlock_version 6",
        r#"vmlet_node_tasks{kind="Save",state="Queued"} 1"#,
        r#"vmlet_sessions{kind="exec"} 0"#,
        r#"vmlet_sessions{kind="attach"} 1"#,
        r#"vmlet_sessions_ended_total{kind="exec",outcome="abandoned"} 1"#,
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let served: BTreeSet<_> = types
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| match kind {
            "counter" => format!("{name}_total"),
            _ => name.to_owned(),
        })
        .collect();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/observability.md");
    let page = std::fs::read_to_string(page).unwrap();
    let cells = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `vmlet_"));
    let documented: BTreeSet<_> = cells
        .filter_map(|rest| rest.split_once('`'))
        .map(|(name, _)| format!("vmlet_{name}"))
        .filter(|name| !name.starts_with("vmlet_tapmanager_"))
        .collect();
    assert_eq!(served, documented);
    assert!(
        !metrics
            .text(&Census::default())
            .contains(r#"phase="Running""#)
    );
}
